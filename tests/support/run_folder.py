"""Write a run folder by hand, from the format's description; this is also the forger's tool."""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tiltproof.checker.folder import image_digest, weights_digest

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
    """Write and seal all four files, as the writer does, and as a forger does after changing something."""
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
    files = ("manifest.json", "verdicts.jsonl", "batches.jsonl")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    claim = manifest["claim"]
    counts = means(records) if claim.get("task") == "regression" else verdict_counts(records)
    counts |= {"task": claim["task"]} if "task" in claim else {}
    agreed = {"transform": claim["transform"], "semantics": claim["semantics"], "method": "affine", "seconds": 1.0}
    (folder / "summary.json").write_text(json.dumps(counts | agreed | {"files": digests} | changes))


def verdict_counts(records: list[dict[str, Any]]) -> dict[str, int]:
    counts = {name: sum(one["verdict"] == name for one in records) for name in NAMES}
    counts |= {"images": len(records), "correct": len(records) - counts["misclassified"]}
    return counts | {"unfalsified": counts["certified"] + counts["unknown"]}


def means(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a regression run's summary from arbitrary records; omit what cannot be computed."""
    found: dict[str, Any] = {"images": len(records)}
    with suppress(TypeError, ValueError, LookupError, OverflowError, ZeroDivisionError):
        found["complete"] = sum(one["complete"] for one in records)
        inner = [
            max(0.0, *(b - a for a, b in zip(one["inner_lower"], one["inner_upper"], strict=True))) for one in records
        ]
        found["mean_inner_width"] = sum(inner) / len(inner)
        allowed, errors, widths = [], [], []
        for one in records:
            lows = [-math.inf if end is None else end for end in one["lower"]]
            highs = [math.inf if end is None else end for end in one["upper"]]
            widths.append(max(b - a for a, b in zip(lows, highs, strict=True)))
            for k, right in enumerate(one["value"] or []):
                errors.append(abs(one["prediction"][k] - right))
                allowed.append(max(right - lows[k], highs[k] - right))
        found |= {"mean_width": finite_or_none(sum(widths) / len(widths)), "largest_width": finite_or_none(max(widths))}
        if errors:
            found["mean_absolute_error"] = sum(errors) / len(errors)
            found["certified_mean_absolute_error"] = finite_or_none(sum(allowed) / len(allowed))
    return found


def finite_or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None
