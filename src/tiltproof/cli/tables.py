"""What commands print at the end: tables of verdicts, of what was not certified and of ranges, the curve, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiltproof.runtime.memory_size import shown_size
from tiltproof.verify.results import Certificate, ImageResult, RangeCertificate, RangeResult, Reason, Verdict

if TYPE_CHECKING:
    from tiltproof.runs.curve import CurvePoint

SHOWN = 10
"""Images that are listed unless --show says otherwise."""
BAR = 30
"""Most characters of a bar of the curve."""


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the number of images per verdict, and the cost."""
    images = summary["images"]
    table = _titled(summary)
    table.add_column("verdict")
    table.add_column("images", justify="right")
    table.add_column("percent", justify="right")
    table.add_column("meaning", style="dim")
    for verdict in Verdict:
        count = summary[verdict]
        table.add_row(verdict, f"{count:,}", f"{100 * count / images:.2f}", verdict.meaning)
    table.add_section()
    table.add_row("all", f"{images:,}", "100.00", f"{summary['correct']:,} {_right(summary)} before any transformation")
    console = Console()
    console.print(table)
    if summary.get("keep"):
        console.print(f"proved of certified images: the network {summary['keep']}", highlight=False)
    print_cost(console, summary)
    print_unknown_reasons(console, summary)
    _print_memory(console, summary)


def print_cost(console: Console, summary: Mapping[str, Any]) -> None:
    """Print boxes and seconds."""
    each = f"{summary['seconds'] / summary['images']:.3g} s per image"
    pictures = f"{summary['pictures']:,} pictures, " if "pictures" in summary else ""
    console.print(f"{pictures}{summary['boxes']:,} boxes in {summary['seconds']:.1f} s ({each})", highlight=False)


def print_unknown_reasons(console: Console, summary: Mapping[str, Any]) -> None:
    """Print why images are unknown, and what would help."""
    ranges = summary.get("task") == "regression"
    for word, count in summary.get("unknown_reasons", {}).items():
        what = "not as tight" if ranges else "unknown"
        console.print(f"{count:,} {what}: {Reason(word).sentence(ranges)}", highlight=False)


def _right(summary: Mapping[str, Any]) -> str:
    return "satisfy it" if summary.get("keep") else "correct"


def print_ranges(summary: Mapping[str, Any]) -> None:
    """Print how wide the proved ranges and the inner ranges are, and the cost."""
    images, seconds = summary["images"], summary["seconds"]
    table = _titled(summary)
    table.add_column("output range")
    table.add_column("mean", justify="right")
    table.add_column("meaning", style="dim")
    table.add_row("proved width", _figure(summary["mean_width"]), f"largest {_figure(summary['largest_width'])}")
    table.add_row("inner width", f"{summary['mean_inner_width']:.4g}", "reached: no proof can give less")
    if "mean_absolute_error" in summary:
        table.add_section()
        table.add_row("error", f"{summary['mean_absolute_error']:.4g}", "absolute, on the untransformed image")
        certified = summary["certified_mean_absolute_error"]
        table.add_row("certified error", _figure(certified), "the largest that the proved range allows")
    console = Console()
    console.print(table)
    tight = f"{summary['complete']:,} of {images:,} ranges as tight as asked for"
    console.print(
        f"{tight}; {summary['boxes']:,} boxes in {seconds:.1f} s ({seconds / images:.3g} s per image)", highlight=False
    )
    print_unknown_reasons(console, summary)
    _print_memory(console, summary)


ORDER = (Verdict.FALSIFIED, Verdict.UNKNOWN, Verdict.MISCLASSIFIED)
COLORS = {Verdict.FALSIFIED: "red", Verdict.UNKNOWN: "yellow", Verdict.MISCLASSIFIED: "magenta"}


def print_not_certified(certificate: Certificate | RangeCertificate, most: int) -> None:
    """List images that are not certified, falsified ones first, with parameters and reason; of a regression run, ranges
    that are not as tight as asked for, with the reason."""
    ranges = isinstance(certificate, RangeCertificate)
    left = [result for result in certificate.results if result.verdict is not Verdict.CERTIFIED]
    if not left or most < 1:
        return
    left.sort(key=lambda result: ORDER.index(result.verdict))
    console = Console()
    table = Table(
        title="not as tight as asked for" if ranges else "not certified", title_justify="left", box=SIMPLE_HEAD
    )
    headings = (
        ("image", "proved width", "inner width", "reason") if ranges else ("image", "verdict", "parameters", "reason")
    )
    for heading in headings:
        number = heading == "image" or heading.endswith("width")
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for result in left[:most]:
        table.add_row(*(_range_cells(result) if isinstance(result, RangeResult) else _cells(result)))
    console.print(table)
    if len(left) > most:
        console.print(f"{len(left) - most:,} more: --show {len(left)} lists all", highlight=False)


