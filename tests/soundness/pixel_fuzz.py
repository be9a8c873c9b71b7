"""Fuzz pixel bounds and their building blocks against true values: the fuzz of `enclosures/` and `pixels/` for `mechanical.py`.

    python -m tests.soundness.pixel_fuzz [--seed 0] [--rounds 1]

tries the original code. True values come from `long_oracle`, 2^11 times as fine as float64, at the corners, the middle and
random points of each parameter box; forms are judged at their symbols. Kinds of cases:

    Pairs      `pair_bounds`: all methods, transformations, paddings and dtypes; boxes from nothing to very large, many that start at or
               cross a grid line by 2^-51 to 0.05, some shared by several pairs; few pixels at a time (several chunks), and once as usual
    Spots      `affine_of_exact` at handmade positions: ends on and near grid lines, forms that reach far beyond their boxes, pixels of
               all magnitudes
    Places     `coordinates`, to the last bits
    Polynomials  `polynomial_form`, of boxes in which one parameter varies
    Sums       single operations of affine forms and intervals
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.soundness.long_oracle import EPS, PI, SPATIAL, Long, positions, sampled, transformed
from tests.soundness.mechanical import compared

Bounds = dict[str, np.ndarray]
compare = compared
SIZES = [(4, 5), (1, 1), (3, 3), (1, 7), (6, 1), (2, 2), (5, 3), (4, 9), (2, 1), (7, 4)]
LIMITS = {
    "R": 360, "Tu": 64, "Tv": 64, "Sc": (-90, 400), "Sh": 300, "Scu": (-90, 400), "Scv": (-90, 400), "Shv": 300,
    "Roll": 360, "Yaw": 80, "Pitch": 80, "C": 300, "B": 3, "G": (-90, 300), "S": (-200, 300), "H": 360, "Bl": (0, 2),
    "Mb": (0, 7),
}  # fmt: skip
"""The transformations' ranges; boxes lie inside."""
SPREADS = {
    "R": 180, "Tu": 5, "Tv": 5, "Sc": 40, "Sh": 120, "Scu": 40, "Scv": 40, "Shv": 120, "Roll": 180, "Yaw": 12,
    "Pitch": 12, "C": 60, "B": 0.6, "G": 60, "S": 100, "H": 180, "Bl": 1.2, "Mb": 5,
}  # fmt: skip
"""How far from 0 the middle of a box lies."""
MEDIUM = {
    "R": 3, "Tu": 0.4, "Tv": 0.4, "Sc": 4, "Sh": 5, "Scu": 4, "Scv": 4, "Shv": 5, "Roll": 3, "Yaw": 2, "Pitch": 2,
    "C": 6, "B": 0.05, "G": 6, "S": 6, "H": 4, "Bl": 0.05, "Mb": 0.3,
}  # fmt: skip
HUGE = {
    "R": 100, "Tu": 4, "Tv": 4, "Sc": 35, "Sh": 150, "Scu": 35, "Scv": 35, "Shv": 150, "Roll": 100, "Yaw": 60,
    "Pitch": 60, "C": 90, "B": 0.9, "G": 60, "S": 90, "H": 100, "Bl": 0.8, "Mb": 3,
}  # fmt: skip
STEPS = {
    "R": 90, "Tu": 1, "Tv": 1, "Sc": 100, "Sh": 100, "Scu": 100, "Scv": 100, "Shv": 100, "Roll": 90, "Yaw": 12,
    "Pitch": 12, "C": 100, "B": 0.5, "G": 100, "S": 100, "H": 90, "Bl": 1, "Mb": 2,
}  # fmt: skip
"""Multiples of these put pixels on grid lines, or are otherwise special."""


@dataclass
class Case:
    """One case: bounds of entries [...] must hold ``truth`` [T, ...] (NaN: unknown), up to ``doubt``, at symbols ``e`` [T, d, ...]."""

    name: str
    truth: np.ndarray
    doubt: np.ndarray
    e: np.ndarray
    function: Callable[[], Bounds]
    finite: bool = True
    hinge: bool = False
    """The symbols after e are 2 e^2 - 1 and, for each row, one unknown number of [-1, 1]."""
    patches: dict[str, Any] = field(default_factory=dict)
    """Values of module constants, such as how many pixels are bounded at a time."""
    kind: str = ""
    last: str = ""
    """For pairs, the kind of the last stage; empty if an earlier one is of the same kind, or moves pixels too."""

    def __str__(self) -> str:
        return self.name


def direct(case: Case, file: str) -> bool:
    name = Path(file).stem
    kinds = {"interval": ("intervals",), "coordinates": ("places", "camera_depths")}
    kinds |= dict.fromkeys(("centered", "polynomial", "crossings"), ("polynomials",))
    if name in ("rounding", "affine_form", "relu"):
        return case.kind == "sums"
    if name in kinds:
        return case.kind in kinds[name]
    if name == "photometric":
        return case.last == "photometric"
    return name == "api" or case.kind == "spots" or case.last == "spatial"


WAYS = [
    {"single_cell.MOST_LEFT": 2.0, "single_cell.MOST_FLAT": 64},
    {"single_cell.MOST_LEFT": -1.0},
    {"single_cell.MOST_LEFT": -1.0, "api.MANY_POINTS": 10**6},
    {"single_cell.MOST_LEFT": -1.0, "api.MANY_POINTS": 0},
]
"""The single-cell formula wherever it holds; all points; all points with slopes for any box; and without."""


def reference(case: Case) -> Bounds:
    """Add the results of other, equally sound ways to bound pixels."""
    bounds = run(case)
    hinge = case.hinge and len(bounds["slopes"]) > 2  # one hinge for all pixels of a box
    if (
        not hinge
        and (case.kind == "spots" or case.last == "spatial")
        and "hull" not in case.name
        and "fgv" not in case.name
    ):
        bounds["others"] = [run(replace(case, patches=case.patches | way)) for way in WAYS]  # type: ignore[assignment]
    return bounds


def run(case: Case) -> Bounds:
    from importlib import import_module

    with np.errstate(all="ignore"):
        before = {}
        for name, value in case.patches.items():
            module, _, constant = name.rpartition(".")
            before[name] = getattr(import_module(f"tiltproof.pixels.{module}"), constant)
            setattr(import_module(f"tiltproof.pixels.{module}"), constant, value)
        try:
            return case.function()
        finally:
            for name, value in before.items():
                module, _, constant = name.rpartition(".")
                setattr(import_module(f"tiltproof.pixels.{module}"), constant, value)


