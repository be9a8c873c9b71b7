"""Unpacking a downloaded archive extracts the named members and nothing else, whatever the archive contains."""

import io
import tarfile

import pytest

from tiltproof.data.download import CIFAR10_MEMBERS, unpack
from tiltproof.errors import InputError

WANTED = {"batches/a.bin": 5, "batches/b.bin": 7}


def archive(folder, *entries):
    """Write a tar.gz of entries (name, content) or (name, link target as text)."""
    path = folder / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                packed.addfile(info)
            else:
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))
    return path


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_the_named_members_and_nothing_else(tmp_path):
    target = tmp_path / "cache"
    path = archive(
        tmp_path,
        ("../escaped", b"x"),
        ("/tmp/tiltproof-escaped", b"x"),
        ("batches/a.bin", b"aaaaa"),
        ("batches/a.bin/../../../escaped", b"x"),
        ("batches/a.binary", b"x"),
        ("batches/readme", b"x"),
        ("batches/b.bin", b"bbbbbbb"),
    )
    unpack(path, WANTED, target)
    assert files(tmp_path) == {"archive.tar.gz", "cache/batches/a.bin", "cache/batches/b.bin"}
    assert (target / "batches/b.bin").read_bytes() == b"bbbbbbb"
    path.unlink()
    unpack(path, WANTED, target)  # all present: the archive is not needed


@pytest.mark.parametrize("content", ["/etc/passwd", b"bb", b"b" * 1000], ids=["link", "short", "long"])
def test_a_member_that_is_not_what_it_should_be(tmp_path, content):
    path = archive(tmp_path, ("batches/a.bin", b"aaaaa"), ("batches/b.bin", content))
    with pytest.raises(InputError, match=r"no regular file batches/b\.bin of 7 bytes"):
        unpack(path, WANTED, tmp_path / "cache")


def test_a_folder_in_the_archive_that_is_a_link(tmp_path):
    path = archive(tmp_path, ("batches", ".."), ("batches/a.bin", b"aaaaa"), ("batches/b.bin", b"bbbbbbb"))
    unpack(path, WANTED, tmp_path / "cache")
    assert files(tmp_path) == {"archive.tar.gz", "cache/batches/a.bin", "cache/batches/b.bin"}


@pytest.mark.parametrize("keep", [0, 10, 60])
def test_a_damaged_archive(tmp_path, keep):
    path = archive(tmp_path, ("batches/a.bin", b"aaaaa"), ("batches/b.bin", b"bbbbbbb"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="archive.*remove it and try again"):
        unpack(path, WANTED, tmp_path / "cache")
    assert files(tmp_path / "cache") <= set(WANTED)


def test_the_members_of_cifar10_are_six_batches():
    assert len(CIFAR10_MEMBERS) == 6
    assert set(CIFAR10_MEMBERS.values()) == {30_730_000}
