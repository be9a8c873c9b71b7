"""Read weights from a file into an architecture, without running code from the file.

Safetensors is the format. A state dict written by ``torch.save`` is read only where the user allows pickles, and then
by torch's ``weights_only`` loader. A file's size is compared with what the architecture needs before it is read.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.models.architectures import ARCHITECTURES

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
NORMALIZATION = ("normalize.mean", "normalize.std")
SEQUENTIALS = ("conv_layers", "model", "fc_layers")
SEQUENTIAL = re.compile(rf"({'|'.join(SEQUENTIALS)})\.(\d{{1,3}})\.\w+", re.ASCII)
"""Names in the files that the paper's authors published."""
MAX_HEADER = 2**20
"""Size limit of a header."""
MAX_RATIO = 8
"""Largest ratio of the file's size to that of the weights: room for float64 or an optimizer's state."""


def check_file(path: Path, allow_pickle: bool = False) -> None:
    """Raise unless this is a regular file, and not a pickle unless allowed; the file is not opened."""
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
        regular = path.is_file()  # reading a pipe would block, /dev/zero would never end
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not regular:
        raise InputError("the weight file is not a regular file", got=path, do="check --model")


def read_bytes(path: Path, architecture: str) -> bytes:
    """Read a weight file, unless it is far larger than this architecture's weights."""
    needed = sum(tensor.nbytes for tensor in _expected(architecture).values())
    most = MAX_RATIO * needed + MAX_HEADER
    try:
        size = path.stat().st_size
        if size > most:
            got = f"{path} of {size:,} bytes, where the weights take {needed:,}"
            raise _other_architecture(f"the weight file is far larger than {architecture} needs", got)
        with path.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise _unreadable(path, error) from None


COUNTER = ".num_batches_tracked"
"""Batch norm's counter of training steps, which published weights often lack; nothing is evaluated with it."""


def build(architecture: str, content: bytes, path: Path) -> nn.Module:
    """Build the architecture with these weights, in eval mode."""
    expected = _expected(architecture)
    weights = _read_torch(content, path) if path.suffix.lower() in PICKLES else _read_safetensors(content, path)
    weights, constants = _authors_names(weights, expected)
    _check(weights, expected, architecture, path)
    model = ARCHITECTURES[architecture]()
    model.load_state_dict(weights, strict=False)  # `_check` is the strict one
    if constants:
        _set_normalization(model, constants, architecture, path)
    return model.eval()


def _expected(architecture: str) -> dict[str, Tensor]:
    """Return names, shapes and types of an architecture's weights, on the meta device."""
    if architecture not in ARCHITECTURES:
        raise InputError("unknown architecture", got=architecture, do=f"use one of {', '.join(ARCHITECTURES)}")
    with torch.device("meta"):
        return ARCHITECTURES[architecture]().state_dict()


