"""The bytes of an ONNX file, and the message in them: bounded, never run, and refused where more is in it than a network."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.refusals import Refusal

MOST_BYTES = 2**30
"""Of the file, and of each file of external data."""
MOST_NODES = 10_000
OLDEST, NEWEST = 7, 28
"""Opsets whose definitions the readers know. Of a later opset, operations are read whose definition has not changed since."""
EXPORT_AGAIN = "export the network again, e.g. torch.onnx.export(model.eval(), image, 'net.onnx', opset_version=18)"


def package(name: str) -> Any:
    """``onnx`` or ``onnxruntime``, which only users of ONNX files need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            "ONNX files need the packages onnx and onnxruntime",
            got=shown(error),
            do="pip install 'tiltproof[onnx]'",
        ) from None


def read_file(path: Path, what: str = "the ONNX file", begin: int = 0, count: int | None = None) -> bytes:
    """The content of a regular file, or a part of it; not of a pipe, and nothing far larger than networks are."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe would wait forever, /dev/zero never end
            raise InputError(f"{what} is not a regular file", got=shown(path), do="check --model")
        if size > MOST_BYTES:
            raise InputError(f"{what} is too large", got=f"{shown(path)} of {size:,} bytes, at most {MOST_BYTES:,}")
        with path.open("rb") as stream:
            stream.seek(begin)
            return stream.read(size if count is None else min(count, size))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what} cannot be read", got=f"{shown(path)} ({shown(reason)})", do="check --model") from None


def parse(content: bytes, path: Path) -> Any:
    """The file's ModelProto, if it holds one graph of standard nodes and nothing beside it that could change its meaning."""
    onnx = package("onnx")
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError has had several homes
        raise _unreadable(path, shown(error) or type(error).__name__) from None
    if not model.HasField("graph") or not model.graph.node:
        raise _unreadable(path, "a message without a graph")
    graph = model.graph
    extras = {
        "functions": model.functions,
        "training_info": model.training_info,
        "sparse_initializer": graph.sparse_initializer,
        "quantization_annotation": graph.quantization_annotation,
    }
    for name, content_of in extras.items():
        if len(content_of):
            raise InputError(f"an ONNX file with {name} is not read", got=shown(path), do=EXPORT_AGAIN)
    if len(graph.node) > MOST_NODES:
        raise InputError("the ONNX file has too many nodes", got=f"{len(graph.node):,}, at most {MOST_NODES:,}")
    return model


