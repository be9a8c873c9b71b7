"""Parts of the documentation that are generated from the source when the site is built (a hook of mkdocs; see mkdocs.yml).

A line ``<!-- generated: NAME -->`` of a page is replaced by what GENERATED[NAME] returns: the table of transformations, the
command reference from the program itself, the Python reference's list of public names. A line ``<!-- file: PATH -->`` is replaced
by that file, as code.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import tiltproof
from tiltproof.cli import app
from tiltproof.network.ops.base import CONVERTERS
from tiltproof.transforms import LETTERS

NOT_RUN = "<!-- not run: examples that --help shows -->"  # tests/docs checks their spelling
MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
ROOT = Path(__file__).parent.parent


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    markdown = FILE.sub(lambda mark: f"```python\n{(ROOT / mark[1]).read_text(encoding='utf-8')}```", markdown)
    return MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)


def commands() -> str:
    """Every command with its usage, text, options and examples, as ``--help`` shows them."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join(["tiltproof", name, *(p.metavar or p.name.upper() for p in arguments), "[OPTIONS]"])
    rows = ["| argument or option | value | default | meaning |", "|---|---|---|---|"]
    for p in [*arguments, *options]:
        names = p.metavar or p.name.upper() if p in arguments else ", ".join(p.opts)
        value = "" if getattr(p, "is_flag", False) or p in arguments else p.metavar or "NUMBER"
        default = "required" if p.required else "" if p.default is None or p.default is False else f"`{p.default}`"
        rows.append(f"| `{names}` | {_cell(value)} | {default} | {_text(p.help or '')} |")
    examples = [line[2:] for line in command.epilog.splitlines() if line.startswith("  ")]
    parts = [f"## tiltproof {name}", f"```text\n{usage}\n```", _text(command.help, table=False), "\n".join(rows)]
    return "\n\n".join([*parts, "Examples:", NOT_RUN + "\n```console\n" + "\n".join(examples) + "\n```"])


def _text(text: str, table: bool = True) -> str:
    """Help as Markdown; inside a table no line ends and no bars."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", inspect.cleandoc(text))
    return text.replace("|", "\\|").replace("\n", " ") if table else text.replace("<", "&lt;")


def _cell(value: str) -> str:
    return f"`{value}`" if value else ""


def transformations() -> str:
    """A table of all transform codes, then each class's own Convention block."""
    rows = ["| code | class | unit | kind |", "|---|---|---|---|"]
    rows += [f"| `{x}` | [`{p.__name__}`](#{p.__name__.lower()}) | {p.unit} | {_kind(p)} |" for x, p in LETTERS.items()]
    sections = []
    for part in LETTERS.values():
        text = inspect.getdoc(part) or ""
        summary, convention = text.partition("\n\n")[0], text.partition("Convention")[2].partition("\n\n")[0]
        block = f"\n\n```text\n{inspect.cleandoc(convention)}\n```" if convention else ""
        sections.append(f"### {part.__name__}\n\n{summary}{block}")
    return "\n\n".join(["\n".join(rows), *sections])


def _kind(part: Any) -> str:
    """What a class of the package derives from, in lower case: spatial, pixelwise, or whatever else there is."""
    return next(base.__name__ for base in part.__mro__[1:] if base.__module__.endswith("base")).lower()


def letters() -> str:
    """The transform codes in one sentence."""
    return ", ".join(f"`{letter}` {part.__name__} ({part.unit})" for letter, part in LETTERS.items()) + "."


def operations() -> str:
    """Torch operations that have a rule."""
    return ", ".join(f"`{name}`" for name in sorted({name.split(".")[0] for name in CONVERTERS}))


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
            if isinstance(thing, ModuleType):
                parts += _submodule(thing)
            else:
                parts.append(_entry(thing))
    return "\n\n".join(parts)


def _submodule(module: ModuleType) -> list[str]:
    """The public functions and classes of a submodule that the top level does not have; transformations have a page of their own."""
    if module is tiltproof.transforms:
        return []
    names = sorted(set(module.__all__) - set(tiltproof.__all__))
    things = [thing for thing in (getattr(module, name) for name in names) if callable(thing)]
    return [f"## {module.__name__}", *map(_entry, things)]


def _entry(thing: Any) -> str:
    return f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n      heading_level: 3"


GENERATED = {
    "commands": commands,
    "transformations": transformations,
    "letters": letters,
    "operations": operations,
    "python": python,
}
