"""Read a run folder strictly, and compute the sha256 digests of weights and images that its format defines."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.head import NAMES
from tiltproof.checker.kept import Kept, read_keep
from tiltproof.checker.records import (
    RangeRecord,
    Values,
    VerdictRecord,
    check_asked,
    check_counts,
    check_means,
    read_labels,
    read_range,
    read_values,
    read_verdict,
)
from tiltproof.checker.strict_json import content, ensure, finite, get, natural, parsed, split
from tiltproof.checker.tiling import Transform, contains_zero, read_transform
from tiltproof.errors import InputError


def content_digest(tensor: Tensor) -> bytes:
    """Return a tensor's numbers as bytes: little-endian, in C order."""
    array = tensor.detach().cpu().contiguous().reshape(-1)
    raw = array.view(torch.uint8).numpy()
    if sys.byteorder == "big":
        raw = raw.reshape(-1, array.element_size())[:, ::-1]
    return bytes(raw.tobytes())


def image_digest(image: Tensor) -> str:
    return hashlib.sha256(content_digest(image)).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """Hash all parameters and buffers, sorted by name: one JSON line with name, dtype and shape, then the numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[0]):
        dtype = str(tensor.dtype).removeprefix("torch.")
        digest.update(json.dumps([name, dtype, list(tensor.shape)]).encode() + b"\n")
        digest.update(content_digest(tensor))
    return digest.hexdigest()


# Reading a run folder: refuse whatever is missing, malformed, duplicated, out of bounds or inconsistent.


class Run(NamedTuple):
    """A complete, consistent run folder with either ``verdicts`` (classification) or ``ranges`` (regression)."""

    transform: Transform
    semantics: str
    weights_sha256: str
    first: int
    shape: list[int]
    dtype: str
    images_sha256: list[str]
    verdicts: list[VerdictRecord]
    ranges: list[RangeRecord]
    values: Values
    head: list[str]
    """What the claim takes off a classifier's end, the last one first."""
    keep: Kept | None = None
    """What a classifier keeps, if that is not the label."""
    radius: bool = False
    """Whether a share of the range is claimed for each image."""


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
    task = claim.get("task", "classification")
    ensure(task in ("regression", "radius") or "task" not in claim, "the claim's task is unknown")
    text, semantics = get(claim, "transform", str), get(claim, "semantics", str)
    transform, first = read_transform(text), natural(claim, "first")
    shape, digests = get(claim, "shape", list), get(claim, "images_sha256", list)
    ensure(semantics in ("real", "float32", "uint8"), "the semantics is not real, float32 or uint8")
    pictures = semantics == "uint8"
    ensure(not pictures or len(transform.low) == 1, "uint8 semantics are claimed for more than one parameter")
    ensure(not pictures or not transform.noise, "uint8 semantics are claimed for noise")
    ensure(
        not pictures or transform.interpolation == "bilinear", "uint8 semantics are claimed for another interpolation"
    )
    ensure(
        not pictures or ("task" not in claim and "head" not in claim),
        "uint8 semantics are claimed for ranges or scores",
    )
    ensure(get(claim, "dtype", str) in ("float32", "float64"), "the images' dtype is neither float32 nor float64")
    ensure(
        len(shape) == 3 and all(type(n) is int and 0 < n <= 2**20 for n in shape), "the images' shape is not [C, H, W]"
    )
    ensure(
        shape[0] == 3 or not {"S", "H"} & {*transform.letters},
        "the claim changes colors of images without three channels",
    )
    ensure(len(digests) > 0, "the claim is about no image")
    head = get(claim, "head", list) if "head" in claim else []
    ensure(all(name in NAMES for name in head) and len(head) <= 8, "the claim takes off an unknown head")
    ensure("keep" not in claim or task != "regression", "a claim of ranges keeps classes")
    ensure("head" not in claim or (len(head) > 0 and task != "regression"), "a claim of ranges takes off a head")
    radius = task == "radius"
    if radius:
        ensure(len(transform.low) > 0, "the claim measures radii without a parameter")
        ensure(
            all(map(contains_zero, transform.low, transform.high)), "the claim measures radii from outside of its range"
        )
    ensure(all(type(digest) is str for digest in digests), "an image's sha256 is not text")
    weights = get(claim, "weights_sha256", str)
    lines = split(files["verdicts.jsonl"], "verdicts.jsonl")
    ensure(len(lines) == len(digests), f"the claim is about {len(digests)} images, but there are {len(lines)} records")
    found = (parsed(line, "verdicts.jsonl", first + k) for k, line in enumerate(lines))
    summary = parsed(content(folder, "summary.json"), "summary.json")
    keep: Kept | None = None
    verdicts: list[VerdictRecord] = []
    ranges: list[RangeRecord] = []
    values: Values = None
    ensure(not transform.noise or task != "regression", "a claim of ranges has noise")
    if task == "regression":
        values = read_values(claim, len(digests))
        ranges = [read_range(record, first + k, values, k, transform) for k, record in enumerate(found)]
        check_means(summary, ranges)
    else:
        labels = read_labels(claim, len(digests))
        keep = read_keep(claim, labels)
        ensure(keep is None or keep.rule != "linear" or not head, "a claim about rows of outputs takes off a head")
        verdicts = [
            read_verdict(record, first + k, labels[k], transform, radius, pictures) for k, record in enumerate(found)
        ]
        check_counts(summary, verdicts)
        if pictures and settings.get("tolerance") is not None:
            check_asked(finite(settings, "tolerance"), verdicts)
    check_batches(files["verdicts.jsonl"], files["batches.jsonl"])
    ensure(summary.get("task") == claim.get("task"), "the summary's task is not the manifest's")
    agreed = {"transform": text, "semantics": semantics, "method": get(settings, "method", str)}
    check_summary(summary, files, agreed)
    return Run(
        *(transform, semantics, weights, first, shape, claim["dtype"], digests),
        *(verdicts, ranges, values, head, keep, radius),
    )


def check_batches(verdicts: bytes, batches: bytes) -> None:
    """Check that the batches partition verdicts.jsonl in order, each with its number of lines and its sha256."""
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


def check_summary(summary: dict[str, Any], files: dict[str, bytes], agreed: dict[str, str]) -> None:
    for name, text in agreed.items():
        ensure(get(summary, name, str) == text, f"the summary's {name} is not the manifest's")
    finite(summary, "seconds")
    digests = get(summary, "files", dict)
    for name, found in files.items():
        ensure(
            digests.get(name) == hashlib.sha256(found).hexdigest(),
            f"{name} is not the file that the run wrote (its sha256 differs)",
        )
