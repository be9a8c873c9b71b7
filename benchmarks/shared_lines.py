"""Places of the package that share six or more lines of code, the longest first.

    python benchmarks/shared_lines.py [--least 6]

Imports, docstrings, comments, blank lines and closing brackets are not counted. What two places may share is a list of arguments or
options; logic belongs in one of them.
"""

from __future__ import annotations

import argparse
import ast
import collections
from pathlib import Path

import tiltproof

PACKAGE = Path(tiltproof.__file__).parent
Place = tuple[Path, int]


def code_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of code of a file with their numbers."""
    text = path.read_text(encoding="utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in left_out]
    return [(number, line) for number, line in lines if line.strip("()[]{}, ") and not line.startswith("#")]


def shared(files: dict[Path, list[tuple[int, str]]], least: int) -> list[tuple[int, Place, Place]]:
    """How many lines two places share, and where they begin; each only where the lines before them differ."""
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = collections.defaultdict(list)
    for path, lines in files.items():
        for begin in range(len(lines) - least + 1):
            places[tuple(line for _, line in lines[begin : begin + least])].append((path, begin))

    def line(path: Path, number: int) -> str | None:
        return files[path][number][1] if 0 <= number < len(files[path]) else None

    found = []
    for (one, first), *others in (each for each in places.values() if len(each) > 1):
        for other, second in others:
            if first and second and line(one, first - 1) == line(other, second - 1):
                continue
            count = least
            while (text := line(one, first + count)) is not None and text == line(other, second + count):
                count += 1
            found.append((count, (one, files[one][first][0]), (other, files[other][second][0])))
    return sorted(found, key=lambda each: -each[0])


def main() -> None:
    """Print one line for each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, default=6, help="lines that a pair shares at least")
    arguments = parser.parse_args()
    files = {path: code_lines(path) for path in sorted(PACKAGE.rglob("*.py"))}
    found = shared(files, arguments.least)
    for count, *places in found:
        print(count, *(f"{path.relative_to(PACKAGE)}:{number}" for path, number in places))
    print(f"{len(found)} pairs")


if __name__ == "__main__":
    main()
