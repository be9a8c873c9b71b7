"""Checkpoints: everything an exact continuation needs, after every epoch.

``epoch-00007.safetensors`` holds the weights, ``epoch-00007.optimizer.safetensors`` the optimizer's tensors, and
``epoch-00007.json``, written last, the rest and the digests of all. A checkpoint without a whole JSON file, or whose
digests do not agree, is torn; the one before it is used then, which is why two are kept. No file can run code. Nothing random
has to be saved: what is drawn depends on the seed and the step alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.runs.atomic_io import document, replace_bytes
from tiltproof.training.artefacts import writing

FORMAT, VERSION, KEPT = "tiltproof-checkpoint", 1, 2
NAME = re.compile(r"epoch-(\d{5,})\.json")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, read and verified."""

    path: Path  # of the weights
    epoch: int  # epochs done
    about: dict[str, Any]  # what the run is: a resumed one must say the same
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put weights and the optimizer's state back."""
        model.load_state_dict(self.weights)
        state: dict[int, dict[str, Tensor]] = {}
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for number, name in enumerate(trained):
            # a key of the optimizer's state has no dot in it
            keys = [key for key in self.optimizer if key.rpartition(".")[0] == name]
            if keys:
                state[number] = {key.rpartition(".")[2]: self.optimizer[key] for key in keys}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        for (
            parameter,
            entries,
        ) in optimizer.state.items():  # a fused step wants moments to lie in memory as their parameter does
            for key, value in entries.items():
                if value.shape == parameter.shape:
                    entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def save(folder: Path, epoch: int, about: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    """Write the checkpoint after ``epoch`` epochs, then drop all but the newest two; returns the weights' path."""
    from safetensors.torch import save as packed

    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    moments = {
        f"{names[parameter]}.{key}": value
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        weights, rest, last = _paths(folder, epoch)
        contents = {path: packed(_plain(tensors)) for path, tensors in ((weights, model.state_dict()), (rest, moments))}
        for path, content in contents.items():
            replace_bytes(path, content)
        files = {path.name: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
        state = {"format": FORMAT, "version": VERSION, "epoch": epoch, "about": about, "files": files}
        replace_bytes(last, document({"state": state, "sha256": _seal(state)}))
        for stale in folder.glob(".epoch-*"):  # of a process that was killed while it wrote
            stale.unlink(missing_ok=True)
        for old in _epochs(folder)[KEPT:]:
            for path in reversed(_paths(folder, old)):  # the JSON file first: a checkpoint half removed is none
                path.unlink(missing_ok=True)
    return weights


def latest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, or None where there has never been one; torn ones are passed over with a notice."""
    epochs = _epochs(folder)
    for epoch in epochs:
        try:
            return _read(folder, epoch)
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            warnings.warn(f"the checkpoint of epoch {epoch} in {folder} is damaged ({error}); "
                          "the one before it is used", stacklevel=2)  # fmt: skip
    if epochs:
        raise InputError("no checkpoint is whole", got=folder, do="start again in another folder")
    return None


def agree(checkpoint: Checkpoint, about: dict[str, Any]) -> None:
    """Refuse to go on with a run that was begun with something else; the difference is named."""
    differences = list(_differences(checkpoint.about, json.loads(json.dumps(about))))
    if differences:
        raise InputError(
            "this is not the run that was begun",
            got="; ".join(differences[:4]) + (f"; and {len(differences) - 4} more" if len(differences) > 4 else ""),
            why="another recipe, other settings or other data",
            do="repeat the command with what it was begun with, or choose another folder",
        )


def _differences(before: Any, now: Any, name: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        inner = list(before) + [key for key in now if key not in before]
        return [
            text
            for key in inner
            for text in _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if before == now else [f"{name.removeprefix('recipe.')} was {before}, and is {now}"]


def _read(folder: Path, epoch: int) -> Checkpoint:
    from safetensors.torch import load

    weights, rest, last = _paths(folder, epoch)
    content = json.loads(last.read_text(encoding="utf-8"))
    state = content["state"]
    if content["sha256"] != _seal(state) or (state["format"], state["version"]) != (FORMAT, VERSION):
        raise ValueError(f"{last.name} is torn")
    tensors = []
    for path in (weights, rest):
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != state["files"][path.name]:
            raise ValueError(f"{path.name} has another checksum")
        tensors.append(load(data))
    return Checkpoint(weights, state["epoch"], state["about"], *tensors)


def _paths(folder: Path, epoch: int) -> tuple[Path, Path, Path]:
    stem = f"epoch-{epoch:05d}"
    return folder / f"{stem}.safetensors", folder / f"{stem}.optimizer.safetensors", folder / f"{stem}.json"


def _epochs(folder: Path) -> list[int]:
    """Epochs that have a JSON file, the newest first."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(found[1]) for name in names if (found := NAME.fullmatch(name))), reverse=True)


def _seal(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, each with memory of its own: safetensors refuses shared memory."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
