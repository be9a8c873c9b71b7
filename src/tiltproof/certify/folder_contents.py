"""What a result folder holds before a run writes into it: a run, nothing that matters, or somebody else's files.

A run creates, changes and deletes its own files alone: those by a run's names beside a manifest of this program. Whoever writes
them holds the lock on verdicts.jsonl, and takes it before the manifest is written; so a process that dies while the folder is being
made leaves empty files, or a run without results, and both count as nothing.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltproof.errors import InputError, shown

MANIFEST, VERDICTS, BATCHES, SUMMARY = "manifest.json", "verdicts.jsonl", "batches.jsonl", "summary.json"
RUN_FILES = (MANIFEST, VERDICTS, BATCHES, SUMMARY)
FORMAT = "tiltproof-run"
KEYS = {VERDICTS: {"image", "boxes"}, BATCHES: {"batch", "claim", "sha256"}}
"""What every record of these files has, among others."""
MOST_BYTES = 2**26
"""Of a record."""
TEMPORARY = re.compile(r"\.[a-z]+\.(json|html)\.\d+")
"""What `replace_bytes` leaves in a folder when the process is killed."""


@dataclass(frozen=True)
class Contents:
    """``manifest``: of the run that is there, or None; ``results``: whether that run has any; ``other``: another file's name, or None."""

    manifest: dict[str, Any] | None
    results: bool
    other: str | None


def contents(folder: Path) -> Contents:
    """Look at a folder that exists. InputError where a run's names stand for links, pipes, folders or somebody else's files."""
    sizes = {name: size for name in RUN_FILES if (size := size_of_file(folder / name)) is not None}
    others = sorted(
        path.name for path in folder.iterdir() if path.name not in RUN_FILES and not TEMPORARY.fullmatch(path.name)
    )
    manifest = _manifest(folder / MANIFEST) if sizes.get(MANIFEST) else None
    if manifest is None:
        filled = [name for name, size in sizes.items() if size]
        return Contents(None, False, next(iter(filled + others), None))
    for name, keys in KEYS.items():
        if sizes.get(name):
            with (folder / name).open("rb") as stream:
                _ensure_own(_is_record(stream.readline(MOST_BYTES), keys), folder / name)
    if sizes.get(SUMMARY):
        _ensure_own(_is_record((folder / SUMMARY).read_bytes() + b"\n", {"files"}), folder / SUMMARY)
    results = bool(sizes.get(VERDICTS) or sizes.get(BATCHES) or SUMMARY in sizes)
    return Contents(manifest, results, next(iter(others), None))


def size_of_file(path: Path) -> int | None:
    """None if there is nothing by that name; InputError if it is anything but a plain file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        link = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise InputError(
            f"{path} is not a file that a run may write to",
            got="a file that has another name too (a hard link)" if stat.S_ISREG(found.st_mode) else link,
            do="choose another folder, or move it away",
        )
    return found.st_size


def _is_record(line: bytes, keys: set[str]) -> bool:
    """Whether a line is one of a run's records; one without its end was being written when the process died."""
    if not line.endswith(b"\n"):
        return line.startswith(b'{"')
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and keys <= content.keys()


def _ensure_own(own: bool, path: Path) -> None:
    if not own:
        raise InputError(f"{path} was not written by a run", do="choose another folder, or move the file away")


def _manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a run of this program, of whatever version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged, or no run's", got=shown(error), do="choose another folder") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path} is not the manifest of a run", do="choose another folder, or move the file away")
    return content


def open_file(path: Path) -> int:
    """A descriptor for reading and writing a file that is made if it is missing; no link is followed."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o666)
