"""Certify steering networks on the 1,000 test frames: a table like the paper's for self-driving.

    tiltproof train driving-r2 --data-root DIR --out runs/driving-r2          (and driving-r2-regular, -dropout, -paper)
    python benchmarks/steering.py runs/driving-r2 ... --data-root DIR [--device cuda] [--limit N] [--json FILE]

Each argument is the folder of a finished training run. Angles are those of the steering wheel, in degrees. The standard error is that of
the prediction, the certified one the largest that the proved range allows; the width is that of the proved range, beside it
the range that evaluations are known to reach, below which no proof can come.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

import tiltproof
from tiltproof.train.outcome import CARD, WEIGHTS
from tiltproof.zoo import resolve_model

PAPER = "paper (its larger data set): CGT certified / standard MAE 1.50, width 5.43 degrees"


def measured(folder: Path, arguments: argparse.Namespace) -> dict:
    """One row of the table."""
    card = json.loads((folder / CARD).read_text())
    model = resolve_model(str(folder / WEIGHTS)).to(arguments.device)
    images, angles = tiltproof.load_data("driving", root=arguments.data_root)
    images, angles = images[: arguments.limit].to(arguments.device), angles[: arguments.limit]
    tiltproof.certify_range(model, images[:8], card["transform"], angles[:8])  # warm-up: tracing, kernels
    summary = tiltproof.certify_range(model, images, card["transform"], angles).summary()
    keys = ("mean_absolute_error", "certified_mean_absolute_error", "mean_width", "mean_inner_width")
    standard, certified, width, inner = (math.degrees(summary[key]) for key in keys)
    return {
        "name": card["name"],
        "seed": card["recipe"]["train"]["seed"],
        "frames": len(images),
        "standard_mae_degrees": standard,
        "certified_mae_degrees": certified,
        "ratio": certified / standard,
        "width_degrees": width,
        "inner_width_degrees": inner,
        "boxes_per_image": summary["boxes_per_image"],
        "seconds_per_image": summary["seconds"] / len(images),
        "device": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        f"{'network':<22}{'standard':>9}{'certified':>10}{'ratio':>7}{'width':>8}{'reached':>9}{'boxes':>7}{'s/image':>9}"
    )
    rows = []
    for folder in arguments.runs:
        row = measured(folder, arguments)
        rows.append(row)
        print(
            f"{row['name']:<22}{row['standard_mae_degrees']:>9.3f}{row['certified_mae_degrees']:>10.3f}{row['ratio']:>7.3f}"
            f"{row['width_degrees']:>8.3f}{row['inner_width_degrees']:>9.3f}{row['boxes_per_image']:>7.0f}"
            f"{row['seconds_per_image']:>9.4f}",
            flush=True,
        )
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(PAPER)


if __name__ == "__main__":
    main()
