"""Training for provability: recipes, and the size of the boxes they train on."""

from tiltproof.train.recipe import Recipe, read_recipe, recipe_names, recipes
from tiltproof.train.tune import Widths, pixel_widths, tune

__all__ = ["Recipe", "Widths", "pixel_widths", "read_recipe", "recipe_names", "recipes", "tune"]
