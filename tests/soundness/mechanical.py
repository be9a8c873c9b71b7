"""Mechanical mutation: mutate every constant, comparison, index, sign and pair of names of a source file, and fuzz each mutant.

    python -m tests.soundness.mechanical [FILES...] [--every N] [--seconds S] [--workers 1] [--seed 0]

Handwritten defects (`mutations.py`) say little about defects that nobody thought of. Here a file's syntax tree determines the
mutants. Each runs in a child forked from a process that holds torch and the fuzz's inputs with their true values, so a mutant
costs only the computation of its bounds. Its outcome is

    killed      a true value lies outside its bounds, or the code raises, crashes or does not end
    identical   all bounds are the same bit for bit
    looser      all bounds contain the original's: as sound as the original
    TIGHTER     some bound does not contain the original's, and no true value refutes it: a suspect

A function that no case calls is an error too, not so many identical mutants, unless `UNCALLED` there says why.

Every suspect must be killed by better inputs or justified in `mechanical_survivors.py` (networks:
`mechanical_survivors_network.py`; samples: `mechanical_survivors_sampled.py`). Exit status 1: a suspect without a
justification, a justification that matches no mutant any more or whose mutant is killed, or a function that no case calls.
Exit status 2: the original code violates a bound.

A fuzz is a module of this folder, assigned to files by `FUZZES`, with four functions:

    inputs(seed: int) -> Sequence[Case]
        All cases with their true values, computed once and without the package. Called in the parent, which has not imported the package
        for it. ``str(case)`` names the case. Deterministic. Expensive cases last.
    run(case: Case) -> Bounds
        The package's bounds; in a child. Everything of the package is imported inside this function (or its callees), at each call, because
        only then is it the mutant's: each child discards the package's modules and imports them again, without `tiltproof/__init__.py`,
        whose imports would take longer than most fuzzes. Bounds can be pickled (numpy arrays, no tensors).
    violations(case: Case, bounds: Bounds) -> str | None
        A description of a true value outside the bounds, a NaN, a negative radius or a wrong shape; None if there is none.
    compare(old: Bounds, new: Bounds) -> "identical" | "looser" | "tighter"
        For one case; ``looser`` only if every bound in ``new`` contains the one in ``old``. `compared` below does this for affine forms.

and optionally

    direct(case: Case, file: str) -> bool
        Whether the bounds are what the file's functions return, with nothing computed from it. Later steps need not be monotone: they may
        choose another slope for a larger set, and their result is not comparable, though as sound as their input. So if all direct cases
        are identical or looser, and some looser, the mutant is looser, whatever the other cases say. By default all are direct.

    reference(case: Case) -> Bounds
        Replaces ``run`` for the original's bounds if the code could have chosen other sound bounds: whatever else ``compare`` needs to know
        about them. A mutant that makes another of two sound choices is then not a suspect.

A fuzz may have more (a `main`, say). It must not start threads, because children are forked.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import multiprocessing.connection
import re
import resource
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
PACKAGE = "tiltproof"
FUZZES = [
    *(
        (file, "network_fuzz")
        for file in (
            "network/*.py",
            "enclosures/relu.py",
            "enclosures/rounding.py",
        )
    ),
    ("enclosures/*.py", "pixel_fuzz"),
    ("pixels/*.py", "pixel_fuzz"),
]
"""Which fuzz judges which files, by path in the package: the first matching row wins."""
LEFT_OUT = [
    "*/__init__.py",
    *(f"network/{name}.py" for name in ("agreement", "bound", "module_state", "moved_batch", "tracing")),
]
"""Not tried by default: reading a network and comparing it with its module, which have tests of their own, bound nothing."""
OUTCOMES = ("killed", "identical", "looser", "tighter")
MEMORY = 3 * 2**30
"""Memory limit of a mutant, which may ask for more than the machine has."""

PAIRS = [
    ("lower", "upper"), ("low", "high"), ("lowest", "highest"), ("least", "greatest"), ("least", "largest"), ("minimum", "maximum"),
    ("amin", "amax"), ("min", "max"), ("argmin", "argmax"), ("floor", "ceil"), ("first", "last"), ("first", "second"), ("width", "height"),
    ("row", "column"), ("rows", "columns"), ("above", "below"), ("begin", "end"), ("left", "right"), ("top", "bottom"), ("near", "far"),
    ("u", "v"), ("x", "y"), ("m", "n"), ("a", "b"), ("sin", "cos"), ("sine", "cosine"), ("add", "sub"), ("add_", "sub_"), ("mul", "div"),
    ("mul_", "div_"), ("slope_u", "slope_v"), ("size_u", "size_v"), ("cost_u", "cost_v"), ("half_x", "half_y"), ("end_x", "end_y"),
    ("first_x", "first_y"), ("across", "down"), ("across", "along"), ("center", "aside"), ("wide", "tall"), ("slope", "bend"),
    ("center", "radius"), ("row_index", "column_index"), ("vertical", "horizontal"), ("sideways", "upright"), ("rising", "falling"),
]  # fmt: skip
"""Names that are easily confused."""
OTHERS: dict[str, list[str]] = {}
for _one, _two in PAIRS:
    OTHERS.setdefault(_one, []).append(_two)
    OTHERS.setdefault(_two, []).append(_one)
COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt, ast.GtE], ast.Gt: [ast.GtE, ast.Lt], ast.GtE: [ast.Gt, ast.LtE], ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn], ast.NotIn: [ast.In],
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
DROPPED_CALLS = ("abs", "abs_", "clamp", "clamp_", "clamp01", "floor", "ceil", "nan_to_num", "widen")
"""Widening, clamping and rounding functions: without the call the value still has the same kind."""
UNTOUCHED = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.JoinedStr)
WORDS_ONLY = ("annotation", "returns", "decorator_list", "type_params")


@dataclass(frozen=True)
class Mutant:
    """One defect: ``line`` is the text of its first line, ``change`` describes the edit; the n-th of the same has ``#n``."""

    file: str
    number: int
    line: str
    change: str
    code: types.CodeType = field(compare=False, repr=False)
    local: bool = False
    """Inside a function: cases that do not call it can be skipped."""
    function: str = ""
    """Its name."""
    begins: int = 0
    """Its first line, decorators included; 0: not known, so that any function of the file stands for it."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the mutant's key: text instead of line numbers, so that it survives moved lines."""
        return self.file, self.line, self.change