def opset(model: Any) -> int:
    """The opset of ONNX's own operations. Entries for other domains are ignored: their nodes have no reader."""
    versions = {int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")}
    newest = package("onnx").defs.onnx_opset_version()
    if len(versions) != 1 or min(versions) < OLDEST:
        raise InputError(
            f"the ONNX file must use one opset, {OLDEST} or newer",
            got=shown(", ".join(f"opset {version}" for version in sorted(versions)) or "none"),
            do=EXPORT_AGAIN,
        )
    (version,) = versions
    if version > newest:
        raise InputError(
            "the ONNX file uses an opset that the installed packages do not know",
            got=shown(f"opset {version}, where onnx {package('onnx').__version__} knows opsets up to {newest}"),
            do="pip install --upgrade onnx onnxruntime, or " + EXPORT_AGAIN,
        )
    return version


def defined_by(op: str, version: int) -> int:
    """The opset that last changed the definition of an operation, up to this version; 0 if ONNX has no such operation."""
    try:
        return int(package("onnx").defs.get_schema(op, version).since_version)
    except Exception:  # onnx.defs.SchemaError, whose home has changed
        return 0


def validate(model: Any, path: Path) -> None:
    """ONNX's own checker: attributes and inputs as each node's definition in that opset says, names given once."""
    checker = package("onnx").checker
    kinds = [entry.type.tensor_type for entry in model.graph.output if entry.type.HasField("tensor_type")]
    shapeless = [kind for kind in kinds if not kind.HasField("shape")]  # which the checker refuses, and nobody needs
    try:
        for kind in shapeless:
            kind.shape.SetInParent()
        checker.check_model(model)
    except Exception as error:
        raise _unreadable(path, shown(" ".join(str(error).split())).rstrip(".")) from None
    for kind in shapeless:
        kind.ClearField("shape")


def _unreadable(path: Path, got: str) -> InputError:
    return InputError(
        f"not a readable ONNX file: {shown(path)}",
        got=got,
        why="the file was cut short, is damaged, or is of another format",
        do=EXPORT_AGAIN,
    )


# Numbers out of an ONNX file: sizes are compared with what is there before anything is unpacked.
#
# Numbers may be stored in a separate file (``net.onnx.data``): in the same folder, under a plain name. They are put into the
# message, so that onnxruntime is asked about exactly the numbers that were read.


FLOAT, UINT8, INT8, INT32, INT64, BOOL, FLOAT16, DOUBLE = (
    1,
    2,
    3,
    6,
    7,
    9,
    10,
    11,
)  # onnx.TensorProto's names for them, part of the format
FLOATS = {FLOAT: torch.float32, FLOAT16: torch.float32, DOUBLE: torch.float64}
"""What the numbers are held in: float32 holds every float16 number exactly."""
KINDS = {
    FLOAT: ("<f4", "float_data"),
    FLOAT16: ("<f2", "int32_data"),
    DOUBLE: ("<f8", "double_data"),
    INT64: ("<i8", "int64_data"),
    UINT8: ("|u1", "int32_data"),
    INT8: ("|i1", "int32_data"),
    INT32: ("<i4", "int32_data"),
    BOOL: ("|b1", "int32_data"),
}
EXTERNAL = 1
MOST_ENTRIES = 2**28


def bring_in(tensor: Any, folder: Path) -> None:
    """Replace a reference to numbers in another file by the numbers."""
    if tensor.data_location != EXTERNAL:
        return
    where = {entry.key: entry.value for entry in tensor.external_data}
    name = where.get("location", "")
    if len(where) != len(tensor.external_data) or not set(where) <= {"location", "offset", "length", "checksum"}:
        raise _refused(tensor, "external data described in an unknown way")
    if not name or name in (".", "..") or any(letter in name for letter in "/\\:\0"):
        raise _refused(tensor, f"external data at {shown(name)!r}, which is not a plain file name in the same folder")
    path = folder / name
    if path.is_symlink() and path.resolve().parent != folder.resolve():
        raise _refused(tensor, f"external data at {shown(name)!r}, a link that leaves the folder")
    _, needed = _size(tensor)
    numbers = [where.get("offset", "0"), where.get("length", str(needed))]
    if not all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
        raise _refused(tensor, "external data at no place in its file")
    offset, length = map(int, numbers)
    if length != needed:
        raise _refused(tensor, f"{length:,} bytes of external data for {needed:,}")
    tensor.raw_data = read_file(path, "the file with the network's numbers", offset, length)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def numbers(tensor: Any) -> Tensor:
    """The tensor in a TensorProto: float32 (also what the file has as float16), float64, bytes,
    other integers (as int64) or truth values."""
    count, needed = _size(tensor)
    code, typed = KINDS[tensor.data_type]
    if tensor.HasField("segment"):
        raise _refused(tensor, "a tensor in segments")
    fields = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
    if any(len(getattr(tensor, name)) for name in fields if name != typed or tensor.HasField("raw_data")):
        raise _refused(tensor, "numbers given twice or as another type")
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != needed:
            raise _refused(tensor, f"{len(tensor.raw_data):,} bytes for {needed:,}")
        array = np.frombuffer(tensor.raw_data, code)
    else:
        if len(getattr(tensor, typed)) != count:
            raise _refused(tensor, f"{len(getattr(tensor, typed)):,} numbers for {count:,}")
        given = getattr(tensor, typed)
        if tensor.data_type == FLOAT16:  # the format keeps the bits of each number as an integer
            if not all(0 <= bits < 2**16 for bits in given):
                raise _refused(tensor, "integers that are no float16 numbers")
            array = np.array(given, dtype="<u2").view(code)
        else:
            array = np.array(given, dtype=np.int64 if tensor.data_type in (INT8, UINT8) else code)
            if tensor.data_type in (INT8, UINT8) and not (array == array.astype(code)).all():
                raise _refused(tensor, "integers that do not fit into a byte")
    array = array.reshape(tuple(tensor.dims))
    if tensor.data_type in FLOATS:
        if not (array < np.inf).all():  # minus infinity stands in masks
            raise _refused(tensor, "NaN or infinity")
        return torch.from_numpy(array.astype(np.float64 if tensor.data_type == DOUBLE else np.float32, copy=True))
    own = {BOOL: np.bool_, INT8: np.int8, UINT8: np.uint8}
    return torch.from_numpy(array.astype(own.get(tensor.data_type, np.int64)))


def _size(tensor: Any) -> tuple[int, int]:
    """How many numbers and bytes the tensor says it has."""
    if tensor.data_type not in KINDS:
        raise _refused(
            tensor, f"numbers of ONNX's type {tensor.data_type}; float16, float32, float64 and integers are read"
        )
    dims = list(tensor.dims)
    if len(dims) > 8 or any(not 0 <= size <= MOST_ENTRIES for size in dims) or math.prod(dims) > MOST_ENTRIES:
        raise _refused(tensor, f"a tensor of shape {dims}")
    return math.prod(dims), math.prod(dims) * np.dtype(KINDS[tensor.data_type][0]).itemsize


def _refused(tensor: Any, got: str) -> InputError:
    return InputError(
        f"the tensor {shown(tensor.name, 80)!r} of the ONNX file is not read", got=shown(got), do=EXPORT_AGAIN
    )


# One node of the graph, read strictly: every attribute is taken by a converter, or the node is refused.


NUMBER, INTEGER, TEXT, TENSOR, FLOATING, INTEGERS = 1, 2, 3, 4, 6, 7  # onnx.AttributeProto's names for them


class Node:
    """Its op, name, inputs and outputs (absent optional ones at the end are cut off), and attributes to be taken.

    ``opset``: the file's, whose definition of the operation says what the node means.
    """

    def __init__(self, proto: Any, opset: int = NEWEST) -> None:
        self.opset = opset
        self.op, self.domain = str(proto.op_type), str(proto.domain)
        self.inputs, self.outputs = _names(proto.input), _names(proto.output)
        self.name = str(proto.name)
        self.attributes = {attribute.name: attribute for attribute in proto.attribute}
        if len(self.attributes) != len(proto.attribute) or any(a.ref_attr_name for a in proto.attribute):
            raise self.refusal("has an attribute twice, or one of a function")

    def __str__(self) -> str:
        output = f" (unnamed, gives {shown(self.outputs[0], 60)!r})" if self.outputs else ""
        return f"{shown(self.op, 60)} at node {shown(self.name, 80)!r}" + ("" if self.name else output)

    def refusal(self, why: str, do: str = "") -> UnsupportedOperation:
        name = self.name or f"the one that gives {self.outputs[0] if self.outputs else 'nothing'}"
        return UnsupportedOperation(f"ONNX operation {self} {why}", do=do, refusals=(Refusal(self.op, name, why),))

    def take(self, name: str, kind: int) -> Any:
        """An attribute's value, or None; it counts as understood from here on."""
        attribute = self.attributes.pop(name, None)
        if attribute is None:
            return None
        if attribute.type != kind:
            raise self.refusal(f"has an attribute {name} of another type than its definition says")
        match kind:
            case 1:
                return float(attribute.f)
            case 2:
                return int(attribute.i)
            case 3:
                return bytes(attribute.s).decode("ascii", "replace")
            case 4:
                return attribute.t
            case 6:
                return [float(value) for value in attribute.floats]
            case _:
                return [int(value) for value in attribute.ints]

    def integer(self, name: str, default: int) -> int:
        value = self.take(name, INTEGER)
        return default if value is None else int(value)

    def number(self, name: str, default: float) -> float:
        """A float32 number, which stands for exactly itself."""
        value = self.take(name, NUMBER)
        return default if value is None else float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.integer(name, int(default))
        if value not in (0, 1):
            raise self.refusal(f"has {name} = {value}")
        return bool(value)

    def only(self, **allowed: Any) -> None:
        """Attributes that may be there, with one value alone: the one that leaves the operation as it is read here."""
        for name, wanted in allowed.items():
            kind = {int: INTEGER, float: NUMBER, str: TEXT}[type(wanted)]
            value = self.take(name, kind)
            if value is not None and value != wanted:
                raise self.refusal(f"has {name} = {shown(value, 40)}; only {wanted} is supported")

    def finish(self) -> None:
        """Called when a converter is done: what it did not take, it did not understand."""
        if self.attributes:
            raise self.refusal(f"has an attribute that is not understood: {shown(', '.join(self.attributes), 80)}")

    def count(self, least: int, most: int | None = None, outputs: int = 1) -> None:
        most = least if most is None else most
        if not least <= len(self.inputs) <= most or len(self.outputs) != outputs:
            raise self.refusal(f"has {len(self.inputs)} inputs and {len(self.outputs)} outputs")


def _names(names: Any) -> list[str]:
    found = [str(name) for name in names]
    while found and not found[-1]:
        found.pop()
    return found
