"""Training networks for which the proof succeeds: recipes, the training loop, the choice of interval size.

    result = train(read_recipe("mnist-r30"), out="runs/mine")

The losses, for a loop of your own, are in `tiltproof.losses`.
"""

from typing import TYPE_CHECKING

from tiltproof.lazy import lazy

if TYPE_CHECKING:
    from tiltproof.training.box_sizes import Widths, pixel_widths, tune
    from tiltproof.training.epoch import TrainProgress
    from tiltproof.training.loop import TrainingFailed, TrainResult, train
    from tiltproof.training.recipe import Recipe, read_recipe, recipe_names, recipes
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "training.epoch": ("TrainProgress",),
            "training.loop": ("TrainingFailed", "TrainResult", "train"),
            "training.recipe": ("Recipe", "read_recipe", "recipe_names", "recipes"),
            "training.box_sizes": ("Widths", "pixel_widths", "tune"),
        },
    )

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
