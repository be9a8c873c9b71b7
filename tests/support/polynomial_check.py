"""Check polynomial forms of pixels against exact images: random images, transformations, and boxes of one parameter."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from tests.support.cases import IMAGE_KINDS, PADDINGS, PLACES, SPATIAL, WIDTHS, in_view, make_image, make_transform
from tests.support.exactly import violations
from tests.support.oracle import Exact, transformed
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.pixels.polynomial import parameters, polynomial_form

STAGES = ("moves", "moves", "moves", "values", "both")
SIDES = ("inside", "from a grid line", "to a grid line", "around a grid line")


@dataclass
class Batch:
    """One transformation, and pairs of images and boxes."""

    letters: list[str]
    padding: str
    images: np.ndarray
    low: np.ndarray
    high: np.ndarray
    degree: int
    symbols: int

    def form(self) -> AffineForm:
        images, low, high = (torch.tensor(array) for array in (self.images, self.low, self.high))
        transform = make_transform(self.letters, self.padding)
        return polynomial_form(images, torch.arange(len(images)), transform, low, high, self.degree, self.symbols)


def random_batch(rng: np.random.Generator, pairs: int = 8) -> Batch:
    """Draw a batch: widths from a millionth to half a degree, or as much of another parameter, and now and then far
    more."""
    stage = STAGES[rng.integers(len(STAGES))]
    moves = [SPATIAL[rng.integers(len(SPATIAL))] for _ in range(1 + (rng.random() < 0.4) + (rng.random() < 0.2))]
    values = [("C", "B")[rng.integers(2)] for _ in range(rng.integers(1, 3))]
    letters = {"moves": moves, "values": values, "both": moves + values}[stage]
    padding = PADDINGS[rng.integers(3)]
    channels, height, width = int(rng.choice([1, 3])), *(int(n) for n in rng.integers(1, 8, 2))
    kinds = rng.choice(IMAGE_KINDS, pairs)
    images = np.stack([make_image(kind, channels, height, width, rng) for kind in kinds])
    low, high = np.zeros((pairs, len(letters))), np.zeros((pairs, len(letters)))
    for p in range(pairs):
        while True:
            for k, letter in enumerate(letters):
                place, step, _ = PLACES[letter]
                low[p, k] = high[p, k] = (
                    rng.uniform(-place, place) if rng.random() < 0.6 else step * rng.integers(-1, 2)
                )
                if letter[:2] == "Sc":
                    low[p, k] = high[p, k] = max(low[p, k], -40.0)
            k = rng.integers(len(letters))
            medium = WIDTHS[letters[k]][0] / 6
            size = medium * 10 ** (rng.uniform(-6, 0) if rng.random() < 0.9 else rng.uniform(0, 0.8))
            place, step, _ = PLACES[letters[k]]
            middle, side = low[p, k], SIDES[rng.integers(4)]
            if side != "inside":
                middle = step * rng.integers(-1 if letters[k][:2] != "Sc" else 0, 2) / rng.integers(1, 3)
            shares = {"from a grid line": (0, 1), "to a grid line": (1, 0)}.get(side, (rng.random(), rng.random()))
            low[p, k], high[p, k] = middle - size * shares[0], middle + size * shares[1]
            if in_view(letters, low[p], high[p], height, width):
                break
    return Batch(letters, padding, images, low, high, int(rng.choice([2, 3, 4, 4])), int(rng.choice([0, 0, 3, 64])))


def chebyshev(e: Fraction, degree: int) -> list[Fraction]:
    """T_1(e), ..., T_degree(e)."""
    values = [Fraction(1), e]
    while len(values) <= degree:
        values.append(2 * e * values[-1] - values[-2])
    return values[1 : degree + 1]


def check_batch(batch: Batch, rng: np.random.Generator, points: int = 3) -> tuple[int, int]:
    """Compare a batch with exact images at both ends and inside of each box; return how many comparisons there were,
    and how many kinks."""
    form, degree = batch.form(), batch.degree
    low, high = torch.tensor(batch.low), torch.tensor(batch.high)
    values = parameters(low, high, degree)
    assert form.quadratic
    assert form.symbols <= degree + batch.symbols
    lower, upper = form.lower, form.upper
    cases = kinks = 0
    for p in range(len(low)):
        columns = form.stack[1 + degree :, p]
        columns = columns[columns.flatten(1).abs().sum(1) > 0]
        kinks += len(columns)
        sizes = columns.abs().sum(0) * (1 + 2.0**-40)
        shares = [Fraction(0), Fraction(1), *(Fraction(float(x)) for x in rng.random(points - 2))]
        for share in shares:
            ends = [(Fraction(a), Fraction(b)) for a, b in zip(batch.low[p], batch.high[p], strict=True)]
            theta = [a + (b - a) * share for a, b in ends]
            varying = [k for k, (a, b) in enumerate(ends) if a < b]
            e = Fraction(0)
            for k in varying:
                e = (theta[k] - Fraction(values[k].stack[0, p].item())) / Fraction(values[k].stack[1, p].item())
            assert abs(e) <= 1
            truth = transformed(batch.images[p], batch.letters, theta, batch.padding)
            found = violations(
                truth,
                form.stack[0, p],
                form.stack[1 : 1 + degree, p],
                form.radius[p] + sizes,
                lower[p],
                upper[p],
                chebyshev(e, degree),
            )
            assert not found, (batch.letters, batch.padding, batch.low[p], batch.high[p], degree, found[:3])
            if len(columns):
                assert_joint(truth, form.stack[: 1 + degree, p], columns, form.radius[p], e)
            cases += 1
    return cases, kinks


def assert_joint(truth: Exact, stack: torch.Tensor, columns: torch.Tensor, radius: torch.Tensor, e: Fraction) -> None:
    """One value of each column must explain all pixels; found by least squares, which is exact to a millionth of the
    columns."""
    factors = np.array([1.0, *(float(t) for t in chebyshev(e, len(stack) - 1))])
    rest = truth.floats() - np.tensordot(factors, stack.numpy(), 1)
    matrix = columns.flatten(1).T.numpy()
    sizes = np.abs(matrix).max(0)
    values = np.linalg.lstsq(matrix / sizes, rest.ravel(), rcond=1e-9)[0]
    left = np.abs(rest.ravel() - matrix / sizes @ values)
    assert (left <= np.linalg.norm(radius.numpy()) * 2 + 1e-7 * sizes.max() + 1e-13).all(), left.max()
