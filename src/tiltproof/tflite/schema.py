"""What a TFLite file holds: its tensors, its operators in order, the one input and the outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.refusals import Refusal
from tiltproof.tflite.flatbuffer import Damaged, Table

MOST_BYTES = 2**30
MOST_CONSTANTS = 2**28
"""Numbers in all constants that a network reads, repetitions counted."""
CONVERT_AGAIN = "convert the network again: tf.lite.TFLiteConverter"
IDENTIFIER = b"TFL3"
TYPES: dict[int, str] = {
    0: "<f4", 1: "<f2", 2: "<i4", 3: "<u1", 4: "<i8", 6: "|b1", 7: "<i2", 9: "<i1", 10: "<f8", 15: "<u4", 16: "<u2"
}  # fmt: skip
"""The schema's number of a type -> numpy's name; the others are texts, complex numbers and parts of bytes."""
FLOAT32, INT32, UINT8, INT64, INT8 = 0, 2, 3, 4, 9
RANGES = {INT8: (-128, 127), UINT8: (0, 255)}
"""Types of quantized values, and their range."""
NAMES = [
    "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE", "EMBEDDING_LOOKUP",
    "FLOOR", "FULLY_CONNECTED", "HASHTABLE_LOOKUP", "L2_NORMALIZATION", "L2_POOL_2D", "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC",
    "LSH_PROJECTION", "LSTM", "MAX_POOL_2D", "MUL", "RELU", "RELU_N1_TO_1", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RNN", "SOFTMAX",
    "SPACE_TO_DEPTH", "SVDF", "TANH", "CONCAT_EMBEDDINGS", "SKIP_GRAM", "CALL", "CUSTOM", "EMBEDDING_LOOKUP_SPARSE", "PAD",
    "UNIDIRECTIONAL_SEQUENCE_RNN", "GATHER", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "TRANSPOSE", "MEAN", "SUB", "DIV", "SQUEEZE",
    "UNIDIRECTIONAL_SEQUENCE_LSTM", "STRIDED_SLICE", "BIDIRECTIONAL_SEQUENCE_RNN", "EXP", "TOPK_V2", "SPLIT", "LOG_SOFTMAX", "DELEGATE",
    "BIDIRECTIONAL_SEQUENCE_LSTM", "CAST", "PRELU", "MAXIMUM", "ARG_MAX", "MINIMUM", "LESS", "NEG", "PADV2", "GREATER", "GREATER_EQUAL",
    "LESS_EQUAL", "SELECT", "SLICE", "SIN", "TRANSPOSE_CONV", "SPARSE_TO_DENSE", "TILE", "EXPAND_DIMS", "EQUAL", "NOT_EQUAL", "LOG",
    "SUM", "SQRT", "RSQRT", "SHAPE", "POW", "ARG_MIN", "FAKE_QUANT", "REDUCE_PROD", "REDUCE_MAX", "PACK", "LOGICAL_OR", "ONE_HOT",
    "LOGICAL_AND", "LOGICAL_NOT", "UNPACK", "REDUCE_MIN", "FLOOR_DIV", "REDUCE_ANY", "SQUARE", "ZEROS_LIKE", "FILL", "FLOOR_MOD", "RANGE",
    "RESIZE_NEAREST_NEIGHBOR", "LEAKY_RELU", "SQUARED_DIFFERENCE", "MIRROR_PAD", "ABS", "SPLIT_V", "UNIQUE", "CEIL", "REVERSE_V2",
    "ADD_N", "GATHER_ND", "COS", "WHERE", "RANK", "ELU", "REVERSE_SEQUENCE", "MATRIX_DIAG", "QUANTIZE", "MATRIX_SET_DIAG", "ROUND",
    "HARD_SWISH", "IF", "WHILE", "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "SCATTER_ND", "SELECT_V2", "DENSIFY", "SEGMENT_SUM",
    "BATCH_MATMUL", "PLACEHOLDER", "CUMSUM", "CALL_ONCE", "BROADCAST_TO", "RFFT2D", "CONV_3D", "IMAG", "REAL", "COMPLEX_ABS", "HASHTABLE",
    "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE", "REDUCE_ALL", "CONV_3D_TRANSPOSE", "VAR_HANDLE", "READ_VARIABLE",
    "ASSIGN_VARIABLE", "BROADCAST_ARGS", "RANDOM_STANDARD_NORMAL", "BUCKETIZE", "RANDOM_UNIFORM", "MULTINOMIAL", "GELU",
    "DYNAMIC_UPDATE_SLICE", "RELU_0_TO_1",
]  # fmt: skip
"""Operators in the order of their codes."""
LONGEST = 127
"""Older files have codes up to this in a field of their own; newer ones in another, and both agree."""


@dataclass
class Scales:
    """How a tensor is quantized: q stands for scale (q - zero), for each entry along ``axis`` if there are several."""

    scale: np.ndarray
    zero: np.ndarray
    axis: int


@dataclass
class TensorEntry:
    """A tensor of the file; ``shape`` with the batch."""

    number: int
    name: str
    type: int
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    buffer: int
    scales: Scales | None


@dataclass
class Node:
    """An operator of the file; -1 stands for an input that is left out."""

    number: int
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Table | None
    label: str
    taken: int = 0
    """Number of option fields that its reader knows."""

    def refusal(self, why: str, do: str = "") -> UnsupportedOperation:
        what = f"{self.op} at operator {shown(self.label, 80)!r} {why}"
        return UnsupportedOperation(what, refusals=(Refusal(self.op, self.label, why, part="operator", instead=do),))

    def option(self, field_number: int, kind: str = "<i", default: int = 0) -> int:
        self.taken = max(self.taken, field_number + 1)
        return default if self.options is None else self.options.integer(field_number, kind, default)

    def byte(self, field_number: int) -> int:
        return self.option(field_number, "<b")

    def real(self, field_number: int) -> float:
        self.taken = max(self.taken, field_number + 1)
        return 0.0 if self.options is None else self.options.real(field_number)

    def knows(self, count: int) -> None:
        """The first ``count`` option fields say nothing else of what is computed."""
        self.taken = max(self.taken, count)

    def finish(self) -> None:
        if self.options is not None and self.options.count > self.taken:
            raise self.refusal(f"has settings that are not understood (field {self.options.count - 1} of its options)")


@dataclass
class File:
    """The one graph of a file."""

    path: Path
    content: bytes
    tensors: list[TensorEntry]
    nodes: list[Node]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    buffers: list[memoryview] = field(repr=False)
    used: int = 0

    def constant(self, number: int) -> Tensor | None:
        """The numbers of a tensor that is stored in the file, in their own type; None for one that is computed."""
        entry = self.tensors[number]
        data = self.buffers[entry.buffer]
        if not len(data):
            return None
        kind = TYPES.get(entry.type)
        count = math.prod(entry.shape)
        if kind is None or len(data) != count * np.dtype(kind).itemsize:
            raise InputError(
                "the TFLite file has a constant of another size than its shape",
                got=shown(f"{entry.name}: {len(data)} bytes for {list(entry.shape)} of type {kind or entry.type}"),
                do=CONVERT_AGAIN,
            )
        self.used += count
        if self.used > MOST_CONSTANTS:
            raise InputError("the TFLite file has too many constants", got=f"more than {MOST_CONSTANTS:,} numbers")
        array = np.frombuffer(data, kind).astype(kind[1:], copy=True)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError("the TFLite file has weights that are NaN or infinite", got=shown(entry.name))
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        return torch.from_numpy(array.reshape(entry.shape))


def read_file(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise InputError("the TFLite file is not a regular file", got=shown(path), do="check --model")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise InputError(
                "the TFLite file is too large", got=f"{shown(path)} of {size:,} bytes, at most {MOST_BYTES:,}"
            )
        return path.read_bytes()
    except OSError as error:
        raise InputError("the TFLite file cannot be read", got=shown(f"{path} ({error})"), do="check --model") from None


def parse(content: bytes, path: Path) -> File:
    """Read the file's one graph; every number that says where something is, is compared with how much there is."""
    try:
        if content[4:8] != IDENTIFIER:
            raise Damaged(f"no {IDENTIFIER.decode()} at its beginning")
        return _parse(Table.root(content), content, path)
    except Damaged as error:
        raise damaged(error, path) from None


