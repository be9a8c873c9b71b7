"""Tables of measurements for the documentation, from benchmarks/results, where each carries commit, date and machine."""

from __future__ import annotations

import calendar
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
KEYS = {"about", "machine", "program", "reproduce", "recorded", "columns", "rows"}
"""What every file holds, except board.json, whose rows carry all of it themselves."""


def names() -> list[str]:
    return sorted(path.stem for path in RESULTS.glob("*.json") if path.stem != "board")


def read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return data


def table(name: str, columns: str = "") -> str:
    """The table of a file, or some of its columns (``0,2,3``); all columns are followed by when and where it was measured."""
    data = read(name)
    chosen = [int(k) for k in columns.split(",")] if columns else range(len(data["columns"]))
    lines = [[row[k] for k in chosen] for row in [data["columns"], ["---"] * len(data["columns"]), *data["rows"]]]
    text = (
        "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("| --- ", "|---").replace("|--- |", "|---|")
    )
    return text if columns else f"{text}\n\n{measured(data)}"


def measured(data: dict[str, Any]) -> str:
    """When, at which commit, on what and by which program."""
    dates = sorted({entry["date"] for entry in data["recorded"]})
    commits = ", ".join(f"`{entry['commit']}`" for entry in data["recorded"])
    first, last = day(dates[0]), day(dates[-1])
    when = (
        first if first == last else f"{first.removesuffix(last[last.index(' ') :])} to {last}"
    )  # 15 to 16 November 2026
    return (
        f"*{when}, {commits}; {data['machine']}; [`{Path(data['program']).name}`](reproduce.md#{data['reproduce']}).*"
    )


def day(date: str) -> str:
    """``2026-11-05`` as words."""
    year, month, number = date.split("-")
    return f"{int(number)} {calendar.month_name[int(month)]} {year}"


BOARD = [
    "network",
    "images",
    "range",
    "clean",
    "certified",
    "unfalsified",
    "boxes an image",
    "verifier",
    "seconds",
    "checked",
    "run",
]
SHORT = {"gives the same answer as to the untransformed image": "its own answer"}
"""What is kept, in fewer words than a sentence needs."""


def board() -> str:
    """All rows of the board, grouped by the data set, those with the most certified images first."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / "board.json").read_text(encoding="utf-8"))
    kinds = sorted({kind(row) for row in rows})
    return "\n\n".join(f"## {each}\n\n" + _board_table([row for row in rows if kind(row) == each]) for each in kinds)


def expected() -> str:
    """The board in short, of runs that were kept: what to expect, those decided with the fewest boxes first."""
    rows = [row for row in json.loads((RESULTS / "board.json").read_text(encoding="utf-8")) if row["run"]]
    lines = [
        "| network | range | right | certified | falsified | unknown | boxes an image |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: row["boxes_per_image"]):
        counts = row["correct"], row["certified"], row["correct"] - row["unfalsified"], row["unknown"]
        cells = [
            f"{row['network']} ({row['origin']})",
            row["transform"],
            *map("{:,}".format, counts),
            f"{row['boxes_per_image']:,}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kind(row: dict[str, Any]) -> str:
    """The name of the data set that a row is about."""
    known = {"mnist": "MNIST", "cifar10": "CIFAR-10", "tinyimagenet": "Tiny ImageNet"}
    return next((title for start, title in known.items() if row["data"].startswith(start)), "Other images")


def _board_table(rows: list[dict[str, Any]]) -> str:
    ordered = sorted(rows, key=lambda row: (-row["images"], -row["certified"] / row["images"], row["network"]))
    lines = ["| " + " | ".join(BOARD) + " |", "|" + "---|" * len(BOARD), *map(_board_line, ordered)]
    return "\n".join(lines)


def _board_line(row: dict[str, Any]) -> str:
    def share(key: str) -> str:
        percent = "" if row["images"] == 100 else f"\u00a0({100 * row[key] / row['images']:.4g}\u00a0%)"
        return f"{row[key]:,}{percent}"

    kept = SHORT.get(row["keeps"], row["keeps"])
    claim = "; ".join(word for word in (row["transform"], row["semantics"], kept) if word not in ("", "real"))
    cells = [
        f"{row['network']} ({row['origin']})" if row["origin"] else row["network"],
        row["data"], claim, share("correct"), f"**{share('certified')}**", share("unfalsified"), f"{row['boxes_per_image']:,}",
        row["verifier"], f"{row['seconds']:,}, {row['device'].replace(' (x86_64)', '')}", row["checked"] or "no",
        f"`{row['run'][:12]}`, {row['date']}" if row["run"] else f"no digest, {row['date']}, `{row['source'][:8]}`",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"
