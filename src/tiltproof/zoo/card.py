"""The card of a bundled model: what it is, how it was trained and what was measured on it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tiltproof.errors import InputError


@dataclasses.dataclass(frozen=True)
class Card:
    """One bundled model, as its JSON file beside the weights describes it; percentages are of all test images."""

    name: str
    architecture: str
    dataset: str
    transform: str
    trained: str
    clean_percent: float
    certified_percent: float
    unfalsified_percent: float
    measured: str
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Card:
        """Read a card; a key too many or too few means that the zoo folder is damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"the model card {path} cannot be read", got=error) from None
        expected = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(content, dict) or set(content) != expected:
            got = ", ".join(sorted(content)) if isinstance(content, dict) else type(content).__name__
            raise InputError(f"the model card {path} must have the keys {', '.join(sorted(expected))}", got=got)
        return cls(**content)
