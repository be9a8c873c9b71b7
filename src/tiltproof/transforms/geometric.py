"""Geometric transformations of the plane: rotation, translation, scaling, shearing."""

from __future__ import annotations

from typing import Any

from tiltproof.errors import InputError
from tiltproof.transforms.base import InDegrees, InPercent, InPixels, Spatial
from tiltproof.transforms.interpolation import Matrix


class Rotation(InDegrees, Spatial):
    """Rotate by an angle in degrees: ``Rotation(30)`` is -30 to 30; text ``R(30)``, asymmetric ``R(-10:25)``.

    Convention
        center:   the middle of the image, between the pixels when the size is even
        axes:     u to the right, v upwards
        sign:     positive turns the image counter-clockwise
        inverse:  u' = u cos(a) + v sin(a), v' = v cos(a) - u sin(a)
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_degrees, high_degrees : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "R"
    noun, quantity = "rotation", "rotation"

    def inverse_matrix(self, value: Any) -> Matrix:
        angle = value.deg2rad()
        cosine, sine = angle.cos(), angle.sin()
        return (cosine, sine, 0), (-sine, cosine, 0)


class TranslationU(InPixels, Spatial):
    """Shift horizontally by a (fractional) number of pixels: ``TranslationU(2)``; text ``Tu(2)``.

    Convention
        axes:     u to the right
        sign:     positive moves the image content to the right
        inverse:  u' = u - t, v' = v
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_pixels, high_pixels : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Tu"
    noun, quantity = "horizontal shift", "shift to the right"

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, -value), (0, 1, 0)


class TranslationV(InPixels, Spatial):
    """Shift vertically by a (fractional) number of pixels: ``TranslationV(2)``; text ``Tv(2)``.

    Convention
        axes:     v upwards
        sign:     positive moves the image content up
        inverse:  u' = u, v' = v - t
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_pixels, high_pixels : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Tv"
    noun, quantity = "vertical shift", "shift upwards"

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, 0), (0, 1, -value)


class Scaling(InPercent, Spatial):
    """Scale by a percentage: ``Scaling(5)`` is -5 % to +5 %; text ``Sc(5)``.

    Convention
        center:   the middle of the image
        sign:     positive enlarges the content, by the factor 1 + percent / 100
        inverse:  u' = u / (1 + s), v' = v / (1 + s) with s = percent / 100
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Sc"
    noun, quantity = "scaling", "scaling"

    def check(self, low: float, high: float) -> None:
        if low <= -100:
            raise InputError(
                "scaling must stay above -100 %, where the image has shrunk to a point",
                got=f"{low} to {high} percent",
                why="a factor instead of a percentage: 0.9 to 1.1 is -10 to 10 percent",
                do="choose a lower end above -100",
            )

    def inverse_matrix(self, value: Any) -> Matrix:
        factor = (value / 100 + 1).reciprocal()
        return (factor, 0, 0), (0, factor, 0)


class ScalingU(Scaling):
    """Scale the width by a percentage: ``ScalingU(5)`` is -5 % to +5 %; text ``Scu(5)``.

    Convention
        center:   the middle column stays in place
        axes:     u to the right
        sign:     positive makes the content wider, by the factor 1 + percent / 100
        inverse:  u' = u / (1 + s), v' = v with s = percent / 100
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Scu"
    noun, quantity = "horizontal scaling", "horizontal scaling"

    def inverse_matrix(self, value: Any) -> Matrix:
        return ((value / 100 + 1).reciprocal(), 0, 0), (0, 1, 0)


class ScalingV(Scaling):
    """Scale the height by a percentage: ``ScalingV(5)`` is -5 % to +5 %; text ``Scv(5)``.

    Convention
        center:   the middle row stays in place
        axes:     v upwards
        sign:     positive makes the content taller, by the factor 1 + percent / 100
        inverse:  u' = u, v' = v / (1 + s) with s = percent / 100
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Scv"
    noun, quantity = "vertical scaling", "vertical scaling"

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, 0), (0, (value / 100 + 1).reciprocal(), 0)


class Shearing(InPercent, Spatial):
    """Shear horizontally by a percentage: ``Shearing(2)`` is -2 % to +2 %; text ``Sh(2)``.

    Convention
        center:   the middle row stays in place
        axes:     u to the right, v upwards
        sign:     positive moves the upper half to the right, by percent / 100 pixels for each row above the center
        inverse:  u' = u - (percent / 100) v, v' = v
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Sh"
    noun, quantity = "shearing", "horizontal shearing"

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, -(value / 100), 0), (0, 1, 0)


class ShearingV(InPercent, Spatial):
    """Shear vertically by a percentage: ``ShearingV(2)`` is -2 % to +2 %; text ``Shv(2)``.

    Convention
        center:   the middle column stays in place
        axes:     u to the right, v upwards
        sign:     positive moves the right half up, by percent / 100 pixels for each column right of the center
        inverse:  u' = u, v' = v - (percent / 100) u
        padding:  from the composition (zeros by default)

    Parameters
    ----------
    low_percent, high_percent : float
        Ends of the range; a single number x means -x to x.
    """

    letter = "Shv"
    noun, quantity = "vertical shearing", "vertical shearing"

    def inverse_matrix(self, value: Any) -> Matrix:
        return (1, 0, 0), (-(value / 100), 1, 0)
