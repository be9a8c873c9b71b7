"""Numbers out of an ONNX file: sizes are compared with what is there before anything is unpacked.

Numbers may lie in a file beside the ONNX file (``net.onnx.data``): in the same folder, under a plain name. They are put into the
message, so that onnxruntime is asked about exactly the numbers that were read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError, shown
from tiltproof.zoo.onnx_model.file import EXPORT_AGAIN, read_file

FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11  # onnx.TensorProto's names for them, part of the format
FLOATS = {FLOAT: torch.float32, DOUBLE: torch.float64}
KINDS = {
    FLOAT: ("<f4", "float_data"),
    DOUBLE: ("<f8", "double_data"),
    INT64: ("<i8", "int64_data"),
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
    """The tensor in a TensorProto: float32, float64, integers (as int64) or truth values."""
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
        array = np.array(getattr(tensor, typed), dtype=code)
    array = array.reshape(tuple(tensor.dims))
    if tensor.data_type in FLOATS:
        if not np.isfinite(array).all():
            raise _refused(tensor, "NaN or infinity")
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
    return torch.from_numpy(array.astype(np.bool_ if tensor.data_type == BOOL else np.int64))


def _size(tensor: Any) -> tuple[int, int]:
    """How many numbers and bytes the tensor says it has."""
    if tensor.data_type not in KINDS:
        raise _refused(tensor, f"numbers of ONNX's type {tensor.data_type}; float32, float64 and integers are read")
    dims = list(tensor.dims)
    if len(dims) > 8 or any(not 0 <= size <= MOST_ENTRIES for size in dims) or math.prod(dims) > MOST_ENTRIES:
        raise _refused(tensor, f"a tensor of shape {dims}")
    return math.prod(dims), math.prod(dims) * np.dtype(KINDS[tensor.data_type][0]).itemsize


def _refused(tensor: Any, got: str) -> InputError:
    return InputError(
        f"the tensor {shown(tensor.name, 80)!r} of the ONNX file is not read", got=shown(got), do=EXPORT_AGAIN
    )
