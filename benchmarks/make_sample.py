"""Write the bundled sample: the first images of the MNIST and CIFAR-10 test sets, in the sets' own compressed formats.

python benchmarks/make_sample.py DATA_ROOT [COUNT]
"""

from __future__ import annotations

import gzip
import lzma
import struct
import sys
from pathlib import Path

import numpy as np

from tiltproof.data import load_data
from tiltproof.data.load import SAMPLE_ROOT


def main(root: Path, count: int) -> None:
    """Read the full test sets, keep the first ``count`` images of each and write them byte for byte reproducibly."""
    images, labels = _first("mnist", root, count)
    folder = SAMPLE_ROOT / "mnist"
    _write(
        folder / "t10k-images-idx3-ubyte.gz",
        gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + images.tobytes(), 9, mtime=0),
    )
    _write(
        folder / "t10k-labels-idx1-ubyte.gz",
        gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes(), 9, mtime=0),
    )
    images, labels = _first("cifar10", root, count)
    records = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
    _write(
        SAMPLE_ROOT / "cifar10" / "test_batch.bin.xz", lzma.compress(records.tobytes(), preset=9 | lzma.PRESET_EXTREME)
    )


def _first(name: str, root: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_data(name, root)
    return (images[:count] * 255).round().byte().numpy(), labels[:count].byte().numpy()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(f"{path}: {len(content):,} bytes")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 100)
