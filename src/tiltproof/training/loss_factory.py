"""`make_loss`: the loss that a recipe asks for."""

from __future__ import annotations

from typing import Any

from tiltproof.errors import InputError
from tiltproof.training.baselines import (
    IBP,
    PGD,
    Augmentation,
    AugmentationRegression,
    WorstOf,
    WorstOfRegression,
)
from tiltproof.training.losses import Certified, CertifiedRegression, Ramp, TrainingLoss
from tiltproof.transforms import Transform

KINDS = ("certified", "augmentation", "worst-of", "pgd", "ibp")
REGRESSION_KINDS = KINDS[:3]


def make_loss(
    part: Any, transform: Transform, steps_per_epoch: int, seed: int, regression: bool = False
) -> TrainingLoss:
    """``part`` is a recipe's [loss]; its epochs become steps here."""
    common = {"seed": seed, "one_for_all": part.parameters_per_batch == "one"}
    ramp = Ramp(round(part.warm_up_epochs * steps_per_epoch), round(part.ramp_epochs * steps_per_epoch))
    kappa = (part.kappa[0], part.kappa[1])
    if part.kind not in (REGRESSION_KINDS if regression else KINDS):
        known = ", ".join(REGRESSION_KINDS if regression else KINDS)
        raise InputError(
            f"unknown kind of loss{' for regression' if regression else ''}", got=part.kind, do=f"use one of {known}"
        )
    if part.spread and not (part.kind == "certified" and regression):
        raise InputError(
            "loss.spread is for answers that are numbers, and the kind of loss 'certified'",
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
