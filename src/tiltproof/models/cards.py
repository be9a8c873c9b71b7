"""Model cards (architecture, training, measured figures), and the figures of the paper for comparison.

A card is a JSON file next to the weights: ``weights/NAME.json`` for a bundled network, ``card.json`` or ``NAME.json``
for the user's own. `tiltproof train` writes one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tiltproof.errors import InputError, shown

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
MAX_BYTES = 2**20
"""Size limit of a card."""
KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "str": ("a text", (str,)),
    "float": ("a number", (int, float)),
    "dict[str, Any]": ("a table", (dict,)),
    "dict[str, Any] | None": ("a table or null", (dict, type(None))),
}
"""Allowed JSON types for each annotation of `Card`."""


@dataclass(frozen=True)
class Card:
    """The card of a bundled network; percentages are of all test images.

    `tiltproof train` writes the same fields, measured on held-out images; benchmarks/trained_networks.py --cards
    replaces these figures by those of the test set.

    Attributes
    ----------
    name, architecture, dataset, transform : str
        What was trained, on what and for what.
    trained, measured : str
        How it was trained and measured, in words.
    clean_percent, certified_percent, unfalsified_percent : float
        Shares of the test images.
    boxes_per_image : float
        Parameter boxes bounded, mean over all images.
    sha256 : str
        Digest of the weights.
    recipe : dict
        The complete training recipe.
    environment : dict or None
        Versions and device of the training, if recorded.
    """

    name: str
    architecture: str
    dataset: str
    transform: str
    trained: str
    clean_percent: float
    certified_percent: float
    unfalsified_percent: float
    boxes_per_image: float
    measured: str
    sha256: str
    recipe: dict[str, Any]
    environment: dict[str, Any] | None = None


@dataclass(frozen=True)
class RegressionCard:
    """The card of a bundled regression network; errors and widths are means over test images, in the unit of its output.

    Attributes
    ----------
    name, architecture, dataset, transform, trained, measured, sha256, recipe, environment
        As in `Card`.
    mean_absolute_error : float
        Of the predictions.
    certified_mean_absolute_error : float
        The largest errors that the proved ranges allow.
    mean_width : float
        Of the proved ranges.
    boxes_per_image : float
        Parameter boxes bounded, mean over all images.
    """

    name: str
    architecture: str
    dataset: str
    transform: str
    trained: str
    mean_absolute_error: float
    certified_mean_absolute_error: float
    mean_width: float
    boxes_per_image: float
    measured: str
    sha256: str
    recipe: dict[str, Any]
    environment: dict[str, Any] | None = None


def read_card(path: Path) -> Card | RegressionCard:
    """Read a card; raise `InputError` for missing or unknown keys and wrong types."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the model card {path} cannot be read", got=error) from None
    kind = RegressionCard if isinstance(content, dict) and "mean_width" in content else Card
    fields = {field.name: field for field in dataclasses.fields(kind)}
    needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    if not isinstance(content, dict) or not needed <= set(content) <= set(fields):
        got = ", ".join(sorted(content)) if isinstance(content, dict) else type(content).__name__
        raise InputError(f"the model card {path} must have the keys {', '.join(sorted(needed))}", got=shown(got))
    for name, value in content.items():
        expected, types = KINDS[str(fields[name].type)]
        if not isinstance(value, types) or isinstance(value, bool):
            raise InputError(f"{name!r} of the model card {path} must be {expected}", got=shown(value))
    return kind(**content)


def models(folder: Path | None = None) -> list[Card | RegressionCard]:
    """List the bundled networks.

    Parameters
    ----------
    folder : Path, optional
        Folder of cards and weights; by default the one installed with the package.

    Returns
    -------
    list of Card or RegressionCard
        One card per network, sorted by name.

    Raises
    ------
    InputError
        If a card is damaged.
    """
    return [read_card(path) for path in sorted((folder or WEIGHTS_FOLDER).glob("*.json"))]


@dataclass(frozen=True)
class CardSummary:
    """The fields of a card that loading and certifying need."""

    architecture: str
    transform: str
    sha256: str

    def check(self, content: bytes, path: Path) -> None:
        """Raise unless the card describes these weights."""
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise InputError(
                "the card next to the weights describes other weights",
                got=f"{path} with sha256 {digest} instead of {self.sha256[:64]}",
                why="the weights were changed or replaced after the card was written",
                do="give --arch and --transform, or move the card away",
            )


def card_next_to(weights: Path) -> CardSummary | None:
    """Return the card next to a weight file, or None; files that are not cards are ignored."""
    for path in (weights.with_suffix(".json"), weights.with_name("card.json")):
        try:
            if not path.is_file() or path.stat().st_size > MAX_BYTES:
                continue
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        fields = ("architecture", "transform", "sha256")
        if isinstance(content, dict) and all(isinstance(content.get(name), str) for name in fields):
            return CardSummary(*(content[name] for name in fields))
    return None


SOURCE = '"Provable Defense Against Geometric Transformations" (ICLR 2023)'
"""The paper."""


class PaperRow(NamedTuple):
    """A network of the paper: percentages of all test images, with the paper's own training and verifier."""

    dataset: str
    transform: str
    architecture: str
    clean_percent: float
    certified_percent: float


PAPER_ROWS = (
    PaperRow("mnist", "R(30)", "mnist_cnn", 99.1, 94.2),
    PaperRow("mnist", "Tu(2), Tv(2)", "mnist_cnn", 99.2, 89.8),
    PaperRow("mnist", "Sc(5), R(5), C(5), B(0.01)", "mnist_cnn", 99.1, 92.6),
    PaperRow("mnist", "Sh(2), R(2), Sc(2), C(2), B(0.001)", "mnist_cnn", 99.1, 96.3),
    PaperRow("cifar10", "R(10)", "cifar10_cnn", 80.5, 63.2),
    PaperRow("cifar10", "R(2), Sh(2)", "cifar10_cnn", 70.1, 51.0),
    PaperRow("cifar10", "Sc(1), R(1), C(1), B(0.001)", "cifar10_cnn", 71.3, 42.3),
)
