"""A Keras file's description and weights: sizes are compared before anything is unpacked, and no code is run."""

from __future__ import annotations

import importlib
import io
import json
import re
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError, UnsupportedOperation, shown

MOST_BYTES = 2**30
"""Of the file, and of all that it unpacks to."""
SAVE_AGAIN = "load it with Keras 3 and save it again: model.save('net.keras')"
OF_TRAINING = ("optimizer", "optimizer_weights", "_metrics", "metrics", "compile_metrics", "_loss_tracker")
"""Groups of weights that belong to training alone."""


def h5py() -> Any:
    """The package that only users of Keras files need."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise InputError(
            "Keras files need the package h5py", got=shown(error), do="pip install 'tiltproof[keras]'"
        ) from None


@dataclass
class Weights:
    """The file's arrays, taken one layer after the other; what is left at the end was not understood.

    ``groups``: path of a layer's group -> its arrays in order. ``names``: the same path -> the layer's name, where the file tells it.
    """

    groups: dict[str, dict[str, np.ndarray]]
    names: dict[str, str] = field(default_factory=dict)
    by_name: bool = False
    """Of an ``.h5`` file: arrays have names such as ``kernel``, and groups those of layers."""

    def folder(self, parent: str, name: str, kind: str, count: int) -> str:
        """The path of a layer's group below the model ``parent``. ``count``: how many layers of its class come before it, which is how
        Keras finds it; newer versions write its name as well."""
        if self.by_name:
            return f"{parent.partition('/')[0]}/{name}" if parent else name
        folder = (f"{parent}/layers" if parent else "layers") + f"/{snake_case(kind)}" + (f"_{count}" if count else "")
        if self.names.get(folder, name) != name:
            raise InputError(
                "the .keras file has its layers' weights in another order than its layers",
                got=shown(f"{self.names[folder]} where {name} was expected"),
                do=SAVE_AGAIN,
            )
        return folder

    def take(self, folder: str, wanted: list[str], also: dict[str, str] | None = None) -> dict[str, Tensor]:
        """The arrays of a layer, by the names that it wants, in Keras's order; these and no others. ``also``: other names of theirs."""
        group = self.groups.pop(folder, {})
        group = {(also or {}).get(key, key): array for key, array in group.items()}
        keys = list(group)
        expected = wanted if self.by_name else [str(number) for number in range(len(wanted))]
        if sorted(keys) != sorted(expected):
            raise InputError(
                f"the Keras file has other weights for layer {shown(folder, 80)!r} than the layer has",
                got=shown(f"{keys} for {wanted}"),
                why="a damaged file, or one written by a version of Keras that is not known here",
                do=SAVE_AGAIN,
            )
        return {
            name: torch.from_numpy(np.ascontiguousarray(group[key])) for name, key in zip(wanted, expected, strict=True)
        }


def snake_case(name: str) -> str:
    """Keras's own rule for the names of groups.

    >>> snake_case("ReLU"), snake_case("DepthwiseConv2D")
    ('re_lu', 'depthwise_conv2d')
    """
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def read_archive(path: Path) -> tuple[bytes, dict[str, Any], Weights]:
    """The file's bytes, its description of the network, and its weights."""
    try:
        if not path.is_file():
            raise InputError("the Keras file is not a regular file", got=shown(path), do="check --model")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise InputError(
                "the Keras file is too large", got=f"{shown(path)} of {size:,} bytes, at most {MOST_BYTES:,}"
            )
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("the Keras file cannot be read", got=shown(f"{path} ({error})"), do="check --model") from None
    h5py()
    try:
        if content.startswith(b"PK"):
            description, weights = _from_zip(content)
        else:
            description, weights = _from_h5(content)
    except InputError:
        raise
    except Exception as error:  # h5py and zipfile raise errors of many classes for damaged files
        raise _unreadable(path, shown(f"{type(error).__name__}: {error}")) from None
    if not isinstance(description, dict):
        raise _unreadable(path, "a description that is no dictionary")
    return content, description, weights


def _unreadable(path: Path, got: str) -> InputError:
    return InputError(
        f"not a readable Keras file: {shown(path)}",
        got=got,
        why="the file was cut short, is damaged, or is of another format",
        do=SAVE_AGAIN,
    )


