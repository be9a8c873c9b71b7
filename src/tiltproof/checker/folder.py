"""Reading a run folder, strictly: whatever is missing, misshapen, doubled, out of bounds or does not add up is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.tiling import MOST_PIECES, Transform, count_boxes, read_transform
from tiltproof.errors import InputError

MOST_BYTES = {"manifest.json": 2**28, "verdicts.jsonl": 2**31, "batches.jsonl": 2**28, "summary.json": 2**20}
VERDICTS = ("certified", "falsified", "unknown", "misclassified")


class Record(NamedTuple):
    """What the run says of one image; ``boxes`` is the number of boxes in its tiling."""

    image: int
    label: int
    verdict: str
    margin: float | None
    grid: list[int]
    tree: str
    boxes: int
    counterexample: list[float]


class Run(NamedTuple):
    """A complete run folder whose parts agree with each other."""

    transform: Transform
    semantics: str
    weights_sha256: str
    first: int
    shape: list[int]
    dtype: str
    images_sha256: list[str]
    records: list[Record]


def read_run(folder: Path) -> Run:
    if not folder.is_dir() or not (folder / "manifest.json").is_file():
        raise InputError(
            "there is no run folder here",
            got=folder,
            do="name a folder that tiltproof certify --out wrote: it holds manifest.json",
        )
    manifest_bytes = content(folder, "manifest.json")
    if not (folder / "summary.json").exists():
        raise CheckFailed("the run is not complete: it has no summary.json; resume it first")
    files = {name: content(folder, name) for name in ("verdicts.jsonl", "batches.jsonl")} | {
        "manifest.json": manifest_bytes
    }
    manifest = parsed(manifest_bytes, "manifest.json")
    if (
        manifest.get("format") != "tiltproof-run"
        or type(manifest.get("version")) is not int
        or manifest["version"] != 1
    ):
        raise CheckFailed("manifest.json is not of the format tiltproof-run, version 1")
    claim, settings = get(manifest, "claim", dict), get(manifest, "settings", dict)
    get(manifest, "notes", dict), get(manifest, "environment", dict)
    text, semantics = get(claim, "transform", str), get(claim, "semantics", str)
    transform, first = read_transform(text), natural(claim, "first")
    shape, digests, labels = get(claim, "shape", list), get(claim, "images_sha256", list), get(claim, "labels", list)
    ensure(semantics in ("real", "float32"), "the semantics is neither real nor float32")
    ensure(get(claim, "dtype", str) in ("float32", "float64"), "the images' dtype is neither float32 nor float64")
    ensure(
        len(shape) == 3 and all(type(n) is int and 0 < n <= 2**20 for n in shape), "the images' shape is not [C, H, W]"
    )
    ensure(all(type(digest) is str for digest in digests), "an image's sha256 is no text")
    ensure(all(type(label) is int and 0 <= label < 2**31 for label in labels), "a label is no class number")
    ensure(0 < len(digests) == len(labels), "the claim does not give one sha256 and one label for each image")
    lines = split(files["verdicts.jsonl"], "verdicts.jsonl")
    ensure(len(lines) == len(labels), f"the claim is about {len(labels)} images, but there are {len(lines)} records")
    records = [
        read_record(parsed(line, "verdicts.jsonl", first + k), first + k, labels[k], transform)
        for k, line in enumerate(lines)
    ]
    check_batches(files["verdicts.jsonl"], files["batches.jsonl"])
    summary = parsed(content(folder, "summary.json"), "summary.json")
    agreed = {"transform": text, "semantics": semantics, "method": get(settings, "method", str)}
    check_summary(summary, files, [record.verdict for record in records], agreed)
    weights = get(claim, "weights_sha256", str)
    return Run(transform, semantics, weights, first, shape, claim["dtype"], digests, records)


def read_record(record: dict[str, Any], number: int, label: int, transform: Transform) -> Record:
    parts = len(transform.low)
    try:
        ensure(
            natural(record, "image") == number, f"its record is missing or out of order: found image {record['image']}"
        )
        ensure(natural(record, "label") == label, f"its record has label {record['label']}, the claim {label}")
        verdict = get(record, "verdict", str)
        ensure(verdict in VERDICTS, f"unknown verdict {verdict[:40]!r}")
        natural(record, "boxes"), finite(record, "seconds")
        open_ended = verdict in ("unknown", "misclassified") and record.get("margin", 0) is None
        margin = None if open_ended else finite(record, "margin")
        for key, owner in {
            "grid": "certified",
            "tree": "certified",
            "counterexample": "falsified",
            "open_box": "unknown",
        }.items():
            ensure(key in record, f"{key} is missing")
            ensure(verdict == owner or record[key] is None, f"{key} is given for a verdict {verdict}")
        if verdict == "certified":
            grid, tree = get(record, "grid", list), get(record, "tree", str)
            ensure(
                len(grid) == parts and all(type(n) is int and 0 < n <= MOST_PIECES for n in grid),
                "its grid is not a grid",
            )
            return Record(number, label, verdict, margin, grid, tree, count_boxes(grid, tree), [])
        point: list[float] = []
        if verdict == "falsified":
            point = vector(get(record, "counterexample", list), parts)
        elif verdict == "unknown" and record["open_box"] is not None:
            ends = get(record, "open_box", list)
            ensure(len(ends) == 2 and all(type(end) is list for end in ends), "open_box is not [lows, highs]")
            lows, highs = vector(ends[0], parts), vector(ends[1], parts)
            ensure(
                all(
                    low <= a <= b <= high
                    for low, a, b, high in zip(transform.low, lows, highs, transform.high, strict=True)
                ),
                "its open box is not a box inside the range",
            )
        return Record(number, label, verdict, margin, [], "", 0, point)
    except CheckFailed as error:
        raise CheckFailed(error.what, number) from None


def check_batches(verdicts: bytes, batches: bytes) -> None:
    """Each batch's bytes are the next ones of verdicts.jsonl, hold its number of lines and have its sha256."""
    position = 0
    for k, line in enumerate(split(batches, "batches.jsonl")):
        batch = parsed(line, "batches.jsonl")
        ensure(natural(batch, "batch") == k, f"batch {k} is missing or out of order in batches.jsonl")
        part = verdicts[position : position + natural(batch, "bytes")]
        ensure(0 < len(part) == batch["bytes"], f"batch {k}: verdicts.jsonl is cut off, or the batch is empty")
        ensure(
            get(batch, "sha256", str) == hashlib.sha256(part).hexdigest(),
            f"batch {k}: its records are not those that were written",
        )
        ensure(part.count(b"\n") == natural(batch, "images"), f"batch {k}: wrong number of records")
        ensure("grid" in batch and type(batch.get("device")) is str, f"batch {k}: grid or device is missing")
        position += len(part)
    ensure(position == len(verdicts), "the batches do not add up to verdicts.jsonl")


