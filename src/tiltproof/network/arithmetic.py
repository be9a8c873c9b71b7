"""The arithmetic of proofs: IEEE float32 or float64 sums of products, in any order; convolutions and matrix products within it.

TF32, bf16 and Winograd or FFT convolutions have errors outside that model. `proof_arithmetic` switches the first two off, for any global
settings of the user, and asks the libraries whether that worked. Convolutions on a GPU are im2col and matrix products, because cuDNN may
choose Winograd or FFT and offers no way to forbid them. On a CPU torch asks oneDNN for direct convolution only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.device import has_kernel, matches_reference
from tiltproof.errors import InputError
from tiltproof.process_lock import exclusive

UNFOLD_BYTES = 2**31
"""Default limit on the im2col copy of one convolution, in bytes."""
LEAST_OUTPUTS, LEAST_TERMS = 64, 32
"""Rows and terms of a matrix product from which on it is efficient."""
_unfold_bytes: ContextVar[int] = ContextVar("unfold_bytes", default=UNFOLD_BYTES)


@contextmanager
def unfold_at_most(size: int | None) -> Iterator[None]:
    """Limit the im2col copy of one convolution to ``size`` bytes, or one row; None: no new limit."""
    token = _unfold_bytes.set(min(size or UNFOLD_BYTES, _unfold_bytes.get()))
    try:
        yield
    finally:
        _unfold_bytes.reset(token)


_by_lines: ContextVar[bool] = ContextVar("by_lines", default=False)
LINES_BYTES = 2**21
"""Size of the copies that float64 convolutions on a CPU make at a time: they fit a core's cache."""


@contextmanager
def convolutions_by_lines() -> Iterator[None]:
    """Inside, float64 convolutions on a CPU are matrix products (`conv2d_by_lines`): up to ten times faster than torch's."""
    token = _by_lines.set(True)
    try:
        yield
    finally:
        _by_lines.reset(token)


PROOF, TRAINING = "proof", "training"


@dataclass
class _Session:
    """The outermost `proof_arithmetic` block; a copied context may outlive it, or belong to another thread."""

    thread: int
    asked: set[str]
    """Devices whose libraries passed the check of products (`_ask`)."""
    open: bool = True


_arithmetic: ContextVar[_Session | str | None] = ContextVar("arithmetic", default=None)


def arithmetic_now() -> str | None:
    """`PROOF`, `TRAINING` or None: what constants computed now may be used for."""
    now = _arithmetic.get()
    if isinstance(now, _Session):
        return PROOF if now.open and now.thread == threading.get_ident() else None
    return now


@contextmanager
def proof_arithmetic(device: torch.device) -> Iterator[None]:
    """Compute with IEEE products and without autocast; restore the user's settings afterwards.

    The settings are process-wide, so this holds the process lock: a second thread waits (`tiltproof.process_lock`). A nested block sets
    everything again, since code in between (a progress callback) may have changed it. Products with known results check that the
    libraries below torch follow the settings (`_ask`). Code that needs this arithmetic calls `require_proof`.
    """
    _refuse_other_arithmetic(device)
    with exclusive():
        outer = _arithmetic.get() if arithmetic_now() == PROOF else None
        session = _Session(threading.get_ident(), outer.asked if isinstance(outer, _Session) else set())
        switches = _switches()
        before = [getattr(owner, name) for owner, name, _ in switches]
        old_matmul = None if hasattr(torch.backends, "fp32_precision") else torch.get_float32_matmul_precision()
        token = _arithmetic.set(session)
        try:
            for owner, name, strict in switches:
                setattr(owner, name, strict)
            # without oneDNN torch uses NNPACK, which convolves with Winograd and FFT
            with torch.backends.nnpack.flags(enabled=False), no_autocast():
                if str(device) not in session.asked:
                    _ask(device)
                    session.asked.add(str(device))
                yield
                _refuse_changed(switches)
        finally:
            session.open = False
            _arithmetic.reset(token)
            for (owner, name, _), value in zip(switches, before, strict=True):
                setattr(owner, name, value)
            if old_matmul is not None:  # before torch 2.9 allow_tf32 would restore "medium" as "high"
                torch.set_float32_matmul_precision(old_matmul)


def require_proof() -> None:
    """Raise unless this thread is inside `proof_arithmetic` and all its settings are in force.

    Called wherever bounds or constants of a proof are computed, so that nothing computed under other settings becomes part of one.
    """
    if arithmetic_now() != PROOF:
        raise RuntimeError("a bound was to be computed outside of the proof's arithmetic; please report this")
    _refuse_changed(_switches())


