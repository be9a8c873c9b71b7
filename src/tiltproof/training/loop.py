"""The training loop: epochs, log, checkpoints, resumption and the final figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.data import load_pixels
from tiltproof.device import choose_device
from tiltproof.errors import InputError
from tiltproof.runs.atomic_io import document, replace_bytes
from tiltproof.training import checkpoint as checkpoints
from tiltproof.training.artefacts import CARD, LOG, RECIPE, WEIGHTS, EpochLog, write_outcome, writing, writing_alone
from tiltproof.training.cuda import training_arithmetic
from tiltproof.training.data import TrainingSet
from tiltproof.training.distributed import Processes, joined
from tiltproof.training.epoch import EpochRunner, TrainProgress
from tiltproof.training.evaluate import CLASSES, NUMBERS, accuracy, certified_figures, mean_absolute_error
from tiltproof.training.recipe import Recipe, shortened
from tiltproof.transforms import parse

CHECKPOINTS = "checkpoint"
"""The folder of checkpoints inside the run folder."""


@dataclass
class TrainResult:
    """A trained network and its figures on the held-out images; None if not measured.

    Classifiers have percentages, regression networks mean errors and widths.

    Attributes
    ----------
    model : torch.nn.Module
        The network.
    folder : Path
        The run folder.
    epochs : int
        Epochs done.
    finished : bool
        Whether those are all of the recipe's epochs.
    clean_percent, certified_percent, unfalsified_percent, boxes_per_image : float or None
        Figures of a classifier.
    mean_absolute_error, certified_mean_absolute_error, mean_width : float or None
        Figures of a regression network.
    certified_images : int
        Number of images that were certified.
    seconds : float
        Time of training and certification.
    log : list of dict
        The records of all epochs.
    """

    model: nn.Module = field(repr=False)
    folder: Path
    epochs: int
    finished: bool
    clean_percent: float | None = None
    certified_percent: float | None = None
    unfalsified_percent: float | None = None
    boxes_per_image: float | None = None
    mean_absolute_error: float | None = None
    certified_mean_absolute_error: float | None = None
    mean_width: float | None = None
    certified_images: int = 0
    seconds: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list, repr=False)


class TrainingFailed(RuntimeError):
    """The loss or the weights are no longer finite; the last good checkpoint is kept."""

    def __init__(self, what: str, epoch: int, step: int | None, checkpoint: Path | None) -> None:
        self.epoch, self.step, self.checkpoint = epoch, step, checkpoint
        where = f"epoch {epoch}" if step is None else f"epoch {epoch}, step {step}"
        kept = f"the last good weights are {checkpoint}" if checkpoint else "no epoch was finished before"
        super().__init__(
            f"{what} ({where}). Likely cause: steps that are too large. What to do: lower train.learning_rate, "
            f"or clip gradients with a smaller train.clip_norm; {kept}."
        )


def train(
    recipe: Recipe,
    *,
    data_root: str | Path | None = None,
    device: str | torch.device = "auto",
    out: str | Path,
    resume: bool = False,
    progress: Callable[[TrainProgress], None] | None = None,
    quick: bool = False,
    stop_after: int | None = None,
    certify_images: int = 200,
    certify_every: int = 0,
    images: Tensor | None = None,
    labels: Tensor | None = None,
) -> TrainResult:
    """Train the network of a recipe and write it to a folder, with its card, log and checkpoints.

    Figures are measured on the recipe's ``hold_out`` part of the training set, never on test images. Processes started by
    torchrun divide each mini-batch among them.

    Parameters
    ----------
    recipe : Recipe
        What to train, and how; see `read_recipe`.
    data_root : str or Path, optional
        The folder of data sets.
    device : str or torch.device
        Where to train; "auto" prefers a GPU.
    out : str or Path
        The run folder.
    resume : bool
        Continue after the last whole checkpoint. On a CPU the final weights equal those of an uninterrupted run bit for bit.
    progress : callable, optional
        Called with a `TrainProgress` every few steps.
    quick : bool
        Shorten the recipe to about ten minutes on two CPU cores.
    stop_after : int, optional
        Stop after this many epochs of the run.
    certify_images : int
        Number of held-out images to certify at the end.
    certify_every : int
        Also certify them after every n-th epoch; 0 for never.
    images, labels : Tensor, optional
        Replace the recipe's training set: floats in [0, 1] or unsigned bytes, and labels.

    Returns
    -------
    TrainResult
        The network and its figures.

    Raises
    ------
    InputError
        If the recipe, the data or the folder cannot be used.
    TrainingFailed
        If the loss or the weights are no longer finite.
    """
    recipe = shortened(recipe) if quick else recipe
    folder = Path(out)
    _check_folder(folder, resume)
    with joined(choose_device(device)) as (processes, place):
        if images is None or labels is None:
            images, labels = _load(recipe, data_root, processes)
        part = recipe.data
        data = TrainingSet(images, labels, part.hold_out, recipe.train.seed, place, part.crop_size, part.hold_out_run)
        run = _Run(recipe, folder, data, processes, progress, certify_images, certify_every)
        with writing_alone(folder, processes, place):
            _check_folder(folder, resume)  # again, now that the folder is locked
            return run.go(resume, stop_after)


class _Run:
    """A training run in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        data: TrainingSet,
        processes: Processes,
        progress: Callable[[TrainProgress], None] | None,
        certify_images: int,
        certify_every: int,
    ) -> None:
        self.recipe, self.folder, self.data, self.processes = recipe, folder, data, processes
        self.certify_images, self.certify_every = certify_images, certify_every
        self.transform = parse(recipe.transform)
        self.runner = EpochRunner(recipe, self.transform, data, processes, progress if processes.first else None)
        self.about = {"recipe": recipe.to_dict(), "data_sha256": data.sha256}
        self.good: Path | None = None  # the last checkpoint's weights

    def go(self, resume: bool, stop_after: int | None) -> TrainResult:
        began = time.perf_counter()
        done = self._restore() if resume else 0
        epochs = self.recipe.train.epochs
        last = epochs if stop_after is None else min(epochs, stop_after)
        self.processes.wait()  # no process writes before all have read
        log = None
        if self.processes.first:
            with writing(self.folder):
                replace_bytes(self.folder / RECIPE, document(self.recipe.to_dict()))
            log = EpochLog(self.folder, done)
        try:
            with training_arithmetic(self.data.device):
                for epoch in range(done, last):
                    self._epoch(epoch, log)
        finally:
            if log is not None:
                log.close()
        done = max(done, last)
        result = TrainResult(self.runner.model.eval(), self.folder, done, done == epochs)
        if result.finished and self.processes.first:
            self._finish(result)
        result.log = [] if log is None else log.records
        result.seconds = time.perf_counter() - began
        return result

    def _restore(self) -> int:
        found = checkpoints.latest(self.folder / CHECKPOINTS)
        if found is None:
            return 0
        checkpoints.agree(found, self.about)
        found.restore(self.runner.model, self.runner.optimizer)
        self.good = found.path
        return found.epoch

    def _epoch(self, epoch: int, log: EpochLog | None) -> None:
        runner, began = self.runner, time.perf_counter()
        try:
            record = {"epoch": epoch + 1, "step": (epoch + 1) * runner.steps} | runner.run(epoch)
        except FloatingPointError as error:
            what, step = error.args
            raise TrainingFailed(what, epoch + 1, step, self.good) from None
        self.processes.average_buffers(runner.model)
        if log is None:
            return
        measure = mean_absolute_error if runner.regression else accuracy
        name = "validation_error" if runner.regression else "validation_accuracy"
        record[name] = measure(runner.model, self.data.held_pixels, self.data.held_labels)
        if self.certify_every and (epoch + 1) % self.certify_every == 0 and epoch + 1 < self.recipe.train.epochs:
            name = NUMBERS[1] if runner.regression else CLASSES[1]
            record[name] = self._certify().get(name)
        record["seconds"] = time.perf_counter() - began
        log.append(record)
        self.good = checkpoints.save(self.folder / CHECKPOINTS, epoch + 1, self.about, runner.model, runner.optimizer)

    def _certify(self) -> dict[str, float]:
        """Certify held-out images; return no figures if there are none."""
        if not self.certify_images or not len(self.data.held_labels):
            return {}
        self.runner.say("certify")
        images, labels = self.data.first_held_out(self.certify_images)
        return certified_figures(self.runner.model, images, labels, self.transform, self.recipe.certify)

    def _finish(self, result: TrainResult) -> None:
        model, data = self.runner.model, self.data
        figures: dict[str, float | None] = dict.fromkeys(NUMBERS if self.runner.regression else CLASSES)
        if self.runner.regression:
            figures["mean_absolute_error"] = mean_absolute_error(model, data.held_pixels, data.held_labels)
        else:
            clean = accuracy(model, data.held_pixels, data.held_labels)
            figures["clean_percent"] = None if clean is None else 100 * clean
        certified = self._certify()
        if certified:
            figures |= certified
            result.certified_images = min(self.certify_images, len(data.held_labels))
        write_outcome(
            self.folder, self.recipe, model, data.device, len(data.held_labels), figures, result.certified_images
        )
        for name, value in figures.items():
            setattr(result, name, value)


def _check_folder(folder: Path, resume: bool) -> None:
    """Raise unless the folder is new, or holds a run to resume."""
    try:
        found = [name for name in (CHECKPOINTS, WEIGHTS, CARD, LOG) if (folder / name).exists()]
        usable = folder.is_dir() or not folder.exists()
    except OSError as error:
        raise InputError("the run folder cannot be used", got=f"{folder} ({error.strerror})") from None
    if not usable:
        raise InputError("the run folder is not a folder", got=folder, do="choose another name")
    if found and not resume:
        raise InputError(
            "the run folder already contains a training run",
            got=f"{folder} with {', '.join(found)}",
            do="choose another folder, or --resume (resume=True) to continue that run",
        )


def _load(recipe: Recipe, data_root: str | Path | None, processes: Processes) -> tuple[Tensor, Tensor]:
    """Load the training set; the first process does so before the others, because it may have to download or decode it."""
    if not processes.first:
        processes.wait()
    images, labels = load_pixels(recipe.data.name, data_root, split="train")
    if processes.first:
        processes.wait()
    return images, labels
