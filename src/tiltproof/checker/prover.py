"""What re-proving verdicts and ranges has in common: pictures over boxes in batches that fit into memory, halved where they stay open."""

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

MEMORY = {"cpu": 2**28, "cuda": 2**33}  # bytes that the largest form of a batch may take, roughly
MOST_PAIRS = {"cpu": 256, "cuda": 4096}
Progress = Callable[[int, int], None]
Ends = tuple[list[float], list[float]]
Item = TypeVar("Item")
Record = TypeVar("Record", bound=Tiled)


class Prover(ABC, Generic[Record]):
    """Bounds a network over (image, box) pairs; what has to hold over a box is for `holds` to say."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor, extra_splits: int) -> None:
        self.run, self.model, self.images, self.extra_splits = run, model, images, extra_splits
        self.sub_boxes = 0
        numbers = max(32 * images[0].numel(), largest_activation(model, images[:1])) * (len(run.transform.low) + 2)
        place = "cuda" if images.is_cuda else "cpu"
        self.pairs = min(MOST_PAIRS[place], max(1, MEMORY[place] // (4 * 8 * numbers)))

    @abstractmethod
    def holds(self, records: Sequence[Record], ends: Sequence[Ends]) -> tuple[Tensor, Form]:
        """Whether what each record claims is proved [P] over its box, and the pictures over these boxes."""

    def places(self, records: Sequence[Record]) -> Tensor:
        """Which images the records are about."""
        return torch.tensor([record.image - self.run.first for record in records], device=self.images.device)

    def pictures(self, records: Sequence[Record], ends: Sequence[Ends] | None) -> Form:
        """Each record's image over its box (lows, highs); without boxes, the image itself."""
        images = self.images[self.places(records)]
        if ends is None:
            return Form(torch.stack([images, torch.zeros_like(images)]))
        low, high = (images.new_tensor([end[side] for end in ends]) for side in (0, 1))  # float64, exactly
        return transformed(images, self.run.transform, low, high)

    def prove(self, records: list[Record], progress: Progress | None) -> None:
        """What is claimed holds over every box of every tiling: at once, or in halves of halves."""
        waiting = ((record, box) for record in records for box in boxes(record.grid, record.tree))
        stack: list[tuple[Record, Box, Box, int]] = []  # image, box of the tiling, part of it, halvings
        total, halved, done = sum(record.boxes for record in records), 0, 0
        while True:
            batch = [stack.pop() for _ in range(min(len(stack), self.pairs))]
            batch += [(record, box, box, 0) for record, box in take(waiting, self.pairs - len(batch))]
            if not batch:
                return
            ends = [edges(part, self.run.transform) for _, _, part, _ in batch]
            held, pictures = self.holds([item[0] for item in batch], ends)
            axes = best_axes(pictures, [item[2] for item in batch])
            for k, proved in enumerate(held.tolist()):
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


def batched(records: list[Item], size: int) -> Iterator[list[Item]]:
    return (records[k : k + size] for k in range(0, len(records), size))


def take(items: Iterator[Any], number: int) -> list[Any]:
    return [item for _, item in zip(range(number), items, strict=False)]


def text(ends: Ends) -> str:
    return " x ".join(f"[{low:.10g}, {high:.10g}]" for low, high in zip(*ends, strict=True))
