"""The kernels of quadratic forms in Triton's interpreter, on the CPU; test_quadratic.py runs it in a child process.

As in interpreted_pixels.py their forms must equal the reference's, or contain them, where the machine allows it.
"""

import sys
import warnings
from fractions import Fraction

import numpy as np
import torch

from tests.kernels.interpreted_pixels import compare, kernel, prepare
from tiltproof import device as registry
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.kernels import pixels as fused
from tiltproof.kernels.matrix_program import trace
from tiltproof.transforms.base import parse

CASES = (
    # middles, and half widths: around 0 and quarter turns all pixels cross lines both ways
    ("R(180)", (1, 5, 6), [0.0, 90.0, -90.0, 37.0, 7.3, 180.0], [0.3, 0.15, 2.0, 1.0, 0.0, 1e-9]),
    ("R(30); padding=border", (2, 4, 5), [0.2, -11.0, 23.0, 0.0, 1e-3], [1.0, 0.4, 6.0, 0.0, 1e-3]),
    ("R(45); padding=reflect", (1, 6, 3), [45.0, -20.0, 0.0, 5.0], [0.2, 3.0, 45.0, 1e-6]),
    ("Sc(40)", (1, 6, 5), [0.0, 20.0, -30.0, 3.0], [1.0, 5.0, 0.3, 1e-12]),
    ("Sh(50); padding=border", (1, 5, 4), [0.0, 50.0, -21.0], [2.0, 1.0, 10.0]),
    ("Tu(4)", (1, 3, 5), [0.0, 1.0, -3.95, 0.5, 2.2], [0.2, 0.0, 0.1, 0.5, 0.05]),
    ("Tv(4); padding=reflect", (1, 5, 1), [0.0, -1.7, 3.0], [0.3, 0.4, 1.0]),
)


def boxes(middle, half, transform) -> tuple[torch.Tensor, torch.Tensor]:
    middle, half = (torch.tensor(values, dtype=torch.float64).unsqueeze(1) for values in (middle, half))
    return tuple((middle + sign * half).clamp(transform.low[0], transform.high[0]) for sign in (-1, 1))


def same() -> None:
    """Boxes wide, narrow and of no width; every third image has pixels of 0 and 1 only, so that kinks often cost the same."""
    generator, hinged, smooth = torch.Generator().manual_seed(2), 0, 0
    for number, (text, shape, middle, half) in enumerate(CASES):
        transform = parse(text)
        image = torch.rand(2, *shape, dtype=torch.float64, generator=generator)
        image = image.round() if number % 3 == 2 else image
        found = compare(image, transform, *boxes(middle, half, transform), torch.float64, quadratic=True)
        assert found.quadratic
        hinged += int((found.stack[3] != 0).sum())
        smooth += int((found.stack[2] != 0).sum())
    assert hinged > 60, "too few kinks to say anything about them"
    assert smooth > 300


def odd() -> None:
    """Non-finite input proves nothing, or what the reference proves; the end requests float32."""
    image, turn = torch.rand(1, 1, 3, 4, dtype=torch.float64), parse("R(5)")
    high = torch.tensor([[torch.nan], [torch.inf], [1e300], [0.25]], dtype=torch.float64)
    compare(image, turn, high.clamp(max=1e300), high, torch.float64, exact=False, quadratic=True)
    for value in (torch.nan, torch.inf):
        broken = image.clone()
        broken[0, 0, 1, 2] = value
        box = torch.full((1, 1), 0.25, dtype=torch.float64)
        assert not kernel(broken, torch.tensor([0]), turn, "affine", box, box, quadratic=True).radius.isfinite().any()
    low = torch.tensor([[-0.5], [2.0]], dtype=torch.float64)
    arguments = image, torch.tensor([0, 0]), turn, "affine", low, low + 0.4
    wanted = kernel(*arguments, quadratic=True).to(torch.float32)
    found = kernel(*arguments, quadratic=True, dtype=torch.float32)
    assert found.quadratic
    assert torch.equal(found.stack, wanted.stack)
    assert torch.equal(found.radius, wanted.radius)


def sound() -> None:
    """Against the exact image: one e, and one value of the hinge, for all pixels."""
    from tests.support.cases import make_transform
    from tests.support.oracle import transformed
    from tests.support.quadratic_check import POINTS, REACH, assert_joint

    rng, hinges = np.random.default_rng(5), 0
    registry.INTERPRETED.add("pixels:spatial")
    for trial, letter in enumerate([*REACH, "R", "R", "R", *REACH]):
        padding = ("zeros", "border", "reflect")[trial % 3]
        transform = make_transform([letter], padding, None)
        image = rng.random((1, *rng.integers(2, 6, 2)))
        half = REACH[letter] * 10 ** (rng.uniform(-2.3, -1.0) if trial % 4 else rng.uniform(-7, -3))
        center = (
            rng.uniform(-0.9, 0.9) * REACH[letter] if trial % 3 else float(rng.integers(-1, 2)) * 90 * (letter == "R")
        )
        low, high = center - half, center + half
        box = [torch.tensor([[end]], dtype=torch.float64) for end in (low, high)]
        form = kernel(torch.tensor(image)[None], torch.tensor([0]), transform, "affine", *box, quadratic=True)
        middle = (Fraction(low) + Fraction(high)) / 2
        for e in POINTS:
            truth = transformed(image, [letter], [middle + e * (Fraction(high) - middle)], padding)
            hinges += assert_joint(form, truth.fractions(), truth.error, e)
    assert hinges


def damaged() -> None:
    """The kernels' self-check notices results that are wrong in one respect."""
    transform, run, results = parse("R(20)"), [0], []
    entries, launch = trace(transform, run, quadratic=True), fused._launch
    fused.is_batch_invariant = lambda *_: True  # interpreted_pixels.py tests it

    def verdict(harm) -> bool:
        def harmed(*arguments):
            results.extend([] if results else [launch(*arguments)])
            form = AffineForm(results[0].stack.clone(), results[0].radius.clone(), quadratic=True)
            harm(form)
            return form

        fused._launch = harmed
        image = torch.zeros(2, 1, 7, 9, dtype=torch.float64)
        way = fused._way(entries, torch.float64, 7, 9)
        return fused._agrees(image, transform, run, entries, torch.float64, way)

    def move_hinges(form) -> None:
        """Give every third pixel a separate hinge: each may be right alone, but not all together."""
        form.stack[3].flatten(1)[:, ::3] *= -1

    harms = {
        "hinges": move_hinges,
        "no hinge": lambda form: form.stack[3].zero_(),
        "second order": lambda form: form.stack[2].neg_(),
        "no second order": lambda form: form.stack[2].zero_(),
        "no remainder": lambda form: form.radius.clamp_(max=1e-13),
        "roundings of cells": lambda form: form.radius.sub_(100 * 2.0**-53),
        "slopes": lambda form: form.stack[1].mul_(1 + 1e-9),
        "single points": lambda form: form.center[-1].add_(1e-9),
    }
    assert verdict(lambda _: None)
    for name, harm in harms.items():
        assert not verdict(harm), name


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    torch.set_num_threads(1)
    prepare()
    fused.spatial.check = lambda *_: True  # `damaged` tests it
    globals()[sys.argv[1]]()
    sys.stdout.write("ok")
