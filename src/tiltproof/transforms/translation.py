"""Translation by a number of pixels, which need not be whole."""

from __future__ import annotations

from typing import Any

from tiltproof.transforms.base import Spatial
from tiltproof.transforms.matrices import Matrix


class TranslationU(Spatial):
    """Shift horizontally by a (fractional) number of pixels: ``TranslationU(2)``; text ``Tu(2)``.

    Convention
        axes:     u to the right
        sign:     positive moves the picture's content to the right
        inverse:  u' = u - t, v' = v
        padding:  from the composition (zeros by default)
    """

    letter, unit = "Tu", "pixels"

    def __init__(self, low_pixels: float, high_pixels: float | None = None) -> None:
        super().__init__(low_pixels, high_pixels)

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, -value), (0, 1, 0)


class TranslationV(Spatial):
    """Shift vertically by a (fractional) number of pixels: ``TranslationV(2)``; text ``Tv(2)``.

    Convention
        axes:     v upwards
        sign:     positive moves the picture's content up
        inverse:  u' = u, v' = v - t
        padding:  from the composition (zeros by default)
    """

    letter, unit = "Tv", "pixels"

    def __init__(self, low_pixels: float, high_pixels: float | None = None) -> None:
        super().__init__(low_pixels, high_pixels)

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, 0), (0, 1, -value)
