"""sha256 of weights and images, as the run folder's format defines them."""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from torch import Tensor, nn


def content(tensor: Tensor) -> bytes:
    """A tensor's numbers, little-endian, in C order."""
    array = tensor.detach().cpu().contiguous().reshape(-1)
    raw = array.view(torch.uint8).numpy()
    if sys.byteorder == "big":
        raw = raw.reshape(-1, array.element_size())[:, ::-1]
    return bytes(raw.tobytes())


def image_digest(image: Tensor) -> str:
    return hashlib.sha256(content(image)).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """All parameters and buffers, sorted by name: a line of JSON with name, type and shape, then the numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[0]):
        dtype = str(tensor.dtype).removeprefix("torch.")
        digest.update(json.dumps([name, dtype, list(tensor.shape)]).encode() + b"\n")
        digest.update(content(tensor))
    return digest.hexdigest()
