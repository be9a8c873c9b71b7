"""Pixel bounds in two passes, on a GPU, or four where forms are quadratic: what `coordinates` and `affine_of_exact` do in some hundreds.

The first makes a table of the entries of each pair's matrices, a few numbers (`fused_entries.py`). The second (`triton/pixels.py`) reads a
picture once per pair and writes center, slopes and radius once; for float32, a copy of the picture in float32. Two more bend forms
(`triton/quadratic.py`). Nothing waits for the GPU. What the kernels do not know (cameras, gradients) is left to the reference, as
is everything
where Triton or its compiler is missing.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from tiltproof.device import current
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import UNIT
from tiltproof.kernels.matrix_program import Entries, written
from tiltproof.kernels.registry import given_up, kernel, trusted
from tiltproof.kernels.selfcheck import agrees, shares
from tiltproof.pixels.quadratic import hinges
from tiltproof.transforms.base import Spatial, Transform
from tiltproof.transforms.interpolation import PADDINGS

BLOCK, SMALL_BLOCK, SMALL, WARPS = 32, 64, 2**12, 1
"""Of one program of the kernel: pixels, which all take the way that one of them needs, and in float32 results of pictures of so many pixels
at most, where few boxes cross grid lines; and warps."""
REGISTERS: dict[torch.dtype, int | None] = {torch.float32: 64, torch.float64: 96}
"""Of a thread at most, for either kind of result, so that many threads wait for memory at once (what does not fit is spilled outside of the
loops, or where boxes meet many cells); found by trying, on an H200."""
STRIP, LARGE_STRIP, TOGETHER, PROGRAMS, LAUNCHED = 16, 6, 16, 2**14, 2**16
"""Blocks that a program goes through one after the other, of larger pictures fewer, and pairs with the same box for which positions are
found once, if that leaves so many programs; and how many are started at most: while the last ones run, others have nothing to do, so they
should be short."""
QUADRATIC = 128, 4
"""Pixels and warps of a program of the kernels that bend forms."""
MOST_SYMBOLS, MOST_PIXELS, MOST_PAIRS = 8, 2**30, 2**24
MOST_ROWS = 2**16 - 1
"""Of programs that can be started, by CUDA."""
MOST_SINGLE, RING = 2**12, 3
"""Of `triton/pixels_float32.py`: rows and columns of a picture at most, and lines around it in its copy."""
ROUNDINGS = (10, 5), (14, 9)
"""And what it allows for in one cell, and in two each way: roundings of the largest difference of pixels there, and of the largest."""
LARGE = 2**16
"""Pixels of a picture: those of 224 x 224 are looked at as they are, for half a second of a single CPU core a box at most."""
IN_PART, WHOLE = (17, 23), (32, 64)
"""Rows and columns, at most, that stand for more than LARGE pixels: never whole blocks, or always, even if there are fewer of either."""
Way = tuple[bool, int, int]
MODULES = {"entries": "matrix_entries", "pixels": "pixels", "smooth": "quadratic", "kinks": "quadratic"}
_trust: dict[object, bool] = {}
_launched: set[object] = set()
_kernels: dict[str, Any] = {}
_seen: tuple[weakref.ref[Tensor], object, list[Tensor]] | None = None


def fused_pixels(
    pictures: Tensor,
    rows_of: Tensor,
    transform: Transform,
    run: list[int],
    low: Tensor,
    high: Tensor,
    dtype: torch.dtype = torch.float64,
    quadratic: bool = False,
) -> AffineForm | None:
    """Bounds of pictures as a run of spatial parts resamples them, or None where the reference has to make them.

    ``dtype``: of the result, as `AffineForm.to` would make it. ``quadratic``, for one parameter and float64: see `bounds.quadratic`.
    """
    if not (_on_gpu(pictures) and _possible(pictures, rows_of, transform, low, high, dtype)):
        return None
    entries = written(transform, run, quadratic) if _kernel("pixels") is not None else None
    if entries is None:
        return None
    try:
        with current(pictures.device):
            return _bounds(pictures, rows_of, transform, run, entries, low, high, dtype)
    except Exception as error:
        given_up(_kernels, "pixels", error, "pixel bounds")
        return None


def single_pairs(pictures: Tensor, transform: Transform) -> bool:
    """Whether kernels bound all that moves pixels, each pair by itself; the reference bounds all boxes as it has to bound the widest."""
    (kind, run), *others = transform.stages()
    known = kind is Spatial and all(other is not Spatial for other, _ in others) and _on_gpu(pictures)
    return known and _kernel("pixels") is not None and written(transform, run) is not None


def _bounds(
    pictures: Tensor,
    rows_of: Tensor,
    transform: Transform,
    run: list[int],
    entries: Entries,
    low: Tensor,
    high: Tensor,
    dtype: torch.dtype,
) -> AffineForm | None:
    ranges = transform.low, transform.high
    key = pictures.device, pictures.shape[1:], len(rows_of), entries, ranges, transform.padding, dtype
    if _recording(pictures) and key not in _launched:
        return None  # nothing can be compiled or compared while a graph is recorded
    if not _trusted(pictures, transform, run, entries, dtype):
        return None
    form = _launch(pictures, rows_of, entries, low, high, transform.padding, dtype)
    _launched.add(key)
    return form


def _on_gpu(pictures: Tensor) -> bool:
    return pictures.is_cuda


def _recording(pictures: Tensor) -> bool:
    return pictures.is_cuda and torch.cuda.is_current_stream_capturing()


def _possible(
    pictures: Tensor, rows_of: Tensor, transform: Transform, low: Tensor, high: Tensor, dtype: torch.dtype
) -> bool:
    """Whether shapes, dtypes and devices are those the kernels take on trust, and no index of theirs leaves 32 bits."""
    pairs, pixels = rows_of.numel(), pictures.shape[-1] * pictures.shape[-2]
    return (
        pictures.dtype == low.dtype == high.dtype == torch.float64
        and dtype in UNIT
        and not any(tensor.requires_grad for tensor in (pictures, low, high))
        and all(tensor.device == pictures.device for tensor in (rows_of, low, high))
        and pictures.ndim == 4
        and rows_of.shape == (pairs,)
        and low.shape == high.shape == (pairs, len(transform.parts))
        and len(transform.parts) <= MOST_SYMBOLS
        and pictures.numel() > 0
        and pixels < MOST_PIXELS
        and 0 < pairs < MOST_PAIRS
        and pairs * -(-pixels // min(BLOCK, SMALL_BLOCK)) < 2**29
    )


def _way(entries: Entries, dtype: torch.dtype, height: int, width: int) -> Way:
    """What the size of pictures decides: whether `triton/pixels_float32.py` is used, and pixels of a block, and blocks of a strip
    at most."""
    small = height * width <= SMALL
    return (
        dtype == torch.float32 and not entries.quadratic and height + width <= MOST_SINGLE,
        SMALL_BLOCK if dtype == torch.float32 and small else BLOCK,
        STRIP if small else LARGE_STRIP,
    )


def _launch(
    pictures: Tensor,
    rows_of: Tensor,
    entries: Entries,
    low: Tensor,
    high: Tensor,
    padding: str,
    dtype: torch.dtype,
    checked: Way | None = None,
) -> AffineForm:
    """``checked``: the way that larger pictures take, which is looked at here: with strips and shared pairs as in large batches."""
    _, channels, height, width = pictures.shape
    shape = len(rows_of), channels, height, width
    low, high = low.contiguous(), high.contiguous()
    single, block, strip = checked or _way(entries, dtype, height, width)
    programs = 1 if checked else PROGRAMS
    small = low.new_empty(len(low), entries.few, dtype=dtype) if single else None
    table, period = entries.table(_kernel("entries"), low, high, small)
    stack = pictures.new_empty(1 + entries.symbols + entries.quadratic, *shape, dtype=dtype)
    radius = pictures.new_empty(shape, dtype=dtype)
    sides = [PADDINGS.index("border" if padding == "reflect" and size == 1 else padding) for size in (width, height)]
    largest, *copies = _seen_before(pictures, padding, single)
    arguments = (pictures.contiguous(), rows_of.long().contiguous(), table, largest, stack, radius)
    extra = (copies[0], small, copies[1], entries.few) if single else ()
    sizes, special = (len(rows_of), channels), (height, width, *entries.shape, *sides)
    blocks = -(-height * width // block)
    strips = -(-blocks // max(1, min(strip, len(rows_of) * blocks // programs)))
    together = max(1, min(TOGETHER, len(rows_of) * strips // programs))
    boxes = low, high, period, *sizes, together, -(-blocks // strips), entries.first, entries.inputs, low.shape[1]
    _kernel("pixels")[strips, min(len(rows_of), MOST_ROWS, max(1, LAUNCHED // strips))](
        *arguments, *boxes, *special, dtype == torch.float32, block, *extra, enable_fp_fusion=False, num_warps=WARPS,
        maxnreg=REGISTERS[dtype],
    )  # fmt: skip
    if entries.quadratic:
        block, warps = QUADRATIC
        blocks = -(-height * width // block)
        loss, at = table.new_empty(2, len(rows_of), 2 * blocks)  # columns first, as the reference has them
        options = {"enable_fp_fusion": False, "num_warps": warps}
        _kernel("smooth")[(len(rows_of) * blocks,)](*arguments, loss, at, *sizes, *special, block, **options)
        _kernel("kinks")[(len(rows_of) * blocks,)](*arguments, hinges(loss, at), *sizes, *special, block, **options)
    return AffineForm(stack, radius, quadratic=entries.quadratic)


def _seen_before(pictures: Tensor, padding: str, single: bool) -> list[Tensor]:
    """The largest absolute pixel, and what `triton/pixels_float32.py` needs; a prover asks for the same pictures again and again,
    but a recorded
    graph sees others each time."""
    global _seen
    version = -1 if pictures.is_inference() or _recording(pictures) else pictures._version
    stream = (
        torch.cuda.current_stream(pictures.device).cuda_stream if pictures.is_cuda else 0
    )  # another may not be done yet
    key, seen = (version, padding, single, stream), _seen  # once: another thread may replace it
    if seen is not None and version >= 0 and seen[0]() is pictures and seen[1] == key:
        return seen[2]
    known = _looked_at(pictures, padding, single)
    if version >= 0:
        _seen = weakref.ref(pictures), key, known
    return known


def _looked_at(pictures: Tensor, padding: str, single: bool) -> list[Tensor]:
    ends = torch.stack(torch.aminmax(pictures))
    largest = ends.abs().amax()
    if not single:
        return [largest]
    apart = 1.0 + (ends[0] < 0) * (ends[1] > 0)  # differences of pixels, at most, over the larger of them
    floor = torch.stack([apart * first + second for first, second in ROUNDINGS]) * UNIT[torch.float32]
    floor = torch.where(largest < 2.0**100, floor, torch.inf).float()
    rings = [0 if padding == "reflect" and size > 1 else RING for size in pictures.shape[:1:-1] for _ in range(2)]
    copies = torch.nn.functional.pad(pictures.float(), rings, "constant" if padding == "zeros" else "replicate")
    return [largest, copies.contiguous(), floor]


def _trusted(pictures: Tensor, transform: Transform, run: list[int], entries: Entries, dtype: torch.dtype) -> bool:
    """Whether the kernels do on this device what the reference does: looked at once for whatever they are compiled for.

    Sizes are compiled in, so the size looked at is the pictures' own; for large ones, which would take long, one of several blocks, all
    of them whole where theirs are, by the way that theirs takes.
    """
    height, width = pictures.shape[-2:]
    way = _way(entries, dtype, height, width)
    if height * width > LARGE:
        most = IN_PART if height * width % way[1] else WHOLE
        height, width = min(height, most[0]), min(width, most[1])
    channels = min(pictures.shape[1], 3)
    ranges = transform.low, transform.high
    key = pictures.device, entries, ranges, transform.padding, channels, height, width, way, dtype

    def agrees() -> bool:
        return _agrees(pictures.new_zeros(2, channels, height, width), transform, run, entries, dtype, way)

    return trusted(_trust, key, agrees, f"Triton's kernels for {transform} and the reference differ")


def _agrees(
    picture: Tensor, transform: Transform, run: list[int], entries: Entries, dtype: torch.dtype, way: Way
) -> bool:
    def launch(picture: Tensor, rows_of: Tensor, low: Tensor, high: Tensor) -> AffineForm:
        return _launch(picture, rows_of, entries, low, high, transform.padding, dtype, way)

    return agrees(launch, picture, transform, run, dtype, entries.quadratic) and shares(launch, picture, transform, run)


def _kernel(name: str) -> Any:
    return kernel(_kernels, name, f"tiltproof.kernels.triton.{MODULES[name]}")
