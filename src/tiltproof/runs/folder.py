"""Run folders: what a folder contains before a run writes into it, and a run that is stored there batch by batch.

A run creates, changes and deletes only its own files: those with a run's names and a manifest of this program. The
writer holds the lock on verdicts.jsonl, and takes it before it writes the manifest. A process that dies while it
creates the folder leaves empty files or a run without results; both count as an empty folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from tiltproof.errors import InputError, shown
from tiltproof.runs.atomic_io import document, lock, replace_bytes
from tiltproof.runs.manifest import environment, graph_digest
from tiltproof.verify.batch import Result, Run
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.results import ImageResult

MANIFEST, RECORDS, BATCHES, SUMMARY = "manifest.json", "verdicts.jsonl", "batches.jsonl", "summary.json"
RUN_FILES = (MANIFEST, RECORDS, BATCHES, SUMMARY)
FORMAT = "tiltproof-run"
CHECKED, CHECK_FORMAT = "check.json", "tiltproof-check"
"""What `tiltproof check` found (`checked.py`): beside the run, and no part of it."""
KEYS = {RECORDS: {"image", "boxes"}, BATCHES: {"batch", "claim", "sha256"}}
"""Keys that every record of these files has, among others."""
MOST_BYTES = 2**26
"""Most bytes of a record."""
TEMPORARY = re.compile(r"\.[a-z]+\.(json|html)\.\d+")
"""Names of files that `replace_bytes` leaves when the process is killed."""


@dataclass(frozen=True)
class Contents:
    """``manifest``: of the run in the folder, or None; ``results``: whether that run has any; ``other``: another
    file's name, or None."""

    manifest: dict[str, Any] | None
    results: bool
    other: str | None


def contents(folder: Path) -> Contents:
    """Inspect an existing folder. InputError if a run's names are links, pipes, folders or files of another program."""
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
    results = bool(sizes.get(RECORDS) or sizes.get(BATCHES) or SUMMARY in sizes)
    return Contents(manifest, results, next(iter(others), None))


def size_of_file(path: Path) -> int | None:
    """Return the file; None if there is nothing of that name; InputError if it is not a plain file."""
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


def is_check(path: Path) -> bool:
    """Return whether a file holds the result of a check."""
    with path.open("rb") as stream:
        return f'"{CHECK_FORMAT}"'.encode() in stream.read(100)


def _discard_check(folder: Path) -> None:
    """Delete the result of a check of results that are no more."""
    path = folder / CHECKED
    if path.is_file() and not path.is_symlink() and is_check(path):
        path.unlink()


def _is_record(line: bytes, keys: set[str]) -> bool:
    """Return whether a line is a record of a run; one without an end was being written when the process died."""
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
    """Return the manifest of a run of this program, in any version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged, or no run's", got=shown(error), do="choose another folder") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path} is not the manifest of a run", do="choose another folder, or move the file away")
    return content


def open_file(path: Path) -> int:
    """Open or create a file for reading and writing; no link is followed."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o666)


# A run on disk (docs/run-folder.md): what was asked, and every finished batch, so that nothing done is ever lost.
#
# Results are appended: first a batch's records to verdicts.jsonl, then, when they have reached the disk, one line with their length and
# sha256 to batches.jsonl. A process that dies at any moment leaves some whole batches and perhaps a torn tail, which has no valid line in
# batches.jsonl; a resumed run cuts it off and does that batch again.


VERSION = 1
RESUMED = "resumed"
"""Key of the manifest's list of other environments in which a run was resumed."""


