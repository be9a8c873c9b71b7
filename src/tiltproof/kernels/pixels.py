"""Pixel bounds in two launches, or four for quadratic forms; the reference makes hundreds.

The first launch makes a table of the entries of each pair's matrices, a few numbers (`matrix_program.py`). The second
(`triton/pixels.py`) reads an image once per pair and writes center, slopes and radius once; for float32 it reads a float32
copy of the image. Two more add the quadratic terms (`triton/quadratic.py`). Nothing waits for the GPU. Cameras and gradients
are left to the reference.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import accelerates, is_recording
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import UNIT
from tiltproof.kernels.matrix_program import Entries, trace
from tiltproof.kernels.selfcheck import agrees, is_batch_invariant
from tiltproof.kernels.triton.bilinear import BORDER, REFLECT, ZEROS
from tiltproof.kernels.triton.matrix_entries import entries as entries_kernel
from tiltproof.kernels.triton.pixels import pixels as pixels_kernel
from tiltproof.kernels.triton.quadratic import kinks as kinks_kernel
from tiltproof.kernels.triton.quadratic import smooth as smooth_kernel
from tiltproof.pixels.api import affine_spatial, bounds_pairs_alone
from tiltproof.pixels.quadratic import hinges
from tiltproof.transforms.base import Spatial, Transform
from tiltproof.transforms.interpolation import reflects

PADDINGS = {"zeros": ZEROS.value, "border": BORDER.value, "reflect": REFLECT.value}
"""The codes of the paddings in `triton/bilinear.py`."""

BLOCK = 32
"""Pixels of one program; all take the branch that one of them needs."""
SMALL_BLOCK = 64
"""The same for float32 results of small images, where few boxes cross grid lines."""
SMALL = 2**12
"""Pixels of a small image, at most."""
WARPS = 1
"""Warps of one program."""
REGISTERS: dict[torch.dtype, int | None] = {torch.float32: 64, torch.float64: 96}
"""Registers of a thread, at most, so that many threads wait for memory at once; found by trying on an H200. What does not fit is
spilled outside of the loops, or where boxes meet many cells."""
STRIP = 16
"""Blocks that one program handles in turn, at most."""
LARGE_STRIP = 6
"""The same for images that are not small."""
SHARED_PAIRS = 16
"""Pairs with the same box for which a program finds positions once, at most."""
PROGRAMS = 2**14
"""Programs that strips and shared pairs have to leave."""
LAUNCHED = 2**16
"""Programs that are started, at most. While the last ones run other processors idle, so each program should be short."""
QUADRATIC_BLOCK = 128
"""Pixels of one program of the quadratic kernels."""
QUADRATIC_WARPS = 4
"""Warps of one program of the quadratic kernels."""
MOST_SYMBOLS = 8
"""Symbols of a form, at most."""
MOST_PIXELS = 2**30
"""Pixels of an image, at most."""
MOST_PAIRS = 2**24
"""Pairs of a batch, at most."""
MOST_ROWS = 2**16 - 1
"""Programs in the second dimension of a launch, at most: CUDA's limit."""
MOST_SINGLE = 2**12
"""Rows and columns of an image, at most, for which `triton/pixels_float32.py` is used."""
RING = 3
"""Lines around the image in its float32 copy."""
ROUNDINGS = (10, 5), (14, 9)
"""Rounding allowances of `triton/pixels_float32.py` in one cell, and in two each way: roundings of the largest difference of pixels there,
and of the largest pixel."""
LARGE = 2**16
"""Pixels of an image up to which the self-check uses an image of the same size: 224 x 224 takes a CPU core half a second a box."""
IN_PART = 17, 23
"""Rows and columns, at most, of the image that stands for a large one whose last block is not full."""
WHOLE = 32, 64
"""The same where all blocks are full."""
Way = tuple[bool, int, int]
"""Whether `triton/pixels_float32.py` is used, pixels of a block, and blocks of a strip at most."""
_launched: set[object] = set()
"""Launches whose kernels are compiled, so that a CUDA graph may record them."""
_prepared: tuple[weakref.ref[Tensor], object, list[Tensor]] | None = None


