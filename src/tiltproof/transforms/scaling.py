"""Scaling about the picture's centre: both ways alike, or one way alone."""

from __future__ import annotations

from typing import Any

from tiltproof.errors import InputError
from tiltproof.transforms.base import Spatial
from tiltproof.transforms.matrices import Matrix


class Scaling(Spatial):
    """Scale by a percentage: ``Scaling(5)`` is -5 % to +5 %; text ``Sc(5)``.

    Convention
        centre:   the middle of the picture
        sign:     positive enlarges the content, by the factor 1 + percent / 100
        inverse:  u' = u / (1 + s), v' = v / (1 + s) with s = percent / 100
        padding:  from the composition (zeros by default)
    """

    letter, unit = "Sc", "percent"

    def __init__(self, low_percent: float, high_percent: float | None = None) -> None:
        super().__init__(low_percent, high_percent)

    def check(self, low: float, high: float) -> None:
        if low <= -100:
            raise InputError(
                "scaling must stay above -100 %, where the picture has shrunk to a point",
                got=f"{low} to {high} percent",
                why="a factor such as 0.9 to 1.1 has to be given as -10 to 10 percent",
                do="choose a lower end above -100",
            )

    def inverse_matrix(self, value: Any) -> Matrix:
        factor = (value / 100 + 1).reciprocal()
        return (factor, 0, 0), (0, factor, 0)


class ScalingU(Scaling):
    """Scale the width alone by a percentage: ``ScalingU(5)`` is -5 % to +5 %; text ``Scu(5)``.

    Convention
        centre:   the middle column stays where it is
        axes:     u to the right
        sign:     positive makes the content wider, by the factor 1 + percent / 100
        inverse:  u' = u / (1 + s), v' = v with s = percent / 100
        padding:  from the composition (zeros by default)
    """

    letter = "Scu"

    def inverse_matrix(self, value: Any) -> Matrix:
        return ((value / 100 + 1).reciprocal(), 0, 0), (0, 1, 0)


class ScalingV(Scaling):
    """Scale the height alone by a percentage: ``ScalingV(5)`` is -5 % to +5 %; text ``Scv(5)``.

    Convention
        centre:   the middle row stays where it is
        axes:     v upwards
        sign:     positive makes the content taller, by the factor 1 + percent / 100
        inverse:  u' = u, v' = v / (1 + s) with s = percent / 100
        padding:  from the composition (zeros by default)
    """

    letter = "Scv"

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, 0), (0, (value / 100 + 1).reciprocal(), 0)
