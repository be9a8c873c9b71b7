"""The Triton kernels that `kernels/im2col.py` launches."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def spread(  # type: ignore[no-untyped-def]
    picture, out, rows, parts, high, wide, block, out_wide, of_image, of_line, of_column, of_channel,
    kernel_high, kernel_wide, down, right, far_down, far_right, above, left,
    piece: tl.constexpr, lines: tl.constexpr, places: tl.constexpr, many: tl.constexpr,
):  # fmt: skip
    """``lines`` rows, at one position of the window and ``places`` of its channels: a copy, with zeros outside the image.

    There are ``parts * piece`` channels, and strides of images, lines and columns are multiples of ``piece``: of what is a multiple
    of the constant, the compiler knows that it may be moved in pieces. Positions of the same rows follow each other, so that what they
    have in common is read from memory once. ``many``: more rows than 32 bits can count, by which divisions are far cheaper.
    """
    channels = parts * piece
    positions, tiles = kernel_high * kernel_wide, tl.cdiv(channels, places)
    number = tl.program_id(0)
    row = (number // (positions * tiles)).to(tl.int64 if many else tl.int32) * lines + tl.arange(0, lines)
    position = number // tiles % positions
    channel = number % tiles * places + tl.arange(0, places)
    line = row // out_wide
    image, x = line // block, (row - line * out_wide).to(tl.int32)
    y = (line - image * block).to(tl.int32)
    row, image = row.to(tl.int64), image.to(tl.int64)
    y = y * down + (position // kernel_wide) * far_down - above
    x = x * right + (position % kernel_wide) * far_right - left
    inside = (row < rows) & (y >= 0) & (y < high) & (x >= 0) & (x < wide)
    source = (image * of_image + y.to(tl.int64) * of_line + x.to(tl.int64) * of_column) * piece
    known = (channel < channels)[None, :]
    each = channel.to(tl.int64) * of_channel
    value = tl.load(picture + (source[:, None] + each[None, :]), mask=inside[:, None] & known, other=0.0)
    target = (row * positions + position) * channels
    tl.store(out + (target[:, None] + channel[None, :]), value, mask=(row < rows)[:, None] & known)


@triton.jit  # type: ignore[untyped-decorator]
def spread_few(  # type: ignore[no-untyped-def]
    picture, out, rows, channels, entries, high, wide, block, out_wide, of_image, of_line, of_column, of_channel,
    kernel_wide, down, right, far_down, far_right, above, left,
    lines: tl.constexpr, places: tl.constexpr, many: tl.constexpr,
):  # fmt: skip
    """The same for images of few channels: ``lines`` rows, and ``places`` of the window's entries, whatever their position. What is
    written then lies together.
    """
    tiles = tl.cdiv(entries, places)
    number = tl.program_id(0)
    row = (number // tiles).to(tl.int64 if many else tl.int32) * lines + tl.arange(0, lines)
    entry = number % tiles * places + tl.arange(0, places)
    position = entry // channels
    below, beside = (position // kernel_wide) * far_down, (position % kernel_wide) * far_right
    line = row // out_wide
    image = line // block
    top, begin = (line - image * block).to(tl.int32) * down - above, (row - line * out_wide).to(tl.int32) * right - left
    row, image = row.to(tl.int64), image.to(tl.int64)
    y, x = top[:, None] + below[None, :], begin[:, None] + beside[None, :]
    known = (row < rows)[:, None] & (entry < entries)[None, :]
    inside = known & (y >= 0) & (high > y) & (x > -1) & (x < wide)
    source = image * of_image + top.to(tl.int64) * of_line + begin.to(tl.int64) * of_column
    each = below.to(tl.int64) * of_line + beside.to(tl.int64) * of_column + (entry % channels).to(tl.int64) * of_channel
    value = tl.load(picture + (source[:, None] + each[None, :]), mask=inside, other=0.0)
    tl.store(out + (row[:, None] * entries + entry[None, :]), value, mask=known)
