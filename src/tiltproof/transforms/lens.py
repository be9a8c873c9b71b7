"""Lens distortion with one radial coefficient: the one move of pixels that is not a matrix.

The source position of a pixel lies on the same ray from the image's center, at the distance r (1 + k r^2) instead of r. That is the
first term of the model of Brown and Conrady, as in OpenCV. Two sorts of user give k: a calibrated camera has its coefficient k1, with r
in focal lengths; without one, the corner of the image is what is known, so r is 1 there and k is how far the corner moves.
"""

from __future__ import annotations

from typing import Any

from tiltproof.errors import InputError
from tiltproof.transforms.base import InPercent, Spatial, number_text
from tiltproof.transforms.camera import MAX_FOCAL, MIN_FOCAL

MAX_PERCENT = 1000.0
"""Largest coefficient: beyond, numbers stand for something else than a coefficient in percent."""


class LensDistortion(InPercent, Spatial):
    """Distort as a lens does, by a coefficient in percent: ``LensDistortion(5)`` is -5 % to +5 %; text ``Ld(5)``.

    Convention
        center:   the middle of the image
        sign:     positive squeezes the content towards the center, the more the farther out (barrel); negative stretches it (pincushion)
        unit:     percent of r at r = 1. r is the distance from the center in halves of the image's diagonal: r^2 = 4 (u^2 + v^2) /
                  (W^2 + H^2), which is 1 at the image's corners. After @ follows another unit of length in pixels, ``Ld(5@300)``:
                  with the focal length of a calibrated camera the coefficient is OpenCV's k1, times 100
        inverse:  u' = u (1 + k r^2), v' = v (1 + k r^2) with k = percent / 100; an exact polynomial, with no search for a root
        domain:   1 + 3 k r^2, the growth of the distance r (1 + k r^2), must be at least 1/16 for every pixel, so that no two
                  distances show the same place; a range for which it is not is refused (below about -31 % for ``Ld`` alone)
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    radius_pixels : float, optional
        The distance in pixels where r is 1, 0.01 to 1e6; by default half of the image's diagonal.

    Raises
    ------
    InputError
        If the distance is out of its range, or a coefficient exceeds 1000 percent.
    """

    letter = "Ld"
    noun, quantity = "lens distortion", "lens distortion"
    setting = ("unit distance", "pixels")
    by_matrix = False

    def __init__(
        self, low_percent: float, high_percent: float | None = None, radius_pixels: float | None = None
    ) -> None:
        if radius_pixels is not None:
            try:
                self.fixed = float(radius_pixels)
            except (TypeError, ValueError):
                raise InputError(
                    f"{self.letter}'s {self.setting[0]} is a number of pixels", got=repr(radius_pixels)
                ) from None
            if not MIN_FOCAL <= self.fixed <= MAX_FOCAL:
                raise InputError(
                    f"{self.letter}'s {self.setting[0]} must lie between {MIN_FOCAL:g} and {MAX_FOCAL:g} pixels",
                    got=number_text(self.fixed),
                    why="millimeters instead of pixels",
                    do="give the camera's focal length in pixels, or nothing for half of the image's diagonal",
                )
        super().__init__(low_percent, high_percent)

    def check(self, low: float, high: float) -> None:
        if low < -MAX_PERCENT or high > MAX_PERCENT:
            raise InputError(
                f"lens distortion must stay within {MAX_PERCENT:g} percent",
                got=f"{number_text(low)} to {number_text(high)} percent",
                why="another unit than percent",
                do="choose a smaller range; a coefficient k1 = -0.2 of a calibrated camera is -20 percent",
            )

    def moved(self, value: Any, u: Any, v: Any, height: int, width: int) -> tuple[Any, Any]:
        factor = self._ratio(value, u, v, height, width) + 1
        return factor * u, factor * v

    def growth(self, value: Any, u: Any, v: Any, height: int, width: int) -> Any:
        return self._ratio(value, u, v, height, width) * 3 + 1

    def _ratio(self, value: Any, u: Any, v: Any, height: int, width: int) -> Any:
        """Return k r^2.

        Pixels are at halves of whole numbers, so u^2 + v^2 is exact, and so is the whole number 25 (W^2 + H^2): all that rounds are
        operations of ``value``, whose enclosures allow for it.
        """
        square = value * (u * u + v * v)
        if self.fixed is None:
            return square / (25.0 * (width * width + height * height))
        return square / 100.0 / self.fixed / self.fixed
