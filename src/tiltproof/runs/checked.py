"""What `tiltproof check` found, kept beside a run: who proved it again, and when.

This is a note, not evidence: no digest covers it, the checker never reads it, and anybody could write one. It names the
run it is about by digest and the checker by the digest of its code, and a report omits one that does not
fit both, or that does not agree with the run's own counts.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tiltproof.errors import InputError, shown
from tiltproof.runs.atomic_io import document, replace_bytes
from tiltproof.runs.folder import CHECK_FORMAT, CHECKED, SUMMARY, is_check, size_of_file
from tiltproof.runs.manifest import package_version, source_digest

VERSION = 1
MOST_BYTES = 2**20
COUNTS = ("images", "certified", "boxes", "sub_boxes", "counterexamples")


@dataclass(frozen=True)
class Checked:
    """The result of a check; the counts are those of `tiltproof.checker.CheckReport`."""

    holds: bool
    images: int = 0
    certified: int = 0
    boxes: int = 0
    sub_boxes: int = 0
    counterexamples: int = 0
    seconds: float = 0.0
    sampled: bool = False
    reason: str = ""
    """Why the certificate does not hold."""
    by: str = ""
    """Who checked, if that was said."""
    checked: str = ""
    """When, in UTC; `write_checked` fills it in."""

    @property
    def on(self) -> datetime:
        return datetime.fromisoformat(self.checked)


def run_digest(folder: Path) -> str:
    """Return the digest of a run: the sha256 of its summary, which holds those of all other files."""
    return hashlib.sha256((folder / SUMMARY).read_bytes()).hexdigest()


def checker_identity() -> dict[str, str]:
    """Return the version of the package, and the digest of the checker's own code."""
    return {"tiltproof": package_version(), "source_sha256": source_digest("checker")}


def write_checked(folder: Path, run_sha256: str, found: Checked) -> str | None:
    """Keep the result of a check of the run with this digest; return why not, if that is so.

    A sample that holds does not replace a complete check that holds.
    """
    path = folder / CHECKED
    try:
        if size_of_file(path) is not None and not is_check(path):
            return f"{path} is another program's file"
        if run_digest(folder) != run_sha256:
            return "the run was changed meanwhile"
        earlier = _entry(path, run_sha256)
        if found.holds and found.sampled and isinstance(earlier, Checked) and earlier.holds and not earlier.sampled:
            return None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"format": CHECK_FORMAT, "version": VERSION, "run_sha256": run_sha256, "checker": checker_identity()}
        replace_bytes(path, document(about | asdict(found) | {"checked": now}))
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None


def read_checked(folder: Path, run_sha256: str, images: int, certified: int, falsified: int) -> Checked | str | None:
    """Return the result of a check of the run with this digest and these counts; None if there is none, and why it was
    left out if it does not fit."""
    found = _entry(folder / CHECKED, run_sha256)
    if not isinstance(found, Checked) or not found.holds:
        return found
    told = found.images, found.certified, found.counterexamples
    agrees = told == (images, certified, falsified) and not found.sampled
    if found.sampled:
        agrees = found.images < images and found.certified <= certified and found.counterexamples <= falsified
    return found if agrees else f"{CHECKED} does not agree with the run's counts"


def _entry(path: Path, run_sha256: str) -> Checked | str | None:
    """Return the result in this file if it is about this run and by this checker; None or the reason otherwise."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size <= MOST_BYTES else {}
        if (content["format"], content["version"]) != (CHECK_FORMAT, VERSION):
            raise ValueError("of another format")
        if content["run_sha256"] != run_sha256:
            return f"{CHECKED} is about another run"
        if content["checker"] != checker_identity():
            return f"{CHECKED} was written by another version of the checker"
        return _result(content)
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        return f"{CHECKED} is damaged ({shown(error, 80)})"


def _result(content: dict[str, Any]) -> Checked:
    """Return the result in a file; ValueError if a value cannot be right."""
    found = Checked(**{field.name: content[field.name] for field in fields(Checked)})
    counts = [getattr(found, name) for name in COUNTS]
    kinds = (found.holds, bool), (found.sampled, bool), (found.reason, str), (found.by, str), (found.checked, str)
    if not all(type(value) is kind for value, kind in kinds) or any(type(n) is not int or n < 0 for n in counts):
        raise ValueError("a value of the wrong kind")
    if found.on.utcoffset() is None or found.on > datetime.now(UTC) + timedelta(days=1):
        raise ValueError("its date cannot be right")
    return found
