"""A small reader of VNN-LIB 1.0, strict about the form that VNN-COMP's tools expect; numbers are exact fractions."""

import re
from fractions import Fraction
from typing import NamedTuple

BOUND = re.compile(r"\(assert \((<=|>=) X_(\d+) (-?\d+\.\d+)\)\)")
CASE = re.compile(r"  \(and( \(>= Y_\d+ Y_\d+\))+\)")
PAIR = re.compile(r"\(>= Y_(\d+) Y_(\d+)\)")


class Problem(NamedTuple):
    lower: list[Fraction]
    upper: list[Fraction]
    outputs: int
    cases: list[list[tuple[int, int]]]
    """Of outputs that are at least others, all in one case."""

    @property
    def clauses(self) -> list[tuple[int, int]]:
        assert all(len(case) == 1 for case in self.cases)
        return [case[0] for case in self.cases]


def read_plain(text: str) -> Problem:
    lines = [line for line in text.splitlines() if line and not line.startswith(";")]
    inputs = sum(line.startswith("(declare-const X_") for line in lines)
    outputs = sum(line.startswith("(declare-const Y_") for line in lines)
    names = [f"X_{k}" for k in range(inputs)] + [f"Y_{k}" for k in range(outputs)]
    assert lines[: len(names)] == [f"(declare-const {name} Real)" for name in names]
    ends = {"<=": {}, ">=": {}}
    at = len(names)
    while match := BOUND.fullmatch(lines[at]):
        assert int(match[2]) not in ends[match[1]], "bounded twice"
        ends[match[1]][int(match[2])] = Fraction(match[3])
        at += 1
    assert lines[at] == "(assert (or"
    assert lines[-1] == "))"
    assert all(CASE.fullmatch(line) for line in lines[at + 1 : -1])
    cases = [[(int(a), int(b)) for a, b in PAIR.findall(line)] for line in lines[at + 1 : -1]]
    lower, upper = ([ends[sign][k] for k in range(inputs)] for sign in (">=", "<="))
    return Problem(lower, upper, outputs, cases)
