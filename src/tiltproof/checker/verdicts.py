"""Check a classification run: the margin by which the label's output exceeds all others, at single points and over boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Run
from tiltproof.checker.form import Form
from tiltproof.checker.network import explained, outputs, own_answers
from tiltproof.checker.operations import sum_of_products
from tiltproof.checker.pixels import as_float32
from tiltproof.checker.prover import Ends, Progress, Prover, batched
from tiltproof.checker.records import VerdictRecord
from tiltproof.checker.tiling import cell, edges


class Margins(NamedTuple):
    """Bounds of min_j (f_label - f_j) over the other classes j, for each of P boxes."""

    lower: Tensor
    upper: Tensor


def bound_margins(model: nn.Module, images: Form, labels: Tensor, head: Sequence[str] = ()) -> Margins:
    output = outputs(model, images, 2, head)
    if not ((labels >= 0) & (labels < output.shape[1])).all():
        raise CheckFailed(f"a label is not one of the network's {output.shape[1]} classes")
    ahead = differences(output, labels)
    own = torch.nn.functional.one_hot(labels, output.shape[1]).bool()
    return Margins(*(side.masked_fill(own, math.inf).amin(1) for side in (ahead.lower(), ahead.upper())))


def differences(output: Form, labels: Tensor) -> Form:
    """Return f_label - f_j for every j [P, K].

    After a linear layer that is (W_label - W_j) x + (b_label - b_j), whose shared part cancels before it is bounded. Roundings
    (of the differences, of the products, and of a float32 evaluation of both outputs) are relative to |W_label| + |W_j|.
    """
    if output.made_by is None:
        label = Form(output.rows.gather(2, labels.expand(len(output.rows), -1)[:, :, None]), output.unit)
        return Form(label.rows, 0.0) - Form(output.rows, 0.0)
    x, weight, bias = output.made_by
    n = weight.shape[1]
    weight_differences, both = weight[labels][:, None] - weight, weight[labels].abs()[:, None] + weight.abs()

    def product(rows: Tensor, w: Tensor) -> Tensor:
        return (w @ rows.movedim(0, -1)).movedim(-1, 0)  # [P, K, n] @ [P, n, rows]

    biases = bias[labels].abs()[:, None] + bias.abs()
    return sum_of_products(x, product, weight_differences, bias[labels][:, None] - bias, n + 2, (both, biases))


# The claims of a classification run: clean answers, counterexamples and margins at single points, then every box.


POINTS = 5  # parameters at which a claimed margin is compared with the true one


class VerdictProver(Prover[VerdictRecord]):
    """Proves that over every box of a certified image the label's output is strictly larger than every other one."""

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
        margins, images = self.over(records, ends, self.run.semantics)
        return margins.lower > 0, images  # false for NaN and minus infinity

    def over(
        self, records: Sequence[VerdictRecord], ends: Sequence[Ends] | None, semantics: str
    ) -> tuple[Margins, Form]:
        """Return margins of each record's image over its box (lows, highs), and the image; without boxes, of the image itself."""
        form, labels = self.transformed_images(records, ends), self.labels[self.image_indices(records)]
        form = as_float32(form) if semantics == "float32" else form
        margins = bound_margins(self.model, Form(form.rows, form.unit), labels, self.run.head)
        if ends is None or all(low == high for low, high in ends):
            self.check_own_answers(records, form)
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
            for record, lower, upper in zip(part, margins.lower.tolist(), margins.upper.tolist(), strict=True):
                if record.verdict == "misclassified" and lower > 0:
                    raise CheckFailed("it is said to be misclassified, but the network is right about it", record.image)
                if record.verdict != "misclassified" and upper < 0:
                    raise CheckFailed(f"it is said to be {record.verdict}, but it is misclassified", record.image)

    def check_counterexamples(self, records: list[VerdictRecord]) -> None:
        """Check that each lies exactly inside the range, and that the real-valued margin there is negative and matches the claim."""
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
