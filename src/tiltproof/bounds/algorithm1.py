"""The paper's Algorithm 1 ("Fast interval interpolated transformation"), line by line; method name ``fgv``.

Interpolation distances between every output pixel and every source pixel are intervals; nearly all are [0, 0], so the
grid is kept in coordinate form: rows r, columns c, intervals w, and z, how many entries belong to each output pixel.
Padding other than zeros is the paper's appendix: pad the picture first, interpolate over the larger one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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

CHUNK_ENTRIES, GPU_TIMES = 2**21, 8
"""Entries of grids that are held at a time, and how many times as many on a GPU; memory stays bounded at any picture size."""

SHARED = 4
"""Pictures of a box, on the average, from which on each box makes its grid once for all of them."""


@dataclass
class SparseGrid:
    """(r, c, w, z) of the paper."""

    rows: Tensor
    columns: Tensor
    weights: Interval
    counts: Tensor


def hat(position: Interval, line: Tensor) -> Interval:
    """max(0, 1 - |position - line|) in interval arithmetic."""
    low, high = position.lower - line, position.upper - line
    far = torch.maximum(low.abs(), high.abs())
    near = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    # |position - line| < 1 wherever it matters and positions carry their own slack: 4 roundings of numbers up to the picture's size
    slack = 4 * UNIT[low.dtype] * (1 + line.abs())
    lower = (1 - far - slack).clamp(min=0).nan_to_num(0.0)
    return Interval(lower, torch.where(near >= 1, 0.0, (1 - near + slack).clamp(max=1).nan_to_num(1.0)))


def lines_near(position: Interval, size: int) -> tuple[Tensor, Tensor]:
    """The first of the lines 0 to size - 1 on which the hat may not vanish, and how many there are: those less than 1 away. Of a position
    with an end that is not a number, all.
    """
    known = position.lower <= position.upper  # false for a NaN
    first = torch.where(known, position.lower, -torch.inf).floor().clamp(0, size)
    last = torch.where(known, position.upper, torch.inf).ceil().clamp(-1, size - 1)
    return first.long(), (last - first + 1).clamp(min=0).long()


def make_grid(columns: Interval, rows: Interval, height: int, width: int) -> SparseGrid:
    """MakeInterpGrid for positions [pixels] over a source picture of height x width."""
    first_row, high = lines_near(rows, height)
    first_column, wide = lines_near(columns, width)
    counts = high * wide
    ends = counts.cumsum(0)
    entries = int(ends[-1]) if len(ends) else 0
    pixel = torch.repeat_interleave(counts, output_size=entries)
    place = torch.arange(entries, device=counts.device) - (ends - counts)[pixel]
    r, c = first_row[pixel] + place // wide[pixel], first_column[pixel] + place % wide[pixel]
    vertical = hat(Interval(rows.lower[pixel], rows.upper[pixel]), r.to(rows.lower.dtype))
    horizontal = hat(Interval(columns.lower[pixel], columns.upper[pixel]), c.to(rows.lower.dtype))
    weights = Interval.outward(vertical.lower * horizontal.lower, vertical.upper * horizontal.upper)
    return SparseGrid(r, c, Interval(weights.lower.clamp(min=0), weights.upper), counts)


def interpolate(pictures: Interval, grid: SparseGrid, picture_of: Tensor | None = None) -> Interval:
    """Interpolate: multiply, then sum the terms of each output pixel; pictures [N, C, H, W] >= 0 -> [N, C, pixels].

    ``embedding_bag`` is just that: it picks rows (here source pixels), weights them, and sums them bag by bag (here
    output pixel by pixel). The grid is one for all pictures; with ``picture_of`` [P] it has the pixels of P pairs, one after the
    other, each of its own picture: -> [P, C, pixels].
    """
    number, channels, height, width = pictures.lower.shape
    starts = grid.counts.cumsum(0) - grid.counts
    places = grid.rows * width + grid.columns
    if picture_of is not None:
        each = picture_of.repeat_interleave(len(grid.counts) // len(picture_of))
        places = places + each.repeat_interleave(grid.counts, output_size=len(places)) * (height * width)
    ends = []
    for picture, weight in ((pictures.lower, grid.weights.lower), (pictures.upper, grid.weights.upper)):
        if picture_of is None:
            table = picture.reshape(number * channels, -1).T.contiguous()
        else:
            table = picture.permute(0, 2, 3, 1).reshape(-1, channels)
        sums = F.embedding_bag(places, table, starts, mode="sum", per_sample_weights=weight)
        if picture_of is None:
            ends.append(sums.T.view(number, channels, -1))
        else:
            ends.append(sums.view(len(picture_of), -1, channels).transpose(1, 2))
    most = int(grid.counts.max().item())
    slack = (2 * most + 32) * UNIT[ends[0].dtype]  # one product and one addition per term; sums of terms <= most
    return Interval(ends[0] * (1 - slack) - slack, ends[1] * (1 + slack) + slack)


def algorithm1(
    transform: Transform, run: list[int], pictures: Interval, rows_of: Tensor, low: Tensor, high: Tensor
) -> Interval:
    """Bounds of the resampled pictures for pairs (picture rows_of[p], box p): where many pictures share a box, box by box, and one grid
    serves them all; else many pairs at a time."""
    boxes, box_of = torch.unique(torch.cat([low, high], 1), dim=0, return_inverse=True)
    height, width = pictures.lower.shape[-2:]
    count = low.shape[1]
    columns, rows = interval_coordinates(transform, run, boxes[:, :count], boxes[:, count:], height, width)
    columns, rows = (Interval(axis.lower.flatten(1), axis.upper.flatten(1)) for axis in (columns, rows))
    result = Interval(*(pictures.lower.new_empty(len(low), *pictures.lower.shape[1:]) for _ in range(2)))
    # other paddings extend the pictures as far as a box reaches, which is its own matter
    shared = len(boxes) * SHARED <= len(low) or transform.padding != "zeros"
    chunks = _by_box(box_of, len(boxes)) if shared else _in_turn(_entries(columns, rows, height, width).sum(1)[box_of])
    for pairs in chunks:
        together = not shared and len(pairs) > 1
        mine = box_of[pairs if together else pairs[:1]]
        column, row = (Interval(axis.lower[mine].flatten(), axis.upper[mine].flatten()) for axis in (columns, rows))
        which, picture_of = rows_of[pairs], None
        if together:
            which, picture_of = which.unique(return_inverse=True)
        chosen = Interval(pictures.lower[which], pictures.upper[which])
        if transform.padding != "zeros":
            chosen, column, row = _padded(chosen, column, row, transform.padding)
        size = chosen.lower.shape[-2:]
        pixels = [slice(None)] if together else _in_turn(_entries(column, row, *size))
        parts = [interpolate(chosen, make_grid(_some(column, k), _some(row, k), *size), picture_of) for k in pixels]
        for target, sources in ((result.lower, [x.lower for x in parts]), (result.upper, [x.upper for x in parts])):
            target[pairs] = torch.cat(sources, -1).reshape(len(pairs), -1, height, width)
    return Interval(result.lower.clamp(0, 1), result.upper.clamp(0, 1))


def _entries(columns: Interval, rows: Interval, height: int, width: int) -> Tensor:
    """How many entries each position has in a grid."""
    return lines_near(rows, height)[1] * lines_near(columns, width)[1]


def _by_box(box_of: Tensor, boxes: int) -> Iterator[Tensor]:
    """The pairs of each box."""
    yield from box_of.argsort(stable=True).split(torch.bincount(box_of, minlength=boxes).tolist())


def _in_turn(entries: Tensor) -> Iterator[Tensor]:
    """All of what has so many entries each, as much at a time as has fewer than `CHUNK_ENTRIES`; what reaches over the end of a chunk,
    and may have any number, by itself."""
    ends, most = entries.cumsum(0), CHUNK_ENTRIES * (GPU_TIMES if entries.is_cuda else 1)
    number = (ends // most + (ends - entries) // most).cpu()
    sizes = number.unique_consecutive(return_counts=True)[1]
    yield from torch.arange(len(entries), device=entries.device).split(sizes.tolist())


def _some(position: Interval, which: Tensor | slice) -> Interval:
    return Interval(position.lower[which], position.upper[which])


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
