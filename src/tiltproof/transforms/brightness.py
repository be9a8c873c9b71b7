"""Brightness: every pixel plus an amount."""

from __future__ import annotations

from typing import Any

from tiltproof.transforms.base import Pixelwise


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
