"""The log of a run: log.jsonl, one line an epoch, and TensorBoard's event files where that package is installed."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from tiltproof.certify.writing import replace_bytes
from tiltproof.train.writing import writing

FILE, EVENTS = "log.jsonl", "tensorboard"


class EpochLog:
    """An open log; a resumed one begins with the lines of the epochs that are done, and whatever follows them is cut off."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        self.path = folder / FILE
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self.records = [record for record in _read(self.path) if record["epoch"] <= epochs_done]
            replace_bytes(self.path, b"".join(map(_line, self.records)))
        self.events = _event_writer(folder / EVENTS, epochs_done)

    def append(self, record: dict[str, Any]) -> None:
        """One epoch; when this returns, its line is on the disk."""
        with writing(self.path.parent), self.path.open("ab") as stream:
            stream.write(_line(record))
            stream.flush()
            os.fsync(stream.fileno())
        self.records.append(record)
        if self.events is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name not in ("epoch", "step"):
                    self.events.add_scalar(name, value, record["epoch"])
            self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines from the first on; a torn one ends them."""
    records: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return records
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict) or record.get("epoch") != len(records) + 1:
            break
        records.append(record)
    return records


def _event_writer(folder: Path, epochs_done: int) -> Any:
    """TensorBoard's writer, or None and a notice where there is none."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn("no TensorBoard event files: the package tensorboard is not installed", stacklevel=2)
        return None
    return SummaryWriter(str(folder), purge_step=epochs_done + 1)