def _cells(result: ImageResult) -> tuple[str | Text, ...]:
    """Return image, verdict, parameters and reason."""
    verdict = Text(str(result.verdict), COLORS.get(result.verdict, ""))
    if result.counterexample is not None:
        return str(result.image), verdict, _numbers(result.counterexample), f"margin {result.margin:.3g} there"
    if result.verdict is Verdict.MISCLASSIFIED:
        return str(result.image), verdict, "", "wrong before any transformation"
    box = "" if result.open_box is None else _box(*result.open_box)
    return str(result.image), verdict, box, "" if result.reason is None else result.reason.meaning


def _range_cells(result: RangeResult) -> tuple[str, ...]:
    width = None if result.width == float("inf") else result.width
    reason = "" if result.reason is None else result.reason.explained(ranges=True)[0]
    return str(result.image), _figure(width), f"{result.inner_width:.4g}", reason


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _box(low: Sequence[float], high: Sequence[float]) -> str:
    """An interval per parameter, with digits enough to tell its ends apart.

    >>> _box((1.0, 2.0), (1.0, 2.000001))
    '1, 2:2.000001'
    """
    texts = []
    for least, largest in zip(low, high, strict=True):
        digits = next((n for n in range(6, 17) if f"{least:.{n}g}" != f"{largest:.{n}g}"), 17)
        texts.append(f"{least:.6g}" if least == largest else f"{least:.{digits}g}:{largest:.{digits}g}")
    return ", ".join(texts)


def print_curve(points: Sequence[CurvePoint]) -> None:
    """Draw the certified share of a few nested ranges as bars, and what is neither certified nor falsified behind them."""
    from tiltproof.runs.curve import SHARES

    points = [point for point in points if point.share in SHARES]
    if not points:
        return
    console = Console()
    full, open_ = bar_characters(console)
    table = Table(title="certified over smaller ranges", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("range", overflow="fold")
    table.add_column("", no_wrap=True)
    table.add_column("certified", justify="right", no_wrap=True)
    for point in points:
        images = point.certified + point.falsified + point.unknown + point.misclassified
        bar = share_bar(console, point.certified, point.certified + point.unknown, images)
        table.add_row(point.transform, bar, f"{math.floor(1e4 * point.certified / images) / 100:.2f} %")
    console.print(table)
    if any(point.unknown for point in points):
        console.print(f"{full} certified  {open_} not decided", highlight=False)


def bar_characters(console: Console) -> tuple[str, str]:
    """What bars are made of: certified, and not decided."""
    return ("\u2588", "\u2591") if console.encoding.lower() in ("utf-8", "utf8") else ("#", ".")


def share_bar(console: Console, certified: int, possible: int, images: int) -> Text:
    """A bar of the certified images, and of those that may be, both rounded down."""
    full, open_ = bar_characters(console)
    first = BAR * certified // images
    second = BAR * possible // images - first
    return Text(full * first, "green") + Text(open_ * second, "yellow")


def _titled(summary: Mapping[str, Any]) -> Table:
    return Table(title=run_title(summary), title_justify="left")


def run_title(summary: Mapping[str, Any]) -> str:
    """The claim of a run in a line."""
    semantics = "" if summary["semantics"] == "real" else f", semantics {summary['semantics']}"
    return f"{summary['transform']}, method {summary['method']}{semantics}"


def _print_memory(console: Console, summary: Mapping[str, Any]) -> None:
    """With ``--memory``, print the peak and the size that batches were chosen for."""
    settings = summary["settings"]
    if "memory_peak" in settings:
        peak, limit = (shown_size(settings[name]) for name in ("memory_peak", "memory_limit"))
        console.print(f"memory: {peak} at its peak, batches sized for {limit}", highlight=False)


def _figure(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4g}"


def print_lines(title: str, lines: Iterable[str]) -> None:
    """Print a list under its title, wrapped between words."""
    console = Console()
    console.print(title)
    table = Table.grid(padding=(0, 1, 0, 2))
    for line in lines:
        table.add_row("-", Text(line))
    console.print(table)


def print_rows(columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain table; ``columns`` maps each heading to ``left`` or ``right``."""
    table = Table(box=SIMPLE_HEAD)
    for heading, justify in columns.items():
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
