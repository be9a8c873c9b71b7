"""The parts of the documentation that are generated, written into the pages, so that they are whole wherever they are read.

    python scripts/docs_pages.py [--check]

Between ``<!-- generated: NAME ARGUMENTS -->`` and ``<!-- end -->`` a page holds what GENERATED[NAME] returns: the command reference
from the program itself, the Python reference, tables of measurements from benchmarks/results, programs of examples/. A test
fails when a page is out of date; --check only names those pages.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer
from docs_reference import python
from docs_tables import board, expected, table

from tiltproof.cli import app
from tiltproof.network.ops.base import CONVERTERS
from tiltproof.transforms import LETTERS

NOT_RUN = "<!-- not run: examples that --help shows -->"  # tests/docs checks their spelling
MARK = re.compile(r"^<!-- generated: ([a-z-]+)(?: (\S+(?: \S+)*))? -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(markdown: str) -> str:
    """A page with its generated parts written anew."""

    def fill(mark: re.Match[str]) -> str:
        name, arguments, _ = mark.groups()
        shown = f"{name} {arguments}" if arguments else name
        content = GENERATED[name](*(arguments or "").split())
        return f"<!-- generated: {shown} -->\n{_set_off(content)}<!-- end -->"

    return MARK.sub(fill, markdown)


def _set_off(content: str) -> str:
    """Empty lines around what is no table of its own."""
    return f"\n{content.strip()}\n\n"


def file(path: str) -> str:
    """A file as code."""
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8')}```"


def main() -> int:
    """Write the pages that changed; with --check, name them and fail."""
    old = {path: path.read_text(encoding="utf-8") for path in PAGES}
    changed = {path: text for path, text in ((path, filled(text)) for path, text in old.items()) if text != old[path]}
    for path, text in changed.items():
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    return 1 if changed and "--check" in sys.argv else 0


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


GENERATED = {
    "board": board,
    "commands": commands,
    "expected": expected,
    "file": file,
    "letters": letters,
    "operations": operations,
    "python": python,
    "table": table,
    "transformations": transformations,
}


if __name__ == "__main__":
    sys.exit(main())
