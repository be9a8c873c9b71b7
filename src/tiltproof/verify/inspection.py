"""`inspect`: what a network is made of, how its bounds grow, and what can be expected of a proof, before one is begun.

Growth is shown in two ways, as products from the input on. Row sums: with |x - c| <= r everywhere, the entries of W x
differ from those of W c by at most r times the largest sum of a row of |W|; this is how far interval bounds and
rounding errors spread. Spectral: the largest singular value of W, an estimate from below by power iteration, is how far
the network itself moves. Where the first exceeds the second by many powers of ten, bounds lose that much.

The preflight bounds one untransformed image: a box of width zero, for which rounding alone is left. If that exceeds the
margin, no box around it can be proved, however small. Only the cost is a guess; none of these numbers enters a proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.pair_form import PairForm
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.network import Network, Operation, is_deep, margins, run
from tiltproof.network.deep import DeepPass
from tiltproof.network.ops.base import REGISTRY, LinearRule
from tiltproof.network.pair_pass import PairPass, needs_pairs
from tiltproof.refusals import Refusal, refusals_of
from tiltproof.transforms import Transform
from tiltproof.verify.attack import margin_of
from tiltproof.verify.branch_and_bound import candidate_grids, sensitivity
from tiltproof.verify.inputs import Inputs, check_model_and_images, proof_on
from tiltproof.verify.prover import ClassRefinement, EagerPolicy, Prover
from tiltproof.verify.state import Boxes, Tiling

ANY_TRANSFORM = "B(0.001)"
"""Stands in where none is given: arguments are checked with one."""
POWER_STEPS = 12
SMALL = 1e-6
"""Radius at the input from which the growth of an operation that is not linear is measured."""
TRIED_BOXES, MOST_BOXES = 4, 2**40
"""Random boxes of each grid, and the most boxes of a grid, that the cost is estimated from."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Layer:
    """One operation, as it is bounded: batch norms belong to the layer before them."""

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    row_sums: float
    """log10 of the growth from the input on, by row sums ..."""
    spectral: float
    """... and by singular values, estimated."""
    rounding: float
    """Largest rounding allowance of its outputs for the image, in float64."""


@dataclass(frozen=True)
class Rounding:
    """The preflight, in one precision. For ranges of outputs, ``margin`` is the largest output."""

    precision: str
    margin: float
    forward: float
    """Rounding allowance of the margin by the forward pass."""
    allowance: float
    """The same after a backward pass, if the forward pass is not enough."""

    @property
    def provable(self) -> bool:
        return self.allowance < self.margin


