"""A campaign of random cases (image, transformation, box, padding) against the exact oracle.

    python -m tests.soundness.campaign --cases 100000 --seed 0 --workers 2

Images, transformations and boxes are adversarial. A batch has one transformation, padding, size and dtype and many images,
each with its own box; batch n of seed s is deterministic, so `--seed s --batch n` repeats a failure. The truth is exact
(`oracle.py`), with no allowance for rounding. A case counts if at least three different parameters of its box were compared
with the bounds of all methods (the paper's where it is defined); a box that is a single point is compared, not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import torch

from tests.soundness.quick_check import arrays, outside
from tests.support.cases import (
    COLORED,
    IMAGE_KINDS,
    KINDS,
    LENSES,
    LIMITS,
    PADDINGS,
    PHOTOMETRIC,
    PIXELWISE,
    PLACES,
    SPATIAL,
    in_view,
    make_image,
    make_interval,
    make_transform,
)
from tests.support.exactly import symbols
from tests.support.oracle import transformed
from tiltproof import bound_pixels

METHODS = ("affine", "hull", "fgv")
CASES_A_BATCH = 25
POINTS, TRIES = 4, 8
LETTERS = (*SPATIAL, "Roll", *LENSES, *PIXELWISE)
NARROW = ("one ulp", "1e-12", "1e-9", "tiny", "around a grid line", "degenerate")
SMALL = (*NARROW, "medium", "straddling", "from a grid line")
LARGE = ("medium", "huge", "whole range", "on grid lines", "outside", "straddling")
FAR = {"Tu": 12.0, "Tv": -12.0, "Sc": -70.0, "Scu": -70.0, "Scv": -70.0}
"""Where a box "outside" begins for paddings other than zeros: Algorithm 1 pads the image that far."""


@dataclass
class Tally:
    cases: int = 0
    points: int = 0
    comparisons: int = 0
    single: int = 0  # single-point boxes: compared, not counted as cases
    violation: str = ""

    def add(self, other: Tally) -> None:
        self.cases, self.points = self.cases + other.cases, self.points + other.points
        self.comparisons, self.single = self.comparisons + other.comparisons, self.single + other.single
        self.violation = self.violation or other.violation

    def __str__(self) -> str:
        found = 1 if self.violation else 0
        return f"{self.cases:,} cases, {self.points:,} parameter points, {self.comparisons:,} pixel comparisons, {found} violations"


def interval(letter: str, kind: str, padding: str, rng: np.random.Generator) -> tuple[float, float]:
    lowest, highest = LIMITS[letter]
    if padding != "zeros" and letter in FAR:
        lowest, highest = max(lowest, -20), min(highest, 100)
        if kind == "outside":
            return FAR[letter], FAR[letter] + float(rng.random())
    if kind in KINDS:
        low, high = make_interval(letter, kind, rng)
        return max(low, lowest), max(min(high, highest), max(low, lowest))
    grid = PLACES[letter][1] * float(rng.integers(-1 if letter[:2] != "Sc" and lowest else 0, 3))
    start = grid if rng.random() < 0.4 else make_interval(letter, "tiny", rng)[0]
    if kind == "one ulp":
        return start, float(np.nextafter(start, np.inf))
    if kind in ("1e-12", "1e-9"):
        return start, start + float(kind)
    if kind == "around a grid line":
        below, above = (10.0 ** -float(rng.integers(1, 16)) for _ in range(2))
        return max(grid - below, lowest), grid + above
    assert kind == "whole range"
    return float(lowest), float(highest)


def parameters(low: list[float], high: list[float], rng: np.random.Generator) -> list[tuple[Fraction, ...]]:
    """Draw two opposite corners, a point inside, and one with grid values or box ends among its entries."""
    ends = [(Fraction(a), Fraction(b)) for a, b in zip(low, high, strict=True)]
    flips = rng.integers(0, 2, len(ends))
    inside = tuple(a + (b - a) * int(rng.integers(1, 4096)) / 4096 for a, b in ends)
    special = tuple(
        (a, b, min(max(Fraction(round(float(x))), a), b), x, (a + b) / 2)[rng.integers(5)]
        for (a, b), x in zip(ends, inside, strict=True)
    )
    chosen = [
        tuple(end[k] for end, k in zip(ends, flips, strict=True)),
        tuple(end[1 - k] for end, k in zip(ends, flips, strict=True)),
        inside,
        special,
        tuple((a + b) / 2 for a, b in ends),
    ]
    return list(dict.fromkeys(chosen))[:POINTS]


def check_batch(number: int, seed: int, size: int = CASES_A_BATCH) -> Tally:
    """Draw batch ``number`` of ``seed`` and compare all its bounds with the truth."""
    torch.set_num_threads(1)
    rng = np.random.default_rng([seed, number])
    letters = [str(letter) for letter in rng.choice(LETTERS, rng.choice([1, 1, 2, 2, 3, 4, 5]))]
    if number % 3 == 2:  # every third batch has at least one photometric transformation
        letters[rng.integers(len(letters))] = str(rng.choice(PHOTOMETRIC))
        letters = [str(rng.choice(PHOTOMETRIC)) if rng.random() < 0.3 else letter for letter in letters]
    padding, dtype = str(rng.choice(PADDINGS)), (torch.float32, torch.float64)[rng.integers(2)]
    height, width = (int(side) for side in rng.integers(1, 8, 2))
    channels = 3 if rng.random() < 0.2 or {*letters} & {*COLORED} else 1
    # a box over many cells changes the code path of its whole batch, so small boxes also get batches without large ones
    kinds = (NARROW, SMALL, LARGE, SMALL + LARGE)[rng.choice(4, p=[0.35, 0.35, 0.2, 0.1])]
    shape = f"{','.join(letters)} {padding} {channels}x{height}x{width} {dtype}"
    lows, highs, drawn = [], [], []
    for _ in range(size):
        for attempt in range(TRIES):  # the last one is small enough for any camera
            same = str(rng.choice(kinds)) if attempt < TRIES - 1 else "straddling"
            mixed = 0.7 if attempt < TRIES - 1 else 1.0
            box = [interval(x, same if rng.random() < mixed else str(rng.choice(kinds)), padding, rng) for x in letters]
            if in_view(letters, [a for a, _ in box], [b for _, b in box], height, width):
                break
        lows.append([a for a, _ in box])
        highs.append([b for _, b in box])
        drawn.append(make_image(str(rng.choice(IMAGE_KINDS)), channels, height, width, rng))
    images = torch.tensor(np.stack(drawn), dtype=dtype)
    low, high = torch.tensor(lows, dtype=torch.float64), torch.tensor(highs, dtype=torch.float64)
    tally, truths, rows, e = Tally(), [], [], []
    for row in range(size):
        thetas = parameters(lows[row], highs[row], rng)
        exact = images[row].double().numpy()
        truths += [transformed(exact, letters, theta, padding) for theta in thetas]
        e += [symbols(theta, lows[row], highs[row]) for theta in thetas]
        rows += [row] * len(thetas)
        tally.cases += len(thetas) >= 3
        tally.single += len(thetas) < 3
    tally.points = len(truths)
    for method in METHODS[:2] if {*letters} & {*PHOTOMETRIC} else METHODS:
        form = bound_pixels(images, make_transform(letters, padding), method=method, low=low, high=high)
        found = outside(truths, rows, e, arrays(form))
        tally.comparisons += sum(truth.numerator.size for truth in truths)
        if found:
            row = int(found[0].split()[1]) if found[0].startswith("image") else 0
            tally.violation = (
                f"{len(found)} pixels by {method}, {shape}; low={lows[row]} high={highs[row]}: {found[0]}\n"
                f"repeat: python -m tests.soundness.campaign --seed {seed} --batch {number}"
            )
            break
    return tally


def campaign(cases: int, seed: int, workers: int = 1) -> Iterator[Tally]:
    """Yield running totals after every batch, until enough cases are counted or a bound is wrong."""
    total, number, stride = Tally(), 0, 8 * max(1, workers)
    pool = ProcessPoolExecutor(workers) if workers > 1 else None
    check = partial(check_batch, seed=seed)
    try:
        while total.cases < cases and not total.violation:
            numbers = range(number, number + stride)
            number += stride
            for tally in pool.map(check, numbers) if pool else map(check, numbers):
                total.add(tally)
                yield total
                if total.violation or total.cases >= cases:
                    break
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="random pixel bounds against the exact oracle")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, help="repeat one batch alone")
    options = parser.parse_args()
    began, shown, total = time.perf_counter(), 0.0, Tally()
    if options.batch is not None:
        total = check_batch(options.batch, options.seed)
    else:
        for total in campaign(options.cases, options.seed, options.workers):
            if time.perf_counter() - shown > 20:
                shown = time.perf_counter()
                print(f"{shown - began:6.0f} s  {total}", flush=True)  # noqa: T201
    if total.violation:
        print(total.violation)  # noqa: T201
    print(total)  # noqa: T201
    return 1 if total.violation else 0


if __name__ == "__main__":
    raise SystemExit(main())
