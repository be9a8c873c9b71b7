"""Gaussian and motion blur: a weighted mean of shifted copies of the image, the same for every pixel.

With weights w_k = w_-k that sum to 1, x' = x + sum_{k >= 1} w_k (x shifted by k + x shifted by -k - 2 x). The weight of the
center is therefore not needed, and a constant image does not change.
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
    """A blur: weights that depend on the parameter, at offsets that do not."""

    minimum = 0.0

    @property
    def taps(self) -> int:
        """The number of offsets on either side of the center."""
        raise NotImplementedError

    def passes(self) -> list[list[Offset]]:
        """Return the offsets 1, 2, ... of each pass over the image, as (columns to the right, rows down)."""
        raise NotImplementedError

    def weights(self, value: Tensor) -> list[Tensor]:
        """Return w_1, w_2, ... for parameters of any shape."""
        raise NotImplementedError

    def change(self, images: Tensor, value: Tensor, padding: str) -> Tensor:
        weights = self.weights(value)
        for offsets in self.passes():
            images = images + sum(
                (w * differences(images, offset, padding) for w, offset in zip(weights, offsets, strict=True)),
                torch.zeros_like(images),
            )
        return images.clamp(0, 1)  # a weighted mean of values in [0, 1]: only rounding could leave it


def differences(images: Tensor, offset: Offset, padding: str) -> Tensor:
    """Return each image shifted by the offset and by its opposite, minus twice the image; [..., H, W]."""
    return both_sides(images, offset, padding) - 2 * images


def both_sides(images: Tensor, offset: Offset, padding: str) -> Tensor:
    """Return the sum of the images shifted by the offset and by its opposite."""
    return sum(
        (_shifted(_shifted(images, sign * offset[0], -1, padding), sign * offset[1], -2, padding) for sign in (1, -1)),
        torch.zeros_like(images),
    )


def _shifted(images: Tensor, distance: float, axis: int, padding: str) -> Tensor:
    """Interpolate linearly at a fixed distance along one axis; outside lies the padding."""
    if distance == 0:
        return images
    whole, size = math.floor(distance), images.shape[axis]
    ring = torch.nn.functional.pad(images, (1, 1) if axis == -1 else (0, 0, 1, 1))
    line = torch.arange(size, device=images.device) + whole
    near = ring.index_select(axis, ring_index(line, size, padding))
    if distance == whole:
        return near
    return torch.lerp(near, ring.index_select(axis, ring_index(line + 1, size, padding)), distance - whole)


MAX_DEVIATION = 32
"""Largest standard deviation of a Gaussian, in pixels."""
MIN_DEVIATION = 0.02
"""Smaller standard deviations are replaced by this one: all weights except the center's are below 1e-500."""
MAX_LENGTH = 128
"""Longest motion, in pixels."""


