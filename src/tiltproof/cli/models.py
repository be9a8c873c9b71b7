"""``tiltproof models``: the bundled models and what was measured on them."""

from __future__ import annotations

import typer

from tiltproof.cli import options
from tiltproof.cli.tables import print_rows
from tiltproof.zoo import models

EXAMPLES = options.examples(
    "tiltproof models", 'tiltproof certify --model NAME --data mnist-sample --transform "R(30)"'
)
COLUMNS = {
    "name": "left",
    "network": "left",
    "data": "left",
    "transform": "left",
    "clean": "right",
    "certified": "right",
    "unfalsified": "right",
}


def command() -> None:
    """List the bundled models: clean and certified accuracy, and what no attack has broken so far."""
    cards = models()
    if not cards:
        typer.echo("no models are bundled with this installation")
        return
    print_rows(
        COLUMNS,
        [
            [card.name, card.architecture, card.dataset, card.transform]
            + [f"{share:.2f} %" for share in (card.clean_percent, card.certified_percent, card.unfalsified_percent)]
            for card in cards
        ],
    )
    for card in cards:
        typer.echo(f"{card.name}: {card.trained}; measured on {card.measured}")
