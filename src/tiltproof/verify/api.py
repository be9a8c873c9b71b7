"""`certify` and `certify_range`: attack first, then branch and bound; a result per image, and on request a run folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.pixels.api import check_method
from tiltproof.transforms import Transform
from tiltproof.verify.batch import Job, Run, plan_batches
from tiltproof.verify.inputs import Inputs, check_kept, check_model_and_images, check_splits, proof_on
from tiltproof.verify.keep import Keep, words_of
from tiltproof.verify.options import (
    EIGHT_BITS,
    FGV,
    AffineBounds,
    Attack,
    BranchAndBound,
    EightBits,
    Execution,
    IntervalHull,
    Limits,
    RunFolder,
    Settings,
    Tolerance,
    UniformGrid,
    check_kinds,
)
from tiltproof.verify.progress_bar import reported
from tiltproof.verify.radius_results import RadiusCertificate, RadiusResult, reach
from tiltproof.verify.results import Certificate, ImageResult, Progress, RangeCertificate, RangeResult, Reporter
from tiltproof.verify.shares import check_identity

DEFAULT_GAP, SMALLEST_GAP = 1e-3, 1e-12
"""Shares of a range between the proved and the refuted radius: where the search stops, and the least that may be asked for."""


def certify(
    model: nn.Module | Callable[[Tensor], Any],
    images: Tensor,
    labels: Tensor | None,
    transform: Transform | str,
    *,
    keep: Keep | None = None,
    tolerance: float | None = None,
    semantics: str = "real",
    bounds: AffineBounds | IntervalHull | FGV = AffineBounds(),
    search: BranchAndBound | UniformGrid = BranchAndBound(),
    attack: Attack = Attack(),
    execution: Execution = Execution(),
    run: RunFolder | None = None,
    seed: int = 0,
    first: int = 0,
    progress: Callable[[Progress], None] | bool | None = None,
) -> Certificate:
    """Prove, image by image, that the network predicts the label for every parameter of the transformation's range.

    With ``keep``, what must hold is another property of its outputs than that the label's is the largest.

    Parameters
    ----------
    model : torch.nn.Module
        The classifier; normalization belongs inside.
    images : Tensor
        Images [N, C, H, W] with values in [0, 1], on the model's device.
    labels : Tensor
        Classes [N]; None if ``keep`` is `KeepOwn`, which ignores them.
    transform : Transform or str
        The transformation, for example ``"R(30)"``.
    keep : KeepOwn or TopK or Allow or Forbid or Linear, optional
        What must hold for every parameter instead: the network's own answer, the label among the largest outputs, an
        answer from a set of classes or outside of one, or rows C y > d of the outputs. An image for which it does not
        hold without any transformation is misclassified.
    tolerance : float, optional
        With uint8 semantics: margins must exceed it. By default it is measured for each image.
    semantics : {"real", "float32", "uint8"}
        Certify the real-valued network, or also every float32 evaluation of it, in any order of summation; or this program
        itself, on transformed images that are rounded to 8 bits. Then the transformation has one parameter, and the model may
        be any function from images to scores [N, K].
    bounds : AffineBounds or IntervalHull or FGV
        The pixel bounds: affine forms, the tightest; the exact interval hull; or the paper's verifier.
    search : BranchAndBound or UniformGrid
        How the range is divided into boxes, and the most that one image may cost before its verdict is unknown.
    attack : Attack
        The search for counterexamples before any proof.
    execution : Execution
        Memory, workers and batch sizes.
    run : RunFolder, optional
        Store the run in a folder, batch by batch, or resume it.
    seed : int
        Seed of the attack's samples.
    first : int
        The number of the first image in records and messages.
    progress : callable or bool, optional
        Called with a `Progress` after every step; True shows a bar, also in a notebook.

    Returns
    -------
    Certificate
        One result per image, and totals.

    Raises
    ------
    InputError
        If an argument is invalid, the run folder does not fit or cannot be written, or the network's output is not finite.
    UnsupportedOperation
        If an operation of the network has no bound rule.
    """
    began = time.perf_counter()
    eight_bits = _eight_bits(semantics, tolerance, search)
    settings = Settings(bounds, search, attack, seed, eight_bits=eight_bits)
    check_kinds(execution=execution, run=run)
    if eight_bits is not None and execution.batch_images is None:
        execution = replace(execution, batch_images=1)  # an image takes seconds to minutes
    with proof_on(images):
        inputs, rule = check_kept(model, images, labels, transform, semantics, keep, first)
        if search.excess is not None:
            inputs.transform.refuse_noise("tightening margins")  # the margin that is reached is one without noise
        job = replace(_job(settings, first, execution, inputs), rule=rule)
        about: dict[str, Any] = {"labels": inputs.labels.tolist()}
        if keep is not None:
            about["keep"] = keep.record()
        certificate: Certificate = _run(job, inputs, execution, run, progress, began, about)
        return certificate


def _eight_bits(semantics: str, tolerance: float | None, search: object) -> EightBits | None:
    """Return the options of uint8 semantics, or None for others."""
    if semantics != EIGHT_BITS:
        if tolerance is not None:
            raise InputError(
                "a tolerance belongs to uint8 semantics: bounds need none",
                got=f"tolerance {tolerance!r}",
                do="leave it out",
            )
        return None
    if isinstance(search, UniformGrid):
        raise InputError(
            "uint8 semantics choose their boxes themselves", got=repr(search), do="leave the splits out (--splits)"
        )
    if getattr(search, "excess", None) is not None:
        raise InputError(
            "uint8 semantics do not tighten margins: every picture that bounds leave open is evaluated",
            got=repr(search),
            do="leave tighten out (--tighten)",
        )
    return EightBits(tolerance)


def certify_range(
    model: nn.Module,
    images: Tensor,
    targets: Tensor | None,
    transform: Transform | str,
    *,
    tolerance: Tolerance = Tolerance(),
    semantics: str = "real",
    bounds: AffineBounds | IntervalHull | FGV = AffineBounds(),
    search: BranchAndBound | UniformGrid = BranchAndBound(),
    attack: Attack = Attack(),
    execution: Execution = Execution(),
    run: RunFolder | None = None,
    seed: int = 0,
    first: int = 0,
    progress: Callable[[Progress], None] | bool | None = None,
) -> RangeCertificate:
    """Prove, image by image, a range that the network's outputs do not leave for any parameter of the transformation's range.

    Parameters
    ----------
    model : torch.nn.Module
        The regression network, with outputs [N, K], or [N] for one output.
    images : Tensor
        Images [N, C, H, W] with values in [0, 1], on the model's device.
    targets : Tensor, optional
        Target values [N] or [N, K], for errors in the summary; None if they are not known.
    transform : Transform or str
        The transformation, for example ``"R(2)"``.
    tolerance : Tolerance
        How tight a range becomes before its boxes are no longer halved. With a `UniformGrid` no box is halved.
    semantics, bounds, search, attack, execution, run, seed, first, progress
        As in `certify`.

    Returns
    -------
    RangeCertificate
        One result per image, and means.

    Raises
    ------
    InputError
        If an argument is invalid, the run folder does not fit or cannot be written, or the network's output is not finite.
    UnsupportedOperation
        If an operation of the network has no bound rule.
    """
    began = time.perf_counter()
    settings = Settings(bounds, search, attack, seed, tolerance)
    _refuse_tightening(search, "a range has a tolerance of its own", "tolerance=Tolerance(relative=0.05) (--excess)")
    check_kinds(execution=execution, run=run)
    if semantics == EIGHT_BITS:
        raise InputError(
            "uint8 semantics are for classes",
            got=f"semantics={semantics!r}",
            do="use real or float32 for output ranges",
        )
    with proof_on(images):
        inputs = check_model_and_images(model, images, transform, semantics)
        inputs.transform.refuse_noise("regression")
        values = _check_targets(targets, inputs)
        job = _job(settings, first, execution, inputs, values)
        about = {"task": "regression", "values": None if values is None else values.tolist()}
        certificate: RangeCertificate = _run(job, inputs, execution, run, progress, began, about)
        return certificate


def certified_radius(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    transform: Transform | str,
    *,
    gap: float | None = None,
    keep: Keep | None = None,
    semantics: str = "real",
    bounds: AffineBounds | IntervalHull | FGV = AffineBounds(),
    search: BranchAndBound = BranchAndBound(),
    attack: Attack = Attack(),
    execution: Execution = Execution(),
    run: RunFolder | None = None,
    seed: int = 0,
    first: int = 0,
    progress: Callable[[Progress], None] | bool | None = None,
) -> RadiusCertificate:
    """Find, image by image, the largest share of the transformation's range that can be proved, and how much more there may be.

    The range is proved outward from the image as it is. All parameters are scaled together: half of ``"R(-10:30), Sc(4)"``
    is ``"R(-5:15), Sc(2)"``. Noise (`Linf`) stays as it is: it is no range that grows. Whenever the search stops, each
    image has a radius that is proved and, if a counterexample was found, one that is refuted.

    Parameters
    ----------
    model, images, labels, transform, keep, semantics, bounds, attack, execution, run, seed, first, progress
        As in `certify`; the range contains 0, the parameter that changes nothing. The attack samples rays.
    gap : float, optional
        The difference of the proved and the refuted radius at which an image is finished, in the unit of the first
        parameter; by default a thousandth of the radius of the whole range.
    search : BranchAndBound
        The most that one image may cost.

    Returns
    -------
    RadiusCertificate
        One result per image, and totals.

    Raises
    ------
    InputError
        If an argument is invalid, the run folder does not fit or cannot be written, or the network's output is not finite.
    UnsupportedOperation
        If an operation of the network has no bound rule.
    """
    began = time.perf_counter()
    if not isinstance(search, BranchAndBound):
        raise InputError(
            "a radius is found by halving boxes",
            got=repr(search),
            do="give search=BranchAndBound(max_boxes=20_000), or none",
        )
    check_kinds(execution=execution, run=run)
    _refuse_tightening(search, "a radius is no margin", "gap=... (--gap), for both ends of a radius")
    if semantics == EIGHT_BITS:
        raise InputError(
            "uint8 semantics are for a whole range",
            got=f"semantics={semantics!r}",
            do="use real or float32 for radii and curves",
        )
    with proof_on(images):
        inputs, rule = check_kept(model, images, labels, transform, semantics, keep, first)
        check_identity(inputs.transform)
        settings = Settings(bounds, search, attack, seed, gap=_share_of_gap(gap, inputs.transform))
        job = replace(_job(settings, first, execution, inputs), rule=rule)
        about: dict[str, Any] = {"task": "radius", "labels": inputs.labels.tolist()}
        if keep is not None:
            about["keep"] = keep.record()
        certificate: RadiusCertificate = _run(job, inputs, execution, run, progress, began, about)
        return certificate


def _refuse_tightening(search: Limits, why: str, do: str) -> None:
    if isinstance(search, BranchAndBound) and search.tighten is not None:
        raise InputError("only the margins of classes are tightened", got=repr(search), why=why, do=f"use {do}")


def _share_of_gap(gap: float | None, transform: Transform) -> float:
    """Return the gap as a share of the range."""
    if gap is None:
        return DEFAULT_GAP
    whole = reach(transform)
    if not (isinstance(gap, (int, float)) and 0 < gap < math.inf):
        raise InputError(
            "the gap between the two radii is a positive number",
            got=f"gap {gap!r}",
            do=f"e.g. gap={DEFAULT_GAP * whole:g} (--gap), in {transform.parts[0].unit}",
        )
    return max(float(gap) / whole, SMALLEST_GAP)


def _job(settings: Settings, first: int, execution: Execution, inputs: Inputs, values: Tensor | None = None) -> Job:
    """Return the job for these inputs; ``settings`` get the splits per parameter of their transformation."""
    check_method(settings.bounds.method, inputs.transform)
    if isinstance(settings.search, UniformGrid):
        grid = check_splits(settings.search.splits, inputs.transform)
        settings = replace(settings, search=replace(settings.search, splits=grid))
    return Job(settings, first, execution.batch_size, values)


def _run(
    job: Job,
    inputs: Inputs,
    execution: Execution,
    folder: RunFolder | None,
    progress: Callable[[Progress], None] | bool | None,
    began: float,
    about: dict[str, Any],
) -> Any:
    """Prove all batches and return the certificate. ``about``: further entries of the manifest's claim."""
    inputs, workers = replace(inputs, limit=execution.memory_bytes), execution.workers
    inputs.memory.check(job.each(inputs))
    plan = plan_batches(len(inputs.images), job.pairs(inputs), execution)
    if workers is not None:
        workers.connect()
    job = replace(job, reading=(time.perf_counter() - began) / len(inputs.images))
    showing = nullcontext() if progress is None else reported(progress)
    with closing(_open_run(folder, inputs, job, plan, about)) as run, showing as callback:
        reporter = Reporter(len(inputs.images), callback, job.ranges, began)
        reporter.resumed(run.results)
        earlier = run.seconds
        run.work(inputs, job, reporter, workers)
        kind = RangeCertificate if job.ranges else RadiusCertificate if job.radii else Certificate
        certificate: Any = kind(
            transform=str(inputs.transform),
            method=job.settings.bounds.method,
            semantics=inputs.semantics,
            results=run.results,
            seconds=earlier + time.perf_counter() - began,
            settings=run.settings
            | ({} if job.ranges else {"starting_grid": run.grid})
            | {
                "device": ", ".join(sorted(run.devices)),
                "precision": "float64" if job.ranges else str(inputs.images.dtype).removeprefix("torch."),
            }
            | inputs.memory.record(),
        )
        if "keep" in about:
            certificate.keep = words_of(about["keep"])
        run.finish(certificate.summary())
        return certificate


