"""The transformed image as a form: coordinates, interpolation over coordinate boxes, value changes.

Pixel (row i, column j) of an H x W image lies at u = j - (W - 1) / 2 (to the right), v = (H - 1) / 2 - i (upwards).
Output pixel (u, v) shows the source image at T^-1(u, v) = T_1^-1(... T_n^-1(u, v)) for transformations 1 ... n in order. A
camera of focal length f sees along the ray (u, v, f) (right, up, forward), and a turned camera along the turned ray. So the
code carries rays (u, v, f w) through all transformations and samples the image at (u / w, v / w). A camera that moved to t
sees the plane n . P = 1 along the ray q at t + s q with n . (t + s q) = 1: in the direction of q + (n . q) t / (1 - n . t).
A lens moves positions, so rays are divided before it: what it shows at (u, v) the image has at (1 + k r^2) (u, v).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from tiltproof.checker.cubic import resample_cubic
from tiltproof.checker.form import UNIT, UNIT32, Form, enclose
from tiltproof.checker.photometric import changed, clamped, endless, quotient, radians, reciprocal, sine_and_cosine
from tiltproof.checker.tiling import CAMERA_MOVES, GROUND, LENS, MOVES, Transform

MOST_CELLS = 8  # a coordinate box that spans more gets the range of the whole image
FARTHEST = 2.0**20
VALUE_ERROR = 4096 * UNIT  # of an interpolated value, relative to the largest pixel involved: see `interpolate`


def parameters(low: Tensor, high: Tensor) -> list[Form]:
    """Turn boxes [P, d] into d forms [P, 1, 1, 1], parameter k = middle + half width e_k."""
    middle = (low + high) / 2
    half = torch.maximum(high - middle, middle - low) * (1 + 4 * UNIT)
    data = torch.cat([middle[None], torch.diag_embed(half).movedim(-1, 0), torch.zeros_like(middle)[None]])
    return [Form(data[:, :, k].view(len(data), -1, 1, 1, 1)) for k in range(low.shape[1])]


def transformed(images: Tensor, transform: Transform, low: Tensor, high: Tensor) -> Form:
    """Enclose every image [P, C, H, W] over its own box of parameters [P, d]."""
    values = parameters(low, high)
    image = Form(torch.cat([images[None], images.new_zeros(1 + len(values), *images.shape)]))
    fixed = transform.fixed or (0.0,) * len(values)
    normals = transform.normals or (GROUND,) * len(values)
    for kind, group in itertools.groupby(range(len(values)), lambda k: step_of(transform.letters[k], k)):
        run = list(group)
        steps = [(transform.letters[k], values[k], fixed[k]) for k in run]
        if kind == "moves":
            column, row = source(steps, [normals[k] for k in run], *images.shape[-2:])
            if transform.interpolation == "bicubic":
                image = resample_cubic(image, alike(column, image), alike(row, image), transform.padding)
            else:
                image = resample(image, column, row, transform.padding, transform.interpolation == "nearest")
            continue
        for step in steps:
            image = changed(image, *step, transform.padding)
        image = clamped(image) if kind == "light" else image
    return image


def step_of(letter: str, k: int) -> str:
    """Return the group a transformation belongs to; adjacent ones with the same answer form one step."""
    if letter in ("C", "B"):
        return "light"
    return "moves" if letter in MOVES else f"alone, number {k}"


def as_float32(x: Form) -> Form:
    """Switch to float32 semantics, starting with the rounding of the image itself."""
    return enclose(x.rows.clone(), x.magnitude, 1, UNIT32, 1)


def source(
    steps: Sequence[tuple[str, Form, float]],
    normals: Sequence[tuple[float, ...]],
    height: int,
    width: int,
    at: tuple[Form, Form] | None = None,
) -> tuple[Form, Form]:
    """Return source column and row, [P, 1, H, W], of every output pixel, applying the last transformation's inverse first. ``at``: u and v
    of a single pixel for each of the P boxes instead, [P, 1, 1, 1]."""
    like = steps[0][1].rows
    zero = steps[0][1] * 0
    if at is None:
        u = zero + (torch.arange(width).to(like) - (width - 1) / 2).view(1, 1, 1, width)
        v = zero + ((height - 1) / 2 - torch.arange(height).to(like)).view(1, 1, height, 1)
    else:
        u, v = at
    w = zero + 1.0
    turned = False
    for (letter, value, f), normal in zip(reversed(steps), reversed(normals), strict=True):
        if letter in ("R", "Roll"):  # u cos a + v sin a, v cos a - u sin a
            sine, cosine = sine_and_cosine(radians(value))
            u, v = u * cosine + v * sine, v * cosine - u * sine
        elif letter == "Yaw":  # the ray (u, v, f w), turned to the right: (u cos a + f w sin a, v, f w cos a - u sin a)
            sine, cosine = sine_and_cosine(radians(value))
            u, w, turned = u * cosine + w * sine * f, w * cosine - u * sine / f, True
        elif letter == "Pitch":  # turned upwards: (u, v cos a + f w sin a, f w cos a - v sin a)
            sine, cosine = sine_and_cosine(radians(value))
            v, w, turned = v * cosine + w * sine * f, w * cosine - v * sine / f, True
        elif letter in CAMERA_MOVES:  # the ray plus (n . ray) t / (1 - n . t), along one axis
            axis = CAMERA_MOVES.index(letter)
            along = u * normal[0] + v * normal[1] + w * normal[2] * f
            along = along * value * reciprocal(value * -normal[axis] + 1)
            u, v = (u + along if axis == 0 else u), (v + along if axis == 1 else v)
            if axis == 2:
                w, turned = w + along / f, True
        elif letter == LENS:  # the distance r from the center becomes r (1 + k r^2): of positions, not of rays
            if turned:
                u, v, w, turned = quotient(u, w), quotient(v, w), zero + 1.0, False
            squares = (u * u + v * v) * value / 100  # r^2 = 1 at the corners of the image, or at the distance f
            stretch = squares / f / f if f else squares * 4 / float(height * height + width * width)
            u, v = u + u * stretch, v + v * stretch
        elif letter == "Tu":
            u = u - (w * value if turned else value)
        elif letter == "Tv":
            v = v - (w * value if turned else value)
        elif letter == "Sh":
            u = u - v * (value / 100)
        elif letter == "Shv":
            v = v - u * (value / 100)
        else:
            assert letter in ("Sc", "Scu", "Scv")
            factor = reciprocal(value / 100 + 1)
            u, v = (u if letter == "Scv" else u * factor), (v if letter == "Scu" else v * factor)
    if turned:
        u, v = quotient(u, w), quotient(v, w)
    return u + (width - 1) / 2, (height - 1) / 2 - v


def axis(low: Tensor, high: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return grid lines (integers) [n, P, H, W] around [low, high], and the interval's ends with all grid lines inside it."""
    first = low.floor()
    n = int((high.ceil() - first).max()) + 1
    lines = torch.stack([first + k for k in range(n)])
    return lines, [torch.minimum(torch.maximum(line, low), high) for line in lines]


