"""Find and read files that may be plain, ``.gz`` or ``.xz``, in pieces and no further than the reader asks.

An untrusted archive may unpack to any size, or ask for a dictionary of gigabytes.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tiltproof.errors import InputError

Content = TypeVar("Content")
Read = Callable[[int], bytes]
"""Returns the next bytes, up to a number; fewer only at the end of the file."""
SUFFIXES = ("", ".gz", ".xz")
PIECE = 2**18
"""Bytes read at once."""
MEMORY_LIMIT = 2**27
"""Memory for unpacking ``.xz``; the strongest preset needs 65 MiB."""
MAX_PARTS = 10_000
"""Largest number of parts of an ``.xz`` file."""
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""Errors of damaged files."""


def find(folder: Path, name: str) -> Path | None:
    """Return the file called ``name`` in this folder, plain or compressed, or None."""
    candidates = (folder / (name + suffix) for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def read_with(path: Path, reader: Callable[[Read], Content]) -> Content:
    """Open a plain or compressed file for ``reader``; raise `InputError` if it is missing or damaged."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe could block, and /dev/zero would not end
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
    """Return a reader whose memory grows with the content, not with the request: a header may announce a gigabyte."""
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
        unpacked = gzip.GzipFile(fileobj=stream)
        return iter(lambda: unpacked.read(PIECE), b"")
    if suffix == ".xz":
        return _unpack_xz(stream)
    return iter(lambda: stream.read(PIECE), b"")


def _unpack_xz(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield the content of all parts of an ``.xz`` file; unlike `lzma.open`, with a limit on memory."""
    packed = stream.read(PIECE)
    for _ in range(MAX_PARTS):
        part = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_LIMIT)
        while not part.eof:
            if part.needs_input and not packed:
                packed = stream.read(PIECE)
                if not packed:
                    raise EOFError("the file ends early")
            yield part.decompress(packed, PIECE)
            packed = b""
        packed = part.unused_data.lstrip(b"\0")  # the format allows zeros between and after the parts
        while not packed:
            following = stream.read(PIECE)
            if not following:
                return
            packed = following.lstrip(b"\0")
    raise EOFError(f"it has more than {MAX_PARTS:,} parts")
