"""Source positions of every output pixel, over all parameters of a box (method, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.rounding import widen
from tiltproof.errors import InputError
from tiltproof.transforms.base import Part, Spatial, Transform
from tiltproof.transforms.camera import Camera
from tiltproof.transforms.interpolation import applied, centered_grid, keeps_plane, lifted


@dataclass
class Coordinates:
    """Source column and row of every output pixel as affine forms [P, H, W], and the box they stay in.

    The box is the meet of the forms' ranges with plain interval arithmetic: the first is tight for small boxes, the
    second for large ones, and the true position lies in both.
    """

    column: AffineForm
    row: AffineForm
    columns: Interval
    rows: Interval
    cells: int | None = None
    """Most grid cells of a box along each axis, if known; proofs leave it out and count them."""

    def of(self, boxes: Tensor | slice) -> Coordinates:
        """Return the coordinates of some boxes; boxes may repeat."""
        columns, rows = (interval.exactly(lambda end: end[boxes]) for interval in (self.columns, self.rows))
        return Coordinates(self.column[boxes], self.row[boxes], columns, rows, self.cells)

    def of_pixels(self, at: Tensor) -> Coordinates:
        """Return the coordinates of single pixels, numbered by box and position, as images of one pixel."""

        def chosen(values: Tensor) -> Tensor:
            return values.flatten(-3).index_select(-1, at).view(*values.shape[:-3], -1, 1, 1)

        column, row = (
            AffineForm(chosen(form.stack), chosen(form.radius), form.unit, form.quadratic)
            for form in (self.column, self.row)
        )
        columns, rows = (interval.exactly(chosen) for interval in (self.columns, self.rows))
        return Coordinates(column, row, columns, rows, self.cells)


def symbols(low: Tensor, high: Tensor, quadratic: bool = False) -> list[AffineForm]:
    """Each parameter of the boxes [low, high] (float64 [P, d]) as center + half width * e_k; ``quadratic``, for d = 1 only: see
    `AffineForm`."""
    center = (low + high) / 2
    half = torch.maximum(high - center, center - low)
    count = low.shape[1]
    stacks = low.new_zeros(count, 1 + count + quadratic, len(low))
    stacks[:, 0] = center.T
    stacks[:, 1 : 1 + count].diagonal().copy_(half)
    # two roundings of magnitude |center| + half: of the half width, and of the midpoint
    radii = widen(torch.zeros_like(center), center.abs() + half, 2, 2.0**-53).T
    return [
        AffineForm(stack, radius, quadratic=quadratic) for stack, radius in zip(stacks, radii.contiguous(), strict=True)
    ]


def interval_coordinates(
    transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int
) -> tuple[Interval, Interval]:
    """The paper's line 5: inverse maps applied one after the other in interval arithmetic; columns and rows [P, H,
    W].
    """
    columns, rows = _intervals(transform, run, low, high, height, width)
    return _in_sight(columns, width), _in_sight(rows, height)


def _intervals(
    transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int
) -> tuple[Interval, Interval]:
    """Return the quotient; infinite where the depth of a camera may reach zero."""
    grid_u, grid_v = centered_grid(height, width, low)
    # one number for each column and for each row, until a map mixes them
    u, v = Interval(grid_u, grid_u), Interval(grid_v, grid_v)
    w: Interval | int = 1
    for k in reversed(run):
        part, value = transform.parts[k], Interval(low[:, k].view(-1, 1, 1), high[:, k].view(-1, 1, 1))
        if part.by_matrix:
            u, v, w = applied(part.inverse_matrix(value), u, v, w)
        else:  # it moves positions, not rays
            (u, v), w = _divided(u, v, w), 1
            u, v = part.moved(value, u, v, height, width)
    u, v = _divided(u, v, w)
    columns, rows = u + (width - 1) / 2, -v + (height - 1) / 2
    shape = (len(low), height, width)
    return columns.exactly(lambda end: end.expand(shape)), rows.exactly(lambda end: end.expand(shape))


def _divided(u: Interval, v: Interval, w: Interval | int) -> tuple[Interval, Interval]:
    if isinstance(w, int):
        return u, v
    inverse = w.reciprocal()  # infinite where w reaches zero, and so are then the positions
    return u * inverse, v * inverse


def combine(
    row: tuple[object, object, object], u: Tensor, v: Tensor, like: AffineForm, sign: int, offset: float
) -> AffineForm:
    """+-(a u + b v + c) + offset for a row (a, b, c) of numbers and forms [P], over places u and v: [P, H, W].

    ``like``: a form [P] over the symbols in question.
    """
    entries = [
        entry
        if isinstance(entry, AffineForm)
        else AffineForm.constant(torch.full_like(like.center, float(entry)), like.symbols)  # type: ignore[arg-type]
        for entry in row
    ]
    a, b, c = (entry.stack[:, :, None, None] for entry in entries)
    stack = a * u + b * v + c
    if sign < 0:
        stack = -stack
    stack[0].add_(offset)
    # eight roundings of ma |u| + mb |v| + mc + |offset|, the entries' magnitudes, are divided among the entries' radii
    ra, rb, rc = ((entry.radius + entry.magnitude() * (8 * 2.0**-53))[:, None, None] for entry in entries)
    return AffineForm(
        stack, widen(ra * u.abs() + rb * v.abs() + rc, abs(offset), 8, 2.0**-53), quadratic=like.quadratic
    )


def coordinates(
    transform: Transform,
    run: list[int],
    forms: list[AffineForm],
    low: Tensor,
    high: Tensor,
    height: int,
    width: int,
    cells: int | None = None,
) -> Coordinates:
    """Six affine matrix entries per box (nine for a camera), then exact linear algebra over the pixel grid, and one division.

    Parts that are no matrices move the forms of all positions, one after the other.
    """
    columns, rows = _intervals(transform, run, low, high, height, width)
    u, v = centered_grid(height, width, low)
    middle = (width - 1) / 2, (height - 1) / 2
    if not transform.one_matrix(run):
        (x, y), divided = moved_forms(transform, run, forms, u, v, height, width)
        column, row = x + middle[0], -y + middle[1]
        if not divided:
            return Coordinates(column, row, _meet(column, columns), _meet(row, rows), cells)
        column, columns = _projected(column, columns, width)
        row, rows = _projected(row, rows, height)
        return Coordinates(column, row, columns, rows, cells)
    matrix = transform.composed_inverse(run, [forms[k] for k in run])
    if keeps_plane(matrix):
        column = combine(matrix[0], u, v, forms[0], 1, middle[0])
        row = combine(matrix[1], u, v, forms[0], -1, middle[1])
        return Coordinates(column, row, _meet(column, columns), _meet(row, rows), cells)
    x, y, w = (combine(line, u, v, forms[0], 1, 0.0) for line in matrix)
    column, columns = _projected(x.over(w) + middle[0], columns, width)
    row, rows = _projected(-y.over(w) + middle[1], rows, height)
    return Coordinates(column, row, columns, rows, cells)


def moved_forms(
    transform: Transform,
    run: list[int],
    forms: list[AffineForm],
    u: Tensor,
    v: Tensor,
    height: int,
    width: int,
    limits: list[AffineForm] | None = None,
) -> tuple[tuple[AffineForm, AffineForm], bool]:
    """Return the source positions, relative to the center, of the pixels at u and v under a run that is not one matrix, as forms
    [P, H, W]; and whether a depth was divided by, which leaves infinite radii where it reaches zero.

    To ``limits`` each map adds what must stay above `LEAST_DEPTH`: a camera's depth, a lens's growth.
    """
    limits, divided, at_pixels = [] if limits is None else limits, False, True
    shape = (v.shape[1], u.shape[2])
    x: Any = u.expand(1, *shape)
    y: Any = v.expand(1, *shape)
    for group in transform.maps(run):
        if not transform.one_matrix(group):
            part, value = transform.parts[group[0]], _spread(forms[group[0]], *shape)
            growth = part.growth(value, x, y, height, width)
            limits += [] if growth is None else [growth]
            moved = part.moved(value, x, y, height, width)
            x, y = (  # where a map leaves columns or rows as they are
                AffineForm.constant(each.expand(value.shape), value.symbols) if isinstance(each, Tensor) else each
                for each in moved
            )
            at_pixels = False
            continue
        matrix = transform.composed_inverse(group, [forms[k] for k in group])
        if at_pixels:  # exact positions: one sum for all of them
            x, y, w = (combine(line, u, v, forms[0], 1, 0.0) for line in lifted(matrix))
        else:
            x, y, w = applied(tuple(tuple(map(_spread, line)) for line in matrix), x, y, 1)
        at_pixels = False
        if not keeps_plane(matrix):
            limits.append(w)
            x, y, divided = x.over(w), y.over(w), True
    return (x, y), divided


def _spread(entry: Any, height: int = 1, width: int = 1) -> Any:
    """A form [P] with dimensions for rows and columns, [P, height, width]; numbers as they are."""
    if not isinstance(entry, AffineForm):
        return entry
    return entry.exactly(lambda values: values.view(-1, 1, 1).expand(-1, height, width))


def coordinates_of_chosen(
    transform: Transform, low: Tensor, high: Tensor, box_of: Tensor, pixels: Tensor, height: int, width: int
) -> Coordinates:
    """Return the coordinates of chosen pixels as images of one pixel, [Q, 1, 1]: of number ``pixels[q]`` over the box [B, d] of
    number ``box_of[q]``. All parts of the transformation are spatial. A box is the range of its form alone."""
    forms = symbols(low, high)
    matrix = transform.composed_inverse(list(range(len(forms))), forms)
    u, v = centered_grid(height, width, low)
    u, v = u.flatten()[pixels % width].view(-1, 1, 1), v.flatten()[pixels // width].view(-1, 1, 1)
    like, middle = forms[0][box_of], ((width - 1) / 2, (height - 1) / 2)

    def combined(line: int, sign: int, offset: float) -> AffineForm:
        entries = [entry[box_of] if isinstance(entry, AffineForm) else entry for entry in matrix[line]]
        return combine((entries[0], entries[1], entries[2]), u, v, like, sign, offset)

    if keeps_plane(matrix):
        column, row = combined(0, 1, middle[0]), combined(1, -1, middle[1])
        return Coordinates(column, row, Interval(column.lower, column.upper), Interval(row.lower, row.upper))
    x, y, w = (combined(line, 1, 0.0) for line in range(3))
    unbounded = Interval(torch.full_like(x.center, -torch.inf), torch.full_like(x.center, torch.inf))
    column, columns = _projected(x.over(w) + middle[0], unbounded, width)
    row, rows = _projected(-y.over(w) + middle[1], unbounded, height)
    return Coordinates(column, row, columns, rows)


def _projected(form: AffineForm, interval: Interval, size: int) -> tuple[AffineForm, Interval]:
    """A position and its box, where the form, the interval or both may be unbounded."""
    known = torch.isfinite(form.stack).all(0) & torch.isfinite(form.reach())
    both = _meet(form, interval)
    lower, upper = torch.where(known, both.lower, interval.lower), torch.where(known, both.upper, interval.upper)
    box = _in_sight(Interval(lower, upper), size)
    plain = AffineForm.between(box.lower, box.upper)
    flat = torch.cat([plain.stack, torch.zeros_like(form.slopes)])
    return AffineForm(torch.where(known, form.stack, flat), torch.where(known, form.radius, plain.radius)), box


def _in_sight(interval: Interval, size: int) -> Interval:
    """An unbounded position is one of [-2, size + 1]: whatever the padding, each value of the endless image is also found there.

    Outside of [-1, size] zeros and borders are constant, and a reflection repeats [0, size - 1].
    """
    known = torch.isfinite(interval.lower) & torch.isfinite(interval.upper)
    return Interval(torch.where(known, interval.lower, -2.0), torch.where(known, interval.upper, size + 1.0))


def _meet(form: AffineForm, interval: Interval) -> Interval:
    return Interval(torch.maximum(form.lower, interval.lower), torch.minimum(form.upper, interval.upper))


# Limits: the inverse map of a camera divides by the depth w (`transforms/camera.py`), and that of a lens may turn back, so ranges in which
# the depth of a pixel, or the growth of its distance from the center, comes near zero are refused. For given parameters w is linear in
# (u, v), so over an image it is least at a corner; with a lens all pixels are looked through. Over a box of parameters limits are bounded
# like any coordinate, and boxes that leave them open are halved.

LEAST_DEPTH = 2.0**-4
"""Largest ratio of the distances of a source position and its pixel: beyond, an image is a smear."""
MOST_BOXES = 2**14
LIMIT_ENTRIES = 2**20
"""Pixels whose limits are bounded at a time."""


def has_limits(transform: Transform) -> bool:
    """Return whether parts are undefined for some parameters, depending on the image's size."""
    return any(map(_has_limit, transform.parts))


