"""Choosing the boxes of training: the paper's procedure for nu, appendix "Parameter Interval Sizes".

It converts a box of parameters to a width in pixels. Ten parameter vectors theta_k are drawn from the whole range. Over each box
theta_k +- nu every pixel gets a lower and an upper bound; mu is the mean, over all images and theta_k, of the largest width in an
image. nu is right if mu is near a customary epsilon: 0.2 to 0.4 for MNIST, 4/255 to 8/255 for CIFAR-10. No training is needed.

The details that reproduce the paper's table of widths (method ``fgv``; ``benchmarks/pixel_widths.py``): images of the training set,
without crops and flips; boxes are not cut off at the ends of the range; bounds are those after the whole transformation, clamped to
[0, 1]. The table's certification columns are the same quantity with half of the certification interval as nu, around sampled theta_k
and not over the splits of a partition. Widths include the allowance for rounding, of the order 1e-13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.names import TUNE_SAMPLES
from tiltproof.pixels.api import check_images, check_method, pair_bounds
from tiltproof.pixels.coordinates import check_limits, has_limits
from tiltproof.training.sampling import half_widths
from tiltproof.transforms import Gamma, Scaling, Transform, parse

TOLERANCE = 0.01
"""Relative difference between mu and epsilon at which the search ends."""
SECANT_STEPS = 8
"""Steps by linear extrapolation, before bisection."""
MAX_STEPS = 40
"""Limit of all steps."""
MIN_WIDTH = 1e-9
"""Smaller widths are rounding errors."""
CHUNK_ENTRIES = 2**18
"""Pixels bounded at once."""


@dataclass(frozen=True)
class Widths:
    """Pixel widths over the boxes theta_k +- nu: means over images and theta_k, with standard errors.

    The errors treat images and parameters as independent samples. Parameters are stratified, so the errors are too large.

    Attributes
    ----------
    average, average_error : float
        The mean width of an image's pixels.
    maximum, maximum_error : float
        The largest width of an image's pixels: the paper's mu.
    remainder_average, remainder_maximum : float
        The part of these widths in the remainder; all of them for methods without symbols.
    """

    average: float
    maximum: float
    average_error: float
    maximum_error: float
    remainder_average: float
    remainder_maximum: float


def pixel_widths(
    images: Tensor,
    transform: Transform | str,
    nu: Sequence[float],
    method: str = "fgv",
    samples: int = TUNE_SAMPLES,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Widths:
    """Measure the widths of pixel bounds over boxes around sampled parameters.

    Parameters
    ----------
    images : Tensor
        Images [N, C, H, W] with values in [0, 1].
    transform : Transform or str
        The transformation.
    nu : sequence of float
        Half widths of the boxes, one per parameter.
    method : {"fgv", "hull", "affine"}
        The pixel bounds.
    samples : int
        Number of parameter vectors.
    seed : int
        Seed of the parameter vectors.
    progress : callable, optional
        Called, without an argument, for each parameter vector that has been measured.

    Returns
    -------
    Widths
        Mean and largest widths, with standard errors.

    Raises
    ------
    InputError
        If an argument is invalid, or the transformation is not defined on a box.
    """
    transform = parse(transform) if isinstance(transform, str) else transform
    transform.refuse_noise("tune")
    check_images(images)
    half = _half_widths(nu, transform)
    check_method(method, transform)
    transform.check_channels(images.shape[1])
    if samples < 1:
        raise InputError("samples must be at least 1", got=samples)
    _check_wider(transform, half, images)
    centers = sample_parameters(transform, samples, seed)
    half = half.to(images.device)
    found = []
    for center in centers:
        found.append(_widths_around(images, transform, method, center.to(images.device), half))
        if progress is not None:
            progress()
    table = torch.stack(found, 1)  # [4, samples, N]
    means, errors = table.mean((1, 2)).tolist(), _standard_errors(table)
    return Widths(means[0], means[1], errors[0], errors[1], means[2], means[3])


def tune(
    images: Tensor,
    transform: Transform | str,
    epsilon: float,
    start: Sequence[float] | None = None,
    method: str = "fgv",
    samples: int = TUNE_SAMPLES,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> tuple[float, ...]:
    """Find half widths nu for which the mean largest pixel width mu is within 1 % of ``epsilon``.

    Parameters
    ----------
    images : Tensor
        Images [N, C, H, W] with values in [0, 1].
    transform : Transform or str
        The transformation.
    epsilon : float
        The wanted width, above 0 and at most 1.
    start : sequence of float, optional
        The proportions of nu; by default each parameter alone has the same effect (`equal_effects`). All are scaled together,
        none beyond half of its range, where one box covers the range.
    method : {"fgv", "hull", "affine"}
        The pixel bounds.
    samples : int
        Number of parameter vectors.
    seed : int
        Seed of the parameter vectors.
    progress : callable, optional
        As in `pixel_widths`.

    Returns
    -------
    tuple of float
        One half width per parameter.

    Raises
    ------
    InputError
        If an argument is invalid, or no nu gives this width.
    """
    transform = parse(transform) if isinstance(transform, str) else transform
    transform.refuse_noise("tune")
    if not MIN_WIDTH <= epsilon <= 1:
        raise InputError(
            "epsilon is a pixel width above 0, at most 1", got=epsilon, do="0.2 for MNIST, 0.0157 for CIFAR-10"
        )
    if start is None:
        start = equal_effects(images, transform, method, samples, seed, progress)
    direction, most = _half_widths(start, transform), _largest(transform, images)

    limit = float((most / direction)[direction > 0].max())
    low, high, scale = 0.0, math.inf, min(1.0, limit)
    for step in range(MAX_STEPS):
        nu = tuple(torch.minimum(direction * scale, most).tolist())
        mu = pixel_widths(images, transform, nu, method, samples, seed, progress).maximum
        if abs(mu - epsilon) <= TOLERANCE * epsilon:
            return nu
        if mu < epsilon and scale == limit:
            raise InputError(
                f"epsilon is out of reach: pixels of these images are not so wide under {transform}",
                got=f"epsilon {epsilon:g}, but {mu:.4g} with nu at half of each range",
                do="choose a smaller epsilon",
            )
        low, high = (scale, high) if mu < epsilon else (low, scale)
        # widths are nearly proportional to the box, so try the ratio first; doubling and bisection always end
        guess = scale * epsilon / mu if mu > 0 else 2 * scale
        if step >= SECANT_STEPS or not low < guess < high:
            guess = 2 * scale if high == math.inf else (low + high) / 2
        scale = min(guess, limit)
    raise InputError(
        f"no nu gives the pixel width {epsilon:g}",
        got=f"{mu:.4g} at nu {nu}",
        why="epsilon is too small, or widths jump",
    )


def equal_effects(
    images: Tensor,
    transform: Transform,
    method: str = "fgv",
    samples: int = TUNE_SAMPLES,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> tuple[float, ...]:
    """Return half widths for which each parameter alone has the same effect on pixel widths as the first one.

    Effects are measured with a hundredth of each range; no half width exceeds half of its range.
    """
    transform.refuse_noise("tune")
    largest = _largest(transform, images)
    small = largest / 50
    alone = []
    for k in range(len(small)):
        nu = torch.zeros_like(small)
        nu[k] = small[k]
        alone.append(pixel_widths(images, transform, nu.tolist(), method, samples, seed, progress).maximum)
    effects = torch.tensor(alone, dtype=torch.float64) / small
    if min(alone) < MIN_WIDTH:
        raise InputError(
            f"{transform} does not change these images",
            why="images of one color",
            do="give the proportions of nu yourself",
        )
    wanted = small[0] * effects[0] / effects
    return tuple((wanted / (wanted / largest).max().clamp(min=1)).tolist())


def sample_parameters(transform: Transform, samples: int, seed: int) -> Tensor:
    """Draw parameter vectors uniformly over the range, float64 [samples, d].

    They are a Latin hypercube sample: of ten, one lies in each tenth of each parameter's range, which reduces the variance of means.
    """
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    chance = torch.Generator().manual_seed(seed)
    within = torch.rand(samples, len(low), generator=chance, dtype=torch.float64)
    strata = torch.stack([torch.randperm(samples, generator=chance) for _ in low], 1)
    return low + (high - low) * ((strata + within) / samples)


def _widths_around(images: Tensor, transform: Transform, method: str, center: Tensor, half: Tensor) -> Tensor:
    """Return the mean and largest width of each image over the box center +- half, and the same of remainders; [4, N].

    All images share the box. Unless a part mixes channels, they are passed as channels of one image, to share coordinates too.
    """
    count, _, height, width = images.shape
    minima = center.new_tensor([-math.inf if part.minimum is None else part.minimum for part in transform.parts])
    low, high = torch.maximum(center - half, minima)[None], (center + half)[None]
    merged = all(part.channels is None for part in transform.parts)
    found = []
    for part in images.split(max(1, CHUNK_ENTRIES // images[0].numel())):
        stacked = part.double().reshape(1 if merged else len(part), -1, height, width)
        rows_of = torch.arange(len(stacked), device=images.device)
        below, above = (end.expand(len(stacked), -1) for end in (low, high))
        form = pair_bounds(stacked, rows_of, transform, method, below, above)
        for size in (form.width, 2 * form.radius):
            pixels = size.reshape(len(part), -1)
            found.append(torch.stack([pixels.mean(1), pixels.amax(1)]))
    pairs = [torch.cat(found[k::2], 1) for k in range(2)]
    return torch.cat(pairs).view(4, count).cpu()


def _standard_errors(table: Tensor) -> list[float]:
    """Return standard errors of the means of [quantities, samples, N], with independent samples and images."""
    total = torch.zeros(len(table), dtype=table.dtype)
    for means in (table.mean(1), table.mean(2)):  # of each image, of each parameter vector
        if means.shape[1] > 1:
            total += means.var(1) / means.shape[1]
    return total.sqrt().tolist()


def _half_widths(nu: Sequence[float], transform: Transform) -> Tensor:
    half = torch.tensor(half_widths(tuple(nu), transform, "nu"), dtype=torch.float64)
    if not half.any():
        raise InputError("nu needs at least one positive half width", got=half.tolist())
    return half


def _check_wider(transform: Transform, half: Tensor, images: Tensor) -> None:
    """Check that the transformation is defined on boxes that extend beyond the range."""
    for part, one in zip(transform.parts, half.tolist(), strict=True):
        low = part.range[0] - one
        part.check(low if part.minimum is None else max(low, part.minimum), part.range[1] + one)
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (transform.low, transform.high))
    check_limits(transform, images.shape[-2], images.shape[-1], low - half, high + half)


def _largest(transform: Transform, images: Tensor) -> Tensor:
    """Return half of each range, or less where scaling, gamma or a camera would leave its domain."""
    halves = []
    for part in transform.parts:
        low, high = part.range
        half = (high - low) / 2
        halves.append(min(half, 0.9 * (low + 100)) if isinstance(part, (Scaling, Gamma)) else half)
    largest = torch.tensor(halves, dtype=torch.float64)
    for _ in range(MAX_STEPS if has_limits(transform) else 0):
        try:
            _check_wider(transform, largest, images)
            break
        except InputError:
            largest = 0.8 * largest
    return largest
