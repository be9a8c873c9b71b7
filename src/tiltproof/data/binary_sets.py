"""The binary formats of MNIST (idx) and CIFAR-10.

An idx file has a four-byte magic number, the sizes as big-endian 32-bit numbers, then the bytes. A CIFAR-10 file has records of one
label byte and 32 x 32 bytes each of red, green and blue.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from tiltproof.data.compressed import Read, read_with
from tiltproof.errors import InputError

UNSIGNED_BYTE = 0x08
MAX_BYTES = 2**28
"""Size limit of the content: five times the training images of MNIST."""
CIFAR_CLASSES = 10
CIFAR_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
MAX_RECORDS = 60_000
"""Records in one file: all images of CIFAR-10."""


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes (plain, ``.gz`` or ``.xz``) with this number of dimensions and exact size."""
    return read_with(path, lambda read: _parse(read, path, dimensions))


def _parse(read: Read, path: Path, dimensions: int) -> np.ndarray:
    header = read(4 + 4 * dimensions)
    expected = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if header[:4] != expected:
        raise InputError(
            f"not an idx file of unsigned bytes with {dimensions} dimensions: {path}",
            got=f"it begins with {header[:4].hex(' ') or 'nothing'} instead of {expected.hex(' ')}",
            why="images and labels were exchanged, or the file has another format",
        )
    if len(header) < 4 + 4 * dimensions:
        raise InputError(f"the idx file ends inside its header: {path}", why="the file was cut short")
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4", dimensions, offset=4))
    count = math.prod(shape)
    if not 0 < count <= MAX_BYTES:
        raise InputError(
            f"the idx file {path} has an unusable size",
            got=" x ".join(map(str, shape)),
            why="the header is damaged",
            do=f"keep to {MAX_BYTES:,} bytes of content",
        )
    # ask for one byte more than announced, to detect a longer file without reading all of it
    content = read(count + 1)
    if len(content) != count:
        raise InputError(
            f"the idx file {path} announces {count:,} bytes of content ({' x '.join(map(str, shape))})",
            got="more than that" if len(content) > count else f"{len(content):,}",
            why="the file was cut short" if len(content) < count else "something was appended to the file",
            do="fetch the file again",
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_cifar_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images [N, 3, 32, 32] and labels [N] as unsigned bytes from one batch file (plain, ``.gz`` or ``.xz``)."""
    content = read_with(path, lambda read: read(MAX_RECORDS * RECORD_BYTES + 1))
    records, rest = divmod(len(content), RECORD_BYTES)
    if records == 0 or rest or records > MAX_RECORDS:
        raise InputError(
            f"not a CIFAR-10 batch of whole records of {RECORD_BYTES:,} bytes: {path}",
            got=f"{len(content):,} bytes" if records < MAX_RECORDS else f"more than {MAX_RECORDS:,} records",
            why="the file was cut short, or is the Python (pickle) version",
            do="fetch the binary version again",
        )
    table = np.frombuffer(content, np.uint8).reshape(records, RECORD_BYTES)
    labels = table[:, 0]
    if labels.max() >= CIFAR_CLASSES:
        raise InputError(
            f"a CIFAR-10 label outside 0 to {CIFAR_CLASSES - 1} in {path}",
            got=int(labels.max()),
            why="a CIFAR-100 file, whose records are laid out differently",
        )
    return table[:, 1:].reshape(records, *CIFAR_SHAPE), labels
