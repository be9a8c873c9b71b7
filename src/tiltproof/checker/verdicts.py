"""A classification run again: clean answers, counterexamples and margins at single pictures, then every box."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Run
from tiltproof.checker.form import Form
from tiltproof.checker.margins import Margins, bound_margins
from tiltproof.checker.network import explained, outputs, own_answers
from tiltproof.checker.pixels import as_float32
from tiltproof.checker.proving import Ends, Progress, Prover, batched
from tiltproof.checker.tiling import cell, edges
from tiltproof.checker.verdict_records import VerdictRecord

POINTS = 5  # parameters at which a claimed margin is compared with the truth


class VerdictProver(Prover[VerdictRecord]):
    """Over every box of a certified image the label's output is strictly larger than every other one."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor, extra_splits: int) -> None:
        super().__init__(run, model, images, extra_splits)
        self.labels = torch.tensor([record.label for record in run.verdicts], device=images.device)

    def check(self, records: list[VerdictRecord], progress: Progress | None) -> None:
        self.check_clean_answers(records)
        self.check_counterexamples([record for record in records if record.verdict == "falsified"])
        certified = [record for record in records if record.verdict == "certified"]
        self.check_margins(certified)
        self.prove(certified, progress)

    def holds(self, records: Sequence[VerdictRecord], ends: Sequence[Ends]) -> tuple[Tensor, Form]:
        margins, pictures = self.over(records, ends, self.run.semantics)
        return margins.lower > 0, pictures  # NaN and minus infinity are not

    def over(
        self, records: Sequence[VerdictRecord], ends: Sequence[Ends] | None, semantics: str
    ) -> tuple[Margins, Form]:
        """Margins of each record's image over its box (lows, highs), and the picture; without boxes, of the image itself."""
        form, labels = self.pictures(records, ends), self.labels[self.places(records)]
        form = as_float32(form) if semantics == "float32" else form
        margins = bound_margins(self.model, Form(form.rows, form.unit), labels)
        if ends is None or all(low == high for low, high in ends):
            self.check_own_answers(records, form)
        return margins, form

    def check_own_answers(self, records: Sequence[VerdictRecord], pictures: Form) -> None:
        """The module itself must answer to single pictures what forms gave for the same points, each output up to its own rounding.

        A forward pass may treat a form otherwise than a tensor (by its type, by a branch, by state it keeps).
        """
        exact, rounded = (
            outputs(self.model, form, least=2) for form in (Form(pictures.rows, 0.0), as_float32(pictures))
        )
        answers = own_answers(self.model, pictures.centre)
        if answers is None:
            raise CheckFailed("the network has no fixed answer to a picture", records[0].image)
        bounded = torch.isfinite(exact.lower()) & torch.isfinite(exact.upper())
        same = (explained(answers, exact, rounded) | ~bounded).all(1).tolist()
        finite = torch.isfinite(answers).all(1).tolist()
        for record, right, numbers in zip(records, same, finite, strict=True):
            if not right and (numbers or record.verdict != "misclassified"):
                raise CheckFailed("the network answers otherwise to the picture than to its bounds", record.image)

    def check_clean_answers(self, records: list[VerdictRecord]) -> None:
        for part in batched(records, self.pairs):
            margins, _ = self.over(part, None, self.run.semantics)
            for record, lower, upper in zip(part, margins.lower.tolist(), margins.upper.tolist(), strict=True):
                if record.verdict == "misclassified" and lower > 0:
                    raise CheckFailed("it is said to be misclassified, but the network is right about it", record.image)
                if record.verdict != "misclassified" and upper < 0:
                    raise CheckFailed(f"it is said to be {record.verdict}, but it is misclassified", record.image)

    def check_counterexamples(self, records: list[VerdictRecord]) -> None:
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

    def check_margins(self, records: list[VerdictRecord]) -> None:
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