def violations(case: Case, bounds: Bounds) -> str | None:
    with np.errstate(all="ignore"):
        return _violations(case, bounds)


def _violations(case: Case, bounds: Bounds) -> str | None:
    c, g, r, lower, upper = (bounds[name] for name in ("center", "slopes", "radius", "lower", "upper"))
    x = case.truth
    if any(each.shape != x.shape[1:] for each in (c, r, lower, upper)) or g.shape[1:] != x.shape[1:]:
        return "wrong shapes"
    if case.finite and not all(np.isfinite(each).all() for each in (c, g, r, lower, upper)):
        return "a bound is not a finite number"
    if np.isnan(lower).any() or np.isnan(upper).any():
        return "an end is not a number"
    if (r < 0).any():
        return "a negative radius"
    outside = np.maximum(lower - x, x - upper) - case.doubt
    found = _worst(outside, "outside of the ends")
    if found is not None:
        return found
    e = case.e
    if case.hinge and len(g) > 1:
        e = np.concatenate([e, 2 * e * e - 1], 1)
    last = g[2] if case.hinge and len(g) > 2 else None
    known = min(len(g), e.shape[1])
    if len(g) > known + (last is not None):
        return "too many symbols"
    terms = [g[k] * e[:, k] for k in range(known)]
    apart = x - c
    size = np.abs(apart) + r + sum(map(np.abs, terms))
    apart = apart - sum(terms)
    doubt = case.doubt + size * (4 * EPS)
    excess = np.abs(apart) - r - doubt - (0 if last is None else np.abs(last))
    found = _worst(excess, "outside of the form")
    if found is not None or last is None:
        return found
    # a number h of [-1, 1] that is the same for all pixels of a row
    axes = tuple(range(2, apart.ndim))
    room = r + doubt
    one, two = ((apart + sign * room) / np.where(last == 0, np.nan, last) for sign in (-1, 1))
    least = np.nanmax(np.minimum(one, two), axis=axes, initial=-1, where=~np.isnan(one))
    greatest = np.nanmin(np.maximum(one, two), axis=axes, initial=1, where=~np.isnan(one))
    return _worst(least - greatest - 1e-9, "no hinge fits all pixels")


def _worst(excess: np.ndarray, what: str) -> str | None:
    bad = excess > 0
    if not bad.any():
        return None
    at = np.unravel_index(int(np.argmax(np.where(bad, excess, 0))), excess.shape)
    return f"{int(bad.sum())} of {excess.size} {what}, one by {float(excess[at]):.3g} at {tuple(map(int, at))}"


def arrays(form: Any) -> Bounds:
    """Convert an affine form to arrays; float64 holds every float32."""
    names = ("center", "slopes", "radius", "lower", "upper")
    return {name: getattr(form, name).detach().double().numpy().copy() for name in names}


def of_interval(interval: Any) -> Bounds:
    lower, upper = (end.detach().double().numpy().copy() for end in (interval.lower, interval.upper))
    plain = np.zeros_like(lower)
    return {"center": plain, "slopes": plain[None][:0], "radius": plain + np.inf, "lower": lower, "upper": upper}


# Parameters and images


def names_of(letters: Sequence[str]) -> list[str]:
    return [letter.partition("@")[0] for letter in letters]


def text_of(letters: Sequence[str], padding: str) -> str:
    parts = []
    for letter in letters:
        name, _, setting = letter.partition("@")
        limits = LIMITS[name]
        low, high = limits if isinstance(limits, tuple) else (-limits, limits)
        parts.append(f"{name}({low}:{high}{'@' + setting if setting else ''})")
    return ", ".join(parts) + f"; padding={padding}"