@contextmanager
def no_autocast() -> Iterator[None]:
    """Disable autocast for every device type: a module may compute constants on another device than its inputs'."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def _refuse_changed(switches: list[tuple[Any, str, Any]]) -> None:
    changed = [
        f"{name} = {getattr(owner, name)!r}" for owner, name, strict in switches if getattr(owner, name) != strict
    ]
    changed += [f"autocast for {kind}" for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if changed:
        raise InputError(
            "torch's precision settings were changed during a proof",
            got=changed[0],
            why="another thread, or the model's own code, sets them",
            do="set them before or after",
        )


FEWER_BITS = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Environment variables that oneDNN reads at its first use; other modes than STRICT allow bf16 or TF32 products."""
EMULATION = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")
"""Environment variables; set to 1, they make cuBLAS emulate products with bf16 or fixed-point pieces."""


def _refuse_other_arithmetic(device: torch.device) -> None:
    """Refuse known requests for other arithmetic; `_ask` tests what the libraries really do."""
    for name in FEWER_BITS:
        mode = os.environ.get(name, "STRICT").upper()
        if mode != "STRICT":
            raise InputError("oneDNN is told to compute with fewer bits", got=f"{name}={mode}", do="unset it")
    for name in EMULATION if device.type == "cuda" else ():
        if os.environ.get(name, "0") not in ("", "0"):
            raise InputError("cuBLAS is told to emulate its products", got=f"{name}={os.environ[name]}", do="unset it")


def _ask(device: torch.device) -> None:
    """Raise unless products on this device use every bit of float32 and float64 numbers.

    A library may use fewer bits without a trace in torch's settings, e.g. because of a variable that was set when oneDNN was first used and
    unset later. Each sum here has a single nonzero product, of two odd 24-bit (53-bit) numbers, so its result is the rounded product.
    Products of bf16 or TF32 numbers, emulation by several of them, Winograd and FFT give other results.
    """
    for dtype, bits in ((torch.float32, 24), (torch.float64, 53)):
        wrong = [name for name, right in _answers(device, dtype, bits) if not right]
        if wrong:
            raise InputError(
                f"products of {str(dtype).removeprefix('torch.')} numbers are not IEEE products on this machine",
                got=f"wrong results of {', '.join(wrong)}",
                why="a library below torch was told to compute with fewer bits, by an environment variable that was set when the "
                "program began, or by a setting of its own",
                do=f"start a new process without {', '.join(FEWER_BITS + EMULATION)}",
            )


CANARY_CHANNELS, CANARY_SIZE = 32, 8
"""Large enough for the kernels that libraries use for large layers."""


def _answers(device: torch.device, dtype: torch.dtype, bits: int) -> Iterator[tuple[str, bool]]:
    """Each kind of product in the bounds, and whether it equals the product of the two numbers, rounded once."""
    count, size, window = CANARY_CHANNELS, CANARY_SIZE, Window((1, 1), (1, 1), (1, 1), 1)

    def odd_numbers(amount: int) -> Tensor:
        """Numbers that need all their bits; computed on the host, deterministic."""
        drawn = torch.arange(amount, dtype=torch.int64, device="cpu") * 2654435761 % 2 ** (bits - 1)
        return (2 ** (bits - 1) + drawn | 1).to(dtype).to(device)

    x, factors = (
        odd_numbers(2 * count * size * size).view(2, count, size, size),
        odd_numbers(3 * size * size)[-size * size :],
    )
    w = factors[:count]
    with torch.no_grad():
        # kernels that multiply each channel by w
        center, scaled = F.pad(torch.diag(w).view(count, count, 1, 1), (1, 1, 1, 1)), x * w.view(-1, 1, 1)
        yield "convolutions", torch.equal(conv2d(x, center, window), scaled)
        yield "transposed convolutions", torch.equal(conv2d_transposed(x, center, window, (size, size)), scaled)
        kernel = x[0, :, :3, :3].expand(count, -1, -1, -1).contiguous()
        at = torch.zeros_like(x)
        at[:, 0, 4, 4] = w[1]  # reveals one channel of every kernel, flipped
        shown, expected = conv2d(at, kernel, window)[:, :, 3:6, 3:6], kernel[:1, :1].flip(2, 3) * w[1]
        yield "convolutions of weights", torch.equal(shown, expected.expand_as(shown))
        rows, diagonal = x.flatten(2).transpose(1, 2).flatten(0, 1).contiguous(), torch.diag(w)
        yield "matrix products", torch.equal(F.linear(rows, diagonal), rows * w)
        yield "matrix products from the left", torch.equal(F.linear(diagonal, rows), (rows * w).T)
        if device.type == "cpu" and dtype == torch.float32 and onednn_is_right():
            yield "matrix products by oneDNN", torch.equal(by_onednn(rows, diagonal), rows * w)
        pairs, every = x.flatten(2), torch.diag(factors).expand(2, -1, -1)
        yield "batched matrix products", torch.equal(torch.bmm(pairs, every), pairs * factors)


