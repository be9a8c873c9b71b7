"""Rotation about the picture's centre."""

from __future__ import annotations

from typing import Any

from tiltproof.errors import InputError
from tiltproof.transforms.base import Spatial
from tiltproof.transforms.matrices import Matrix


class Rotation(Spatial):
    """Rotate by an angle in degrees: ``Rotation(30)`` is -30 to 30, ``Rotation(-10, 25)`` is asymmetric; text
    ``R(30)``.

    Convention
        centre:   the middle of the picture, between the pixels when the size is even
        axes:     u to the right, v upwards
        sign:     positive turns the picture counter-clockwise
        inverse:  u' = u cos(a) + v sin(a), v' = v cos(a) - u sin(a)
        padding:  from the composition (zeros by default)
    """

    letter, unit = "R", "degrees"

    def __init__(self, low_degrees: float, high_degrees: float | None = None) -> None:
        super().__init__(low_degrees, high_degrees)

    def check(self, low: float, high: float) -> None:
        if low < -360 or high > 360:
            raise InputError(
                "a rotation goes no further than a full turn",
                got=f"{low} to {high} degrees",
                why="radians or another unit mixed up with degrees",
                do="keep the range within -360 to 360",
            )

    def inverse_matrix(self, value: Any) -> Matrix:
        angle = value.deg2rad()
        cosine, sine = angle.cos(), angle.sin()
        return (cosine, sine, 0), (-sine, cosine, 0)
