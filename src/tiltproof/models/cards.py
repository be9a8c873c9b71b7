"""The card of a bundled model: what it is, how it was trained and what was measured on it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltproof.errors import InputError, shown

KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "str": ("a text", (str,)),
    "float": ("a number", (int, float)),
    "dict[str, Any]": ("a table", (dict,)),
    "dict[str, Any] | None": ("a table or null", (dict, type(None))),
}
"""What JSON may hold where a field has such a type."""


@dataclasses.dataclass(frozen=True)
class Card:
    """One bundled model, as its JSON file beside the weights describes it; percentages are of all test images.

    `tiltproof train` writes the same fields, measured on held-out images; benchmarks/trained_networks.py --zoo
    replaces these figures by those of the test set.
    """

    name: str
    architecture: str
    dataset: str
    transform: str
    trained: str
    clean_percent: float
    certified_percent: float
    unfalsified_percent: float
    boxes_per_image: float  # parameter boxes bounded, mean over all images
    measured: str
    sha256: str
    recipe: dict[str, Any]  # the whole recipe it was trained with
    environment: dict[str, Any] | None = None  # versions and device of the training, where they were kept

    @classmethod
    def read(cls, path: Path) -> Card:
        """Read a card; a key too many or too few, or a value of another kind, means that the zoo folder is damaged."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"the model card {path} cannot be read", got=error) from None
        fields = {field.name: field for field in dataclasses.fields(cls)}
        needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
        if not isinstance(content, dict) or not needed <= set(content) <= set(fields):
            got = ", ".join(sorted(content)) if isinstance(content, dict) else type(content).__name__
            raise InputError(f"the model card {path} must have the keys {', '.join(sorted(needed))}", got=shown(got))
        for name, value in content.items():
            kind, types = KINDS[str(fields[name].type)]
            if not isinstance(value, types) or isinstance(value, bool):
                raise InputError(f"{name!r} of the model card {path} must be {kind}", got=shown(value))
        return cls(**content)


# The card beside a weight file: ``card.json``, as `tiltproof train` writes it, or ``NAME.json`` beside ``NAME.safetensors``.
#
# It tells the architecture, so that the file can be read without being asked, and the transformation the network was
# trained for. A file of that name that is no card is passed over.


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
