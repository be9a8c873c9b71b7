"""From the texts a user types to the objects the public functions take; what cannot be used is an `InputError`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from tiltproof.data import load_data
from tiltproof.errors import InputError
from tiltproof.zoo import card_of


def without_none(**values: Any) -> dict[str, Any]:
    """The options that were given; the rest keep the defaults of the function they are for."""
    return {name: value for name, value in values.items() if value is not None}


def choose_transform(text: str | None, model: str) -> str:
    """The transformation that was asked for, else the one the model's card says it was trained for."""
    if text is not None:
        return text
    card = card_of(model)
    if card is None:
        raise InputError(
            "--transform is missing",
            got=f"--model {model}, which has no card that tells it",
            do='say what may happen to an image, e.g. --transform "R(30)"',
        )
    return card.transform


def parse_splits(text: str | None) -> int | tuple[int, ...] | None:
    """``240`` (every parameter) or ``10,20`` (one number a parameter).

    >>> parse_splits("240"), parse_splits("10, 20"), parse_splits(None)
    (240, (10, 20), None)
    """
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            "--splits takes whole numbers", got=text, do="write 240, or one number a parameter: 10,20"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def load_selection(
    data: str, root: Path | None, start: int, end: int | None, limit: int | None
) -> tuple[Tensor, Tensor, int]:
    """The chosen images and labels, and the index of the first of them."""
    if end is not None and limit is not None:
        raise InputError(
            "--end and --limit say the same thing twice", got=f"--end {end} --limit {limit}", do="give one"
        )
    images, labels = load_data(data, root)
    count = len(images)
    if limit is not None:
        if limit < 1:
            raise InputError("--limit must be at least 1", got=limit)
        end = min(start + limit, count)
    end = count if end is None else end
    if not 0 <= start < end <= count:
        raise InputError(
            f"{data} has images 0 to {count - 1}",
            got=f"--start {start} and --end {end}",
            do=f"choose 0 <= start < end <= {count}",
        )
    return images[start:end], labels[start:end], start