def damaged(error: Damaged, path: Path) -> InputError:
    return InputError(
        f"not a readable TFLite file: {shown(path)}",
        got=str(error),
        why="the file was cut short, is damaged, or is of another format",
        do=CONVERT_AGAIN,
    )


def _parse(model: Table, content: bytes, path: Path) -> File:
    graphs = model.tables(2)
    if model.integer(0, "<I") != 3 or len(graphs) != 1 or model.has(8) or model.has(9):
        raise InputError(
            "the TFLite file must hold one graph of the schema's version 3, and all of its numbers",
            got=f"version {model.integer(0, '<I')}, {len(graphs)} graphs{', numbers elsewhere' * model.has(9)}",
            why="control flow, or a network whose state changes",
            do="convert the network's function for inference alone",
        )
    buffers = []
    for each in model.tables(4):
        if each.has(1) and each.integer(1, "<Q") > 1:
            raise InputError("the TFLite file has numbers behind its end of 2 GiB", do="use a smaller network")
        buffers.append(each.raw(0))
    (graph,) = graphs
    tensors = [_tensor(number, each) for number, each in enumerate(graph.tables(0))]
    if any(entry.buffer >= len(buffers) for entry in tensors):
        raise Damaged("a tensor whose buffer is not there")

    def known(numbers: np.ndarray, optional: bool = False) -> tuple[int, ...]:
        if any(not (-1 if optional else 0) <= number < len(tensors) for number in numbers):
            raise Damaged("an operator that reads or gives a tensor that is not there")
        return tuple(int(number) for number in numbers)

    codes = [_operator_name(each) for each in model.tables(1)]
    nodes = []
    for number, each in enumerate(graph.tables(3)):
        code = each.integer(0, "<I")
        if code >= len(codes):
            raise Damaged("an operator whose code is not there")
        inputs = known(each.numbers(1, most=2**12), True)
        outputs = known(each.numbers(2, most=2**12))
        name = tensors[outputs[0]].name.partition(";")[0] if outputs else ""  # of those that were fused, the first
        nodes.append(Node(number, codes[code], inputs, outputs, each.table(4), name or str(number)))
    ends = known(graph.numbers(1, most=2**12)), known(graph.numbers(2, most=2**12))
    return File(path, content, tensors, nodes, *ends, buffers)


