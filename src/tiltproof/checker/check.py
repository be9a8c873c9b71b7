"""Re-prove a run: hashes, tilings and counts of all images, then every box, counterexample and clean answer again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Record, Run, read_run
from tiltproof.checker.form import Form
from tiltproof.checker.hashes import image_digest, weights_digest
from tiltproof.checker.margins import Margins, bound_margins, evaluation, same_function
from tiltproof.checker.pixels import as_float32, transformed
from tiltproof.checker.tiling import Box, boxes, cell, edges, halves
from tiltproof.errors import InputError

MEMORY = {"cpu": 2**28, "cuda": 2**33}  # bytes that the largest form of a batch may take, roughly
MOST_PAIRS = {"cpu": 256, "cuda": 4096}
POINTS = 5  # parameters at which a claimed margin is compared with the truth
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CheckReport:
    """What held: all of it, or `check_run` would have raised `CheckFailed`."""

    images: int
    certified: int
    boxes: int
    sub_boxes: int
    counterexamples: int
    seconds: float
    sampled: bool


def check_run(
    folder: str | Path,
    model: nn.Module,
    images: Tensor,
    labels: Tensor | Sequence[int],
    *,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    extra_splits: int = 12,
) -> CheckReport:
    """Raise `CheckFailed` unless what the run folder claims of these weights, images and labels holds.

    ``images`` [n, C, H, W] and ``labels`` [n] are those of the run, in order. ``sample`` re-proves only that many images, a
    random choice with ``seed``; hashes, tilings and counts are checked for all. A box that this checker's coarser bounds
    leave open is halved, up to ``extra_splits`` times.
    """
    begin = time.perf_counter()
    run = read_run(Path(folder))
    images = same_inputs(run, model, images, labels)
    if sample is not None and sample < 1:
        raise InputError("a sample has at least one image", got=sample)
    chosen = list(range(len(images)))
    if sample is not None and sample < len(images):
        chosen = sorted(random.Random(seed).sample(chosen, sample))
    device = next(iter([*model.parameters(), *model.buffers()]), images).device
    with evaluation(model, device):
        prover = Prover(run, model, images.to(device, torch.float64), extra_splits)
        records = [run.records[k] for k in chosen]
        prover.check_clean_answers(records)
        falsified = [record for record in records if record.verdict == "falsified"]
        certified = [record for record in records if record.verdict == "certified"]
        prover.check_counterexamples(falsified)
        prover.check_margins(certified)
        prover.prove(certified, progress)
    if weights_digest(model) != run.weights_sha256:
        raise CheckFailed("the network's forward pass changed its own weights or buffers")
    total = sum(record.boxes for record in certified)
    seconds = time.perf_counter() - begin
    sampled = len(chosen) < len(images)
    return CheckReport(len(chosen), len(certified), total, prover.sub_boxes, len(falsified), seconds, sampled)


def same_inputs(run: Run, model: nn.Module, images: Tensor, labels: Tensor | Sequence[int]) -> Tensor:
    """The images in the run's dtype, if weights, images and labels are the run's."""
    if images.ndim != 4 or not images.dtype.is_floating_point:
        raise InputError(
            "images must be a floating-point batch [n, C, H, W]", got=f"{list(images.shape)}, {images.dtype}"
        )
    if weights_digest(model) != run.weights_sha256:
        raise CheckFailed("the network's weights are not those of the run (their sha256 differs)")
    if len(images) != len(run.records) or list(images.shape[1:]) != run.shape:
        raise CheckFailed(f"the run is about {len(run.records)} images of shape {run.shape}, not {list(images.shape)}")
    if run.semantics == "float32" and any(
        p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters()
    ):
        raise CheckFailed("the claim is about float32 evaluations, but the network's weights are not float32")
    stored = images.to(getattr(torch, run.dtype))
    given = torch.as_tensor(labels).tolist()
    for k, record in enumerate(run.records):
        if not torch.equal(stored[k].to(images.dtype), images[k]) or image_digest(stored[k]) != run.images_sha256[k]:
            raise CheckFailed("its pixels are not those of the run (their sha256 differs)", record.image)
        if k >= len(given) or given[k] != record.label:
            raise CheckFailed("its label is not that of the run", record.image)
    return stored


class Prover:
    """Bounds margins over (image, box) pairs in batches that fit into memory."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor, extra_splits: int) -> None:
        self.run, self.model, self.images, self.extra_splits = run, model, images, extra_splits
        self.labels = torch.tensor([record.label for record in run.records], device=images.device)
        self.sub_boxes = 0
        numbers = max(32 * images[0].numel(), largest_activation(model, images[:1])) * (len(run.transform.low) + 2)
        place = "cuda" if images.is_cuda else "cpu"
        self.pairs = min(MOST_PAIRS[place], max(1, MEMORY[place] // (4 * 8 * numbers)))

    def over(
        self, records: Sequence[Record], ends: Sequence[tuple[Any, Any]] | None, semantics: str
    ) -> tuple[Margins, Form]:
        """Margins of each record's image over its box (lows, highs), and the picture; without boxes, of the image itself."""
        k = torch.tensor([record.image - self.run.first for record in records], device=self.images.device)
        pictures = self.images[k]
        if ends is None:
            form = Form(torch.stack([pictures, torch.zeros_like(pictures)]))
        else:
            low, high = (pictures.new_tensor([end[side] for end in ends]) for side in (0, 1))  # float64, exactly
            form = transformed(pictures, self.run.transform, low, high)
        form = as_float32(form) if semantics == "float32" else form
        margins = bound_margins(self.model, Form(form.rows, form.unit), self.labels[k])
        if ends is None or all(low == high for low, high in ends):
            answers = same_function(self.model, form.centre, self.labels[k], margins)
            for record, same, finite in zip(records, *(side.tolist() for side in answers), strict=True):
                if not same and (finite or record.verdict != "misclassified"):
                    raise CheckFailed("the network answers otherwise to the picture than to its bounds", record.image)
        return margins, form

    def check_clean_answers(self, records: list[Record]) -> None:
        for part in batched(records, self.pairs):
            margins, _ = self.over(part, None, self.run.semantics)
            for record, lower, upper in zip(part, margins.lower.tolist(), margins.upper.tolist(), strict=True):
                if record.verdict == "misclassified" and lower > 0:
                    raise CheckFailed("it is said to be misclassified, but the network is right about it", record.image)
                if record.verdict != "misclassified" and upper < 0:
                    raise CheckFailed(f"it is said to be {record.verdict}, but it is misclassified", record.image)

    def check_counterexamples(self, records: list[Record]) -> None:
        """Inside the range, exactly; there the real-valued margin is below zero and not above the claimed bound."""
        low, high = self.run.transform.low, self.run.transform.high
        for part in batched(records, self.pairs):
            for record in part:
                if not all(a <= x <= b for a, x, b in zip(low, record.counterexample, high, strict=True)):
                    raise CheckFailed("its counterexample is outside the range", record.image)
            margins, _ = self.over(part, [(record.counterexample,) * 2 for record in part], "real")
            for record, lower, upper in zip(part, margins.lower.tolist(), margins.upper.tolist(), strict=True):
                if not upper < 0:
                    raise CheckFailed("its counterexample does not change the answer", record.image)
                if record.margin is None or not lower <= record.margin < 0:
                    raise CheckFailed("its counterexample has another margin than claimed", record.image)

    def check_margins(self, records: list[Record]) -> None:
        """A claimed lower bound must be positive, and not above the margin at any parameters."""
        for part in batched(records, max(1, self.pairs // POINTS)):
            repeated = [record for record in part for _ in range(POINTS)]
            points = []
            for record in part:
                cells = math.prod(record.grid)
                low, high = self.run.transform.low, self.run.transform.high
                points += [(list(low), list(low)), (list(high), list(high))]
                for k in range(POINTS - 2):
                    ends = edges(cell(k * (cells - 1) // (POINTS - 3), record.grid), self.run.transform)
                    middle = [(a + b) / 2 for a, b in zip(*ends, strict=True)]
                    points.append((middle, middle))
            margins, _ = self.over(repeated, points, self.run.semantics)
            for record, upper in zip(repeated, margins.upper.tolist(), strict=True):
                if record.margin is None or record.margin <= 0 or upper < record.margin:
                    raise CheckFailed("its margin is smaller than claimed", record.image)

    def prove(self, records: list[Record], progress: Progress | None) -> None:
        """Every box of every tiling has a positive margin: at once, or in halves of halves."""
        waiting = ((record, box) for record in records for box in boxes(record.grid, record.tree))
        stack: list[tuple[Record, Box, Box, int]] = []  # image, box of the tiling, part of it, halvings
        total, halved, done = sum(record.boxes for record in records), 0, 0
        while True:
            batch = [stack.pop() for _ in range(min(len(stack), self.pairs))]
            batch += [(record, box, box, 0) for record, box in take(waiting, self.pairs - len(batch))]
            if not batch:
                return
            ends = [edges(part, self.run.transform) for _, _, part, _ in batch]
            margins, pictures = self.over([item[0] for item in batch], ends, self.run.semantics)
            axes = best_axes(pictures, [item[2] for item in batch])
            for k, proved in enumerate((margins.lower > 0).tolist()):
                record, box, part, depth = batch[k]
                if proved:
                    self.sub_boxes += 1
                    done += 1
                elif depth >= self.extra_splits:
                    raise CheckFailed(
                        f"box {text(edges(box, self.run.transform))} of its tiling could not be re-proved", record.image
                    )
                else:
                    stack += [(record, box, half, depth + 1) for half in halves(part, axes[k])]
                    halved += 1
            if progress is not None:
                progress(min(max(done - halved, 0), total), total)


def best_axes(pictures: Form, parts: Sequence[Box]) -> list[int]:
    """Which parameter to halve: the one that moves pixels most; where remainders outweigh all slopes, the least divided one.

    This is about speed alone: halves along any parameter cover the same box.
    """
    slopes, rest = pictures.slopes.abs().flatten(2).sum(2), pictures.radius.flatten(1).sum(1)
    clear = (slopes.sum(0) > rest).tolist()
    pieces = [[number for _, number in part] for part in parts]
    widest = [numbers.index(min(numbers)) for numbers in pieces]
    return [axis if known else wide for axis, known, wide in zip(slopes.argmax(0).tolist(), clear, widest, strict=True)]


def largest_activation(model: nn.Module, image: Tensor) -> int:
    """How many numbers the widest module returns for one image."""
    sizes = [1]

    def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
        sizes.append(output.numel() if isinstance(output, Tensor) else 1)

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        model(image.to(next((p.dtype for p in model.parameters()), torch.float32)))
    except Exception as error:
        raise InputError("the network does not take the run's images", got=error) from error
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def batched(records: list[Record], size: int) -> Iterator[list[Record]]:
    return (records[k : k + size] for k in range(0, len(records), size))


def take(items: Iterator[Any], number: int) -> list[Any]:
    return [item for _, item in zip(range(number), items, strict=False)]


def text(ends: tuple[list[float], list[float]]) -> str:
    return " x ".join(f"[{low:.10g}, {high:.10g}]" for low, high in zip(*ends, strict=True))
