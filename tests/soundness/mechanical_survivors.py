"""Mechanical mutants that no true value refutes although some bound is tighter than the original's: why each is sound, or why no sampling
can see it.

Rows go by text: the file, the line that is changed, and what becomes what, as `mechanical.py` prints it between brackets. A row that fits
no mutant any more makes that command fail, and so does one whose mutant is refuted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argued:
    file: str
    line: str
    changes: tuple[str, ...]
    why: str


ARGUED: list[Argued] = []
