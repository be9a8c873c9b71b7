"""Check a regression run: predictions and inner ranges at single points, then the range of every output over every box."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Run
from tiltproof.checker.form import Form
from tiltproof.checker.network import explained, outputs, own_answers
from tiltproof.checker.pixels import as_float32
from tiltproof.checker.prover import Ends, Progress, Prover, batched
from tiltproof.checker.records import RangeRecord


class RangeProver(Prover[RangeRecord]):
    """Proves that over every box all outputs lie in the claimed range, under the claim's semantics."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor, extra_splits: int) -> None:
        super().__init__(run, model, images, extra_splits)
        ends = [[record.lower for record in run.ranges], [record.upper for record in run.ranges]]
        self.claimed = torch.tensor(ends, dtype=torch.float64, device=images.device)  # [2, n, K]

    def check(self, records: list[RangeRecord], progress: Progress | None) -> None:
        self.check_predictions(records)
        self.check_reached(records)
        self.prove(records, progress)

    def outputs(self, images: Form) -> Form:
        output, expected = outputs(self.model, images), self.claimed.shape[2]
        if output.shape[1] != expected:
            raise CheckFailed(f"the run is about {expected} outputs, but the network has {output.shape[1]}")
        return output

    def holds(self, records: Sequence[RangeRecord], ends: Sequence[Ends]) -> tuple[Tensor, Form]:
        """Check claimed lower <= own lower bound <= every output <= own upper bound <= claimed upper.

        NaN compares false, so it proves nothing; an infinite end claims nothing and needs no bound.
        """
        images = self.transformed_images(records, ends)
        form = as_float32(images) if self.run.semantics == "float32" else images
        output = self.outputs(Form(form.rows, form.unit))
        low, high = self.claimed[:, self.image_indices(records)]
        lower, upper = output.lower(), output.upper()
        for record, outside in zip(records, ((upper < low) | (lower > high)).any(1).tolist(), strict=True):
            if (
                outside
            ):  # upper bound < claimed lower, or the mirror image: the claim is false at every parameter of the box
                raise CheckFailed("an output leaves the range that is claimed for it", record.image)
        held = ((lower >= low) | low.isneginf()) & ((upper <= high) | high.isposinf())
        return held.all(1), images

    def at(self, records: Sequence[RangeRecord], points: Sequence[list[float]] | None) -> tuple[Form, Form]:
        """Return real-valued outputs at each record's image, transformed with these parameters or not, and float32 bounds there.

        The module's own answer to the image must agree with the forms: a forward pass may treat a form unlike a tensor (by its
        type, by a branch, by state it keeps).
        """
        images = self.transformed_images(records, None if points is None else [(point, point) for point in points])
        exact, rounded = self.outputs(Form(images.rows, 0.0)), self.outputs(as_float32(images))
        if not (torch.isfinite(exact.lower()) & torch.isfinite(exact.upper())).all():
            raise CheckFailed("the network's outputs have no finite bounds, not even for one image", records[0].image)
        answers = own_answers(self.model, images.center)
        same = [False] * len(records) if answers is None else explained(answers, exact, rounded).all(1).tolist()
        for record, right in zip(records, same, strict=True):
            if not right:
                raise CheckFailed("the network's answer to the image lies outside its bounds", record.image)
        return exact, rounded

    def check_predictions(self, records: list[RangeRecord]) -> None:
        """Check that a float32 evaluation of the untransformed image can produce each prediction."""
        for part in batched(records, self.pairs):
            exact, rounded = self.at(part, None)
            given = exact.center.new_tensor([record.prediction for record in part])
            for record, right in zip(part, explained(given, exact, rounded).all(1).tolist(), strict=True):
                if not right:
                    raise CheckFailed("its prediction is not the network's answer to the image", record.image)

    def check_reached(self, records: list[RangeRecord]) -> None:
        """Refute inner ranges: an output is at most inner_lower at lowest_at, and at least inner_upper at highest_at.

        Where f <= inner_lower, own lower bound <= f <= inner_lower; so an inner_lower below the own lower bound refutes the claim,
        and likewise for inner_upper. A wrong claim that stays inside the own bounds is off by at most their width, that of rounding.
        """
        asked = [(record, k) for record in records for k in range(len(record.prediction))]
        for part in batched(asked, max(1, self.pairs // 2)):
            owners = [record for record, _ in part]
            asked_outputs = torch.tensor([k for _, k in part], device=self.images.device)[:, None]
            lower, _ = self.at(owners, [record.lowest_at[k] for record, k in part])
            upper, _ = self.at(owners, [record.highest_at[k] for record, k in part])
            least, most = lower.lower().gather(1, asked_outputs)[:, 0], upper.upper().gather(1, asked_outputs)[:, 0]
            for (record, k), low, high in zip(part, least.tolist(), most.tolist(), strict=True):
                if not low <= record.inner_lower[k]:
                    raise CheckFailed(f"output {k} is not as low as claimed at its lowest_at", record.image)
                if not high >= record.inner_upper[k]:
                    raise CheckFailed(f"output {k} is not as high as claimed at its highest_at", record.image)
