"""The CIFAR-10 binary reader: the layout of a record, and strictness about whole records and labels."""

import gzip
import lzma

import numpy as np
import pytest

from tiltproof.data.binary_sets import RECORD_BYTES, read_cifar_binary
from tiltproof.errors import InputError


def records(labels):
    """Return one record per label whose red plane is 1, green plane 2 and blue plane 3."""
    planes = np.repeat(np.array([1, 2, 3], np.uint8), 1024).tobytes()
    return b"".join(bytes([label]) + planes for label in labels)


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)], ids=["plain", "gz", "xz"]
)
def test_reads_labels_and_planes(tmp_path, suffix, pack):
    path = tmp_path / f"test_batch.bin{suffix}"
    path.write_bytes(pack(records([3, 8])))
    images, labels = read_cifar_binary(path)
    assert images.shape == (2, 3, 32, 32)
    assert labels.tolist() == [3, 8]
    assert [np.unique(images[:, channel]).tolist() for channel in range(3)] == [[1], [2], [3]]


@pytest.mark.parametrize("content", [b"", records([1])[:-1], records([1]) + b"x"], ids=["empty", "short", "long"])
def test_refuses_broken_records(tmp_path, content):
    path = tmp_path / "test_batch.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"whole records of {RECORD_BYTES:,} bytes"):
        read_cifar_binary(path)


def test_refuses_a_label_beyond_the_classes(tmp_path):
    path = tmp_path / "test_batch.bin"
    path.write_bytes(records([9, 10]))
    with pytest.raises(InputError, match="label outside 0 to 9.*Got: 10"):
        read_cifar_binary(path)