def _has_limit(part: Part) -> bool:
    return isinstance(part, Camera) or not part.by_matrix


def check_limits(
    transform: Transform, height: int, width: int, low: Tensor | None = None, high: Tensor | None = None
) -> None:
    """Refuse boxes [P, d] (by default the whole range) unless depth and growth are proved to stay above 1/16 for every pixel."""
    if not has_limits(transform):
        return
    low = torch.tensor([transform.low], dtype=torch.float64) if low is None else low.double().cpu()
    high = torch.tensor([transform.high], dtype=torch.float64) if high is None else high.double().cpu()
    for kind, run in transform.stages():
        if kind is Spatial and any(_has_limit(transform.parts[k]) for k in run):
            _check_run(transform, run, low, high, height, width)


def _check_run(transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int) -> None:
    both = torch.unique(torch.cat([low, high], 1), dim=0)
    low, high = both[:, : low.shape[1]], both[:, low.shape[1] :]
    while True:
        lower, _, moves = limits(transform, run, low, high, height, width)
        left = ~(lower >= LEAST_DEPTH)
        if not bool(left.any()):
            return
        low, high, moves = low[left], high[left], moves[left]
        middle = (low + high) / 2
        least = limits(transform, run, middle, middle, height, width)[1]
        worst = int(least.argmin())
        if not float(least[worst]) >= LEAST_DEPTH or len(low) > MOST_BOXES or not bool((moves.amax(1) > 0).all()):
            _refuse(transform, run, height, width, middle[worst], float(least[worst]))
        axis = torch.nn.functional.one_hot(moves.argmax(1), low.shape[1]).bool()
        low, high = torch.cat([low, torch.where(axis, middle, low)]), torch.cat([torch.where(axis, middle, high), high])


