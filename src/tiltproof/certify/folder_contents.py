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
BEGINNINGS = {VERDICTS: b'{"image": ', BATCHES: b'{"batch": '}
"""Of the files that may be torn, how the first record begins."""
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
    for name, beginning in BEGINNINGS.items():
        if sizes.get(name):
            with (folder / name).open("rb") as stream:
                _ensure_own(beginning.startswith(stream.read(len(beginning))), folder / name)
    if SUMMARY in sizes:
        _ensure_own(f'"{BATCHES}"'.encode() in (folder / SUMMARY).read_bytes(), folder / SUMMARY)
    return Contents(manifest, bool(sizes.get(BATCHES) or SUMMARY in sizes), next(iter(others), None))


def size_of_file(path: Path) -> int | None:
    """None if there is nothing by that name; InputError if it is anything but a plain file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            f"{path} is not a file that a run may write to",
            got="a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file",
            do="choose another folder, or move it away",
        )
    return found.st_size


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
