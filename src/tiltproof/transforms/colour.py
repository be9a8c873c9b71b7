"""Saturation and hue: the three colours of a pixel are mixed by a matrix that depends on the parameter.

The matrices are those of the W3C's filters ``saturate()`` and ``hue-rotate()``. Their entries are thousandths; counted in
thousandths they are whole numbers, so that no constant of the definition is rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import Photometric

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
