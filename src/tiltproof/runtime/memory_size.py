"""Sizes of memory as people write them."""

from __future__ import annotations

import math
import re

from tiltproof.errors import InputError

UNITS = {"": 1, "B": 1} | {
    f"{letter}{middle}B": base**power
    for middle, base in (("", 1000), ("I", 1024))
    for power, letter in enumerate("KMGT", start=1)
}


def parse_memory(size: int | str) -> int:
    """A limit in bytes: a whole number, or text such as 500MB (1000s), 1.5GiB (1024s).

    >>> parse_memory("1.5GiB"), parse_memory("500MB"), parse_memory("2 GB")
    (1610612736, 500000000, 2000000000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([a-zA-Z]*)\s*", str(size))
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or isinstance(size, bool) or not isinstance(size, (int, str)):
        raise InputError(
            "a memory limit is a number of bytes or a size", got=repr(size), do="write e.g. 500MB, 2GB or 1.5GiB"
        )
    result = math.floor(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
    if result < 1:
        raise InputError("a memory limit is more than nothing", got=repr(size), do="write e.g. 500MB, 2GB or 1.5GiB")
    return result


def shown_size(size: float) -> str:
    """Bytes for people.

    >>> shown_size(1_610_612_736)
    '1.61 GB'
    """
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
