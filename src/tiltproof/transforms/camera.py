"""Camera motions: yaw, pitch and roll about the camera's center, and moves of the camera over a plane.

The camera's axes are X to the right, Y upwards and Z forwards; pixel (u, v) shows what lies along the ray (u, v, f), with
the focal length f in pixels. A rotated camera sees along R (u, v, f), and the source image shows that direction where its
ray meets the plane Z = f. This is a homography of the image, for any scene.

The focal length is in pixels because that is what a calibration gives (the entry f of the matrix K); a lens with the
field of view a across an image W pixels wide has f = W / (2 tan(a / 2)). Consecutive parts turn the camera about its own,
already rotated axes: ``"Yaw(5@300), Pitch(3@300), Roll(2)"`` is the usual yaw, then pitch, then roll, and the image is
interpolated once.

A camera that moves sees each point of the scene elsewhere, depending on how far it is. For a scene that is one plane this is
a homography again. The plane is n . P = 1 in the axes of the camera before the move, so it lies at the distance 1 / |n|, and
moves are measured in the unit of length in which that holds: with |n| = 1 it is the plane's distance. A camera at t sees along
the ray q the point t + s q with s = (1 - n . t) / (n . q), which the source image shows in the direction of
(1 - n . t) q + (n . q) t. So the source's ray is H q with H = I + t n^T / (1 - n . t), the inverse of I - t n^T.
``"Tx(0.1@300), Tz(0.2@300), Yaw(2@300)"`` moves the camera, then turns it: its inverse map is K (I + t n^T / (1 - n . t)) R K^-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tiltproof.errors import InputError
from tiltproof.transforms.base import Spatial, number_text
from tiltproof.transforms.geometric import Rotation
from tiltproof.transforms.interpolation import Matrix, times

MIN_FOCAL, MAX_FOCAL = 0.01, 1e6
"""Accepted focal lengths in pixels."""
MAX_DEGREES = 85.0
"""Largest yaw or pitch."""
GROUND = (0.0, -1.0, 0.0)
"""The normal of the ground below a camera whose line of sight is level; the unit of length is the camera's height."""
MAX_NORMAL = 1e3
LEAST_DISTANCE = Fraction(1, 16)
"""A camera keeps at least this share of its distance from the plane."""


