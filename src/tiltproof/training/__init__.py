"""Training networks for which the proof succeeds: recipes, the training loop, the choice of interval size.

    result = train(read_recipe("mnist-r30"), out="runs/mine")

The losses, for a loop of your own, are in `tiltproof.losses`.
"""

from tiltproof.training.epoch import TrainProgress
from tiltproof.training.loop import TrainingFailed, TrainResult, train
from tiltproof.training.recipe import Recipe, read_recipe, recipe_names, recipes
from tiltproof.training.tune import Widths, pixel_widths, tune

__all__ = [
    "Recipe",
    "TrainProgress",
    "TrainResult",
    "TrainingFailed",
    "Widths",
    "pixel_widths",
    "read_recipe",
    "recipe_names",
    "recipes",
    "train",
    "tune",
]
