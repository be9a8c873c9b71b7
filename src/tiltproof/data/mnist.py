"""The idx format of MNIST: a four-byte magic number, the sizes as big-endian 32-bit numbers, then the bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from tiltproof.data.compressed import Read, read_with
from tiltproof.errors import InputError

UNSIGNED_BYTE = 0x08
MOST_BYTES = 2**28
"""Of content: five times the training images of MNIST."""


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes (plain, ``.gz`` or ``.xz``) with this many dimensions, strict about sizes."""
    return read_with(path, lambda read: _parse(read, path, dimensions))


def _parse(read: Read, path: Path, dimensions: int) -> np.ndarray:
    header = read(4 + 4 * dimensions)
    expected = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if header[:4] != expected:
        raise InputError(
            f"not an idx file of unsigned bytes with {dimensions} dimensions: {path}",
            got=f"it begins with {header[:4].hex(' ') or 'nothing'} instead of {expected.hex(' ')}",
            why="images and labels exchanged, or a file of another kind",
        )
    if len(header) < 4 + 4 * dimensions:
        raise InputError(f"the idx file ends inside its header: {path}", why="the file was cut short")
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4", dimensions, offset=4))
    count = math.prod(shape)
    if not 0 < count <= MOST_BYTES:
        raise InputError(
            f"the idx file {path} has an unusable size",
            got=" x ".join(map(str, shape)),
            why="the header is damaged",
            do=f"keep to {MOST_BYTES:,} bytes of content",
        )
    # One byte more than announced is asked for, so that a file that is too long is noticed without reading it all.
    content = read(count + 1)
    if len(content) != count:
        raise InputError(
            f"the idx file {path} announces {count:,} bytes of content ({' x '.join(map(str, shape))})",
            got="more than that" if len(content) > count else f"{len(content):,}",
            why="the file was cut short" if len(content) < count else "something was appended to the file",
            do="fetch the file again",
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