def _operator_name(code: Table) -> str:
    number = max(code.integer(0, "<b"), code.integer(3))
    name = NAMES[number] if 0 <= number < len(NAMES) else f"operator {number}"
    return f"CUSTOM {shown(code.text(1), 60)}" if name == "CUSTOM" else name


def _tensor(number: int, entry: Table) -> TensorEntry:
    shape = tuple(int(size) for size in entry.numbers(0, most=8))
    signature = tuple(int(size) for size in entry.numbers(7, most=8)) or shape
    if any(size < 0 for size in shape) or math.prod(shape) > 2**31:
        raise Damaged(f"a tensor of shape {list(shape)}")
    name = entry.text(3)
    if entry.has(6) or entry.has(9) or entry.integer(5, "<b") or entry.integer(10, "<I"):
        raise InputError(
            "the TFLite file has tensors that are sparse, stored elsewhere or changed by the network",
            got=shown(name),
            do="convert it without them",
        )
    return TensorEntry(
        number, name, entry.integer(1, "<b"), shape, signature, entry.integer(2, "<I"), _scales(entry.table(4), name)
    )


def _scales(entry: Table | None, name: str) -> Scales | None:
    """Scales are positive float32 numbers; without any, a tensor is not quantized."""
    if entry is None:
        return None
    with np.errstate(invalid="ignore"):
        scale, zero = entry.numbers(2, "<f4").astype(np.float64), entry.numbers(3, "<i8")
    if not len(scale):
        return None
    zero = np.zeros(len(scale), np.int64) if not len(zero) else zero
    if len(zero) == 1:
        zero = np.repeat(zero, len(scale))
    good = np.isfinite(scale).all() and (scale >= 0).all() and len(zero) == len(scale) and (abs(zero) < 2**31).all()
    if not good or entry.has(5):
        raise InputError(
            "the TFLite file has a tensor whose quantization is not understood", got=shown(name), do=CONVERT_AGAIN
        )
    return Scales(scale, zero, entry.integer(6))


def signature_of(shape: Sequence[int]) -> str:
    return f"[{', '.join('N' if k == 0 else str(size) for k, size in enumerate(shape))}]"
