"""One epoch of training; the network, optimizer and loss of a recipe; the learning rate as a function of the step."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.data import SIGNED_LABELS
from tiltproof.errors import InputError
from tiltproof.models import ARCHITECTURES
from tiltproof.models import load as load_model
from tiltproof.training.baselines import IBP, PGD, Augmentation, AugmentationRegression, WorstOf, WorstOfRegression
from tiltproof.training.cuda import GraphedLoss, autocast
from tiltproof.training.data import TrainingSet, augment, erase
from tiltproof.training.distributed import Processes
from tiltproof.training.losses import Certified, CertifiedRegression, LossValue, Ramp, TrainingLoss
from tiltproof.training.recipe import LossPart, ModelPart, Recipe, TrainPart
from tiltproof.training.recipe_schema import LOSSES, REGRESSION_LOSSES
from tiltproof.training.sampling import seed_layers
from tiltproof.transforms import Transform

RISE = 0.2
"""Fraction of a one-cycle run after which the rate is highest."""
FIRST, LAST = 1 / 25, 1 / 250_000
"""Rates at the beginning and end of a one-cycle run, relative to the highest."""
CHECK_EVERY = 50
"""Steps between two transfers of the losses to the host, which checks that they are finite."""
TOTAL, CLEAN, CERTIFIED, CORRECT = range(4)
"""Rows of the table of an epoch's losses, one column per step."""


@dataclass(frozen=True)
class TrainProgress:
    """The state of a run, passed to the ``progress`` callback every few steps.

    Attributes
    ----------
    epoch, epochs : int
        The current epoch, from 1, and their number.
    step, steps : int
        Steps done in all epochs, and steps of the whole run.
    clean_loss, certified_loss : float or None
        Means over the epoch so far.
    kappa : float
        Weight of the clean loss.
    nu : tuple of float
        Current half widths of the boxes.
    seconds, seconds_left : float or None
        Time since the start, and an estimate of the rest.
    phase : {"train", "certify"}
        The current activity.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    clean_loss: float
    certified_loss: float | None
    kappa: float
    nu: tuple[float, ...]
    seconds: float
    seconds_left: float | None
    phase: str = "train"


def learning_rate(part: TrainPart, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0 over the whole run.

    >>> part = TrainPart(epochs=10, learning_rate=1.0, schedule="steps", milestones=(8,), decay=0.1)
    >>> [learning_rate(part, epoch * 5, 5) for epoch in (0, 7, 8)]
    [1.0, 1.0, 0.1]
    """
    if part.schedule == "constant":
        return part.learning_rate
    if part.schedule == "steps":
        passed = sum(step >= milestone * steps_per_epoch for milestone in part.milestones)
        return float(part.learning_rate * part.decay**passed)
    if part.schedule == "one-cycle":
        last = max(part.epochs * steps_per_epoch - 1, 1)
        peak = RISE * last
        if step <= peak:
            return part.learning_rate * _cosine(FIRST, 1, step / peak)
        return part.learning_rate * _cosine(1, LAST, (step - peak) / (last - peak))
    raise InputError("unknown schedule", got=part.schedule, do="use steps, one-cycle or constant")


