"""The files of a training run: lock, log, weights and model card."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tiltproof.errors import InputError
from tiltproof.runs.atomic_io import document, lock, replace_bytes
from tiltproof.runs.manifest import environment
from tiltproof.training.distributed import Processes
from tiltproof.training.evaluate import MAX_BOXES
from tiltproof.training.recipe import Recipe

LOCK = ".lock"
"""The lock file, which is never removed: one process could lock it while another creates a new one."""
LOG, EVENTS = "log.jsonl", "tensorboard"
WEIGHTS, CARD, RECIPE = "model.safetensors", "card.json", "recipe.json"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an OSError into an `InputError` about the run folder."""
    try:
        yield
    except OSError as error:
        raise InputError(
            "the run folder cannot be written",
            got=f"{folder} ({error.strerror or error})",
            why="no space left, or no permission",
            do="make room, then repeat the command with --resume: finished epochs are kept",
        ) from None


@contextmanager
def writing_alone(folder: Path, processes: Processes, device: torch.device) -> Iterator[None]:
    """Create and lock the folder in the first process; raise `InputError` in all processes if another run has locked it.

    If only the first process raised, the others would wait for it.
    """
    with ExitStack() as opened:
        refused = None
        if processes.first:
            try:
                with writing(folder):
                    folder.mkdir(parents=True, exist_ok=True)
                    lock(opened.enter_context((folder / LOCK).open("ab")), folder)
            except InputError as error:
                refused = error
        if processes.sum(torch.tensor(float(refused is not None), device=device)):
            raise refused or InputError(
                "the first process could not lock the run folder", got=folder, do="see its message"
            )
        yield


class EpochLog:
    """The log: log.jsonl with one line per epoch, and TensorBoard files. A resumed run drops lines after the epochs done."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        self.path = folder / LOG
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self.records = [record for record in _read(self.path) if record["epoch"] <= epochs_done]
            replace_bytes(self.path, b"".join(map(_line, self.records)))
        self.events = _event_writer(folder / EVENTS, epochs_done)

    def append(self, record: dict[str, Any]) -> None:
        """Append one epoch; when this returns, its line is on disk."""
        with writing(self.path.parent), self.path.open("ab") as stream:
            stream.write(_line(record))
            stream.flush()
            os.fsync(stream.fileno())
        self.records.append(record)
        if self.events is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name not in ("epoch", "step"):
                    self.events.add_scalar(name, value, record["epoch"])
            self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the records up to the first torn line."""
    records: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return records
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict) or record.get("epoch") != len(records) + 1:
            break
        records.append(record)
    return records


def _event_writer(folder: Path, epochs_done: int) -> Any:
    """Return TensorBoard's writer; warn and return None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn("no TensorBoard event files: the package tensorboard is not installed", stacklevel=2)
        return None
    return SummaryWriter(str(folder), purge_step=epochs_done + 1)


def write_outcome(
    folder: Path,
    recipe: Recipe,
    model: nn.Module,
    device: torch.device,
    held_out: int,
    figures: Mapping[str, float | None],
    certified: int,
) -> None:
    """Write model.safetensors, then the card with its digest."""
    from safetensors.torch import save

    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()})
    with writing(folder):
        replace_bytes(folder / WEIGHTS, content)
        replace_bytes(folder / CARD, document(card(recipe, content, device, held_out, figures, certified)))


def card(
    recipe: Recipe,
    content: bytes,
    device: torch.device,
    held_out: int,
    figures: Mapping[str, float | None],
    certified: int,
) -> dict[str, Any]:
    """Return the model card, null where nothing was measured; ``certified`` is the number of images tried."""
    return {
        "name": recipe.name,
        "architecture": recipe.model.architecture,
        "dataset": recipe.data.name,
        "transform": recipe.transform,
        "trained": f"tiltproof train: recipe {recipe.name}, loss {recipe.loss.kind}, {recipe.train.epochs} epochs, "
        f"seed {recipe.train.seed}",
        **figures,
        "measured": measured(recipe, held_out, certified),
        "sha256": hashlib.sha256(content).hexdigest(),
        "recipe": recipe.to_dict(),
        "environment": environment(device),
    }


def measured(recipe: Recipe, held_out: int, certified: int) -> str:
    """Describe the images and the method of the figures."""
    if not held_out:
        return "nothing: no image was held out"
    text = f"the {held_out:,} images held out of the training set ({100 * recipe.data.hold_out:g} %): clean on all"
    if not certified:
        return text + "; none certified"
    splits = recipe.certify.splits
    how = f"up to {MAX_BOXES:,} boxes per image" if splits is None else f"splits {', '.join(map(str, splits))}"
    return f"{text}; certified figures on the first {certified:,} (method {recipe.certify.method}, {how})"
