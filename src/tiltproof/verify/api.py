"""`certify` and `certify_range`: attack first, then branch and bound; a result per image, and on request a run folder."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.pixels.api import check_method
from tiltproof.runs.run import Run, Workers, plan_batches
from tiltproof.runtime.batch_size import parse_memory
from tiltproof.transforms import Transform
from tiltproof.verify.batch import Job
from tiltproof.verify.inputs import Inputs, check_inputs, check_model_and_images, check_search, check_splits, proof_on
from tiltproof.verify.results import (
    Budget,
    Certificate,
    ImageResult,
    Progress,
    RangeCertificate,
    RangeResult,
    Reporter,
    Settings,
    Tolerance,
)

Function = TypeVar("Function", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """The types of the options that both functions take."""

    method: str
    semantics: str
    splits: int | Sequence[int] | None
    budget: Budget | None
    samples: int
    batch_size: int | None
    batch_images: int | None
    memory: int | str | None
    workers: Workers | None
    progress: Callable[[Progress], None] | None
    seed: int
    out: str | Path | None
    resume: bool
    overwrite: bool
    first: int
    notes: Mapping[str, Any] | None


@dataclass(frozen=True)
class _Options:
    """Their values, by default these."""

    method: str = "affine"
    semantics: str = "real"
    splits: int | Sequence[int] | None = None
    budget: Budget | None = None
    samples: int = 24
    batch_size: int | None = None
    batch_images: int | None = None
    memory: int | str | None = None
    workers: Workers | None = None
    progress: Callable[[Progress], None] | None = None
    seed: int = 0
    out: str | Path | None = None
    resume: bool = False
    overwrite: bool = False
    first: int = 0
    notes: Mapping[str, Any] | None = None
    began: float = field(default_factory=time.perf_counter, init=False)

    def __post_init__(self) -> None:
        """Raise for what is wrong whatever the model and the images are."""
        check_search(self.method, self.samples, self.batch_size, self.budget)
        parse_memory(self.memory)
        if self.resume and self.out is None:
            raise InputError("there is nothing to resume without a run folder", do="give out= (--out) as well")
        if self.resume and self.overwrite:
            raise InputError("a run is either resumed or replaced", got="resume and overwrite", do="choose one")


def _with_options(function: Function) -> Function:
    """List the shared options and their defaults in the signature that ``help`` and editors show."""
    own = inspect.signature(function)
    names = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    shared = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(_Options)
        if each.init
    ]
    setattr(function, "__signature__", own.replace(parameters=[*names, *shared]))  # noqa: B010 - mypy knows no such attribute
    return function


@_with_options
def certify(
    model: nn.Module, images: Tensor, labels: Tensor, transform: Transform | str, **options: Unpack[Options]
) -> Certificate:
    """Prove, image by image, that the network predicts the label for every parameter of the transformation's range.

    Parameters
    ----------
    model : torch.nn.Module
        The classifier; normalization belongs inside.
    images : Tensor
        Images [N, C, H, W] with values in [0, 1], on the model's device.
    labels : Tensor
        Classes [N].
    transform : Transform or str
        The transformation, for example ``"R(30)"``.
    method : {"affine", "hull", "fgv"}
        The pixel bounds: affine forms, the tightest; the exact interval hull; or the paper's verifier.
    semantics : {"real", "float32"}
        Certify the real-valued network, or also every float32 evaluation of it, in any order of summation.
    splits : int or sequence of int, optional
        Boxes per parameter of a uniform grid, as in the paper; by default branch and bound within ``budget``.
    budget : Budget, optional
        Boxes and seconds per image before its verdict is unknown.
    samples : int
        Parameters that the attack samples per image before any proof; images that resist proof are attacked harder.
    batch_size : int, optional
        Boxes bounded at once.
    batch_images : int, optional
        Most images in a batch, the unit that is written to the run folder or given to a worker (docs/many-machines.md).
    memory : int or str, optional
        Bytes, or text such as "2GB", for which batches are sized, from an estimate that the first batches correct. No hard limit: the
        measured peak is in the certificate's ``settings``. Verdicts do not depend on it. Each worker sizes its own batches.
    workers : object, optional
        Processes and machines that prove batches, for example `RayWorkers`; this process alone writes the run folder.
    progress : callable, optional
        Called with a `Progress` after every step.
    seed : int
        Seed of the attack's samples.
    out : str or Path, optional
        The run folder: written batch by batch, it can be checked (`check`), rendered (`report`) and resumed.
    resume, overwrite : bool
        Continue the run in ``out``, or replace it.
    first : int
        The number of the first image in records and messages.
    notes : mapping, optional
        JSON values for human readers, stored in the run's manifest.

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
    given = _Options(**options)
    with proof_on(images):
        inputs = check_inputs(model, images, labels, transform, given.semantics)
        certificate: Certificate = _run(given, inputs, None, None, {"labels": inputs.labels.tolist()})
        return certificate