class StoredRun(Run):
    """An open run folder; a resumed one begins with the results of the batches already done."""

    def __init__(
        self,
        folder: Path,
        inputs: Inputs,
        about: dict[str, Any],
        settings: dict[str, Any],
        plan: dict[str, int],
        notes: dict[str, Any],
        resume: bool,
        overwrite: bool = False,
        kind: type[Result] = ImageResult,
    ) -> None:
        """``about``: the claim (`claim`); ``kind``: the class of one image's result."""
        super().__init__(settings, plan)
        self.folder, self.batches, self.kind = folder, 0, kind
        self.new = False  # whether this process began the run
        self.made = [path for path in (folder, *folder.parents) if not path.exists()]
        settings = settings | {"graph_sha256": graph_digest(inputs.network_as(inputs.images.dtype))}
        self.manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "claim": about,
            "settings": settings,
            "plan": plan,
            "notes": notes,
            "environment": environment(inputs.images.device),
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.claim_digest = hashlib.sha256(json.dumps(self.manifest["claim"]).encode()).hexdigest()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._look(resume, overwrite)
            self.verdicts = self._open(RECORDS)
            lock(self.verdicts, folder)  # from here on no other process reads or changes the run
            before = self._look(resume, overwrite)  # again: another process may have been here before the lock
            self.journal = self._open(BATCHES)
            if resume and before is not None:
                self._agree(before)
                self._recover()
            else:
                # a summary without its run, or a run without its manifest, must not outlive this moment
                _discard_check(folder)
                (folder / SUMMARY).unlink(missing_ok=True)
                for stream in (self.journal, self.verdicts):
                    stream.truncate(0)
                replace_bytes(folder / MANIFEST, document(self.manifest))
                self.new = True
        except OSError as error:
            raise _cannot_write(folder, error) from None

    def _look(self, resume: bool, overwrite: bool) -> dict[str, Any] | None:
        """Return the manifest of the run in the folder; refuse a folder that must not be written to."""
        found, asked = contents(self.folder), resume or overwrite
        if found.manifest is None and found.other is not None:
            what = f"holds no run to {'go on with' if resume else 'replace'}" if asked else "is not empty"
            raise InputError(
                f"the result folder {what}",
                got=f"{self.folder} with {shown(found.other)}",
                do="choose a new or an empty folder",
            )
        if found.results and not asked:
            raise InputError(
                "the result folder is not empty",
                got=f"{self.folder} with a run",
                do="choose another folder, --resume to go on with the run it holds, or --overwrite to replace that run",
            )
        return found.manifest

    def _open(self, name: str) -> IO[bytes]:
        return os.fdopen(open_file(self.folder / name), "r+b")

    def _agree(self, before: dict[str, Any]) -> None:
        """Refuse to mix two runs; name the first difference."""
        if before.get("version") != VERSION:
            raise InputError(
                f"{self.folder / MANIFEST} is of a version of the format that this program does not know",
                got=shown(before.get("version")),
                do="choose another folder",
            )
        self._same_program(before)
        for part in ("claim", "settings"):
            old, new = before.get(part), json.loads(json.dumps(self.manifest[part]))
            for key in dict.fromkeys([*new, *(old if part == "claim" and isinstance(old, dict) else ())]):
                if not isinstance(old, dict) or old.get(key) != new.get(key):
                    then, now = _difference(old.get(key) if isinstance(old, dict) else None, new.get(key))
                    raise InputError(
                        f"this is not the run that {self.folder} holds: {key.replace('_', ' ')} differs",
                        got=f"{now} now, {then} in the folder",
                        do="repeat the command of that run with --resume added, or choose another folder",
                    )
        plan = before.get("plan")
        if not isinstance(plan, dict) or not all(type(plan.get(key)) is int and plan[key] > 0 for key in self.plan):
            raise InputError(f"{self.folder / MANIFEST} is damaged", got=f"plan {plan}", do="choose another folder")
        here = self.manifest["environment"]
        known = [before["environment"], *before.get(RESUMED, [])]
        self.manifest, self.plan = before, plan
        if here not in known:
            self.manifest[RESUMED] = [*before.get(RESUMED, []), here]
            replace_bytes(self.folder / MANIFEST, document(self.manifest))

    def _same_program(self, before: dict[str, Any]) -> None:
        """Refuse a run that another version began: verdicts of a defective version would be sealed with those of this
        one."""
        resumed = before.get(RESUMED, [])
        environments = [before.get("environment"), *(resumed if isinstance(resumed, list) else [None])]
        if not all(isinstance(each, dict) for each in environments):
            raise InputError(f"{self.folder / MANIFEST} is damaged", got="no environment", do="choose another folder")
        here = self.manifest["environment"]
        for key in ("tiltproof", "source_sha256"):
            then, now = before["environment"].get(key), here[key]
            if then != now:
                raise InputError(
                    f"the run that {self.folder} holds was begun by another version of tiltproof",
                    got=f"{shown(then)} then, {now} now",
                    why="an upgrade or a change of its code since, which may have changed what is proved",
                    do="begin it again with --overwrite or in another folder, or finish it with that version",
                )

    def _recover(self) -> None:
        """Read the complete batches, and truncate what follows them."""
        offset = end = 0
        lines = self.journal.read().splitlines(keepends=True)
        for line in lines:
            batch = self._whole_batch(line, offset)
            if batch is None:
                break
            entry, results = batch
            super().append(results, tuple(entry["grid"]) if entry["grid"] else None, entry["device"], entry["seconds"])
            self.batches += 1
            offset, end = offset + entry["bytes"], end + len(line)
        after = len(lines) - self.batches - 1
        if after > 0:  # a process that dies tears the last batch alone
            text = (
                f"{self.folder}: batch {self.batches} is damaged; it is proved again, and so are the {after} after it"
            )
            warnings.warn(text, stacklevel=2)
        for stream, length in ((self.verdicts, offset), (self.journal, end)):
            stream.truncate(length)
            stream.seek(length)
        if len(self.results) < len(self.manifest["claim"]["images_sha256"]):
            _discard_check(self.folder)
            (self.folder / SUMMARY).unlink(missing_ok=True)

    def _whole_batch(self, line: bytes, offset: int) -> tuple[dict[str, Any], list[Any]] | None:
        """Return the batch that a line of batches.jsonl describes, or None if line or records are incomplete."""
        try:
            entry = _sealed(line)
            if not 0 <= entry["bytes"] <= os.fstat(self.verdicts.fileno()).st_size - offset:
                return None
            self.verdicts.seek(offset)
            content = self.verdicts.read(entry["bytes"])
            records = [self.kind.of_record(json.loads(each)) for each in content.splitlines()]
            first = self.manifest["claim"]["first"] + len(self.results)
            right = (
                entry["batch"] == self.batches
                and entry["claim"] == self.claim_digest
                and hashlib.sha256(content).hexdigest() == entry["sha256"]
                and [result.image for result in records] == list(range(first, first + entry["images"]))
            )
            return (entry, records) if right else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def append(self, results: Sequence[Result], grid: tuple[int, ...] | None, device: str, seconds: float) -> None:
        """Append the results of one batch; when this returns, they are on disk."""
        content = "".join(json.dumps(result.record(), allow_nan=False) + "\n" for result in results).encode()
        entry = {
            "batch": self.batches,
            "claim": self.claim_digest,
            "images": len(results),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "grid": grid,
            "device": device,
            "seconds": seconds,
        }
        try:
            for stream, data in ((self.verdicts, content), (self.journal, _seal(entry))):
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise _cannot_write(self.folder, error) from None
        super().append(results, grid, device, seconds)
        self.batches += 1

    def finish(self, summary: dict[str, Any]) -> None:
        """Seal the run with counts and the digests of the other files."""
        try:
            files = {MANIFEST: hashlib.sha256((self.folder / MANIFEST).read_bytes()).hexdigest()}
            for name, stream in ((RECORDS, self.verdicts), (BATCHES, self.journal)):
                if not os.path.samestat(os.fstat(stream.fileno()), (self.folder / name).stat()):
                    raise InputError(
                        "the run folder was replaced while the run was writing to it", got=self.folder / name
                    )
                stream.seek(0)
                files[name] = hashlib.sha256(stream.read()).hexdigest()
            if not _differs_in_time_alone(self.folder / SUMMARY, content := document(summary | {"files": files})):
                replace_bytes(self.folder / SUMMARY, content)
        except OSError as error:
            raise _cannot_write(self.folder, error) from None

    def close(self) -> None:
        if self.new and not self.batches:
            self._withdraw()
        for stream in (self.verdicts, self.journal):
            with suppress(OSError):  # of a full disk once more: whatever is torn has no valid line in batches.jsonl
                stream.close()

    def _withdraw(self) -> None:
        """Delete a run that failed before its first batch was done, under its lock, and the folders made for it."""
        with suppress(OSError):  # what stays counts as an empty folder
            for stream, name in ((self.verdicts, RECORDS), (self.journal, BATCHES)):
                if not os.path.samestat(os.fstat(stream.fileno()), (self.folder / name).stat()):
                    return  # another run's
            if any(path.name not in RUN_FILES for path in self.folder.iterdir()):
                return  # without its manifest, the folder would be one that is not empty
            for name in (MANIFEST, BATCHES, RECORDS):
                (self.folder / name).unlink()
            for path in self.made:
                path.rmdir()


