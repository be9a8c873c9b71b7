"""The output of `floor.py`: the table, the breakdown of the seconds, and the comparison with an earlier run."""

from __future__ import annotations

import statistics
from pathlib import Path

from floor_watch import STAGES

HEADS = {
    "row": 24,
    "images": 8,
    "boxes": 9,
    "f64": 8,
    "margins": 9,
    "MFLOP": 8,
    "kB": 10,
    "floor_s": 10,
    "seconds": 9,
    "range": 15,
}
HEADS |= {"ratio": 8, "forward": 10, "backward": 10, "pixels": 9}
"""Columns of the table and their widths."""


def compared(rows: list[dict], baseline: dict) -> list[dict]:
    """Rows that both runs have, of the same work; slower or faster only if the ranges do not overlap."""
    same = ("row", "source", "transform", "images", "pairs")
    before = {tuple(row[key] for key in same): row for row in baseline["rows"]}
    result = []
    for row in rows:
        then = before.get(tuple(row[key] for key in same))
        if then is None or not (then["ratios"] and row["ratios"]):
            continue
        now_median, then_median = (statistics.median(each["ratios"]) for each in (row, then))
        verdict = "within noise"
        if min(row["ratios"]) > max(then["ratios"]):
            verdict = "SLOWER"
        elif max(row["ratios"]) < min(then["ratios"]):
            verdict = "faster"
        result.append(
            {"row": row["row"], "then": then_median, "now": now_median, "change": now_median / then_median}
            | {"verdict": verdict, "boxes_then": then["boxes"], "boxes_now": row["boxes"]}
        )
    return result


def line(cells: list[object], widths: list[int]) -> str:
    texts = ["-" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return f"{texts[0]:<{widths[0]}}" + "".join(
        f"{text:>{width}}" for text, width in zip(texts[1:], widths[1:], strict=True)
    )


def percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.2f} %"


def show(found: dict) -> None:
    """Ceilings, the table, and the breakdown."""
    ceilings, rows = found["ceilings"], found["rows"]
    print(
        f"\n{found['device']}: float32 {ceilings['float32'] / 1e9:.4g} GFLOP/s, float64 {ceilings['float64'] / 1e9:.4g} GFLOP/s, "
        f"copy {ceilings['copy'] / 1e9:.4g} GB/s"
    )
    widths = list(HEADS.values())
    print(line(list(HEADS), widths))
    for row in rows:
        shares = [
            percent(row[f"{key}_ceiling"]) for key in ("forward_of_matrix", "backward_of_matrix", "pixels_of_copy")
        ]
        times = row["seconds"]
        cells = [row["row"], row["images"], row["boxes"], row["boxes_float64"], row["margins_backward"]]
        cells += [
            row["flop_per_box"] / 1e6,
            round(row["bytes_per_box"] / 1e3),
            row["floor_seconds"],
            statistics.median(times),
        ]
        cells += [f"{min(times):.3g}-{max(times):.3g}", statistics.median(row["ratios"]) if row["ratios"] else None]
        print(line(cells + shares, widths))
    print("\nwhere the seconds go (a separate run)")
    widths = [24, 10] + [13] * len(STAGES) + [12]
    print(line(["row", "seconds", *STAGES, "pilot_boxes"], widths))
    for row in rows:
        own = row["breakdown_seconds"]
        total = sum(own.values())
        print(line([row["row"], total, *(percent(own[stage] / total) for stage in STAGES), row["pilot_boxes"]], widths))


def show_comparison(lines: list[dict], baseline: dict, file: Path, device: str) -> None:
    print(f"\nseconds / floor, then -> now; then: {file.name}, {baseline['device']}, {baseline['processor']}")
    if baseline["device"] != device:
        print("another device than this run's: its ratios compare to a degree only")
    for each in lines:
        boxes = (
            "" if each["boxes_then"] == each["boxes_now"] else f", {each['boxes_then']} -> {each['boxes_now']} boxes"
        )
        change = f"{each['then']:8.3g} -> {each['now']:8.3g}  x {each['change']:.2f}"
        print(f"{each['row']:<24}{change}  {each['verdict']}{boxes}")
    if not lines:
        print("no row of this run is in it with the same network and images")