def mutants(path: Path, file: str) -> list[Mutant]:
    """Return all mutants of a source file, in source order."""
    text = path.read_text()
    tree = ast.parse(text)
    inside: dict[ast.AST, ast.FunctionDef] = {}
    for each in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(each, ast.FunctionDef):
            inside |= dict.fromkeys(ast.walk(each), each)
    made = []
    for number, line, change, parent in _edited(tree, text):
        code, where = compile(ast.fix_missing_locations(tree), str(path), "exec"), inside.get(parent)
        if where is None:
            made.append(Mutant(file, number, line, change, code))
        else:
            begins = min([where.lineno, *(each.lineno for each in where.decorator_list)])
            made.append(Mutant(file, number, line, change, code, True, where.name, begins))
    return made


def keys(path: Path, file: str) -> set[tuple[str, str, str]]:
    """Return the keys of all mutants of a source file, without compiling them."""
    text = path.read_text()
    return {(file, line, change) for _, line, change, _ in _edited(ast.parse(text), text)}


def _edited(tree: ast.AST, text: str) -> Iterator[tuple[int, str, str, ast.AST]]:
    """Edit the tree in each way in turn; yield the number and text of the line, the change and its parent."""
    lines, seen = text.splitlines(), Counter[tuple[str, str]]()
    for parent, name, index, old, new, change in _edits(tree, frozenset(_bound(tree))):
        line = lines[old.lineno - 1].strip()
        seen[line, change] += 1
        numbered = change + (f" #{seen[line, change]}" if seen[line, change] > 1 else "")
        _put(parent, name, index, new)
        try:
            yield old.lineno, line, numbered, parent
        finally:
            _put(parent, name, index, old)


