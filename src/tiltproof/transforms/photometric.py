"""Brightness: every pixel plus an amount."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import Photometric, Pixelwise


class Brightness(Pixelwise):
    """Add an absolute amount to every pixel: ``Brightness(0.01)`` is -0.01 to +0.01; text ``B(0.01)``.

    Convention
        formula:  x' = x + amount on pixels in [0, 1]
        clamp:    to [0, 1], once, after the last of the contrast and brightness changes that stand together
        sign:     positive brightens
        padding:  none; it acts on the picture it is given, padding included where that was added before it
    """

    letter, unit = "B", "units of pixel value"

    def __init__(self, low_amount: float, high_amount: float | None = None) -> None:
        super().__init__(low_amount, high_amount)

    def pixels(self, picture: Any, value: Any) -> Any:
        return picture + value


# Contrast: every pixel times a factor.


class Contrast(Pixelwise):
    """Change contrast by a percentage: ``Contrast(5)`` is -5 % to +5 %; text ``C(5)``.

    Convention
        formula:  x' = (1 + percent / 100) x on pixels in [0, 1]
        clamp:    to [0, 1], once, after the last of the contrast and brightness changes that stand together
        sign:     positive brightens bright pixels; black stays black
        padding:  none; it acts on the picture it is given, padding included where that was added before it
    """

    letter, unit = "C", "percent"
    effect = 0.005

    def __init__(self, low_percent: float, high_percent: float | None = None) -> None:
        super().__init__(low_percent, high_percent)

    def pixels(self, picture: Any, value: Any) -> Any:
        return picture * (value / 100 + 1)


# Gamma: every pixel to a power.


class Gamma(Photometric):
    """Change the exponent by a percentage: ``Gamma(20)`` is the powers 0.8 to 1.2; text ``G(20)``.

    Convention
        formula:  x' = x^g with g = 1 + percent / 100 > 0, on pixels in [0, 1]; 0 stays 0 and 1 stays 1
        clamp:    none needed: x' is in [0, 1]
        sign:     positive darkens
        padding:  none; it acts on the picture it is given, padding included where that was added before it
    """

    letter, unit = "G", "percent"
    effect = 0.0035

    def __init__(self, low_percent: float, high_percent: float | None = None) -> None:
        super().__init__(low_percent, high_percent)

    def check(self, low: float, high: float) -> None:
        if low <= -100:
            raise InputError(
                "gamma must stay above -100 %, where every picture is white",
                got=f"{low} to {high} percent",
                why="a power such as 0.8 to 1.2 has to be given as -20 to 20 percent",
                do="choose a lower end above -100",
            )

    @staticmethod
    def exponent(value: Any) -> Any:
        return value / 100 + 1

    def pixels(self, picture: Tensor, value: Tensor) -> Tensor:
        # black by hand: the slope of a root is infinite there, and gradients would not be numbers
        least = torch.finfo(picture.dtype).tiny
        return torch.where(picture > 0, picture.clamp(min=least) ** self.exponent(value), 0.0)


# Saturation and hue: the three colours of a pixel are mixed by a matrix that depends on the parameter.
#
# The matrices are those of the W3C's filters ``saturate()`` and ``hue-rotate()``. Their entries are thousandths; counted in
# thousandths they are whole numbers, so that no constant of the definition is rounded.


Thousandths = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]

LUMA: Thousandths = ((213, 715, 72), (213, 715, 72), (213, 715, 72))
REST: Thousandths = ((787, -715, -72), (-213, 285, -72), (-213, -715, 928))
"""The identity less LUMA."""
TURN: Thousandths = ((-213, -715, 928), (143, 140, -283), (-787, 715, 72))


class ColourMatrix(Photometric):
    """x' = M(value) x for the vector x of a pixel's red, green and blue."""

    channels = 3

    def terms(self, value: Any) -> list[tuple[Any, Thousandths]]:
        """M = LUMA + the sum of number times matrix, in thousandths."""
        raise NotImplementedError

    def pixels(self, picture: Any, value: Any) -> Any:
        return mixed(picture, self.terms(value))


def mixed(picture: Any, terms: list[tuple[Any, Thousandths]]) -> Any:
    """The picture's three channels mixed by LUMA + sum number * matrix."""
    like = picture if isinstance(picture, Tensor) else picture.like
    total = None
    for k in range(3):
        column = None
        for number, matrix in terms:
            term = number * _column(matrix, k, like)
            column = term if column is None else column + term
        assert column is not None
        term = _channel(picture, k) * (column + _column(LUMA, k, like))
        total = term if total is None else total + term
    assert total is not None
    return total / 1000


class Saturation(ColourMatrix):
    """Change saturation by a percentage: ``Saturation(30)`` is -30 % to +30 %; text ``S(30)``.

    Convention
        formula:  x' = Y + (1 + percent / 100) (x - Y) for each of red, green, blue, with the luma
                  Y = 0.213 red + 0.715 green + 0.072 blue (the W3C's ``saturate()``, on pixel values as stored)
        clamp:    to [0, 1], by itself, also beside other changes of values
        sign:     positive makes colours stronger; -100 is grey, below it colours turn into their opposites
        padding:  none; it acts on the picture it is given
    """

    letter, unit = "S", "percent"
    effect = 0.002

    def __init__(self, low_percent: float, high_percent: float | None = None) -> None:
        super().__init__(low_percent, high_percent)

    def terms(self, value: Any) -> list[tuple[Any, Thousandths]]:
        return [(value / 100 + 1, REST)]


class Hue(ColourMatrix):
    """Turn the hue by an angle in degrees: ``Hue(20)`` is -20 to 20; text ``H(20)``.

    Convention
        formula:  x' = (L + cos(a) (I - L) + sin(a) K) x for the vector x of red, green, blue; every row of L is
                  (0.213, 0.715, 0.072), and K has the rows (-0.213, -0.715, 0.928), (0.143, 0.140, -0.283),
                  (-0.787, 0.715, 0.072): the W3C's ``hue-rotate()``, a rotation about the grey axis, linear in the pixel. It is
                  not the hue of HSV, which is piecewise
        clamp:    to [0, 1], by itself, also beside other changes of values
        sign:     positive turns red towards green; grey stays as it is
        padding:  none; it acts on the picture it is given
    """

    letter, unit = "H", "degrees"
    effect = 0.004

    def __init__(self, low_degrees: float, high_degrees: float | None = None) -> None:
        super().__init__(low_degrees, high_degrees)

    def check(self, low: float, high: float) -> None:
        if low < -360 or high > 360:
            raise InputError(
                "hue turns no further than a full turn",
                got=f"{low} to {high} degrees",
                why="radians or another unit mixed up with degrees",
                do="keep the range within -360 to 360",
            )

    def terms(self, value: Any) -> list[tuple[Any, Thousandths]]:
        angle = value.deg2rad()
        return [(angle.cos(), REST), (angle.sin(), TURN)]


def _column(matrix: Thousandths, k: int, like: Tensor) -> Tensor:
    """Filled in on the device: a copy from the host could not be recorded for replay."""
    return torch.cat([torch.full((1, 1, 1), row[k], dtype=like.dtype, device=like.device) for row in matrix])


def _channel(picture: Any, k: int) -> Any:
    one = slice(k, k + 1)
    return picture[:, one] if isinstance(picture, Tensor) else picture.exactly(lambda entries: entries[:, one])
