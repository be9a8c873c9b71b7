"""The fenced blocks of a page: language, code, and the reason, in a comment before it, for not running it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from docs_pages import MARK

from tests.support.processes import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    reason: str | None


def written(page: Path) -> str:
    """Return a page without files shown whole and the Python reference, which other tests run."""
    return MARK.sub(lambda mark: "" if mark[1] in ("file", "python") else mark[0], page.read_text(encoding="utf-8"))


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in some languages, or all."""
    found = [Block(match["language"], match["code"], match["reason"]) for match in BLOCK.finditer(written(page))]
    return [block for block in found if not languages or block.language in languages]


def commands(block: Block) -> list[list[str]]:
    """Return every command of a console block as words, without comments; ``;`` and line ends separate commands."""
    found = []
    for line in block.code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word == ";":
                found += [words] if words else []
                words = []
            else:
                words.append(word)
    return found
