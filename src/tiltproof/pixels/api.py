"""What counts as a batch of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tiltproof.device import launch_bound
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.interval import Interval
from tiltproof.enclosures.relu import clamp01
from tiltproof.errors import InputError
from tiltproof.kernels.registry import has_kernel
from tiltproof.pixels.camera_depth import check_camera_depth
from tiltproof.pixels.coordinates import coordinates, symbols
from tiltproof.pixels.fgv import fgv
from tiltproof.pixels.photometric import changed_form, changed_interval
from tiltproof.pixels.spatial import affine, affine_of_exact, hull_of_interval
from tiltproof.transforms.base import Photometric, Pixelwise, Spatial, Transform
from tiltproof.transforms.blur import Filter
from tiltproof.transforms.geometric import Scaling
from tiltproof.transforms.notation import parse
from tiltproof.transforms.photometric import Gamma

METHODS = ("affine", "hull", "fgv")


def check_method(method: str, transform: Transform) -> None:
    """Refuse a method that there is not, and the paper's for what it does not define."""
    if method not in METHODS:
        raise InputError("unknown method", got=repr(method), do=f"use one of {', '.join(METHODS)}")
    beyond = [part.text for part in transform.parts if isinstance(part, Photometric)]
    if method == "fgv" and beyond:
        raise InputError(
            "the paper's method (fgv) is defined for moves of pixels, contrast and brightness only",
            got=", ".join(beyond),
            do="use method affine or hull",
        )


