"""Gamma: every pixel to a power."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import Photometric


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
