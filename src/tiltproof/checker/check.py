"""Check a run: digests, tilings and counts of all images, then every box and every claim about a single point again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.folder import Run, image_digest, read_run, weights_digest
from tiltproof.checker.network import evaluation
from tiltproof.checker.pictures import PictureProver, as_module
from tiltproof.checker.prover import Progress
from tiltproof.checker.ranges import RangeProver
from tiltproof.checker.verdicts import VerdictProver
from tiltproof.errors import InputError

EXTRA_SPLITS = {"classification": 12, "regression": 24}
Answers = Tensor | Sequence[int] | Sequence[float] | Sequence[Sequence[float]] | None


@dataclass(frozen=True)
class CheckReport:
    """What was checked; if anything had failed, `check` would have raised `CheckFailed`.

    Attributes
    ----------
    images : int
        Images of the run.
    certified : int
        Certified images; images whose ranges were proved again, if ``task`` is regression, or of which a share of the range
        was, if it is radius.
    boxes : int
        Boxes of the run that were proved again.
    sub_boxes : int
        Boxes that the checker's own bounds needed for them.
    counterexamples : int
        Counterexamples that were evaluated again.
    seconds : float
        Time of the check.
    sampled : bool
        Whether only a sample of the images was proved again.
    task : str
        "classification", "regression" or "radius".
    """

    images: int
    certified: int
    boxes: int
    sub_boxes: int
    counterexamples: int
    seconds: float
    sampled: bool
    task: str = "classification"


def check(
    folder: str | Path,
    model: nn.Module | Callable[[Tensor], Any],
    images: Tensor,
    labels: Answers,
    *,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    extra_splits: int | None = None,
) -> CheckReport:
    """Prove again every claim of a run folder about these weights, images and labels.

    Parameters
    ----------
    folder : str or Path
        The run folder.
    model : torch.nn.Module
        The network of the run; for uint8 semantics, the program.
    images : Tensor
        The images of the run [n, C, H, W], in order.
    labels : Tensor, sequence or None
        The labels of the run [n]; of a regression run its target values [n] or [n, K], or None if it had none. Of a
        run that kept the network's own answers they are ignored.
    sample : int, optional
        Prove only this number of images again, chosen at random; digests, tilings and counts are checked for all.
    seed : int
        Seed of that choice.
    progress : callable, optional
        Called with the number of boxes proved, and of all boxes.
    extra_splits : int, optional
        Bisections of a box that the checker's coarser bounds leave open; by default 12, or 24 for ranges, whose ends leave less slack
        than a margin does.

    Returns
    -------
    CheckReport
        What was checked.

    Raises
    ------
    CheckFailed
        If a claim does not hold.
    InputError
        If an argument is invalid, or the folder cannot be read.
    """
    begin = time.perf_counter()
    run = read_run(Path(folder))
    model = as_module(model)
    images = same_inputs(run, model, images)
    same_answers(run, labels)
    if sample is not None and sample < 1:
        raise InputError("a sample has at least one image", got=sample)
    chosen = list(range(len(images)))
    if sample is not None and sample < len(images):
        chosen = sorted(random.Random(seed).sample(chosen, sample))
    device = next(iter([*model.parameters(), *model.buffers()]), images).device
    task = "regression" if run.ranges else "classification"
    verdicts = [run.verdicts[k] for k in chosen] if run.verdicts else []
    ranges = [run.ranges[k] for k in chosen] if run.ranges else []
    most = extra_splits if extra_splits is not None else EXTRA_SPLITS[task]
    with evaluation(model, device):
        inputs = (run, model, images.to(device, torch.float64), most)
        prover: VerdictProver | RangeProver | PictureProver
        if run.semantics == "uint8":
            prover = PictureProver(*inputs[:3])
            prover.check(verdicts, progress)
        elif run.ranges:
            prover = RangeProver(*inputs)
            prover.check(ranges, progress)
        else:
            prover = VerdictProver(*inputs)
            prover.check(verdicts, progress)
    if weights_digest(model) != run.weights_sha256:
        raise CheckFailed("the network's forward pass changed its own weights or buffers")
    names = [record.verdict for record in verdicts]
    proved = sum(record.share > 0 for record in verdicts)
    return CheckReport(
        images=len(chosen),
        certified=len(ranges) or proved,
        boxes=sum(record.boxes for record in [*verdicts, *ranges]),
        sub_boxes=prover.sub_boxes,
        counterexamples=names.count("falsified"),
        seconds=time.perf_counter() - begin,
        sampled=len(chosen) < len(images),
        task="radius" if run.radius else task,
    )


def same_inputs(run: Run, model: nn.Module, images: Tensor) -> Tensor:
    """Return the images in the run's dtype; raise unless weights and images are the run's."""
    if images.ndim != 4 or not images.dtype.is_floating_point:
        raise InputError(
            "images must be a floating-point batch [n, C, H, W]", got=f"{list(images.shape)}, {images.dtype}"
        )
    if weights_digest(model) != run.weights_sha256:
        raise CheckFailed("the network's weights are not those of the run (their sha256 differs)")
    count = len(run.images_sha256)
    if len(images) != count or list(images.shape[1:]) != run.shape:
        raise CheckFailed(f"the run is about {count} images of shape {run.shape}, not {list(images.shape)}")
    if run.semantics == "float32" and any(
        p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters()
    ):
        raise CheckFailed("the claim is about float32 evaluations, but the network's weights are not float32")
    stored = images.to(getattr(torch, run.dtype))
    for k, digest in enumerate(run.images_sha256):
        if not torch.equal(stored[k].to(images.dtype), images[k]) or image_digest(stored[k]) != digest:
            raise CheckFailed("its pixels are not those of the run (their sha256 differs)", run.first + k)
    return stored


def same_answers(run: Run, labels: Answers) -> None:
    """Raise unless the labels, or the values of a regression, are exactly the run's. The network's own answers are no
    one's labels; the prover checks them."""
    if run.keep is not None and run.keep.rule == "own":
        return
    if labels is None:
        if run.ranges and run.values is None:
            return
        raise CheckFailed(f"the run has {'values' if run.ranges else 'labels'}, but none were given to compare")
    if run.ranges and run.values is None:
        if isinstance(labels, Tensor) and labels.shape[1:] == (0,):  # no values, as data without any is loaded
            return
        raise CheckFailed("values are given, but the run has none")
    try:  # float64 keeps all digits of plain Python numbers
        given = labels if isinstance(labels, Tensor) else torch.tensor(labels, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError("labels or values must be numbers", got=error) from error
    if given.ndim not in (1, 2):
        raise InputError("labels must be given as [n], values as [n] or [n, K]", got=list(given.shape))
    rows = given.tolist()
    if run.values is None:
        expected: list[int] | list[list[float]] = [record.label for record in run.verdicts]
    else:
        expected = run.values
        rows = [[row] for row in rows] if given.ndim == 1 else rows
    what = "label" if run.values is None else "value"
    for k, right in enumerate(expected):
        if k >= len(rows) or rows[k] != right:
            raise CheckFailed(f"its {what} is not that of the run", run.first + k)
