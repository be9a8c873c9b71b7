"""Compressed data files: what they may contain, and bombs that are not unpacked."""

import gzip
import lzma
import os
import struct
import zlib

import numpy as np
import pytest

from tiltproof.data.binary_sets import MAX_BYTES, read_cifar_binary, read_idx
from tiltproof.data.compressed import PIECE, read_with
from tiltproof.errors import InputError

PACKERS = pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)], ids=["plain", "gz", "xz"]
)


@PACKERS
@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_every_byte_comes_back_in_order(tmp_path, suffix, pack, size):
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    path = tmp_path / f"file{suffix}"
    path.write_bytes(pack(content))
    assert read_with(path, lambda read: read(10) + read(size + 1)) == content
    assert read_with(path, lambda read: (read(size), read(1))) == (content, b"")


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)], ids=["gz", "xz"])
def test_parts_and_padding_are_read_and_trailing_nonsense_is_not(tmp_path, suffix, pack):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(pack(b"one ") + pack(b"two") + bytes(8))
    assert read_with(path, lambda read: read(100)) == b"one two"
    path.write_bytes(pack(b"one ") + b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        read_with(path, lambda read: read(100))


def test_an_xz_file_of_very_many_parts(tmp_path):
    path = tmp_path / "file.xz"
    path.write_bytes(lzma.compress(b"") * 20_000)
    with pytest.raises(InputError, match="more than 10,000 parts"):
        read_with(path, lambda read: read(100))


def test_a_checksum_that_does_not_fit(tmp_path):
    path = tmp_path / "file.gz"
    packed = bytearray(gzip.compress(b"some content"))
    packed[-5] ^= 1
    path.write_bytes(packed)
    with pytest.raises(InputError, match="damaged.*check"):
        read_with(path, lambda read: read(100))


def ten_gigabytes(beginning, pack):
    """Return a small file that unpacks to ten gigabytes."""
    return pack(beginning) + pack(bytes(2**26)) * 160


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)], ids=["gz", "xz"])
def test_a_bomb_is_unpacked_no_further_than_announced(tmp_path, little_memory, suffix, pack):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(ten_gigabytes(struct.pack(">4B3I", 0, 0, 8, 3, 100, 28, 28), pack))
    with little_memory(), pytest.raises(InputError, match="announces 78,400 bytes.*more than that"):
        read_idx(path, 3)


def test_a_bomb_without_a_header_is_unpacked_no_further_than_a_data_set(tmp_path, little_memory):
    path = tmp_path / "test_batch.bin.gz"
    path.write_bytes(ten_gigabytes(b"", gzip.compress))
    with little_memory(600 * 2**20), pytest.raises(InputError, match="more than 60,000 records"):
        read_cifar_binary(path)


@PACKERS
def test_a_header_that_announces_much_and_holds_nothing(tmp_path, little_memory, suffix, pack):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(pack(struct.pack(">4B3I", 0, 0, 8, 3, MAX_BYTES // 784, 28, 28)))
    with little_memory(), pytest.raises(InputError, match="Got: 0.*cut short"):
        read_idx(path, 3)


def test_an_xz_file_that_asks_for_a_dictionary_of_gigabytes(tmp_path, little_memory):
    packed = bytearray(lzma.compress(b"some content"))
    assert packed[14:16] == b"\x21\x01", "the block header's filter: LZMA2 with one byte of properties"
    packed[16] = 40
    packed[20:24] = zlib.crc32(packed[12:20]).to_bytes(4, "little")
    path = tmp_path / "images.xz"
    path.write_bytes(packed)
    with little_memory(), pytest.raises(InputError, match="damaged.*[Mm]emory"):
        read_idx(path, 3)


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError, match="not a regular file"):
            read_idx(path, 3)
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a regular file"):
        read_cifar_binary(tmp_path / "zeros")
