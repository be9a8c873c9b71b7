"""Check a classification run: the margin by which the label's output exceeds all others, at single points and over boxes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tiltproof.checker import deep
from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Run
from tiltproof.checker.form import Form
from tiltproof.checker.kept import Bounds, Kept, bound_kept, differences
from tiltproof.checker.long_pixels import long_images
from tiltproof.checker.network import coarse, explained, outputs, own_answers
from tiltproof.checker.noise import followed, noisy, pushed, read_perturbation
from tiltproof.checker.pixels import as_float32
from tiltproof.checker.polynomials import polynomial_images
from tiltproof.checker.prover import Ends, Progress, Prover, batched
from tiltproof.checker.records import VerdictRecord
from tiltproof.checker.tiling import Box, cell, edges, within

FAR = 30.0
"""If a box has a bound this many times a margin below zero, the network is too deep for radii."""
NEAR = 0.1
"""Likewise if the two bounds of a point differ by more than this."""
MOST_CROSSINGS = 64
MOST_BYTES = 2**31
"""Of the largest form of a box whose pixels have symbols of their own."""


def bound_margins(
    model: nn.Module,
    images: Form,
    labels: Tensor,
    head: Sequence[str] = (),
    kept: Kept | None = None,
    numbers: Tensor | None = None,
) -> Bounds:
    """Bound min_j (f_label - f_j) over the other classes j, or the margin of what else the run kept of these images."""
    output = outputs(model, images, 2, head)
    if not ((labels >= 0) & (labels < output.shape[1])).all():
        raise CheckFailed(f"a label is not one of the network's {output.shape[1]} classes")
    if kept is not None and kept.rule != "own":
        return bound_kept(kept, output, labels, torch.zeros_like(labels) if numbers is None else numbers)
    ahead = differences(output, labels)
    own = torch.nn.functional.one_hot(labels, output.shape[1]).bool()
    return Bounds(*(side.masked_fill(own, math.inf).amin(1) for side in (ahead.lower(), ahead.upper())))


# The claims of a classification run: clean answers, counterexamples and margins at single points, then every box.


POINTS = 5  # parameters at which a claimed margin is compared with the true one


class VerdictProver(Prover[VerdictRecord]):
    """Proves over every box of a certified image that the label's output is strictly larger than every other one, or what
    else the run kept."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor, extra_splits: int) -> None:
        super().__init__(run, model, images, extra_splits)
        self.labels = torch.tensor([record.label for record in run.verdicts], device=images.device)
        self.compared: set[int] = set()  # images whose answer has been compared with deep forms

    def check(self, records: list[VerdictRecord], progress: Progress | None) -> None:
        self.check_clean_answers(records)
        self.check_counterexamples([record for record in records if record.verdict == "falsified"])
        certified = [record for record in records if record.verdict == "certified"]
        self.check_margins(certified)
        self.check_reached([record for record in certified if record.reached is not None])
        self.prove([record for record in records if record.share > 0], progress)

    def part_to_prove(self, record: VerdictRecord, box: Box) -> Ends | None:
        return within(box, self.run.transform, record.share)

    def holds(self, records: Sequence[VerdictRecord], ends: Sequence[Ends]) -> tuple[Tensor, Form]:
        margins, images = self.over(records, ends, self.run.semantics, self.with_noise)
        held = margins.lower > 0  # false for NaN and minus infinity
        if self.run.transform.noise and self.numbers * (self.images[0].numel() + 2) * 8 < MOST_BYTES:
            for k in (~held).nonzero().flatten().tolist():
                again, _ = self.over([records[k]], [ends[k]], self.run.semantics, self.with_each_noise)
                held[k] = again.lower[0] > 0
        return held, images

    def hopeless(self, record: VerdictRecord, ends: Ends) -> bool:
        """Noise is not bisected: where it is too much for the middle of a box, it is for a part of the box."""
        if not self.run.transform.noise:
            return False
        middle = [(a + b) / 2 for a, b in zip(*ends, strict=True)]
        held, _ = self.holds([record], [(middle, middle)])
        return not bool(held[0])

    def with_noise(self, image: Form) -> Form:
        """Return all pictures that the claim is about: those of the transformed image with any noise."""
        return noisy(image, self.run.transform.noise) if self.run.transform.noise else image

    def with_each_noise(self, image: Form) -> Form:
        return followed(self.with_noise(image))

    def deeply(self, record: VerdictRecord, ends: Ends | None, image: Form) -> tuple[float, float]:
        """Bound the margin over one box, or at a point, by polynomials, lengths of what is left over and symbols for kinks
        (`deep`); infinite where that is not supported. ``image``: over that box.

        At a point, and so once for each image, the module's own answer must agree: a forward pass may treat these forms
        unlike a tensor.
        """
        point = ends is None or ends[0] == ends[1]
        if self.run.transform.noise and not point:
            return -math.inf, math.inf  # polynomials do not know noise
        rows = self.image_indices([record])
        if ends is not None and not point and record.image not in self.compared:
            middle = [(a + b) / 2 for a, b in zip(*ends, strict=True)]
            found = self.deeply(record, (middle, middle), self.transformed_images([record], [(middle, middle)]))
            if not all(map(math.isfinite, found)):
                return -math.inf, math.inf
            self.compared.add(record.image)
        if ends is not None and not self.run.transform.noise:
            low, high = (self.images.new_tensor([end]) for end in ends)
            polynomial = polynomial_images(self.images[rows], self.run.transform, low, high, MOST_CROSSINGS)
            if polynomial is None and not point:
                return -math.inf, math.inf
            image = image if polynomial is None else polynomial
        lower, upper = deep.margins(self.model, image, self.labels[rows], differences)
        if ends is not None and not self.run.transform.noise and not (upper - lower < NEAR if point else lower > 0):
            # rounding may be all that is in the way
            low, high = (self.images.new_tensor([end]) for end in ends)
            exact = long_images(self.images[rows], self.run.transform, low, high, MOST_CROSSINGS)
            if exact is not None:
                more = deep.margins(self.model, exact, self.labels[rows], differences)
                lower, upper = max(lower, more[0]), min(upper, more[1])
        if point and not (lower == -math.inf and upper == math.inf):
            answers, own = own_answers(self.model, image.center), record.label
            if answers is None:
                raise CheckFailed("the network has no fixed answer to an image", record.image)
            ahead = answers[:, own : own + 1] - answers
            ahead[:, own] = math.inf
            far = 2 * float(coarse(answers))
            if not lower - far <= float(ahead.min()) <= upper + far:
                raise CheckFailed("the network's answer to the image lies outside its bounds", record.image)
        return lower, upper

    def over(
        self,
        records: Sequence[VerdictRecord],
        ends: Sequence[Ends] | None,
        semantics: str,
        moved: Callable[[Form], Form] | None = None,
    ) -> tuple[Bounds, Form]:
        """Return margins of each record's image over its box (lows, highs), and the image; without boxes, of the image itself.

        ``moved``: what noise makes of the transformed images; without it there is none.
        """
        numbers = self.image_indices(records)
        form, labels = self.transformed_images(records, ends), self.labels[numbers]
        form = form if moved is None else moved(form)
        form = as_float32(form) if semantics == "float32" else form
        margins = bound_margins(self.model, Form(form.rows, form.unit), labels, self.run.head, self.run.keep, numbers)
        # a box of a claim about noise alone has no sides either, but is no point
        whole = moved in (self.with_noise, self.with_each_noise)
        points = ends is None or (not whole and all(low == high for low, high in ends))
        if points:
            self.check_own_answers(records, form)
        keeps_label = self.run.keep is None or self.run.keep.rule == "own"
        if semantics == "real" and keeps_label and not self.run.head and (points or not self.run.transform.noise):
            for k, record in enumerate(records):
                wide = FAR * (1 + abs(record.margin or 0.0))
                place = None if ends is None else ends[k]
                if place is None or place[0] == place[1]:
                    missing = not float(margins.upper[k] - margins.lower[k]) < NEAR  # also true for NaN
                else:
                    missing = not float(margins.lower[k]) > -wide
                if missing:
                    lower, upper = self.deeply(record, place, Form(form.rows[:, k : k + 1]))
                    margins.lower[k] = max(lower, float(margins.lower[k]))  # the first one where the other is a NaN
                    margins.upper[k] = min(upper, float(margins.upper[k]))
        return margins, form

    def check_own_answers(self, records: Sequence[VerdictRecord], images: Form) -> None:
        """Check that the module's own answers to single images agree with the forms, each output up to its own rounding.

        A forward pass may treat a form unlike a tensor (by its type, by a branch, by state it keeps).
        """
        head = self.run.head
        exact, rounded = (outputs(self.model, form, 2, head) for form in (Form(images.rows, 0.0), as_float32(images)))
        answers = own_answers(self.model, images.center, head)
        if answers is None:
            raise CheckFailed("the network has no fixed answer to an image", records[0].image)
        bounded = torch.isfinite(exact.lower()) & torch.isfinite(exact.upper())
        same = (explained(answers, exact, rounded) | ~bounded).all(1).tolist()
        finite = torch.isfinite(answers).all(1).tolist()
        for record, right, numbers in zip(records, same, finite, strict=True):
            if not right and (numbers or record.verdict != "misclassified"):
                raise CheckFailed("the network's answer to the image lies outside its bounds", record.image)

    def check_clean_answers(self, records: list[VerdictRecord]) -> None:
        for part in batched(records, self.pairs):
            margins, _ = self.over(part, None, self.run.semantics)
            if self.run.keep is not None and self.run.keep.rule == "own":
                self.check_own(part, margins)
            for record, lower, upper in zip(part, margins.lower.tolist(), margins.upper.tolist(), strict=True):
                if record.verdict == "misclassified" and lower > 0:
                    raise CheckFailed("it is said to be misclassified, but the network is right about it", record.image)
                if record.verdict != "misclassified" and upper < 0:
                    raise CheckFailed(f"it is said to be {record.verdict}, but it is misclassified", record.image)

    @staticmethod
    def check_own(records: list[VerdictRecord], margins: Bounds) -> None:
        """Check that the labels are the network's answers to the untransformed images, wherever something is claimed."""
        for record, lower in zip(records, margins.lower.tolist(), strict=True):
            if record.verdict == "misclassified":
                raise CheckFailed(
                    "it is said to be misclassified, but the run keeps the network's own answers", record.image
                )
            if record.verdict != "unknown" and not lower > 0:
                raise CheckFailed("its label could not be proved to be the network's own answer", record.image)

    def check_counterexamples(self, records: list[VerdictRecord]) -> None:
        """Check that each lies exactly inside the range, and that the real-valued margin there is negative and matches the claim."""
        low, high = self.run.transform.low, self.run.transform.high
        for part in batched(records, self.pairs):
            for record in part:
                if not all(a <= x <= b for a, x, b in zip(low, record.counterexample, high, strict=True)):
                    raise CheckFailed("its counterexample is outside the range", record.image)
            push = functools.partial(self.moved_as_said, part) if self.run.transform.noise else None
            margins, _ = self.over(part, [(record.counterexample,) * 2 for record in part], "real", push)
            for record, lower, upper in zip(part, margins.lower.tolist(), margins.upper.tolist(), strict=True):
                if not upper < 0:
                    raise CheckFailed("its counterexample does not change the answer", record.image)
                if record.margin is None or not lower <= record.margin < 0:
                    raise CheckFailed("its counterexample has another margin than claimed", record.image)

    def moved_as_said(self, records: Sequence[VerdictRecord], images: Form) -> Form:
        """Move the pixels of counterexamples as their records say; of those that say nothing, none."""
        shape = tuple(images.shape[1:])
        rows = images.rows.clone()
        for k, record in enumerate(records):
            if record.perturbation is not None:
                try:
                    up = read_perturbation(record.perturbation, shape).to(rows.device)
                except CheckFailed as error:
                    raise CheckFailed(error.what, record.image) from None
                rows[:, k : k + 1] = pushed(Form(images.rows[:, k : k + 1]), self.run.transform.noise, up[None]).rows
        return Form(rows)

    def check_margins(self, records: list[VerdictRecord]) -> None:
        """Check that a claimed lower bound is positive and not above the margin at any of a few parameters."""
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

    def check_reached(self, records: list[VerdictRecord]) -> None:
        """Check that the real-valued margin is at most as claimed, and at least the proved one, at the parameters of each."""
        for part in batched(records, self.pairs):
            points = [([*record.reached_at], [*record.reached_at]) for record in part]
            margins, _ = self.over(part, points, "real")
            for record, lower, upper in zip(part, margins.lower.tolist(), margins.upper.tolist(), strict=True):
                if not lower <= (record.reached or 0.0) or not upper >= (record.margin or 0.0):
                    raise CheckFailed("its margin is another one than claimed where it is least", record.image)
