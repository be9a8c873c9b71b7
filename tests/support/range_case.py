"""Small regression problems, and regression run folders that a forger may tamper with and seal again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.run_folder import manifest_of, write_run
from tests.support.small_regression import network, some_images
from tiltproof.checker import CheckFailed, check

FIRST = 4
TRANSFORM = "R(8), B(0.05)"


def range_record(image: int, **fields: Any) -> dict[str, Any]:
    """Return one output of one image under one parameter; the inner range is [lower, upper] too unless given."""
    single = ("prediction", "lower", "upper", "inner_lower", "inner_upper", "lowest_at", "highest_at")
    middle = fields["prediction"]
    whole = {"inner_lower": middle, "inner_upper": middle, "lowest_at": [0.0], "highest_at": [0.0]} | fields
    record = {"image": image} | {key: [whole[key]] for key in single}
    return record | {"value": None, "complete": True, "grid": [2], "tree": "2.", "boxes": 2, "seconds": 0.1}


def write_ranges(folder: Path, model, images, transform, records, semantics="real", values=None, first=0) -> dict:
    """Write all four files of a regression run, from the format's description."""
    manifest = manifest_of(model, images, [], transform, semantics, first)
    claim = {"task": "regression"} | manifest["claim"] | {"values": values}
    del claim["labels"]
    manifest["claim"] = claim
    write_run(folder, manifest, records)
    return manifest


class RangeCase:
    """A true run with two outputs under two parameters, with its network, images and values, all open to tampering."""

    def __init__(self, folder: Path, records: list[dict[str, Any]]) -> None:
        self.folder, self.model, self.images = folder, network(2, seed=1), some_images()
        self.values = torch.tensor([[0.5, -0.5], [0.25, 0.0], [1.0, 2.0]])
        self.records = copy.deepcopy(records)
        self.manifest = write_ranges(
            folder, self.model, self.images, TRANSFORM, self.records, values=self.values.tolist(), first=FIRST
        )

    def write(self) -> None:
        write_run(self.folder, self.manifest, self.records)

    def check(self, **settings: Any):
        return check(self.folder, self.model, self.images, self.values, **settings)

    def fails(self, match: str = "", image: int | None = None) -> None:
        with pytest.raises(CheckFailed, match=match or None) as caught:
            self.check()
        assert image is None or caught.value.image == FIRST + image, caught.value
        assert "\n" not in str(caught.value)

    def fails_sealed(self, match: str = "", image: int | None = None) -> None:
        self.write()
        self.fails(match, image)


def read_records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
