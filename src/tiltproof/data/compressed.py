"""Files that may be stored plain, as ``.gz`` or as ``.xz``: find whichever is there and read no more than expected.

A stranger's archive may unpack to any size, ask for a dictionary of gigabytes or hold a million empty parts: it is
unpacked a piece at a time, as far as the reader asks, within `MEMORY_LIMIT` and `MOST_PARTS`.
"""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from tiltproof.errors import InputError

Content = TypeVar("Content")
Read = Callable[[int], bytes]
"""Up to so many of the next bytes; fewer only at the end."""

SUFFIXES = ("", ".gz", ".xz")
PIECE = 2**18
MEMORY_LIMIT = 2**27
"""For unpacking ``.xz``: its strongest preset needs 65 MiB."""
MOST_PARTS = 10_000
DAMAGE = (EOFError, zlib.error, lzma.LZMAError)


def find(folder: Path, name: str) -> Path | None:
    """The file called ``name`` in this folder, plain or compressed, or None."""
    candidates = (folder / (name + suffix) for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def read_with(path: Path, reader: Callable[[Read], Content]) -> Content:
    """Open a plain or compressed file for ``reader``; a missing or damaged file is an `InputError`."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait forever, /dev/zero never end
            raise InputError("a data file is not a regular file", got=path, do="give the file itself")
        with path.open("rb") as stream:
            return reader(_bounded(_pieces(stream, path.suffix)))
    except FileNotFoundError:
        raise InputError("a data file is missing", got=path, do="check the path") from None
    except DAMAGE as error:
        raise InputError(
            "a compressed data file is damaged",
            got=f"{path} ({error})",
            why="the download or the copy was cut short",
            do="fetch the file again",
        ) from None
    except OSError as error:
        raise InputError("a data file cannot be read", got=f"{path} ({error.strerror or error})") from None


def _bounded(pieces: Iterator[bytes]) -> Read:
    """Memory grows with what is there, not with what is asked for: a header may ask for a gigabyte and hold nothing."""
    rest = bytearray()

    def read(most: int) -> bytes:
        while len(rest) < most:
            piece = next(pieces, None)
            if piece is None:
                break
            rest.extend(piece)
        with memoryview(rest) as view:
            taken = bytes(view[:most])
        del rest[:most]
        return taken

    return read


def _pieces(stream: io.BufferedIOBase, suffix: str) -> Iterator[bytes]:
    if suffix == ".gz":
        return _unpacked(stream, _Gzip)
    if suffix == ".xz":
        return _unpacked(stream, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_LIMIT))
    return iter(lambda: stream.read(PIECE), b"")


class _Decompressor(Protocol):
    """What `lzma.LZMADecompressor` offers."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's unpacking of one part of a ``.gz``, with the interface of lzma's."""

    def __init__(self) -> None:
        self._object = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        unpacked = self._object.decompress(self._object.unconsumed_tail + data, max_length)
        self.needs_input = not self._object.unconsumed_tail and len(unpacked) < max_length
        return unpacked


def _unpacked(stream: io.BufferedIOBase, start: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """The content of all parts of the file, in pieces of at most `PIECE` bytes."""
    packed = stream.read(PIECE)
    for _ in range(MOST_PARTS):
        part = start()
        while not part.eof:
            if part.needs_input and not packed:
                packed = stream.read(PIECE)
                if not packed:
                    raise EOFError("it ends in the middle")
            unpacked = part.decompress(packed, PIECE)
            packed = b""
            if unpacked:
                yield unpacked
        packed = part.unused_data.lstrip(b"\0")  # both formats allow zeros between and after the parts
        while not packed:
            following = stream.read(PIECE)
            if not following:
                return
            packed = following.lstrip(b"\0")
    raise EOFError(f"it is cut into more than {MOST_PARTS:,} parts")
