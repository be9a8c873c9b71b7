"""The fenced blocks of a page: language, code, and the reason, in a comment before it, for not running it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from docs_pages import FILE, on_page_markdown

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


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return blocks in some languages, or all: generated parts are filled in, files shown whole are left out."""
    text = on_page_markdown(FILE.sub("", page.read_text(encoding="utf-8")))
    found = [Block(match["language"], match["code"], match["reason"]) for match in BLOCK.finditer(text)]
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
