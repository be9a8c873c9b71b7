"""The Python reference as Markdown: every public name with its signature and its docstring's sections."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import tiltproof

SECTION = re.compile(r"^([A-Z][a-z]+)\n-{3,}\n", re.MULTILINE)
EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!\s*$|>>> ).*\n?)*)+", re.MULTILINE)
LISTED = {"Parameters", "Attributes", "Returns", "Yields", "Raises"}
WIDTH = 100
"""Signatures up to this length stay on one line."""


def python() -> str:
    """The public names, under the headings that the comments of ``__all__`` give them."""
    source = Path(tiltproof.__file__).read_text(encoding="utf-8").partition("__all__ = [")[2].partition("]")[0]
    parts = []
    for line in map(str.strip, source.splitlines()):
        if line.startswith("#"):
            heading = line.removeprefix("# ")
            parts.append(f"## {heading[0].upper()}{heading[1:]}")
        elif line:
            thing = getattr(tiltproof, line.strip('",'))
            parts += _submodule(thing) if isinstance(thing, ModuleType) else _entry(thing)
    return "\n\n".join(parts)


def _submodule(module: ModuleType) -> list[str]:
    """The public functions and classes of a submodule that the top level does not have; transformations have a page of their own."""
    if module is tiltproof.transforms:
        return []
    names = sorted(set(module.__all__) - set(tiltproof.__all__))
    things = [thing for thing in (getattr(module, name) for name in names) if callable(thing)]
    return [f"## {module.__name__}", *(part for thing in things for part in _entry(thing))]


def _entry(thing: Any) -> list[str]:
    """Heading, signature and docstring of a function or a class, and of its public members."""
    name = thing.__name__
    parts = [f'<a id="tiltproof.{name}"></a>\n\n### `{name}`']
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        parts += [docstring(thing), *(f"- `{name}.{each.name}`: `{str(each)!r}`" for each in thing)]
        return parts
    parts += [_signature(thing, name), docstring(thing)]
    return [part for part in [*parts, *(_members(thing) if inspect.isclass(thing) else [])] if part]


def _members(kind: type) -> list[str]:
    """Methods that the class or a base of the package documents in full, and beside such methods the properties.

    Methods of one line are for the package itself.
    """
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("tiltproof"):
            found = {key: value for key, value in vars(base).items() if key not in found} | found
    public = {key: getattr(value, "__func__", value) for key, value in found.items() if not key.startswith("_")}
    methods = {
        key
        for key, value in public.items()
        if inspect.isfunction(value) and SECTION.search(inspect.getdoc(value) or "")
    }
    parts = []
    for key, value in public.items():
        if key in methods:
            parts.append(f"#### `{kind.__name__}.{key}`\n\n{_signature(getattr(kind, key), key)}\n\n{docstring(value)}")
        elif methods and isinstance(value, property):
            parts.append(f"#### `{kind.__name__}.{key}`\n\n*property*: {docstring(value)}")
    return parts


def _signature(thing: Any, name: str) -> str:
    try:
        signature = inspect.signature(thing)
    except ValueError:  # exceptions that take what their base takes
        return ""
    words = [_parameter(each) for each in signature.parameters.values() if each.name != "self"]
    for kind, mark in ((inspect.Parameter.KEYWORD_ONLY, "*"), (inspect.Parameter.POSITIONAL_ONLY, "/")):
        places = [n for n, each in enumerate(signature.parameters.values()) if each.kind is kind]
        starred = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in signature.parameters.values())
        if places and mark == "*" and not starred:
            words.insert(places[0], mark)
        elif places and mark == "/":
            words.insert(places[-1] + 1, mark)
    annotation = signature.return_annotation
    back = "" if inspect.isclass(thing) or annotation is inspect.Signature.empty else f" -> {_annotation(annotation)}"
    line = f"{name}({', '.join(words)}){back}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"
    return f"```python\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotated = parameter.annotation is not inspect.Parameter.empty
    text = f"{star}{parameter.name}" + (f": {_annotation(parameter.annotation)}" if annotated else "")
    if parameter.default is inspect.Parameter.empty:
        return text
    default = "..." if "object at 0x" in repr(parameter.default) else repr(parameter.default)
    return f"{text} = {default}" if annotated else f"{text}={default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def docstring(thing: Any) -> str:
    """A numpy-style docstring as Markdown: lists for its sections, code for its examples."""
    text = inspect.getdoc(thing) or ""
    first, *sections = SECTION.split(text)
    parts = [_prose(first)]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"**{title}**\n\n" + (_list(title, body) if title in LISTED else _prose(body)))
    return "\n\n".join(part for part in parts if part.strip())


def _prose(text: str) -> str:
    """Text whose ``>>>`` lines are code."""
    text = text.replace("``", "`")
    return EXAMPLE.sub(lambda run: f"```pycon\n{run[0].rstrip()}\n```\n", text.strip() + "\n").strip()


def _list(title: str, body: str) -> str:
    """One item for each ``name : type`` with the lines indented below it."""
    items: list[tuple[str, list[str]]] = []
    for line in body.strip("\n").splitlines():
        if line and not line[0].isspace():
            items.append((line, []))
        elif items:
            items[-1][1].append(line.strip())
    return "\n".join(_item(title, head, lines) for head, lines in items)


def _item(title: str, head: str, lines: list[str]) -> str:
    names, colon, kind = head.partition(" : ")
    text = " ".join(line for line in lines if line).replace("``", "`")
    if title in ("Parameters", "Attributes") or colon:
        label = ", ".join(f"`{name.strip()}`" for name in names.split(",")) + (f" (`{kind}`)" if kind else "")
    else:
        label = f"`{head}`"
    return f"- {label}: {text}" if text else f"- {label}"
