"""Bounds of transformed pixels: validation, `bound_pixels`, and the choice between the methods and their tiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tiltproof.device import batch_entries, has_kernel, launch_bound
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.relu import clamp01
from tiltproof.enclosures.rounding import UNIT, widen
from tiltproof.errors import InputError
from tiltproof.pixels import single_cell
from tiltproof.pixels.bilinear import MOST_CELLS, PatchExtrema, boxes_of, some, too_wide, wide_hull
from tiltproof.pixels.coordinates import Coordinates, check_limits, coordinates, symbols
from tiltproof.pixels.fgv import fgv
from tiltproof.pixels.interpolations import resampled_form, resampled_interval
from tiltproof.pixels.noise import noisy_form, noisy_interval
from tiltproof.pixels.photometric import changed_form, changed_interval
from tiltproof.pixels.quadratic import quadratic_pixels
from tiltproof.transforms.base import Photometric, Pixelwise, Spatial, Transform, parse
from tiltproof.transforms.blur import Filter
from tiltproof.transforms.camera import CameraMove
from tiltproof.transforms.geometric import Scaling
from tiltproof.transforms.photometric import Gamma

METHODS = ("affine", "hull", "fgv")
MOST_CHANNELS, COLOURS = 4, (1, 3, 4)
"""Images of more channels than this, and of one of these widths, are taken for images whose channels come last."""


def check_method(method: str, transform: Transform) -> None:
    """Raise if `method` is unknown, or if `fgv` does not support the transformation."""
    if method not in METHODS:
        raise InputError("unknown method", got=repr(method), do=f"use one of {', '.join(METHODS)}")
    if method == "fgv" and transform.interpolation != "bilinear":
        raise InputError(
            "the paper's method (fgv) is defined for bilinear interpolation only",
            got=transform.interpolation,
            do="use method affine or hull",
        )
    beyond = [part.text for part in transform.parts if isinstance(part, Photometric)]
    if method == "fgv" and beyond:
        raise InputError(
            "the paper's method (fgv) is defined for moves of pixels, contrast and brightness only",
            got=", ".join(beyond),
            do="use method affine or hull",
        )


def check_images(images: Tensor) -> None:
    """Raise unless ``images`` is a finite floating-point batch [N, C, H, W] with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise InputError("images must be a torch tensor", got=type(images).__name__, do="torch.as_tensor(images)")
    if images.ndim != 4:
        raise InputError(
            "images must have shape [N, C, H, W]",
            got=tuple(images.shape),
            why="a missing batch dimension",
            do="images[None]",
        )
    channels, width, last = images.shape[1:]
    if (
        channels > MOST_CHANNELS and last in COLOURS
    ):  # else columns and colours would be transformed as if they were the image
        raise InputError(
            "images must have shape [N, C, H, W], with channels first",
            got=f"{tuple(images.shape)}, which is {channels} channels of {width} x {last} pixels",
            why=f"channels last: {last} channels of {channels} x {width} pixels",
            do="images.permute(0, 3, 1, 2); wrap a model that takes channels last in a module that permutes them back",
        )
    if images.dtype not in (torch.float32, torch.float64):
        raise InputError(
            "images must be float32 or float64",
            got=images.dtype,
            why="8-bit or half-precision pixels",
            do="images.float() / 255",
        )
    if 0 in images.shape:
        raise InputError(
            "there are no images", got=f"shape {tuple(images.shape)}", do="check the selection or the folder"
        )
    if not bool(torch.isfinite(images).all()):
        raise InputError(
            "images contain NaN or infinity", why="a division by zero in preprocessing", do="clean the data first"
        )
    low, high = images.min().item(), images.max().item()
    if low < 0 or high > 1:
        raise InputError(
            "pixel values must lie in [0, 1]",
            got=f"{low:g} to {high:g}",
            why="pixels not divided by 255, or already normalized",
            do="scale to [0, 1] and put the normalization inside the model",
        )


