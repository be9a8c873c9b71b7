"""What the site needs beyond the pages themselves (a hook of mkdocs; see mkdocs.yml): formulas as MathML.

Displayed formulas stand in the pages as code hosts read them, LaTeX between two lines ``$$``. Browsers typeset MathML without
a script, a font or a request to anybody's server.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

DISPLAYED = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return DISPLAYED.sub(lambda formula: f'<div class="formula">{convert(formula[1], display="block")}</div>', markdown)
