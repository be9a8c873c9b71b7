"""Shared by the verdict and the range prover: bound images over boxes in memory-sized batches and bisect open boxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Run
from tiltproof.checker.form import Form
from tiltproof.checker.pixels import transformed
from tiltproof.checker.tiling import Box, Tiled, boxes, edges, halves
from tiltproof.errors import InputError

MEMORY = {"cpu": 2**28, "cuda": 2**33}  # approximate bytes of the largest form in a batch
MOST_PAIRS = {"cpu": 256, "cuda": 4096}
Progress = Callable[[int, int], None]
Ends = tuple[list[float], list[float]]
Item = TypeVar("Item")
Record = TypeVar("Record", bound=Tiled)


class Prover(ABC, Generic[Record]):
    """Bounds a network over (image, box) pairs; subclasses say in `holds` what must be proved over a box."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor, extra_splits: int) -> None:
        self.run, self.model, self.images, self.extra_splits = run, model, images, extra_splits
        self.sub_boxes = 0
        self.numbers = max(32 * images[0].numel(), largest_activation(model, images[:1]))
        numbers = self.numbers * (len(run.transform.low) + 2)
        device = "cuda" if images.is_cuda else "cpu"
        self.pairs = min(MOST_PAIRS[device], max(1, MEMORY[device] // (4 * 8 * numbers)))

    @abstractmethod
    def holds(self, records: Sequence[Record], ends: Sequence[Ends]) -> tuple[Tensor, Form]:
        """Return whether each record's claim is proved [P] over its box, and the transformed images over these boxes."""

    def part_to_prove(self, record: Record, box: Box) -> Ends | None:
        """Return what must be proved of a box of the record's tiling; None if nothing."""
        return edges(box, self.run.transform)

    def hopeless(self, record: Record, ends: Ends) -> bool:
        """Return whether no part of a box around its middle can be proved, however small."""
        return False

    def image_indices(self, records: Sequence[Record]) -> Tensor:
        """Return which images the records are about."""
        return torch.tensor([record.image - self.run.first for record in records], device=self.images.device)

    def transformed_images(self, records: Sequence[Record], ends: Sequence[Ends] | None) -> Form:
        """Return each record's image over its box (lows, highs); without boxes, the image itself."""
        images = self.images[self.image_indices(records)]
        if ends is None:
            return Form(torch.stack([images, torch.zeros_like(images)]))
        low, high = (images.new_tensor([end[side] for end in ends]) for side in (0, 1))  # float64, exactly
        return transformed(images, self.run.transform, low, high)

    def prove(self, records: list[Record], progress: Progress | None) -> None:
        """Prove the claims over every box of every tiling, bisecting boxes that stay open."""
        waiting = ((record, box) for record in records for box in boxes(record.grid, record.tree))
        stack: list[tuple[Record, Box, Box, int]] = []  # record, box of the tiling, part of it, bisections so far
        total, halved, done = sum(record.boxes for record in records), 0, 0
        while True:
            batch = [stack.pop() for _ in range(min(len(stack), self.pairs))]
            batch += [(record, box, box, 0) for record, box in take(waiting, self.pairs - len(batch))]
            if not batch:
                return
            parts = [self.part_to_prove(record, part) for record, _, part, _ in batch]
            count = len(batch)
            batch = [item for item, ends in zip(batch, parts, strict=True) if ends is not None]
            done += count - len(batch)
            if not batch:
                continue
            ends = [part for part in parts if part is not None]
            held, images = self.holds([item[0] for item in batch], ends)
            axes = best_axes(images, [item[2] for item in batch])
            for k, proved in enumerate(held.tolist()):
                record, box, part, depth = batch[k]
                if proved:
                    self.sub_boxes += 1
                    done += 1
                # without a parameter there is nothing to bisect
                elif depth >= self.extra_splits or not part or self.hopeless(record, ends[k]):
                    raise CheckFailed(
                        f"box {text(edges(box, self.run.transform))} of its tiling could not be re-proved", record.image
                    )
                else:
                    stack += [(record, box, half, depth + 1) for half in halves(part, axes[k])]
                    halved += 1
            if progress is not None:
                progress(min(max(done - halved, 0), total), total)


def best_axes(images: Form, parts: Sequence[Box]) -> list[int]:
    """Choose the parameter to bisect: the one with the largest pixel slopes or, if remainders dominate, the least divided one.

    This affects speed alone: the halves along any parameter cover the same box.
    """
    if not len(images.slopes):
        return [0 for _ in parts]
    slopes, rest = images.slopes.abs().flatten(2).sum(2), images.radius.flatten(1).sum(1)
    clear = (slopes.sum(0) > rest).tolist()
    pieces = [[number for _, number in part] for part in parts]
    widest = [numbers.index(min(numbers)) for numbers in pieces]
    return [axis if known else wide for axis, known, wide in zip(slopes.argmax(0).tolist(), clear, widest, strict=True)]


def largest_activation(model: nn.Module, image: Tensor) -> int:
    """Return how many numbers the largest module output has for one image."""
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


def batched(records: list[Item], size: int) -> Iterator[list[Item]]:
    return (records[k : k + size] for k in range(0, len(records), size))


def take(items: Iterator[Any], number: int) -> list[Any]:
    return [item for _, item in zip(range(number), items, strict=False)]


def text(ends: Ends) -> str:
    return " x ".join(f"[{low:.10g}, {high:.10g}]" for low, high in zip(*ends, strict=True))
