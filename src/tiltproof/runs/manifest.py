"""The manifest of a run folder: the claim, tied to weights and images by digests, and the environment."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tiltproof.network import Network, WithoutHead
from tiltproof.verify.inputs import Inputs
from tiltproof.version import __version__

WEIGHTS_FILE, TENSORS = "weights file, sha256", "tensors, sha256"
"""The two digests of a network's weights: of the file's bytes, and of names, shapes and numbers (`weights_digest`)."""


def claim(inputs: Inputs, first: int, **answers: list[Any] | None) -> dict[str, Any]:
    """Return the claim, which a resumed run and a checker compare. ``answers``: labels, or target values of a
    regression."""
    return {
        "transform": str(inputs.transform),
        "semantics": inputs.semantics,
        "weights_sha256": weights_digest(inputs.model),
        "first": first,
        "shape": list(inputs.images.shape[1:]),
        "dtype": str(inputs.images.dtype).removeprefix("torch."),
        "images_sha256": image_digests(inputs.images),
        **answers,
        **({"head": list(inputs.head)} if inputs.head else {}),
    }


def environment(device: torch.device) -> dict[str, str]:
    """Return versions and devices."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "tiltproof": package_version(),
        "source_sha256": source_digest(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device} ({name})",
    }


def package_version() -> str:
    return __version__


@functools.cache
def source_digest(part: str = "") -> str:
    """Return the sha256 of the Python files of the package, or of a part of it, by name: between releases the version
    does not identify the code."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1] / part
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(json.dumps([path.relative_to(package).as_posix(), len(content)]).encode())
        digest.update(content)
    return digest.hexdigest()


def weights_digest(model: nn.Module) -> str:
    """sha256 over every parameter and buffer, sorted by name: a line with name, dtype and shape, then the bytes."""
    model = model.model if isinstance(model, WithoutHead) else model  # its head has no weights
    digest = hashlib.sha256()
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update((json.dumps([name, kind, list(tensor.shape)]) + "\n").encode())
        digest.update(_bytes(tensor.detach().cpu().contiguous().numpy()))
    return digest.hexdigest()


def graph_digest(network: Network) -> str:
    """Return the sha256 of a network's operations with all constants, including those that no state dict holds."""
    digest = hashlib.sha256(json.dumps([network.input, network.output, list(network.shape)]).encode())
    for operation in network.operations:
        plain = {key: repr(value) for key, value in operation.settings.items() if not isinstance(value, Tensor)}
        digest.update(json.dumps([operation.name, operation.kind, operation.inputs, plain, operation.shape]).encode())
        for key, value in sorted(operation.settings.items()):
            if isinstance(value, Tensor):
                digest.update(json.dumps([key, str(value.dtype), list(value.shape)]).encode())
                digest.update(_bytes(value.detach().cpu().contiguous().numpy()))
    return digest.hexdigest()


def image_digests(images: Tensor) -> list[str]:
    """Return the sha256 of each image's pixels [C, H, W]."""
    return [hashlib.sha256(pixels).hexdigest() for pixels in _pixels(images)]


def _pixels(images: Tensor) -> Iterator[bytes]:
    for part in images.split(1024):
        yield from map(_bytes, part.detach().cpu().contiguous().numpy())


def _bytes(array: np.ndarray) -> bytes:
    """Return little-endian bytes in C order."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
