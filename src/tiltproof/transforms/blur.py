"""What the blurs have in common: a weighted mean of shifted copies of the picture, the same for every pixel.

With weights w_k = w_-k that add up to 1, x' = x + sum_{k >= 1} w_k (x shifted by k + x shifted by -k - 2 x). So the weight of the
middle need not be known, and a flat picture stays as it is.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import Photometric
from tiltproof.transforms.interpolation import ring_index

Offset = tuple[float, float]


class Filter(Photometric):
    """A blur: weights that depend on the parameter, at places that do not."""

    least = 0.0

    @property
    def taps(self) -> int:
        """How many places there are on either side."""
        raise NotImplementedError

    def passes(self) -> list[list[Offset]]:
        """For each pass over the picture its places 1, 2, ..., as (columns to the right, rows down)."""
        raise NotImplementedError

    def weights(self, value: Tensor) -> list[Tensor]:
        """w_1, w_2, ... at parameters of any shape."""
        raise NotImplementedError

    def changed(self, images: Tensor, value: Tensor, padding: str) -> Tensor:
        weights = self.weights(value)
        for offsets in self.passes():
            images = images + sum(
                (w * differences(images, offset, padding) for w, offset in zip(weights, offsets, strict=True)),
                torch.zeros_like(images),
            )
        return images.clamp(0, 1)  # only rounding could leave it: a weighted mean of values in [0, 1]


def differences(pictures: Tensor, offset: Offset, padding: str) -> Tensor:
    """What lies at the offset, and opposite, less twice the picture itself; [..., H, W]."""
    return both_sides(pictures, offset, padding) - 2 * pictures


def both_sides(pictures: Tensor, offset: Offset, padding: str) -> Tensor:
    return sum(
        (
            _shifted(_shifted(pictures, sign * offset[0], -1, padding), sign * offset[1], -2, padding)
            for sign in (1, -1)
        ),
        torch.zeros_like(pictures),
    )


def _shifted(pictures: Tensor, distance: float, axis: int, padding: str) -> Tensor:
    """Bilinear interpolation at a fixed distance along one axis; outside lies the padding."""
    if distance == 0:
        return pictures
    whole, size = math.floor(distance), pictures.shape[axis]
    ring = torch.nn.functional.pad(pictures, (1, 1) if axis == -1 else (0, 0, 1, 1))
    line = torch.arange(size, device=pictures.device) + whole
    near = ring.index_select(axis, ring_index(line, size, padding))
    if distance == whole:
        return near
    return torch.lerp(near, ring.index_select(axis, ring_index(line + 1, size, padding)), distance - whole)


# Gaussian blur with the kernel's standard deviation as its parameter.


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


# Motion blur: the mean along a straight path, with the path's length as its parameter.


LONGEST = 128


class MotionBlur(Filter):
    """Blur along a path of this length in pixels: ``MotionBlur(5)`` is 0 to 5, to the side; text ``Mb(5)``, ``Mb(1:5@30)``.

    Convention
        formula:  x' = sum_k w_k x(u + k cos(a), v + k sin(a)) over whole k, with bilinear interpolation at these places and
                  w_k = 1/l times the integral of max(0, 1 - |t - k|) over t from -l/2 to l/2: the mean along a path of length l
                  centered at the pixel, where the picture is taken linearly between places one pixel apart. It is continuous in
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
