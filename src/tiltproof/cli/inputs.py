"""From the texts a user types to the objects the public functions take; what cannot be used is an `InputError`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tiltproof.data import load_data
from tiltproof.errors import InputError
from tiltproof.report.finished import FinishedRun
from tiltproof.transforms import Transform, parse
from tiltproof.zoo import card_of, resolve_model


def without_none(**values: Any) -> dict[str, Any]:
    """The options that were given; the rest keep the defaults of the function they are for."""
    return {name: value for name, value in values.items() if value is not None}


def model_and_transform(
    model: str, arch: str | None, allow_pickle: bool, transform: str | None, padding: str | None
) -> tuple[nn.Module, Transform]:
    """The network, and the transformation that was asked for or else the one that the model's card says it was trained for.

    A text is parsed first, which costs nothing. Without one, the model has to be there before its card is missed.
    """
    asked = None if transform is None else parse(transform, padding)
    network = resolve_model(model, arch, allow_pickle)
    return network, parse(_of_card(model), padding) if asked is None else asked


def _of_card(model: str) -> str:
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


def images_of_run(run: FinishedRun, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A run's own images and labels out of its data set."""
    end = run.first + len(run.results)
    if not 0 <= run.first < end <= len(images):
        raise InputError(f"the run is about images {run.first} to {end - 1}", got=f"data with {len(images)} images")
    return images[run.first : end], labels[run.first : end]


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