@dataclass(frozen=True)
class Cost:
    """What the whole range of a transformation may cost per image; None: no grid tried was fine enough."""

    transform: str
    boxes: int | None
    seconds: float | None


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`.

    Attributes
    ----------
    readable : bool
        Whether every operation has a rule.
    refusals : tuple
        Uses of operations that have none, each with ``operation``, ``node``, ``module``, ``why`` and ``do``.
    shape : tuple of int
        Channels, height and width of the images.
    parameters : int
        Numbers in the module's parameters and buffers.
    layout : str
        How a file's input was read.
    head : tuple of str
        What was taken off the end of a classifier, e.g. a softmax.
    layers, rounding, cost
        Layers with the growth of bounds, the preflight in each precision, and the estimated cost.
    """

    shape: tuple[int, ...]
    parameters: int = 0
    layout: str = ""
    head: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    layers: tuple[Layer, ...] = ()
    rounding: tuple[Rounding, ...] = ()
    cost: Cost | None = None

    @property
    def readable(self) -> bool:
        return not self.refusals

    def record(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is None."""
        plain: dict[str, Any] = _plain(asdict(replace(self, refusals=())))
        rounding = [each | {"provable": r.provable} for each, r in zip(plain["rounding"], self.rounding, strict=True)]
        refusals = [refusal.record() for refusal in self.refusals]
        return plain | {"readable": self.readable, "refusals": refusals, "rounding": rounding}

    @classmethod
    def refused(cls, error: UnsupportedOperation, shape: tuple[int, ...] = ()) -> Inspection:
        """Return the inspection of a network that cannot be read."""
        return cls(shape, refusals=refusals_of(error))


@torch.no_grad()
def inspect(
    model: nn.Module,
    images: Tensor,
    transform: Transform | str | None = None,
    *,
    semantics: str = "real",
    progress: Progress | None = None,
) -> Inspection:
    """Analyze a network before a proof: its layers, what has no bound rule, how bounds grow, and what a proof may cost.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    images : Tensor
        Images [N, C, H, W] with values in [0, 1], on the model's device; the first is bounded.
    transform : Transform or str, optional
        The transformation whose cost is estimated.
    semantics : str
        ``real`` or ``float32``, as in `certify`.
    progress : callable, optional
        Called with the steps done and their number.

    Returns
    -------
    Inspection
        With ``refusals`` if the network cannot be read, else layers, rounding and cost.

    Raises
    ------
    InputError
        If an argument is invalid, or the module cannot be run or traced.
    """
    said = progress or (lambda _done, _all: None)
    shape = tuple(images.shape[1:]) if isinstance(images, Tensor) else ()
    with proof_on(images):
        try:
            inputs = check_model_and_images(model, images[:1], transform or ANY_TRANSFORM, semantics, classes=True)
        except UnsupportedOperation as error:
            return Inspection.refused(error, shape)
        network = inputs.network_as(torch.float64, semantics)
        steps = len(network.operations) + 3
        layers = _layers(network, inputs.images64, lambda done: said(done, steps))
        own, label = _rounding(inputs, network, "float64")
        said(steps - 2, steps)
        rounding = [own]
        if inputs.images.dtype != torch.float64:
            rounding.insert(0, _rounding(inputs, inputs.network_as(inputs.images.dtype, semantics), "float32")[0])
        said(steps - 1, steps)
        cost = None
        if transform is not None and label is not None:
            inputs = replace(inputs, labels=label)
            cost = _cost(inputs) if own.provable else Cost(str(inputs.transform), None, None)
        said(steps, steps)
    tensors = [*model.parameters(), *model.buffers()]
    return Inspection(
        shape=shape,
        parameters=sum(tensor.numel() for tensor in tensors if tensor.is_floating_point()),
        layout=next((str(each.read_as) for each in model.modules() if hasattr(each, "read_as")), ""),
        head=inputs.head,
        layers=layers,
        rounding=tuple(rounding),
        cost=cost,
    )


def _layers(network: Network, image: Tensor, said: Callable[[int], None]) -> tuple[Layer, ...]:
    """Follow the growth through the network; factors of operations that are not linear are those at the image."""
    forms = run(network, AffineForm.constant(image))
    row_sums, spectral = {network.input: 1.0}, {network.input: 1.0}
    layers = []
    for number, operation in enumerate(network.operations, 1):
        inputs = [forms[name] for name in operation.inputs]
        wide, own = (
            _factor(operation, inputs, [gain[name] for name in operation.inputs]) for gain in (row_sums, spectral)
        )
        rule = REGISTRY[operation.kind]
        if isinstance(rule, LinearRule):
            like = inputs[0].center
            before = operation.inputs[0]
            wide = row_sums[before] * float(rule.absolute(operation, torch.ones_like(like)).amax())
            own = spectral[before] * _largest_singular_value(operation, rule, like)
        row_sums[operation.name], spectral[operation.name] = wide, own
        settings = [value for key, value in operation.settings.items() if key not in ("shift_size", "constants")]
        count = sum(value.numel() for value in settings if isinstance(value, Tensor) and value.is_floating_point())
        rounding = float(forms[operation.name].radius.amax())
        layers.append(
            Layer(operation.name, operation.kind, operation.shape, count, _log10(wide), _log10(own), rounding)
        )
        said(number)
    return tuple(layers)


def _factor(operation: Operation, inputs: list[AffineForm], gains: list[float]) -> float:
    """Return the growth behind an operation: its own bounds of what differs little from the image, without rounding."""
    most = max(gains)
    if not math.isfinite(most) or not most:
        return most
    around = [
        AffineForm(form.center.unsqueeze(0), torch.full_like(form.center, SMALL * gain / most), 0.0)
        for form, gain in zip(inputs, gains, strict=True)
    ]
    return most * float(REGISTRY[operation.kind].forward(operation, around).radius.amax()) / SMALL


def _largest_singular_value(operation: Operation, rule: LinearRule, like: Tensor) -> float:
    """Estimate it by power iteration on L^T L; L^T comes from the gradient of |L x|^2 / 2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    size = 0.0
    for _ in range(POWER_STEPS):
        x = (x / x.norm().clamp(min=torch.finfo(x.dtype).tiny)).detach().requires_grad_()
        with torch.enable_grad():
            y = rule.signed(operation, x)
            (step,) = torch.autograd.grad(y.square().sum() / 2, x)
        x, size = step, float(y.detach().norm())
    return size


def _rounding(inputs: Inputs, network: Network, precision: str) -> tuple[Rounding, Tensor | None]:
    """Bound the image alone; return the label that the network gives it too, if it is a classifier."""
    image = inputs.images64 if precision == "float64" else inputs.images
    forms = run(network, AffineForm.constant(image, symbols=1))
    output = forms[network.output]
    if len(network.output_shape()) != 1 or network.output_shape()[0] < 2:
        radius = float(output.radius.amax())
        return Rounding(precision, float(output.center.abs().amax()), radius, radius), None
    # the network's own answer, in float64 without allowances: behind deep networks the centers of forms drift
    real = inputs.network_as(torch.float64)
    answer = run(real, AffineForm.constant(inputs.images64, unit=0.0))[real.output].center
    label = answer.argmax(1)
    margin = float(margin_of(answer, label))
    if is_deep(network) and image.dtype == torch.float64:  # as `DeepProver` bounds it
        if needs_pairs(network):
            deep = PairPass(network).run_pair(PairForm.of(AffineForm.constant(image, 1), 2))
        else:
            deep = DeepPass(network).run(AffineForm.constant(image))
        if deep is not None:
            form = margins(network, deep, label)
            least = float(form.lower.scatter(1, label.unsqueeze(1), torch.inf).amin())
            return Rounding(precision, margin, margin - least, margin - least), label
    form = margins(network, forms, label)
    lower = torch.where(form.radius >= 0, form.lower.double(), -torch.inf).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    lower = lower.scatter(1, label.unsqueeze(1), torch.inf)
    forward = margin - float(lower.amin())
    refinement = ClassRefinement(network, forms, label, torch.zeros_like(label), lower.clone(), lower)
    if bool(refinement.opened.any()):
        refinement.work(lower.shape[1], 0, 1.0)
    best = torch.maximum(lower, refinement.best.double().nan_to_num(nan=-torch.inf, neginf=-torch.inf))
    return Rounding(precision, margin, forward, margin - float(best.amin())), label


def _cost(inputs: Inputs) -> Cost:
    """Try finer and finer grids on random boxes until all of a grid's are proved; that many would do."""
    prover, transform = Prover(inputs, "affine"), inputs.transform
    device, generator = inputs.images.device, torch.Generator().manual_seed(0)
    rows, policy = torch.zeros(TRIED_BOXES, dtype=torch.int64, device=device), EagerPolicy.on(inputs.images.device)
    for grid in candidate_grids(sensitivity(transform, *inputs.images.shape[-2:]), MOST_BOXES):
        tiling = Tiling(transform, grid)
        index = torch.stack([torch.randint(0, size, (TRIED_BOXES,), generator=generator) for size in grid], 1)
        count = min(TRIED_BOXES, math.prod(grid))
        low, high = tiling.bounds(Boxes(index[:count], torch.zeros_like(index[:count])))
        began = time.perf_counter()
        bound = prover.bound(rows[:count], low.to(device), high.to(device), policy, torch.float64).bound
        seconds = (time.perf_counter() - began) / count
        if bool((bound > 0).all()):
            boxes = math.prod(grid)
            return Cost(str(transform), boxes, boxes * seconds)
    return Cost(str(transform), None, None)


def _log10(value: float) -> float:
    return math.log10(value) if 0 < value < math.inf else (-math.inf if not value else math.inf)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def images_of_shape(shape: tuple[int, ...]) -> Tensor:
    """Return one image [1, C, H, W] of smooth random colors, where there are no data to take one of.

    >>> images_of_shape((3, 8, 6)).shape
    torch.Size([1, 3, 8, 6])
    """
    if len(shape) != 3 or min(shape) < 1:
        raise InputError("an image has channels, height and width", got=shape)
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(1, shape[0], max(1, shape[1] // 4), max(1, shape[2] // 4), generator=generator)
    return nn.functional.interpolate(coarse, shape[1:], mode="bilinear")
