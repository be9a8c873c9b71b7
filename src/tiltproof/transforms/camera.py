"""Camera rotations: yaw, pitch and roll about the camera's center.

The camera's axes are X to the right, Y upwards and Z forwards; pixel (u, v) shows what lies along the ray (u, v, f), with
the focal length f in pixels. A rotated camera sees along R (u, v, f), and the source image shows that direction where its
ray meets the plane Z = f. This is a homography of the image, for any scene.

The focal length is in pixels because that is what a calibration gives (the entry f of the matrix K); a lens with the
field of view a across an image W pixels wide has f = W / (2 tan(a / 2)). Consecutive parts turn the camera about its own,
already rotated axes: ``"Yaw(5@300), Pitch(3@300), Roll(2)"`` is the usual yaw, then pitch, then roll, and the image is
interpolated once.
"""

from __future__ import annotations

from typing import Any

from tiltproof.errors import InputError
from tiltproof.transforms.base import Spatial, number_text
from tiltproof.transforms.geometric import Rotation
from tiltproof.transforms.interpolation import Matrix

MIN_FOCAL, MAX_FOCAL = 0.01, 1e6
"""Accepted focal lengths in pixels."""
MAX_DEGREES = 85.0
"""Largest yaw or pitch."""


class Camera(Spatial):
    """A camera rotation about an axis other than the line of sight; it depends on the focal length.

    Parameters
    ----------
    low_degrees, high_degrees : float
        Ends of the range; a single number x means -x to x.
    focal_pixels : float
        The camera's focal length in pixels, 0.01 to 1e6.

    Raises
    ------
    InputError
        If the focal length is missing or out of its range, or an angle exceeds 85 degrees.
    """

    unit = "degrees"
    setting = ("focal length", "pixels")

    def __init__(
        self, low_degrees: float, high_degrees: float | None = None, focal_pixels: float | None = None
    ) -> None:
        name = type(self).__name__
        if focal_pixels is None:
            raise InputError(
                f"{name} needs the camera's focal length in pixels",
                got="none",
                do=f"write {name}(5@300), in Python {name}(5, focal_pixels=300); an image 300 pixels wide then shows 53 degrees",
            )
        try:
            focal = float(focal_pixels)
        except (TypeError, ValueError):
            raise InputError(f"{name}'s focal length is a number of pixels", got=repr(focal_pixels)) from None
        if not MIN_FOCAL <= focal <= MAX_FOCAL:
            raise InputError(
                f"{name}'s focal length must lie between {MIN_FOCAL:g} and {MAX_FOCAL:g} pixels",
                got=number_text(focal),
                why="millimeters or meters instead of pixels",
                do="divide the focal length by the size of a pixel on the sensor; it is often near the image's width",
            )
        self.fixed = focal
        super().__init__(low_degrees, high_degrees)

    @property
    def focal_pixels(self) -> float:
        """The focal length in pixels."""
        assert self.fixed is not None
        return self.fixed

    def check(self, low: float, high: float) -> None:
        if not (low >= -MAX_DEGREES and high <= MAX_DEGREES):
            raise InputError(
                f"{type(self).__name__} must stay within {MAX_DEGREES:g} degrees: beyond, the image shows nothing of the source",
                got=f"{number_text(low)} to {number_text(high)} degrees",
                do="choose a smaller range; a rotation about the line of sight is Roll or R",
            )


class Yaw(Camera):
    """Turn the camera sideways by an angle in degrees: ``Yaw(5, focal_pixels=300)`` is -5 to 5; text ``Yaw(5@300)``.

    Convention
        axes:     u to the right, v upwards, origin at the image's center, on the line of sight
        sign:     positive turns the camera to the right, so the content moves to the left
        inverse:  u' = (u cos(a) + f sin(a)) / w, v' = v / w with w = cos(a) - (u / f) sin(a), which must stay above 1/16
                  for every pixel; a range for which it does not is refused
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_degrees, high_degrees : float
        Ends of the range; a single number x means -x to x.
    focal_pixels : float
        The camera's focal length in pixels, 0.01 to 1e6.
    """

    letter = "Yaw"
    noun, quantity = "camera yaw", "camera yaw"

    def inverse_matrix(self, value: Any) -> Matrix:
        cosine, sine, f = *_cos_sin(value), self.focal_pixels
        return (cosine, 0, sine * f), (0, 1, 0), (-(sine / f), 0, cosine)


class Pitch(Camera):
    """Turn the camera up and down by an angle in degrees: ``Pitch(5, focal_pixels=300)``; text ``Pitch(5@300)``.

    Convention
        axes:     u to the right, v upwards, origin at the image's center, on the line of sight
        sign:     positive turns the camera upwards, so the content moves down
        inverse:  u' = u / w, v' = (v cos(a) + f sin(a)) / w with w = cos(a) - (v / f) sin(a), which must stay above 1/16
                  for every pixel; a range for which it does not is refused
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_degrees, high_degrees : float
        Ends of the range; a single number x means -x to x.
    focal_pixels : float
        The camera's focal length in pixels, 0.01 to 1e6.
    """

    letter = "Pitch"
    noun, quantity = "camera pitch", "camera pitch"

    def inverse_matrix(self, value: Any) -> Matrix:
        cosine, sine, f = *_cos_sin(value), self.focal_pixels
        return (1, 0, 0), (0, cosine, sine * f), (0, -(sine / f), cosine)


class Roll(Rotation):
    """Turn the camera about its line of sight by an angle in degrees: ``Roll(5)`` is -5 to 5; text ``Roll(5)``.

    Convention
        center:   the middle of the image; independent of the focal length
        axes:     u to the right, v upwards
        sign:     positive turns the camera clockwise, so the content turns counter-clockwise, as with ``R``
        inverse:  u' = u cos(a) + v sin(a), v' = v cos(a) - u sin(a)
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_degrees, high_degrees : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Roll"
    noun, quantity = "camera roll", "camera roll"


def _cos_sin(degrees: Any) -> tuple[Any, Any]:
    angle = degrees.deg2rad()
    return angle.cos(), angle.sin()