@contextmanager
def training_arithmetic() -> Iterator[None]:
    """Allow any convolution algorithm: for bounds in a loss, which prove nothing."""
    token = _arithmetic.set(TRAINING)
    try:
        yield
    finally:
        _arithmetic.reset(token)


def _switches() -> list[tuple[Any, str, Any]]:
    """torch's settings that allow float32 products with fewer bits, and the value that forbids it.

    Torch 2.9 introduced one text setting per backend and warns about a mix of old and new settings, so only one kind is used.
    """
    backends = torch.backends
    if hasattr(backends, "fp32_precision"):
        owners = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)  # type: ignore[attr-defined]
        return [(owner, "fp32_precision", "ieee") for owner in owners]
    return [(backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]


@contextmanager
def tracing_settings() -> Iterator[None]:
    """Settings for torch.export, which saves and restores cuDNN's old switch; torch refuses to read it while it contradicts the new ones,
    as in a proof. Nothing computed in here is part of a proof."""
    cudnn: Any = torch.backends.cudnn
    try:
        _ = cudnn.allow_tf32
    except RuntimeError:
        owners = (cudnn.conv, cudnn.rnn)
        before = [owner.fp32_precision for owner in owners]
        cudnn.allow_tf32 = True  # sets the old and both new ones
        try:
            yield
        finally:
            for owner, value in zip(owners, before, strict=True):
                owner.fp32_precision = value
    else:
        yield


@dataclass(frozen=True)
class Window:
    """Geometry of a convolution, without the numbers of channels."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def output_size(self, size: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        height, width = (
            (size[k] + 2 * self.padding[k] - self.dilation[k] * (kernel[k] - 1) - 1) // self.stride[k] + 1
            for k in (0, 1)
        )
        return height, width


@dataclass(frozen=True)
class Reach:
    """Which windows to copy: ``block`` lines of ``wide`` windows for every image; after the last image ``tail`` more lines, which lie
    above an image and are empty.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    block: int
    wide: int
    tail: int = 0

    def rows(self, images: int) -> int:
        return (images * self.block + self.tail) * self.wide

    def entries(self, x: Tensor) -> int:
        """Entries in the windows of one of the images ``x``."""
        return self.block * self.wide * self.kernel[0] * self.kernel[1] * x.shape[1]


@has_kernel("im2col:im2col")
def im2col(x: Tensor, reach: Reach) -> Tensor:
    """[N, C, H, W] -> [rows, entries of a window], contiguous: images, lines, columns of windows in order; in a window lines before
    columns before channels. Pad, then one strided copy."""
    (high, wide), (down, right), (far_down, far_right) = reach.kernel, reach.stride, reach.dilation
    images, channels, height, width = x.shape
    above, left = reach.padding
    bottom = (reach.block - 1) * down + far_down * (high - 1) + 1 - height - above
    beside = (reach.wide - 1) * right + far_right * (wide - 1) + 1 - width - left
    rows = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, beside, above, bottom)).contiguous()
    image, line, step, _ = rows.stride()
    shape = images, reach.block, reach.wide, high, wide, channels
    strides = image, down * line, right * step, far_down * line, far_right * step, 1
    # of one channel and one column, the windows of a dilated kernel are a view with gaps, which a reshape does not close
    matrix = rows.as_strided(shape, strides).reshape(-1, high * wide * channels).contiguous()
    return matrix if not reach.tail else F.pad(matrix, (0, 0, 0, reach.tail * reach.wide))


class Once(Protocol):
    """Computes a value, or returns the cached one of this name (`Operation.once`)."""

    def __call__(self, name: str, make: Callable[[], Tensor]) -> Tensor: ...


def _now(name: str, make: Callable[[], Tensor]) -> Tensor:  # noqa: ARG001 (there is nothing to find)
    return make()


