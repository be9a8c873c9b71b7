"""Losses for training networks whose proofs succeed: call one in your own loop, or name it in a recipe.

loss = tiltproof.losses.Certified("R(30)", half_width=0.25)
value = loss(model, images, labels, step=0)
value.total.backward()
"""

from tiltproof.training.baselines import IBP, PGD, Augmentation, AugmentationRegression, WorstOf, WorstOfRegression
from tiltproof.training.losses import Certified, CertifiedRegression, LossValue, Ramp, TrainingLoss

__all__ = [
    "IBP",
    "PGD",
    "Augmentation",
    "AugmentationRegression",
    "Certified",
    "CertifiedRegression",
    "LossValue",
    "Ramp",
    "TrainingLoss",
    "WorstOf",
    "WorstOfRegression",
]