def _put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


Edit = tuple[ast.AST, str, int | None, Any, ast.AST, str]


def _edits(node: ast.AST, known: frozenset[str]) -> Iterator[Edit]:
    """Yield where a child of a node may be replaced, by what, and a description; ``known``: names that are defined here."""
    if isinstance(node, UNTOUCHED):
        return
    if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp, ast.ListComp)):
        known |= _bound(node)
    for name, value in ast.iter_fields(node):
        if name in WORDS_ONLY or (isinstance(node, ast.AnnAssign) and name == "target"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
                continue
            if isinstance(child, (ast.expr, ast.stmt)):
                for new, change in _replacements(child, node, known):
                    new = ast.copy_location(new, child)
                    yield node, name, index, child, new, change
            if isinstance(child, ast.keyword) and isinstance(value, list) and isinstance(node, ast.Call):
                rest = ast.Call(node.func, node.args, [each for each in value if each is not child])
                yield from _whole(node, child, rest)
            yield from _edits(child, known)


def _whole(node: ast.Call, keyword: ast.keyword, rest: ast.Call) -> Iterator[Edit]:
    """Yield a call without one of its keywords, by replacing the list of keywords."""
    yield node, "keywords", None, _Keywords(node.keywords, keyword), rest.keywords, f"{_text(keyword)} dropped"  # type: ignore[misc]


class _Keywords(list[ast.keyword]):
    """A list that remembers the position of the keyword in question."""

    def __init__(self, keywords: list[ast.keyword], keyword: ast.keyword) -> None:
        super().__init__(keywords)
        self.lineno = keyword.lineno


def _replacements(node: ast.expr | ast.stmt, parent: ast.AST, known: frozenset[str]) -> Iterator[tuple[ast.AST, str]]:
    news: list[ast.AST] = []
    if isinstance(node, ast.Constant):
        news = [ast.Constant(value) for value in _numbers(node.value, parent)]
    elif isinstance(node, ast.Compare):
        for k, operation in enumerate(node.ops):
            for other in COMPARISONS[type(operation)]:
                news.append(ast.Compare(node.left, [*node.ops[:k], other(), *node.ops[k + 1 :]], node.comparators))
    elif isinstance(node, ast.BoolOp):
        news = [ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)]
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        news = [ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)]
        if isinstance(node.op, (ast.Add, ast.Sub)):
            news += [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        news = [node.operand]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        news = [ast.Name(other, ast.Load()) for other in OTHERS.get(node.id, []) if other in known | {"min", "max"}]
        if isinstance(parent, ast.Subscript) and parent.slice is node:
            news += [ast.BinOp(node, operation, ast.Constant(1)) for operation in (ast.Add(), ast.Sub())]
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        news = [ast.Attribute(node.value, other, node.ctx) for other in OTHERS.get(node.attr, [])]
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in DROPPED_CALLS:
            news = [node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]]
        renamed = [ast.keyword({"min": "max", "max": "min"}.get(k.arg or "", k.arg), k.value) for k in node.keywords]
        if [k.arg for k in renamed] != [k.arg for k in node.keywords]:
            news.append(ast.Call(node.func, node.args, renamed))
        if len(node.args) == 2 and name in ("sub", "div", "Interval", "between", "outward", "where"):
            news.append(ast.Call(node.func, node.args[::-1], node.keywords))
        if name == "where" and len(node.args) == 3:
            news += [ast.Call(node.func, [node.args[0], *node.args[:0:-1]], node.keywords), node.args[1], node.args[2]]
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass(), f"{_text(node)} dropped"
        if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
            news = [ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)]
    for new in news:
        yield new, f"{_text(node)} -> {_text(new)}"


