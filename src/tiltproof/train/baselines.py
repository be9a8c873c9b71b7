"""Losses to compare with: augmentation alone, the worst of some sampled parameters, and pixel-wise attack or bounds on top of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.bounds import AffineForm
from tiltproof.errors import InputError
from tiltproof.train.losses import LossValue, TrainingLoss
from tiltproof.train.outputs import LiveNetwork
from tiltproof.train.ramp import Ramp, between
from tiltproof.transforms import Transform


def plain(outputs: Tensor, labels: Tensor) -> LossValue:
    """Cross-entropy and nothing else."""
    loss = F.cross_entropy(outputs, labels)
    return LossValue(loss, loss.detach(), None, (outputs.detach().argmax(1) == labels).sum())


class AugmentationLoss(TrainingLoss):
    """The answer at one sampled parameter vector an image (or a batch)."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        pictures, _ = self.augmented(images, step)
        return plain(model(pictures), labels)


class WorstOfLoss(TrainingLoss):
    """The worst answer of ``samples`` sampled parameter vectors an image: a cheap stand-in for the worst of the whole range.

    No bound takes part, and yet such networks are provable almost up to what an attack leaves, where one spatial parameter
    varies (docs/method.md).
    """

    def __init__(self, transform: Transform | str, samples: int = 4, *, seed: int = 0) -> None:
        super().__init__(transform, seed)
        if samples < 1:
            raise InputError("worst-of needs at least one sample an image", got=samples)
        self.samples = samples

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        count = len(images)
        drawn = [self.sampler.parameters(step, count, images, purpose=k) for k in range(self.samples)]
        pictures = self.transform.apply(images.repeat(self.samples, 1, 1, 1), torch.cat(drawn))
        with torch.no_grad():
            losses = F.cross_entropy(model(pictures), labels.repeat(self.samples), reduction="none")
        worst = losses.view(self.samples, count).argmax(0) * count + torch.arange(count, device=images.device)
        return plain(model(pictures[worst]), labels)


class PgdLoss(TrainingLoss):
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

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        pictures, _ = self.augmented(images, step)
        rank, world = self.share
        generator = self.sampler.generator(step, images.device, purpose=1)
        noise = torch.rand((len(images) * world, *images.shape[1:]), generator=generator, device=images.device)
        start = (2 * noise[rank * len(images) : (rank + 1) * len(images)] - 1) * self.epsilon
        low, high = (pictures - self.epsilon).clamp(0, 1), (pictures + self.epsilon).clamp(0, 1)
        attacked = (pictures + start).clamp(low, high)
        for _ in range(self.steps):
            attacked = attacked.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(attacked), labels), attacked)
            attacked = (attacked + self.step_size * gradient.sign()).clamp(low, high)
        return plain(model(attacked.detach()), labels)


class IbpLoss(TrainingLoss):
    """Augmentation, and bounds of a box of +-``epsilon`` around each augmented pixel (the paper's IBP+A)."""

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
        super().__init__(transform, seed, one_for_all)
        if epsilon < 0:
            raise InputError("epsilon is a half width of pixel values", got=epsilon)
        self.epsilon, self.kappa, self.ramp = epsilon, kappa, ramp or Ramp()
        self.networks = LiveNetwork()

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, step: int) -> LossValue:
        share = self.ramp.share(step)
        kappa = between(self.kappa, share)
        pictures, _ = self.augmented(images, step)
        value = plain(model(pictures), labels)
        if step < self.ramp.warm_up or kappa >= 1:
            return value
        low, high = ((pictures + sign * share * self.epsilon).clamp(0, 1) for sign in (-1, 1))
        pixels = AffineForm(((low + high) / 2)[None], (high - low) / 2, unit=0.0)
        certified = F.cross_entropy(self.networks.worst_outputs(model, pixels, labels, "interval"), labels)
        total = kappa * value.total + (1 - kappa) * certified
        return LossValue(total, value.clean, certified.detach(), value.correct, kappa, share)
