"""Motion blur: the mean along a straight path, with the path's length as its parameter."""

from __future__ import annotations

import math

from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.filters import Filter, Offset

LONGEST = 128


class MotionBlur(Filter):
    """Blur along a path of this length in pixels: ``MotionBlur(5)`` is 0 to 5, to the side; text ``Mb(5)``, ``Mb(1:5@30)``.

    Convention
        formula:  x' = sum_k w_k x(u + k cos(a), v + k sin(a)) over whole k, with bilinear interpolation at these places and
                  w_k = 1/l times the integral of max(0, 1 - |t - k|) over t from -l/2 to l/2: the mean along a path of length l
                  centred at the pixel, where the picture is taken linearly between places one pixel apart. It is continuous in
                  l; for l = 0 it is the picture itself
        angle:    a is fixed, in degrees, given after @, and 0 where nothing is said
        axes:     u to the right, v upwards; a turns counter-clockwise from u
        clamp:    none needed: x' is a weighted mean
        padding:  from the composition (zeros by default); the blur sees it outside the picture
    """

    letter, unit = "Mb", "pixels"
    setting = ("angle", "degrees")
    effect = 0.1

    def __init__(self, low_pixels: float, high_pixels: float | None = None, angle_degrees: float = 0.0) -> None:
        super().__init__(low_pixels, high_pixels)
        self.fixed = float(angle_degrees) + 0.0
        if not -360 <= self.fixed <= 360:
            raise InputError("a motion's angle lies within -360 to 360 degrees", got=angle_degrees)

    def check(self, low: float, high: float) -> None:
        if low < 0 or high > LONGEST:
            raise InputError(
                f"the length of a motion lies between 0 and {LONGEST} pixels",
                got=f"{low} to {high} pixels",
                do="write for example Mb(5) for 0 to 5, or Mb(1:5@30) for 1 to 5 at 30 degrees",
            )

    def usual(self) -> float:
        return 0.0

    @property
    def taps(self) -> int:
        """Weights beyond half the length and 1 are zero."""
        return math.ceil(self.range[1] / 2)

    def passes(self) -> list[list[Offset]]:
        assert self.fixed is not None
        quarters = self.fixed / 90
        if quarters == math.floor(quarters):
            right, up = [(1, 0), (0, 1), (-1, 0), (0, -1)][int(quarters) % 4]
        else:
            angle = math.radians(self.fixed)
            right, up = math.cos(angle), math.sin(angle)  # type: ignore[assignment]
        return [[(k * right, -k * up) for k in range(1, self.taps + 1)]]

    def weights(self, value: Tensor) -> list[Tensor]:
        """With h = l/2: 0 up to h = k - 1, then (h - k + 1)^2 / (4 h), then (2 - (k + 1 - h)^2) / (4 h), from k + 1 on 1 / (2 h)."""
        half = value.clamp(min=0) / 2
        share = half.clamp(min=1).reciprocal()
        result = []
        for k in range(1, self.taps + 1):
            rising, further = (half - (k - 1)).clamp(0, 1), (half - k).clamp(0, 1)
            # for k = 1 it is h^2 / (4 h) = h / 4 up to h = 1
            first = rising if k == 1 else rising * rising
            result.append(share * (first / 4 + further / 2 - further * further / 4))
        return result