def _cosine(start: float, end: float, share: float) -> float:
    """Interpolate along half a cosine wave."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


class EpochRunner:
    """Trains the network of a recipe, epoch by epoch."""

    def __init__(
        self,
        recipe: Recipe,
        transform: Transform,
        data: TrainingSet,
        processes: Processes,
        progress: Callable[[TrainProgress], None] | None,
    ) -> None:
        self.recipe, self.data, self.processes, self.progress = recipe, data, processes, progress
        part = recipe.train
        self.rows = processes.rows(part.batch_size)
        self.steps = len(data) // part.batch_size
        if not self.steps:
            raise InputError(
                "the training set is smaller than one mini-batch",
                got=f"{len(data):,} images and train.batch_size {part.batch_size:,}",
            )
        self.model = build(recipe.model, part.seed).to(data.device)
        if data.device.type == "cuda" and part.precision == "bf16":  # the layout that tensor cores need
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(part, self.parameters)
        self.regression = data.labels.is_floating_point()
        self.loss = make_loss(recipe.loss, transform, self.steps, part.seed, self.regression)
        self.loss.shard = processes.shard
        recorded = data.device.type == "cuda" and self.loss.recordable
        self.graph = GraphedLoss(self.loss, self.model, self.parameters, part.precision) if recorded else None
        self.began, self.steps_here = time.perf_counter(), 0
        self.last: TrainProgress | None = None

    def run(self, epoch: int) -> dict[str, Any]:
        """Train one epoch, from 0, and return its record for the log.

        Raises FloatingPointError(what, step) if the loss or the weights are not finite.
        """
        part, first = self.recipe.train, epoch * self.steps
        seed_layers(part.seed, epoch, self.processes.rank)
        order = self.data.order(part.seed, epoch)
        table = torch.zeros(4, self.steps, device=self.data.device)
        losses = torch.zeros(4, self.steps, dtype=torch.float64)
        self.model.train()
        since = 0
        for k in range(self.steps):
            value = self.step(order[k * part.batch_size : (k + 1) * part.batch_size][self.rows], first + k, table[:, k])
            self.steps_here += 1
            if (k + 1) % CHECK_EVERY == 0 or k + 1 == self.steps:
                losses[:, since : k + 1] = self._check(table[:, since : k + 1].contiguous(), since)
                since = k + 1
                self._report(epoch, first + k + 1, value, losses[:, :since].mean(1).tolist())
        if not all(bool(parameter.isfinite().all()) for parameter in self.parameters):
            raise FloatingPointError("the weights are no longer finite", self.steps)
        mean = losses.mean(1).tolist()
        return {
            "clean_loss": mean[CLEAN],
            "certified_loss": None if value.certified is None else mean[CERTIFIED],
            "sampled_accuracy": mean[CORRECT] * self.processes.world / part.batch_size,
            "kappa": value.kappa,
            "size": value.size,
            "learning_rate": learning_rate(part, first + self.steps - 1, self.steps),
        }

    def step(self, rows: Tensor, step: int, column: Tensor) -> LossValue:
        """Do one step of the optimizer on these images; store its losses in ``column``."""
        part, data = self.recipe.train, self.recipe.data
        images, labels = self.data.batch(rows)
        images, labels = augment(
            images,
            labels,
            size=data.crop_size,
            padding=data.crop_padding,
            flip=data.flip,
            fill=data.crop_fill,
            signed=data.name in SIGNED_LABELS,
            seed=part.seed,
            step=step,
            shard=self.processes.shard,
        )
        if data.erase:
            images = erase(images, data.erase, part.seed, step, self.processes.shard)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(part, step, self.steps)
        if self.graph is not None:
            value = self.graph.step(images, labels, step)
        else:
            self.optimizer.zero_grad(set_to_none=True)
            with autocast(images.device, part.precision):
                value = self.loss(self.model, images, labels, step)
            value.total.backward()
        self.processes.average_gradients(self.parameters)
        if part.l1:  # the gradient of l1 * sum |W|
            for parameter in self.parameters:
                if parameter.ndim > 1 and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach().sign(), alpha=part.l1)
        if part.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.parameters, part.clip_norm)
        self.optimizer.step()
        column[TOTAL], column[CLEAN], column[CORRECT] = value.total.detach(), value.clean, value.correct
        if value.certified is not None:
            column[CERTIFIED] = value.certified
        return value

    def _check(self, columns: Tensor, since: int) -> Tensor:
        """Return the means over the processes, on the CPU; raise unless all are finite."""
        seen = self.processes.sum(columns).div_(self.processes.world).to("cpu", torch.float64)
        if not bool(seen.isfinite().all()):
            bad = int((~seen.isfinite()).any(0).int().argmax())
            raise FloatingPointError("the loss is no longer finite", since + bad + 1)
        return seen

    def _report(self, epoch: int, step: int, value: LossValue, mean: list[float]) -> None:
        steps, seconds = self.recipe.train.epochs * self.steps, time.perf_counter() - self.began
        self.last = TrainProgress(
            epoch=epoch + 1,
            epochs=self.recipe.train.epochs,
            step=step,
            steps=steps,
            clean_loss=mean[CLEAN],
            certified_loss=None if value.certified is None else mean[CERTIFIED],
            kappa=value.kappa,
            nu=tuple(value.size * half for half in self.recipe.loss.nu or ()),
            seconds=seconds,
            seconds_left=seconds * (steps - step) / self.steps_here,
        )
        self.say("train")

    def say(self, phase: str) -> None:
        """Pass the last report to the ``progress`` callback."""
        if self.progress is not None and self.last is not None:
            self.progress(dataclasses.replace(self.last, phase=phase))


def build(part: ModelPart, seed: int) -> nn.Module:
    """Return the network to train: random weights from the seed, drawn on the CPU, or those of ``model.start``."""
    if part.architecture not in ARCHITECTURES:
        raise InputError("unknown architecture", got=part.architecture, do=f"use one of {', '.join(ARCHITECTURES)}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = ARCHITECTURES[part.architecture]()
    if part.start:
        try:
            weights, own = load_model(part.start).state_dict(), model.state_dict()
        except InputError as error:
            raise InputError(
                "could not load the initial weights (model.start)",
                got=repr(part.start),
                why=str(InputError(error.what, got=error.got, why=error.why)).rstrip("."),
                do="train that network first, or start from another: --set model.start=FILE",
            ) from None
        if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in own.items()}:
            raise InputError(
                f"model.start holds weights of another architecture than {part.architecture}",
                got=part.start,
                do="start from a run of a recipe with the same model.architecture",
            )
        model.load_state_dict(weights)
    return model


def make_optimizer(part: TrainPart, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe."""
    kinds: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if part.optimizer not in kinds:
        raise InputError("unknown optimizer", got=part.optimizer, do=f"use one of {', '.join(kinds)}")
    return kinds[part.optimizer](parameters, lr=part.learning_rate, weight_decay=part.weight_decay, fused=True)


