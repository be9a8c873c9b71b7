"""How large the boxes of training should be: the paper's procedure for nu, its appendix "Parameter Interval Sizes".

A box of parameters becomes a width in pixels. Ten parameter vectors theta_k are drawn from the whole range; over each
box theta_k +- nu every pixel gets a lower and an upper bound; of each image the largest width upper - lower counts, and
mu is its mean over all images and all theta_k. nu is right when mu is near a customary epsilon: 0.2 to 0.4 for MNIST,
4/255 to 8/255 for CIFAR-10. No training is needed.

The reading of the procedure that gives the paper's table of widths (method ``fgv``; ``benchmarks/pixel_widths.py``):
images of the training set, without crops and flips; boxes are not cut off at the ends of the range; bounds are those
after the whole transformation, clamped to [0, 1]; the table's certification columns are the same quantity with half of
the certification interval as nu, around sampled theta_k and not over the splits of a tiling. Rounding slack is in the
widths, but of the order 1e-13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.pixels.api import check_images, check_method, pair_bounds
from tiltproof.pixels.camera_depth import check_camera_depth, has_camera
from tiltproof.transforms import Gamma, Scaling, Transform, parse

SAMPLES = 10
"""Parameter vectors, the paper's number."""
CLOSE = 0.01
"""How near to epsilon, relative to it, mu is brought."""
GUESSES, MOST_STEPS = 8, 40
LEAST_WIDTH = 1e-9
"""Narrower pixels are rounding."""
CHUNK_ENTRIES = 2**18
"""Pixels bounded at a time."""


@dataclass(frozen=True)
class Widths:
    """Pixel widths over the boxes theta_k +- nu; each is a mean over images and theta_k, with its standard error.

    The error counts images and parameters as samples; the parameters are drawn more evenly than it assumes, so it
    errs on the large side.
    """

    average: float
    """The mean width of an image's pixels."""
    maximum: float
    """The largest width of an image's pixels: the paper's mu."""
    average_error: float
    maximum_error: float
    remainder_average: float
    """The part of the width that no symbol explains; for methods without symbols all of it."""
    remainder_maximum: float


def pixel_widths(
    images: Tensor,
    transform: Transform | str,
    nu: Sequence[float],
    method: str = "fgv",
    samples: int = SAMPLES,
    seed: int = 0,
) -> Widths:
    """The widths of the pixels of ``images`` [N, C, H, W] over boxes of half widths ``nu``, one a parameter."""
    transform = parse(transform) if isinstance(transform, str) else transform
    check_images(images)
    half = _half_widths(nu, transform)
    check_method(method, transform)
    transform.check_channels(images.shape[1])
    if samples < 1:
        raise InputError("at least one parameter vector has to be sampled", got=samples)
    _check_wider(transform, half, images)
    centers = sample_parameters(transform, samples, seed)
    half = half.to(images.device)
    found = [_widths_around(images, transform, method, center.to(images.device), half) for center in centers]
    table = torch.stack(found, 1)  # [4, samples, N]
    means, errors = table.mean((1, 2)).tolist(), _standard_errors(table)
    return Widths(means[0], means[1], errors[0], errors[1], means[2], means[3])


