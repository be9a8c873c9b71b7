"""Checkpoints after every epoch, from which a run continues exactly.

``epoch-00007.safetensors`` holds the weights, ``epoch-00007.optimizer.safetensors`` the optimizer's tensors, and
``epoch-00007.json``, written last, the rest and the digests of both. A checkpoint without a valid JSON file, or whose digests do
not match, is torn; then the one before it is used, which is why two are stored. No file can run code. There is no random state to
save: random numbers depend only on the seed and the step.
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

FORMAT, VERSION = "tiltproof-checkpoint", 1
STORED = 2
"""Number of checkpoints that are stored."""
NAME = re.compile(r"epoch-(\d{5,})\.json")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    """The file of the weights."""
    epoch: int
    """Epochs done."""
    about: dict[str, Any]
    """Recipe and data of the run; a resumed run must have the same."""
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Restore the weights and the optimizer's state."""
        model.load_state_dict(self.weights)
        state: dict[int, dict[str, Tensor]] = {}
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for number, name in enumerate(trained):
            # keys of the optimizer's state contain no dot
            keys = [key for key in self.optimizer if key.rpartition(".")[0] == name]
            if keys:
                state[number] = {key.rpartition(".")[2]: self.optimizer[key] for key in keys}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        for parameter, entries in optimizer.state.items():  # fused optimizers need moments in their parameter's layout
            for key, value in entries.items():
                if value.shape == parameter.shape:
                    entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def save(folder: Path, epoch: int, about: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    """Write the checkpoint after ``epoch`` epochs, remove all but the newest two, and return the path of the weights."""
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
        for stale in folder.glob(".epoch-*"):  # left by a process that was killed while writing
            stale.unlink(missing_ok=True)
        for old in _epochs(folder)[STORED:]:
            for path in reversed(_paths(folder, old)):  # the JSON file first: without it the checkpoint does not count
                path.unlink(missing_ok=True)
    return weights


def latest(folder: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint, or None if there has never been one; warn about torn ones."""
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
    """Raise `InputError` if the checkpoint belongs to a run with another recipe or other data."""
    differences = list(_differences(checkpoint.about, json.loads(json.dumps(about))))
    if differences:
        raise InputError(
            "the checkpoint belongs to a different run",
            got="; ".join(differences[:4]) + (f"; and {len(differences) - 4} more" if len(differences) > 4 else ""),
            why="another recipe, other settings or other data",
            do="repeat the command with the settings of that run, or choose another folder",
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
    """Return the epochs with a JSON file, the newest first."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(found[1]) for name in names if (found := NAME.fullmatch(name))), reverse=True)


def _seal(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU; safetensors refuses tensors that share memory."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