def _numbers(value: object, parent: ast.AST) -> list[bool | int | float]:
    """Return other values the number could have had."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        others: list[int | float] = [value + 1, value - 1, *([2 * value, value // 2] if abs(value) > 2 else [])]
    elif isinstance(value, float):
        others = [2 * value, value / 2, 1.0, 0.0] if value else [1.0, 2.0**-20]
    else:
        return []
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Mult, ast.Div)):
        others.append(1)
    return [other for k, other in enumerate(others) if other != value and other not in others[:k]]


def _bound(node: ast.AST) -> frozenset[str]:
    """Return names that are assigned, defined, or are arguments inside a node."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
        elif isinstance(each, ast.arg):
            names.add(each.arg)
    if isinstance(node, ast.Module):  # a function's local names are unknown outside it
        names = {each.id for part in node.body if isinstance(part, (ast.Assign, ast.AnnAssign)) for each in ast.walk(part)
                 if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}  # fmt: skip
    return frozenset(names)


def _text(node: ast.AST, length: int = 60) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= length else text[: length - 3] + "..."


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the mutant's code to any import of its module."""

    def __init__(self, name: str, path: Path, code: types.CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self.code, module.__dict__)


def renew(package: str, root: Path, file: str, code: types.CodeType | None) -> None:
    """Discard the package in a child; its modules are imported again, one of them with this code."""
    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        del sys.modules[name]
    bare = types.ModuleType(package)
    bare.__path__ = [str(root / package)]
    sys.modules[package] = bare
    if code is not None:
        module = ".".join([package, *Path(file).with_suffix("").parts])
        sys.meta_path.insert(0, _Finder(module, root / package / file, code))


@dataclass
class Result:
    mutant: Mutant
    outcome: str
    detail: str
    seconds: float
    case: int | None = None  # the one that killed it