class Camera(Spatial):
    """A motion of the camera that depends on the focal length; here a rotation about an axis other than the line of sight.

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


class CameraMove(Camera):
    """A move of the camera along one of its axes, over a plane that fills the image; `MoveX`, `MoveY` and `MoveZ` say along which.

    Convention
        axes:     u to the right, v upwards, origin at the image's center, on the line of sight
        plane:    n . P = 1 for points P = (right, up, forward) from the camera; n = (0, -1, 0) by default: the ground at the
                  distance 1 below a camera whose line of sight is level. Another one follows a second @: ``Tx(0.1@300@0:0:1)``
        unit:     the unit of length in which n . P = 1: the plane's distance if n has length 1
        scene:    pixels whose rays do not meet the plane, as above the horizon, follow the same formula
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_lengths, high_lengths : float
        Ends of the range; a single number x means -x to x.
    focal_pixels : float
        The camera's focal length in pixels, 0.01 to 1e6.
    normal : sequence of three float
        The vector n of the plane, in the camera's axes (right, up, forward).

    Raises
    ------
    InputError
        If the focal length is missing, the normal is not one, or the camera would reach the plane.
    """

    unit = "units of length"
    has_plane = True
    axis: int

    def __init__(
        self,
        low_lengths: float,
        high_lengths: float | None = None,
        focal_pixels: float | None = None,
        normal: Sequence[float] = GROUND,
    ) -> None:
        self.normal = _normal(type(self).__name__, normal)
        super().__init__(low_lengths, high_lengths, focal_pixels)

    @property
    def constants(self) -> tuple[Any, ...]:
        return self.fixed, self.normal

    def constants_text(self) -> str:
        plane = "" if self.normal == GROUND else "@" + ":".join(map(number_text, self.normal))
        return super().constants_text() + plane

    def check(self, low: float, high: float) -> None:
        left = min(1 - Fraction(self.normal[self.axis]) * Fraction(end) for end in (low, high))
        if left < LEAST_DISTANCE:
            raise InputError(
                f"{type(self).__name__} must leave the camera in front of the plane, at 1/16 of its distance or more",
                got=f"{number_text(low)} to {number_text(high)}, which leaves {float(left):.3g} of the distance",
                why="the unit of length is the one of the plane n . P = 1: with a normal of length 1 the plane's distance",
                do="choose a smaller range",
            )

    def inverse_matrix(self, value: Any) -> Matrix:
        f, k, across = self.focal_pixels, self.axis, self.normal[self.axis]
        # t / (1 - n_k t), and the entry 1 + n_k t / (1 - n_k t) of the diagonal; n_k = 0 costs nothing
        nearer = 1 if across == 0 else (value * -across + 1).reciprocal()
        step = times(value, nearer)
        x, y, z = (step * entry if entry else 0 for entry in self.normal)
        if k == 2:  # rays are (u, v, f): x' = u, y' = v, f w = f + step (n . ray)
            return (1, 0, 0), (0, 1, 0), (_over(x, f), _over(y, f), nearer)
        z = z * f if self.normal[2] else 0
        return ((nearer, y, z), (0, 1, 0)) if k == 0 else ((1, 0, 0), (x, nearer, z))


def _over(entry: Any, f: float) -> Any:
    return 0 if isinstance(entry, int) else entry / f


class MoveX(CameraMove):
    """Move the camera sideways over a plane: ``MoveX(0.1, focal_pixels=300)`` is -0.1 to 0.1; text ``Tx(0.1@300)``.

    Convention
        sign:     positive moves the camera to the right, so the content moves to the left
        inverse:  u' = u + c (n_x u + n_y v + n_z f), v' = v with c = t / (1 - n_x t), where 1 - n_x t must be at least 1/16
        others:   axes, plane, unit, scene and padding as in `CameraMove`, which has the same parameters
    """

    letter, axis = "Tx", 0
    noun, quantity = "sideways move of the camera", "camera to the right"


class MoveY(CameraMove):
    """Move the camera up and down over a plane: ``MoveY(0.1, focal_pixels=300)`` is -0.1 to 0.1; text ``Ty(0.1@300)``.

    Convention
        sign:     positive moves the camera upwards, so the content moves down
        inverse:  u' = u, v' = v + c (n_x u + n_y v + n_z f) with c = t / (1 - n_y t), where 1 - n_y t must be at least 1/16
        others:   axes, plane, unit, scene and padding as in `CameraMove`, which has the same parameters
    """

    letter, axis = "Ty", 1
    noun, quantity = "vertical move of the camera", "camera upwards"


class MoveZ(CameraMove):
    """Move the camera forwards over a plane: ``MoveZ(0.1, focal_pixels=300)`` is -0.1 to 0.1; text ``Tz(0.1@300)``.

    Convention
        sign:     positive moves the camera forwards, so what lies on the plane grows
        inverse:  u' = u / w, v' = v / w with w = 1 + c (n_x u / f + n_y v / f + n_z) and c = t / (1 - n_z t), where 1 - n_z t
                  must be at least 1/16, and w above 1/16 for every pixel; a range for which it does not is refused
        others:   axes, plane, unit, scene and padding as in `CameraMove`, which has the same parameters
    """

    letter, axis = "Tz", 2
    noun, quantity = "forward move of the camera", "camera forwards"


def _normal(name: str, normal: Sequence[float]) -> tuple[float, float, float]:
    try:
        x, y, z = (float(entry) + 0.0 for entry in normal)
    except (TypeError, ValueError):
        raise InputError(
            f"{name}'s plane is given by three numbers: right, up, forward",
            got=repr(normal),
            do="use normal=(0, -1, 0) for the ground below a camera whose line of sight is level",
        ) from None
    if not all(abs(entry) <= MAX_NORMAL for entry in (x, y, z)) or not (x or y or z):
        raise InputError(
            f"{name}'s plane needs a normal of entries up to {MAX_NORMAL:g}, not all 0",
            got=":".join(map(number_text, (x, y, z))),
            do="use 0:-1:0 for the ground below a camera whose line of sight is level, 0:0:1 for a wall in front of it",
        )
    return x, y, z
