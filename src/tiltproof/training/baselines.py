"""Baseline losses: augmentation, the worst of several samples, and augmentation with a pixel-wise attack or pixel-wise bounds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.training.losses import Ramp, RampedLoss, SquaredError, Terms, TrainingLoss
from tiltproof.transforms import Transform


class PlainLoss(TrainingLoss):
    """A loss of the outputs for some images, without a certified term."""

    def plain(self, outputs: Tensor, labels: Tensor) -> Terms:
        """Return the terms of a loss of these outputs alone."""
        loss, correct = self.mean_and_correct(outputs, labels)
        return loss, loss.detach(), None, correct


class Augmentation(PlainLoss):
    """The loss at one sampled parameter vector per image.

    Parameters
    ----------
    transform : Transform or str
        The transformation.
    seed : int
        Seed of the sampled parameters.
    shared_parameters : bool
        Draw one parameter vector for the mini-batch instead of one for each image.
    """

    recordable = True

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        return self.plain(model(self.transform.apply(images, drawn[0])), labels)


class AugmentationRegression(SquaredError, Augmentation):
    """`Augmentation` with squared errors."""


class WorstOf(PlainLoss):
    """The worst loss of several sampled parameter vectors per image, a cheap estimate of the worst over the range.

    Although it uses no bounds, it gives networks that for one spatial parameter are certified on almost all images that an
    attack leaves.

    Parameters
    ----------
    transform : Transform or str
        The transformation.
    samples : int
        Parameter vectors per image.
    seed : int
        Seed of the sampled parameters.

    Raises
    ------
    InputError
        If there is no sample.
    """

    recordable = True

    def __init__(self, transform: Transform | str, samples: int = 4, *, seed: int = 0) -> None:
        super().__init__(transform, seed)
        if samples < 1:
            raise InputError("worst-of needs at least one sample per image", got=samples)
        self.samples = samples

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        transformed = self.transform.apply(images.repeat(self.samples, 1, 1, 1), drawn[0])
        return self.plain(model(transformed[self.worst_rows(model, transformed, labels)]), labels)


class WorstOfRegression(SquaredError, WorstOf):
    """`WorstOf` with squared errors."""


class PGD(PlainLoss):
    """Augmentation followed by a pixel-wise PGD attack (the paper's PGD+A).

    Parameters
    ----------
    transform : Transform or str
        The transformation.
    epsilon : float
        Largest change of a pixel.
    step_size : float
        Change of a pixel in one signed gradient step.
    steps : int
        Number of steps.
    seed : int
        Seed of the sampled parameters.
    shared_parameters : bool
        Draw one parameter vector for the mini-batch instead of one for each image.

    Raises
    ------
    InputError
        If an option is out of its range.
    """

    def __init__(
        self,
        transform: Transform | str,
        epsilon: float,
        step_size: float,
        steps: int,
        *,
        seed: int = 0,
        shared_parameters: bool = False,
    ) -> None:
        super().__init__(transform, seed, shared_parameters)
        if not (epsilon >= 0 and step_size > 0 and steps >= 1):
            raise InputError(
                "PGD needs epsilon >= 0, a positive step size and at least one step", got=(epsilon, step_size, steps)
            )
        self.epsilon, self.step_size, self.steps = epsilon, step_size, steps

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        rank, world = self.shard
        generator = self.sampler.generator(step, images.device, purpose=1)
        noise = torch.rand((len(images) * world, *images.shape[1:]), generator=generator, device=images.device)
        return *super().draw(images, step), noise[rank * len(images) : (rank + 1) * len(images)]

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        parameters, noise = drawn
        transformed = self.transform.apply(images, parameters)
        low, high = (transformed - self.epsilon).clamp(0, 1), (transformed + self.epsilon).clamp(0, 1)
        attacked = (transformed + (2 * noise - 1) * self.epsilon).clamp(low, high)
        for _ in range(self.steps):
            attacked = attacked.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(attacked), labels), attacked)
            attacked = (attacked + self.step_size * gradient.sign()).clamp(low, high)
        return self.plain(model(attacked.detach()), labels)


class IBP(RampedLoss):
    """Augmentation, and interval bounds of a box of +-epsilon around each augmented pixel (the paper's IBP+A).

    Parameters
    ----------
    transform : Transform or str
        The transformation.
    epsilon : float
        Half width of the pixels' box after the ramp.
    kappa : (float, float)
        The first and last weight of the clean term.
    ramp : Ramp, optional
        The schedule of the certified term.
    seed : int
        Seed of the sampled parameters.
    shared_parameters : bool
        Draw one parameter vector for the mini-batch instead of one for each image.

    Raises
    ------
    InputError
        If an option is out of its range.
    """

    recordable = True

    def __init__(
        self,
        transform: Transform | str,
        epsilon: float,
        *,
        kappa: tuple[float, float] = (1.0, 0.5),
        ramp: Ramp | None = None,
        seed: int = 0,
        shared_parameters: bool = False,
    ) -> None:
        super().__init__(transform, kappa, ramp, seed, shared_parameters)
        if epsilon < 0:
            raise InputError("epsilon must not be negative", got=epsilon)
        self.epsilon = epsilon

    def draw(self, images: Tensor, step: int) -> tuple[Tensor, ...]:
        """Return the parameters and, if there is a certified term, the half width of pixels and kappa."""
        parameters, kappa = super().draw(images, step), self.weight(step)
        if kappa >= 1:
            return parameters
        return *parameters, images.new_tensor(self.epsilon * self.size(step)), images.new_tensor(kappa)

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor, *drawn: Tensor) -> Terms:
        transformed = self.transform.apply(images, drawn[0])
        with self.network.batch_statistics(model):
            clean, correct = self.mean_and_correct(model(transformed), labels)
        if len(drawn) == 1:
            return clean, clean.detach(), None, correct
        _, half, kappa = drawn
        low, high = (transformed - half).clamp(0, 1), (transformed + half).clamp(0, 1)
        pixels = AffineForm(((low + high) / 2)[None], (high - low) / 2, unit=0.0)
        certified = F.cross_entropy(self.network.worst_outputs(model, pixels, labels, "interval"), labels)
        return kappa * clean + (1 - kappa) * certified, clean.detach(), certified.detach(), correct
