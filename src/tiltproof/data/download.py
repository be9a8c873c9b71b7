"""Download MNIST or CIFAR-10 into the user's cache folder once, and check their digests, with pooch."""

from __future__ import annotations

import os
import tarfile
import zlib
from pathlib import Path

from tiltproof.errors import InputError

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}
CIFAR10_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10_DIGEST = "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
CIFAR10_MEMBERS = {
    f"cifar-10-batches-bin/{name}.bin": 10_000 * 3073
    for name in ("test_batch", *(f"data_batch_{k}" for k in range(1, 6)))
}


def fetch_mnist() -> Path:
    """Return the folder of the four idx files, downloaded at the first call."""
    folder = cache_folder() / "mnist"
    for name, digest in MNIST_FILES.items():
        _retrieve("mnist", MNIST_MIRRORS, name, digest, folder)
    return folder


def fetch_cifar10() -> Path:
    """Return the folder of the six binary batches, downloaded and unpacked at the first call."""
    folder = cache_folder() / "cifar10"
    _retrieve("cifar10", CIFAR10_MIRRORS, CIFAR10_ARCHIVE, CIFAR10_DIGEST, folder)
    unpack(folder / CIFAR10_ARCHIVE, CIFAR10_MEMBERS, folder)
    return folder / "cifar-10-batches-bin"


def cache_folder() -> Path:
    """Return the per-user cache folder of the operating system."""
    import pooch

    return Path(pooch.os_cache("tiltproof"))


def unpack(archive: Path, members: dict[str, int], folder: Path) -> None:
    """Unpack these members, by name and size, and nothing else; existing files are kept.

    Although the archive's digest is known, no name, link or size in it is trusted: a member must be a regular file of the
    expected size.
    """
    wanted = {name: size for name, size in members.items() if not _exists(folder / name, size)}
    if not wanted:
        return
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for entry in packed:
                if entry.isreg() and entry.size == wanted.get(entry.name):
                    stream = packed.extractfile(entry)
                    _write(folder / entry.name, stream.read(wanted.pop(entry.name)) if stream else b"")
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise InputError(f"the archive {archive} cannot be unpacked", got=error, do="remove it and try again") from None
    if wanted:
        raise InputError(
            f"the archive {archive} lacks some of the files",
            got="no regular file " + ", ".join(f"{name} of {size:,} bytes" for name, size in wanted.items()),
            why="the archive is not the published one",
            do="remove it and try again",
        )


def _exists(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _write(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it, so that an interrupted run leaves no incomplete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def _retrieve(data: str, mirrors: tuple[str, ...], name: str, digest: str, folder: Path) -> None:
    import pooch
    import requests

    failures = []
    for mirror in mirrors:
        try:
            pooch.retrieve(mirror + name, known_hash=digest, fname=name, path=folder)
            return
        except (OSError, ValueError, requests.RequestException) as error:  # ValueError: pooch's wrong digest
            failures.append(f"{mirror}: {type(error).__name__}")
    raise InputError(
        f"{data} could not be downloaded ({name})",
        got="; ".join(failures),
        why="no network, or the server is down",
        do=f"give --data-root (root= in Python) or set $TILTPROOF_DATA to a folder that holds {data}/; "
        f"{data}-sample needs no download",
    )
