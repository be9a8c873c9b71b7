"""The trained models that come with the package: ``weights/NAME.json`` (a card) beside ``weights/NAME.safetensors``."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch import nn

from tiltproof.errors import InputError
from tiltproof.models.cards import Card
from tiltproof.models.weights_file import build, check_file, read_bytes

WEIGHTS_FOLDER = Path(__file__).parent / "weights"


def models(folder: Path | None = None) -> list[Card]:
    """The cards of all bundled models, by name."""
    return [Card.read(path) for path in sorted((folder or WEIGHTS_FOLDER).glob("*.json"))]


def load_model(name: str, folder: Path | None = None) -> nn.Module:
    """A bundled model in eval mode, on the CPU; its weights are checked against the digest on its card."""
    cards = {card.name: card for card in models(folder)}
    if name not in cards:
        raise InputError(
            "no bundled model has this name",
            got=name,
            do=f"use one of {', '.join(cards) or '(the zoo is empty)'}, "
            "a .safetensors file with --arch, an .onnx file, or package.module:function",
        )
    path = (folder or WEIGHTS_FOLDER) / f"{name}.safetensors"
    check_file(path)
    content = read_bytes(path, cards[name].architecture)
    digest = hashlib.sha256(content).hexdigest()
    if digest != cards[name].sha256:
        raise InputError(
            f"the weights of {name} are not those its card describes",
            got=f"sha256 {digest} instead of {cards[name].sha256}",
            why="the file was changed or damaged",
            do="reinstall tiltproof",
        )
    return build(cards[name].architecture, content, path)