def check_images(images: Tensor) -> None:
    """Refuse anything but a finite floating-point batch [N, C, H, W] with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise InputError("images must be a torch tensor", got=type(images).__name__, do="torch.as_tensor(images)")
    if images.ndim != 4:
        raise InputError(
            "images must have shape [N, C, H, W]",
            got=tuple(images.shape),
            why="a missing batch dimension",
            do="images[None]",
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
            why="pixels not divided by 255, or already normalised",
            do="scale to [0, 1] and put the normalisation inside the model",
        )


# Pixel bounds: what every pixel of every transformed picture can be, over a box of parameters.


CHUNK_ENTRIES = 2**20
"""Pixels bounded at a time by `bound_pixels`; some forty float64 numbers are held for each."""


def bound_pixels(
    images: Tensor,
    transform: Transform | str,
    method: str = "affine",
    low: Tensor | Sequence[float] | None = None,
    high: Tensor | Sequence[float] | None = None,
) -> AffineForm:
    """Bound all pixels of each image over a box of transformation parameters.

    ``low`` and ``high`` give each image its own box [N, d], or one box for all [d]; by default the transform's whole
    range. ``method``: ``affine`` keeps the parameters as symbols, ``hull`` is the exact interval over the coordinate
    box, ``fgv`` is the paper's Algorithm 1. The result has ``.lower`` and ``.upper``; the true pixel never leaves
    them.
    """
    transform = parse(transform) if isinstance(transform, str) else transform
    check_images(images)
    check_method(method, transform)
    transform.check_channels(images.shape[1])
    box = [_box(end, whole, images, transform) for end, whole in ((low, transform.low), (high, transform.high))]
    if bool((box[0] > box[1]).any()):
        raise InputError("a parameter box has low above high", got=f"low {low}, high {high}")
    for k, part in enumerate(transform.parts):
        if isinstance(part, (Scaling, Gamma, Filter)):
            part.check(float(box[0][:, k].min()), float(box[1][:, k].max()))
    low, high = box
    check_camera_depth(transform, images.shape[-2], images.shape[-1], low, high)
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
    pictures: Tensor,
    rows_of: Tensor,
    transform: Transform,
    method: str,
    low: Tensor,
    high: Tensor,
    cells: int | None = None,
    quadratic: bool = False,
    dtype: torch.dtype = torch.float64,
) -> AffineForm:
    """Bounds for pairs: picture ``rows_of[p]`` under the parameter box [low[p], high[p]]; float64 throughout, and at last in ``dtype``.

    ``cells``: see `Coordinates`; for losses, so that no shape depends on values. ``quadratic``: where there is one parameter only, and
    it moves pixels, affine forms get up to two symbols more (`bounds.quadratic`): tighter, and dearer for whatever follows.
    """
    check_method(method, transform)
    if method == "affine":
        quadratic = quadratic and len(transform.parts) == 1 and transform.parts[0].kind is Spatial
        return _affine_bounds(pictures, rows_of, transform, low, high, cells, quadratic, dtype).to(dtype)
    height, width = pictures.shape[-2:]
    picture = Interval(pictures, pictures)
    for kind, run in transform.stages():
        if kind is Spatial and method == "fgv":
            picture = fgv(transform, run, picture, rows_of, low, high)
        elif kind is Spatial:
            place = coordinates(transform, run, symbols(low, high), low, high, height, width, cells)
            picture = hull_of_interval(picture, rows_of, place, transform.padding).clamp01()
        else:
            if len(picture.lower) != len(rows_of) or picture.lower is pictures:
                picture = Interval(pictures[rows_of], pictures[rows_of])
            for k in run:
                part, value = transform.parts[k], Interval(low[:, k].view(-1, 1, 1, 1), high[:, k].view(-1, 1, 1, 1))
                picture = changed_interval(part, picture, value, transform.padding)
            picture = picture.clamp01()
        rows_of = torch.arange(len(rows_of), device=rows_of.device)
    return AffineForm.between(picture.lower, picture.upper).to(dtype)


def _affine_bounds(
    pictures: Tensor,
    rows_of: Tensor,
    transform: Transform,
    low: Tensor,
    high: Tensor,
    cells: int | None,
    quadratic: bool,
    dtype: torch.dtype,
) -> AffineForm:
    height, width = pictures.shape[-2:]
    stages = list(transform.stages())
    if stages[0][0] is Spatial:
        # in the wanted dtype if nothing follows, for half the traffic
        wanted = dtype if len(stages) == 1 and not quadratic else torch.float64
        run = stages.pop(0)[1]
        picture = affine_spatial(pictures, rows_of, transform, run, low, high, wanted, quadratic, cells)
    else:
        picture = AffineForm.constant(pictures[rows_of], low.shape[1])
    pairs = torch.arange(len(rows_of), device=rows_of.device)
    for number, (kind, run) in enumerate(stages, 1):
        if kind is Spatial:
            place = coordinates(transform, run, symbols(low, high), low, high, height, width, cells)
            picture = affine(picture, pairs, place, transform.padding)
        elif kind is Pixelwise:
            wanted = dtype if number == len(stages) else torch.float64
            picture = affine_pixelwise(picture, transform, run, low, high, wanted)
        else:
            picture = _affine_changes(picture, transform, run, low, high)
    return picture


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
    """Exact images resampled by a run of spatial parts; in ``dtype``, as `AffineForm.to` converts."""
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
    """Bounds after a run of pixelwise parts and their clamp."""
    return clamp01(_affine_changes(image, transform, run, low, high)).to(dtype)


def _affine_changes(image: AffineForm, transform: Transform, run: list[int], low: Tensor, high: Tensor) -> AffineForm:
    forms = symbols(low, high)
    for k in run:
        value = forms[k].exactly(lambda entries: entries.view(-1, 1, 1, 1))
        image = changed_form(transform.parts[k], image, value, transform.padding)
    return image


@has_kernel("pixels:pairs_alone")
def bounds_pairs_alone(images: Tensor, transform: Transform) -> bool:  # noqa: ARG001 (a kernel uses them)
    """Whether pixel bounds of a pair are the same in any batch; the reference bounds all boxes as it has to bound the widest."""
    return False


def distinct(low: Tensor, high: Tensor) -> tuple[Tensor | slice, Tensor | None]:
    """Rows that hold each of the boxes [P, d] once, and which of those each row's is, [P]; (all, None) where no two are the same.

    All images begin with the same boxes, and where a box's pixels look depends on nothing else.
    """
    ends = torch.cat([low, high], 1)
    # a single number for each box is several times faster to sort; that it tells them apart is not taken for granted
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
