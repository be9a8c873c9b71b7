"""Read JSON strictly: refuse values that are missing, mistyped, not finite, out of bounds or given twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiltproof.checker.failed import CheckFailed
from tiltproof.errors import InputError

MOST_BYTES = {"manifest.json": 2**28, "verdicts.jsonl": 2**31, "batches.jsonl": 2**28, "summary.json": 2**20}


def content(folder: Path, name: str) -> bytes:
    path = folder / name
    ensure(path.is_file(), f"{name} is missing")
    ensure(path.stat().st_size <= MOST_BYTES[name], f"{name} is too large to be a run's")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read", got=error) from None


def split(text: bytes, name: str) -> list[bytes]:
    ensure(text.endswith(b"\n"), f"{name} is cut off")
    return text[:-1].split(b"\n")


def parsed(text: bytes, name: str, image: int | None = None) -> dict[str, Any]:
    """Parse a JSON object without NaN, infinity or duplicate keys."""

    def refuse(word: str) -> None:
        raise ValueError(f"it contains {word}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key is given twice")
        return dict(pairs)

    try:
        value = json.loads(text.decode("utf-8"), parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckFailed(f"{name} cannot be read: {str(error)[:80]}", image) from None
    if type(value) is not dict:
        raise CheckFailed(f"{name} does not hold a JSON object where one belongs", image)
    return value


def ensure(condition: bool, what: str) -> None:
    if not condition:
        raise CheckFailed(what)


def get(record: dict[str, Any], key: str, kind: type) -> Any:
    ensure(type(record.get(key)) is kind, f"{key} is missing or of the wrong type")
    return record[key]


def natural(record: dict[str, Any], key: str) -> int:
    value: int = get(record, key, int)
    ensure(0 <= value < 2**53, f"{key} is out of bounds")
    return value


def finite(record: dict[str, Any], key: str) -> float:
    return vector([record.get(key)], 1, key)[0]


def vector(values: list[Any], length: int, name: str = "a vector of parameters") -> list[float]:
    ensure(len(values) == length, f"{name} has the wrong length")
    ensure(
        all(type(v) in (int, float) and abs(v) <= 1e300 for v in values), f"{name} is missing or not a finite number"
    )
    return [float(value) for value in values]


def flag(record: dict[str, Any], key: str) -> bool:
    value: bool = get(record, key, bool)
    return value


def same_number(given: Any, recomputed: float, size: float, what: str) -> None:
    """Compare a number that both sides computed from the same terms, possibly summed in another order.

    ``size`` bounds the summed magnitudes, to which rounding is relative. Infinity is written as null.
    """
    if abs(recomputed) <= 1e300:
        right = type(given) in (int, float) and abs(given) <= 1e300 and abs(given - recomputed) <= 1e-9 * size
    else:
        right = given is None
    ensure(right, f"{what} is not what the records give")
