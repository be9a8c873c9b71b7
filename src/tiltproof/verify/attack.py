"""The attack: corners, a grid and random parameters, then gradient steps in parameter space."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.network import better, is_deep, margins, refine, run
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.noise import pushed_form
from tiltproof.transforms import Transform
from tiltproof.transforms.noise import as_text, perturbed
from tiltproof.verify.deep_prover import DeepProver
from tiltproof.verify.inputs import Inputs, check_kept, not_finite, proof_on
from tiltproof.verify.keep import Keep
from tiltproof.verify.rules import OwnRule, Rule

FEW_OF, FAR = 4, 0.5
"""A hasty attack tries every fourth parameter, and the corners unless they are many; then the others, where the least
margin is below half of the spread of margins. On 3,490 images of the paper authors' networks it finds the 280
counterexamples of all 24 samples."""


PUSHES = 3
"""With noise: gradients from which the perturbation of a picture is found."""
IMAGES_AT_ONCE, ON_A_GPU = 64, 1024
"""Images between two reports of progress."""


@dataclass
class AttackResult:
    """The result of `attack`, with one entry per image in each list.

    Attributes
    ----------
    parameters : list of (tuple of float or None)
        A confirmed counterexample, or None.
    margins : list of float
        The lowest margin found.
    correct : list of bool
        Whether the network predicts the label of the untransformed image (or satisfies what else is to be kept).
    labels : list of int
        The labels, or the network's own answers if these are to be kept.
    perturbations : list of (str or None)
        With noise (`Linf`), which pixels of a counterexample move up, as in run folders; None if none needs to move.
    """

    parameters: list[tuple[float, ...] | None]
    margins: list[float]
    correct: list[bool]
    labels: list[int] = field(default_factory=list)
    perturbations: list[str | None] = field(default_factory=list)

    def __repr__(self) -> str:
        falsified = sum(parameters is not None for parameters in self.parameters)
        return f"AttackResult({len(self.correct)} images: {sum(self.correct)} correct, {falsified} falsified)"


def attack(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    transform: Transform | str,
    *,
    keep: Keep | None = None,
    samples: int = 200,
    steps: int = 10,
    seed: int = 0,
    first: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> AttackResult:
    """Search each image's range of parameters for a counterexample; each is confirmed in float64 on the exact transformation.

    Parameters
    ----------
    model : torch.nn.Module
        The classifier.
    images, labels : Tensor
        Images [N, C, H, W] with values in [0, 1] on the model's device, and their classes [N].
    transform : Transform or str
        The transformation.
    keep : KeepOwn or TopK or Allow or Forbid or Linear, optional
        What a counterexample violates, as in `certify`; by default the label.
    samples : int
        Parameters evaluated per image.
    steps : int
        Gradient steps from the worst of them.
    seed : int
        Seed of the samples.
    first : int
        The number of the first image in messages.
    progress : callable, optional
        Called with the number of images that are done, and of all of them.

    Returns
    -------
    AttackResult
        One entry per image. No counterexample proves nothing.

    Raises
    ------
    InputError
        If an argument is invalid, or the network's output is not finite.
    UnsupportedOperation
        If an operation of the network has no bound rule.
    """
    with proof_on(images):
        inputs, rule = check_kept(model, images, labels, transform, "real", keep, first)
        with inputs.eval_mode():
            attacker = Attacker(inputs, seed, rule)
            known = attacker.begin(first)
            every = known.alive()
            done = len(inputs.images) - len(every)
            at_once = ON_A_GPU if inputs.images.is_cuda else IMAGES_AT_ONCE
            for rows in every.split(at_once) if progress is not None else [every]:
                attacker.generator.manual_seed(seed)  # the same parameters for all images
                attacker.search(known, rows, samples, steps)
                done += len(rows)
                if progress is not None:
                    progress(done, len(inputs.images))
        correct, answers = known.correct.tolist(), inputs.labels.tolist()
        pushes = [known.perturbation.get(k) for k in range(len(answers))]
        return AttackResult(known.found, known.margin.tolist(), correct, answers, pushes)


@dataclass
class Counterexamples:
    """Attack results per image; ``found``: a confirmed counterexample or None; ``margin``: the lowest margin."""

    correct: Tensor
    margin: Tensor
    falsified: Tensor
    found: list[tuple[float, ...] | None]
    own: bool = False
    """Whether the network's own answers stand for the labels: an image is then not ``correct`` if its own answer is
    not proved."""
    perturbation: dict[int, str] = field(default_factory=dict)
    """With noise: what moves the pixels of a counterexample (`transforms.noise.as_text`), where something does."""

    def alive(self) -> Tensor:
        """Return images that are classified correctly and not falsified."""
        return (self.correct & ~self.falsified).nonzero().flatten()

    def add(self, rows: Tensor, parameters: Tensor, margin: Tensor, up: Tensor | None = None) -> None:
        """Record the points whose exact margin is below zero, by the upper bounds ``margin``. ``up``: where pixels move up, if they
        are moved."""
        for k in (margin < 0).nonzero().flatten().tolist():
            row = int(rows[k])
            if self.found[row] is None:
                self.found[row] = tuple(parameters[k].tolist())
                if up is not None:
                    self.perturbation[row] = as_text(up[k])
                self.falsified[row] = True
                self.margin[row] = margin[k]


class Attacker:
    """Evaluates margins at concrete parameters; results are kept in `Counterexamples`."""

    def __init__(self, inputs: Inputs, seed: int, rule: Rule | None = None) -> None:
        """``rule``: what must hold, by default that of labels."""
        self.answers, self.images, self.labels = inputs.answers, inputs.images, inputs.labels
        self.rule = None if isinstance(rule, OwnRule) else rule
        self.semantics_network = (
            inputs.network_as(torch.float64, inputs.semantics) if isinstance(rule, OwnRule) else None
        )
        self.transform, self.images64 = inputs.transform.without_noise(), inputs.images64
        self.epsilon = inputs.transform.noise
        self.exact = inputs.network_as(torch.float64)
        self.low, self.high = (
            torch.tensor(end, dtype=torch.float64) for end in (self.transform.low, self.transform.high)
        )
        self.generator = torch.Generator().manual_seed(seed)
        # on a GPU the number of launches counts, not that of images
        most, points = (65_536, 2048) if inputs.images.is_cuda else (256, 128)
        self.batch, self.gradients = inputs.evaluations(most), inputs.evaluations(most, gradient=True)
        self.points = inputs.points(points)

    @torch.no_grad()
    def begin(self, first: int = 0) -> Counterexamples:
        """Evaluate the untransformed images; ``first``: the number of the first one, for messages."""
        clean, finite = self.batch.run(self._clean)
        if not bool(finite.all()):
            row = int((~finite).int().argmax())
            raise not_finite(first + row, self.answers(self.images[row : row + 1])[0])
        falsified = torch.zeros(len(self.images), dtype=torch.bool)
        right, own = (clean > 0).cpu(), self.semantics_network is not None
        if own:
            right = right & self._own_answers()
        return Counterexamples(right, clean.double().cpu(), falsified, [None] * len(self.images), own)

    def _own_answers(self) -> Tensor:
        """Return whether the labels are proved to be the network's answers to the untransformed images."""
        network = self.semantics_network
        assert network is not None

        def work(size: int) -> Tensor:
            found = []
            for rows in torch.arange(len(self.images), device=self.images.device).split(size):
                labels = self.labels[rows]
                forms = run(network, AffineForm.constant(self.images64[rows], symbols=1), outputs=False)
                form = margins(network, forms, labels)
                lower = torch.where(form.radius >= 0, form.lower, torch.nan).scatter(1, labels.unsqueeze(1), torch.inf)
                lower = lower.nan_to_num(nan=-torch.inf, posinf=torch.inf)
                for box, other in (~(lower > 0)).nonzero().tolist():
                    pair = rows.new_tensor([box])
                    best, _ = refine(network, forms, labels, pair, rows.new_tensor([other]), 0.0, False)
                    lower[box, other] = better(lower[box, other], best[0])
                found.append((lower > 0).all(1).cpu())
            return torch.cat(found)

        return self.points.run(work)

    def _clean(self, size: int) -> tuple[Tensor, Tensor]:
        """Return margins, and whether each image's outputs are finite."""
        margins, finite = [], []
        for rows in torch.arange(len(self.images), device=self.images.device).split(size):
            outputs = self.answers(self.images[rows])
            margins.append(self._margin_of(outputs, rows))
            finite.append(outputs.isfinite().all(1))
        return torch.cat(margins), torch.cat(finite)

    def _margin(self, images: Tensor, rows: Tensor) -> Tensor:
        return self._margin_of(self.answers(images), rows)

    def _margin_of(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return margins of outputs [P, K] of images ``rows`` [P]."""
        return margin_of(outputs, self.labels[rows]) if self.rule is None else self.rule.margin(outputs, rows)

    def margin_at_each(self, rows: Tensor, parameters: Tensor) -> Tensor:
        """Return margins of a few images ``rows`` [Q] at ``parameters`` [Q, d], as a differentiable function of these."""
        return self._margin(self.transform.apply(self.images[rows], parameters), rows)

    def margins_at(self, rows: Tensor, parameters: Tensor) -> Tensor:
        """Return margins of images ``rows`` [Q] at ``parameters`` float64 [Q, d], in the images' dtype, on the device
        of ``rows``; with noise the least that moving pixels as well finds (`_pushed`)."""
        if self.epsilon and len(rows):
            return self._pushed(rows, parameters)[0].to(rows.device)
        return self._plain_margins_at(rows, parameters)

    def _plain_margins_at(self, rows: Tensor, parameters: Tensor) -> Tensor:
        images, values = rows.to(self.images.device), parameters.to(self.images.device, self.images.dtype)

        def work(size: int) -> Tensor:
            pieces = []
            for index, value in zip(images.split(size), values.split(size), strict=True):
                pieces.append(self._margin(self.transform.apply(self.images[index], value), index))
            return torch.cat(pieces)

        if not len(rows):
            return torch.empty_like(rows, dtype=torch.float64)
        with torch.no_grad():
            return self.batch.run(work).to(rows.device).double()

    @torch.no_grad()
    def margins_of_each(self, rows: Tensor, parameters: Tensor) -> Tensor:
        """Return margins of images ``rows`` [Q] at each of the ``parameters`` float64 [S, d]: [Q, S], as
        `margins_at`."""
        device = self.images.device
        images, values = rows.to(device), parameters.to(device, self.images.dtype)

        def work(size: int) -> Tensor:
            columns = []
            for some in values.split(size):
                parts = images.split(max(1, size // len(some)))
                margins = [self._margins_of_each(part, some) for part in parts]
                columns.append(torch.cat(margins).view(len(rows), len(some)))
            return torch.cat(columns, 1).cpu()

        if not (len(rows) and len(parameters)):
            return torch.empty(len(rows), len(parameters), dtype=torch.float64)
        result: Tensor = self.batch.run(work)
        return result.double()

    def _margins_of_each(self, rows: Tensor, values: Tensor) -> Tensor:
        images = self.transform.apply_each(self.images[rows], values)
        return self._margin(images, rows.repeat_interleave(len(values)))

    @torch.no_grad()
    def confirm(self, known: Counterexamples, rows: Tensor, parameters: Tensor) -> None:
        """Check candidates in float64 on the exact transformation, with error bounds, and record those that hold."""
        open_ = ~known.falsified[rows]
        rows, parameters = rows[open_], parameters[open_]
        if len(rows) and self.epsilon:
            # a point that needs no perturbation is the plainer counterexample
            bare = (self._plain_margins_at(rows, parameters) < 0).nonzero().flatten()
            if len(bare):
                known.add(rows[bare], parameters[bare], self.upper_margins(rows[bare], parameters[bare]))
            left = ~known.falsified[rows]
            rows, parameters = rows[left], parameters[left]
            if len(rows):
                known.add(rows, parameters, *self.worst_margins(rows, parameters))
        elif len(rows):
            known.add(rows, parameters, self.upper_margins(rows, parameters))

    @torch.no_grad()
    def upper_margins(self, rows: Tensor, parameters: Tensor, up: Tensor | None = None) -> Tensor:
        """Return upper bounds of the exact margins of images ``rows`` [Q] at ``parameters`` float64 [Q, d]; on the CPU.
        ``up``: as in `_largest_margins`."""
        return self.points.run(functools.partial(self._largest_margins, rows, parameters, up=up))

    def worst_margins(self, rows: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return `upper_margins` with the noise that is worst there, and which pixels it moves up; without noise None."""
        up = self._pushed(rows, parameters)[1] if self.epsilon and len(rows) else None
        return self.upper_margins(rows, parameters, up), up

    def _pushed(self, rows: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Search for the noise that is worst for images ``rows`` [Q] at ``parameters`` [Q, d].

        Every pixel moves by the whole epsilon, in the direction of the sign of the gradients so far, each scaled to
        length 1. Return the least margins [Q] and where pixels move up [Q, C, H, W], float64 and bool on the CPU.
        """

        def work(size: int) -> tuple[Tensor, Tensor]:
            least, best = [], []
            for chunk in torch.arange(len(rows)).split(size):
                index, values = rows[chunk].to(self.images.device), parameters[chunk].to(self.images)
                with torch.no_grad():
                    plain = self.transform.apply(self.images[index], values)
                total, image = torch.zeros_like(plain), plain
                margin = torch.full_like(plain[:, 0, 0, 0], torch.inf)
                now = up = torch.zeros_like(plain, dtype=torch.bool)
                for number in range(PUSHES + 1):
                    image = image.detach().requires_grad_()
                    with torch.enable_grad():  # whatever the caller's setting is
                        found = self._margin(image, index)
                        (gradient,) = torch.autograd.grad(found.sum(), image)
                    if number:  # the first image is not moved
                        better = found.detach() < margin
                        margin, up = (
                            torch.where(better, found.detach().to(margin), margin),
                            torch.where(_each(better), now, up),
                        )
                    total = total + gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-30).view(-1, 1, 1, 1)
                    now = total <= 0  # upwards where that lowers the margin
                    image = perturbed(plain, self.epsilon, now)
                least.append(margin.cpu().double())
                best.append(up.cpu())
            return torch.cat(least), torch.cat(best)

        return self.gradients.run(work)

    def _largest_margins(self, rows: Tensor, parameters: Tensor, size: int, up: Tensor | None = None) -> Tensor:
        """Return upper bounds of the exact margins, ``size`` at a time; in deep networks, radii alone would decide nothing.
        ``up``: which pixels move up by epsilon; the others move down. Without it none moves."""
        pieces, deep = [], None
        if self.rule is None and is_deep(self.exact):
            deep = DeepProver(self.images64, self.labels, self.transform)
        for chunk in torch.arange(len(rows)).split(size):
            index, values = rows[chunk].to(self.images.device), parameters[chunk].to(self.images.device)
            labels = self.labels[index]
            push = None if up is None else (self.epsilon, up[chunk].to(self.images.device))
            if deep is not None:
                pieces.append(deep.bound(index, values, values, self.exact, push).upper.cpu())
                continue
            pixels = pair_bounds(self.images64, index, self.transform, "affine", values, values)
            pixels = pixels if push is None else pushed_form(pixels, *push)
            if self.rule is not None:
                pieces.append(self.rule.upper(self.exact, pixels, index).cpu())
                continue
            form = margins(self.exact, run(self.exact, pixels, outputs=False), labels)
            pieces.append(form.upper.scatter(1, labels.unsqueeze(1), torch.inf).amin(1).cpu())
        return torch.cat(pieces)

    def at(self, unit: Tensor) -> Tensor:
        """Return the parameters for positions in [-1, 1]^d; both ends of the range are exact."""
        t = (unit + 1) / 2
        return (self.low * (1 - t) + self.high * t).clamp(self.low, self.high)

    def search(self, known: Counterexamples, rows: Tensor, samples: int, steps: int, hasty: bool = False) -> Tensor:
        """Attack images ``rows``: first sampled parameters, then gradient steps from each image's worst one; return the
        positions [N, d] of the margins that are less than all known. ``hasty``: see `_seen`."""
        if samples < 1 or steps < 0:
            raise InputError(
                "the attack needs at least one sample and no negative number of steps", got=(samples, steps)
            )
        best = torch.zeros(len(self.images), len(self.low), dtype=torch.float64)
        units = candidates(samples, len(self.low), self.generator)
        for chunk in units.split(max(1, min(len(units), 32))):
            rows = rows[~known.falsified[rows]]
            if not len(rows):
                return best
            least, which = self._seen(rows, chunk, hasty).min(1)
            lower = least < known.margin[rows]
            best[rows[lower]] = chunk[which[lower]]
            known.margin[rows[lower]] = least[lower]
            self.confirm(known, rows[least < 0], self.at(chunk[which[least < 0]]))
        if self.epsilon and len(rows := rows[~known.falsified[rows]]):  # and the worst point with noise
            least = self.margins_at(rows, self.at(best[rows]))
            known.margin[rows] = torch.minimum(known.margin[rows], least)
            self.confirm(known, rows[least < 0], self.at(best[rows[least < 0]]))
        self._descend(known, rows, best, steps)
        return best

    def _seen(self, rows: Tensor, units: Tensor, hasty: bool) -> Tensor:
        """Return margins of images [R] at positions [U]: [R, U]. ``hasty``: only some positions, for images whose
        margins there are far from zero compared with their spread; infinity elsewhere. Such images are likely to
        be proved. A missed counterexample costs time only: boxes are probed at their middles."""
        ends = 1 + 2 ** units.shape[1]  # the center and the corners
        ends = ends if 3 * ends <= len(units) else 0
        first = (torch.arange(len(units)) - ends) % (FEW_OF if hasty else 1) == 0
        first[:ends] = True
        table = torch.full((len(rows), len(units)), torch.inf, dtype=torch.float64)
        table[:, first] = self.margins_of_each(rows, self.at(units[first]))
        if hasty:
            least, most = table[:, first].aminmax(dim=1)
            near = (~(least > FAR * (most - least))).nonzero()
            table[near, (~first).nonzero().T] = self.margins_of_each(rows[near.flatten()], self.at(units[~first]))
        return table

    def _descend(self, known: Counterexamples, rows: Tensor, start: Tensor, steps: int) -> None:
        """Take signed gradient steps on the margin from each image's best point; the step size is halved every third
        time."""
        for number in range(steps if len(self.low) else 0):
            rows = rows[~known.falsified[rows]]
            if not len(rows):
                return
            step = 0.2 * 0.5 ** (number // 3)
            moved = self.gradients.run(functools.partial(self._moved, rows, start, step))
            margin = self.margins_at(rows, self.at(moved))
            better = margin < known.margin[rows]
            start[rows[better]] = moved[better]
            known.margin[rows[better]] = margin[better]
            self.confirm(known, rows[margin < 0], self.at(moved[margin < 0]))

    def _moved(self, rows: Tensor, start: Tensor, step: float, size: int) -> Tensor:
        """Take one signed step for ``rows``, ``size`` images at a time; float64 on the CPU."""
        device, dtype = self.images.device, self.images.dtype
        low, high = self.low.to(device, dtype), self.high.to(device, dtype)
        pieces = []
        for chunk in rows.split(size):
            index = chunk.to(device)
            unit = start[chunk].to(device, dtype).requires_grad_()
            with torch.enable_grad():  # whatever the caller's setting is
                images = self.transform.apply(self.images[index], low + (high - low) * (unit + 1) / 2)
                margin = self._margin(images, index)
                (gradient,) = torch.autograd.grad(margin.sum(), unit)
            pieces.append((unit - step * gradient.sign()).detach().clamp(-1, 1).cpu().double())
        return torch.cat(pieces)


def _each(mask: Tensor) -> Tensor:
    return mask.view(-1, 1, 1, 1)


def margin_of(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return f_label - max over the other classes, [N]."""
    own = outputs.gather(1, labels.unsqueeze(1)).squeeze(1)
    others = outputs.scatter(1, labels.unsqueeze(1), -torch.inf)
    return own - others.amax(1)


def candidates(samples: int, d: int, generator: torch.Generator) -> Tensor:
    """Return center, corners, a grid and random points of [-1, 1]^d, ``samples`` distinct ones (float64 [S, d]).
    Above five parameters corners are left to chance."""
    points = [torch.zeros(1, d, dtype=torch.float64)]
    if not d:  # noise alone
        return points[0]
    if d <= 5:
        points.append(torch.tensor(list(itertools.product((-1.0, 1.0), repeat=d)), dtype=torch.float64))
    left = max(0, samples - sum(map(len, points)))
    per_axis = left if d == 1 else int((left / 2) ** (1 / d))
    if per_axis > 1:
        line = torch.linspace(-1, 1, per_axis, dtype=torch.float64)
        points.append(torch.cartesian_prod(*[line] * d).view(-1, d))
    left = max(0, samples - sum(map(len, points)))
    points.append(torch.rand(left, d, dtype=torch.float64, generator=generator) * 2 - 1)
    every = torch.cat(points)[: max(samples, 1)].tolist()
    return torch.tensor(list(dict.fromkeys(map(tuple, every))), dtype=torch.float64)  # corners lie on the grid too
