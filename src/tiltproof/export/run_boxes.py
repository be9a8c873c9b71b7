"""The boxes that a run proved as VNN-LIB properties, so that another tool can prove them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tiltproof.certify import Verdict
from tiltproof.certify.tiling import DEEPEST, Boxes, Tiling
from tiltproof.certify.tree import leaves
from tiltproof.errors import InputError
from tiltproof.export.instances import (
    MOST_PROPERTIES,
    TIMEOUT,
    Ends,
    VnnlibFolder,
    inputs_for,
    too_many,
    write_folder,
)
from tiltproof.report.finished import FinishedRun, check_images, check_model, read_finished


def export_run(
    folder: str | Path,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    out: str | Path,
    *,
    numbers: Sequence[int] | None = None,
    method: str | None = None,
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
) -> VnnlibFolder:
    """Write the boxes that a run proved, of its certified images or of those named by ``numbers``.

    Model, images and labels are compared with the run's digests. ``method``: by default the run's own if that bounds pixels by
    intervals, as VNN-LIB does, else ``hull``.
    """
    run = read_finished(folder)
    if run.regression:
        raise InputError(
            "the run proves ranges of outputs, not classes", got=str(folder), do="export it with --csv or --jsonl"
        )
    check_model(run, model)
    stored = check_images(run, images, labels)
    rows = _rows(run, numbers)
    own = str(run.settings.get("method"))
    inputs = inputs_for(model, stored[rows], torch.as_tensor([run.results[row].label for row in rows]), run.transform)
    boxes = [_tiling(run, row) for row in rows]
    chosen = method or (own if own in ("hull", "fgv") else "hull")
    return write_folder(inputs, boxes, [run.first + row for row in rows], chosen, timeout, Path(out), progress)


def _rows(run: FinishedRun, numbers: Sequence[int] | None) -> list[int]:
    """Which images of the run: those that have a tiling."""
    certified = [
        row
        for row, result in enumerate(run.results)
        if result.verdict is Verdict.CERTIFIED and result.tree and result.grid
    ]
    if numbers is None:
        if not certified:
            raise InputError("the run has no certified image, and only those have boxes", got=str(run.folder))
        return certified
    for number in numbers:
        row = number - run.first
        if not 0 <= row < len(run.results):
            last = run.first + len(run.results) - 1
            raise InputError(f"the run is about images {run.first} to {last}", got=f"image {number}")
        if row not in certified:
            raise InputError(
                f"image {number} has no boxes in the run",
                got=f"the verdict {run.results[row].verdict}",
                do="choose certified images, or give --transform and --splits instead of a run",
            )
    return [number - run.first for number in numbers]


def _tiling(run: FinishedRun, row: int) -> Ends:
    result = run.results[row]
    nodes = leaves(result.grid, result.tree, MOST_PROPERTIES)
    if nodes is None:
        raise too_many(f"image {result.image} alone has more")
    count = len(result.grid)
    if any(part * 2**level > DEEPEST for node in nodes for part, level in zip(result.grid, node[count:], strict=True)):
        raise InputError(f"the run in {run.folder} is damaged", got=f"image {result.image}: boxes too small to exist")
    table = torch.tensor(nodes)
    return Tiling(run.transform, result.grid).bounds(Boxes(table[:, :count], table[:, count:]))