class Trial:
    """A fuzz, its cases, and the bounds of the unmutated code."""

    def __init__(
        self, fuzz: Any, seed: int = 0, package: str = PACKAGE, root: Path = SOURCE, thorough: bool = True
    ) -> None:
        """Prepare a trial; ``thorough`` adds `reference`, which only matters for mutants that survive."""
        self.fuzz, self.package, self.root = fuzz, package, root
        self.reference = getattr(fuzz, "reference", fuzz.run) if thorough else fuzz.run
        self.cases = list(fuzz.inputs(seed))
        self.kills: Counter[int] = Counter()
        """How many mutants each case has killed: the most successful ones run first."""
        began = time.perf_counter()
        self.bounds, self.violation, self.called = self._original()
        self.seconds = time.perf_counter() - began

    def _original(self) -> tuple[list[Any], str | None, list[set[tuple[str, int]]]]:
        """Run the original code: bounds, a violation, and the functions each case calls: file and first line, or 0 for any of the file.

        Imports do not count, whatever they call. This too happens in a child, so that the parent never imports the package.
        """

        def work() -> tuple[list[Any], str | None, list[set[tuple[str, int]]]]:
            renew(self.package, self.root, "", None)
            bounds, called, seen, importing = list[Any](), list[set[tuple[str, int]]](), set[tuple[str, int]](), 0
            begins = str(self.root / self.package) + "/"

            def called_now(frame: types.FrameType, event: str, _: Any) -> None:
                nonlocal importing
                if frame.f_code.co_name == "<module>":
                    importing += {"call": 1, "return": -1}.get(event, 0)
                elif event == "call" and not importing:
                    seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

            for case in self.cases:
                seen.clear()
                sys.setprofile(called_now)
                bounds.append(self.reference(case))
                sys.setprofile(None)
                here = {(name.removeprefix(begins), line) for name, line in seen if name.startswith(begins)}
                called.append(here | {(name, 0) for name, _ in here})
            found = (f"{case}: {self.fuzz.violations(case, each)}" for case, each in zip(self.cases, bounds, strict=True)
                     if self.fuzz.violations(case, each) is not None)  # fmt: skip
            return bounds, next(found, None), called

        child = _Child(work)
        result: Any = child.result(600)
        if isinstance(result, str):
            raise RuntimeError(f"the unmutated code: {result}")
        return result

    def calls(self, mutant: Mutant) -> list[int]:
        """Return the cases that may notice a mutant: all if the first alone calls its function, whose result may be kept.

        What is outside of functions is noticed by cases that call a function of a file that imports it.
        """
        files = {mutant.file} if mutant.local else readers(self.package, self.root, mutant.file)
        found = [k for k, called in enumerate(self.called) if any((file, mutant.begins) in called for file in files)]
        return list(range(len(self.cases))) if found == [0] or not (found or mutant.local) else found

    def judge(self, mutant: Mutant) -> tuple[str, str, int | None]:
        """Return (outcome, detail, killing case), computed in a child."""
        renew(self.package, self.root, mutant.file, mutant.code)
        direct = getattr(self.fuzz, "direct", lambda *_: True)
        relations: dict[bool, tuple[str, str]] = {True: ("identical", ""), False: ("identical", "")}
        for k in sorted(self.calls(mutant), key=lambda k: -self.kills[k]):
            case = self.cases[k]
            try:
                bounds = self.fuzz.run(case)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                return "killed", f"error: {type(error).__name__} in {where.name} ({str(error)[:60]})", k
            found = self.fuzz.violations(case, bounds)
            if found is not None:
                return "killed", f"{case}: {found}", k
            relation = self.fuzz.compare(self.bounds[k], bounds)
            which = direct(case, mutant.file)
            if OUTCOMES.index(relation) > OUTCOMES.index(relations[which][0]):
                relations[which] = relation, str(case)
        outcome, detail = relations[relations[True][0] != "identical"]
        return outcome, detail, None

    def results(self, todo: Sequence[Mutant], seconds: float, workers: int = 1) -> Iterator[Result]:
        """Yield results as they come, in the given order if there is one worker."""
        waiting, running = list(todo)[::-1], dict[_Child, Mutant]()
        while waiting or running:
            while waiting and len(running) < workers:
                mutant = waiting.pop()
                running[_Child(lambda mutant=mutant: self.judge(mutant))] = mutant  # type: ignore[misc]
            left = min(child.began + seconds for child in running) - time.perf_counter()
            multiprocessing.connection.wait([child.reader for child in running], max(left, 0))
            for child in [child for child in running if child.ended(seconds)]:
                mutant, answer = running.pop(child), child.result(0)
                if isinstance(answer, str):
                    answer = "killed", f"error: {answer}", None
                outcome, detail, case = answer
                if case is not None:
                    self.kills[case] += 1
                yield Result(mutant, outcome, detail, time.perf_counter() - child.began, case)


class _Child:
    """The result of a function in a forked process, or a text if it returned none."""

    def __init__(self, work: Any) -> None:
        context = multiprocessing.get_context("fork")
        self.reader, writer = context.Pipe(duplex=False)
        self.began = time.perf_counter()
        self.process: BaseProcess = context.Process(target=self._work, args=(work, writer), daemon=True)
        self.process.start()
        writer.close()

    @staticmethod
    def _work(work: Any, writer: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (_data() + MEMORY, resource.RLIM_INFINITY))
        sys.stderr = sys.stdout = open("/dev/null", "w")  # noqa: PTH123, SIM115 - warnings of mutants
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {str(error)[:80]}"
        writer.send(answer)
        writer.close()

    def ended(self, seconds: float) -> bool:
        return self.reader.poll() or time.perf_counter() - self.began > seconds

    def result(self, seconds: float) -> Any:
        answer: Any = "does not end"
        if self.reader.poll(seconds):
            try:
                answer = self.reader.recv()
            except EOFError:
                answer = "the process crashed"
        self.process.kill()
        self.process.join()
        self.reader.close()
        return answer


