"""What a finished run leaves: the weights, and a card that says what they are and what was measured on them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tiltproof.certify.manifest import environment
from tiltproof.certify.writing import document, replace_bytes
from tiltproof.train.evaluate import BUDGET
from tiltproof.train.recipe import Recipe
from tiltproof.train.writing import writing

WEIGHTS, CARD, RECIPE = "model.safetensors", "card.json", "recipe.json"


def write_outcome(
    folder: Path,
    recipe: Recipe,
    model: nn.Module,
    device: torch.device,
    held_out: int,
    figures: Mapping[str, float | None],
    certified: int,
) -> None:
    """model.safetensors first, then the card that carries its digest."""
    from safetensors.torch import save

    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()})
    with writing(folder):
        replace_bytes(folder / WEIGHTS, content)
        replace_bytes(folder / CARD, document(card(recipe, content, device, held_out, figures, certified)))


def card(
    recipe: Recipe,
    content: bytes,
    device: torch.device,
    held_out: int,
    figures: Mapping[str, float | None],
    certified: int,
) -> dict[str, Any]:
    """The fields of the zoo's cards, null where nothing was measured; ``certified``: how many images were tried."""
    return {
        "name": recipe.name,
        "architecture": recipe.model.architecture,
        "dataset": recipe.data.name,
        "transform": recipe.transform,
        "trained": f"tiltproof train: recipe {recipe.name}, loss {recipe.loss.kind}, {recipe.train.epochs} epochs, "
        f"seed {recipe.train.seed}",
        **figures,
        "measured": measured(recipe, held_out, certified),
        "sha256": hashlib.sha256(content).hexdigest(),
        "recipe": recipe.to_dict(),
        "environment": environment(device),
    }


def measured(recipe: Recipe, held_out: int, certified: int) -> str:
    """On which images, and how: never on test images."""
    if not held_out:
        return "nothing: no image was held out"
    text = f"the {held_out:,} images held out of the training set ({100 * recipe.data.hold_out:g} %): clean on all"
    if not certified:
        return text + "; none certified"
    splits = recipe.certify.splits
    how = f"up to {BUDGET.boxes:,} boxes an image" if splits is None else f"splits {', '.join(map(str, splits))}"
    return f"{text}; what is certified on the first {certified:,} (method {recipe.certify.method}, {how})"
