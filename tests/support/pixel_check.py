"""Check bounds of one image over one box against the oracle at given parameters."""

from __future__ import annotations

import torch

from tests.support.cases import in_view, make_interval, make_transform
from tests.support.exactly import symbols, violations
from tests.support.oracle import transformed
from tiltproof import bound_pixels

METHODS = ("affine", "hull", "fgv")


SIZES = [(1, 1), (1, 2), (1, 7), (2, 1), (6, 1), (2, 2), (3, 3), (4, 6), (7, 5), (9, 9)]


DTYPES = (torch.float32, torch.float64)


def assert_sound(
    letters,
    padding,
    pixels,
    low,
    high,
    thetas,
    methods=METHODS,
    dtypes=DTYPES,
    whole_range=False,
    interpolation="bilinear",
):
    """Assert that the bounds of one image over one box hold at all given parameters."""
    transform = make_transform(
        letters, padding, list(zip(low, high, strict=True)) if whole_range else None, interpolation
    )
    box = {} if whole_range else {"low": list(low), "high": list(high)}
    rules = ["nearest", "nearest, first"] if interpolation == "nearest" else [interpolation]
    for dtype in dtypes:
        image = torch.tensor(pixels, dtype=dtype)
        truths = [
            (theta, transformed(image.double().numpy(), letters, theta, padding, rule))
            for rule in rules
            for theta in thetas
        ]
        for method in methods:
            form = bound_pixels(image[None], transform, method=method, **box)
            assert form.center.shape == (1, *image.shape)
            assert form.center.dtype == form.lower.dtype == dtype
            assert form.slopes.shape == (len(letters) if method == "affine" else 0, 1, *image.shape)
            for theta, truth in truths:
                found = violations(
                    truth,
                    form.center[0],
                    form.slopes[:, 0],
                    form.radius[0],
                    form.lower[0],
                    form.upper[0],
                    symbols(theta, low, high),
                )
                box_text = f"low={list(low)} high={list(high)} theta={[str(t) for t in theta]}"
                text = f"{letters} {padding} {method} {dtype} {box_text}"
                assert not found, f"{len(found)} pixels, {text}: {found[:3]}"


def random_box(letters, kinds, rng):
    """Draw one interval of each kind; small ones stay near 0 if a camera could otherwise face away from a 9 x 9 image."""
    for drawn in (kinds, ["straddling"] * len(kinds)):
        intervals = [make_interval(letter, kind, rng) for letter, kind in zip(letters, drawn, strict=True)]
        low, high = [a for a, _ in intervals], [b for _, b in intervals]
        if in_view(letters, low, high, 9, 9):
            break
    return low, high