def _authors_names(
    weights: dict[str, Tensor], expected: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights by this package's names, and the normalization's constants if the file has any.

    The paper's authors publish state dicts with the constants as ``normalize.mean`` and ``normalize.std``, and layers of `Sequential`
    modules: ``conv_layers.0.weight``, ``fc_layers.3.bias``, ``model.1.running_mean``. Layers are renamed in the order of their numbers
    if every name becomes one that the architecture has; shapes are compared afterwards as for any file.
    """
    constants = {name: weights[name] for name in NORMALIZATION if name in weights}
    rest = {name: tensor for name, tensor in weights.items() if name not in constants}
    if len(constants) != len(NORMALIZATION) and constants:
        return weights, {}
    if rest.keys() <= expected.keys() or len(rest) > 10 * len(expected):
        return rest, constants
    parts = {name: match for name in rest if (match := SEQUENTIAL.fullmatch(name)) is not None}
    if len(parts) < len(rest):
        return rest, constants
    convolutions, linears = 0, 0
    renamed: dict[str, Tensor] = {}
    for group in sorted({(SEQUENTIALS.index(match[1]), int(match[2])) for match in parts.values()}):
        prefix = f"{SEQUENTIALS[group[0]]}.{group[1]}."
        inside = {name.removeprefix(prefix): tensor for name, tensor in rest.items() if name.startswith(prefix)}
        dimensions = inside["weight"].ndim if "weight" in inside else 0
        convolutions, linears = convolutions + (dimensions == 4), linears + (dimensions == 2)
        layer = (
            f"conv{convolutions}"
            if dimensions == 4
            else f"fc{linears}"
            if dimensions == 2
            else f"norm_conv{convolutions}"
        )
        renamed |= {f"{layer}.{name}": tensor for name, tensor in inside.items()}
    same = len(renamed) == len(rest) and renamed.keys() <= expected.keys()
    return (renamed if same else rest), constants


def _set_normalization(model: nn.Module, constants: dict[str, Tensor], architecture: str, path: Path) -> None:
    """Replace the architecture's constants by those that the network was trained with."""
    normalize = model.get_submodule("normalize")
    for name, buffer in (("normalize.mean", normalize.mean), ("normalize.std", normalize.deviation)):
        given = constants[name]
        assert isinstance(buffer, Tensor)
        right = given.numel() == buffer.numel() and given.is_floating_point() and bool(given.isfinite().all())
        if not right or (name == "normalize.std" and not bool((given > 0).all())):
            got = (
                f"{name} is {shown(str(list(given.shape)))} of {given.dtype}"
                if given.numel() != buffer.numel()
                else name
            )
            raise InputError(
                f"the normalization in {path} does not fit {architecture}",
                got=got,
                why="another architecture, or numbers that are not finite or not positive",
                do=f"keep {buffer.numel()} numbers in each of {' and '.join(NORMALIZATION)}, or leave them out of the file",
            )
        buffer.copy_(given.reshape(buffer.shape))


def _read_safetensors(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load

    try:
        header = int.from_bytes(content[:8], "little")
        if not 2 <= header <= min(len(content) - 8, MAX_HEADER):
            raise ValueError(f"{len(content):,} bytes that announce a header of {header:,}")
        return load(content)
    except Exception as error:  # the library also raises KeyError, AssertionError and others for damaged files
        raise InputError(
            f"not a readable safetensors file: {path}",
            got=shown(error) or type(error).__name__,
            why="the file was cut short, or is of another format",
            do="save it again with safetensors.torch.save_file",
        ) from None


def _check(weights: dict[str, Tensor], expected: dict[str, Tensor], architecture: str, path: Path) -> None:
    problems = [f"{name} is missing" for name in expected if name not in weights and not name.endswith(COUNTER)]
    for name, tensor in sorted(weights.items()):
        if name not in expected:
            problems.append(f"{shown(name)} is unknown")
        elif tensor.shape != expected[name].shape:
            problems.append(f"{name} is {shown(str(list(tensor.shape)))} instead of {list(expected[name].shape)}")
        elif tensor.dtype != expected[name].dtype:  # float32, except batch norm's counter
            problems.append(f"{name} is {tensor.dtype} instead of {expected[name].dtype}")
        elif not tensor.isfinite().all():
            problems.append(f"{name} has values that are NaN or infinite")
    if problems:
        got = "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")
        raise _other_architecture(f"the weights in {path} do not fit {architecture}", got)


def _other_architecture(what: str, got: str) -> InputError:
    do = f"choose --arch among {', '.join(ARCHITECTURES)}, or give a function as package.module:function"
    return InputError(what, got=got, why="another architecture", do=do)


def _unreadable(path: Path, error: OSError | ValueError) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError("the weight file cannot be read", got=f"{path} ({reason})", do="check --model")


MAX_PICKLE = 2**17
"""Size limit of a pickle, which has about 200 bytes per tensor; hashing a tuple nested 250,000 deep overruns the C stack."""
GLOBALS = {
    "collections OrderedDict", "torch._utils _rebuild_parameter", "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in
      ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")),
}  # fmt: skip
"""Names that the pickle of a state dict may use; torch allows more, some of which allocate memory."""
SAVE_AGAIN = "save it again with torch.save(model.state_dict(), path), or better as safetensors"


class _NotPlain(Exception):
    """The pickle uses something other than dictionaries, lists, numbers, texts and tensors."""


def _read_torch(content: bytes, path: Path) -> dict[str, Tensor]:
    """Read the state dict in a file of torch.save, possibly under the key ``state_dict``, with the ``weights_only`` loader."""
    if not content.startswith(b"PK\x03\x04"):
        raise InputError(
            f"not a file of torch.save: {path}",
            got=f"it begins with {content[:4].hex(' ') or 'nothing'}",
            why="a bare pickle or torch's format before version 1.6, which are not read",
            do=SAVE_AGAIN,
        )
    try:
        _check_pickle(_pickle_of(content))
        # with mmap, a storage ends with the file; otherwise some versions of torch allocate any size that a pickle announces
        loaded: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError("no dictionary of tensors")
        if not all(isinstance(value, Tensor) for value in state.values()):
            raise ValueError("a dictionary with something else than tensors in it")
        return {name: tensor.detach() for name, tensor in state.items()}
    except _NotPlain as error:
        raise InputError(
            f"the file {path} holds more than tensors",
            got=f"it asks for {shown(error)}",
            why="a whole module was saved instead of its state dict, or the file is hostile",
            do=SAVE_AGAIN,
        ) from None
    except Exception as error:  # zipfile, pickletools and torch raise many types of exceptions for damaged files
        raise InputError(
            f"not a readable file of torch.save: {path}",
            got=shown(error) or type(error).__name__,
            why="the file was cut short, or holds something other than a state dict",
            do=SAVE_AGAIN,
        ) from None


def _pickle_of(content: bytes) -> bytes:
    """Return the archive's pickle; every record must be uncompressed, as torch.save writes it and mmap requires."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("a compressed archive, which torch.save does not write")
        (program,) = (entry for entry in entries if entry.filename.partition("/")[2] == "data.pkl")
        if program.file_size > MAX_PICKLE:
            raise ValueError(f"a pickle of {program.file_size:,} bytes, more than any state dict needs")
        return archive.read(program)


def _check_pickle(program: bytes) -> None:
    """Raise `_NotPlain` if the pickle refers to anything outside `GLOBALS`; nothing is executed."""
    for opcode, argument, _ in pickletools.genops(program):
        if opcode.name == "PROTO" and argument != 2:  # the protocol of torch.save; torch.load warns about others
            raise _NotPlain(f"pickle protocol {argument}")
        if opcode.name == "GLOBAL" and argument not in GLOBALS:
            raise _NotPlain(str(argument).replace(" ", "."))
        if opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"):
            raise _NotPlain(f"the pickle instruction {opcode.name}")
