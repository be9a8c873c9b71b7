"""Self-check of the kernels that `kernels/pixels.py` launches: what they must pass on a device before their bounds are used there.

Images of noise, and boxes from the transform's whole range down to a single point, by factors of three. Each pixel's form must

- contain the pixel of sampled parameters: |p(e) - c - sum_k s_k e_k| <= radius, with p computed in float64; where forms are quadratic, with
  2 e^2 - 1 for the second symbol and any one number of [-1, 1] for the hinge, but the same for all pixels;
- be the reference's, with a radius that is nowhere smaller by more than roundings that are certainly covered; or, without slopes, be
  the reference's hull; over the boxes of the forms alone, or where those meet the intervals', as the kernels decide. Where the reference
  evaluates no single points (`pixels.bilinear.wide_hull`) it may be less; and where one pixel makes it drop all slopes of a
  box, a form with slopes has the samples alone to answer to;
- be the same, bit for bit, when other pairs share its box, or nearly do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.rounding import UNIT
from tiltproof.pixels.api import affine_by_points, hull
from tiltproof.pixels.bilinear import too_wide
from tiltproof.pixels.coordinates import Coordinates, coordinates, symbols
from tiltproof.transforms.base import Transform
from tiltproof.transforms.interpolation import pixel_coordinates, sample

POWERS = (*range(12), 15, 20)
"""Boxes are 3^-k of the range for these k; a last one is a point."""
SAMPLES = 9
FEW, MANY, NEAR = 8, 64, 56
"""Roundings by which a radius may be smaller than the reference's, and by which anything may differ otherwise: of float64, in images of
no more rows and columns together than the last. In larger ones positions are rounded relative to their size, and what is seen there too."""
Launch = Callable[[Tensor, Tensor, Tensor, Tensor], AffineForm]


def agrees(
    launch: Launch, image: Tensor, transform: Transform, run: list[int], dtype: torch.dtype, quadratic: bool = False
) -> bool:
    """``launch(images, rows_of, low, high)``: the kernels. ``image``: zeros of the shape to check.

    The reference is evaluated box by box, because it treats all boxes of a batch like the widest.
    """
    height, width = image.shape[-2:]
    generator = torch.Generator().manual_seed(0)
    image.copy_(torch.rand(image.shape, dtype=torch.float64, generator=generator))
    ends = [torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high)]
    span, parameters = ends[1] - ends[0], len(ends[0])
    half = torch.tensor([3.0**-k for k in POWERS] + [0.0], dtype=torch.float64).unsqueeze(1) * span / 2
    middle = ends[0] + span * torch.rand(len(half), parameters, dtype=torch.float64, generator=generator)
    # nearly the whole range: in a box that is symmetric about zero, slopes in u and in v may cancel, and look like none at all
    middle[0] = ends[0] + span * 0.47
    if quadratic:  # near zero, every pixel's path crosses grid lines
        middle[1::3] = torch.zeros_like(span).clamp(*ends) + half[1::3] / 8
    low, high = ((middle + sign * half).clamp(*ends).to(image.device) for sign in (-1, 1))
    places = _places(parameters, generator).to(image.device)
    rows_of = torch.arange(len(half), device=image.device) % len(image)
    found = launch(image, rows_of, low, high)
    for k in range(len(half)):
        box = low[k : k + 1], high[k : k + 1]
        mine, row = found[k : k + 1], rows_of[k : k + 1]
        place = coordinates(transform, run, symbols(*box, quadratic), *box, height, width)
        right = contains(mine, image[row], transform, run, *box, places)
        # with the forms' own boxes where the kernels do without the intervals
        alike = like_reference(mine, image, row, place, transform.padding, dtype)
        if not bool(alike.all()):
            alike |= like_reference(mine, image, row, _own(place), transform.padding, dtype)
        right = right & alike
        if not bool(right.all()):
            return False
    return True


def _own(place: Coordinates) -> Coordinates:
    columns, rows = (Interval(form.lower, form.upper) for form in (place.column, place.row))
    return Coordinates(place.column, place.row, columns, rows, place.cells)


def is_batch_invariant(launch: Launch, image: Tensor, transform: Transform, run: list[int]) -> bool:
    """Whether pairs that see the same place together get what each gets alone: some have the same box, and some all of it but one end."""
    ends = [torch.tensor(end, dtype=torch.float64, device=image.device) for end in (transform.low, transform.high)]
    low, high = (ends[0] + (ends[1] - ends[0]) * share for share in (0.4, 0.42))
    near, far = low.clone(), high.clone()
    near[run[0]], far[run[-1]] = (low + high)[run[0]] / 2, (high + ends[1])[run[-1]] / 2
    boxes = [(low, high), (near, far)] * 3 + [(low, far), (near, far), (near, far), (near, high), (near, far)]
    below, above = (torch.stack(end) for end in zip(*boxes, strict=True))
    rows_of = torch.arange(len(boxes), device=image.device) // 2 % len(image)
    together = launch(image, rows_of, below, above)
    for k in range(len(boxes)):
        alone, mine = launch(image, rows_of[k : k + 1], below[k : k + 1], above[k : k + 1]), together[k : k + 1]
        same = [(a == b) | (a != a) & (b != b) for a, b in ((alone.stack, mine.stack), (alone.radius, mine.radius))]
        if not all(bool(each.all()) for each in same):
            return False
    return True


def _places(parameters: int, generator: torch.Generator) -> Tensor:
    """e of the samples, [SAMPLES, d]: both ends, the middle, another corner, and points anywhere."""
    places = 2 * torch.rand(SAMPLES, parameters, dtype=torch.float64, generator=generator) - 1
    places[:3] = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    places[3] = (-1.0) ** torch.arange(parameters)
    return places


def contains(
    found: AffineForm, image: Tensor, transform: Transform, run: list[int], low: Tensor, high: Tensor, places: Tensor
) -> Tensor:
    """Where the form of one box holds the pixels of sampled parameters, [1, C, H, W]; a NaN proves nothing, so it holds all."""
    height, width = image.shape[-2:]
    parameters = (low + (places + 1) / 2 * (high - low)).clamp(low, high)
    matrix = transform.composed_inverse(run, [parameters[:, k].view(-1, 1, 1) for k in run])
    column, row = (position.expand(len(places), -1, -1) for position in pixel_coordinates(matrix, height, width, image))
    true = sample(image.expand(len(places), -1, -1, -1), column, row, transform.padding)
    form = found.stack.double()
    if found.quadratic:
        form, hinge = form[:3], form[3]
        places = torch.cat([places, 2 * places * places - 1], 1)
    at = form[0] + torch.einsum("nk,kchw->nchw", places, form[1:, 0])
    # what the sample itself is off: pixels of [0, 1] change by at most 1 per pixel, and positions are rounded relative to their size
    reach = height + width + max(float(position.abs().max()) for position in (column, row))
    slack = MANY * UNIT[torch.float64] * reach
    rest, room = true - at, found.radius.double() + slack
    if not found.quadratic:
        return ~(rest.abs() > room).any(0, keepdim=True)
    # which values of the hinge fit each pixel; where it has no part in the form, all do or none
    ends = torch.stack([(rest - room) / hinge, (rest + room) / hinge])
    low, high = (end.nan_to_num(nan, torch.inf, -torch.inf) for end, nan in ((ends.amin(0), -1.0), (ends.amax(0), 1.0)))
    least, most = low.flatten(1).amax(1).clamp(min=-1), high.flatten(1).amin(1).clamp(max=1)
    return (least <= most).all().expand_as(found.radius)


def like_reference(
    found: AffineForm, image: Tensor, row: Tensor, place: Coordinates, padding: str, dtype: torch.dtype
) -> Tensor:
    """Where the form of one box is what the reference makes of pixels of [0, 1], [1, C, H, W]."""
    wanted = affine_by_points(image, row, place, padding, None, dtype)
    if len(wanted.stack) < len(found.stack):  # no kink anywhere
        wanted = AffineForm(torch.cat([wanted.stack, torch.zeros_like(wanted.stack[:1])]), wanted.radius)
    no_slopes = bool((wanted.slopes == 0).all())
    far = max(1.0, sum(image.shape[-2:]) / NEAR)
    allowance = MANY * max(UNIT[dtype], far * UNIT[torch.float64])
    mine, theirs = (torch.cat([form.stack, form.radius[None]]) for form in (found, wanted))
    same = torch.isclose(mine, theirs, rtol=allowance, atol=allowance, equal_nan=True).all(0)
    same &= ~(found.radius.double() < wanted.radius.double() - _few(wanted, far))
    if no_slopes:
        outer = wanted
    else:
        interval = hull(image, row, place, padding)
        outer = AffineForm.between(interval.lower, interval.upper).to(dtype)
    flat = (found.slopes == 0).all(0)
    apart = (found.center.double() - outer.center.double()).abs()
    inside = apart + found.radius <= outer.radius.double() + allowance
    covers = apart + outer.radius <= found.radius.double() + _few(outer, far)
    height, width = image.shape[-2:]
    wide = too_wide(place.columns, place.rows, height, width, padding)
    if wide is not None:
        covers |= wide.unsqueeze(1)
    with_slopes = ~flat if no_slopes else torch.zeros_like(flat)
    return same | flat & inside & covers | with_slopes


def _few(form: AffineForm, far: float) -> Tensor:
    """A radius may be rounded to an adjacent number, and a center likewise. In float32 the kernel's roundings are relative to the pixels
    around a box, which may be 0, and the reference's 24 of float64 to the largest pixel.

    The extrema of a wide box lie at its ends, and kernel and reference may round these positions to adjacent numbers: 2^-45 apart at
    column 200, a quarter of which a steep pixel makes of it. With the pixels grows the number of cases, and so the worst: at 224 x 224
    it was 100 roundings of 64, in nine of 150,528 pixels of one box. A point's radius has 1,200 there, which is what a kernel would lose
    that forgot them."""
    stack = form.stack.double().abs()
    few = FEW * far**1.5 * UNIT[torch.float64] * (1 + stack[1:].sum(0))
    if form.radius.dtype == torch.float64:
        return few
    return 4 * few + 2 * UNIT[form.radius.dtype] * form.radius.double()
