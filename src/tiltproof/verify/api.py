"""`certify` and `certify_range`: attack first, then branch and bound; a result per image, and a run folder for those who want evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.pixels.api import check_method
from tiltproof.runs.run import Run, Workers, plan_batches
from tiltproof.runtime.batch_size import parse_memory
from tiltproof.transforms import Transform
from tiltproof.verify.batch import Job
from tiltproof.verify.config import Settings, Tolerance
from tiltproof.verify.inputs import Inputs, check_inputs, check_model_and_images, check_search, check_splits, proof_on
from tiltproof.verify.reporter import Reporter
from tiltproof.verify.results import Budget, Certificate, ImageResult, Progress, RangeCertificate, RangeResult


def certify(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Transform | str,
    *,
    method: str = "affine",
    semantics: str = "real",
    splits: int | Sequence[int] | None = None,
    budget: Budget | None = None,
    samples: int = 24,
    batch_size: int | None = None,
    batch_images: int | None = None,
    memory: int | str | None = None,
    workers: Workers | None = None,
    progress: Callable[[Progress], None] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    first: int = 0,
    notes: Mapping[str, Any] | None = None,
) -> Certificate:
    """Prove, image by image, that the network keeps the right answer for every parameter of the transform's range.

    ``images`` [N, C, H, W] in [0, 1] on the model's device, ``labels`` [N]; normalization belongs inside the model.
    ``method``: ``affine`` (the default and the best), ``hull`` (exact pixel intervals), ``fgv`` (the paper's
    verifier). ``semantics``: ``real`` certifies the real-valued network, ``float32`` in addition every float32 evaluation of
    it, in any order of summation. ``splits``: None splits adaptively within ``budget``; a number, or one per
    parameter, cuts the range uniformly, as the paper does. ``samples``: parameters the attack tries on each image before any proof
    is tried; images that resist proof are attacked much harder.

    ``out``: a folder for the run, written batch by batch, that can be checked by itself (``tiltproof check``) and
    resumed with ``resume=True`` after any interruption; ``overwrite=True`` replaces a run that is there. ``first``: the
    number of the first image in its records; ``notes``: anything JSON can hold, kept in the manifest for people to read.

    ``workers``: prove batches on other processes and machines, e.g. `RayWorkers`; this process alone writes the folder.
    ``batch_images``: images in a batch at most (docs/many-machines.md); ``batch_size``: boxes bounded at once.
    ``memory``: bytes, or text such as "2GB": batches are sized so that the process (on a GPU: its tensors there) is expected to stay below
    it, from an estimate that the first batches correct; it bounds batches, not the process. The peak is in the certificate's
    ``settings``. Verdicts do not depend on it. Each process of ``workers`` sizes its own batches.
    """
    options = _Options(
        method, semantics, splits, budget, samples, batch_size, batch_images, memory, workers, progress, seed, out, resume, overwrite,
        first, notes,
    )  # fmt: skip
    with proof_on(images):
        options.check()
        inputs = check_inputs(model, images, labels, transform, semantics)
        certificate: Certificate = _run(options, inputs, None, None, {"labels": inputs.labels.tolist()})
        return certificate


def certify_range(
    model: nn.Module,
    images: Tensor,
    transform: Transform | str,
    values: Tensor | None = None,
    *,
    excess: float = 0.05,
    width: float = 0.0,
    method: str = "affine",
    semantics: str = "real",
    splits: int | Sequence[int] | None = None,
    budget: Budget | None = None,
    samples: int = 24,
    batch_size: int | None = None,
    batch_images: int | None = None,
    memory: int | str | None = None,
    workers: Workers | None = None,
    progress: Callable[[Progress], None] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    first: int = 0,
    notes: Mapping[str, Any] | None = None,
) -> RangeCertificate:
    """Prove, image by image, a range that the network's outputs keep for every parameter of the transform's range.

    Each result has ``lower`` and ``upper`` (proved), ``prediction`` and ``inner_lower``, ``inner_upper``: outputs that are reached, so
    that no proof can give less. Boxes are halved until the proved range is wider than the inner one by at most the share
    ``excess``, or narrower than ``width``, or the ``budget`` is spent; the range holds in any case. ``values`` [N] or [N, K]:
    the right answers, for errors in the summary. ``splits``: cut the range uniformly, as the paper does, and halve nothing.
    ``method``, ``semantics``, ``samples``, ``workers``, ``batch_images`` and ``memory``, ``out`` to ``notes``: as in `certify`.
    """
    options = _Options(
        method, semantics, splits, budget, samples, batch_size, batch_images, memory, workers, progress, seed, out, resume, overwrite,
        first, notes,
    )  # fmt: skip
    tolerance = Tolerance(excess, width)
    with proof_on(images):
        options.check()
        inputs = check_model_and_images(model, images, transform, semantics)
        answers = _check_values(values, inputs)
        about = {"task": "regression", "values": None if answers is None else answers.tolist()}
        certificate: RangeCertificate = _run(options, inputs, tolerance, answers, about)
        return certificate


@dataclass(frozen=True)
class _Options:
    """The options that both functions share."""

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
    began: float = field(default_factory=time.perf_counter)

    def check(self) -> None:
        """Check the options that do not depend on the model or the images."""
        check_search(self.method, self.samples, self.batch_size, self.budget)
        parse_memory(self.memory)
        if self.resume and self.out is None:
            raise InputError("there is nothing to resume without a run folder", do="give out= (--out) as well")
        if self.resume and self.overwrite:
            raise InputError("a run is either resumed or replaced", got="resume and overwrite", do="choose one")


def _run(
    options: _Options, inputs: Inputs, tolerance: Tolerance | None, answers: Tensor | None, about: dict[str, Any]
) -> Any:
    """All batches, and the certificate that they come to. ``about``: what the manifest's claim says besides `claim`'s own entries."""
    inputs = replace(inputs, limit=parse_memory(options.memory))
    check_method(options.method, inputs.transform)
    splits = None if options.splits is None else check_splits(options.splits, inputs.transform)
    settings = Settings(options.method, splits, options.budget or Budget(), options.samples, options.seed, tolerance)
    job = Job(settings, options.first, options.batch_size, answers)
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
    """A run in memory, or in a folder, whose code is not loaded for the former."""
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
    """The right answers as float64 [N, K] on the CPU."""
    shape = inputs.network.output_shape()
    if len(shape) != 1:
        raise InputError(
            "a regression network's output has shape [N, outputs]", got=f"[N, {', '.join(map(str, shape))}]"
        )
    if values is None:
        return None
    values = torch.as_tensor(values).detach().double().cpu()
    wanted = (len(inputs.images), shape[0])
    if values.shape == wanted[:1] and shape[0] == 1:
        values = values.unsqueeze(1)
    if values.shape != wanted or not bool(values.isfinite().all()):
        raise InputError(
            f"values must be finite numbers of shape {wanted}, one per image and output", got=tuple(values.shape)
        )
    return values
