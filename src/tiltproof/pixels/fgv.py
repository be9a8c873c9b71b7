"""The paper's Algorithm 1 ("Fast interval interpolated transformation"), line by line; method name ``fgv``.

Interpolation distances between every output pixel and every source pixel are intervals; nearly all are [0, 0], so the
grid is kept in coordinate form: rows r, columns c, intervals w, and z, how many entries belong to each output pixel.
Padding other than zeros is the paper's appendix: pad the image first, interpolate over the larger one.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.device import batch_entries, launch_bound
from tiltproof.enclosures.affine_form import Interval
from tiltproof.enclosures.rounding import UNIT
from tiltproof.errors import InputError
from tiltproof.pixels.coordinates import interval_coordinates
from tiltproof.transforms import Spatial, Transform
from tiltproof.transforms.interpolation import ring_index

MOST_AREA = 2**22
"""Most pixels of a padded image, for paddings other than zeros; about 64 MB per channel."""
PADDED_AT_ONCE = 2**22
"""Pixels of padded images held at a time."""
CHUNK_ENTRIES = 2**21
"""Entries of grids held at a time, which bounds memory for any image size."""
CHUNK_ENTRIES_GPU = 2**25
"""The same on a GPU."""
SHARED = 8
"""On a CPU: mean number of images per box from which on boxes are processed one by one, without copies of the grid."""


@dataclass
class SparseGrid:
    """(r, c, w, z) of the paper."""

    rows: Tensor
    columns: Tensor
    weights: Interval
    counts: Tensor

    def of(self, which: Tensor, boxes: int) -> SparseGrid:
        """Return the grid of boxes ``which`` [P], which may repeat; this grid has ``boxes`` boxes, one after the
        other."""
        counts = self.counts.view(boxes, -1)
        sizes = counts.sum(1)
        mine = sizes[which]
        starts, ends = (sizes.cumsum(0) - sizes)[which], mine.cumsum(0)
        entries = int(ends[-1])
        entry = (starts - (ends - mine)).repeat_interleave(mine, output_size=entries)
        entry += torch.arange(entries, device=entry.device)
        weights = self.weights.exactly(lambda end: end[entry])
        return SparseGrid(self.rows[entry], self.columns[entry], weights, counts[which].flatten())


def hat(position: Interval, line: Tensor) -> Interval:
    """max(0, 1 - |position - line|) in interval arithmetic."""
    low, high = position.lower - line, position.upper - line
    far = torch.maximum(low.abs(), high.abs())
    near = torch.where((low <= 0) & (high >= 0), 0.0, torch.minimum(low.abs(), high.abs()))
    # |position - line| < 1 wherever it matters and positions carry their own slack: 4 roundings of numbers up to the image's size
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
    """MakeInterpGrid for positions [pixels] over a source image of height x width."""
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


def interpolate(images: Interval, grid: SparseGrid, image_of: Tensor | None = None) -> Interval:
    """Interpolate: multiply, then sum the terms of each output pixel; images [N, C, H, W] >= 0 -> [N, C, pixels].

    ``embedding_bag`` is just that: it picks rows (here source pixels), weights them, and sums them bag by bag (here
    output pixel by pixel). The grid is one for all images; with ``image_of`` [P] it has the pixels of P pairs, one after the
    other, each of its own image: -> [P, C, pixels].
    """
    number, channels, height, width = images.lower.shape
    starts = grid.counts.cumsum(0) - grid.counts
    places = grid.rows * width + grid.columns
    if image_of is not None:
        each = image_of.repeat_interleave(len(grid.counts) // len(image_of))
        places = places + each.repeat_interleave(grid.counts, output_size=len(places)) * (height * width)
    ends = []
    for source, weight in ((images.lower, grid.weights.lower), (images.upper, grid.weights.upper)):
        if image_of is None:
            table = source.reshape(number * channels, -1).T.contiguous()
        else:
            table = source.permute(0, 2, 3, 1).reshape(-1, channels)
        sums = F.embedding_bag(places, table, starts, mode="sum", per_sample_weights=weight)
        if image_of is None:
            ends.append(sums.T.view(number, channels, -1))
        else:
            ends.append(sums.view(len(image_of), -1, channels).transpose(1, 2))
    most = int(grid.counts.max().item())
    slack = (2 * most + 32) * UNIT[ends[0].dtype]  # one product and one addition per term; sums of terms <= most
    return Interval(ends[0] * (1 - slack) - slack, ends[1] * (1 + slack) + slack)


def fgv(transform: Transform, run: list[int], images: Interval, rows_of: Tensor, low: Tensor, high: Tensor) -> Interval:
    """Bounds of the resampled images for pairs (image rows_of[p], box p): many pairs at a time, and one grid for all images of a
    box."""
    boxes, box_of = torch.unique(torch.cat([low, high], 1), dim=0, return_inverse=True)
    height, width = images.lower.shape[-2:]
    count = low.shape[1]
    columns, rows = interval_coordinates(transform, run, boxes[:, :count], boxes[:, count:], height, width)
    columns, rows = (axis.exactly(lambda end: end.flatten(1)) for axis in (columns, rows))
    result = Interval(*(images.lower.new_empty(len(low), *images.lower.shape[1:]) for _ in range(2)))
    order = box_of.argsort(stable=True)
    if transform.padding != "zeros":  # images are extended as far as a box reaches, which is its own matter
        areas, channels = _padded_area(columns, rows, height, width), images.lower.shape[1]
        chunks = tuple(
            part
            for mine, area in zip(order.split(torch.bincount(box_of).tolist()), areas, strict=True)
            for part in mine.split(max(1, PADDED_AT_ONCE // (area * channels)))
        )
    elif not launch_bound(low) and len(boxes) * SHARED <= len(low):
        chunks = order.split(torch.bincount(box_of).tolist())
    else:
        chunks = order.split(_in_turn(_entries(columns, rows, height, width).sum(1)[box_of[order]]))
    for pairs in chunks:
        mine, which = box_of[pairs].unique_consecutive(return_inverse=True)
        column, row = (Interval(axis.lower[mine].flatten(), axis.upper[mine].flatten()) for axis in (columns, rows))
        numbers, image_of = rows_of[pairs], None
        if len(mine) > 1:
            numbers, image_of = numbers.unique(return_inverse=True)
        chosen = Interval(images.lower[numbers], images.upper[numbers])
        if transform.padding != "zeros":
            chosen, column, row = _padded(chosen, column, row, transform.padding)
        size = chosen.lower.shape[-2:]
        if image_of is None:
            pixels = torch.arange(len(column.lower), device=low.device).split(_in_turn(_entries(column, row, *size)))
            parts = [interpolate(chosen, make_grid(_some(column, k), _some(row, k), *size)) for k in pixels]
        else:
            grid = make_grid(column, row, *size)
            parts = [interpolate(chosen, grid if len(mine) == len(pairs) else grid.of(which, len(mine)), image_of)]
        for target, sources in ((result.lower, [x.lower for x in parts]), (result.upper, [x.upper for x in parts])):
            target[pairs] = torch.cat(sources, -1).reshape(len(pairs), -1, height, width)
    return result.exactly(lambda end: end.clamp_(0, 1))


def _entries(columns: Interval, rows: Interval, height: int, width: int) -> Tensor:
    """Return the number of entries of each position in a grid."""
    return lines_near(rows, height)[1] * lines_near(columns, width)[1]


def _in_turn(entries: Tensor) -> list[int]:
    """Return the sizes of consecutive chunks of fewer than `CHUNK_ENTRIES` entries, half of that on average.

    Items whose cumulative ends lie in the same half form a chunk; an item with more than half of the entries is alone.
    """
    half = batch_entries(entries, CHUNK_ENTRIES, CHUNK_ENTRIES_GPU) // 2
    large = entries > half
    number = entries.cumsum(0) // half + 2 * large.cumsum(0) - large.long()
    sizes: list[int] = number.unique_consecutive(return_counts=True)[1].tolist()
    return sizes


def _some(position: Interval, which: Tensor) -> Interval:
    return Interval(position.lower[which], position.upper[which])


def _padded_area(columns: Interval, rows: Interval, height: int, width: int) -> list[int]:
    """Of each box [boxes, positions], the pixels of an image that is extended as far as its positions reach."""
    sides = [
        (p.upper.amax(1).clamp(min=size - 1) - p.lower.amin(1).clamp(max=0) + 3).nan_to_num(nan=torch.inf)
        for p, size in ((rows, height), (columns, width))
    ]
    area = sides[0] * sides[1]
    worst = int(area.argmax())
    if not float(area[worst]) <= MOST_AREA:  # memory and steps grow with it
        raise InputError(
            "Algorithm 1 would have to pad the image too far",
            got=" x ".join(f"{float(side[worst]):.3g}" for side in sides)
            + f" pixels for an image of {height} x {width}",
            why="a range in which the image shrinks to a point, or a camera that sees far outside it",
            do="use method affine or hull, or a smaller range",
        )
    return [math.ceil(each) for each in area.tolist()]


def _padded(images: Interval, columns: Interval, rows: Interval, padding: str) -> tuple[Interval, Interval, Interval]:
    """Extend the images as far as the positions reach, by the paper's appendix on padding, and shift the
    positions."""
    height, width = images.lower.shape[-2:]
    extended, shifted = [], []
    for positions, size in ((rows, height), (columns, width)):
        first = math.floor(min(0.0, float(positions.lower.min())))
        last = math.ceil(max(size - 1.0, float(positions.upper.max())))
        line = torch.arange(first, last + 1, device=positions.lower.device)
        extended.append(ring_index(line, size, padding) - 1)
        shifted.append(Interval(positions.lower - first, positions.upper - first))
    row_index, column_index = extended
    ends = [end[:, :, row_index][:, :, :, column_index] for end in (images.lower, images.upper)]
    return Interval(*ends), shifted[1], shifted[0]


# Algorithm 1 over a window of fixed size, for training: no list of non-zero weights, so shapes never depend on values.
#
# Around each output pixel's coordinate box only the grid lines nearer than 1 have weight. With a window of ``lines`` of them each way
# the bounds are the same numbers as Algorithm 1's, every image may have its own box, and a GPU can replay the whole step.


SAMPLES = 64


def lines_needed(transform: Transform, half: tuple[float, ...], height: int, width: int) -> int:
    """Return enough grid lines for every box of these half widths in the range: those closer than 1 to the widest
    interval."""
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
    image = Interval(images, images)
    for kind, run in transform.stages():
        if kind is Spatial:
            columns, rows = interval_coordinates(transform, run, low, high, *images.shape[-2:])
            image = _resampled(image, columns, rows, lines)
        else:
            for k in run:
                value = Interval(*(end[:, k].to(images.dtype).view(-1, 1, 1, 1) for end in (low, high)))
                image = transform.parts[k].pixels(image, value)
        image = image.clamp01()
    return image.lower, image.upper


def _resampled(image: Interval, columns: Interval, rows: Interval, lines: int) -> Interval:
    number, channels, height, width = image.lower.shape
    (column, across), (row, down) = _weights(columns, width, lines), _weights(rows, height, lines)
    index = (row.unsqueeze(-1) * width + column.unsqueeze(-2)).flatten(-2)  # [B, H, W, lines^2]
    ends = []
    for pixels, x, y in ((image.lower, across.lower, down.lower), (image.upper, across.upper, down.upper)):
        weight = (y.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2).to(pixels.dtype).flatten(1, 2)
        places = index.flatten(1).unsqueeze(1)
        found = (
            pixels.flatten(2).gather(2, places.expand(number, channels, -1)).view(number, channels, height * width, -1)
        )
        ends.append((found * weight.unsqueeze(1)).sum(-1).view(number, channels, height, width))
    return Interval(ends[0], ends[1])


def _weights(positions: Interval, size: int, lines: int) -> tuple[Tensor, Interval]:
    """The grid lines around each interval, clamped into the image, and max(0, 1 - distance) as intervals; 0 outside the image."""
    first = (positions.lower - 1).ceil()
    line = first.unsqueeze(-1) + torch.arange(lines, device=first.device, dtype=first.dtype)
    below, above = line - positions.upper.unsqueeze(-1), line - positions.lower.unsqueeze(-1)
    nearest = torch.maximum(below, -above).clamp(min=0)
    farthest = torch.maximum(above, -below)
    inside = (line >= 0) & (line <= size - 1)
    lower, upper = ((1 - distance).clamp(min=0) * inside for distance in (farthest, nearest))
    return line.clamp(0, size - 1).long(), Interval(lower, upper)