class GaussianBlur(Filter):
    """Blur by a Gaussian of this standard deviation in pixels: ``GaussianBlur(2)`` is 0 to 2; text ``Bl(2)``, ``Bl(0.5:2)``.

    Convention
        formula:  x'_ij = sum_mn w_m w_n x_{i+m, j+n} over whole m, n from -r to r with w_k = exp(-k^2 / (2 s^2)) / Z, Z such that
                  the 2 r + 1 weights add up to 1; for s = 0 the image itself, which is the limit
        radius:   r is fixed for the whole range: 3 times its upper end, rounded up; another one follows an @: ``Bl(0:1@6)``
        clamp:    none needed: x' is a weighted mean
        padding:  from the composition (zeros by default); the blur sees it outside the image

    Parameters
    ----------
    low_pixels, high_pixels : float
        Ends of the range; a single number x means 0 to x.
    radius : float
        Half width of the kernel in pixels; by default 3 times the largest standard deviation, rounded up.
    """

    letter, unit = "Bl", "pixels"
    noun, quantity = "Gaussian blur", "standard deviation of the blur"
    setting = ("radius", "pixels")
    effect = 0.2

    def __init__(self, low_pixels: float, high_pixels: float | None = None, radius: float | None = None) -> None:
        super().__init__(low_pixels, high_pixels)
        self.fixed = self.default_setting() if radius is None else float(radius)
        if not (0 < self.fixed <= 3 * MAX_DEVIATION and self.fixed == math.floor(self.fixed)):
            raise InputError(
                f"the radius of a Gaussian's kernel is a whole number of pixels, 1 to {3 * MAX_DEVIATION}",
                got=radius,
                do="leave it out: it is then 3 times the largest standard deviation",
            )

    def check(self, low: float, high: float) -> None:
        if low < 0 or high > MAX_DEVIATION:
            raise InputError(
                f"a standard deviation lies between 0 and {MAX_DEVIATION} pixels",
                got=f"{low} to {high} pixels",
                do="write for example Bl(2) for 0 to 2, or Bl(0.5:2)",
            )

    def default_setting(self) -> float:
        return float(math.ceil(3 * Fraction(self.range[1])))  # exact, because the checker must compute the same radius

    @property
    def taps(self) -> int:
        assert self.fixed is not None
        return int(self.fixed)

    def passes(self) -> list[list[Offset]]:
        distances = range(1, self.taps + 1)
        return [[(k, 0) for k in distances], [(0, k) for k in distances]]

    def weights(self, value: Tensor) -> list[Tensor]:
        rate = -0.5 / value.clamp(min=MIN_DEVIATION).square()
        values = [(k * k * rate).exp() for k in range(1, self.taps + 1)]
        total = 1 + 2 * sum(values)
        return [value / total for value in values]


class MotionBlur(Filter):
    """Blur along a path of this length in pixels: ``MotionBlur(5)`` is 0 to 5, to the side; text ``Mb(5)``, ``Mb(1:5@30)``.

    Convention
        formula:  x' = sum_k w_k x(u + k cos(a), v + k sin(a)) over whole k, with bilinear interpolation at these points and
                  w_k = 1/l times the integral of max(0, 1 - |t - k|) over t from -l/2 to l/2: the mean along a path of length l
                  centered at the pixel, with the image linear between points one pixel apart. It is continuous in l;
                  for l = 0 it is the image itself
        angle:    a is fixed, in degrees, after an @; 0 by default
        axes:     u to the right, v upwards; a turns counter-clockwise from u
        clamp:    none needed: x' is a weighted mean
        padding:  from the composition (zeros by default); the blur sees it outside the image

    Parameters
    ----------
    low_pixels, high_pixels : float
        Ends of the range; a single number x means 0 to x.
    angle_degrees : float
        Direction of the path, counter-clockwise from the right.
    """

    letter, unit = "Mb", "pixels"
    noun, quantity = "motion blur", "length of the motion"
    setting = ("angle", "degrees")
    effect = 0.1

    def __init__(self, low_pixels: float, high_pixels: float | None = None, angle_degrees: float = 0.0) -> None:
        super().__init__(low_pixels, high_pixels)
        self.fixed = float(angle_degrees) + 0.0
        if not -360 <= self.fixed <= 360:
            raise InputError("the angle of a motion must be within -360 to 360 degrees", got=angle_degrees)

    def check(self, low: float, high: float) -> None:
        if low < 0 or high > MAX_LENGTH:
            raise InputError(
                f"the length of a motion lies between 0 and {MAX_LENGTH} pixels",
                got=f"{low} to {high} pixels",
                do="write for example Mb(5) for 0 to 5, or Mb(1:5@30) for 1 to 5 at 30 degrees",
            )

    def default_setting(self) -> float:
        return 0.0

    @property
    def taps(self) -> int:
        """Offsets beyond half the length have the weight 0."""
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
        """For h = l/2: 0 up to h = k - 1, then (h - k + 1)^2 / (4 h), then (2 - (k + 1 - h)^2) / (4 h), and 1 / (2 h) from k + 1."""
        half = value.clamp(min=0) / 2
        share = half.clamp(min=1).reciprocal()
        result = []
        for k in range(1, self.taps + 1):
            rising, further = (half - (k - 1)).clamp(0, 1), (half - k).clamp(0, 1)
            # for k = 1 it is h^2 / (4 h) = h / 4 up to h = 1
            first = rising if k == 1 else rising * rising
            result.append(share * (first / 4 + further / 2 - further * further / 4))
        return result