def _open_run(folder: RunFolder | None, inputs: Inputs, job: Job, plan: dict[str, int], about: dict[str, Any]) -> Run:
    """Open a run in memory or in a folder; the code for folders is loaded only for the latter."""
    settings = job.settings.record()
    if folder is None:
        return Run(settings, plan)
    from tiltproof.runs.folder import StoredRun
    from tiltproof.runs.manifest import claim

    task = {name: about[name] for name in about if name == "task"}
    claimed = task | claim(inputs, job.first, **{name: about[name] for name in about if name != "task"})
    notes, kind = dict(folder.notes or {}), RangeResult if job.ranges else RadiusResult if job.radii else ImageResult
    return StoredRun(Path(folder.folder), inputs, claimed, settings, plan, notes, folder.resume, folder.overwrite, kind)


def _check_targets(targets: Tensor | None, inputs: Inputs) -> Tensor | None:
    """Return the target values as float64 [N, K] on the CPU."""
    shape = inputs.network.output_shape()
    if len(shape) != 1:
        raise InputError(
            "a regression network's output has shape [N, outputs]", got=f"[N, {', '.join(map(str, shape))}]"
        )
    if targets is None:
        return None
    try:
        values = torch.as_tensor(targets).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            "targets must be a tensor, or None if they are not known",
            got=shown(repr(targets)),
            do='certify_range(model, images, targets, "R(2)")',
        ) from None
    if values.shape[1:] == (0,):  # of data without target values
        return None
    wanted = (len(inputs.images), shape[0])
    if values.shape == wanted[:1] and shape[0] == 1:
        values = values.unsqueeze(1)
    if values.shape != wanted or not bool(values.isfinite().all()):
        raise InputError(
            f"targets must be finite numbers of shape {wanted}, one per image and output", got=tuple(values.shape)
        )
    return values
