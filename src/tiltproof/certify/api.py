"""`certify`: attack first, then prove; a verdict per image."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tiltproof.bounds import METHODS
from tiltproof.certify.attack import Attacker
from tiltproof.certify.entry import check_inputs
from tiltproof.certify.memory import Halving, pairs_at_a_time
from tiltproof.certify.prover import Prover
from tiltproof.certify.search import OPEN, Search
from tiltproof.certify.start import starting_grid
from tiltproof.certify.tiling import Tiling
from tiltproof.certify.verdict import Budget, Certificate, Progress, Verdict
from tiltproof.errors import InputError
from tiltproof.network import proof_arithmetic
from tiltproof.transforms import Transform


def certify(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Transform | str,
    *,
    method: str = "affine",
    splits: int | Sequence[int] | None = None,
    budget: Budget | None = None,
    samples: int = 64,
    batch_size: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    seed: int = 0,
) -> Certificate:
    """Prove, image by image, that the network keeps the right answer for every parameter of the transform's range.

    ``images`` [N, C, H, W] in [0, 1] on the model's device, ``labels`` [N]; normalisation belongs inside the model.
    ``method``: ``affine`` (the default and the best), ``hull`` (exact pixel intervals), ``fgv`` (the paper's verifier).
    ``splits``: None splits adaptively within ``budget``; a number, or one per parameter, cuts the range uniformly, as the paper does.
    ``samples``: parameters the attack tries on each image before any proof is tried.
    """
    began = time.perf_counter()
    if method not in METHODS:
        raise InputError("unknown method", got=repr(method), do=f"use one of {', '.join(METHODS)}")
    if batch_size is not None and batch_size < 1:
        raise InputError("the batch size must be at least 1", got=batch_size)
    budget = budget or Budget()
    inputs = check_inputs(model, images, labels, transform)
    uniform = None if splits is None else check_splits(splits, inputs.transform)
    device = inputs.images.device
    with inputs.eval_mode(), proof_arithmetic(device):
        attacker = Attacker(inputs, seed)
        attacker.search(samples, steps=5)
        attack_seconds = time.perf_counter() - began
        live = inputs.network.live()
        prover = Prover(live, inputs.images, inputs.labels, inputs.transform, method, inputs.images.dtype)
        symbols = len(inputs.transform.parts) if method == "affine" else 0
        batch = Halving(batch_size or pairs_at_a_time(live, symbols, device))
        rows = attacker.alive()
        grid = uniform
        if grid is None:
            grid = starting_grid(prover, rows, budget.boxes, batch, seed) if len(rows) else (1,) * len(inputs.transform.parts)
        search = Search(prover, attacker, Tiling(inputs.transform, grid), budget, batch, refine=uniform is None)
        reporter = Reporter(search, attacker, began, progress)
        reporter.report()
        search.work(reporter.report)
    count = len(inputs.images)
    verdicts = [_verdict(search, attacker, k) for k in range(count)]
    return Certificate(
        transform=str(inputs.transform),
        method=method,
        verdicts=verdicts,
        margins=[_margin(search, attacker, k, verdict) for k, verdict in enumerate(verdicts)],
        counterexamples=list(attacker.found),
        open_boxes=[search.open_box.get(k) for k in range(count)],
        boxes=search.boxes.tolist(),
        image_seconds=(search.seconds + attack_seconds / count).tolist(),
        seconds=time.perf_counter() - began,
        settings={
            "splits": list(grid) if uniform else None,
            "starting_grid": list(grid),
            "budget_boxes": budget.boxes,
            "budget_seconds": budget.seconds,
            "samples": samples,
            "seed": seed,
            "device": str(device),
            "precision": str(inputs.images.dtype).removeprefix("torch."),
        },
    )


def check_splits(splits: int | Sequence[int], transform: Transform) -> tuple[int, ...]:
    """One positive number of splits per parameter; a single number is spread over one parameter only."""
    count = len(transform.parts)
    numbers = (splits,) if isinstance(splits, int) else tuple(splits)
    if len(numbers) == 1 and count > 1:
        root = round(numbers[0] ** (1 / count)) if isinstance(numbers[0], int) and numbers[0] > 0 else 0
        if root**count == numbers[0]:
            numbers = (root,) * count
    if len(numbers) != count or not all(isinstance(n, int) and n >= 1 for n in numbers):
        raise InputError(
            f"splits must be {count} positive whole number(s), one per parameter of {transform}",
            got=splits,
            do="e.g. splits=240 for one parameter, or splits=(20, 80, 2, 1)",
        )
    if math.prod(numbers) > 2**32:
        raise InputError("that is more boxes than can be listed", got=math.prod(numbers))
    return numbers


class Reporter:
    """Turns the search's state into `Progress` for the caller."""

    def __init__(self, search: Search, attacker: Attacker, began: float, callback: Callable[[Progress], None] | None) -> None:
        self.search, self.attacker, self.began, self.callback = search, attacker, began, callback
        self.proving = time.perf_counter()
        self.to_prove = len(attacker.alive())

    def report(self) -> None:
        if self.callback is None:
            return
        counts = Counter(self.search.state)
        wrong = int((~self.attacker.correct).sum())
        falsified = int(self.attacker.falsified.sum())
        done = counts["certified"] + counts["unknown"]
        finished = done + counts["falsified"]
        spent = time.perf_counter() - self.proving
        left = None if not finished else spent * (self.to_prove - finished) / finished
        self.callback(
            Progress(
                images=len(self.search.state),
                done=done + falsified + wrong,
                certified=counts["certified"],
                falsified=falsified,
                unknown=counts["unknown"],
                misclassified=wrong,
                boxes=int(self.search.boxes.sum()),
                seconds=time.perf_counter() - self.began,
                phase="prove",
                seconds_left=left,
            )
        )


def _verdict(search: Search, attacker: Attacker, image: int) -> Verdict:
    """Certified only if every box of the image was proved; everything else needs no such care."""
    if not bool(attacker.correct[image]):
        return Verdict.MISCLASSIFIED
    if bool(attacker.falsified[image]):
        return Verdict.FALSIFIED
    if search.state[image] == "certified" and float(search.proved[image]) > 0 and int(search.waiting[image]) == 0:
        return Verdict.CERTIFIED
    assert search.state[image] != OPEN
    return Verdict.UNKNOWN


def _margin(search: Search, attacker: Attacker, image: int, verdict: Verdict) -> float:
    if verdict is Verdict.CERTIFIED:
        return float(search.proved[image])
    if verdict is Verdict.UNKNOWN:
        return min(float(search.proved[image]), search.open_bound[image])
    return float(attacker.margin[image])
