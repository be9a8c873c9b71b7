"""Docstrings as Markdown for the Python reference (an extension of griffe; see mkdocs.yml).

Runs of ``>>>`` lines and the Convention blocks of transformations are set as they are written.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!\s*$|>>> ).*\n?)*)+", re.MULTILINE)
CONVENTION = re.compile(r"^Convention\n((?:^ +.*\n?)+)", re.MULTILINE)


class Verbatim(griffe.Extension):
    """Fences around what Markdown would reflow."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = obj.docstring.value
            text = EXAMPLE.sub(lambda run: f"```python\n{run[0].rstrip()}\n```\n", text)
            text = CONVENTION.sub(lambda block: f"Convention\n\n```text\n{block[1].rstrip()}\n```\n", text)
            obj.docstring.value = text
