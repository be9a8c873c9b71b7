"""The card beside a weight file: ``card.json``, as `tiltproof train` writes it, or ``NAME.json`` beside ``NAME.safetensors``.

It tells the architecture, so that the file can be read without being asked, and the transformation the network was
trained for. A file of that name that is no card is passed over.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tiltproof.errors import InputError

MOST_BYTES = 2**20


@dataclass(frozen=True)
class CardBeside:
    """What a card says that a command needs."""

    architecture: str
    transform: str
    sha256: str

    def check(self, content: bytes, path: Path) -> None:
        """The card must be about these very weights."""
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise InputError(
                "the card beside the weights describes other weights",
                got=f"{path} with sha256 {digest} instead of {self.sha256[:64]}",
                why="the weights were changed or replaced after the card was written",
                do="give --arch and --transform, or move the card away",
            )


def card_beside(weights: Path) -> CardBeside | None:
    """The card of a weight file, or None."""
    for path in (weights.with_suffix(".json"), weights.with_name("card.json")):
        card = _read(path)
        if card is not None:
            return card
    return None


def _read(path: Path) -> CardBeside | None:
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    values = [text for name in ("architecture", "transform", "sha256") if isinstance(text := content.get(name), str)]
    return CardBeside(*values) if len(values) == 3 else None