def boxes(letters: Sequence[str], regime: str, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw boxes, [count, d] each: thin boxes range from nothing to medium, by powers of two."""
    lows, highs = [], []
    for name in names_of(letters):
        limits = LIMITS[name]
        lowest, highest = limits if isinstance(limits, tuple) else (-limits, limits)
        center = rng.uniform(max(lowest, -SPREADS[name]), SPREADS[name], count)
        grid = STEPS[name] * rng.integers(-1, 3, count)
        center = np.where(rng.random(count) < 0.4, grid, center)
        if regime == "narrow":
            half = MEDIUM[name] * 2.0 ** -rng.uniform(2, 12, count)
        elif regime == "huge":
            half = HUGE[name] * rng.uniform(0.1, 1, count)
        elif regime == "medium":
            half = MEDIUM[name] * rng.uniform(0.02, 1, count)
        else:
            half = MEDIUM[name] * 2.0 ** -rng.uniform(0, 53, count)
        half = np.where(rng.random(count) < (0.1 if regime == "thin" else 0.02), 0.0, half)
        side = rng.integers(-1, 2, count)  # the box begins, has its middle, or ends there
        low, high = center - half * (side <= 0), center + half * (side >= 0)
        lows.append(np.clip(np.minimum(low, high), lowest, highest))
        highs.append(np.clip(np.maximum(low, high), lowest, highest))
    return np.stack(lows, 1), np.stack(highs, 1)


def members(low: np.ndarray, high: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw parameters [T, P, d] of boxes, and their symbols: ends, the middle, one end and a middle, any."""
    low, high = low.astype(Long), high.astype(Long)
    share = rng.random((count, *low.shape))
    share[: min(count, 4)] = np.array([0.0, 1.0, 0.5, 0.25])[: min(count, 4), None, None]
    corners = rng.random(share.shape) < 0.25
    share = np.where(corners & (np.arange(count)[:, None, None] > 2), np.rint(share), share)
    theta = np.clip(low + (high - low) * share.astype(Long), low, high)
    width = high - low
    e = np.where(width > 0, ((theta - low) - (high - theta)) / np.where(width > 0, width, 1), 0)
    return theta, e


def images_of(kind: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw images [N, C, H, W] in [0, 1]."""
    x = rng.random(shape)
    kind %= 8
    if kind == 1:
        return np.rint(x)
    if kind == 2:  # flat, except for one pixel each
        flat = np.full(shape, 0.7)
        for image in flat:
            image[..., rng.integers(shape[2]), rng.integers(shape[3])] = rng.choice([1.0, 0.7 + 2.0**-40])
        return flat
    if kind == 3:  # dark, except for a spot
        dark = np.zeros(shape)
        dark[..., : (shape[2] + 1) // 2, : (shape[3] + 1) // 2] = x[..., : (shape[2] + 1) // 2, : (shape[3] + 1) // 2]
        return dark
    if kind == 4:  # large numbers, small differences
        return 1 - x * 2.0**-20
    if kind == 5:
        return x * 10.0 ** -rng.integers(0, 320, shape)
    if kind == 6:
        return np.broadcast_to((np.indices(shape[2:]).sum(0) % 2).astype(float), shape).copy()
    return x


# Kinds of cases


def pairs(
    letters: Sequence[str],
    padding: str,
    method: str,
    regime: str,
    rng: np.random.Generator,
    *,
    quadratic: bool = False,
    dtype: str = "float64",
    size: tuple[int, int] = (4, 5),
    count: int = 20,
    distinct: int | None = None,
    points: int = 6,
    images: np.ndarray | None = None,
    kind: int = 0,
    patches: dict[str, Any] | None = None,
    given: tuple[np.ndarray, np.ndarray] | None = None,
    cells: int | None = None,
) -> Case:
    names = names_of(letters)
    channels = 3 if {"S", "H"} & set(names) else 1 + int(rng.random() < 0.4)
    if images is None:
        images = images_of(kind, (3, channels, *size), rng)
    if dtype == "float32":
        images = images.astype(np.float32).astype(float)
    rows = rng.integers(len(images), size=count)
    low, high = boxes(letters, regime, distinct or count, rng) if given is None else given
    which = rng.integers(len(low), size=count) if distinct or given else np.arange(count)
    low, high = low[which], high[which]
    theta, e = members(low, high, points, rng)
    flat = theta.reshape(-1, theta.shape[-1])
    truth, doubt = transformed(images[np.tile(rows, points)], letters, flat, padding)
    shape = points, count, *truth.shape[1:]
    text = text_of(letters, padding)

    def function() -> Bounds:
        import torch

        from tiltproof.pixels.api import pair_bounds
        from tiltproof.transforms.base import parse

        tensors = (torch.tensor(each) for each in (images, rows))
        box = (torch.tensor(each) for each in (low, high))
        options = {"quadratic": quadratic, "dtype": getattr(torch, dtype), "cells": cells}
        return arrays(pair_bounds(*tensors, parse(text), method, *box, **options))

    name = f"{text} {method}{' quadratic' * quadratic} {regime} {dtype} {images.shape}"
    spread = e[..., None, None, None].transpose(0, 2, 1, 3, 4, 5)
    kinds = ["spatial" if each in SPATIAL else "values" if each in "CB" else "photometric" for each in names]
    alone = kinds[-1] not in kinds[:-1] or set(kinds) == {"spatial"}
    last = kinds[-1] if alone else ""
    return Case(
        name,
        truth.reshape(shape),
        doubt.reshape(shape),
        spread,
        function,
        True,
        quadratic,
        patches or {},
        "pairs",
        last,
    )


def polynomials(
    letters: Sequence[str],
    padding: str,
    rng: np.random.Generator,
    *,
    degree: int,
    symbols: int,
    regime: str,
    size: tuple[int, int] = (4, 5),
    count: int = 12,
    points: int = 7,
    kind: int = 0,
) -> Case:
    """Build a case of `polynomial_form`: one parameter of each box varies. Kinks count as remainders here; that one number explains all
    pixels of a column is `tests.support.polynomial_check`'s to see."""
    images = images_of(kind, (3, 1 + int(rng.random() < 0.4), *size), rng)
    rows, varies = rng.integers(len(images), size=count), rng.integers(len(letters), size=count)
    low, high = boxes(letters, regime, count, rng)
    mine = varies[:, None] == np.arange(len(letters))
    high = np.where(mine, high, low)
    theta, _ = members(low, high, points, rng)
    truth, doubt = transformed(images[np.tile(rows, points)], letters, theta.reshape(-1, len(letters)), padding)
    # as the package scales a parameter: c + h e with c the middle as rounded, and h beyond both ends
    center = (low + high) / 2
    half = np.nextafter(np.maximum(high - center, center - low), np.inf).astype(Long)
    e = np.where(mine, (theta - center) / half, 0).sum(2)
    powers = [np.ones_like(e), e]
    while len(powers) <= degree:
        powers.append(2 * e * powers[-1] - powers[-2])
    shape = points, count, *truth.shape[1:]
    text = text_of(letters, padding)

    def function() -> Bounds:
        import torch

        from tiltproof.pixels.polynomial import polynomial_form
        from tiltproof.transforms.base import parse

        tensors = (torch.tensor(each) for each in (images, rows))
        box = (torch.tensor(each) for each in (low, high))
        form = polynomial_form(*tensors, parse(text), *box, degree, symbols)
        found = arrays(form)
        kinks = np.abs(found["slopes"][degree:]).sum(0) * (1 + 2.0**-45)
        return found | {"slopes": found["slopes"][:degree], "radius": found["radius"] + kinks}

    name = f"{text} degree {degree}, {symbols} symbols, {regime} {images.shape}"
    spread = np.stack(powers[1:], 1)[..., None, None, None]
    return Case(name, truth.reshape(shape), doubt.reshape(shape), spread, function, kind="polynomials")


ENDS = np.array([
    (0.25, 0.75), (0.0, 1.0), (1.0, 1.0), (1.5, 1.5), (0.0, 1 - 2.0**-53), (1 - 2.0**-53, 1.0), (2.0, 2 + 2.0**-51), (0.3, 0.3 + 2.0**-31),
    (-1e-20, -1e-21), (-0.5, 2.0**-60), (-1.0, 2.0**-55), (-1.0, 0.0), (-0.25, -1e-17), (-1.75, -1.25), (-2.0, -1.0), (-7.5, -3.0),
    (0.9, 1.1), (0.5, 2.5), (-0.25, 0.25), (-1.5, 3.25), (1.0, 3.0), (-3.0, 9.0), (3.5, 4.0), (4.2, 4.9), (5.1, 5.7), (6.0, 6.0),
    (8.0, 40.0), (3.25, 4.0), (2.75, 3.5), (4.0, 5.0), (5.0, 6.0), (4.5, 5.5), (-2.5, -1.5), (1.0, 1.0 + 2.0**-30), (0.999, 1.001),
    (2.0, 2.05), (1.95, 2.0), (3.0 - 2.0**-12, 3.0 + 2.0**-20), (2.0 - 2.0**-8, 2.0), (0.5, 1.0 + 2.0**-40), (0.25, 1.0 + 2.0**-25),
])  # fmt: skip
"""Where boxes begin and end along an axis: on and near grid lines, thin, a whole cell, outside, in several cells."""


def begin_of(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw positions in cells of an image, and a few on grid lines."""
    return rng.integers(-1, 5, shape) + np.where(rng.random(shape) < 0.1, 0.0, rng.random(shape))


def coarse(values: np.ndarray) -> np.ndarray:
    """Round to few bits, so that sums with larger numbers are exact."""
    return np.rint(values * 2**22) / 2**22


def _axis(count: int, area: int, d: int, kind: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw forms of positions [count, area] (center, slopes, radius) and ends of boxes, each inside its form's range."""
    shape = count, area
    few = ENDS[[0, 1, 2, 4, 7, 9, 13, 25, 28, 33]] if kind == 1 else ENDS
    ends = few[rng.integers(len(few), size=shape)]
    if kind == 2:  # anywhere in one cell
        begin = rng.integers(-1, 5, shape)
        inside = np.sort(rng.random((*shape, 2)), -1)
        ends = begin[..., None] + inside
    aside = rng.choice([0.0, 0.0, 1e-9, 0.3, 40.0, 3000.0], shape) * rng.choice([-1, 1], shape)
    if kind == 3:
        aside = aside * 2.0**10
    if kind >= 4:  # single points, of forms with no distance or a long one from their centers
        ends = np.repeat(begin_of(shape, rng)[..., None], 2, -1)
        aside = aside * 0
    if kind == 5:
        ends = coarse(ends)
        aside = 2.0 ** rng.integers(5, 30, shape) * rng.choice([-1.0, 1.0], shape) + coarse(rng.random(shape))
    if kind >= 6:  # boxes of at most kind - 5 cells, with positions anywhere in them
        begin, inside = rng.integers(-1, 5, shape), rng.random((2, *shape)) * rng.choice([0.5, 0.01], (2, *shape))
        ends = np.stack([begin + inside[0], begin + (kind - 5) - inside[1]], -1)
        aside = aside * 0
    center = ends.mean(-1) + aside
    reach = np.maximum(center - ends[..., 0], ends[..., 1] - center)
    parts = np.moveaxis(rng.dirichlet(np.full(d + 1, 0.5), shape), -1, 0) * reach
    parts[0] *= (rng.random(shape) < 0.5) & (kind < 4)  # half have no remainder
    slopes = parts[1:] * rng.choice([-1, 1], parts[1:].shape)
    lacking = reach - np.abs(slopes).sum(0) - parts[0]
    slopes[0] += np.sign(slopes[0]) * np.maximum(lacking, 0) * (1 + 1e-12)
    if kind == 5:  # the point is at the form's very end
        slopes = np.zeros_like(slopes)
        slopes[0] = ends[..., 0] - center  # exactly
    radius = parts[0] * (1 + 1e-12) + np.where(parts[0] > 0, 1e-15, 0)
    if kind >= 6:
        slopes, radius = np.zeros_like(slopes), reach * (1 + 1e-12)
    return center, slopes, radius, ends


def _places(parts: tuple[np.ndarray, ...], e: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return positions [T, P, area] at symbols and remainder positions ``rest``, clipped to the box; NaN where impossible."""
    center, slopes, radius, ends = (each.astype(Long) for each in parts)
    middle = center + np.einsum("tkpa,kpa->tpa", e, slopes)
    place = np.clip(middle + rest * radius * (1 - Long(2) ** -56), ends[..., 0], ends[..., 1])
    return np.where(np.abs(place - middle) <= radius * (1 - Long(2) ** -57), place, np.nan)


def spots(kind: int, padding: str, rng: np.random.Generator, *, d: int = 1, count: int = 12, dtype: str = "float64", points: int = 12,
          scale: str = "usual", shared: bool = False, left: float = 1.0) -> Case:  # fmt: skip
    """Build a case of `affine_of_exact` from handmade positions, boxes and images."""
    height, width = ((4, 5), (3, 4), (1, 6), (5, 1))[int(rng.integers(4)) if kind == 0 else 0]
    height, width = (6, 7) if kind >= 6 else (height, width)
    area, boxes_, size = (
        height * width,
        max(1, count // 3) if shared else count,
        (3 if kind < 6 else 2, 2, height, width),
    )
    x = rng.random(size) if rng.random() < 0.5 else images_of(int(rng.integers(8)), size, rng)
    if scale == "signs":  # either sign, and widely different magnitudes
        x = (x - 0.5) * 10.0 ** rng.integers(-12, 6, size)
    elif scale == "tiny":
        x = x * 2.0 ** -rng.integers(1000, 1070)
    elif scale == "close":
        x = 1 - np.rint(x * 2) * 2.0**-30 if kind < 4 else 0.5 + x * 2.0**-20
    elif scale == "negative":
        x = -(1 - x * 2.0**-20) if rng.random() < 0.5 else -x
        x = x if kind < 4 else x / 2
    elif (
        scale == "steps"
    ):  # differences twice as large as pixels, which are just above a power of two, where roundings are largest
        x = (0.5 + rng.random(size) / 32) * (1 - 2 * (np.indices(size).sum(0) % 2))
    elif scale == "signed":
        x = x - 0.5
    rows = rng.integers(len(x), size=count)
    column, row = (_axis(boxes_, area, d, kind, rng) for _ in range(2))
    box_of = rng.integers(boxes_, size=count) if shared else None
    e = rng.uniform(-1, 1, (points, d, boxes_, area))
    e = np.where(rng.random(e.shape) < 0.5, np.rint(e), np.rint(e * 8) / 8).astype(Long)
    if kind == 5:
        e[:, 0] = 1
    if kind >= 6:  # all the same, except for one pixel
        x = images_of(2, size, rng)
    # one of the two positions must be free to move into its box
    aim = []
    for parts in (column, row):
        center, slopes, _, ends = (each.astype(Long) for each in parts)
        if d == 1:
            target = ends[..., 0] + (ends[..., 1] - ends[..., 0]) * rng.choice(
                [0.0, 1.0, 0.5, 0.3, 0.9], (points, boxes_, area)
            )
            aim.append((target - center) / np.where(slopes[0] == 0, 1, slopes[0]))
    for number, each in enumerate(aim if kind < 4 else []):
        e[number::3, 0] = np.clip(each, -1, 1)[number::3]
    rest = rng.integers(-1, 2, (2, points, boxes_, area))
    u, v = _places(column, e, rest[0]), _places(row, e, rest[1])
    if box_of is not None:
        u, v, e = u[:, box_of], v[:, box_of], e[:, :, box_of]
    flat = (points * count, height, width)
    truth = sampled(x[np.tile(rows, points)].astype(Long), u.reshape(flat), v.reshape(flat), padding)
    truth = truth.reshape(points, count, 2, height, width)
    reach = max(float(np.abs(parts[0]).max()) for parts in (column, row))
    doubt = (
        np.full((1, 1, 1, 1, 1), np.abs(x).max() * EPS * 8, Long)
        if reach < 1e4
        else np.abs(x).max() * EPS * (8 + reach / 100)
    )
    doubt = np.broadcast_to(doubt, truth.shape)
    shape = boxes_, height, width

    def function() -> Bounds:
        import torch

        from tiltproof.enclosures.affine_form import AffineForm, Interval
        from tiltproof.pixels.api import affine_of_exact
        from tiltproof.pixels.coordinates import Coordinates

        made = []
        for center, slopes, radius, ends in (column, row):
            stack = torch.tensor(np.concatenate([center[None], slopes])).view(1 + d, *shape)
            form = AffineForm(stack, torch.tensor(radius).view(shape))
            box = Interval(*(torch.tensor(ends[..., k].copy()).view(shape) for k in (0, 1)))
            made.append((form, box))
        place = Coordinates(made[0][0], made[1][0], made[0][1], made[1][1])
        which = None if box_of is None else torch.tensor(box_of)
        form = affine_of_exact(torch.tensor(x), torch.tensor(rows), place, padding, which, getattr(torch, dtype))
        return arrays(form)

    name = f"spots {kind} {padding} {d} symbols {scale} {dtype} {size}{' shared' * shared} left {left}"
    e = e.reshape(points, d, count, 1, height, width)
    patches = {"single_cell.MOST_LEFT": left, "single_cell.CACHED_PIXELS": int(rng.choice([2**15, 3 * area]))}
    return Case(name, truth, doubt, e, function, True, False, patches, "spots")


def places(
    letters: Sequence[str],
    regime: str,
    rng: np.random.Generator,
    *,
    quadratic: bool = False,
    size: tuple[int, int] = (5, 4),
) -> Case:
    """Build a case of `coordinates`: the forms and the boxes' ends, for some boxes and single pixels of them."""
    low, high = boxes(letters, regime, 24, rng)
    theta, e = members(low, high, 8, rng)
    column, row, depth = positions(letters, theta.reshape(-1, theta.shape[-1]), *size)
    shape = 8, 24, *size
    truth = np.stack([column.reshape(shape), row.reshape(shape)], 2)
    doubt = (np.abs(truth) + 8) * (8 * EPS)
    if any(
        "@" in letter for letter in letters
    ):  # a quotient: its numerator's error counts in inverse proportion to the depth
        doubt = doubt * 4 / np.minimum(np.abs(depth.reshape(8, 24, 1, *size)), 1)
    text, camera = text_of(letters, "zeros"), any("@" in letter for letter in letters)
    if camera and regime == "huge":  # an unbounded position is moved elsewhere
        truth = np.full_like(truth, np.nan)

    def function() -> Bounds:
        import torch

        from tiltproof.pixels.coordinates import coordinates, symbols
        from tiltproof.transforms.base import parse

        ends = [torch.tensor(each) for each in (low, high)]
        place = coordinates(parse(text), list(range(len(letters))), symbols(*ends, quadratic), *ends, *size)
        again = place.of(torch.arange(24)).of_pixels(torch.arange(24 * size[0] * size[1]))
        result = []
        for which in (place, again):
            forms, ends = (which.column, which.row), (which.columns, which.rows)
            found = [
                arrays(form) | {"lower": end.lower.numpy(), "upper": end.upper.numpy()}
                for form, end in zip(forms, ends, strict=True)
            ]
            result.append(
                {
                    name: np.stack([each[name].reshape(*each[name].shape[:-3], 24, *size) for each in found], -3)
                    for name in found[0]
                }
            )
        assert all(np.array_equal(result[0][name], result[1][name], equal_nan=True) for name in result[0]), (
            "chosen boxes"
        )
        return result[0]

    spread = e[..., None, None, None].transpose(0, 2, 1, 3, 4, 5)
    return Case(
        f"places of {text} {regime}{' quadratic' * quadratic}",
        truth,
        doubt,
        spread,
        function,
        True,
        quadratic,
        {},
        "places",
    )


# Operations of forms and intervals


def random_form(
    rng: np.random.Generator, d: int, positive: bool, small: bool, dtype: str, entries: int = 80
) -> tuple[np.ndarray, ...]:
    size = 10.0 ** rng.uniform(-9, 0.3 if small else 3, entries)
    if positive:
        center = size * rng.uniform(0.5, 1, entries)
    else:
        center = size * rng.normal(size=entries) * np.where(rng.random(entries) < 0.4, 1e-2, 1.0)
    share = 10.0 ** rng.uniform(-17, -0.5, entries) * (rng.random(entries) > 0.25)
    share = np.where(rng.random(entries) < 0.3, 1.0, share)
    slopes = size * share * rng.uniform(-0.4, 0.4, (d, entries)) * (0.5 if positive else 1) / max(1, d - 1)
    slopes *= rng.random((d, entries)) > 0.1
    radius = size * share * rng.random(entries) * (0.1 if positive else 0.4) * (rng.random(entries) > 0.4)
    return tuple(each.astype(dtype) for each in (center, slopes, radius))


def _member(
    form: tuple[np.ndarray, ...], e: np.ndarray, rest: np.ndarray, quadratic: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return members [T, entries] at symbols [T, d], and the magnitudes of what was added."""
    c, g, r = (each.astype(Long) for each in form)
    symbols = [e[:, k, None] for k in range(e.shape[1])]
    symbols += [2 * symbols[0] ** 2 - 1] if quadratic else []
    terms = [g[k] * each for k, each in enumerate(symbols)]
    return c + sum(terms) + rest * r, np.abs(c) + sum(map(np.abs, terms)) + r


def clamped(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 1)


Operation = tuple[str, Callable[..., Any], Callable[..., Any], Callable[..., Any]]
"""A name, the package's result, the truth, and how much the result may move for a change of 1 in either operand."""


def _relax(name: str) -> Callable[..., Any]:
    def function(form: Any) -> Any:
        from tiltproof.enclosures import relu as relax

        if name == "lines":
            return relax.zonotope_relu(form)
        return (
            relax.clamp01(form)
            if name == "clamp"
            else relax.relax_relu(form, 0.1)
            if name == "leaky"
            else relax.relax_relu(form)
        )

    return function


def _to(name: str) -> Callable[..., Any]:
    def function(form: Any) -> Any:
        import torch

        return form.to(getattr(torch, name))

    return function


def _chosen(form: Any) -> Any:
    import torch

    from tiltproof.enclosures.affine_form import GatheredForms
    from tiltproof.enclosures.relu import relax_relu

    form.reach()
    form = form.with_magnitude(form.magnitude())
    chosen = GatheredForms({"form": form}, torch.tensor([0, 0, 0])).rest(torch.tensor([2, 0]))["form"]
    assert (len(chosen), chosen.shape[1:]) == (2, form.shape[1:])
    assert float((chosen.lower - form.lower).abs().max()) == 0
    assert float((chosen.magnitude() - form.magnitude()).abs().max()) == 0
    return relax_relu(chosen)[1:]


def _between(form: Any) -> Any:
    return type(form).between(form.lower, form.upper)


def _with_tensor(form: Any, sign: int) -> Any:
    return form + form.center * 0 - 0.75 if sign else form * (form.center * 0 - 0.75)


def ONE(*x: Any) -> float:  # noqa: ARG001, N802
    return 1.0


UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "minus": (lambda f: -f, lambda x: -x, ONE),
    "plus a number": (lambda f: f + 0.375, lambda x: x + Long(0.375), ONE),
    "from a number": (lambda f: 1.0 - f, lambda x: 1 - x, ONE),
    "less a number": (lambda f: f - 0.375, lambda x: x - Long(0.375), ONE),
    "over a hundred": (lambda f: f / 100, lambda x: x / 100, ONE),
    "times a number": (lambda f: f * -0.375, lambda x: x * Long(-0.375), ONE),
    "plus a tensor": (lambda f: _with_tensor(f, 1), lambda x: x - Long(0.75), ONE),
    "times a tensor": (lambda f: _with_tensor(f, 0), lambda x: x * Long(-0.75), ONE),
    "in float32": (_to("float32"), lambda x: x, ONE),
    "in float64": (_to("float64"), lambda x: x, ONE),
    "between": (_between, lambda x: x, ONE),
    "flipped": (lambda f: f.exactly(lambda x: x.flip(-1)).exactly(lambda x: x.flip(-1)), lambda x: x, ONE),
    "relu": (_relax("relu"), lambda x: np.maximum(x, 0), ONE),
    "relu by lines": (_relax("lines"), lambda x: np.maximum(x, 0), ONE),
    "leaky relu": (_relax("leaky"), lambda x: np.maximum(x, Long(0.1) * x), ONE),
    "clamp": (_relax("clamp"), clamped, ONE),
    "relu of chosen rows": (_chosen, lambda x: np.maximum(x, 0), ONE),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "sin": (lambda f: f.sin(), np.sin, ONE),
    "cos": (lambda f: f.cos(), np.cos, ONE),
    "deg2rad": (lambda f: f.deg2rad(), lambda x: x * PI / 180, ONE),
    "reciprocal": (lambda f: f.reciprocal(), lambda x: 1 / x, lambda x: 1 / (x * x)),
}
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda f, g: f + g, lambda x, y: x + y, ONE),
    "sub": (lambda f, g: f - g, lambda x, y: x - y, ONE),
    "mul": (lambda f, g: f * g, lambda x, y: x * y, lambda x, y: np.abs(x) + np.abs(y)),
    "over": (lambda f, g: f.over(g), lambda x, y: x / y, lambda x, y: (1 + np.abs(x / y)) / np.abs(y)),
}


def sums(
    name: str, rng: np.random.Generator, *, quadratic: bool = False, dtype: str = "float64", large: bool = False
) -> Case:
    """Build a case of an operation on forms [1, entries]."""
    function, exact, steep = (UNARY | FUNCTIONS | BINARY)[name]
    two, d, points = name in BINARY, 2, 48 if quadratic else 16
    small = name in ("sin", "cos") and not large
    forms = [
        random_form(rng, d, name == "reciprocal" or (name == "over" and k == 1), small, dtype) for k in range(1 + two)
    ]
    if name == "over":  # strong cancellation
        share = forms[0][0] / forms[1][0]
        forms[0][1][:, ::2] = (share * forms[1][1])[:, ::2]
    e = rng.uniform(-1, 1, (points, 1 if quadratic else d)).astype(Long)
    e[:8] = np.rint(e[:8])
    e[:4] = np.where(e[:4] == 0, 1, e[:4])
    if quadratic:
        e[8:] = np.linspace(-1, 1, points - 8)[:, None]
        for form in forms if name in UNARY else []:  # many that change their sign, anywhere in the box
            form[0][::2] = (form[1][0] * np.clip(rng.normal(size=form[0].shape), -1.5, 1.5).astype(dtype))[::2]
            form[1][1][::4] = form[2][::4] = 0
    found = [_member(form, e, rng.integers(-1, 2, (points, len(form[0]))), quadratic) for form in forms]
    x = [each[0] for each in found]
    if name == "reciprocal" or name == "over":
        x[-1] = np.where(x[-1] > 0, x[-1], np.nan)
    truth = exact(*x)
    doubt = np.nan_to_num((sum(each[1] for each in found) * steep(*x) + np.abs(truth)) * (4 * EPS))
    if name in UNARY:
        doubt = doubt + 2 * EPS

    def operate() -> Bounds:
        import torch

        from tiltproof.enclosures.affine_form import AffineForm

        made = []
        for center, slopes, radius in forms:
            stack = torch.tensor(np.concatenate([center[None], slopes]))[:, None]
            made.append(AffineForm(stack, torch.tensor(radius)[None], quadratic=quadratic))
        return arrays(function(*made))

    spread = e[:, :, None, None]
    return Case(
        f"{name}{' quadratic' * quadratic} {dtype}{' large' * large}",
        truth[:, None],
        doubt[:, None],
        spread,
        operate,
        name not in ("reciprocal", "over"),
        quadratic,
        {},
        "sums",
    )


TWO_INTERVALS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda a, b: a + b, lambda x, y: x + y),
    "sub": (lambda a, b: a - b, lambda x, y: x - y),
    "mul": (lambda a, b: a * b, lambda x, y: x * y),
}
ONE_INTERVAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "minus": (lambda a: -a, lambda x: -x),
    "add a number": (lambda a: a + 0.7, lambda x: x + Long(0.7)),
    "from a number": (lambda a: 0.7 - a, lambda x: Long(0.7) - x),
    "times a number": (lambda a: a * -0.7, lambda x: x * Long(-0.7)),
    "over a number": (lambda a: a / -3.0, lambda x: x / -3),
    "sin": (lambda a: a.sin(), np.sin),
    "cos": (lambda a: a.cos(), np.cos),
    "deg2rad": (lambda a: a.deg2rad(), lambda x: x * PI / 180),
    "reciprocal": (lambda a: a.reciprocal(), lambda x: np.where(x > 0, 1 / x, np.nan)),
    "clamp01": (lambda a: a.clamp01(), clamped),
    "exactly": (lambda a: a.exactly(lambda end: end.clone()), lambda x: x),
}


