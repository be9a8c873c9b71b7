"""Gaussian blur with the kernel's standard deviation as its parameter."""

from __future__ import annotations

import math
from fractions import Fraction

from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.filters import Filter, Offset

LARGEST = 32
SHARPEST = 0.02
"""Below this deviation all weights but the middle one are less than 1e-500."""


class GaussianBlur(Filter):
    """Blur by a Gaussian of this standard deviation in pixels: ``GaussianBlur(2)`` is 0 to 2; text ``Bl(2)``, ``Bl(0.5:2)``.

    Convention
        formula:  x'_ij = sum_mn w_m w_n x_{i+m, j+n} over whole m, n from -r to r with w_k = exp(-k^2 / (2 s^2)) / Z, Z such that
                  the 2 r + 1 weights add up to 1; for s = 0 the picture itself, which is the limit
        radius:   r is fixed for the whole range: 3 times its upper end, rounded up; another one is given after @: ``Bl(0:1@6)``
        clamp:    none needed: x' is a weighted mean
        padding:  from the composition (zeros by default); the blur sees it outside the picture
    """

    letter, unit = "Bl", "pixels"
    setting = ("radius", "pixels")
    effect = 0.2

    def __init__(self, low_pixels: float, high_pixels: float | None = None, radius: float | None = None) -> None:
        super().__init__(low_pixels, high_pixels)
        self.fixed = self.usual() if radius is None else float(radius)
        if not (0 < self.fixed <= 3 * LARGEST and self.fixed == math.floor(self.fixed)):
            raise InputError(
                f"the radius of a Gaussian's kernel is a whole number of pixels, 1 to {3 * LARGEST}",
                got=radius,
                do="leave it out: it is then 3 times the largest standard deviation",
            )

    def check(self, low: float, high: float) -> None:
        if low < 0 or high > LARGEST:
            raise InputError(
                f"a standard deviation lies between 0 and {LARGEST} pixels",
                got=f"{low} to {high} pixels",
                do="write for example Bl(2) for 0 to 2, or Bl(0.5:2)",
            )

    def usual(self) -> float:
        return float(math.ceil(3 * Fraction(self.range[1])))  # exactly: everybody has to come to the same number

    @property
    def taps(self) -> int:
        assert self.fixed is not None
        return int(self.fixed)

    def passes(self) -> list[list[Offset]]:
        places = range(1, self.taps + 1)
        return [[(k, 0) for k in places], [(0, k) for k in places]]

    def weights(self, value: Tensor) -> list[Tensor]:
        rate = -0.5 / value.clamp(min=SHARPEST).square()
        parts = [(k * k * rate).exp() for k in range(1, self.taps + 1)]
        whole = 1 + 2 * sum(parts)
        return [part / whole for part in parts]
