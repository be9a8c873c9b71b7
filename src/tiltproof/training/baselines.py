"""Losses to compare with: augmentation alone, the worst of some sampled parameters, and pixel-wise attack or bounds on top of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.training.losses import Ramp, RampedLoss, Regression, Terms, TrainingLoss
from tiltproof.transforms import Transform


class PlainLoss(TrainingLoss):
    """A loss of answers to certain pictures and nothing else."""

    def plain(self, outputs: Tensor, labels: Tensor) -> Terms:
        loss, correct = self.answers(outputs, labels)
        return loss, loss.detach(), None, correct


class Augmentation(PlainLoss):
    """The answer at one sampled parameter vector an image (or a batch)."""

    replayable = True

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        return self.plain(model(self.transform.apply(images, drawn[0])), labels)


class AugmentationRegression(Regression, Augmentation):
    """The same with squared errors."""


class WorstOf(PlainLoss):
    """The worst answer of ``samples`` sampled parameter vectors an image: a cheap stand-in for the worst of the whole range.

    No bound takes part, and yet such networks are provable almost up to what an attack leaves, where one spatial parameter
    varies.
    """

    replayable = True

    def __init__(self, transform: Transform | str, samples: int = 4, *, seed: int = 0) -> None:
        super().__init__(transform, seed)
        if samples < 1:
            raise InputError("worst-of needs at least one sample an image", got=samples)
        self.samples = samples

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        pictures = self.transform.apply(images.repeat(self.samples, 1, 1, 1), drawn[0])
        return self.plain(model(pictures[self.worst_rows(model, pictures, labels)]), labels)


class WorstOfRegression(Regression, WorstOf):
    """The same with squared errors."""


class PGD(PlainLoss):
    """Augmentation, and on top of it a pixel-wise attack of at most ``epsilon`` by signed gradient steps (the paper's PGD+A)."""

    def __init__(
        self,
        transform: Transform | str,
        epsilon: float,
        step_size: float,
        steps: int,
        *,
        seed: int = 0,
        one_for_all: bool = False,
    ) -> None:
        super().__init__(transform, seed, one_for_all)
        if not (epsilon >= 0 and step_size > 0 and steps >= 1):
            raise InputError(
                "PGD needs epsilon >= 0, a positive step size and at least one step", got=(epsilon, step_size, steps)
            )
        self.epsilon, self.step_size, self.steps = epsilon, step_size, steps

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        rank, world = self.share
        generator = self.sampler.generator(step, images.device, purpose=1)
        noise = torch.rand((len(images) * world, *images.shape[1:]), generator=generator, device=images.device)
        return *super().draw(images, step), noise[rank * len(images) : (rank + 1) * len(images)]

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        parameters, noise = drawn
        pictures = self.transform.apply(images, parameters)
        low, high = (pictures - self.epsilon).clamp(0, 1), (pictures + self.epsilon).clamp(0, 1)
        attacked = (pictures + (2 * noise - 1) * self.epsilon).clamp(low, high)
        for _ in range(self.steps):
            attacked = attacked.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(attacked), labels), attacked)
            attacked = (attacked + self.step_size * gradient.sign()).clamp(low, high)
        return self.plain(model(attacked.detach()), labels)


class IBP(RampedLoss):
    """Augmentation, and bounds of a box of +-``epsilon`` around each augmented pixel (the paper's IBP+A)."""

    replayable = True

    def __init__(
        self,
        transform: Transform | str,
        epsilon: float,
        *,
        kappa: tuple[float, float] = (1.0, 0.5),
        ramp: Ramp | None = None,
        seed: int = 0,
        one_for_all: bool = False,
    ) -> None:
        super().__init__(transform, kappa, ramp, seed, one_for_all)
        if epsilon < 0:
            raise InputError("epsilon is a half width of pixel values", got=epsilon)
        self.epsilon = epsilon

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        """Parameters, and, once there is a certified term, the half width of pixels and kappa."""
        parameters, kappa = super().draw(images, step), self.weight(step)
        if kappa >= 1:
            return parameters
        return *parameters, images.new_tensor(self.epsilon * self.size(step)), images.new_tensor(kappa)

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        pictures = self.transform.apply(images, drawn[0])
        with self.networks.watching(model):
            clean, correct = self.answers(model(pictures), labels)
        if len(drawn) == 1:
            return clean, clean.detach(), None, correct
        _, half, kappa = drawn
        low, high = (pictures - half).clamp(0, 1), (pictures + half).clamp(0, 1)
        pixels = AffineForm(((low + high) / 2)[None], (high - low) / 2, unit=0.0)
        certified = F.cross_entropy(self.networks.worst_outputs(model, pixels, labels, "interval"), labels)
        return kappa * clean + (1 - kappa) * certified, clean.detach(), certified.detach(), correct
