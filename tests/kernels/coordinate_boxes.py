"""Source coordinates of pixels, for tests of coordinate boxes."""

import torch

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import UNIT
from tiltproof.pixels.bilinear import too_wide
from tiltproof.pixels.coordinates import coordinates, symbols
from tiltproof.transforms import Spatial


def coordinates_of(transform, low, high, height, width):
    """Return those of the transform's first spatial stage."""
    run = next(run for kind, run in transform.stages() if kind is Spatial)
    return coordinates(transform, run, symbols(low, high), low, high, height, width)


def padded(form, planes):
    """Add symbols with zero coefficients: the kernels always have a hinge."""
    none = form.stack.new_zeros(planes - len(form.stack), *form.shape)
    return AffineForm(torch.cat([form.stack, none]), form.radius)


def agree(found, wanted, place, padding):
    """Return where two forms of pixels in [0, 1] differ by roundings only, for which both have allowances (`triton/pixels.py`).

    Where the reference dropped slopes because of other pixels' boxes, there is nothing to compare; where a box has too many points
    for the reference to examine (`pixels.bilinear.wide_hull`), the kernel may be tighter.
    """
    allowance = 64 * UNIT[found.stack.dtype]
    mine, theirs = (torch.cat([form.stack, form.radius[None]]) for form in (found, wanted))
    near = torch.isclose(mine, theirs, rtol=allowance, atol=allowance, equal_nan=True).all(0)
    near |= (wanted.slopes == 0).all(0) & (found.slopes != 0).any(0)
    wide = too_wide(place.columns, place.rows, found.shape[-2], found.shape[-1], padding)
    if wide is not None:
        inside = (found.center - wanted.center).abs() + found.deviation() <= wanted.radius + allowance
        near |= wide.unsqueeze(1) & inside
    return near