def intervals(name: str, rng: np.random.Generator) -> Case:
    function, exact = (TWO_INTERVALS | ONE_INTERVAL)[name]
    operands = 2 if name in TWO_INTERVALS else 1
    count, points = 120, 12
    turning = name in ("sin", "cos")
    middle = (
        rng.normal(size=(2, count)) * 10.0 ** rng.uniform(-9, 1, count)
        if not turning
        else rng.uniform(-8, 8, (2, count))
    )
    if turning:  # some around or near a turning point
        near = np.rint(middle / (np.pi / 2)) * (np.pi / 2)
        middle = np.where(rng.random((2, count)) < 0.6, near, middle)
    half = 10.0 ** rng.uniform(-17, 0.8, (2, count)) * (np.abs(middle) if not turning else 1)
    if name == "reciprocal":
        middle = np.abs(middle)
    side = rng.integers(-1, 2, (2, count))
    low, high = middle - half * (side <= 0), middle + half * (side >= 0)
    if name == "mul":
        low[0, :2], high[0, :2], high[1, :2] = 0.0, 1.0, np.inf
    share = rng.random((points, 2, count))
    share[:2] = np.array([0.0, 1.0])[:, None, None]
    share[2:6] = np.rint(share[2:6])
    with np.errstate(invalid="ignore"):
        x = np.clip(low + (high - low).astype(Long) * share, low, high).astype(Long)
        truth = exact(*(x[:, k] for k in range(operands)))
    if turning:  # the very top, where an interval contains it
        turn = np.rint(middle[0].astype(Long) / (PI / 2)) * (PI / 2)
        inside = (turn > low[0] + 1e-15) & (turn < high[0] - 1e-15)
        truth[-1] = np.where(inside, exact(turn), truth[-1])
    doubt = np.nan_to_num(np.abs(truth) * (4 * EPS))

    def operate() -> Bounds:
        import torch

        from tiltproof.enclosures.affine_form import Interval

        made = [Interval(torch.tensor(low[k]), torch.tensor(high[k])) for k in range(operands)]
        return of_interval(function(*made))

    return Case(f"interval {name}", truth, doubt, np.zeros((points, 0, 1)), operate, False, kind="intervals")