def _from_zip(content: bytes) -> tuple[Any, Weights]:
    """``.keras``: config.json, and model.weights.h5 with the arrays 0, 1, ... of every layer."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        wanted = ("config.json", "model.weights.h5")
        if any(name not in sizes for name in wanted) or sum(sizes[name] for name in wanted) > MOST_BYTES:
            raise InputError(
                "the .keras file lacks its description or its weights, or is too large", got=shown(sorted(sizes))
            )
        description, arrays = json.loads(archive.read(wanted[0])), archive.read(wanted[1])
    groups: dict[str, dict[str, np.ndarray]] = {}
    names: dict[str, str] = {}
    package = h5py()
    with package.File(io.BytesIO(arrays), "r") as file:
        for path, group in _tree(file):
            parts = path.split("/")
            if parts[0] in OF_TRAINING or parts[-1] != "vars":
                if parts[0] not in OF_TRAINING and any(isinstance(each, package.Dataset) for each in group.values()):
                    raise InputError("the .keras file has weights at an unknown place", got=shown(path))
                continue
            folder = "/".join(parts[:-1])
            if "name" in group.attrs:
                names[folder] = str(group.attrs["name"])
            found = {name: _array(group[name], f"{path}/{name}") for name in sorted(group, key=_number)}
            if found:
                groups[folder] = found
    return description, Weights(groups, names)


def _number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isascii() and name.isdigit() and len(name) < 9 else (10**9, name)


def _from_h5(content: bytes) -> tuple[Any, Weights]:
    """``.h5``: the description is an attribute; each layer's group lists its arrays by name."""
    with h5py().File(io.BytesIO(content), "r") as file:
        description = file.attrs.get("model_config")
        if description is None:
            raise InputError(
                "the .h5 file has weights alone, and no description of the network",
                got="no attribute model_config",
                why="it was written by model.save_weights",
                do="save the whole model: model.save('net.keras')",
            )
        text = description.decode() if isinstance(description, bytes) else str(description)
        groups: dict[str, dict[str, np.ndarray]] = {}
        for path, group in _tree(file["model_weights"]):
            listed = [
                each.decode() if isinstance(each, bytes) else str(each) for each in group.attrs.get("weight_names", ())
            ]
            for name in listed:
                short = name.rpartition("/")[2].partition(":")[0]
                layer = path
                scopes = name.split("/")[:-1]
                if _nested(text, path):  # a model inside of a model lists the arrays of all of its layers
                    layer = f"{path}/{scopes[-1] if scopes else ''}"
                arrays = groups.setdefault(layer, {})
                if short in arrays:
                    raise InputError("the .h5 file names two arrays of a layer alike", got=shown(f"{layer}: {name}"))
                arrays[short] = _array(group[name], f"{path}/{name}")
    return json.loads(text), Weights(groups, by_name=True)


def _nested(text: str, name: str) -> bool:
    """Whether the layer of this name is itself a model."""
    layers = json.loads(text)["config"]
    layers = layers["layers"] if isinstance(layers, dict) else layers
    return any(layer["config"].get("name") == name and "layers" in layer["config"] for layer in layers)


def _tree(file: Any) -> list[tuple[str, Any]]:
    """All groups, with their paths; links that leave the file are refused."""
    package, found, waiting = h5py(), [("", file)], [("", file)]
    while waiting:
        path, group = waiting.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, package.HardLink):
                raise InputError("the Keras file has links to other places", got=shown(f"{path}/{name}"))
            if isinstance(group[name], package.Group):
                entry = (f"{path}/{name}".lstrip("/"), group[name])
                found.append(entry)
                waiting.append(entry)
                if len(found) > 10**5 or entry[0].count("/") > 30:
                    raise InputError("the Keras file has too many groups", got=shown(entry[0]))
    return found


def _array(data: Any, name: str) -> np.ndarray:
    """The numbers of a float32 array (integers are counters that no layer here uses)."""
    if not isinstance(data, h5py().Dataset) or data.external or data.is_virtual:
        raise InputError("the Keras file has numbers at another place", got=shown(name))
    if data.ndim > 8 or data.size * 8 > MOST_BYTES:
        raise InputError("the Keras file has an array that is too large", got=shown(f"{name} of {data.shape}"))
    if data.dtype.kind in "iu":
        return np.asarray(data)
    if data.dtype != np.float32:
        raise UnsupportedOperation(
            "the Keras file has weights of another type than float32", got=shown(f"{name} of {data.dtype}")
        )
    array = np.asarray(data)
    if not np.isfinite(array).all():
        raise InputError("the Keras file has weights that are NaN or infinite", got=shown(name))
    return array


def counted(kinds: list[str]) -> list[int]:
    """For each class name how often it occurred before, as Keras numbers the groups of an older ``.keras`` file."""
    seen: Counter[str] = Counter()
    result = []
    for kind in kinds:
        result.append(seen[snake_case(kind)])
        seen[snake_case(kind)] += 1
    return result
