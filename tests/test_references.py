"""Docstrings and comments name modules, classes and functions that exist: a rename has to rename them there too."""

import ast
import builtins
import io
import re
import sys
import tokenize
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.processes import ROOT

PACKAGE = ROOT / "src" / "tiltproof"
pytestmark = pytest.mark.skipif(not PACKAGE.exists(), reason="not in a source checkout")

FILES = sorted(PACKAGE.rglob("*.py")) if PACKAGE.exists() else []
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}
PATH = re.compile(r"(?<![\w/.-])((?:\w+/)*\w+)\.py\b")
PACKAGE_PATH = re.compile(r"\btiltproof((?:\.\w+)+)")
NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`(?!`)")
FOREIGN = {
    *sys.stdlib_module_names,
    "tiltproof",
    "torch",
    "numpy",
    "np",
    "tl",
    "triton",
    "ray",
    "rich",
    "typer",
    "onnxruntime",
}


def prose(source):
    """Return (line, text) of each comment and each triple-quoted string."""
    return [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.lstrip("rbf")[:3] == '"""')
    ]


@cache
def names(path):
    """Return every name that the code of a module uses or defines."""
    tokens = tokenize.generate_tokens(io.StringIO(TEXTS[path]).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


@cache
def all_names():
    return set().union(*map(names, FILES))


@cache
def defined(path):
    """Return what `module.name` can mean: what the module or a class in it defines."""
    found = set()
    for node in ast.walk(ast.parse(TEXTS[path])):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[-1])
    return found


@cache
def holders(head):
    """Return what `head` can be: names below modules and packages of this name, and below classes of this name."""
    below = [defined(path) for path in FILES if head == (path.parent.name if path.name == "__init__.py" else path.stem)]
    below += [
        {path.parent.name if path.name == "__init__.py" else path.stem for path in FILES if head in path.parts[-3:-1]}
    ]
    below += [defined(path) for path in FILES if re.search(rf"^class {head}\b", TEXTS[path], re.MULTILINE)]
    return [each for each in below if each]


def missing(path, text):
    """List the references in a text of ``path`` that lead nowhere."""
    found = []
    for match in PATH.finditer(text):
        suffix = Path(f"{match[1]}.py")
        ours = any(path.parts[-len(suffix.parts) :] == suffix.parts for path in FILES)
        if not ours and not (ROOT / suffix).exists():
            found.append(match[0])
    parts = {each.name.removesuffix(".py") for each in PACKAGE.iterdir()} | all_names()
    found += [match[0] for match in PACKAGE_PATH.finditer(text) if match[1].split(".")[1] not in parts]
    for match in NAME.finditer(text):
        head, *rest = match[1].split(".")
        if head in FOREIGN or (rest and rest[-1] == "py"):
            continue
        if not rest:
            known = head in all_names() or hasattr(builtins, head) or bool(holders(head))
        elif holders(head):
            known = all(not holders(a) or any(b in each for each in holders(a)) for a, b in pairwise([head, *rest]))
        else:
            known = {head, *rest} <= names(path)
        if not known:
            found.append(match[1])
    return found


def test_every_reference_leads_somewhere():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {reference}"
        for path, source in TEXTS.items()
        for line, text in prose(source)
        for reference in missing(path, text)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("see `api.hull` and `pixels/api.py`, `AffineForm.to`, `torch.lerp` and `tiltproof.pixels`", []),
        ("see fused_pixels.py", ["fused_pixels.py"]),
        ("see kernels/fused_pixels.py", ["kernels/fused_pixels.py"]),
        ("see `resample.hull` and `api.hulls`", ["resample.hull", "api.hulls"]),
        ("see `enclosures.relu.by_lines`", ["enclosures.relu.by_lines"]),
        ("see `CellWalk`", ["CellWalk"]),
        ("see tiltproof.certifier.run", ["tiltproof.certifier.run"]),
    ],
)
def test_lost_references_are_found(text, lost):
    assert missing(PACKAGE / "pixels" / "api.py", text) == lost