def _possible(
    images: Tensor, rows_of: Tensor, transform: Transform, run: list[int], low: Tensor, high: Tensor, dtype: torch.dtype,
    *_: object,
) -> bool:  # fmt: skip
    """Whether shapes, dtypes and devices are those the kernels assume, and no index exceeds 32 bits."""
    pairs, pixels = rows_of.numel(), images.shape[-1] * images.shape[-2]
    return (
        images.dtype == low.dtype == high.dtype == torch.float64
        and dtype in UNIT
        and not any(tensor.requires_grad for tensor in (images, low, high))
        and all(tensor.device == images.device for tensor in (rows_of, low, high))
        and images.ndim == 4
        and rows_of.shape == (pairs,)
        and low.shape == high.shape == (pairs, len(transform.parts))
        and len(transform.parts) <= MOST_SYMBOLS
        and images.numel() > 0
        and pixels < MOST_PIXELS
        and 0 < pairs < MOST_PAIRS
        and pairs * -(-pixels // min(BLOCK, SMALL_BLOCK)) < 2**29
    )


def _plan(
    images: Tensor,
    rows_of: Tensor,
    transform: Transform,
    run: list[int],
    low: Tensor,
    high: Tensor,
    dtype: torch.dtype,
    quadratic: bool = False,
    _: int | None = None,
) -> tuple[Any, ...] | None:
    entries = trace(transform, run, quadratic)
    if entries is None:
        return None
    if is_recording(images.device) and _launch_key(images, rows_of, transform, entries, dtype) not in _launched:
        return None  # nothing can be compiled while a CUDA graph is recorded
    return images, rows_of, transform, run, entries, low, high, dtype


def _launch_key(
    images: Tensor, rows_of: Tensor, transform: Transform, entries: Entries, dtype: torch.dtype
) -> tuple[object, ...]:
    ranges = transform.low, transform.high
    return images.device, images.shape[1:], len(rows_of), entries, ranges, transform.padding, dtype


def _check_key(
    images: Tensor, rows_of: Tensor, transform: Transform, run: list[int], entries: Entries, *others: Any
) -> tuple[Any, ...]:
    """The compile-time key of the kernels.

    Sizes are compiled in, so the check uses the images' own size. A large image would take long, so a small one of several blocks
    stands for it: with full blocks only if its own are full, and with the kernel configuration of the large one.
    """
    height, width = images.shape[-2:]
    dtype = others[-1]
    way = _way(entries, dtype, height, width)
    if height * width > LARGE:
        most = IN_PART if height * width % way[1] else WHOLE
        height, width = min(height, most[0]), min(width, most[1])
    channels = min(images.shape[1], 3)
    ranges = transform.low, transform.high
    return images.device, entries, ranges, transform.padding, channels, height, width, way, dtype


def _check(
    images: Tensor, rows_of: Tensor, transform: Transform, run: list[int], entries: Entries, *others: Any
) -> bool:
    *_, channels, height, width, way, dtype = _check_key(images, rows_of, transform, run, entries, *others)
    return _agrees(images.new_zeros(2, channels, height, width), transform, run, entries, dtype, way)


def _agrees(
    images: Tensor, transform: Transform, run: list[int], entries: Entries, dtype: torch.dtype, way: Way
) -> bool:
    def launch(images: Tensor, rows_of: Tensor, low: Tensor, high: Tensor) -> AffineForm:
        return _launch(images, rows_of, entries, low, high, transform.padding, dtype, way)

    same = agrees(launch, images, transform, run, dtype, entries.quadratic)
    return same and is_batch_invariant(launch, images, transform, run)


@accelerates(affine_spatial, when=_possible, plan=_plan, key=_check_key, check=_check, slows="pixel bounds")
def spatial(
    images: Tensor,
    rows_of: Tensor,
    transform: Transform,
    run: list[int],
    entries: Entries,
    low: Tensor,
    high: Tensor,
    dtype: torch.dtype,
) -> AffineForm:
    """Bounds of images resampled by a run of spatial parts."""
    form = _launch(images, rows_of, entries, low, high, transform.padding, dtype)
    _launched.add(_launch_key(images, rows_of, transform, entries, dtype))
    return form


def _only_spatial_first(images: Tensor, transform: Transform) -> bool:
    if not transform.parts:
        return False
    (kind, run), *others = transform.stages()
    known = kind is Spatial and all(other is not Spatial for other, _ in others) and not spatial.disabled
    return known and trace(transform, run) is not None


@accelerates(bounds_pairs_alone, when=_only_spatial_first)
def pairs_alone(images: Tensor, transform: Transform) -> bool:
    return True


def _way(entries: Entries, dtype: torch.dtype, height: int, width: int) -> Way:
    """The kernel configuration for an image size."""
    small = height * width <= SMALL
    return (
        dtype == torch.float32 and not entries.quadratic and height + width <= MOST_SINGLE,
        SMALL_BLOCK if dtype == torch.float32 and small else BLOCK,
        STRIP if small else LARGE_STRIP,
    )


def _launch(
    images: Tensor,
    rows_of: Tensor,
    entries: Entries,
    low: Tensor,
    high: Tensor,
    padding: str,
    dtype: torch.dtype,
    checked: Way | None = None,
) -> AffineForm:
    """``checked``: in a self-check, the configuration that the images to come use; with strips and shared pairs as in large batches."""
    _, channels, height, width = images.shape
    shape = len(rows_of), channels, height, width
    low, high = low.contiguous(), high.contiguous()
    single, block, strip = checked or _way(entries, dtype, height, width)
    programs = 1 if checked else PROGRAMS
    small = low.new_empty(len(low), entries.float32_rows, dtype=dtype) if single else None
    table, period = entries.table(entries_kernel, low, high, small)
    stack = images.new_empty(1 + entries.symbols + entries.quadratic, *shape, dtype=dtype)
    radius = images.new_empty(shape, dtype=dtype)
    sides = [PADDINGS["border" if reflects(padding) and size == 1 else padding] for size in (width, height)]
    largest, *copies = _prepare_once(images, padding, single)
    arguments = (images.contiguous(), rows_of.long().contiguous(), table, largest, stack, radius)
    extra = (copies[0], small, copies[1], entries.float32_rows) if single else ()
    sizes, special = (len(rows_of), channels), (height, width, *entries.shape, *sides)
    blocks = -(-height * width // block)
    strips = -(-blocks // max(1, min(strip, len(rows_of) * blocks // programs)))
    shared_pairs = max(1, min(SHARED_PAIRS, len(rows_of) * strips // programs))
    boxes = low, high, period, *sizes, shared_pairs, -(-blocks // strips), entries.first, entries.inputs, low.shape[1]
    pixels_kernel[strips, min(len(rows_of), MOST_ROWS, max(1, LAUNCHED // strips))](
        *arguments, *boxes, *special, dtype == torch.float32, block, *extra, enable_fp_fusion=False, num_warps=WARPS,
        maxnreg=REGISTERS[dtype],
    )  # fmt: skip
    if entries.quadratic:
        block, warps = QUADRATIC_BLOCK, QUADRATIC_WARPS
        blocks = -(-height * width // block)
        loss, at = table.new_empty(2, len(rows_of), 2 * blocks)  # columns first, as the reference has them
        options = {"enable_fp_fusion": False, "num_warps": warps}
        smooth_kernel[(len(rows_of) * blocks,)](*arguments, loss, at, *sizes, *special, block, **options)
        kinks_kernel[(len(rows_of) * blocks,)](*arguments, hinges(loss, at), *sizes, *special, block, **options)
    return AffineForm(stack, radius, quadratic=entries.quadratic)


def _prepare_once(images: Tensor, padding: str, single: bool) -> list[Tensor]:
    """`_prepare`, remembered: a prover asks for the same images again and again. A recorded graph gets others each time."""
    global _prepared
    version = -1 if images.is_inference() or is_recording(images.device) else images._version
    # another stream may not have finished the copies yet
    stream = torch.cuda.current_stream(images.device).cuda_stream if images.is_cuda else 0
    key, before = (version, padding, single, stream), _prepared  # read once: another thread may replace it
    if before is not None and version >= 0 and before[0]() is images and before[1] == key:
        return before[2]
    known = _prepare(images, padding, single)
    if version >= 0:
        _prepared = weakref.ref(images), key, known
    return known


def _prepare(images: Tensor, padding: str, single: bool) -> list[Tensor]:
    """The largest absolute pixel; for `triton/pixels_float32.py`, also its copies of the images and its allowances for roundings."""
    ends = torch.stack(torch.aminmax(images))
    largest = ends.abs().amax()
    if not single:
        return [largest]
    difference = 1.0 + (ends[0] < 0) * (ends[1] > 0)  # of two pixels, at most, over the largest
    floor = torch.stack([difference * first + second for first, second in ROUNDINGS]) * UNIT[torch.float32]
    floor = torch.where(largest < 2.0**100, floor, torch.inf).float()
    rings = [0 if reflects(padding) and size > 1 else RING for size in images.shape[:1:-1] for _ in range(2)]
    copies = torch.nn.functional.pad(images.float(), rings, "constant" if padding == "zeros" else "replicate")
    return [largest, copies.contiguous(), floor]
