"""`certify`: attack first, then prove; a verdict per image, and a run folder for those who want evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tiltproof.pixels.api import check_method
from tiltproof.runs.folder import RunFolder, check_folder_options
from tiltproof.runs.manifest import claim
from tiltproof.runs.run import Run, Workers, plan_batches
from tiltproof.runtime.batch_size import parse_memory
from tiltproof.transforms import Transform
from tiltproof.verify.batch import ClassJob, Settings
from tiltproof.verify.inputs import Inputs, check_inputs, check_search, check_splits, proof_on
from tiltproof.verify.reporter import Reporter
from tiltproof.verify.results import Budget, Certificate, Progress


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

    ``images`` [N, C, H, W] in [0, 1] on the model's device, ``labels`` [N]; normalisation belongs inside the model.
    ``method``: ``affine`` (the default and the best), ``hull`` (exact pixel intervals), ``fgv`` (the paper's
    verifier). ``semantics``: ``real`` certifies the real-valued network, ``float32`` in addition every float32 evaluation of
    it, in any order of summation. ``splits``: None splits adaptively within ``budget``; a number, or one per
    parameter, cuts the range uniformly, as the paper does. ``samples``: parameters the attack tries on each image before any proof
    is tried; images that resist proof are attacked much harder.

    ``out``: a folder for the run, written batch by batch, that can be checked by itself (``tiltproof check``) and
    resumed with ``resume=True`` after whatever stopped it; ``overwrite=True`` replaces a run that is there. ``first``: the
    number of the first image in its records; ``notes``: anything JSON can hold, kept in the manifest for people to read.

    ``workers``: prove batches on other processes and machines, e.g. `RayWorkers`; this process alone writes the folder.
    ``batch_images``: images in a batch at most (docs/many-machines.md); ``batch_size``: boxes bounded at once.
    ``memory``: bytes, or text such as "2GB": batches are sized so that the process (on a GPU: its tensors there) is expected to stay below
    it, from an estimate that the first batches correct; it bounds batches, not the process. The peak is in the certificate's
    ``settings``. Verdicts do not depend on it. Each process of ``workers`` sizes its own batches.
    """
    began = time.perf_counter()
    with proof_on(images):
        budget = check_search(method, samples, batch_size, budget)
        check_folder_options(out, resume, overwrite)
        limit = parse_memory(memory)
        inputs = replace(check_inputs(model, images, labels, transform, semantics), limit=limit)
        check_method(method, inputs.transform)
        uniform = None if splits is None else check_splits(splits, inputs.transform)
        settings = Settings(method, uniform, budget, samples, seed)
        job = ClassJob(settings, first, batch_size)
        inputs.memory.check(job.each(inputs))
        plan = plan_batches(len(inputs.images), job.pairs(inputs), batch_size, batch_images, workers)
        run = Run(settings.record(), plan)
        if workers is not None:
            workers.connect()
        if out is not None:
            about = claim(inputs, first, labels=inputs.labels.tolist())
            run = RunFolder(Path(out), inputs, about, settings.record(), plan, dict(notes or {}), resume, overwrite)
        with closing(run):
            return _work(inputs, job, run, Reporter(len(inputs.images), began, progress), workers)


def _work(inputs: Inputs, job: ClassJob, run: Run, reporter: Reporter, workers: Workers | None) -> Certificate:
    """All batches, and what they come to."""
    reporter.resumed(run.results)
    seconds_before = run.seconds
    run.work(inputs, job, reporter, workers)
    certificate = Certificate(
        transform=str(inputs.transform),
        method=job.settings.method,
        semantics=inputs.semantics,
        results=run.results,
        seconds=seconds_before + time.perf_counter() - reporter.began,
        settings=run.settings
        | {
            "starting_grid": run.grid,
            "device": ", ".join(sorted(run.devices)),
            "precision": str(inputs.images.dtype).removeprefix("torch."),
        }
        | inputs.memory.record(),
    )
    run.finish(certificate.summary())
    return certificate
