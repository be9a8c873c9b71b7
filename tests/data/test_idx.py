"""The idx reader: what it reads, and every way a file can be wrong."""

import gzip
import lzma
import struct

import numpy as np
import pytest

from tiltproof.data.binary_sets import read_idx
from tiltproof.errors import InputError

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
CONTENT = struct.pack(">4B3I", 0, 0, 8, 3, 2, 3, 4) + PIXELS.tobytes()


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)], ids=["plain", "gz", "xz"]
)
def test_reads_plain_and_compressed(tmp_path, suffix, pack):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(pack(CONTENT))
    assert np.array_equal(read_idx(path, 3), PIXELS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (struct.pack(">4BI", 0, 0, 8, 1, 24) + PIXELS.tobytes(), "images and labels were exchanged"),
        (CONTENT[:10], "ends inside its header"),
        (CONTENT[:-1], "announces 24 bytes.*Got: 23.*cut short"),
        (CONTENT + b"x", "more than that.*appended"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 0, 28, 28), "unusable size"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 2**31, 2**31), "unusable size"),
    ],
    ids=["empty", "labels", "header", "short", "long", "no images", "absurd"],
)
def test_refuses_a_wrong_size(tmp_path, content, message):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_idx(path, 3)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_refuses_a_damaged_archive(tmp_path, suffix, pack):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(pack(CONTENT)[:-12])
    with pytest.raises(InputError, match="damaged"):
        read_idx(path, 3)
    path.write_bytes(b"this is text")
    with pytest.raises(InputError, match="damaged"):
        read_idx(path, 3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="missing.*no-such-file"):
        read_idx(tmp_path / "no-such-file", 3)


def test_an_archive_that_unpacks_to_more_than_announced_is_not_unpacked(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(CONTENT + bytes(50_000_000)))
    with pytest.raises(InputError, match="more than that"):
        read_idx(path, 3)
