"""The paper's loss (L_ct, and L_r for regression): the answer at a sampled parameter, and the worst that bounds allow around it.

loss = CertifiedLoss("R(30)", nu=0.25, ramp=Ramp(warm_up=3000, ramp=10_000))
value = loss(model, images, labels, step)  # in your own loop, step = 0, 1, 2, ...
value.total.backward()
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.bounds import METHODS
from tiltproof.errors import InputError
from tiltproof.train.outputs import PROPAGATIONS, LiveNetwork
from tiltproof.train.parameters import Sampler, half_widths
from tiltproof.train.ramp import Ramp, between
from tiltproof.transforms import Transform, parse


@dataclass
class LossValue:
    """What a loss says of a batch; everything but ``total`` is for the log and detached."""

    total: Tensor
    clean: Tensor  # loss of the answers at sampled parameters
    certified: Tensor | None  # loss of the worst answers that bounds allow; None while there is none
    correct: Tensor  # how many answers at sampled parameters were right
    kappa: float = 1.0  # weight of the clean term
    size: float = 0.0  # share of the final interval size


class TrainingLoss:
    """A loss that takes (model, images, labels, step); ``share`` = (rank, processes) if several share a batch."""

    def __init__(self, transform: Transform | str, seed: int = 0, one_for_all: bool = False) -> None:
        self.transform = parse(transform) if isinstance(transform, str) else transform
        self.sampler = Sampler(self.transform, seed, one_for_all)

    @property
    def share(self) -> tuple[int, int]:
        return self.sampler.share

    @share.setter
    def share(self, value: tuple[int, int]) -> None:
        self.sampler.share = value

    def augmented(self, images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Each image at its sampled parameters, and those parameters [n, d]."""
        parameters = self.sampler.parameters(step, len(images), images)
        return self.transform.apply(images, parameters), parameters

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        raise NotImplementedError


class CertifiedLoss(TrainingLoss):
    """L_ct = kappa l(f(P(x, theta)), y) + (1 - kappa) l(f^(P(x, theta +- nu)), y) with cross-entropy l.

    ``nu``: half width of the local box of each parameter, after ``ramp``; kappa moves from the first to the second of ``kappa``
    meanwhile. ``bounds``: pixel bounds by ``fgv`` (the paper), ``hull`` or ``affine``; ``propagation``: ``interval`` (the
    paper), ``affine``, or ``backward`` (intervals forward, then one linear pass from each margin back to the pixels).
    ``one_for_all``: one sampled parameter vector a batch, as in the paper, instead of one an image.
    """

    def __init__(
        self,
        transform: Transform | str,
        nu: float | tuple[float, ...] | list[float],
        *,
        bounds: str = "hull",
        propagation: str = "interval",
        kappa: tuple[float, float] = (1.0, 0.5),
        ramp: Ramp | None = None,
        seed: int = 0,
        one_for_all: bool = False,
    ) -> None:
        super().__init__(transform, seed, one_for_all)
        self.nu = half_widths(nu, self.transform)
        if bounds not in METHODS:
            raise InputError("unknown pixel bounds", got=repr(bounds), do=f"use one of {', '.join(METHODS)}")
        if propagation not in PROPAGATIONS:
            raise InputError("unknown propagation", got=repr(propagation), do=f"use one of {', '.join(PROPAGATIONS)}")
        if not all(0 <= end <= 1 for end in kappa):
            raise InputError("kappa is a weight between 0 and 1", got=kappa)
        self.bounds, self.propagation, self.kappa, self.ramp = bounds, propagation, kappa, ramp or Ramp()
        self.networks = LiveNetwork()

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        share = self.ramp.share(step)
        kappa = between(self.kappa, share)
        pictures, parameters = self.augmented(images, step)
        outputs = model(pictures)
        clean, correct = self.answers(outputs, labels)
        if step < self.ramp.warm_up or kappa >= 1:
            return LossValue(clean, clean.detach(), None, correct, 1.0, share)
        low, high = self.sampler.boxes(parameters, images.new_tensor(self.nu) * share)
        pixels = self.networks.pixels(images, self.transform, self.bounds, low, high, self.propagation)
        certified = self.worst(model, pixels, labels)
        total = kappa * clean + (1 - kappa) * certified
        return LossValue(total, clean.detach(), certified.detach(), correct, kappa, share)

    def answers(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return F.cross_entropy(outputs, labels), (outputs.detach().argmax(1) == labels).sum()

    def worst(self, model: nn.Module, pixels: object, labels: Tensor) -> Tensor:
        """Cross-entropy of the worst outputs: the label's lowest, every other's highest, relative to the label's."""
        return F.cross_entropy(self.networks.worst_outputs(model, pixels, labels, self.propagation), labels)


class CertifiedRegressionLoss(CertifiedLoss):
    """L_r = kappa l(f(P(x, theta)), y) + (1 - kappa) (l(f_low, y) + l(f_high, y)) / 2 with the mean squared error l.

    Both ends of the certified output range are drawn to the label, hence also to each other.
    """

    def answers(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        values = labels.to(outputs.dtype).view_as(outputs)
        return F.mse_loss(outputs, values), torch.zeros((), device=outputs.device)

    def worst(self, model: nn.Module, pixels: object, labels: Tensor) -> Tensor:
        low, high = self.networks.output_range(model, pixels, self.propagation)
        values = labels.to(low.dtype).view_as(low)
        return (F.mse_loss(low, values) + F.mse_loss(high, values)) / 2