def camera_depths(rng: np.random.Generator) -> Case:
    """Build a case of `check_limits`: if it accepts a box, all depths are at least 1/16."""
    count, size = 6, (5, 7)
    letters = ("Yaw@3", "Pitch@4")
    reach = rng.uniform(0, 55, (count, 2))
    theta, _ = members(-reach, reach, 12, rng)
    depth = positions(letters, theta.reshape(-1, 2), *size)[2].reshape(12, count, -1).min(-1)

    def function() -> Bounds:
        import torch

        from tiltproof.errors import InputError
        from tiltproof.pixels.coordinates import check_limits
        from tiltproof.transforms.base import parse

        lower = np.full(count, 0.0625)
        for k in range(count):
            try:
                check_limits(
                    parse(text_of(letters, "zeros")),
                    *size,
                    torch.tensor(-reach[k : k + 1]),
                    torch.tensor(reach[k : k + 1]),
                )
            except InputError:
                lower[k] = -1e9
        plain = np.zeros(count)
        return {
            "center": plain,
            "slopes": plain[None][:0],
            "radius": plain + np.inf,
            "lower": lower,
            "upper": plain + np.inf,
        }

    return Case("camera depth", depth, depth * 0 + 1e-9, np.zeros((12, 0, 1)), function, False, kind="camera_depths")


