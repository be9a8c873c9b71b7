"""Read weights from a file into an architecture, and nothing else: a file of weights must not run code.

Safetensors is the format. A pickle of torch.save is read on demand only, by `tiltproof.models.torch_file`. The file's size
is compared with what the architecture needs before a byte of it is read.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.models.architectures import ARCHITECTURES
from tiltproof.models.torch_file import read_torch

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
MOST_HEADER = 2**20
MOST_TIMES = 8
"""How many times the bytes of the architecture's weights a file may have: room for float64 or an optimiser's state."""


def check_file(path: Path, allow_pickle: bool = False) -> None:
    """Refuse what is no regular file, and a pickle unless it is allowed; nothing is opened."""
    if path.suffix.lower() in PICKLES and not allow_pickle:
        raise InputError(
            "weights are read from .safetensors files only",
            got=path,
            why="a pickle (.pt, .pth, ...) can run any code when it is opened",
            do="convert a file you trust: safetensors.torch.save_file(model.state_dict(), 'model.safetensors'); or allow "
            "a pickle of plain tensors, which is then read without running its code: --allow-pickle "
            "(allow_pickle=True in Python)",
        )
    try:
        path.stat()
        regular = path.is_file()  # a pipe would wait forever, /dev/zero never end
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not regular:
        raise InputError("the weight file is not a regular file", got=path, do="check --model")


def read_bytes(path: Path, architecture: str) -> bytes:
    """The content of a weight file, unless it is far larger than this architecture's weights."""
    needed = sum(tensor.nbytes for tensor in _expected(architecture).values())
    most = MOST_TIMES * needed + MOST_HEADER
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(
                f"the weight file is far larger than {architecture} needs",
                got=f"{path} of {size:,} bytes, where the weights take {needed:,}",
                why="another architecture",
                do=f"choose --arch among {', '.join(ARCHITECTURES)}, or give a function as package.module:function",
            )
        with path.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise _unreadable(path, error) from None


def build(architecture: str, content: bytes, path: Path) -> nn.Module:
    """The named architecture with these weights, in eval mode."""
    expected = _expected(architecture)
    most = MOST_TIMES * sum(tensor.nbytes for tensor in expected.values())
    weights = read_torch(content, path, most) if path.suffix.lower() in PICKLES else _parse(content, path)
    _check(weights, expected, architecture, path)
    model = ARCHITECTURES[architecture]()
    model.load_state_dict(weights)
    return model.eval()


def _expected(architecture: str) -> dict[str, Tensor]:
    """Names, shapes and types of an architecture's weights; on the meta device they hold no numbers."""
    if architecture not in ARCHITECTURES:
        raise InputError("unknown architecture", got=architecture, do=f"use one of {', '.join(ARCHITECTURES)}")
    with torch.device("meta"):
        return ARCHITECTURES[architecture]().state_dict()


def _parse(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load

    try:
        header = int.from_bytes(content[:8], "little")
        if not 2 <= header <= min(len(content) - 8, MOST_HEADER):
            raise ValueError(f"{len(content):,} bytes that announce a header of {header:,}")
        return load(content)
    except Exception as error:  # the library answers damage with its own error, KeyError, AssertionError and others
        raise InputError(
            f"not a readable safetensors file: {path}",
            got=shown(error) or type(error).__name__,
            why="the file was cut short, or is of another format",
            do="save it again with safetensors.torch.save_file",
        ) from None


def _check(weights: dict[str, Tensor], expected: dict[str, Tensor], architecture: str, path: Path) -> None:
    problems = [f"{name} is missing" for name in expected if name not in weights]
    for name, tensor in sorted(weights.items()):
        if name not in expected:
            problems.append(f"{shown(name)} is unknown")
        elif tensor.shape != expected[name].shape:
            problems.append(f"{name} is {shown(str(list(tensor.shape)))} instead of {list(expected[name].shape)}")
        elif tensor.dtype != expected[name].dtype:  # float32, but for the counter of batch norm
            problems.append(f"{name} is {tensor.dtype} instead of {expected[name].dtype}")
        elif not tensor.isfinite().all():
            problems.append(f"{name} has values that are NaN or infinite")
    if problems:
        raise InputError(
            f"the weights in {path} do not fit {architecture}",
            got="; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else ""),
            why="another architecture",
            do=f"choose --arch among {', '.join(ARCHITECTURES)}, or give a function as package.module:function",
        )


def _unreadable(path: Path, error: OSError | ValueError) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError("the weight file cannot be read", got=f"{path} ({reason})", do="check --model")
