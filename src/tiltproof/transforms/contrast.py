"""Contrast: every pixel times a factor."""

from __future__ import annotations

from typing import Any

from tiltproof.transforms.base import Pixelwise


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