def tune(
    images: Tensor,
    transform: Transform | str,
    epsilon: float,
    start: Sequence[float] | None = None,
    method: str = "fgv",
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[float, ...]:
    """The half widths nu for which the mean largest pixel width mu is within 1 % of ``epsilon``.

    ``start`` gives the proportions of nu; by default they are such that every parameter by itself widens pixels
    equally (`equal_effects`). All are scaled together, none beyond half of its range, where one box covers the range.
    """
    transform = parse(transform) if isinstance(transform, str) else transform
    if not LEAST_WIDTH <= epsilon <= 1:
        raise InputError(
            "epsilon is a pixel width above 0, at most 1", got=epsilon, do="0.2 for MNIST, 0.0157 for CIFAR-10"
        )
    if start is None:
        start = equal_effects(images, transform, method, samples, seed)
    direction, most = _half_widths(start, transform), _largest(transform, images)

    limit = float((most / direction)[direction > 0].max())
    low, high, scale = 0.0, math.inf, min(1.0, limit)
    for step in range(MOST_STEPS):
        nu = tuple(torch.minimum(direction * scale, most).tolist())
        mu = pixel_widths(images, transform, nu, method, samples, seed).maximum
        if abs(mu - epsilon) <= CLOSE * epsilon:
            return nu
        if mu < epsilon and scale == limit:
            raise InputError(
                f"epsilon is out of reach: pixels of these images are not so wide under {transform}",
                got=f"epsilon {epsilon:g}, but {mu:.4g} with nu at half of each range",
                do="choose a smaller epsilon",
            )
        low, high = (scale, high) if mu < epsilon else (low, scale)
        # Widths grow nearly in proportion to the box, so the ratio is a good guess; doubling and halving end for sure.
        guess = scale * epsilon / mu if mu > 0 else 2 * scale
        if step >= GUESSES or not low < guess < high:
            guess = 2 * scale if high == math.inf else (low + high) / 2
        scale = min(guess, limit)
    raise InputError(
        f"no nu gives the pixel width {epsilon:g}",
        got=f"{mu:.4g} at nu {nu}",
        why="epsilon is too small, or widths jump",
    )


def equal_effects(
    images: Tensor, transform: Transform, method: str = "fgv", samples: int = SAMPLES, seed: int = 0
) -> tuple[float, ...]:
    """Half widths such that each parameter, the others held, widens pixels as much as the first one does.

    Measured with a hundredth of each range; none is larger than half of its range.
    """
    largest = _largest(transform, images)
    small = largest / 50
    alone = []
    for k in range(len(small)):
        nu = torch.zeros_like(small)
        nu[k] = small[k]
        alone.append(pixel_widths(images, transform, nu.tolist(), method, samples, seed).maximum)
    effects = torch.tensor(alone, dtype=torch.float64) / small
    if min(alone) < LEAST_WIDTH:
        raise InputError(
            f"{transform} does not change these images",
            why="images of one colour",
            do="give the proportions of nu yourself",
        )
    wanted = small[0] * effects[0] / effects
    return tuple((wanted / (wanted / largest).max().clamp(min=1)).tolist())


def sample_parameters(transform: Transform, samples: int, seed: int) -> Tensor:
    """Parameter vectors, each uniform over the range, float64 [samples, d].

    They are a Latin hypercube: of ten, one lies in each tenth of each parameter's range, which takes most of the chance
    out of their mean.
    """
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    chance = torch.Generator().manual_seed(seed)
    within = torch.rand(samples, len(low), generator=chance, dtype=torch.float64)
    strata = torch.stack([torch.randperm(samples, generator=chance) for _ in low], 1)
    return low + (high - low) * ((strata + within) / samples)


def _widths_around(images: Tensor, transform: Transform, method: str, center: Tensor, half: Tensor) -> Tensor:
    """Of each image over the box center +- half: mean width, largest width, and the same of remainders; [4, N].

    All images share the box. Handed over as the channels of one picture, they share the work on the coordinates too; unless a
    part mixes channels.
    """
    count, _, height, width = images.shape
    least = center.new_tensor([-math.inf if part.minimum is None else part.minimum for part in transform.parts])
    low, high = torch.maximum(center - half, least)[None], (center + half)[None]
    together = all(part.channels is None for part in transform.parts)
    kept = []
    for part in images.split(max(1, CHUNK_ENTRIES // images[0].numel())):
        picture = part.double().reshape(1 if together else len(part), -1, height, width)
        rows_of = torch.arange(len(picture), device=images.device)
        below, above = (end.expand(len(picture), -1) for end in (low, high))
        form = pair_bounds(picture, rows_of, transform, method, below, above)
        for size in (form.width, 2 * form.radius):
            pixels = size.reshape(len(part), -1)
            kept.append(torch.stack([pixels.mean(1), pixels.amax(1)]))
    pairs = [torch.cat(kept[k::2], 1) for k in range(2)]
    return torch.cat(pairs).view(4, count).cpu()


def _standard_errors(table: Tensor) -> list[float]:
    """Of the means over parameters and images of [quantities, samples, N], both being drawn independently."""
    total = torch.zeros(len(table), dtype=table.dtype)
    for means in (table.mean(1), table.mean(2)):  # of each image, of each parameter vector
        if means.shape[1] > 1:
            total += means.var(1) / means.shape[1]
    return total.sqrt().tolist()


def _half_widths(nu: Sequence[float], transform: Transform) -> Tensor:
    numbers = [float(one) for one in nu]
    right = all(math.isfinite(one) and one >= 0 for one in numbers) and any(numbers)
    if len(numbers) != len(transform.parts) or not right:
        raise InputError(
            f"nu needs {len(transform.parts)} half widths that are finite and not negative",
            got=numbers,
            do=f"give them in the order {transform}",
        )
    return torch.tensor(numbers, dtype=torch.float64)


def _check_wider(transform: Transform, half: Tensor, images: Tensor) -> None:
    """Boxes around parameters near the ends of the range lie partly outside of it; the transformation must be defined there too."""
    for part, one in zip(transform.parts, half.tolist(), strict=True):
        low = part.range[0] - one
        part.check(low if part.minimum is None else max(low, part.minimum), part.range[1] + one)
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (transform.low, transform.high))
    check_camera_depth(transform, images.shape[-2], images.shape[-1], low - half, high + half)


def _largest(transform: Transform, images: Tensor) -> Tensor:
    """Half of each range; less where scaling would shrink a picture to a point, gamma make it white, or a camera turn too far."""
    halves = []
    for part in transform.parts:
        low, high = part.range
        half = (high - low) / 2
        halves.append(min(half, 0.9 * (low + 100)) if isinstance(part, (Scaling, Gamma)) else half)
    largest = torch.tensor(halves, dtype=torch.float64)
    for _ in range(MOST_STEPS if has_camera(transform) else 0):
        try:
            _check_wider(transform, largest, images)
            break
        except InputError:
            largest = 0.8 * largest
    return largest
