"""Check a run of uint8 semantics: every 8-bit picture that a range of one parameter makes of an image is evaluated again.

Each box of the record's tiling is cut in two again and again. Over each piece `single_pixels` tells which whole numbers every pixel may be
rounded to; where that is one number, it is so on all smaller pieces. A piece with few pixels of two possible numbers is done when the
program's margins for all combinations exceed what the record says. Where the program is a network that the checker can bound, pieces
whose bounds exceed that need no evaluation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Run
from tiltproof.checker.form import Form
from tiltproof.checker.kept import bound_kept, differences
from tiltproof.checker.picture_bounds import PictureBounds
from tiltproof.checker.prover import Progress, text
from tiltproof.checker.records import VerdictRecord
from tiltproof.checker.single_pixels import Units
from tiltproof.checker.tiling import boxes, edges
from tiltproof.errors import InputError

BOXES, PICTURES, PIECES, WAITING = 32, 256, 4096, 2**12
"""Boxes of a tiling that are checked together, pictures in a batch, pieces that are bounded together, and pictures that wait for their
evaluation."""
VAIN = 2
"""Cuts that did not help, after which equal numbers are looked for: they cross a threshold together."""
POINTS = 8
"""Pictures that are evaluated alone and with others."""
ROUNDINGS, NOISE, SHARE = 64, 16, 1e-3
"""How far a margin may be from the one in a record: so many units of the precision times the largest output, times of what batches were
seen to change, or this share of it. A tolerance is no measure of that: it is what the record says."""
FEW, MANY, LAST = 2, 12, 52
"""Pixels of two numbers that a piece may have; the most where several cuts have not reduced their number; and the last cut."""


class Called(nn.Module):
    """A function as a module, with its source among the buffers, as a run folder knows it."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        import inspect

        super().__init__()
        self.function = function
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            source = getattr(function, "__qualname__", type(function).__qualname__)
        self.register_buffer("source", torch.tensor(list(source.encode()), dtype=torch.uint8))

    def forward(self, images: Tensor) -> Tensor:
        answers = self.function(images)
        return answers if isinstance(answers, Tensor) else torch.as_tensor(answers, device=images.device)


def as_module(model: Any) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise InputError("the model must be a torch.nn.Module, or the program of the run", got=type(model).__name__)
    return Called(model)


class Piece(NamedTuple):
    """Parts of boxes [P] with the numbers of their pictures that are known [P, n], how many numbers had two values in the part before, and
    how many cuts did not change that; and the pixels that are not known, by part."""

    low: Tensor
    high: Tensor
    numbers: Tensor
    had: Tensor
    vain: Tensor
    part: Tensor
    pixel: Tensor
    cuts: int

    def some(self, which: Tensor) -> Piece:
        """Return the parts with these numbers."""
        place = torch.full((len(self.low),), -1)
        place[which] = torch.arange(len(which))
        mine = place[self.part] >= 0
        low, high, numbers, had, vain = (each[which] for each in self[:5])
        return Piece(low, high, numbers, had, vain, place[self.part][mine], self.pixel[mine], self.cuts)

    def cut(self) -> Piece:
        """Return both halves of every part; they share their end."""
        middle = (self.low + self.high) / 2
        return Piece(
            torch.cat([self.low, middle]),
            torch.cat([middle, self.high]),
            self.numbers.repeat(2, 1),
            self.had.repeat(2),
            self.vain.repeat(2),
            torch.cat([self.part, self.part + len(self.low)]),
            self.pixel.repeat(2),
            self.cuts + 1,
        )


