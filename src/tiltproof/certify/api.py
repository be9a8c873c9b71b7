"""`certify`: attack first, then prove; a verdict per image."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from tiltproof.bounds import METHODS
from tiltproof.certify.attack import Attacker
from tiltproof.certify.entry import check_inputs, check_splits
from tiltproof.certify.memory import Halving, pairs_at_a_time
from tiltproof.certify.prover import Prover
from tiltproof.certify.reporter import Reporter
from tiltproof.certify.search import AdaptiveSearch
from tiltproof.certify.start import starting_grid
from tiltproof.certify.tiling import Tiling
from tiltproof.certify.uniform import UniformSearch
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
    samples: int = 24,
    batch_size: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    seed: int = 0,
) -> Certificate:
    """Prove, image by image, that the network keeps the right answer for every parameter of the transform's range.

    ``images`` [N, C, H, W] in [0, 1] on the model's device, ``labels`` [N]; normalisation belongs inside the model.
    ``method``: ``affine`` (the default and the best), ``hull`` (exact pixel intervals), ``fgv`` (the paper's
    verifier). ``splits``: None splits adaptively within ``budget``; a number, or one per parameter, cuts the range
    uniformly, as the paper does. ``samples``: parameters the attack tries on each image before any proof is tried;
    images that resist proof are attacked much harder.
    """
    began = time.perf_counter()
    if method not in METHODS:
        raise InputError("unknown method", got=repr(method), do=f"use one of {', '.join(METHODS)}")
    if batch_size is not None and batch_size < 1:
        raise InputError("the batch size must be at least 1", got=batch_size)
    budget = Budget() if budget is None else budget
    if not isinstance(budget, Budget):
        raise InputError("the budget must be a Budget", got=repr(budget), do="e.g. budget=Budget(boxes=1000)")
    inputs = check_inputs(model, images, labels, transform)
    uniform = None if splits is None else check_splits(splits, inputs.transform)
    device = inputs.images.device
    with inputs.eval_mode(), proof_arithmetic(device):
        reporter = Reporter(len(inputs.images), began, progress)
        reporter.attacking()
        attacker = Attacker(inputs, seed)
        attacker.search(attacker.alive(), samples, steps=0)
        attack_seconds = time.perf_counter() - began
        prover = Prover(inputs, method)
        symbols = len(inputs.transform.parts) if method == "affine" else 0
        batch = Halving(batch_size or pairs_at_a_time(inputs.network, symbols, device))
        rows = attacker.alive()
        if uniform is not None:
            grid = uniform
        else:
            grid = (
                starting_grid(prover, rows, budget.boxes, batch, seed)
                if len(rows)
                else (1,) * len(inputs.transform.parts)
            )
        search = (AdaptiveSearch if uniform is None else UniformSearch)(
            prover, attacker, Tiling(inputs.transform, grid)
        )
        reporter.proving(search)
        search.work(batch, budget, reporter.report)
        search.attack_unknown()
        reporter.report()
    count = len(inputs.images)
    verdicts = [search.verdict(k) for k in range(count)]
    return Certificate(
        transform=str(inputs.transform),
        method=method,
        verdicts=verdicts,
        margins=[search.margin(k, verdict) for k, verdict in enumerate(verdicts)],
        counterexamples=list(attacker.found),
        open_boxes=[
            search.open_box.get(k) if verdict is Verdict.UNKNOWN else None for k, verdict in enumerate(verdicts)
        ],
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