def make_loss(
    part: LossPart, transform: Transform, steps_per_epoch: int, seed: int, regression: bool = False
) -> TrainingLoss:
    """Return the loss of a recipe; its epochs become steps."""
    common: dict[str, Any] = {"seed": seed, "shared_parameters": part.parameters_per_batch == "one"}
    ramp = Ramp(round(part.warm_up_epochs * steps_per_epoch), round(part.ramp_epochs * steps_per_epoch))
    kappa = (part.kappa[0], part.kappa[1])
    known = REGRESSION_LOSSES if regression else LOSSES
    if part.kind not in known:
        what = f"unknown kind of loss{' for regression' if regression else ''}"
        raise InputError(what, got=part.kind, do=f"use one of {', '.join(known)}")
    if part.spread and not (part.kind == "certified" and regression):
        raise InputError(
            "loss.spread needs a regression network and the kind of loss 'certified'",
            got=f"{part.spread:g}, kind {part.kind!r}{'' if regression else ', classes'}",
            do="leave it at 0",
        )
    if part.kind == "certified":
        if regression:
            common["spread"] = part.spread
        return (CertifiedRegression if regression else Certified)(
            transform,
            part.nu,
            bounds=part.bounds,
            propagation=part.propagation,
            kappa=kappa,
            ramp=ramp,
            samples=part.samples,
            every=part.every,
            measure=part.measure,
            **common,
        )
    if part.kind == "augmentation":
        return (AugmentationRegression if regression else Augmentation)(transform, **common)
    if part.kind == "worst-of":
        return (WorstOfRegression if regression else WorstOf)(transform, part.samples, seed=seed)
    if part.kind == "pgd":
        return PGD(transform, part.epsilon, part.step_size, part.steps, **common)
    return IBP(transform, part.epsilon, kappa=kappa, ramp=ramp, **common)
