"""A run folder written by hand, from the format's description; a forger's tool as well."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from tiltproof.checker.hashes import image_digest, weights_digest

NAMES = ("certified", "falsified", "unknown", "misclassified")


def record(image: int, label: int, verdict: str, **fields: Any) -> dict[str, Any]:
    empty = {
        "margin": None,
        "grid": None,
        "tree": None,
        "counterexample": None,
        "open_box": None,
        "boxes": 1,
        "seconds": 0.1,
    }
    return {"image": image, "label": label, "verdict": verdict} | empty | fields


def manifest_of(model, images, labels, transform, semantics="real", first=0) -> dict[str, Any]:
    claim = {
        "transform": transform,
        "semantics": semantics,
        "weights_sha256": weights_digest(model),
        "first": first,
        "shape": list(images.shape[1:]),
        "dtype": str(images.dtype).removeprefix("torch."),
        "images_sha256": [image_digest(image) for image in images],
        "labels": [int(label) for label in labels],
    }
    return {
        "format": "tiltproof-run",
        "version": 1,
        "claim": claim,
        "settings": {"method": "affine", "seed": 0},
        "notes": {},
        "environment": {"torch": torch.__version__},
    }


def write_run(folder: Path, manifest: dict[str, Any], records: list[dict[str, Any]], batch: int = 2) -> None:
    """All four files, sealed: what the writer does, and what a forger does after changing something."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(one).encode() + b"\n" for one in records]
    batches = []
    for k, start in enumerate(range(0, len(lines), batch)):
        part = lines[start : start + batch]
        text = b"".join(part)
        sha = hashlib.sha256(text).hexdigest()
        batches.append(
            {"batch": k, "images": len(part), "bytes": len(text), "sha256": sha, "grid": [4], "device": "cpu"}
        )
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "verdicts.jsonl").write_bytes(b"".join(lines))
    (folder / "batches.jsonl").write_text("".join(json.dumps(one) + "\n" for one in batches))
    seal(folder, manifest, records)


def seal(folder: Path, manifest: dict[str, Any], records: list[dict[str, Any]], **changes: Any) -> None:
    counts = {name: sum(one["verdict"] == name for one in records) for name in NAMES}
    counts |= {"images": len(records), "correct": len(records) - counts["misclassified"]}
    counts["unfalsified"] = counts["certified"] + counts["unknown"]
    files = ("manifest.json", "verdicts.jsonl", "batches.jsonl")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    claim = manifest["claim"]
    agreed = {"transform": claim["transform"], "semantics": claim["semantics"], "method": "affine", "seconds": 1.0}
    (folder / "summary.json").write_text(json.dumps(counts | agreed | {"files": digests} | changes))
