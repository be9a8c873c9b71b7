"""Read weights from a safetensors file into an architecture, and nothing else: a file of weights must not run code."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.zoo.architectures import ARCHITECTURES

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")


def read_bytes(path: Path) -> bytes:
    """The content of a weight file."""
    if path.suffix.lower() in PICKLES:
        raise InputError(
            "weights are read from .safetensors files only",
            got=path,
            why="a pickle (.pt, .pth, ...) can run any code when it is opened",
            do="convert a file you trust: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')",
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            "the weight file cannot be read", got=f"{path} ({error.strerror})", do="check --model"
        ) from None


def build(architecture: str, content: bytes, path: Path) -> nn.Module:
    """The named architecture with these weights, in eval mode."""
    if architecture not in ARCHITECTURES:
        raise InputError("unknown architecture", got=architecture, do=f"use one of {', '.join(ARCHITECTURES)}")
    model = ARCHITECTURES[architecture]()
    weights = _parse(content, path)
    _check(weights, model.state_dict(), architecture, path)
    model.load_state_dict(weights)
    return model.eval()


def _parse(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(
            f"not a readable safetensors file: {path}",
            got=error,
            why="the file was cut short, or is of another format",
            do="save it again with safetensors.torch.save_file",
        ) from None


def _check(weights: dict[str, Tensor], expected: dict[str, Tensor], architecture: str, path: Path) -> None:
    problems = [f"{name} is missing" for name in expected if name not in weights]
    for name, tensor in sorted(weights.items()):
        if name not in expected:
            problems.append(f"{name} is unknown")
        elif tensor.shape != expected[name].shape:
            problems.append(f"{name} is {list(tensor.shape)} instead of {list(expected[name].shape)}")
        elif tensor.dtype != torch.float32:
            problems.append(f"{name} is {tensor.dtype} instead of torch.float32")
        elif not tensor.isfinite().all():
            problems.append(f"{name} has values that are NaN or infinite")
    if problems:
        raise InputError(
            f"the weights in {path} do not fit {architecture}",
            got="; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else ""),
            why="another architecture",
            do=f"choose --arch among {', '.join(ARCHITECTURES)}, or give a function as package.module:function",
        )