def check_summary(
    summary: dict[str, Any], files: dict[str, bytes], verdicts: list[str], agreed: dict[str, str]
) -> None:
    counts = {name: verdicts.count(name) for name in VERDICTS}
    counts |= {"images": len(verdicts), "correct": len(verdicts) - counts["misclassified"]}
    counts["unfalsified"] = counts["certified"] + counts["unknown"]
    for name, number in counts.items():
        ensure(natural(summary, name) == number, f"the summary says {name} {summary[name]}, the records say {number}")
    for name, text in agreed.items():
        ensure(get(summary, name, str) == text, f"the summary's {name} is not the manifest's")
    finite(summary, "seconds")
    digests = get(summary, "files", dict)
    for name, found in files.items():
        ensure(
            digests.get(name) == hashlib.sha256(found).hexdigest(),
            f"{name} is not the file that the run wrote (its sha256 differs)",
        )


def content(folder: Path, name: str) -> bytes:
    path = folder / name
    ensure(path.is_file(), f"{name} is missing")
    ensure(path.stat().st_size <= MOST_BYTES[name], f"{name} is too large to be a run's")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read", got=error) from None


def split(text: bytes, name: str) -> list[bytes]:
    ensure(text.endswith(b"\n"), f"{name} is cut off")
    return text[:-1].split(b"\n")


def parsed(text: bytes, name: str, image: int | None = None) -> dict[str, Any]:
    """A JSON object without NaN, infinity, or a key given twice."""

    def refuse(word: str) -> None:
        raise ValueError(f"it contains {word}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key is given twice")
        return dict(pairs)

    try:
        value = json.loads(text.decode("utf-8"), parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckFailed(f"{name} cannot be read: {str(error)[:80]}", image) from None
    if type(value) is not dict:
        raise CheckFailed(f"{name} does not hold a JSON object where one belongs", image)
    return value


def ensure(condition: bool, what: str) -> None:
    if not condition:
        raise CheckFailed(what)


def get(record: dict[str, Any], key: str, kind: type) -> Any:
    ensure(type(record.get(key)) is kind, f"{key} is missing or of the wrong type")
    return record[key]


def natural(record: dict[str, Any], key: str) -> int:
    value: int = get(record, key, int)
    ensure(0 <= value < 2**53, f"{key} is out of bounds")
    return value


def finite(record: dict[str, Any], key: str) -> float:
    return vector([record.get(key)], 1, key)[0]


def vector(values: list[Any], length: int, name: str = "a vector of parameters") -> list[float]:
    ensure(len(values) == length, f"{name} has the wrong length")
    ensure(
        all(type(v) in (int, float) and abs(v) <= 1e300 for v in values), f"{name} is missing or not a finite number"
    )
    return [float(value) for value in values]