def _refuse(transform: Transform, run: list[int], height: int, width: int, middle: Tensor, least: float) -> None:
    where = f"{transform}; at {', '.join(f'{x:.6g}' for x in middle.tolist())} the least"
    size = f"an image of {width} x {height} pixels"
    if transform.one_matrix(run):
        raise InputError(
            f"the camera turns or moves too far for {size}: its depth reaches zero for some of them",
            got=f"{where} depth is {least:.3g}",
            why="a range too wide for the focal length, or a focal length that is not in pixels of these images",
            do=f"choose a smaller range or a longer focal length, so that the depth w stays above {LEAST_DEPTH:g}",
        )
    raise InputError(
        f"the lens distorts {size} too much: towards its border the distance from the center does not grow any more",
        got=f"{where} growth 1 + 3 k r^2 (or depth, with a camera) is {least:.3g}",
        why="a negative coefficient too large for the image, or parts that move pixels far out",
        do=f"choose a smaller range, so that the growth stays above {LEAST_DEPTH:g}: -30 percent or more for Ld alone",
    )


def limits(
    transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the least lower bound of all limits over boxes [P, d], the least upper bound, both [P], and how much each parameter
    moves them, [P, d]."""
    corners, parts = transform.one_matrix(run), []
    u, v = centered_grid(height, width, low)
    if corners:
        u, v = u[..., [0, -1]], v[:, [0, -1]]
    size = max(1, LIMIT_ENTRIES // (u.numel() * v.numel()))
    for below, above in zip(low.split(size), high.split(size), strict=True):
        forms, found = symbols(below, above), []
        if corners:
            third = lifted(transform.composed_inverse(run, [forms[k] for k in run]))[2]
            found.append(combine((third[0], third[1], third[2]), u, v, forms[0], 1, 0.0))
        else:
            moved_forms(transform, run, forms, u, v, height, width, found)
        if not found:  # maps that are defined everywhere
            found.append(AffineForm.constant(torch.ones_like(below[:, :1]), below.shape[1]))
        lower = torch.stack([form.lower.flatten(1).amin(1) for form in found]).amin(0)
        upper = torch.stack([form.upper.flatten(1).amin(1) for form in found]).amin(0)
        moves = torch.stack([form.slopes.abs().flatten(2).amax(2).T for form in found]).amax(0)
        parts.append((lower, upper, moves))
    lower, upper, moves = (torch.cat(each) for each in zip(*parts, strict=True))
    return lower, upper, moves
