"""The binary version of CIFAR-10: records of one label byte and 32 x 32 bytes each of red, green and blue."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiltproof.data.compressed import read_with
from tiltproof.errors import InputError

CLASSES = 10
SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
MOST_RECORDS = 60_000
"""In one file: all images of CIFAR-10."""


def read_cifar_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 3, 32, 32] and labels [N] as unsigned bytes, from one batch file (plain, ``.gz`` or ``.xz``)."""
    content = read_with(path, lambda read: read(MOST_RECORDS * RECORD_BYTES + 1))
    records, rest = divmod(len(content), RECORD_BYTES)
    if records == 0 or rest or records > MOST_RECORDS:
        raise InputError(
            f"not a CIFAR-10 batch of whole records of {RECORD_BYTES:,} bytes: {path}",
            got=f"{len(content):,} bytes" if records < MOST_RECORDS else f"more than {MOST_RECORDS:,} records",
            why="the file was cut short, or is the Python (pickle) version",
            do="fetch the binary version again",
        )
    table = np.frombuffer(content, np.uint8).reshape(records, RECORD_BYTES)
    labels = table[:, 0]
    if labels.max() >= CLASSES:
        raise InputError(
            f"a CIFAR-10 label outside 0 to {CLASSES - 1} in {path}",
            got=int(labels.max()),
            why="a CIFAR-100 file, whose records are laid out differently",
        )
    return table[:, 1:].reshape(records, *SHAPE), labels
