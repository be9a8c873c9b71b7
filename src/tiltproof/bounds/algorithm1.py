"""The paper's Algorithm 1 ("Fast interval interpolated transformation"), line by line; method name ``fgv``.

Interpolation distances between every output pixel and every source pixel are intervals; nearly all are [0, 0], so the
grid is kept in coordinate form: rows r, columns c, intervals w, and z, how many entries belong to each output pixel.
Padding other than zeros is the paper's appendix: pad the picture first, interpolate over the larger one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.bounds.coordinates import interval_coordinates
from tiltproof.bounds.interval import Interval
from tiltproof.bounds.rounding import UNIT
from tiltproof.errors import InputError
from tiltproof.transforms.base import Transform
from tiltproof.transforms.sampling import ring_index

FARTHEST = 2**15
"""Largest side to which a picture is padded for paddings other than zeros."""

CHUNK_ENTRIES = 2**24
"""Entries of the dense grid that are held at a time; memory stays bounded at any picture size."""


@dataclass
class SparseGrid:
    """(r, c, w, z) of the paper."""

    rows: Tensor
    columns: Tensor
    weights: Interval
    counts: Tensor


def hat(position: Interval, lines: Tensor) -> Interval:
    """max(0, 1 - |position - line|) in interval arithmetic, [pixels, lines]."""
    low, high = position.lower[:, None] - lines, position.upper[:, None] - lines
    far = torch.maximum(low.abs(), high.abs())
    near = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    # |position - line| < 1 wherever it matters and positions carry their own slack: 4 roundings of numbers up to the picture's size
    slack = 4 * UNIT[low.dtype] * (1 + lines.abs())
    lower = (1 - far - slack).clamp(min=0).nan_to_num(0.0)
    return Interval(lower, torch.where(near >= 1, 0.0, (1 - near + slack).clamp(max=1).nan_to_num(1.0)))


def make_grid(columns: Interval, rows: Interval, height: int, width: int) -> SparseGrid:
    """MakeInterpGrid for positions [pixels] over a source picture of height x width."""
    parts, counts = [], []
    pixels = len(columns.lower)
    step = max(1, CHUNK_ENTRIES // (height * width))
    row_lines = torch.arange(height, dtype=columns.lower.dtype, device=columns.lower.device)
    column_lines = torch.arange(width, dtype=columns.lower.dtype, device=columns.lower.device)
    for begin in range(0, pixels, step):
        chunk = slice(begin, begin + step)
        vertical = hat(Interval(rows.lower[chunk], rows.upper[chunk]), row_lines)
        horizontal = hat(Interval(columns.lower[chunk], columns.upper[chunk]), column_lines)
        upper = vertical.upper[:, :, None] * horizontal.upper[:, None, :]
        pixel, r, c = upper.nonzero(as_tuple=True)
        lower = vertical.lower[pixel, r] * horizontal.lower[pixel, c]
        parts.append((r, c, Interval.outward(lower, upper[pixel, r, c])))
        counts.append(torch.bincount(pixel, minlength=len(upper)))
    weights = Interval(
        torch.cat([w.lower for _, _, w in parts]).clamp(min=0), torch.cat([w.upper for _, _, w in parts])
    )
    return SparseGrid(
        torch.cat([r for r, _, _ in parts]), torch.cat([c for _, c, _ in parts]), weights, torch.cat(counts)
    )


def interpolate(pictures: Interval, grid: SparseGrid) -> Interval:
    """Interpolate: multiply, then sum the terms of each output pixel; pictures [N, C, H, W] >= 0 -> [N, C, pixels].

    ``embedding_bag`` is just that: it picks rows (here source pixels), weights them, and sums them bag by bag (here
    output pixel by pixel).
    """
    number, channels, _, width = pictures.lower.shape
    starts = grid.counts.cumsum(0) - grid.counts
    places = grid.rows * width + grid.columns
    ends = []
    for picture, weight in ((pictures.lower, grid.weights.lower), (pictures.upper, grid.weights.upper)):
        table = picture.reshape(number * channels, -1).T.contiguous()
        sums = F.embedding_bag(places, table, starts, mode="sum", per_sample_weights=weight)
        ends.append(sums.T.view(number, channels, -1))
    most = int(grid.counts.max().item())
    slack = (2 * most + 32) * UNIT[ends[0].dtype]  # one product and one addition per term; sums of terms <= most
    return Interval(ends[0] * (1 - slack) - slack, ends[1] * (1 + slack) + slack)


def algorithm1(
    transform: Transform, run: list[int], pictures: Interval, rows_of: Tensor, low: Tensor, high: Tensor
) -> Interval:
    """Bounds of the resampled pictures for pairs (picture rows_of[p], box p); one grid serves all pictures of a box."""
    height, width = pictures.lower.shape[-2:]
    boxes, box_of = torch.unique(torch.cat([low, high], 1), dim=0, return_inverse=True)
    count = low.shape[1]
    columns, rows = interval_coordinates(transform, run, boxes[:, :count], boxes[:, count:], height, width)
    result = Interval(*(pictures.lower.new_empty(len(low), *pictures.lower.shape[1:]) for _ in range(2)))
    for box in range(len(boxes)):
        pairs = (box_of == box).nonzero().flatten()
        column, row = (Interval(axis.lower[box].flatten(), axis.upper[box].flatten()) for axis in (columns, rows))
        mine = rows_of[pairs]
        chosen = Interval(pictures.lower[mine], pictures.upper[mine])
        if transform.padding != "zeros":
            chosen, column, row = _padded(chosen, column, row, transform.padding)
        grid = make_grid(column, row, *chosen.lower.shape[-2:])
        bounds = interpolate(chosen, grid)
        for target, source in ((result.lower, bounds.lower), (result.upper, bounds.upper)):
            target[pairs] = source.view(len(pairs), -1, height, width)
    return Interval(result.lower.clamp(0, 1), result.upper.clamp(0, 1))


def _padded(pictures: Interval, columns: Interval, rows: Interval, padding: str) -> tuple[Interval, Interval, Interval]:
    """Extend the pictures as far as the positions reach, by the paper's appendix on padding, and shift the
    positions."""
    height, width = pictures.lower.shape[-2:]
    extended, shifted = [], []
    for positions, size in ((rows, height), (columns, width)):
        low, high = min(0.0, float(positions.lower.min())), max(size - 1.0, float(positions.upper.max()))
        if not high - low <= FARTHEST:
            raise InputError(
                f"Algorithm 1 would have to pad the picture to {high - low:.6g} pixels",
                do="use method affine or hull, or a smaller range",
            )
        first, last = math.floor(low), math.ceil(high)
        line = torch.arange(first, last + 1, device=positions.lower.device)
        extended.append(ring_index(line, size, padding) - 1)
        shifted.append(Interval(positions.lower - first, positions.upper - first))
    row_index, column_index = extended
    ends = [end[:, :, row_index][:, :, :, column_index] for end in (pictures.lower, pictures.upper)]
    return Interval(*ends), shifted[1], shifted[0]
