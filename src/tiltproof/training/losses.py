"""Certified losses (the paper's L_ct, and L_r for regression), their base classes, and the schedule of the certified term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.pixels.api import check_method
from tiltproof.pixels.coordinates import check_limits
from tiltproof.pixels.fgv import lines_needed, window_bounds
from tiltproof.training.bounded_network import PROPAGATIONS, BoundedNetwork
from tiltproof.training.sampling import Sampler, half_widths
from tiltproof.transforms import Transform, parse


@dataclass(frozen=True)
class Ramp:
    """Schedule of the certified term, in steps of the optimizer.

    Parameters
    ----------
    warm_up : int
        Steps without the certified term.
    ramp : int
        Steps after warm-up in which it grows linearly to its final size.

    Examples
    --------
    >>> [Ramp(warm_up=10, ramp=20).fraction(step) for step in (0, 10, 20, 30, 99)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """

    warm_up: int = 0
    ramp: int = 0

    def __post_init__(self) -> None:
        if self.warm_up < 0 or self.ramp < 0:
            raise InputError("the numbers of steps of a schedule must not be negative", got=(self.warm_up, self.ramp))

    def fraction(self, step: int) -> float:
        """Return 0 during warm-up, and 1 after the ramp."""
        if step < self.warm_up:
            return 0.0
        return min(1.0, (step - self.warm_up) / self.ramp) if self.ramp else 1.0


MEASURES = ("worst", "width")
"""The kinds of certified term of a classifier."""


@dataclass
class LossValue:
    """The value of a loss for a mini-batch; everything except ``total`` is detached, for the log.

    Attributes
    ----------
    total : Tensor
        The loss to differentiate.
    clean : Tensor
        Loss of the outputs at sampled parameters.
    certified : Tensor or None
        Loss of the worst outputs that the bounds allow; None without a certified term.
    correct : Tensor
        Number of correct outputs at sampled parameters.
    kappa : float
        Weight of the clean term.
    size : float
        Fraction of the final box size.
    """

    total: Tensor
    clean: Tensor
    certified: Tensor | None
    correct: Tensor
    kappa: float = 1.0
    size: float = 0.0


Terms = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""Total, clean, certified (or None), number of correct outputs."""


class TrainingLoss:
    """A loss called with (model, images, labels, step).

    ``shard`` is (rank, number of processes) if several processes divide a mini-batch among them.

    Parameters
    ----------
    transform : Transform or str
        The transformation.
    seed : int
        Seed of the sampled parameters.
    shared_parameters : bool
        Draw one parameter vector for the mini-batch instead of one for each image.
    """

    samples = 1
    """Parameter vectors drawn for each image."""

    def __init__(self, transform: Transform | str, seed: int = 0, shared_parameters: bool = False) -> None:
        self.transform = parse(transform) if isinstance(transform, str) else transform
        self.transform.refuse_noise("training")
        self.sampler = Sampler(self.transform, seed, shared_parameters)
        self.checked_size: tuple[int, ...] = ()

    @property
    def shard(self) -> tuple[int, int]:
        """Rank and number of the processes that divide a mini-batch."""
        return self.sampler.shard

    @shard.setter
    def shard(self, value: tuple[int, int]) -> None:
        self.sampler.shard = value

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        terms = self.terms(model, images, labels, *self.draw(images, step))
        return LossValue(*terms, self.weight(step), self.size(step))

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        """Return the inputs that change with the step; first the sampled parameters [samples * n, d], sample by sample."""
        if self.checked_size != images.shape[-2:]:  # once for each image size; reads values only if there is a camera
            self.checked_size = tuple(images.shape[-2:])
            check_limits(self.transform, *images.shape[-2:])
        sampled = [self.sampler.parameters(step, len(images), images, purpose=k) for k in range(self.samples)]
        return (torch.cat(sampled),)

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        """Return (total, clean, certified, correct) for what `draw` returned; tensors only, for CUDA graphs."""
        raise NotImplementedError

    def per_image(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each output, [n]: cross-entropy."""
        return F.cross_entropy(outputs, labels, reduction="none")

    def mean_and_correct(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the number of correct outputs."""
        return F.cross_entropy(outputs, labels), (outputs.detach().argmax(1) == labels).sum()

    @torch.no_grad()
    def worst_rows(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the row [n] of each image's sample with the largest loss; rows are [samples * n], sample by sample.

        The network is in eval mode: running statistics, no dropout.
        """
        count, training = len(labels), model.training
        model.eval()
        losses = self.per_image(model(images), torch.cat([labels] * (len(images) // count)))
        model.train(training)
        return losses.view(-1, count).argmax(0) * count + torch.arange(count, device=labels.device)

    @property
    def recordable(self) -> bool:
        """Whether a CUDA graph can record a step: neither shapes nor the host depend on values."""
        return False

    def weight(self, step: int) -> float:
        """Return the weight of the clean term at this step."""
        return 1.0

    def size(self, step: int) -> float:
        """Return the fraction of the final box size at this step."""
        return 0.0


class SquaredError:
    """Mixin for regression: squared errors instead of cross-entropy, and no output counts as correct."""

    def per_image(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error of each output, [n]."""
        return (outputs - labels.to(outputs.dtype).view_as(outputs)).square().flatten(1).mean(1)

    def mean_and_correct(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and 0 correct outputs."""
        return self.per_image(outputs, labels).mean(), torch.zeros((), device=outputs.device)


class RampedLoss(TrainingLoss):
    """A loss whose certified term has the weight 1 - kappa, by a schedule."""

    def __init__(
        self,
        transform: Transform | str,
        kappa: tuple[float, float],
        ramp: Ramp | None,
        seed: int,
        shared_parameters: bool,
    ) -> None:
        super().__init__(transform, seed, shared_parameters)
        if not all(0 <= end <= 1 for end in kappa):
            raise InputError("kappa must be between 0 and 1", got=kappa)
        self.kappa, self.ramp = kappa, ramp or Ramp()
        self.network = BoundedNetwork()

    def weight(self, step: int) -> float:
        """Return kappa at this step; 1 during warm-up."""
        if step < self.ramp.warm_up:
            return 1.0
        first, last = self.kappa
        return first + (last - first) * self.ramp.fraction(step)

    def size(self, step: int) -> float:
        return self.ramp.fraction(step)


class Certified(RampedLoss):
    """L_ct = kappa l(f(P(x, theta)), y) + (1 - kappa) l(f^(P(x, theta +- half_width)), y) with cross-entropy l.

    Parameters
    ----------
    transform : Transform or str
        The transformation P.
    half_width : float or sequence of float
        Half the width of each parameter's box after ``ramp``.
    bounds : {"hull", "fgv", "affine"}
        The pixel bounds; the paper's are ``fgv``.
    propagation : {"interval", "affine", "backward"}
        Bounds of the network: intervals (the paper), affine forms, or intervals followed by one back-substitution per margin.
    kappa : (float, float)
        The first and last weight of the clean term; it changes linearly during the ramp.
    ramp : Ramp, optional
        The schedule; by default the certified term has its final size from the first step.
    seed : int
        Seed of the sampled parameters.
    shared_parameters : bool
        Draw one parameter vector for the mini-batch, as in the paper, instead of one for each image.
    samples : int
        theta is the worst of this many sampled vectors (the paper: 1).
    every : int
        Compute bounds for every n-th image of the mini-batch (the paper: 1).
    measure : {"worst", "width"}
        The certified term: the cross-entropy of the worst outputs (the paper), or the logarithm of the width of the margins'
        affine forms relative to the margins. Over useful boxes the bounds of a deep network are vacuous at first; their width
        over a tiny box shows in any state of the network how fast they grow.

    Raises
    ------
    InputError
        If an option is out of its range or does not fit another.
    """

    supports_width = True

    def __init__(
        self,
        transform: Transform | str,
        half_width: float | Sequence[float],
        *,
        bounds: str = "hull",
        propagation: str = "interval",
        kappa: tuple[float, float] = (1.0, 0.5),
        ramp: Ramp | None = None,
        seed: int = 0,
        shared_parameters: bool = False,
        samples: int = 1,
        every: int = 1,
        measure: str = "worst",
    ) -> None:
        super().__init__(transform, kappa, ramp, seed, shared_parameters)
        self.half_width = half_widths(half_width, self.transform)
        if samples < 1 or (shared_parameters and samples > 1):
            raise InputError(
                "the certified loss needs at least one sample, and exactly one with shared parameters", got=samples
            )
        if every < 1:
            raise InputError("every must be at least 1", got=every)
        self.samples, self.every = samples, every
        check_method(bounds, self.transform)
        if propagation not in PROPAGATIONS:
            raise InputError("unknown propagation", got=repr(propagation), do=f"use one of {', '.join(PROPAGATIONS)}")
        if measure not in MEASURES:
            raise InputError("unknown measure of bounds", got=repr(measure), do=f"use one of {', '.join(MEASURES)}")
        if measure == "width" and (propagation == "backward" or not self.supports_width):
            raise InputError(
                "the measure 'width' needs a classifier and interval or affine propagation", got=repr(propagation)
            )
        self.bounds, self.propagation, self.measure = bounds, propagation, measure
        self.lines: int | None = None

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        """Return the parameters and, if there is a certified term, its boxes and kappa."""
        (parameters,), kappa = super().draw(images, step), self.weight(step)
        if kappa >= 1:
            return (parameters,)
        low, high = self.sampler.boxes(parameters, images.new_tensor(self.half_width) * self.ramp.fraction(step))
        return parameters, low, high, images.new_tensor(kappa)

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        transformed = self.transform.apply(images.repeat(self.samples, 1, 1, 1), drawn[0])
        rows = self.worst_rows(model, transformed, labels) if self.samples > 1 else slice(None)
        with self.network.batch_statistics(model):
            clean, correct = self.mean_and_correct(model(transformed[rows]), labels)
        extra = self.spread_term(model, transformed)
        if len(drawn) == 1:
            return clean + extra, clean.detach(), None, correct
        _, low, high, kappa = drawn
        low, high = (end[:1] if self.sampler.shared_parameters else end[rows][:: self.every] for end in (low, high))
        certified = self.worst(model, self.pixels(images[:: self.every], low, high), labels[:: self.every])
        return kappa * clean + (1 - kappa) * certified + extra, clean.detach(), certified.detach(), correct

    def spread_term(self, model: nn.Module, images: Tensor) -> Tensor | float:
        """Return the cost of different outputs for the samples of one image: none."""
        return 0.0

    @property
    def recordable(self) -> bool:
        return self.transform.padding == "zeros" and self.transform.interpolation == "bilinear"

    def pixels(self, images: Tensor, low: Tensor, high: Tensor) -> AffineForm:
        """Return the pixel bounds of each image over its box."""
        cells = None
        if self.recordable:
            if self.lines is None:
                self.lines = lines_needed(self.transform, self.half_width, images.shape[-2], images.shape[-1])
            if self.bounds == "fgv":
                with torch.no_grad():
                    lower, upper = window_bounds(images, self.transform, low, high, self.lines)
                    return AffineForm(((lower + upper) / 2)[None], (upper - lower) / 2, unit=0.0)
            cells = self.lines - 2  # the outermost line on either side bounds no cell that the box meets
        low, high = (end.expand(len(images), -1) for end in (low, high))
        return self.network.pixels(images, self.transform, self.bounds, low, high, self.propagation, cells)

    def worst(self, model: nn.Module, pixels: AffineForm, labels: Tensor) -> Tensor:
        """Return the certified term: the cross-entropy of the worst outputs, or the width."""
        if self.measure == "width":
            return self.network.relative_width(model, pixels, labels).log().mean()
        return F.cross_entropy(self.network.worst_outputs(model, pixels, labels, self.propagation), labels)


class CertifiedRegression(SquaredError, Certified):
    """L_r = kappa l(f(P(x, theta)), y) + (1 - kappa) (l(f_low, y) + l(f_high, y)) / 2 with the mean squared error l.

    Both ends of the certified output range are drawn to the label, hence also to each other.

    Parameters
    ----------
    *arguments, **settings
        As for `Certified`, except ``measure``.
    spread : float
        Weight of a third term, the variance of the outputs at an image's ``samples`` sampled parameters. Errors are much larger
        than the effect of a transformation on the output, and would hide it.

    Raises
    ------
    InputError
        As for `Certified`; or if ``spread`` is negative, or given with fewer than two samples.
    """

    supports_width = False

    def __init__(self, *arguments: Any, spread: float = 0.0, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if spread < 0 or (spread and self.samples < 2):
            raise InputError(
                "spread must not be negative, and needs at least 2 samples",
                got=f"spread {spread:g}, samples {self.samples}",
            )
        self.spread = spread

    def spread_term(self, model: nn.Module, images: Tensor) -> Tensor | float:
        """Return the weighted variance of the outputs, in eval mode."""
        if not self.spread:
            return 0.0
        training = model.training
        outputs: Tensor = model.eval()(images)
        model.train(training)
        return self.spread * outputs.unflatten(0, (self.samples, -1)).var(0, correction=0).mean()

    def worst(self, model: nn.Module, pixels: AffineForm, labels: Tensor) -> Tensor:
        low, high = self.network.output_range(model, pixels, self.propagation)
        return (self.per_image(low, labels).mean() + self.per_image(high, labels).mean()) / 2
