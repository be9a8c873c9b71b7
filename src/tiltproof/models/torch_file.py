"""Read a dictionary of tensors that torch.save wrote, when the user allows it, without trusting the file.

Such a file is a zip archive of a pickle and the tensors' numbers. The archive's sizes are bounded before it is unpacked;
`pickle_plan` works out what the pickle would build; only then does torch load it, with ``weights_only``, from a fresh
archive of exactly the records that were checked.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError, shown
from tiltproof.models.pickle_plan import NotPlain, PlannedTensor, plan

MOST_PROGRAM = 2**20
MOST_RECORDS = 10_000
SAVE_AGAIN = "save it again with torch.save(model.state_dict(), path), or better as safetensors"


def read_torch(content: bytes, path: Path, most_bytes: int) -> dict[str, Tensor]:
    """The state dict in the file, which may stand under the key ``state_dict``; of at most so many bytes unpacked."""
    if not content.startswith(b"PK\x03\x04"):
        raise InputError(
            f"not a file of torch.save: {path}",
            got=f"it begins with {content[:4].hex(' ') or 'nothing'}",
            why="a bare pickle or torch's format before version 1.6, which are not read",
            do=SAVE_AGAIN,
        )
    try:
        records = _unpack(content, most_bytes)
        checked = _checked(records)
        loaded = torch.load(io.BytesIO(_packed(checked)), map_location="cpu", weights_only=True)
        return {name: tensor.detach() for name, tensor in _state(loaded, Tensor).items()}
    except NotPlain as error:
        raise InputError(
            f"the file {path} holds more than tensors",
            got=f"it asks for {shown(error)}",
            why="a whole module was saved instead of its state dict, or the file is hostile",
            do=SAVE_AGAIN,
        ) from None
    except Exception as error:  # zipfile, pickletools and torch answer damage with exceptions of many types
        raise InputError(
            f"not a readable file of torch.save: {path}",
            got=shown(error) or type(error).__name__,
            why="the file was cut short, or holds something else than a state dict",
            do=SAVE_AGAIN,
        ) from None


def _unpack(content: bytes, most_bytes: int) -> dict[str, bytes]:
    """The records by their name below the archive's folder; torch stores them as they are, so none is compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_RECORDS or sum(entry.file_size for entry in entries) > most_bytes + MOST_PROGRAM:
            raise ValueError("the archive unpacks to far more than the architecture needs")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("a compressed archive, which torch.save does not write")
        records = {entry.filename.partition("/")[2]: archive.read(entry) for entry in entries}
    if len(records) != len(entries) or len(records["data.pkl"]) > MOST_PROGRAM:
        raise ValueError("records of one name, or a pickle of more than a megabyte")
    if records.get("byteorder", b"little") != b"little":
        raise ValueError("numbers in big-endian order")
    return records


def _checked(records: dict[str, bytes]) -> dict[str, bytes]:
    """Of the records those that the pickle needs, each of exactly the size that the pickle says."""
    described, storages = plan(records["data.pkl"])
    _state(described, PlannedTensor)
    for storage in storages.values():
        if len(records[f"data/{storage.key}"]) != storage.nbytes:
            raise ValueError(f"{storage.nbytes:,} bytes announced for a storage of another size")
    return {name: records[name] for name in ("data.pkl", *(f"data/{key}" for key in storages))}


def _state(described: Any, kind: type) -> dict[str, Any]:
    state = described.get("state_dict", described) if isinstance(described, dict) else None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ValueError("no dictionary of tensors")
    if not all(isinstance(value, kind) for value in state.values()):
        raise ValueError("a dictionary with something else than tensors in it")
    return state


def _packed(records: dict[str, bytes]) -> bytes:
    """A fresh archive: two readers of zip may disagree about a hostile one, and torch has its own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {**records, "byteorder": b"little", "version": b"3\n"}.items():
            archive.writestr(f"archive/{name}", content)
    return buffer.getvalue()