def _data() -> int:
    """Return this process's data size in bytes, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


@functools.cache
def readers(package: str, root: Path, file: str) -> frozenset[str]:
    """Return a file and all of the package that import names from it, directly or from one another."""
    found, texts = (
        {file},
        {str(each.relative_to(root / package)): each.read_text() for each in (root / package).rglob("*.py")},
    )
    while True:
        modules = [".".join([package, *Path(each).with_suffix("").parts]).rpartition(".") for each in found]
        either = [rf"from {parent}\.{name} import|from {parent} import [^\n]*\b{name}\b" for parent, _, name in modules]
        asked = re.compile("|".join(either))
        more = {name for name, text in texts.items() if not name.endswith("__init__.py") and asked.search(text)} - found
        if not more:
            return frozenset(found)
        found |= more


def compared(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Compare bounds given as dictionaries of float64 arrays center [...], slopes [d, ...], radius, lower and upper.

    ``others`` may hold a list of such dictionaries: other bounds that the original code regards as correct for each entry.
    """
    others = old.get("others", [])
    if all(np.array_equal(old[name], new[name], equal_nan=True) for name in new):
        return "identical"
    if old["radius"].shape != new["radius"].shape:
        return "tighter"
    left = np.ones(new["radius"].shape, dtype=bool)
    with np.errstate(invalid="ignore"):
        for each in (old, *others):
            left[left] = ~_contained(each, new, left)
            if not left.any():
                return "looser"
    return "tighter"


def _contained(old: dict[str, Any], new: dict[str, Any], where: Any) -> Any:
    """Return whether these entries' new forms and ends contain the old ones, whatever the symbols."""
    a, b = ({name: each[name][..., where].astype(np.longdouble) for name in new} for each in (old, new))
    d = max(len(a["slopes"]), len(b["slopes"]))
    g, h = (np.concatenate([each, np.zeros((d - len(each), each.shape[1]))]) for each in (a["slopes"], b["slopes"]))
    inside = np.abs(a["center"] - b["center"]) + np.abs(g - h).sum(0) + a["radius"] <= b["radius"]
    same = (a["center"] == b["center"]) & (g == h).all(0) & (a["radius"] == b["radius"])
    return (inside | same) & (b["lower"] <= a["lower"]) & (a["upper"] <= b["upper"])


def default_files() -> list[str]:
    """Return all files that have a fuzz and are not in LEFT_OUT."""
    found = sorted(str(path.relative_to(SOURCE / PACKAGE)) for path in (SOURCE / PACKAGE).rglob("*.py"))
    return [file for file in found if fuzz_of(file) and not any(fnmatch.fnmatch(file, each) for each in LEFT_OUT)]


def fuzz_of(file: str) -> str | None:
    return next((name for glob, name in FUZZES if fnmatch.fnmatch(file, glob)), None)


