"""``tiltproof models``: the bundled models as a leaderboard, compared with the figures of the paper.

The lines are plain text of fixed width, the same on a terminal and in a pipe: a table that adapts to the terminal breaks its cells.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.messages import tell
from tiltproof.cli.options import flag
from tiltproof.models.cards import PAPER_ROWS, SOURCE, Card, PaperRow, RegressionCard, models

EPILOG = options.epilog(
    "tiltproof models", "tiltproof models --details", "tiltproof certify --model mnist-r30 --data mnist-sample"
)
DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "driving": "Driving"}
HEADINGS = ("name", "network", "clean", "certified", "unfalsified", "boxes")
RANGE_HEADINGS = ("name", "network", "error", "certified", "width", "boxes")
TEXTS = 2
"""The first columns are left-aligned texts; the others are numbers."""
INDENT = " "
"""With single spaces between columns, the longest recipe name still fits 80 columns."""
LEGEND = f"""\
Percent of all test images; boxes: parameter boxes bounded per image, mean.
Paper: {SOURCE}."""

RANGE_LEGEND = """\
Means over test frames (--details: how many), in degrees of the steering
wheel: error of the prediction, largest error that the proved range allows,
width of that range."""

Row = tuple[str, str]
"""Data set and transformation: models are compared within a row."""


def row_of(entry: Card | RegressionCard | PaperRow) -> Row:
    """The row of a model, independent of how its transformation is spelled."""
    from tiltproof.transforms import parse

    return entry.dataset, str(parse(entry.transform))


@functools.cache
def paper() -> dict[Row, PaperRow]:
    """The paper's figures by row."""
    return {row_of(row): row for row in PAPER_ROWS}


def command(
    details: Annotated[
        bool, flag("Add how each model was trained and measured, and its digests.", options.RESULTS, "--details")
    ] = False,
    as_json: Annotated[
        bool, flag("Print the models' cards, with their recipes, as JSON.", options.RESULTS, "--json")
    ] = False,
) -> None:
    """List the bundled models by the share of certified images.

    Unfalsified counts the images that no attack has broken so far: no verifier
    can certify more. The last line of each table is what the paper reports for
    its own network and verifier. certify and attack take a model by name, and
    its transformation unless told otherwise.
    """
    cards = models()
    groups = ranked(card for card in cards if isinstance(card, Card))
    steering = [card for card in cards if isinstance(card, RegressionCard)]
    ordered: list[Card | RegressionCard] = [*(card for group in groups.values() for card in group), *steering]
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(card) for card in ordered], indent=2))
        return
    if not cards:
        typer.echo("no models are bundled with this installation")
        return
    tables = ((leaderboard(groups), LEGEND), (range_table(steering), RANGE_LEGEND))
    for k, (lines, legend) in enumerate(table for table in tables if len(table[0]) > 1):
        typer.echo("\n" * k, nl=False)
        for line in lines:
            typer.secho(line, bold=None if line.startswith(INDENT) else True)
        typer.echo()
        for line in legend.splitlines():
            tell(line)
    if details:
        from tiltproof.models import load
        from tiltproof.runs.manifest import TENSORS, WEIGHTS_FILE, weights_digest

        typer.echo()
        for card in ordered:
            typer.echo(f"{card.name}: {card.trained}; measured: {card.measured}")
            typer.echo(f"  {WEIGHTS_FILE}: {card.sha256}")
            typer.echo(f"  {TENSORS}: {weights_digest(load(card.name))}")


def ranked(cards: Iterable[Card]) -> dict[Row, list[Card]]:
    """Group models by row, most certified first; rows in the paper's order, any others after them."""
    groups: dict[Row, list[Card]] = {}
    for card in sorted(cards, key=lambda card: (-card.certified_percent, -card.clean_percent, card.name)):
        groups.setdefault(row_of(card), []).append(card)
    rows = [row for row in paper() if row in groups] + sorted(set(groups) - set(paper()))
    return {row: groups[row] for row in rows}


def leaderboard(groups: dict[Row, list[Card]]) -> list[str]:
    """The lines to print: headings, and for each row its name, its models and the paper's figures."""
    tables = {row: [_cells(card) for card in cards] for row, cards in groups.items()}
    for row in tables.keys() & paper().keys():
        tables[row].append(_paper_cells(paper()[row]))
    entries = [HEADINGS, *(cells for table in tables.values() for cells in table)]
    return _lines(entries, tables)


def range_table(cards: Iterable[RegressionCard]) -> list[str]:
    """The lines to print for steering networks, whose cards are in radians."""
    tables: dict[Row, list[tuple[str, ...]]] = {}
    for card in cards:
        means = (card.mean_absolute_error, card.certified_mean_absolute_error, card.mean_width)
        degrees = (f"{math.degrees(mean):.2f}" for mean in means)
        tables.setdefault(row_of(card), []).append(
            (card.name, _network(card), *degrees, f"{card.boxes_per_image:,.0f}")
        )
    return _lines([RANGE_HEADINGS, *(cells for table in tables.values() for cells in table)], tables)


def _lines(entries: Sequence[tuple[str, ...]], tables: Mapping[Row, list[tuple[str, ...]]]) -> list[str]:
    """The first entry as headings, and each table under the name of its row, all in the same columns."""
    widths = [max(map(len, column)) for column in zip(*entries, strict=True)]
    lines = [INDENT + _line(entries[0], widths)]
    for (dataset, transform), table in tables.items():
        lines += ["", f"{DATASETS.get(dataset, dataset)}, {transform}"]
        lines += [INDENT + _line(cells, widths) for cells in table]
    return lines


def _cells(card: Card) -> tuple[str, ...]:
    shares = (card.clean_percent, card.certified_percent, card.unfalsified_percent)
    return card.name, _network(card), *(f"{share:.2f}" for share in shares), f"{card.boxes_per_image:,.0f}"


def _network(entry: Card | RegressionCard | PaperRow) -> str:
    """The architecture without the data set's name, which the heading has."""
    return entry.architecture.removeprefix(f"{entry.dataset}_")


def _paper_cells(row: PaperRow) -> tuple[str, ...]:
    """The paper's figures have one decimal; a space aligns them with two."""
    return "paper", _network(row), f"{row.clean_percent:.1f} ", f"{row.certified_percent:.1f} ", "-", "-"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """All columns, or at a narrow terminal all but the network's."""
    narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < sum(widths) + len(widths)
    texts = [f"{cell:<{width}}" for cell, width in zip(cells[: 1 if narrow else TEXTS], widths, strict=False)]
    numbers = [f"{cell:>{width}}" for cell, width in zip(cells[TEXTS:], widths[TEXTS:], strict=True)]
    return " ".join(texts + numbers)
