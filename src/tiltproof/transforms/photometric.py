"""Photometric transformations of single pixels: brightness, contrast, gamma, saturation and hue."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import InDegrees, InPercent, Photometric, Pixelwise


class Brightness(Pixelwise):
    """Add an absolute amount to every pixel: ``Brightness(0.01)`` is -0.01 to +0.01; text ``B(0.01)``.

    Convention
        formula:  x' = x + amount on pixels in [0, 1]
        clamp:    to [0, 1], once, after the last of consecutive contrast and brightness changes
        sign:     positive brightens
        padding:  none; it also acts on padding that an earlier part added

    Parameters
    ----------
    low_amount, high_amount : float
        Ends of the range; a single number x means -x to x.
    """

    letter, unit = "B", "units of pixel value"
    noun, quantity = "change of brightness", "brightness"

    def __init__(self, low_amount: float, high_amount: float | None = None) -> None:
        super().__init__(low_amount, high_amount)

    def pixels(self, image: Any, value: Any) -> Any:
        return image + value


class Contrast(InPercent, Pixelwise):
    """Change contrast by a percentage: ``Contrast(5)`` is -5 % to +5 %; text ``C(5)``.

    Convention
        formula:  x' = (1 + percent / 100) x on pixels in [0, 1]
        clamp:    to [0, 1], once, after the last of consecutive contrast and brightness changes
        sign:     positive brightens bright pixels; black stays black
        padding:  none; it also acts on padding that an earlier part added

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "C"
    noun, quantity = "change of contrast", "contrast"
    effect = 0.005

    def pixels(self, image: Any, value: Any) -> Any:
        return image * (value / 100 + 1)


class Gamma(InPercent, Photometric):
    """Change the exponent by a percentage: ``Gamma(20)`` is the powers 0.8 to 1.2; text ``G(20)``.

    Convention
        formula:  x' = x^g with g = 1 + percent / 100 > 0, on pixels in [0, 1]; 0 stays 0 and 1 stays 1
        clamp:    none needed: x' is in [0, 1]
        sign:     positive darkens
        padding:  none; it also acts on padding that an earlier part added

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "G"
    noun, quantity = "change of gamma", "gamma"
    effect = 0.0035

    def check(self, low: float, high: float) -> None:
        if low <= -100:
            raise InputError(
                "gamma must stay above -100 %, where every image is white",
                got=f"{low} to {high} percent",
                why="an exponent instead of a percentage: 0.8 to 1.2 is -20 to 20 percent",
                do="choose a lower end above -100",
            )

    @staticmethod
    def exponent(value: Any) -> Any:
        """The exponent of pixel values for a parameter in percent."""
        return value / 100 + 1

    def pixels(self, image: Tensor, value: Tensor) -> Tensor:
        # black is a separate case: the derivative of a root is infinite there, and gradients would be NaN
        tiny = torch.finfo(image.dtype).tiny
        return torch.where(image > 0, image.clamp(min=tiny) ** self.exponent(value), 0.0)


# Saturation and hue multiply each pixel by a matrix of the W3C's filters ``saturate()`` and ``hue-rotate()``. Matrices are
# stored as whole thousandths, so that no constant of the definition is rounded.

Thousandths = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]

LUMA: Thousandths = ((213, 715, 72), (213, 715, 72), (213, 715, 72))
REST: Thousandths = ((787, -715, -72), (-213, 285, -72), (-213, -715, 928))
"""The identity minus LUMA."""
TURN: Thousandths = ((-213, -715, 928), (143, 140, -283), (-787, 715, 72))


class ColorMatrix(Photometric):
    """x' = M(value) x for the vector x of a pixel's red, green and blue values."""

    channels = 3

    def terms(self, value: Any) -> list[tuple[Any, Thousandths]]:
        """Return pairs (number, matrix), with M = LUMA + sum number * matrix in thousandths."""
        raise NotImplementedError

    def pixels(self, image: Any, value: Any) -> Any:
        return mixed(image, self.terms(value))


def mixed(image: Any, terms: list[tuple[Any, Thousandths]]) -> Any:
    """Multiply the image's three channels by LUMA + sum number * matrix."""
    like = image if isinstance(image, Tensor) else image.like
    total = None
    for k in range(3):
        column = None
        for number, matrix in terms:
            term = number * _column(matrix, k, like)
            column = term if column is None else column + term
        assert column is not None
        term = _channel(image, k) * (column + _column(LUMA, k, like))
        total = term if total is None else total + term
    assert total is not None
    return total / 1000


class Saturation(InPercent, ColorMatrix):
    """Change saturation by a percentage: ``Saturation(30)`` is -30 % to +30 %; text ``S(30)``.

    Convention
        formula:  x' = Y + (1 + percent / 100) (x - Y) for each of red, green, blue, with the luma
                  Y = 0.213 red + 0.715 green + 0.072 blue (the W3C's ``saturate()``, on pixel values as stored)
        clamp:    to [0, 1], as a stage of its own
        sign:     positive makes colors stronger; -100 is gray, below it colors become their complements
        padding:  none; it also acts on padding that an earlier part added

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "S"
    noun, quantity = "change of saturation", "saturation"
    effect = 0.002

    def terms(self, value: Any) -> list[tuple[Any, Thousandths]]:
        return [(value / 100 + 1, REST)]


class Hue(InDegrees, ColorMatrix):
    """Rotate the hue by an angle in degrees: ``Hue(20)`` is -20 to 20; text ``H(20)``.

    Convention
        formula:  x' = (L + cos(a) (I - L) + sin(a) K) x for the vector x of red, green, blue; every row of L is
                  (0.213, 0.715, 0.072), and K has the rows (-0.213, -0.715, 0.928), (0.143, 0.140, -0.283),
                  (-0.787, 0.715, 0.072): the W3C's ``hue-rotate()``, a rotation about the gray axis, linear in the pixel; not
                  the piecewise hue of HSV
        clamp:    to [0, 1], as a stage of its own
        sign:     positive turns red towards green; gray does not change
        padding:  none; it also acts on padding that an earlier part added

    Parameters
    ----------
    low_degrees, high_degrees : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "H"
    noun, quantity = "turn of the hue", "hue"
    effect = 0.004

    def terms(self, value: Any) -> list[tuple[Any, Thousandths]]:
        angle = value.deg2rad()
        return [(angle.cos(), REST), (angle.sin(), TURN)]


def _column(matrix: Thousandths, k: int, like: Tensor) -> Tensor:
    """Build a column on the device: a CUDA graph cannot record a copy from the host."""
    return torch.cat([torch.full((1, 1, 1), row[k], dtype=like.dtype, device=like.device) for row in matrix])


def _channel(image: Any, k: int) -> Any:
    one = slice(k, k + 1)
    return image[:, one] if isinstance(image, Tensor) else image.exactly(lambda entries: entries[:, one])