def argued() -> dict[tuple[str, str, str], str]:
    from tests.soundness.mechanical_survivors import ARGUED
    from tests.soundness.mechanical_survivors_network import ARGUED as OF_NETWORKS
    from tests.soundness.mechanical_survivors_sampled import ARGUED as OF_SAMPLES

    return {
        (row.file, row.line, change): row.why for row in [*ARGUED, *OF_NETWORKS, *OF_SAMPLES] for change in row.changes
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="mechanical mutants of source files, judged by a fuzz")
    parser.add_argument(
        "files", nargs="*", help="pixels/single_cell.py, or a path to it; by default all that have a fuzz"
    )
    parser.add_argument("--every", type=int, default=1, help="only every N-th mutant")
    parser.add_argument("--begin", type=int, default=0, help="leave out that many mutants of each file")
    parser.add_argument("--seconds", type=float, default=0, help="for a mutant; by default ten times the original's")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only mutants of lines in which this expression is found")
    parser.add_argument("--list", action="store_true", help="say what the mutants are, and try none")
    parser.add_argument("--quiet", action="store_true", help="print suspects and sums alone")
    options = parser.parse_args()
    import torch  # children inherit it

    torch.set_num_threads(1)
    files = [str(Path(file)) for file in options.files] or default_files()
    files = [file.split(f"{PACKAGE}/")[-1] for file in files]
    table, trials = argued(), dict[str, Trial]()
    bad, total, began = 0, Counter[str](), time.perf_counter()
    for file in files:
        name = fuzz_of(file)
        if name is None:
            parser.error(f"no fuzz for {file}: {FUZZES}")
        every = mutants(SOURCE / PACKAGE / file, file)
        known = {mutant.key for mutant in every}
        for key in [key for key in table if key[0] == file and key not in known]:
            say(f"STALE      an argument fits no mutant: {key}")
            bad += 1
        todo = [mutant for mutant in every[options.begin :: options.every] if re.search(options.only, mutant.line)]
        if options.list:
            for mutant in todo:
                say(f"{file}:{mutant.number}  {mutant.line}  [{mutant.change}]")
            continue
        if name not in trials:
            trials[name] = Trial(importlib.import_module(f"tests.soundness.{name}"), options.seed)
            say(f"{name}: {len(trials[name].cases)} cases, {trials[name].seconds:.1f} s for the original")
            if trials[name].violation:
                say(f"VIOLATION in the unmutated code: {trials[name].violation}")
                return 2
        bad += uncalled(file, every, trials[name], name)
        todo = [mutant for mutant in todo if trials[name].calls(mutant)]
        trial, counts, start = trials[name], Counter[str](), time.perf_counter()
        for k, result in enumerate(trial.results(todo, options.seconds or 10 * trial.seconds + 10, options.workers)):
            outcome, why = result.outcome, table.get(result.mutant.key)
            if outcome == "tighter":
                outcome = "TIGHTER" if why is None else "argued"
            elif outcome == "killed" and why is not None:
                outcome = "REFUTED"
            elif outcome == "killed" and result.detail.startswith("error: "):
                outcome = "error"
            bad += outcome in ("TIGHTER", "REFUTED")
            counts[outcome] += 1
            if not options.quiet or outcome in ("TIGHTER", "REFUTED"):
                where = f"{file}:{result.mutant.number}"
                say(f"{outcome:9} {result.seconds:5.1f} s {k + 1:4}/{len(todo)} {where}  {result.mutant.line}")
                say(f"          [{result.mutant.change}]  {result.detail[:150]}")
        total += counts
        say(f"{file}: {len(todo)} of {len(every)} mutants, {words(counts)}, {time.perf_counter() - start:.0f} s")
    say(f"all: {total.total()} mutants, {words(total)}, {time.perf_counter() - began:.0f} s")
    return 1 if bad else 0


def uncalled(file: str, every: Sequence[Mutant], trial: Trial, fuzz: str) -> int:
    """Say which functions no case calls: mutants of them would seem identical. Return how many of them nothing excuses."""
    from tests.soundness.mechanical_survivors import UNCALLED

    idle, calls = Counter[str](), Counter[str]()
    for mutant in every:
        if mutant.local:
            (calls if trial.calls(mutant) else idle)[mutant.function] += 1
    known = {name: why for (path, name), why in UNCALLED.items() if path == file}
    bad = 0
    if idle and not calls and "*" not in known:
        say(f"UNCALLED   no case of {fuzz} calls any function of {file}: it judges none of {idle.total()} mutants")
        return 1
    for name, count in idle.items():
        if "*" not in known and name not in known:
            say(f"UNCALLED   no case of {fuzz} calls {name} of {file}: it judges none of {count} mutants")
            bad += 1
    for name in known:
        if (name == "*" and (calls or not idle)) or (name != "*" and name not in idle):
            say(f"STALE      excused, but called by a case, or gone: {name} of {file}")
            bad += 1
    return bad


def words(counts: Counter[str]) -> str:
    names = ("killed", "error", "identical", "looser", "argued", "TIGHTER", "REFUTED")
    return ", ".join(
        f"{counts[name]} {'killed by an ' if name == 'error' else ''}{name}" for name in names if counts[name]
    )


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())