# Pixel bounds: what every pixel of every transformed image can be, over a box of parameters.


CHUNK_ENTRIES = 2**20
"""Pixels that `bound_pixels` bounds at a time; each takes about forty float64 numbers."""


def bound_pixels(
    images: Tensor,
    transform: Transform | str,
    method: str = "affine",
    low: Tensor | Sequence[float] | None = None,
    high: Tensor | Sequence[float] | None = None,
) -> AffineForm:
    """Bound all pixels of each image over a box of transformation parameters.

    Parameters
    ----------
    images : Tensor
        Images [N, C, H, W] with values in [0, 1].
    transform : Transform or str
        The transformation.
    method : {"affine", "hull", "fgv"}
        Affine forms, whose symbols are the parameters; the exact interval over the coordinate box; or the paper's Algorithm 1.
    low, high : Tensor or sequence of float, optional
        A box for each image [N, d], or one for all [d]; by default the transformation's whole range.

    Returns
    -------
    AffineForm
        Bounds [N, C, H, W]: every transformed pixel lies between ``lower`` and ``upper``.

    Raises
    ------
    InputError
        If an argument is invalid, or the transformation is not defined on a box.
    """
    transform = parse(transform) if isinstance(transform, str) else transform
    check_images(images)
    check_method(method, transform)
    transform.check_channels(images.shape[1])
    box = [_box(end, whole, images, transform) for end, whole in ((low, transform.low), (high, transform.high))]
    if bool((box[0] > box[1]).any()):
        raise InputError("a parameter box has low above high", got=f"low {low}, high {high}")
    for k, part in enumerate(transform.parts):
        if isinstance(part, (Scaling, Gamma, Filter, CameraMove)):
            part.check(float(box[0][:, k].min()), float(box[1][:, k].max()))
    low, high = box
    check_limits(transform, images.shape[-2], images.shape[-1], low, high)
    size = max(1, CHUNK_ENTRIES // images[0].numel())
    forms = [
        pair_bounds(
            part.double(),
            torch.arange(len(part), device=part.device),
            transform,
            method,
            below,
            above,
            dtype=images.dtype,
        )
        for part, below, above in zip(images.split(size), low.split(size), high.split(size), strict=True)
    ]
    return AffineForm(torch.cat([form.stack for form in forms], 1), torch.cat([form.radius for form in forms]))


def pair_bounds(
    images: Tensor,
    rows_of: Tensor,
    transform: Transform,
    method: str,
    low: Tensor,
    high: Tensor,
    cells: int | None = None,
    quadratic: bool = False,
    dtype: torch.dtype = torch.float64,
) -> AffineForm:
    """Bound pairs: image ``rows_of[p]`` over the parameter box [low[p], high[p]]; in float64, converted to ``dtype``
    at the end.

    ``cells``: see `Coordinates`; losses set it so that no shape depends on values. ``quadratic``: for a single
    spatial parameter, affine forms get up to two more symbols (`pixels.quadratic`): tighter, and more expensive for
    the network.
    """
    check_method(method, transform)
    if transform.noise:  # added in float64, to whatever the method says of the transformed image
        form = pair_bounds(images, rows_of, transform.without_noise(), method, low, high, cells, quadratic)
        return noisy(form, transform.noise, method).to(dtype)
    if method == "affine":
        quadratic = quadratic and len(transform.parts) == 1 and transform.parts[0].kind is Spatial
        quadratic = quadratic and transform.interpolation == "bilinear"
        return _affine_bounds(images, rows_of, transform, low, high, cells, quadratic, dtype).to(dtype)
    height, width = images.shape[-2:]
    image = Interval(images, images)
    if not transform.parts:  # noise alone: the images themselves
        image = Interval(images[rows_of], images[rows_of])
    for kind, run in transform.stages():
        if kind is Spatial and method == "fgv":
            image = fgv(transform, run, image, rows_of, low, high)
        elif kind is Spatial:
            place = coordinates(transform, run, symbols(low, high), low, high, height, width, cells)
            image = _resampled_interval(image, rows_of, place, transform).clamp01()
        else:
            if len(image.lower) != len(rows_of) or image.lower is images:
                image = Interval(images[rows_of], images[rows_of])
            for k in run:
                part, value = transform.parts[k], Interval(low[:, k].view(-1, 1, 1, 1), high[:, k].view(-1, 1, 1, 1))
                image = changed_interval(part, image, value, transform.padding)
            image = image.clamp01()
        rows_of = torch.arange(len(rows_of), device=rows_of.device)
    return AffineForm.between(image.lower, image.upper).to(dtype)


def noisy(form: AffineForm, epsilon: float, method: str) -> AffineForm:
    """Add noise up to epsilon to bounds of transformed pixels; to forms without symbols as to intervals, which is sharper."""
    if method == "affine":
        return noisy_form(form, epsilon)
    image = noisy_interval(Interval(form.lower, form.upper), epsilon)
    return AffineForm.between(image.lower, image.upper)


def _affine_bounds(
    images: Tensor,
    rows_of: Tensor,
    transform: Transform,
    low: Tensor,
    high: Tensor,
    cells: int | None,
    quadratic: bool,
    dtype: torch.dtype,
) -> AffineForm:
    height, width = images.shape[-2:]
    stages = list(transform.stages())
    if stages and stages[0][0] is Spatial and transform.interpolation == "bilinear":
        # in the wanted dtype if nothing follows, for half the traffic
        wanted = dtype if len(stages) == 1 and not quadratic else torch.float64
        run = stages.pop(0)[1]
        image = affine_spatial(images, rows_of, transform, run, low, high, wanted, quadratic, cells)
    elif stages and stages[0][0] is Spatial:
        run = stages.pop(0)[1]
        place = coordinates(transform, run, symbols(low, high), low, high, height, width, cells)
        exact = AffineForm.constant(images.double())
        image = resampled_form(exact, rows_of, place, transform.padding, transform.interpolation, hull)
    else:
        image = AffineForm.constant(images[rows_of], max(1, low.shape[1]))
    pairs = torch.arange(len(rows_of), device=rows_of.device)
    for number, (kind, run) in enumerate(stages, 1):
        if kind is Spatial:
            place = coordinates(transform, run, symbols(low, high), low, high, height, width, cells)
            image = _resampled(image, pairs, place, transform)
        elif kind is Pixelwise:
            wanted = dtype if number == len(stages) else torch.float64
            image = affine_pixelwise(image, transform, run, low, high, wanted)
        else:
            image = _affine_changes(image, transform, run, low, high)
    return image


@has_kernel("pixels:spatial")
def affine_spatial(
    images: Tensor,
    rows_of: Tensor,
    transform: Transform,
    run: list[int],
    low: Tensor,
    high: Tensor,
    dtype: torch.dtype = torch.float64,
    quadratic: bool = False,
    cells: int | None = None,
) -> AffineForm:
    """Resample exact images by a run of spatial parts; the result is in ``dtype``, as `AffineForm.to` converts."""
    height, width = images.shape[-2:]
    fixed = launch_bound(low) or cells is not None
    rows, box_of = (slice(None), None) if fixed else distinct(low[:, run], high[:, run])
    low, high = low[rows], high[rows]
    place = coordinates(transform, run, symbols(low, high, quadratic), low, high, height, width, cells)
    return affine_of_exact(images, rows_of, place, transform.padding, box_of, dtype)


@has_kernel("photometric:values")
def affine_pixelwise(
    image: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor, dtype: torch.dtype
) -> AffineForm:
    """Bound a run of pixelwise parts and their clamp."""
    return clamp01(_affine_changes(image, transform, run, low, high)).to(dtype)


def _affine_changes(image: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor) -> AffineForm:
    forms = symbols(low, high)
    for k in run:
        value = forms[k].exactly(lambda entries: entries.view(-1, 1, 1, 1))
        image = changed_form(transform.parts[k], image, value, transform.padding)
    return image


@has_kernel("pixels:pairs_alone")
def bounds_pairs_alone(images: Tensor, transform: Transform) -> bool:  # noqa: ARG001 (a kernel uses them)
    """Return whether the bounds of a pair do not depend on its batch; the reference bounds all boxes like the widest."""
    return False


def distinct(low: Tensor, high: Tensor) -> tuple[Tensor | slice, Tensor | None]:
    """Return rows that hold each of the boxes [P, d] once, and the row of each box [P]; (all, None) if no two are
    equal.

    All images begin with the same boxes, and source positions depend on nothing else.
    """
    ends = torch.cat([low, high], 1)
    # a single number for each box is several times faster to sort; whether it distinguishes them is checked below
    weights = torch.arange(1, ends.shape[1] + 1, dtype=ends.dtype, device=ends.device).sin()
    keys, box_of = (ends * weights).sum(1).unique(return_inverse=True)
    if len(keys) == len(low):
        return slice(None), None
    rows = torch.empty(len(keys), dtype=torch.int64, device=low.device)
    rows.scatter_(0, box_of, torch.arange(len(low), device=low.device))
    return (rows, box_of) if torch.equal(ends[rows][box_of], ends) else (slice(None), None)


def _box(
    end: Tensor | Sequence[float] | None, whole: tuple[float, ...], images: Tensor, transform: Transform
) -> Tensor:
    box = torch.as_tensor(whole if end is None else end, dtype=torch.float64, device=images.device)
    if box.ndim == 1:
        box = box.expand(len(images), -1)
    if box.shape != (len(images), len(whole)) or not bool(torch.isfinite(box).all()):
        raise InputError(
            f"a parameter box needs {len(whole)} finite numbers per image",
            got=f"shape {tuple(box.shape)}",
            do=f"give them in the order {transform}",
        )
    return box


# Spatial parts: the exact interval hull of a resampled image over coordinate boxes, and its affine form.

MANY_POINTS = 36
"""Boxes with more points get no slopes: a plane does not approximate so large a part of an image."""
CACHED_ENTRIES = 2**14
"""Pixels bounded at a time on a CPU: some dozens of float64 numbers for each, which fit into its caches."""


def hull(images: Tensor, rows_of: Tensor, place: Coordinates, padding: str) -> Interval:
    """Return the exact minimum and maximum of the image over each pixel's coordinate box, [P, C, H, W]; for a box of
    many cells slightly wider bounds (`pixels.bilinear.wide_hull`)."""
    wide = _too_wide(images, place, padding)
    if wide is not None:
        place = replace(place, cells=MOST_CELLS)
    low = high = None
    for value in PatchExtrema(images, rows_of, place, padding):
        low = value if low is None else torch.minimum(low, value)
        high = value if high is None else torch.maximum(high, value)
    assert low is not None
    assert high is not None
    if wide is not None:
        outer = wide_hull(images, rows_of, place.columns, place.rows, padding)
        low, high = torch.where(wide, outer.lower, low), torch.where(wide, outer.upper, high)
    # Two nested interpolations round at most 12 times, relative to the largest pixel.
    slack = _largest(images) * (12 * UNIT[images.dtype])
    return Interval((low - slack).permute(0, 3, 1, 2), (high + slack).permute(0, 3, 1, 2))


def hull_of_interval(image: Interval, rows_of: Tensor, place: Coordinates, padding: str) -> Interval:
    """Bound an image known up to intervals in the same way: interpolation weights are not negative."""
    if image.lower is image.upper:
        return hull(image.lower, rows_of, place, padding)
    return Interval(hull(image.lower, rows_of, place, padding).lower, hull(image.upper, rows_of, place, padding).upper)


def _resampled_interval(image: Interval, rows_of: Tensor, place: Coordinates, transform: Transform) -> Interval:
    if transform.interpolation == "bilinear":
        return hull_of_interval(image, rows_of, place, transform.padding)
    return resampled_interval(image, rows_of, place, transform.padding, transform.interpolation, hull)


def _resampled(image: AffineForm, rows_of: Tensor, place: Coordinates, transform: Transform) -> AffineForm:
    if transform.interpolation == "bilinear":
        return affine(image, rows_of, place, transform.padding)
    return resampled_form(image, rows_of, place, transform.padding, transform.interpolation, hull)


def affine(image: AffineForm, rows_of: Tensor, place: Coordinates, padding: str) -> AffineForm:
    """The resampled image as an affine form over the box's parameters.

    An image that itself depends on the parameters, c + sum_k G_k e_k + [-r, r] (contrast before a rotation), is
    resampled term by term: interpolation is linear in the image with weights >= 0, so the value lies in S(c) +
    sum_k S(G_k) e_k + [-S(r), S(r)], S(G_k) in its hull m_k +- w_k gives slope m_k and remainder w_k.
    """
    form = affine_of_exact(image.center, rows_of, place, padding)
    stack, radius = form.stack.clone(), form.radius
    for k in range(image.symbols):
        slope = AffineForm.between(*_ends(hull(image.slopes[k], rows_of, place, padding)))
        stack[1 + k] += slope.center
        radius = radius + slope.radius
    radius = radius + hull(image.radius, rows_of, place, padding).upper
    magnitude = stack.abs().sum(0)
    return AffineForm(stack, widen(radius, magnitude, image.symbols + 4, form.unit), form.unit)


def affine_of_exact(
    images: Tensor,
    rows_of: Tensor,
    place: Coordinates,
    padding: str,
    box_of: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> AffineForm:
    """p = residual + g_u (u - u_c) + g_v (v - v_c): the residual's exact hull, and u, v as affine forms; at last in ``dtype``.

    ``box_of`` [P]: the row of ``place`` that is each pair's box; by default pair p's is row p.
    """

    def by_points(images: Tensor, rows_of: Tensor, place: Coordinates) -> AffineForm:
        return affine_by_points(images, rows_of, place, padding, None, dtype)

    if single_cell.applies(images, place, padding):
        form = single_cell.single_cell_form(images, rows_of, place, padding, box_of, dtype, by_points)
        if form is not None:
            return form
    return affine_by_points(images, rows_of, place, padding, box_of, dtype)


def affine_by_points(
    images: Tensor, rows_of: Tensor, place: Coordinates, padding: str, box_of: Tensor | None, dtype: torch.dtype
) -> AffineForm:
    """Compute the form from the image's values at all points of each pixel's box."""
    walk = None if _too_wide(images, place, padding) is not None else PatchExtrema(images, rows_of, place, padding)
    if walk is None or walk.count > MANY_POINTS or not (walk.x.true and walk.y.true):
        place = place if box_of is None else place.of(box_of)
        interval = AffineForm.between(*_ends(hull(images, rows_of, place, padding)))
        empty = interval.stack.new_zeros(place.column.symbols, *interval.shape)
        return AffineForm(torch.cat([interval.stack, empty]), interval.radius, quadratic=place.column.quadratic).to(
            dtype
        )
    x, y = (_Steps.of(line.points, form) for line, form in ((walk.x, place.column), (walk.y, place.row)))
    largest, forms = _largest(images), []
    entries = images.shape[1] * math.prod(place.column.shape[1:])
    size = max(1, batch_entries(images, CACHED_ENTRIES) // entries)
    for begin in range(0, len(rows_of), size):
        pairs = slice(begin, begin + size)
        boxes = boxes_of(box_of, pairs)
        part = walk.pairs(rows_of[pairs], boxes)
        forms.append(_of_points(part, x.rows(boxes), y.rows(boxes), largest).to(dtype))
    stack, radius = forms[0].stack, forms[0].radius
    if len(forms) > 1:
        stack, radius = torch.cat([form.stack for form in forms], 1), torch.cat([form.radius for form in forms])
    return AffineForm(stack.permute(0, 1, 4, 2, 3), radius.permute(0, 3, 1, 2), forms[0].unit, place.column.quadratic)


@dataclass
class _Steps:
    """Positions along one axis for the pixels of boxes, with a dimension for channels: [P, H, W, 1]."""

    form: AffineForm  # the position u
    points: Tensor  # x - u_c for all points x of the axis, [points, P, H, W, 1]
    size: Tensor  # at least |x - u_c| + sum_k |slopes[k]|, what roundings are relative to

    @classmethod
    def of(cls, points: Tensor, form: AffineForm) -> _Steps:
        form = AffineForm(form.stack.unsqueeze(-1), form.radius.unsqueeze(-1), form.unit, form.quadratic)
        steps = points.unsqueeze(-1) - form.center
        # a step is itself rounded, relative to the positions
        largest = torch.maximum(steps[0].abs(), steps[-1].abs()) + form.center.abs() * (2 * form.unit)
        return cls(form, steps, largest + form.slopes.abs().sum(0))

    def rows(self, boxes: Tensor | slice) -> _Steps:
        form = AffineForm(
            some(self.form.stack, boxes, 1), some(self.form.radius, boxes), self.form.unit, self.form.quadratic
        )
        return _Steps(form, some(self.points, boxes, 1), some(self.size, boxes))


def _of_points(walk: PatchExtrema, x: _Steps, y: _Steps, largest: Tensor) -> AffineForm:
    """The form of `affine_of_exact` for the walk's pairs, channels last."""
    values, u, v = walk.values(), x.form, y.form
    # Secant slopes from the four corners. Any slopes are sound: the residual below is measured against the ones used.
    (sw, se), (nw, ne) = ((line[0], line[-1]) for line in (values[0], values[-1]))
    slope_u = _secant(se + ne - sw - nw, x.points[-1] - x.points[0])
    slope_v = _secant(nw + ne - sw - se, y.points[-1] - y.points[0])
    residual = values.sub_(slope_u * x.points).sub_((slope_v * y.points).unsqueeze(1)).flatten(0, 1)
    low, high = residual.amin(0), residual.amax(0)
    size_u, size_v = slope_u.abs(), slope_v.abs()
    radius = (high - low) / 2 + size_u * u.radius + size_v * v.radius
    # Roundings: 12 of the interpolation, 8 of the residual and its mid-point, 3 of each slope; all relative to these.
    magnitude = largest + size_u * x.size + size_v * y.size
    stack = torch.cat([((low + high) / 2)[None], slope_u * u.slopes + slope_v * v.slopes])
    form = AffineForm(stack, widen(radius, magnitude, 24, u.unit))
    return quadratic_pixels(walk, u, v, form, largest) if u.quadratic else form


def _too_wide(images: Tensor, place: Coordinates, padding: str) -> Tensor | None:
    """Return where boxes span too many cells to visit each point, [P, H, W, 1]; None if none does."""
    if place.cells is not None:  # the caller knows that there are few
        return None
    height, width = images.shape[-2:]
    wide = too_wide(place.columns, place.rows, height, width, padding)
    return None if wide is None else wide.unsqueeze(-1)


def _secant(rise: Tensor, run: Tensor) -> Tensor:
    """Slope of the plane; none where the box is so thin that the rise is only rounding noise (any slope is sound)."""
    return torch.where(run > 2.0**-30, rise / (2 * run), 0.0)


def _largest(images: Tensor) -> Tensor:
    return images.abs().amax()


def _ends(interval: Interval) -> tuple[Tensor, Tensor]:
    return interval.lower, interval.upper