class PictureProver:
    """Evaluates the program on all pictures of certified images, and on the one of each counterexample."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor) -> None:
        self.run, self.model, self.images = run, model, images.cpu()
        self.device, self.sub_boxes = images.device, 0
        self.bounds = PictureBounds(run, model, images)
        kinds = {p.dtype for p in (*model.parameters(), *model.buffers()) if p.is_floating_point()}
        dtype = torch.float64 if kinds == {torch.float64} else torch.float32
        self.shades = torch.tensor([k / 255 for k in range(256)], dtype=torch.float64).to(dtype)
        self.eps, self.largest = max(torch.finfo(kind).eps for kind in (*kinds, dtype)), 0.0

    def check(self, records: list[VerdictRecord], progress: Progress | None) -> None:
        self.check_clean_answers(records)
        for record in records:
            if record.verdict == "falsified":
                self.check_counterexample(record)
        certified = [record for record in records if record.verdict == "certified"]
        done, total = 0, sum(record.boxes for record in certified)
        for record in certified:
            for part in self.prove(record):
                done += part
                if progress is not None:
                    progress(done, total)

    def units(self, record: VerdictRecord) -> Units:
        return Units(self.images[record.image - self.run.first], self.run.transform)

    def margins(self, record: VerdictRecord, pictures: Tensor, size: int = PICTURES) -> Tensor:
        """Return the margins of pictures [P, C, H, W] of whole numbers; NaN where an answer is not finite."""
        answers = []
        for some in pictures.split(size):
            found = self.model(self.shades[some.long()].to(self.device)).detach()
            if found.is_floating_point():
                self.eps = max(self.eps, torch.finfo(found.dtype).eps)
            found = found.cpu().double()
            found = found[:, None] if found.ndim == 1 else found
            if found.ndim != 2 or len(found) != len(some) or found.shape[1] < 2:
                raise InputError("the program must return one row of at least two scores for each image")
            answers.append(found)
        output = torch.cat(answers)
        self.largest = float(output.nan_to_num(0.0, 0.0, 0.0).abs().amax())
        labels = torch.full((len(output),), record.label)
        if record.label >= output.shape[1]:
            raise CheckFailed("its label is not one of the program's classes", record.image)
        form, kept = Form(torch.stack([output, torch.zeros_like(output)])), self.run.keep
        if kept is not None and kept.rule != "own":
            lower = bound_kept(kept, form, labels, torch.full_like(labels, record.image - self.run.first)).lower
        else:
            own = torch.nn.functional.one_hot(labels, output.shape[1]).bool()
            lower = differences(form, labels).lower().masked_fill(own, math.inf).amin(1)
        return torch.where(output.isfinite().all(1), lower, math.nan)

    def room(self, record: VerdictRecord, noise: float = 0.0) -> float:
        """Return how far margins may be from what a record says, after pictures of it were evaluated; never more than its tolerance.
        ``noise``: what the size of batches was seen to change."""
        seen = max(ROUNDINGS * self.eps * self.largest, NOISE * noise, SHARE * abs(record.margin or 0.0))
        return min(record.tolerance, seen)

    def check_clean_answers(self, records: list[VerdictRecord]) -> None:
        """Check which rounded, untransformed images the program is right about, and that answers do not depend on batches."""
        own = self.run.keep is not None and self.run.keep.rule == "own"
        for record in records:
            picture = (self.images[record.image - self.run.first] * 255).round().clamp(0, 255)[None]
            (margin,) = self.margins(record, picture).tolist()
            if record.verdict == "misclassified" and (own or margin > self.room(record)):
                raise CheckFailed("it is said to be misclassified, but the program is right about it", record.image)
            if record.verdict in ("certified", "falsified") and not margin > 0:
                raise CheckFailed(f"it is said to be {record.verdict}, but it is misclassified", record.image)

    def check_counterexample(self, record: VerdictRecord) -> None:
        (low,), (high,) = self.run.transform.low, self.run.transform.high
        (point,) = record.counterexample
        if not low <= point <= high:
            raise CheckFailed("its counterexample is outside the range", record.image)
        units, ends = self.units(record), torch.tensor([point], dtype=torch.float64)
        every = torch.arange(units.count)
        least, greatest = units.rounded(ends, ends, torch.zeros_like(every), every)
        if not torch.equal(least, greatest):
            raise CheckFailed("the 8-bit picture of its counterexample is not certain", record.image)
        (margin,) = self.margins(record, units.pictures(least.T.reshape(1, -1))).tolist()
        if not margin < 0:
            raise CheckFailed("its counterexample does not change the answer", record.image)
        if record.margin is None or not abs(margin - record.margin) <= max(self.room(record), SHARE * abs(margin)):
            raise CheckFailed("its counterexample has another margin than claimed", record.image)

    def prove(self, record: VerdictRecord) -> Iterator[int]:
        """Prove a certified image, some boxes of its tiling at a time."""
        if record.margin is None or not record.margin > record.tolerance:
            raise CheckFailed("its margin does not exceed its tolerance", record.image)
        units, waiting, (low,), (high,) = self.units(record), boxes(record.grid, record.tree), *self._range()
        points = torch.linspace(low, high, POINTS, dtype=torch.float64)
        noise = self.compare(record, units.pictures(torch.cat([units.first_numbers(point) for point in points])))
        needed = max(record.tolerance / 2, record.margin - self.room(record, noise))
        compared = False
        while some := list(itertools.islice(waiting, BOXES)):
            ends = [edges(box, self.run.transform) for box in some]
            lows, highs = (torch.tensor([end[side][0] for end in ends], dtype=torch.float64) for side in (0, 1))
            lows, highs, proved = self.bounds.open(record, lows, highs, needed)
            self.sub_boxes += proved
            for pictures in self.over(record, units, lows, highs, needed) if len(lows) else ():
                if not compared:
                    self.compare(record, pictures[:POINTS])
                    compared = True
            yield len(some)

    def _range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return tuple(self.run.transform.low), tuple(self.run.transform.high)

    def compare(self, record: VerdictRecord, pictures: Tensor) -> float:
        """Check that the tolerance is not below what the size of batches changes, and return that."""
        pictures = pictures.repeat(-(-PICTURES // 8 // len(pictures)), 1, 1, 1)
        alone, together = self.margins(record, pictures[:8], 1), self.margins(record, pictures)[:8]
        noise = float((alone - together).abs().amax())
        if not noise <= record.tolerance + 1e-300:  # also a NaN
            raise CheckFailed("its tolerance is less than evaluations differ from batch to batch", record.image)
        return noise

    def over(self, record: VerdictRecord, units: Units, low: Tensor, high: Tensor, needed: float) -> Iterator[Tensor]:
        """Prove the claim for every picture over these boxes, and yield the pictures."""
        every, count = torch.arange(units.count), len(low)
        numbers = torch.zeros(count, units.rows * units.count, dtype=torch.uint8)
        none = torch.zeros(count, dtype=torch.int64)
        part, pixel = torch.arange(count).repeat_interleave(units.count), every.repeat(count)
        stack = [Piece(low, high, numbers, none + numbers.shape[1] + 1, none, part, pixel, 0)]
        ready: list[tuple[Piece, Tensor, list[tuple[Tensor, Tensor]]]] = []
        waiting = 0  # pictures of pieces that are evaluated together
        urgent: list[
            Piece
        ] = []  # halves of pieces that were lost: evaluated at once, so that a wrong picture is found soon
        hurry = False
        while stack or urgent or ready:
            if ready and (hurry or waiting >= WAITING or not (stack or urgent)):
                pictures = torch.cat([every for _, _, found in ready for _, every in found])
                kinds, which = different(pictures)
                held = (self.margins(record, units.pictures(kinds)) > needed)[which]  # false for NaN
                yield units.pictures(kinds)
                for piece, lost, found in ready:
                    for members, every in found:
                        mine, held = held[: len(every)], held[len(every) :]
                        lost[members[~mine.view(len(members), -1).all(1)]] = True
                    self.sub_boxes -= int(lost.sum())
                    urgent += self.cut(record, piece, lost)
                ready, waiting, hurry = [], 0, False
                continue
            todo, hurry = urgent or stack, bool(urgent)
            piece = todo.pop()
            largest = max(1, 2**20 // units.count) if not piece.cuts else max(16, PIECES >> max(0, piece.cuts - 8))
            if len(piece.low) > largest:
                order = torch.arange(len(piece.low))
                todo += [piece.some(order[largest:]), piece.some(order[:largest])]
                continue
            piece, open_ = look(units, piece)
            few = (FEW + piece.vain).clamp(max=MANY)
            lost = ~open_.ready(few)
            found = [(members, every.flatten(0, 1)) for members, every in open_.pictures(piece, few)]
            done = piece.some((~lost).nonzero().flatten())
            self.sub_boxes += len(done.low)
            todo += self.cut(record, piece, lost)
            if found:
                place = (~lost).cumsum(0) - 1
                ready.append((done, torch.zeros(len(done.low), dtype=torch.bool), [(place[m], f) for m, f in found]))
                waiting += sum(len(pictures) for _, pictures in found)

    def cut(self, record: VerdictRecord, piece: Piece, lost: Tensor) -> list[Piece]:
        """Return the halves of the parts that are lost, and count the others as done; raise if one cannot be halved."""
        rest = piece.some(lost.nonzero().flatten())
        middle = (rest.low + rest.high) / 2
        last = (middle <= rest.low) | (middle >= rest.high) | torch.tensor(rest.cuts >= LAST)
        if bool(last.any()):
            k = int(last.int().argmax())
            ends = [float(rest.low[k])], [float(rest.high[k])]
            raise CheckFailed(f"a picture in {text(ends)} could not be proved", record.image)
        return [rest.cut()] if len(rest.low) else []


def different(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different ones of these pictures [P, n], and which of them each is [P]."""
    rows = pictures.numpy()
    whole = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel()  # compared byte by byte
    _, first, which = np.unique(whole, return_index=True, return_inverse=True)
    return pictures[torch.from_numpy(first)], torch.from_numpy(which.ravel())


