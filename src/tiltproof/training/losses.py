"""How the certified term comes in: not at all while warming up, then linearly, then in full (the paper's schedule)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.pixels.api import check_method
from tiltproof.pixels.camera_depth import check_camera_depth
from tiltproof.pixels.fgv import lines_needed, window_bounds
from tiltproof.training.bounded_network import PROPAGATIONS, LiveNetwork
from tiltproof.training.sampling import Sampler, half_widths
from tiltproof.transforms import Transform, parse


@dataclass(frozen=True)
class Ramp:
    """Steps of the optimizer: ``warm_up`` without the certified term, then ``ramp`` in which it grows to its final size.

    >>> [Ramp(warm_up=10, ramp=20).share(step) for step in (0, 10, 20, 30, 99)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """

    warm_up: int = 0
    ramp: int = 0

    def __post_init__(self) -> None:
        if self.warm_up < 0 or self.ramp < 0:
            raise InputError("a schedule has no negative number of steps", got=(self.warm_up, self.ramp))

    def share(self, step: int) -> float:
        """0 while warming up, 1 after the ramp."""
        if step < self.warm_up:
            return 0.0
        return min(1.0, (step - self.warm_up) / self.ramp) if self.ramp else 1.0


def between(ends: tuple[float, float], share: float) -> float:
    """From the first end at share 0 to the second at share 1."""
    return ends[0] + (ends[1] - ends[0]) * share


# The paper's loss (L_ct, and L_r for regression): the answer at a sampled parameter, and the worst that bounds allow around it.
#


MEASURES = ("worst", "width")


@dataclass
class LossValue:
    """What a loss says of a batch; everything but ``total`` is for the log and detached."""

    total: Tensor
    clean: Tensor  # loss of the answers at sampled parameters
    certified: Tensor | None  # loss of the worst answers that bounds allow; None while there is none
    correct: Tensor  # how many answers at sampled parameters were right
    kappa: float = 1.0  # weight of the clean term
    size: float = 0.0  # share of the final interval size


Terms = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""Total, clean, certified (None where there is no such term), number of right answers."""


class TrainingLoss:
    """A loss that takes (model, images, labels, step); ``share`` = (rank, processes) if several share a batch."""

    def __init__(self, transform: Transform | str, seed: int = 0, one_for_all: bool = False) -> None:
        self.transform = parse(transform) if isinstance(transform, str) else transform
        self.sampler = Sampler(self.transform, seed, one_for_all)
        self.seen_size: tuple[int, ...] = ()

    @property
    def share(self) -> tuple[int, int]:
        return self.sampler.share

    @share.setter
    def share(self, value: tuple[int, int]) -> None:
        self.sampler.share = value

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        terms = self.terms(model, images, labels, *self.draw(images, step))
        return LossValue(*terms, self.weight(step), self.size(step))

    samples = 1
    """Parameter vectors that are drawn for each image."""

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        """All that changes from step to step, as tensors: at least the sampled parameters, [samples * n, d], sample by sample."""
        if self.seen_size != images.shape[-2:]:  # cameras only: on the host, once
            self.seen_size = tuple(images.shape[-2:])
            check_camera_depth(self.transform, *images.shape[-2:])
        every = [self.sampler.parameters(step, len(images), images, purpose=k) for k in range(self.samples)]
        return (torch.cat(every),)

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        """(total, clean, certified, correct) for what was drawn: tensors in, tensors out, so that a GPU can replay it."""
        raise NotImplementedError

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each answer, [n]: cross-entropy."""
        return F.cross_entropy(outputs, labels, reduction="none")

    def answers(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss, and how many answers are right."""
        return F.cross_entropy(outputs, labels), (outputs.detach().argmax(1) == labels).sum()

    @torch.no_grad()
    def worst_rows(self, model: nn.Module, pictures: Tensor, labels: Tensor) -> Tensor:
        """Of each image's pictures (sample by sample, [samples * n, C, H, W]) the row of the one that the network does worst on, [n].

        The network looks at them as it would when in use: running statistics, no dropout.
        """
        count, training = len(labels), model.training
        model.eval()
        losses = self.each(model(pictures), torch.cat([labels] * (len(pictures) // count)))
        model.train(training)
        return losses.view(-1, count).argmax(0) * count + torch.arange(count, device=labels.device)

    @property
    def replayable(self) -> bool:
        """Whether neither shapes nor the host depend on values, so that steps can be recorded and replayed."""
        return False

    def weight(self, step: int) -> float:
        """Of the clean term at this step."""
        return 1.0

    def size(self, step: int) -> float:
        """Share of the final interval size at this step."""
        return 0.0


class Regression:
    """Mixed into a loss: squared errors instead of cross-entropy; answers are numbers, and none is right or wrong."""

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels.to(outputs.dtype).view_as(outputs)).square().flatten(1).mean(1)

    def answers(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.each(outputs, labels).mean(), torch.zeros((), device=outputs.device)


class RampedLoss(TrainingLoss):
    """A loss whose certified term comes in by a schedule, with the weight 1 - kappa."""

    def __init__(
        self,
        transform: Transform | str,
        kappa: tuple[float, float],
        ramp: Ramp | None,
        seed: int,
        one_for_all: bool,
    ) -> None:
        super().__init__(transform, seed, one_for_all)
        if not all(0 <= end <= 1 for end in kappa):
            raise InputError("kappa is a weight between 0 and 1", got=kappa)
        self.kappa, self.ramp = kappa, ramp or Ramp()
        self.networks = LiveNetwork()

    def weight(self, step: int) -> float:
        """kappa at this step; 1 while warming up."""
        return 1.0 if step < self.ramp.warm_up else between(self.kappa, self.ramp.share(step))

    def size(self, step: int) -> float:
        return self.ramp.share(step)


class Certified(RampedLoss):
    """L_ct = kappa l(f(P(x, theta)), y) + (1 - kappa) l(f^(P(x, theta +- half_width)), y) with cross-entropy l.

    ``half_width``: half the width of the local box of each parameter, after ``ramp``; kappa moves from the first to the second of ``kappa``
    meanwhile. ``bounds``: pixel bounds by ``fgv`` (the paper), ``hull`` or ``affine``; ``propagation``: ``interval`` (the
    paper), ``affine``, or ``backward`` (intervals forward, then one linear pass from each margin back to the pixels).
    ``one_for_all``: one sampled parameter vector a batch, as in the paper, instead of one an image. ``samples``: theta is the worst
    of so many sampled ones (the paper: 1). ``every``: bounds are computed for every so-manieth image of a mini-batch (the paper: 1).
    ``measure``: what takes the place of l(f^): ``worst``, the cross-entropy of the worst outputs (the paper), or ``width``, the log of
    how wide the margins' affine forms are, relative to the margins. Bounds of a deep network over a box large enough to teach
    something say nothing at first; their width over a tiny box shows in any state of the network how fast it loses track.
    """

    def __init__(
        self,
        transform: Transform | str,
        half_width: float | tuple[float, ...] | list[float],
        *,
        bounds: str = "hull",
        propagation: str = "interval",
        kappa: tuple[float, float] = (1.0, 0.5),
        ramp: Ramp | None = None,
        seed: int = 0,
        one_for_all: bool = False,
        samples: int = 1,
        every: int = 1,
        measure: str = "worst",
    ) -> None:
        super().__init__(transform, kappa, ramp, seed, one_for_all)
        self.half_width = half_widths(half_width, self.transform)
        if samples < 1 or (one_for_all and samples > 1):
            raise InputError(
                "the certified loss takes the worst of at least one sample, of exactly one if it serves a whole batch",
                got=samples,
            )
        if every < 1:
            raise InputError("bounds are computed for every n-th image, n at least 1", got=every)
        self.samples, self.every = samples, every
        check_method(bounds, self.transform)
        if propagation not in PROPAGATIONS:
            raise InputError("unknown propagation", got=repr(propagation), do=f"use one of {', '.join(PROPAGATIONS)}")
        if measure not in MEASURES:
            raise InputError("unknown measure of bounds", got=repr(measure), do=f"use one of {', '.join(MEASURES)}")
        if measure == "width" and (propagation == "backward" or not self.measures_width):
            raise InputError(
                "the width of margins is measured for classes, by interval or affine propagation", got=repr(propagation)
            )
        self.bounds, self.propagation, self.measure = bounds, propagation, measure
        self.lines: int | None = None

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        """Parameters, and, once there is a certified term, its boxes and kappa."""
        (parameters,), kappa = super().draw(images, step), self.weight(step)
        if kappa >= 1:
            return (parameters,)
        low, high = self.sampler.boxes(parameters, images.new_tensor(self.half_width) * self.ramp.share(step))
        return parameters, low, high, images.new_tensor(kappa)

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        pictures = self.transform.apply(images.repeat(self.samples, 1, 1, 1), drawn[0])
        rows = self.worst_rows(model, pictures, labels) if self.samples > 1 else slice(None)
        with self.networks.watching(model):
            clean, correct = self.answers(model(pictures[rows]), labels)
        apart = self.apart(model, pictures)
        if len(drawn) == 1:
            return clean + apart, clean.detach(), None, correct
        _, low, high, kappa = drawn
        low, high = (end[:1] if self.sampler.one_for_all else end[rows][:: self.every] for end in (low, high))
        certified = self.worst(model, self.pixels(images[:: self.every], low, high), labels[:: self.every])
        return kappa * clean + (1 - kappa) * certified + apart, clean.detach(), certified.detach(), correct

    def apart(self, model: nn.Module, pictures: Tensor) -> Tensor | float:
        """What it costs that the pictures of an image get different answers: nothing."""
        return 0.0

    measures_width = True

    @property
    def replayable(self) -> bool:
        return self.transform.padding == "zeros"

    def pixels(self, images: Tensor, low: Tensor, high: Tensor) -> AffineForm:
        cells = None
        if self.transform.padding == "zeros":
            if self.lines is None:
                self.lines = lines_needed(self.transform, self.half_width, images.shape[-2], images.shape[-1])
            if self.bounds == "fgv":
                with torch.no_grad():
                    lower, upper = window_bounds(images, self.transform, low, high, self.lines)
                    return AffineForm(((lower + upper) / 2)[None], (upper - lower) / 2, unit=0.0)
            cells = self.lines - 2  # lines nearer than 1 on either side are no ends of cells that the box meets
        low, high = (end.expand(len(images), -1) for end in (low, high))
        return self.networks.pixels(images, self.transform, self.bounds, low, high, self.propagation, cells)

    def worst(self, model: nn.Module, pixels: AffineForm, labels: Tensor) -> Tensor:
        """Cross-entropy of the worst outputs: the label's lowest, every other's highest, relative to the label's. Or the width."""
        if self.measure == "width":
            return self.networks.relative_width(model, pixels, labels).log().mean()
        return F.cross_entropy(self.networks.worst_outputs(model, pixels, labels, self.propagation), labels)


class CertifiedRegression(Regression, Certified):
    """L_r = kappa l(f(P(x, theta)), y) + (1 - kappa) (l(f_low, y) + l(f_high, y)) / 2 with the mean squared error l.

    Both ends of the certified output range are drawn to the label, hence also to each other. ``spread``: weight of a third term, the
    variance of the answers to an image's ``samples`` sampled parameters, of the network as it is when in use. Errors are much larger than
    what a transformation changes of an answer, and would hide it.
    """

    measures_width = False

    def __init__(self, *arguments: Any, spread: float = 0.0, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if spread < 0 or (spread and self.samples < 2):
            raise InputError(
                "spread is a weight of at least 0 of how answers to several samples differ",
                got=f"spread {spread:g}, samples {self.samples}",
            )
        self.spread = spread

    def apart(self, model: nn.Module, pictures: Tensor) -> Tensor | float:
        if not self.spread:
            return 0.0
        training = model.training
        outputs: Tensor = model.eval()(pictures)
        model.train(training)
        return self.spread * outputs.unflatten(0, (self.samples, -1)).var(0, correction=0).mean()

    def worst(self, model: nn.Module, pixels: AffineForm, labels: Tensor) -> Tensor:
        low, high = self.networks.output_range(model, pixels, self.propagation)
        return (self.each(low, labels).mean() + self.each(high, labels).mean()) / 2