def _differs_in_time_alone(path: Path, content: bytes) -> bool:
    """Return whether a summary says the same already: resuming a finished run must not change the run's digest."""
    try:
        before, now = json.loads(path.read_bytes()), json.loads(content)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(before, dict) and before | {"seconds": None} == now | {"seconds": None}


def _seal(entry: dict[str, Any]) -> bytes:
    """Return the entry as a line with its checksum."""
    return (json.dumps(entry | {"crc32": zlib.crc32(json.dumps(entry).encode())}) + "\n").encode()


def _sealed(line: bytes) -> dict[str, Any]:
    """Return the entry of a complete line; ValueError for any other."""
    entry = json.loads(line)
    checksum = entry.pop("crc32")
    if _seal(entry) != line or zlib.crc32(json.dumps(entry).encode()) != checksum:
        raise ValueError("not a whole line")
    return dict(entry)


def _difference(before: Any, now: Any) -> tuple[str, str]:
    """Return both values as text; of two lists the first entries that differ."""
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return f"{len(before)} entries", f"{len(now)} entries"
        k = next(k for k, pair in enumerate(zip(before, now, strict=True)) if pair[0] != pair[1])
        return f"{shown(before[k])} (entry {k})", shown(now[k])
    return shown(before), shown(now)


def _cannot_write(folder: Path, error: OSError) -> InputError:
    return InputError(
        "the result folder cannot be written",
        got=f"{folder} ({error.strerror or error})",
        why="no space left, no permission, or something else by that name",
        do="make room or choose another folder; a run whose batches are in the folder goes on with --resume",
    )
