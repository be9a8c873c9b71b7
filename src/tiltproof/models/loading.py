"""Load a network by name: bundled, the file of a network, or ``package.module:function``."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from tiltproof.errors import InputError, raised, shown
from tiltproof.keras import load_keras
from tiltproof.models import cards
from tiltproof.models.architectures import ARCHITECTURES
from tiltproof.models.weights_file import PICKLES, build, check_file, read_bytes
from tiltproof.onnx import load_onnx
from tiltproof.onnx.program import load_program
from tiltproof.program import as_program
from tiltproof.tflite import load_tflite

KERAS = (".keras", ".h5", ".hdf5")
READING = {".onnx": ("shape", "layout", "output"), ".tflite": ("layout", "output")} | dict.fromkeys(KERAS, ("shape",))
"""Which options say how to read a file, by its kind."""

OTHER_FORMATS = {
    ".pb": ", e.g. python -m tf2onnx.convert --graphdef net.pb --output net.onnx, with its inputs and outputs",
    ".mlmodel": " with coremltools or onnxmltools",
    ".torchscript": ", or pass the module that it was made of",
}
"""Files that people have instead, and what to do with them."""


def load(
    model: str,
    arch: str | None = None,
    allow_pickle: bool = False,
    *,
    shape: Sequence[int] | Callable[[], Sequence[int]] | None = None,
    layout: str | None = None,
    output: str | None = None,
) -> nn.Module:
    """Load a network by its name, as ``--model`` takes it.

    Parameters
    ----------
    model : str
        The name of a bundled network (see `models`), the path of a ``.safetensors``, ``.onnx``, ``.keras``, ``.h5`` or ``.tflite``
        file, or ``package.module:function``, where the function takes no arguments and returns the network.
    arch : str, optional
        The architecture of a weight file, a key of `ARCHITECTURES`; by default the one named by the card next to it.
    allow_pickle : bool
        Accept a state dict written by ``torch.save`` as well. No code in it is run.
    shape, layout, output : optional
        How to read an ``.onnx`` file, as in `load_onnx`; ``shape`` also for Keras files, ``layout`` and ``output`` for TFLite. A ``shape``
        that is a function is left alone by other models.

    Returns
    -------
    torch.nn.Module
        The network on the CPU, in eval mode unless a function returned it.

    Raises
    ------
    InputError
        If there is no such network, or the file is damaged, unsafe or does not fit the architecture.
    """
    path = Path(model)
    reading = {"shape": None if callable(shape) else shape, "layout": layout, "output": output}
    taken = READING.get(path.suffix.lower(), ())
    given = [name for name, value in reading.items() if value is not None and name not in taken]
    if given:
        kinds = ", ".join(kind for kind, options in READING.items() if given[-1] in options)
        raise InputError(
            f"--{given[-1]} goes with other files: {kinds}",
            got=f"--model {shown(model)}",
            do=f"leave --{given[-1]} out",
        )
    if path.suffix.lower() in (".safetensors", *PICKLES):
        check_file(path, allow_pickle)
        card = cards.card_next_to(path) if arch is None else None
        if card is not None:
            content = read_bytes(path, card.architecture)
            card.check(content, path)
            return build(card.architecture, content, path)
        if arch is None:
            raise InputError(
                "a weight file needs the architecture it belongs to",
                got=f"--model {model} without --arch, and no card next to it",
                do=f"add --arch, one of {', '.join(ARCHITECTURES)}",
            )
        return build(arch, read_bytes(path, arch), path)
    if arch is not None:
        raise InputError("--arch goes with a .safetensors file only", got=f"--model {model} --arch {arch}")
    if path.suffix.lower() == ".onnx":
        return load_onnx(path, shape=shape, layout=layout, output=output)
    if path.suffix.lower() in KERAS:
        return load_keras(path, shape)
    if path.suffix.lower() == ".tflite":
        return load_tflite(path, layout=layout, output=output)
    if path.suffix.lower() in OTHER_FORMATS and path.is_file():
        raise InputError(
            f"files of this kind cannot be read: {path.suffix}",
            got=f"--model {model}",
            do=f"convert it to ONNX{OTHER_FORMATS[path.suffix.lower()]}",
        )
    return _call(model) if ":" in model else load_bundled(model)


def load_as_program(
    model: str,
    arch: str | None = None,
    allow_pickle: bool = False,
    *,
    shape: Sequence[int] | Callable[[], Sequence[int]] | None = None,
    layout: str | None = None,
    output: str | None = None,
) -> nn.Module:
    """Load what uint8 semantics evaluate; arguments as in `load`. An ``.onnx`` file is run by onnxruntime, whatever its operations;
    ``package.module:function`` may be a function from images [N, C, H, W] to scores [N, K], or return one."""
    file = Path(model)
    if file.suffix.lower() == ".onnx" and arch is None:
        return load_program(file, shape=shape, layout=layout, output=output)
    if ":" in model and not file.suffix and arch is None:
        function = _function(model)
        return as_program(_made(model, function) if _takes_nothing(function) else function)
    return load(model, arch, allow_pickle, shape=shape, layout=layout, output=output)


def _takes_nothing(function: Callable[..., object]) -> bool:
    """Whether a function can be called without arguments, as those that make a network are."""
    if isinstance(function, nn.Module):
        return False
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # of a built-in function that does not tell
        return False
    return True


def load_bundled(name: str, folder: Path | None = None) -> nn.Module:
    """Load a bundled network and check its weights against the digest on its card."""
    bundled = {card.name: card for card in cards.models(folder)}
    if name not in bundled:
        raise InputError(
            "no bundled model has this name",
            got=name,
            do=f"use one of {', '.join(bundled) or '(none is installed)'}, "
            "a .safetensors file with --arch, an .onnx, .keras, .h5 or .tflite file, or package.module:function",
        )
    card, path = bundled[name], (folder or cards.WEIGHTS_FOLDER) / f"{name}.safetensors"
    check_file(path)
    content = read_bytes(path, card.architecture)
    digest = hashlib.sha256(content).hexdigest()
    if digest != card.sha256:
        raise InputError(
            f"the weights of {name} are not those its card describes",
            got=f"sha256 {digest} instead of {card.sha256}",
            why="the file was changed or damaged",
            do="reinstall tiltproof",
        )
    return build(card.architecture, content, path)


def card_of(model: str) -> cards.CardSummary | None:
    """Find the card of a network.

    Parameters
    ----------
    model : str
        A name as `load` takes it.

    Returns
    -------
    CardSummary or None
        Architecture, transformation and digest; None if no card describes the network.

    Raises
    ------
    InputError
        If the card next to a weight file describes other weights.
    """
    path = Path(model)
    if path.suffix.lower() in (".safetensors", *PICKLES):
        card = cards.card_next_to(path)
        if card is not None:
            card.check(read_bytes(path, card.architecture), path)
        return card
    for bundled in cards.models():
        if bundled.name == model:
            return cards.CardSummary(bundled.architecture, bundled.transform, bundled.sha256)
    return None


def _call(spec: str) -> nn.Module:
    """Import ``package.module:function`` and call the function, which makes the network."""
    function = _function(spec)
    if not _takes_nothing(function):
        raise InputError(
            f"the function of --model {spec} takes arguments",
            got=f"{function!r}"[:200],
            why="a program, from images to scores, instead of a function that makes a network",
            do="use --semantics uint8, which evaluates any program, or give a function without arguments that returns the network",
        )
    model = _made(spec, function)
    if not isinstance(model, nn.Module):
        raise InputError(f"{spec} did not return a torch.nn.Module", got=type(model).__name__)
    return model


def _made(spec: str, function: Callable[..., object]) -> object:
    try:
        return function()
    except Exception as error:
        do = "give a function that takes no arguments and returns the model"
        raise InputError(f"{spec} failed", got=raised(error), do=do) from error


def _function(spec: str) -> Callable[..., object]:
    """Import the function of ``package.module:function``, also from the current directory."""
    module_name, _, function_name = spec.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            got, do = raised(error), "install what it imports, or run tiltproof where it is installed"
            raise InputError(f"importing the module of --model {spec} failed", got=got, do=do) from error
        raise InputError(
            f"the module of --model {spec} was not found",
            got=error,
            do="write package.module:function, importable from the current directory or installed",
        ) from None
    except AttributeError as error:
        raise InputError(f"the function of --model {spec} was not found", got=error) from None
    except Exception as error:
        raise InputError(f"importing the module of --model {spec} failed", got=raised(error)) from error
    if not callable(function):
        raise InputError(f"--model {spec} is no function", got=type(function).__name__)
    found: Callable[..., object] = function
    return found
