"""Training networks for which the proof succeeds: losses, recipes, the loop, the choice of interval size.

result = train(read_recipe("mnist-r30"), out="runs/mine")

The losses, `Ramp` and `read_recipe` are names of `tiltproof` itself as well; the function `train` is not, because the name is taken
by this subpackage.
"""

from tiltproof.training.baselines import AugmentationLoss, IbpLoss, PgdLoss, WorstOfLoss
from tiltproof.training.loop import train
from tiltproof.training.losses import CertifiedLoss, CertifiedRegressionLoss, LossValue, Ramp, TrainingLoss
from tiltproof.training.recipe import Recipe, read_recipe, recipe_names, recipes
from tiltproof.training.results import TrainingFailed, TrainProgress, TrainResult
from tiltproof.training.tune import Widths, pixel_widths, tune

__all__ = [
    "AugmentationLoss",
    "CertifiedLoss",
    "CertifiedRegressionLoss",
    "IbpLoss",
    "LossValue",
    "PgdLoss",
    "Ramp",
    "Recipe",
    "TrainProgress",
    "TrainResult",
    "TrainingFailed",
    "TrainingLoss",
    "Widths",
    "WorstOfLoss",
    "pixel_widths",
    "read_recipe",
    "recipe_names",
    "recipes",
    "train",
    "tune",
]
