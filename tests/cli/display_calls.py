"""Every call of a live display in the command line's source, found by reading the source."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import tiltproof.cli

SOURCE = Path(tiltproof.cli.__file__).parent
LIVE = {"Live", "Progress", "Status", "track"}
"""The names of rich's live displays (rich.live, rich.progress, rich.status)."""
METHODS = {"status", "progressbar"}
"""Methods that start one: of rich's Console, and of typer."""
ENTRY = "command"
"""A command's own function; the program calls it, and no other function does."""


@dataclass(frozen=True)
class Call:
    """One call: ``check.command live_count`` is the one to live_count in the function command of check.py; a second one there is #2."""

    name: str
    file: str
    first: int
    last: int


def display_calls(source: Path = SOURCE) -> list[Call]:
    """Return calls of rich's displays, of functions that call them, of functions that call those, and so on."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(source.glob("**/*.py"))}
    names = {path: _imported(tree) for path, tree in trees.items()}
    displays: set[str] = set()
    while True:
        found = [call for path, tree in trees.items() for call in _calls(path, tree, names[path] | displays)]
        more = {call.name.split(" ")[0].split(".")[1] for call in found} - {ENTRY}
        if more <= displays:
            return found
        displays |= more


def _imported(tree: ast.Module) -> set[str]:
    """Return the names that a module gives rich's displays."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    rich = [node for node in imports if (node.module or "").split(".")[0] == "rich"]
    return {alias.asname or alias.name for node in rich for alias in node.names if alias.name in LIVE}


def _calls(path: Path, tree: ast.Module, names: set[str]) -> list[Call]:
    found: list[Call] = []
    withs = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    # a display that a with statement starts belongs to the statement's first line
    begins = {item.context_expr: node.lineno for node in withs for item in node.items}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)):
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in (names if isinstance(node.func, ast.Name) else names | LIVE | METHODS):
                name = f"{path.stem}.{function.name} {called}"
                earlier = sum(call.name.split("#")[0] == name for call in found)
                name += f"#{earlier + 1}" if earlier else ""
                found.append(Call(name, path.name, begins.get(node, node.lineno), node.end_lineno or 0))
    return found


def called(calls: list[tuple[str, int]]) -> set[str]:
    """Return the names of calls that were recorded as file and line."""
    return {
        each.name
        for each in display_calls()
        for file, line in calls
        if file == each.file and each.first <= line <= each.last
    }
