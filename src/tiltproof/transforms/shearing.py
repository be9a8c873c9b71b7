"""Shearing, horizontal and vertical."""

from __future__ import annotations

from typing import Any

from tiltproof.transforms.base import Spatial
from tiltproof.transforms.matrices import Matrix


class Shearing(Spatial):
    """Shear horizontally by a percentage: ``Shearing(2)`` is -2 % to +2 %; text ``Sh(2)``.

    Convention
        centre:   the middle row stays where it is
        axes:     u to the right, v upwards
        sign:     positive moves the upper half to the right, by percent / 100 pixels for each row above the centre
        inverse:  u' = u - (percent / 100) v, v' = v
        padding:  from the composition (zeros by default)
    """

    letter, unit = "Sh", "percent"

    def __init__(self, low_percent: float, high_percent: float | None = None) -> None:
        super().__init__(low_percent, high_percent)

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, -(value / 100), 0), (0, 1, 0)


class ShearingV(Spatial):
    """Shear vertically by a percentage: ``ShearingV(2)`` is -2 % to +2 %; text ``Shv(2)``.

    Convention
        centre:   the middle column stays where it is
        axes:     u to the right, v upwards
        sign:     positive moves the right half up, by percent / 100 pixels for each column right of the centre
        inverse:  u' = u, v' = v - (percent / 100) u
        padding:  from the composition (zeros by default)
    """

    letter, unit = "Shv", "percent"

    def __init__(self, low_percent: float, high_percent: float | None = None) -> None:
        super().__init__(low_percent, high_percent)

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, 0), (-(value / 100), 1, 0)
