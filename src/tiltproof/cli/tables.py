"""The summaries people read, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tiltproof.certify.limit import shown_size

VERDICTS = {
    "certified": "proved for every parameter of the range",
    "falsified": "a transformation breaks the answer",
    "unknown": "not decided by the budget or the splits",
    "misclassified": "wrong before any transformation",
}


def print_summary(summary: Mapping[str, Any]) -> None:
    """How many images got which verdict, and what it cost."""
    images = summary["images"]
    table = Table(title=f"{summary['transform']}, method {summary['method']}", title_justify="left")
    table.add_column("verdict")
    table.add_column("images", justify="right")
    table.add_column("percent", justify="right")
    table.add_column("meaning", style="dim")
    for word, meaning in VERDICTS.items():
        table.add_row(word, f"{summary[word]:,}", f"{100 * summary[word] / images:.2f}", meaning)
    table.add_section()
    table.add_row("all", f"{images:,}", "100.00", f"{summary['correct']:,} correct before any transformation")
    console = Console()
    console.print(table)
    seconds = summary["seconds"]
    console.print(f"{summary['boxes']:,} boxes in {seconds:.1f} s ({seconds / images:.3g} s an image)", highlight=False)
    _print_memory(console, summary)


def print_ranges(summary: Mapping[str, Any]) -> None:
    """How wide the proved ranges are, how much of that is reached for certain, and what it cost."""
    images, seconds = summary["images"], summary["seconds"]
    table = Table(title=f"{summary['transform']}, method {summary['method']}", title_justify="left")
    table.add_column("output range")
    table.add_column("mean", justify="right")
    table.add_column("meaning", style="dim")
    table.add_row("proved width", _figure(summary["mean_width"]), f"largest {_figure(summary['largest_width'])}")
    table.add_row("reached width", f"{summary['mean_inner_width']:.4g}", "no proof can give less")
    if "mean_absolute_error" in summary:
        table.add_section()
        table.add_row("error", f"{summary['mean_absolute_error']:.4g}", "absolute, on the untransformed image")
        certified = summary["certified_mean_absolute_error"]
        table.add_row("certified error", _figure(certified), "the largest that the proved range allows")
    console = Console()
    console.print(table)
    tight = f"{summary['complete']:,} of {images:,} ranges as tight as asked for"
    console.print(
        f"{tight}; {summary['boxes']:,} boxes in {seconds:.1f} s ({seconds / images:.3g} s an image)", highlight=False
    )
    _print_memory(console, summary)


def _print_memory(console: Console, summary: Mapping[str, Any]) -> None:
    """Under ``--memory``: the peak, and what batches were sized for."""
    settings = summary["settings"]
    if "memory_peak" in settings:
        peak, limit = (shown_size(settings[name]) for name in ("memory_peak", "memory_limit"))
        console.print(f"memory: {peak} at its peak, batches sized for {limit}", highlight=False)


def _figure(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4g}"


def print_rows(columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table; ``columns`` maps each heading to its justification, ``left`` or ``right``."""
    table = Table(box=SIMPLE_HEAD)
    for heading, justify in columns.items():
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
