"""A model from the text a user gives: a bundled name, a ``.safetensors`` or ``.onnx`` file, or ``package.module:function``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from torch import nn

from tiltproof.errors import InputError
from tiltproof.models.architectures import ARCHITECTURES
from tiltproof.models.bundled import load_model, models
from tiltproof.models.cards import CardBeside, card_beside
from tiltproof.models.weights_file import PICKLES, build, check_file, read_bytes
from tiltproof.onnx import load_onnx


def resolve_model(spec: str, arch: str | None = None, allow_pickle: bool = False) -> nn.Module:
    """The model that ``spec`` names; ``arch`` is the architecture of a weight file and goes with nothing else.

    Without ``arch`` a card beside the weight file tells it (`tiltproof train` writes one).
    With ``allow_pickle`` a weight file may also be a state dict that torch.save wrote; no code in it is run.
    """
    path = Path(spec)
    if path.suffix.lower() in (".safetensors", *PICKLES):
        check_file(path, allow_pickle)
        card = card_beside(path) if arch is None else None
        if card is not None:
            content = read_bytes(path, card.architecture)
            card.check(content, path)
            return build(card.architecture, content, path)
        if arch is None:
            raise InputError(
                "a weight file needs the architecture it belongs to",
                got=f"--model {spec} without --arch, and no card beside it",
                do=f"add --arch, one of {', '.join(ARCHITECTURES)}",
            )
        return build(arch, read_bytes(path, arch), path)
    if arch is not None:
        raise InputError("--arch goes with a .safetensors file only", got=f"--model {spec} --arch {arch}")
    if path.suffix.lower() == ".onnx":
        return load_onnx(path)
    return _call(spec) if ":" in spec else load_model(spec)


def card_of(spec: str) -> CardBeside | None:
    """The card that goes with ``spec``: of a bundled model, or beside a weight file that it describes; else None."""
    path = Path(spec)
    if path.suffix.lower() in (".safetensors", *PICKLES):
        card = card_beside(path)
        if card is not None:
            card.check(read_bytes(path, card.architecture), path)
        return card
    bundled = {card.name: card for card in models()}.get(spec)
    if bundled is None:
        return None
    return CardBeside(bundled.architecture, bundled.transform, bundled.sha256)


def _call(spec: str) -> nn.Module:
    """Import ``package.module:function`` (also from the current directory) and call the function."""
    module_name, _, function_name = spec.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"the module of --model {spec} was not found",
            got=error,
            do="write package.module:function, importable from the current directory or installed",
        ) from None
    except AttributeError as error:
        raise InputError(f"the function of --model {spec} was not found", got=error) from None
    except Exception as error:
        raise InputError(f"importing the module of --model {spec} failed", got=_described(error)) from error
    try:
        model = function()
    except Exception as error:
        raise InputError(
            f"{spec} failed", got=_described(error), do="give a function that takes no arguments and returns the model"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{spec} did not return a torch.nn.Module", got=type(model).__name__)
    return model


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
