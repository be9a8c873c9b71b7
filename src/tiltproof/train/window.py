"""Algorithm 1 over a window of fixed size, for training: no list of non-zero weights, so shapes never depend on values.

Around each output pixel's coordinate box only the grid lines nearer than 1 have weight. With a window of ``lines`` of them each way
the bounds are the same numbers as Algorithm 1's, every image may have its own box, and a GPU can replay the whole step.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from tiltproof.bounds.coordinates import interval_coordinates
from tiltproof.bounds.interval import Interval
from tiltproof.transforms import Spatial, Transform

SAMPLES = 64


def lines_needed(transform: Transform, half: tuple[float, ...], height: int, width: int) -> int:
    """Enough grid lines for every box of these half widths inside the range: those nearer than 1 to an interval of the widest extent."""
    generator = torch.Generator().manual_seed(0)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    corners = torch.rand(SAMPLES, len(half), generator=generator, dtype=torch.float64)
    corners[:2] = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    if len(half) <= 6:  # a camera that has turned far sees the widest
        ends = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(half))), dtype=torch.float64)
        corners = torch.cat([corners, ends])
    center, spread = low + (high - low) * corners, torch.tensor(half, dtype=torch.float64)
    widest = 0.0
    for kind, run in transform.stages():
        if kind is Spatial:
            for axis in interval_coordinates(transform, run, center - spread, center + spread, height, width):
                widest = max(widest, float((axis.upper - axis.lower).max()))
    return math.floor(1.1 * widest) + 4


def window_bounds(images: Tensor, transform: Transform, low: Tensor, high: Tensor, lines: int) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of all pixels [N, C, H, W]; boxes float64 [N, d], or [1, d] for all images."""
    picture = Interval(images, images)
    for kind, run in transform.stages():
        if kind is Spatial:
            columns, rows = interval_coordinates(transform, run, low, high, *images.shape[-2:])
            picture = _resampled(picture, columns, rows, lines)
        else:
            for k in run:
                value = Interval(*(end[:, k].to(images.dtype).view(-1, 1, 1, 1) for end in (low, high)))
                picture = transform.parts[k].pixels(picture, value)
        picture = picture.clamp01()
    return picture.lower, picture.upper


def _resampled(picture: Interval, columns: Interval, rows: Interval, lines: int) -> Interval:
    number, channels, height, width = picture.lower.shape
    (column, across), (row, down) = _weights(columns, width, lines), _weights(rows, height, lines)
    index = (row.unsqueeze(-1) * width + column.unsqueeze(-2)).flatten(-2)  # [B, H, W, lines^2]
    ends = []
    for pixels, x, y in ((picture.lower, across.lower, down.lower), (picture.upper, across.upper, down.upper)):
        weight = (y.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2).to(pixels.dtype).flatten(1, 2)
        places = index.flatten(1).unsqueeze(1)
        found = (
            pixels.flatten(2).gather(2, places.expand(number, channels, -1)).view(number, channels, height * width, -1)
        )
        ends.append((found * weight.unsqueeze(1)).sum(-1).view(number, channels, height, width))
    return Interval(ends[0], ends[1])


def _weights(positions: Interval, size: int, lines: int) -> tuple[Tensor, Interval]:
    """The grid lines around each interval, clamped into the picture, and max(0, 1 - distance) as intervals; 0 outside the picture."""
    first = (positions.lower - 1).ceil()
    line = first.unsqueeze(-1) + torch.arange(lines, device=first.device, dtype=first.dtype)
    below, above = line - positions.upper.unsqueeze(-1), line - positions.lower.unsqueeze(-1)
    nearest = torch.maximum(below, -above).clamp(min=0)
    farthest = torch.maximum(above, -below)
    inside = (line >= 0) & (line <= size - 1)
    lower, upper = ((1 - distance).clamp(min=0) * inside for distance in (farthest, nearest))
    return line.clamp(0, size - 1).long(), Interval(lower, upper)