class Open(NamedTuple):
    """Numbers of pictures that have two possible values: the part of each, in order, its place in a picture, the lower value, and which
    choice between two values it follows. ``many``: how many choices each part has; ``wide``: parts with numbers of more than two."""

    part: Tensor
    place: Tensor
    lower: Tensor
    choice: Tensor
    many: Tensor
    wide: Tensor

    def ready(self, few: Tensor) -> Tensor:
        return (self.many <= few) & ~self.wide

    def pictures(self, piece: Piece, few: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield numbers of parts that are ready [M], and all their pictures [M, 2^k, n]."""
        ready = self.ready(few)
        for size in range(MANY + 1):
            all_members = (ready & (self.many == size)).nonzero().flatten()
            for members in all_members.split(max(1, PICTURES >> size)) if len(all_members) else ():
                chosen = torch.zeros(len(ready), dtype=torch.bool)
                chosen[members] = True
                mine = chosen[self.part]
                bits = torch.tensor(list(itertools.product((0, 1), repeat=size)), dtype=torch.uint8).view(
                    1 << size, size
                )
                values = self.lower[mine][:, None] + bits[:, self.choice[mine]].T
                pictures = piece.numbers[members][:, None].repeat(1, 1 << size, 1)
                row = (chosen.cumsum(0) - 1)[self.part[mine]]
                pictures[row[:, None], torch.arange(1 << size), self.place[mine][:, None]] = values
                yield members, pictures


def look(units: Units, piece: Piece) -> tuple[Piece, Open]:
    """Bound the pixels that are not known, and write down those that are."""
    least, greatest = units.rounded(piece.low, piece.high, piece.part, piece.pixel)
    place = piece.pixel[:, None] + units.count * torch.arange(units.rows)
    numbers = piece.numbers.clone()
    numbers[piece.part[:, None].expand_as(place), place] = least.to(torch.uint8)
    several = greatest > least
    wide = torch.zeros(len(piece.low), dtype=torch.bool)
    wide[piece.part[(greatest > least + 1).any(1)]] = True
    part = piece.part[:, None].expand_as(place)[several]
    many = part.bincount(minlength=len(piece.low))
    vain = torch.where(many < piece.had, 0, piece.vain + 1)
    place, lower = place[several], least[several].to(torch.uint8)
    begin = many.cumsum(0) - many
    choice, choices = torch.arange(len(part)) - begin[part], many.clone()
    crowd = ((many > FEW + vain) | (many > MANY)) & (vain >= VAIN) & ~wide
    for k in crowd.nonzero().flatten().tolist():
        mine = slice(int(begin[k]), int(begin[k] + many[k]))
        choice[mine] = units.choices(float(piece.low[k]), float(piece.high[k]), place[mine], lower[mine])
        choices[k] = int(choice[mine].max()) + 1
    left = several.any(1)
    piece = piece._replace(numbers=numbers, had=many, vain=vain, part=piece.part[left], pixel=piece.pixel[left])
    return piece, Open(part, place, lower, choice, choices, wide)
