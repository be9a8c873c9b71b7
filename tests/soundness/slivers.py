"""Where to plant slivers: deep inside the range, at its very ends and corners, and where boxes meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tests.support.cases import letters_of
from tests.support.planted import clean_margin, margin_at, plant
from tiltproof import parse
from tiltproof.transforms import Transform

ONE = (
    *("Tu(-0.1:0.7)", "Tv(-1:0.3)", "R(-10:25)", "Sc(-20:30)", "Sh(-10:40)", "C(-20:35)", "B(-0.05:0.2)"),
    "R(-5:20); padding=border",
)
TWO = (
    "Tu(-0.1:0.7), Tv(-0.2:0.5)",
    "R(-3:10), Sh(-2:10)",
    "C(-5:10), R(-2:10)",
    "Sc(-3:5), B(-0.02:0.1); padding=reflect",
)
THREE = ("Sc(-2:5), R(-1:5), B(-0.01:0.05)", "Tu(-0.1:0.5), Sh(-3:10), C(-2:10)")
GEOMETRIC = ("Scu(-20:30)", "Shv(-10:40)", "Yaw(-5:12@6)", "Yaw(-3:8@6), Pitch(-2:6@6)", "Scv(-3:5), Roll(-1:5)")
WIDE, NARROW = (1e-2, 1e-4, 1e-6), (1e-2, 1e-5)


@dataclass(frozen=True)
class Sliver:
    text: str
    place: str
    share: float  # of the range, along each parameter
    number: int

    @property
    def splits(self) -> int | tuple[int, ...] | None:
        """Return uniform splits whose edges meet in the sliver; None leaves the choice to the search."""
        parts = len(parse(self.text).parts)
        return {"between sevenths": (7,) * parts, "between eighths": (8,) * parts}.get(self.place)

    def theta(self, transform: Transform, rng: np.random.Generator) -> list[float]:
        low, high = transform.low, transform.high
        axes = len(low)
        if self.place == "inside":
            t = rng.random(axes)
        elif self.place in ("low", "high"):
            t = np.full(axes, float(self.place == "high"))
        elif self.place == "corner":
            t = np.array([(self.number >> k) & 1 for k in range(axes)], dtype=float)
        elif self.place == "edge":  # at the end of one parameter, inside the others
            t = rng.random(axes)
            t[self.number % axes] = self.number % 2
        elif self.place == "dyadic":
            pieces = 2.0 ** rng.integers(1, 12, axes)
            t = rng.integers(1, pieces) / pieces
        else:
            pieces = 7 if "sevenths" in self.place else 8
            t = rng.integers(1, pieces, axes) / pieces
        return [min(max(float(a + (b - a) * x), a), b) for a, b, x in zip(low, high, t, strict=True)]

    def build(self) -> tuple[Transform, nn.Sequential, torch.Tensor]:
        """Build a network that is right at rest and wrong, exactly, in the sliver."""
        transform = parse(self.text)
        letters = letters_of(transform)
        dtype = torch.float32 if self.share > 1e-3 else torch.float64  # float32 cannot resolve less
        for attempt in range(50):
            rng = np.random.default_rng([self.number, attempt])
            theta = self.theta(transform, rng)
            model, image = plant(
                letters, transform.low, transform.high, theta,
                share=self.share, padding=transform.padding, seed=1000 * self.number + attempt, size=(4, 4), dtype=dtype,
            )  # fmt: skip
            if clean_margin(model, image) > 0 and margin_at(model, image, letters, theta, transform.padding) < 0:
                return transform, model, image
        raise AssertionError(f"could not plant {self}")


def all_slivers() -> Iterator[Sliver]:
    count = itertools.count()
    one = itertools.product(ONE, ("inside", "low", "high", "dyadic", "between sevenths", "between eighths"), WIDE)
    two = itertools.product(TWO, ("inside", "corner", "edge", "dyadic", "between sevenths"), WIDE)
    three = itertools.product(THREE, ("inside", "corner", "edge", "dyadic"), NARROW)
    geometric = itertools.product(GEOMETRIC, ("inside", "corner", "dyadic", "between eighths"), NARROW)
    for text, place, share in itertools.chain(one, two, three, geometric):
        yield Sliver(text, place, share, next(count))