def inputs(seed: int = 0) -> list[Case]:
    return list(_inputs(np.random.default_rng([seed, 20])))


FAMILIES = [
    ("R",), ("Tu",), ("Tv",), ("Sc",), ("Sh",), ("R", "Sh"), ("Tu", "Tv"), ("Sc", "R"), ("Yaw@9",), ("Pitch@7.5", "R"),
    ("Scu", "Shv"), ("Tu", "C"), ("C", "R"), ("R", "C", "B"), ("B", "Tu", "C"), ("Tu", "G"), ("G",), ("S",), ("H", "S"), ("Bl@4",),
    ("Mb@30",), ("Mb@0", "Tu"), ("R", "Bl@1"), ("C",), ("B", "C"), ("Roll", "Mb@90"), ("G", "R"), ("C", "Sh", "G"),
]  # fmt: skip


def _inputs(rng: np.random.Generator) -> Any:
    for name in [*UNARY, *FUNCTIONS, *BINARY]:
        for quadratic in (False, True):
            yield sums(name, rng, quadratic=quadratic)
            if name in UNARY or name in ("add", "sub", "mul"):
                yield sums(name, rng, quadratic=quadratic, dtype="float32")
    for name in ("sin", "cos"):
        yield sums(name, rng, large=True)
    for name in [*TWO_INTERVALS, *ONE_INTERVAL]:
        yield intervals(name, rng)
    for letters in FAMILIES:
        if all(name in SPATIAL for name in names_of(letters)):
            for regime in ("thin", "medium", "huge"):
                yield places(letters, regime, rng)
            if len(letters) == 1:
                yield places(letters, "medium", rng, quadratic=True)
    yield camera_depths(rng)
    moves = [each for each in FAMILIES if {*names_of(each)} <= {*SPATIAL, "C", "B"} and names_of(each)[0] in SPATIAL]
    for number, letters in enumerate([*moves, *moves, ("B",), ("R", "Tu", "Tv"), ("Scv", "Roll")]):
        for regime in ("narrow", "thin", "medium"):
            yield polynomials(
                letters,
                ("zeros", "border", "reflect")[number % 3],
                rng,
                degree=(4, 3, 2, 4)[number % 4],
                symbols=(64, 0, 3)[number % 3],
                regime=regime,
                kind=number,
            )
    for number in range(10):
        for scale in ("usual", "signs", "close", "tiny", "negative"):
            options = {
                "d": 1 + number % 2,
                "scale": scale,
                "shared": number % 3 == 1,
                "dtype": "float32" if number % 5 == 4 else "float64",
            }
            padding = (
                ("zeros", "border", "zeros", "border", "reflect")[number % 5]
                if scale != "close"
                else ("zeros", "border")[number % 2]
            )
            yield spots(number % 4, padding, rng, left=(1.0, 0.75)[number % 7 == 3], **options)
    for kind, padding in ((4, "zeros"), (4, "border"), (5, "zeros"), (5, "border")):
        for scale in ("usual", "negative", "steps", "close"):
            yield spots(kind, padding, rng, scale=scale, count=600 if scale == "steps" else 200, points=1)
    for kind in (6, 7, 8, 9, 10):
        for padding in ("zeros", "border"):
            yield spots(kind, padding, rng, count=30, points=8)
    number = 0
    for letters in FAMILIES:
        names = names_of(letters)
        spatial = names[0] in SPATIAL
        alone = set(names) <= set(SPATIAL)
        turn = FAMILIES.index(letters) % 3
        for padding in ("zeros", "border", "reflect") if alone else (("zeros", "border", "reflect")[turn],):
            for method, regime in (
                ("affine", "thin"),
                ("affine", "medium"),
                ("affine", "huge"),
                ("hull", "medium"),
                ("fgv", "medium"),
                ("quadratic", "medium"),
            ):
                number += 1
                if (method == "fgv" and set(names) & {"G", "S", "H", "Bl", "Mb"}) or (
                    method == "quadratic" and not (spatial and len(names) == 1)
                ):
                    continue
                if method in ("hull", "fgv"):
                    regime = ("thin", "medium", "huge")[number % 3]
                    if method == "fgv" and {"Yaw", "Pitch"} & set(names):  # it refuses to pad an image too far
                        regime = "medium"
                options: dict[str, Any] = {
                    "quadratic": method == "quadratic",
                    "dtype": "float32" if number % 3 == 0 else "float64",
                }
                options |= {
                    "size": SIZES[number % len(SIZES) if number % 3 else 0],
                    "kind": number % 8 if number % 2 else 0,
                }
                if number % 4 == 1:
                    options |= {"distinct": 5}
                if number % 2:
                    options["patches"] = {"single_cell.CACHED_PIXELS": 64, "api.CACHED_ENTRIES": 50}
                if "Bl" in names or "Mb" in names:
                    options["count"] = 8
                yield pairs(letters, padding, "affine" if method == "quadratic" else method, regime, rng, **options)
    yield from _crossings(rng)
    x = rng.random((120, 1, 28, 28))
    ends = np.array([[-20.0], [10.0]])
    yield pairs(("R",), "zeros", "affine", "two boxes", rng, images=x, count=120, points=2, given=(ends, ends + 0.01))
    for letters, half in ((("Tu", "Tv"), (8.0, 7.0)), (("R",), (70.0,))):  # more cells than are walked one by one
        middle = rng.uniform(-3, 3, (4, len(half)))
        images = rng.random((2, 1, 21, 18))
        images[1] = np.linspace(0, 1, 18)  # extreme at one end of each box
        for padding in ("zeros", "border", "reflect"):
            ends = middle - np.array(half), middle + np.array(half)
            yield pairs(letters, padding, "hull", "wide", rng, images=images, count=4, points=8, given=ends)
    spot = np.zeros((1, 1, 9, 9))
    spot[0, 0, 4, 4] = 1
    ends = np.linspace(0.3, 0.6, 4)[:, None], np.linspace(2, 4, 4)[:, None]
    for method in ("hull", "affine"):  # each weight of a blur alone; most are largest inside of these boxes
        yield pairs(("Bl@4",), "zeros", method, "wide", rng, images=spot, count=4, points=12, given=ends)