def interpolate(values: Tensor, lines: Tensor, points: list[Tensor], dim: int) -> Tensor:
    """Interpolate along one axis: the value at a point is sum_j max(0, 1 - |point - line_j|) value_j.

    A weight is off by at most 2 u (n + 1), and n <= MOST_CELLS + 2 of them are summed on each of two axes: less than
    4096 u of the largest value in all.
    """
    weights = [(1 - (point - lines).abs()).clamp(min=0) for point in points]
    return torch.stack([(w[:, None, :, None] * values.movedim(dim, 0)).sum(0) for w in weights], dim)


def resample(image: Form, column: Form, row: Form, padding: str, nearest: bool = False) -> Form:
    """Enclose the image at (column, row).

    Between grid lines interpolation is bilinear, and so is the residual after subtracting a plane g_u (u - u_c) +
    g_v (v - v_c). A bilinear function takes its extrema over a rectangle at the corners, so over a coordinate box they are
    among the points (box ends and grid lines in u) x (box ends and grid lines in v), for any g. Hence
        x = plane(u, v) + [least, greatest].

    ``nearest``: at the position rounded to whole numbers, which is some whole number within 1/2 of the interval. At whole numbers
    a bilinear image has the pixels' values, and so it has at the corners of that larger rectangle.
    """
    column, row = alike(column, image), alike(row, image)
    ends = [column.lower(), column.upper(), row.lower(), row.upper()]
    if nearest:
        ends = [torch.floor(end + 0.5) if k % 2 else torch.ceil(end - 0.5) for k, end in enumerate(ends)]
    near = (ends[1] - ends[0] < MOST_CELLS) & (ends[3] - ends[2] < MOST_CELLS)
    near &= torch.stack(ends).abs().amax(0) < FARTHEST
    column, row = (Form(torch.where(near, f.rows, 0.0)) for f in (column, row))
    left, right, top, bottom = (torch.where(near, end, 0.0) for end in ends)
    (columns, across), (rows, down) = axis(left, right), axis(top, bottom)

    def extremes(coefficients: Tensor, plane: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the least and greatest residual of one row [P, C, H, W] over each coordinate box, and the plane's g_u, g_v."""
        values, largest = corners(coefficients, rows, columns, padding)
        values = interpolate(interpolate(values, columns, across, 1), rows, down, 0)
        g_u, g_v = torch.zeros_like(largest), torch.zeros_like(largest)
        if plane:  # the mean slopes of opposite sides of the box; any others would be sound too
            wide, high = (right - left)[:, None], (bottom - top)[:, None]
            g_u = (values[0, -1] - values[0, 0] + values[-1, -1] - values[-1, 0]) / (2 * wide)
            g_v = (values[-1, 0] - values[0, 0] + values[-1, -1] - values[0, -1]) / (2 * high)
            g_u, g_v = torch.where(wide > 0, g_u, 0.0), torch.where(high > 0, g_v, 0.0)
            for i, k in itertools.product(range(len(down)), range(len(across))):
                values[i, k] -= g_u * (across[k] - column.center)[:, None] + g_v * (down[i] - row.center)[:, None]
            slack = 16 * UNIT * (g_u.abs() * wide + g_v.abs() * high)
            largest = VALUE_ERROR * largest + slack
        else:
            largest = VALUE_ERROR * largest
        least, greatest = values.amin((0, 1)) - largest, values.amax((0, 1)) + largest
        whole = coefficients.flatten(2)
        if padding == "zeros":
            whole = torch.nn.functional.pad(whole, (0, 1))
        known = near[:, None]
        least = torch.where(known, least, whole.amin(2)[:, :, None, None])
        return least, torch.where(known, greatest, whole.amax(2)[:, :, None, None]), g_u, g_v

    least, greatest, g_u, g_v = extremes(image.center, plane=not nearest)
    data = g_u * column.rows[:, :, None] + g_v * row.rows[:, :, None]
    data[0] = (least + greatest) / 2
    data[-1] = g_u.abs() * column.radius[:, None] + g_v.abs() * row.radius[:, None] + (greatest - least) / 2
    size = least.abs() + greatest.abs() + g_u.abs() * column.reach[:, None] + g_v.abs() * row.reach[:, None]
    if image.rows[1:].any():  # the image varies too: interpolate sum_k slope_k(u, v) e_k + radius(u, v) term by term
        for k in range(1, len(data)):
            least, greatest, _, _ = extremes(image.rows[k], plane=False)
            size += least.abs() + greatest.abs()
            data[-1] += greatest if k == len(data) - 1 else (greatest - least) / 2
            if k < len(data) - 1:
                data[k] += (least + greatest) / 2
    return enclose(data, size, 16, 0.0, 0)


def alike(position: Form, image: Form) -> Form:
    """Return positions [P, 1, H, W] as [P, H, W], of the image's size."""
    return Form(position.rows.squeeze(2).expand(-1, -1, *image.shape[-2:]))


def corners(coefficients: Tensor, rows: Tensor, columns: Tensor, padding: str) -> tuple[Tensor, Tensor]:
    """Return the values where grid lines cross, [rows, columns, P, C, H, W], and the largest magnitude among them."""
    pairs, channels, height, width = coefficients.shape
    (i, inside_i), (j, inside_j) = endless(rows.long(), height, padding), endless(columns.long(), width, padding)
    index = torch.where(inside_i[:, None] & inside_j, i[:, None] * width + j, height * width)  # the last one is a zero
    flat = torch.nn.functional.pad(coefficients.flatten(2), (0, 1))
    index = index.movedim(2, 0)  # [P, rows, columns, H, W]
    found = flat.gather(2, index.reshape(pairs, 1, -1).expand(-1, channels, -1))
    values = found.view(pairs, channels, *index.shape[1:]).permute(2, 3, 0, 1, 4, 5)
    return values, values.abs().amax((0, 1))
