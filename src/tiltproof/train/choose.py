"""`make_loss`: the loss that a recipe asks for."""

from __future__ import annotations

from typing import Any

from tiltproof.errors import InputError
from tiltproof.train.baselines import AugmentationLoss, IbpLoss, PgdLoss, WorstOfLoss
from tiltproof.train.losses import CertifiedLoss, TrainingLoss
from tiltproof.train.ramp import Ramp
from tiltproof.transforms import Transform

KINDS = ("certified", "augmentation", "worst-of", "pgd", "ibp")


def make_loss(part: Any, transform: Transform, steps_per_epoch: int, seed: int) -> TrainingLoss:
    """``part`` is a recipe's [loss]; its epochs become steps here."""
    common = {"seed": seed, "one_for_all": part.parameters_per_batch == "one"}
    ramp = Ramp(round(part.warm_up_epochs * steps_per_epoch), round(part.ramp_epochs * steps_per_epoch))
    kappa = (part.kappa[0], part.kappa[1])
    if part.kind == "certified":
        return CertifiedLoss(
            transform,
            part.nu,
            bounds=part.bounds,
            propagation=part.propagation,
            kappa=kappa,
            ramp=ramp,
            samples=part.samples,
            every=part.every,
            **common,
        )
    if part.kind == "augmentation":
        return AugmentationLoss(transform, **common)
    if part.kind == "worst-of":
        return WorstOfLoss(transform, part.samples, seed=seed)
    if part.kind == "pgd":
        return PgdLoss(transform, part.epsilon, part.step_size, part.steps, **common)
    if part.kind == "ibp":
        return IbpLoss(transform, part.epsilon, kappa=kappa, ramp=ramp, **common)
    raise InputError("unknown kind of loss", got=part.kind, do=f"use one of {', '.join(KINDS)}")