@_with_options
def certify_range(
    model: nn.Module,
    images: Tensor,
    transform: Transform | str,
    values: Tensor | None = None,
    *,
    excess: float = 0.05,
    width: float = 0.0,
    **options: Unpack[Options],
) -> RangeCertificate:
    """Prove, image by image, a range that the network's outputs do not leave for any parameter of the transformation's range.

    Parameters
    ----------
    model : torch.nn.Module
        The regression network, with outputs [N, K], or [N] for one output.
    images : Tensor
        Images [N, C, H, W] with values in [0, 1], on the model's device.
    transform : Transform or str
        The transformation.
    values : Tensor, optional
        Target values [N] or [N, K], for errors in the summary.
    excess : float
        Boxes are halved until the proved range exceeds the inner range (outputs of evaluated parameters) by at most this share of its
        width, or the budget is spent; the proved range holds in either case.
    width : float
        Ranges narrower than this need no halving.
    method, semantics, splits, budget, samples, batch_size, batch_images, memory, workers, progress, seed
        As in `certify`; with ``splits`` no box is halved.
    out, resume, overwrite, first, notes
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
    given, tolerance = _Options(**options), Tolerance(excess, width)
    with proof_on(images):
        inputs = check_model_and_images(model, images, transform, given.semantics)
        targets = _check_values(values, inputs)
        about = {"task": "regression", "values": None if targets is None else targets.tolist()}
        certificate: RangeCertificate = _run(given, inputs, tolerance, targets, about)
        return certificate


def _run(
    options: _Options, inputs: Inputs, tolerance: Tolerance | None, targets: Tensor | None, about: dict[str, Any]
) -> Any:
    """Prove all batches and return the certificate. ``about``: further entries of the manifest's claim."""
    inputs = replace(inputs, limit=parse_memory(options.memory))
    check_method(options.method, inputs.transform)
    splits = None if options.splits is None else check_splits(options.splits, inputs.transform)
    settings = Settings(options.method, splits, options.budget or Budget(), options.samples, options.seed, tolerance)
    job = Job(settings, options.first, options.batch_size, targets)
    inputs.memory.check(job.each(inputs))
    pairs, workers = job.pairs(inputs), options.workers
    plan = plan_batches(len(inputs.images), pairs, options.batch_size, options.batch_images, workers)
    if workers is not None:
        workers.connect()
    with closing(_open_run(options, inputs, job, plan, about)) as run:
        reporter = Reporter(len(inputs.images), options.progress, job.ranges, options.began)
        reporter.resumed(run.results)
        earlier = run.seconds
        run.work(inputs, job, reporter, workers)
        certificate = (RangeCertificate if job.ranges else Certificate)(
            transform=str(inputs.transform),
            method=settings.method,
            semantics=inputs.semantics,
            results=run.results,
            seconds=earlier + time.perf_counter() - options.began,
            settings=run.settings
            | ({} if job.ranges else {"starting_grid": run.grid})
            | {
                "device": ", ".join(sorted(run.devices)),
                "precision": "float64" if job.ranges else str(inputs.images.dtype).removeprefix("torch."),
            }
            | inputs.memory.record(),
        )
        run.finish(certificate.summary())
        return certificate


def _open_run(options: _Options, inputs: Inputs, job: Job, plan: dict[str, int], about: dict[str, Any]) -> Run:
    """Open a run in memory or in a folder; the code for folders is loaded only for the latter."""
    settings = job.settings.record()
    if options.out is None:
        return Run(settings, plan)
    from tiltproof.runs.folder import RunFolder
    from tiltproof.runs.manifest import claim

    task = {name: about[name] for name in about if name == "task"}
    claimed = task | claim(inputs, options.first, **{name: about[name] for name in about if name != "task"})
    notes, kind = dict(options.notes or {}), RangeResult if job.ranges else ImageResult
    return RunFolder(Path(options.out), inputs, claimed, settings, plan, notes, options.resume, options.overwrite, kind)


def _check_values(values: Tensor | None, inputs: Inputs) -> Tensor | None:
    """Return the target values as float64 [N, K] on the CPU."""
    shape = inputs.network.output_shape()
    if len(shape) != 1:
        raise InputError(
            "a regression network's output has shape [N, outputs]", got=f"[N, {', '.join(map(str, shape))}]"
        )
    if values is None:
        return None
    values = torch.as_tensor(values).detach().double().cpu()
    if values.shape[1:] == (0,):  # of data without target values
        return None
    wanted = (len(inputs.images), shape[0])
    if values.shape == wanted[:1] and shape[0] == 1:
        values = values.unsqueeze(1)
    if values.shape != wanted or not bool(values.isfinite().all()):
        raise InputError(
            f"values must be finite numbers of shape {wanted}, one per image and output", got=tuple(values.shape)
        )
    return values
