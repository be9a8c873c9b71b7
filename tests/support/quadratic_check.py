"""Check quadratic forms against exact images: one e and one hinge value h(e) must explain every pixel at once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tests.support.planted import fractions
from tiltproof.enclosures.affine_form import AffineForm

POINTS = [Fraction(-1), Fraction(-3, 4), Fraction(-1, 3), Fraction(0), Fraction(1, 5), Fraction(5, 8), Fraction(1)]
REACH = {"R": 180.0, "Sc": 40.0, "Sh": 50.0, "Tu": 4.0, "Tv": 4.0}


def assert_joint(form: AffineForm, truth: np.ndarray, error: Fraction, e: Fraction) -> bool:
    """Check all pixels at once; return whether the hinge took part."""
    c, s, b, *k = (fractions(plane[0].numpy()) for plane in form.stack)
    hinge = k[0] if k else c * 0
    rest = truth - c - s * e - b * (2 * e * e - 1)
    low, high = Fraction(-1), Fraction(1)
    for index, distance in np.ndenumerate(rest):
        r, k = Fraction(float(form.radius[0][index])) + error, hinge[index]
        assert abs(distance) <= r + abs(k), (index, float(distance), float(r))
        if k:
            ends = sorted([(distance - r) / k, (distance + r) / k])
            low, high = max(low, ends[0]), min(high, ends[1])
    assert low <= high, "no value of the hinge fits all pixels"
    return bool(hinge.any())