def _crossings(rng: np.random.Generator) -> Any:
    """Build shifts over a grid line by 2^-51 to 0.1, of images with the largest possible steps."""
    steps = np.tile([0.0, 1.0], 3).reshape(1, 1, 1, 6)
    width = 2.0 ** -np.arange(3, 52, 2.0)
    for place in (0.0, 0.25, 0.5, 1.0):
        for side in ((-1, 1), (0, 1), (-1, 0)):
            given = tuple((place + end * width)[:, None] for end in side)
            yield pairs(("Tu",), "zeros", "affine", "crossing", rng, images=steps, count=40, points=6, given=given)
    for letters in (("Tv",), ("Tu",)):
        given = ((0.5 - width)[:, None], (0.5 + width)[:, None])
        yield pairs(
            letters,
            "border",
            "affine",
            "crossing",
            rng,
            images=rng.random((2, 1, 5, 6)),
            count=30,
            points=6,
            given=given,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="pixel bounds of the code itself against true values")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    bad, took = 0, dict[str, float]()
    for seed in range(options.seed, options.seed + options.rounds):
        began = time.perf_counter()
        cases = inputs(seed)
        made, pixels = time.perf_counter() - began, 0
        took.clear()
        for case in cases:
            start = time.perf_counter()
            found = violations(case, run(case))
            took[str(case)] = time.perf_counter() - start
            pixels += int(np.isfinite(case.truth).sum())
            if found is not None:
                bad += 1
                print(f"seed {seed}: {case}: {found}", flush=True)  # noqa: T201
        seconds = sum(took.values())
        text = f"{len(cases)} cases, {pixels} true values in {seconds:.1f} s, made in {made:.1f} s"
        print(f"seed {seed}: {text}", flush=True)  # noqa: T201
    for name, each in sorted(took.items(), key=lambda item: -item[1])[:10]:
        print(f"    {each:.3f} s  {name}")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
