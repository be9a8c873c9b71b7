"""Which misclassified images are wrong for certain: the run only evaluated them once, in the network's own precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tiltproof.certify import Verdict
from tiltproof.certify.attack import Attacker
from tiltproof.certify.entry import check_inputs, proof_on
from tiltproof.report.finished import FinishedRun, check_images, check_model


def open_to_confirm(run: FinishedRun) -> list[int]:
    """The misclassified images, by their place in the run, if the range holds the untransformed image; else there is none."""
    if run.regression or not all(
        low <= 0 <= high for low, high in zip(run.transform.low, run.transform.high, strict=True)
    ):
        return []
    return [row for row, result in enumerate(run.results) if result.verdict is Verdict.MISCLASSIFIED]


def confirmed(run: FinishedRun, model: nn.Module, images: Tensor) -> set[int]:
    """Those of them whose margin has an upper bound below zero, in exact arithmetic, where all parameters are 0.

    ``model`` and ``images`` are compared with the run's digests first.
    """
    check_model(run, model)
    stored, rows = check_images(run, images, None), open_to_confirm(run)
    if not rows:
        return set()
    labels = torch.tensor([run.results[row].label for row in rows], device=stored.device)
    with proof_on(stored):
        inputs = check_inputs(model, stored[rows], labels, run.transform)
        with inputs.eval_mode():
            attacker = Attacker(inputs, 0, run.first)
            untransformed = torch.zeros(len(rows), len(run.transform.parts), dtype=torch.float64)
            attacker.confirm(torch.arange(len(rows)), untransformed)
    return {row for row, wrong in zip(rows, attacker.falsified.tolist(), strict=True) if wrong}
