"""What holds for all those pictures at once: affine forms, intervals, pixel bounds, and the paper's Algorithm 1."""

from tiltproof.bounds.affine import AffineForm
from tiltproof.bounds.check import METHODS, check_images, check_method
from tiltproof.bounds.horizon import check_horizon, has_camera
from tiltproof.bounds.interval import Interval
from tiltproof.bounds.pixels import bound_pixels, pair_bounds

__all__ = [
    "METHODS",
    "AffineForm",
    "Interval",
    "bound_pixels",
    "check_horizon",
    "check_images",
    "check_method",
    "has_camera",
    "pair_bounds",
]