def conv2d(x: Tensor, weight: Tensor, window: Window, once: Once = _now, name: str = "") -> Tensor:
    """Convolution without bias in which every output is one sum of products; ``once`` may cache its matrix under ``name``."""
    if x.device.type == "cpu" or arithmetic_now() == TRAINING:
        plain = (window.dilation, window.groups) == ((1, 1), 1)
        if plain and _by_lines.get() and x.dtype == torch.float64:
            return conv2d_by_lines(x, weight, window)
        most, geometry = _images_at_a_time(x, weight, window), (window.stride, window.padding, window.dilation)
        if most >= len(x):
            return F.conv2d(x, weight, None, *geometry, window.groups)
        out = x.new_empty(len(x), len(weight), *window.output_size((x.shape[2], x.shape[3]), weight.shape[2:]))
        for part, target in zip(x.split(most), out.split(most), strict=True):
            target.copy_(F.conv2d(part, weight, None, *geometry, window.groups))
        return out
    return conv2d_as_product(x, weight, window, once, name)


def _images_at_a_time(x: Tensor, weight: Tensor, window: Window) -> int:
    """In float64, torch copies the windows of all images before it multiplies; copies that fit the caches make it 2 to 4 times as fast.

    An image's sums are the same, whichever images are beside it.
    """
    if x.dtype != torch.float64 or torch.is_grad_enabled():
        return len(x)
    height, width = window.output_size((x.shape[2], x.shape[3]), weight.shape[2:])
    copied = 8 * x.shape[1] * weight[0, 0].numel() * height * width
    return max(1, torch.get_num_threads() * LINES_BYTES // max(1, copied))


def conv2d_transposed(a: Tensor, weight: Tensor, window: Window, size: tuple[int, int], once: Once = _now) -> Tensor:
    """The transpose of `conv2d` as a linear map, from output coefficients to input coefficients of ``size``."""
    if a.device.type != "cpu" and arithmetic_now() != TRAINING:
        return conv2d_transposed_as_product(a, weight, window, size, once)
    kernel = weight.shape[2:]
    extra = [
        size[k]
        - ((a.shape[2 + k] - 1) * window.stride[k] - 2 * window.padding[k] + window.dilation[k] * (kernel[k] - 1) + 1)
        for k in (0, 1)
    ]
    return F.conv_transpose2d(a, weight, None, window.stride, window.padding, extra, window.groups, window.dilation)


def conv2d_by_lines(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    """Convolution as one matrix product for each line of the kernel, a few images at a time.

    Images are copied once for each column of the kernel, shifted, between zeros for the padding; with strides, only the rows and columns
    that are read. The lines of the kernel that are a stride apart are then views of the same copies. Each output is one sum of products.
    """
    (high, wide), (above, left), (down, right) = weight.shape[2:], window.padding, window.stride
    images, channels, rows, columns = x.shape
    height, width = window.output_size((rows, columns), (high, wide))
    matrices = [weight[:, :, line].transpose(1, 2).flatten(1) for line in range(high)]
    lines, out = height + (high - 1) // down, x.new_empty(images, len(weight), height, width)
    most = max(1, LINES_BYTES // (8 * wide * channels * lines * width))
    copies = x.new_zeros(min(most, images), wide, channels, lines, width)
    for begin in range(0, images, most):
        part = x[begin : begin + most]
        here, target = copies[: len(part)], out[begin : begin + most].flatten(2)
        for phase in range(min(down, high)):
            top, source_rows = _steps(phase - above, down, rows, lines)
            if down > 1 and (begin or phase):
                here.zero_()
            for k in range(wide):
                first, source_columns = _steps(k - left, right, columns, width)
                values = part[:, :, source_rows, source_columns]
                here[:, k, :, top : top + values.shape[2], first : first + values.shape[3]] = values
            flat = here.flatten(1, 2).flatten(2)
            for line in range(phase, high, down):
                values = flat[:, :, line // down * width : (line // down + height) * width]
                target.baddbmm_(matrices[line].expand(len(part), -1, -1), values, beta=min(line, 1))
    return out


def _steps(offset: int, step: int, size: int, count: int) -> tuple[int, slice]:
    """The first i >= 0 for which offset + i step is an index of an axis of this size, and the indices for all such i < count."""
    first = max(0, -(offset // step))
    last = max(first, min(count, -((offset - size) // step)))
    begin = offset + first * step
    return first, slice(begin, begin + (last - first) * step, step)


def conv2d_as_product(x: Tensor, weight: Tensor, window: Window, once: Once = _now, name: str = "") -> Tensor:
    """Convolution by im2col and matrix products for the whole batch: of whole windows, or of strips of their lines, which copies less and
    adds several products (`_strips`).

    Channels come last in memory, in the result and preferably in the input, so that a line of a window is contiguous. Products are in
    place rather than with `out=`, which has no gradient.
    """
    (high, wide), outputs = weight.shape[2:], len(weight)
    height, width = window.output_size(x.shape[2:], (high, wide))
    matrix = once(f"{name}matrix", lambda: _matrix(weight, window.groups))
    whole = Reach((high, wide), window.stride, window.dilation, window.padding, height, width)
    reach = _strips(x, whole, outputs) if window.groups == 1 else whole
    out = x.new_empty(len(x), height * width, outputs)
    most = _rows_at_a_time(reach.entries(x), x)
    for begin in range(0, len(x), most):
        rows, target = im2col(x[begin : begin + most], reach), out[begin : begin + most]
        if reach is not whole:
            _add_lines(target, rows, matrix[0].split(rows.shape[1]), reach)
        elif window.groups == 1:
            target.view(-1, outputs).addmm_(rows, matrix[0], beta=0)
        else:
            parts = rows.view(-1, high * wide, window.groups, x.shape[1] // window.groups).permute(2, 0, 1, 3)
            target.view(-1, outputs).copy_(torch.bmm(parts.flatten(2), matrix).transpose(0, 1).flatten(1))
    return out.view(len(x), height, width, outputs).permute(0, 3, 1, 2)


def _strips(x: Tensor, whole: Reach, outputs: int) -> Reach:
    """Copy strips as high as the vertical stride, so that each line of an image is copied once: the k-th strip of a window is the
    first strip of the window k rows of windows below. Returns ``whole`` if that is no less work.

    Work is memory traffic: entries copied, and outputs that one more product is added to; products read each window's entries once either
    way. With kernel 4, stride 2, 32 channels to 64 and 14 x 14 pixels, an image has 7 x 7 x 16 x 32 = 25,088
    entries in whole windows, and 8 x 7 x 8 x 32 = 14,336 in strips, with 7 x 7 x 64 = 3,136 outputs added to once.
    """
    (high, wide), step, above, places = whole.kernel, whole.stride[0], whole.padding[0], whole.block * whole.wide
    products = -(-high // step)
    # strips of an image from top to bottom; those that begin at or above its last line; those that end above its first line, which are
    # empty, so the image before may end in them
    lines, full, empty = whole.block + products - 1, -(-(x.shape[2] + above) // step), above // step
    block = min(lines, max(full, lines - empty))
    strips = replace(whole, kernel=(step, wide), block=block, tail=lines - block)
    enough = max(places, len(x)) >= LEAST_OUTPUTS and step * wide * x.shape[1] >= LEAST_TERMS
    less = strips.entries(x) + (products - 1) * places * outputs < whole.entries(x)
    return strips if products > 1 and whole.dilation[0] == 1 and enough and less else whole


def _add_lines(target: Tensor, rows: Tensor, matrices: Sequence[Tensor], reach: Reach) -> None:
    """target [N, outputs of a channel, channels] becomes the sum over k of the windows' k-th strips times matrices[k].

    One product per image, or per position if there are few positions. Each of an output's n terms is rounded once in its product and takes
    part in at most n - 1 additions, within its strip and of strips: gamma_n, as for any sum.
    """
    (images, places), size = target.shape[:2], rows.shape[1]
    by_place = places < min(images, LEAST_OUTPUTS)
    target = target.transpose(0, 1) if by_place else target
    for k, matrix in enumerate(matrices):
        strip = rows[k * reach.wide :].as_strided(
            (images, places, len(matrix)), (reach.block * reach.wide * size, size, 1)
        )
        strip = strip.transpose(0, 1) if by_place else strip
        target.baddbmm_(strip, matrix.expand(len(target), -1, -1), beta=min(k, 1))


def _matrix(weight: Tensor, groups: int) -> Tensor:
    """The weight as [groups, window, outputs], channels last within a window."""
    return weight.unflatten(0, (groups, -1)).permute(0, 3, 4, 2, 1).flatten(1, 3)


def conv2d_transposed_as_product(
    a: Tensor, weight: Tensor, window: Window, size: tuple[int, int], once: Once = _now
) -> Tensor:
    """Transposed convolution. Without strides: a convolution with the flipped kernel. Otherwise one matrix product, and each kernel
    position's contribution is added where it came from (`fold`: plain sums).
    """
    kernel, groups = weight.shape[2:], window.groups
    around = [window.dilation[k] * (kernel[k] - 1) - window.padding[k] for k in (0, 1)]
    parts = weight.unflatten(0, (groups, -1))  # [groups, outputs, inputs, height, width]
    if window.stride == (1, 1) and min(around) >= 0:
        turned = Window((1, 1), (around[0], around[1]), window.dilation, groups)
        back = once("turned", lambda: parts.transpose(1, 2).flatten(0, 1).flip(2, 3))
        return conv2d_as_product(a, back, turned, once, "turned ")
    matrix = once(
        "transposed matrix", lambda: parts.flatten(2).transpose(1, 2).contiguous()
    )  # [groups, window, outputs]
    results = []
    for rows in a.split(_rows_at_a_time(weight.shape[1] * groups * kernel.numel() * a.shape[2] * a.shape[3], a)):
        values = rows.flatten(2).unflatten(1, (groups, -1))
        columns = torch.matmul(matrix, values).flatten(1, 2)
        results.append(F.fold(columns, size, tuple(kernel), window.dilation, window.padding, window.stride))
    return results[0] if len(results) == 1 else torch.cat(results)


def _rows_at_a_time(entries: int, like: Tensor) -> int:
    return max(1, _unfold_bytes.get() // (entries * like.element_size()))


# Matrix products of float32 rows on a CPU by oneDNN, which torch's convolutions use too. torch multiplies matrices with MKL, which reaches
# half of the speed of AMD processors: for a layer from 3,136 inputs to 250, one thread of an EPYC reached 107 GFLOP/s with MKL and 245 with
# oneDNN. Either result is one float32 sum of products for each entry, in some order, so the bounds hold for both. Only the environment can
# tell this oneDNN operation to use fewer bits, which `proof_arithmetic` refuses; and a self-check runs before the first use.

ONEDNN_PRODUCTS = 2**20
"""Multiplications from which on the conversion of tensors pays."""
_onednn_trust: dict[str, bool] = {}


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """x [rows, inputs] times the transpose of a matrix [outputs, inputs]."""
    return by_onednn(x, matrix) if _onednn_pays(x, matrix) else F.linear(x, matrix)


def _onednn_pays(x: Tensor, matrix: Tensor) -> bool:
    """Whether oneDNN is available and exact, and the product large enough."""
    return (
        x.device.type == "cpu"
        and x.dtype == matrix.dtype == torch.float32
        and x.ndim == 2
        and len(x) * matrix.numel() >= ONEDNN_PRODUCTS
        and not (torch.is_grad_enabled() and (x.requires_grad or matrix.requires_grad))
        and onednn_is_right()
    )


def onednn_is_right() -> bool:
    """Whether oneDNN is available and passed its self-check, which runs once per process."""
    return (
        torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and matches_reference(
            _onednn_trust, "oneDNN", _onednn_exact, "products by oneDNN fail, or are not exact where they can be"
        )
    )


def by_onednn(x: Tensor, matrix: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.mkldnn_linear(x.to_mkldnn(), matrix).to_dense()
    return result


def _onednn_exact() -> bool:
    """Self-check: exact for 24-bit numbers on either side and for sums that float32 can represent; NaN and infinity propagate."""
    generator, count = torch.Generator().manual_seed(0), 160

    def numbers(most: int, rows: int) -> Tensor:
        drawn = torch.randint(-most, most + 1, (rows, count), generator=generator, dtype=torch.int64, device="cpu")
        return drawn.to(torch.float32)

    whole, one = numbers(2**24 - 1, 64), torch.eye(count, dtype=torch.float32, device="cpu")
    left, right = numbers(255, 48), numbers(255, 40)  # sums below 2^24
    broken = left.clone()
    broken[0, 0], broken[1, 1] = torch.nan, torch.inf
    try:
        found = [by_onednn(*pair) for pair in ((one, whole), (whole, one), (left, right), (broken, right))]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # not supported on this processor; torch's own product is used
        return False
    sums = F.linear(left.double(), right.double()).float()
    exact = all(torch.equal(*pair) for pair in ((found[0], whole.T), (found[1], whole), (found[2], sums)))
    return exact and torch.equal(found[3][2:], sums[2:]) and not bool(torch.isfinite(found[3][:2]).any())
