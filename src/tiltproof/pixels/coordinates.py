"""Source positions of every output pixel, over all parameters of a box (method, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.rounding import widen
from tiltproof.errors import InputError
from tiltproof.transforms.base import Spatial, Transform
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
        value = Interval(low[:, k].view(-1, 1, 1), high[:, k].view(-1, 1, 1))
        u, v, w = applied(transform.parts[k].inverse_matrix(value), u, v, w)
    if isinstance(w, Interval):
        inverse = w.reciprocal()  # infinite where w reaches zero, and so are then the positions
        u, v = u * inverse, v * inverse
    columns, rows = u + (width - 1) / 2, -v + (height - 1) / 2
    shape = (len(low), height, width)
    return columns.exactly(lambda end: end.expand(shape)), rows.exactly(lambda end: end.expand(shape))


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
    """Six affine matrix entries per box (nine for a camera), then exact linear algebra over the pixel grid, and one division."""
    matrix = transform.composed_inverse(run, [forms[k] for k in run])
    columns, rows = _intervals(transform, run, low, high, height, width)
    u, v = centered_grid(height, width, low)
    middle = (width - 1) / 2, (height - 1) / 2
    if keeps_plane(matrix):
        column = combine(matrix[0], u, v, forms[0], 1, middle[0])
        row = combine(matrix[1], u, v, forms[0], -1, middle[1])
        return Coordinates(column, row, _meet(column, columns), _meet(row, rows), cells)
    x, y, w = (combine(line, u, v, forms[0], 1, 0.0) for line in matrix)
    column, columns = _projected(x.over(w) + middle[0], columns, width)
    row, rows = _projected(-y.over(w) + middle[1], rows, height)
    return Coordinates(column, row, columns, rows, cells)


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


# Cameras: the inverse map divides by the depth w (`transforms/camera.py`), so ranges in which the depth of a pixel comes near zero are
# refused. For given parameters w is linear in (u, v), so over an image it is least at a corner; over a box of parameters it is bounded
# like any coordinate, and boxes that leave it open are halved.

LEAST_DEPTH = 2.0**-4
"""Largest ratio of the distances of a source position and its pixel: beyond, an image is a smear."""
MOST_BOXES = 2**14


def has_camera(transform: Transform) -> bool:
    return any(isinstance(part, Camera) for part in transform.parts)


def check_camera_depth(
    transform: Transform, height: int, width: int, low: Tensor | None = None, high: Tensor | None = None
) -> None:
    """Refuse boxes [P, d] (by default the whole range) unless the depth is proved to stay above 1/16 for every pixel."""
    if not has_camera(transform):
        return
    low = torch.tensor([transform.low], dtype=torch.float64) if low is None else low.double().cpu()
    high = torch.tensor([transform.high], dtype=torch.float64) if high is None else high.double().cpu()
    for kind, run in transform.stages():
        if kind is Spatial and any(isinstance(transform.parts[k], Camera) for k in run):
            _check_run(transform, run, low, high, height, width)


def _check_run(transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int) -> None:
    both = torch.unique(torch.cat([low, high], 1), dim=0)
    low, high = both[:, : low.shape[1]], both[:, low.shape[1] :]
    while True:
        depth = corner_depth(transform, run, low, high, height, width)
        left = ~(depth.lower >= LEAST_DEPTH).flatten(1).all(1)
        if not bool(left.any()):
            return
        low, high, moves = low[left], high[left], depth.slopes[:, left].abs().flatten(2).amax(2).T
        middle = (low + high) / 2
        least = corner_depth(transform, run, middle, middle, height, width).upper.flatten(1).amin(1)
        worst = int(least.argmin())
        if not float(least[worst]) >= LEAST_DEPTH or len(low) > MOST_BOXES or not bool((moves.amax(1) > 0).all()):
            raise InputError(
                f"the camera turns or moves too far for an image of {width} x {height} pixels: its depth reaches zero for some of them",
                got=f"{transform}; at {', '.join(f'{x:.6g}' for x in middle[worst].tolist())} the least depth is {float(least[worst]):.3g}",
                why="a range too wide for the focal length, or a focal length that is not in pixels of these images",
                do=f"choose a smaller range or a longer focal length, so that the depth w stays above {LEAST_DEPTH:g}",
            )
        axis = torch.nn.functional.one_hot(moves.argmax(1), low.shape[1]).bool()
        low, high = torch.cat([low, torch.where(axis, middle, low)]), torch.cat([torch.where(axis, middle, high), high])


def corner_depth(
    transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int
) -> AffineForm:
    """Return the depth w at the four corner pixels over boxes [P, d], [P, 2, 2]."""
    forms = symbols(low, high)
    u, v = centered_grid(height, width, low)
    third = lifted(transform.composed_inverse(run, [forms[k] for k in run]))[2]
    return combine((third[0], third[1], third[2]), u[..., [0, -1]], v[:, [0, -1]], forms[0], 1, 0.0)
