"""Certify steering networks on the 1,000 test frames: a table like CGT's for self-driving, and its figure.

    for r in driving-r2-regular driving-r2-dropout driving-r2-paper driving-r2; do tiltproof train $r --data-root DIR --out runs/$r; done
    python benchmarks/steering.py runs/driving-r2-* runs/driving-r2 --data-root DIR [--excess X] [--memory 2GB]
        [--json FILE] [--images FOLDER]

Each argument is the folder of a finished training run. Angles are those of the steering wheel, in degrees. The standard
error is that of the prediction, the certified error the largest that the proved range allows. The width is that of the
proved range, next to that of the inner range, below which no proof can go. --excess is how much wider than the inner
range the proved range may stay; less takes more boxes. Rows that --json already holds, with the same weights, frames,
excess and device, are not measured again. --images draws frames of the last run's network: frames.png, from all over
the test set, and strip.png, consecutive ones.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

import tiltproof
from tiltproof.models import load as load_model
from tiltproof.reports import Steering, steering_plot
from tiltproof.runs.atomic_io import replace_bytes
from tiltproof.training.artefacts import CARD, WEIGHTS

PAPER = "paper (its larger data set): CGT certified / standard MAE 1.50, width 5.43 degrees"
SAME = ("sha256", "frames", "excess", "device")
"""What a row has to have in common with one in the file to be that row."""
DRAWN = 6
"""Frames per figure."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--excess", type=float, default=0.02, help="as of tiltproof certify, whose default is 0.05")
    parser.add_argument("--limit", type=int, help="only N frames, from all over the test set")
    parser.add_argument("--memory", help="memory limit, such as 2GB (default: available memory)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=Path)
    arguments = parser.parse_args()
    images, angles = tiltproof.data.load("driving", root=arguments.data_root)
    images = images.to(arguments.device)
    some = spread(len(images), arguments.limit)
    rows = json.loads(arguments.json.read_text()) if arguments.json is not None and arguments.json.exists() else []
    print(
        f"{'network':<22}{'standard':>9}{'certified':>10}{'ratio':>7}{'width':>8}{'reached':>9}{'boxes':>7}{'s/image':>9}"
    )
    for folder in arguments.runs:
        about = subject(folder, len(some), arguments)
        kept = [row for row in rows if all(row.get(key) == about[key] for key in SAME)]
        row = kept[0] if kept else about | measured(folder, images[some], angles[some], arguments)
        print(
            f"{row['name']:<22}{row['standard_mae_degrees']:>9.3f}{row['certified_mae_degrees']:>10.3f}{row['ratio']:>7.3f}"
            f"{row['width_degrees']:>8.3f}{row['inner_width_degrees']:>9.3f}{row['boxes_per_image']:>7.0f}"
            f"{row['seconds_per_image']:>9.4f}{'  (from the file)' if kept else ''}",
            flush=True,
        )
        if arguments.json is not None and not kept:
            rows.append(row)
            replace_bytes(arguments.json, (json.dumps(rows, indent=1) + "\n").encode())
    print(PAPER)
    if arguments.images is not None:
        draw(arguments.runs[-1], images, angles, arguments)


def spread(count: int, wanted: int | None) -> Tensor:
    """``wanted`` of ``count`` numbers, evenly spread; all of them if None is given or there are not more."""
    if wanted is None or wanted >= count:
        return torch.arange(count)
    return (torch.arange(wanted) + 0.5).mul(count / wanted).long()


def subject(folder: Path, frames: int, arguments: argparse.Namespace) -> dict:
    """The network of a row and how it is measured."""
    card = json.loads((folder / CARD).read_text())
    return {
        "name": card["name"],
        "seed": card["recipe"]["train"]["seed"],
        "sha256": card["sha256"],
        "frames": frames,
        "excess": arguments.excess,
        "device": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU",
    }


def certified(
    folder: Path, images: Tensor, angles: Tensor, arguments: argparse.Namespace
) -> tiltproof.RangeCertificate:
    """The ranges of a run's network over the transformation that it was trained for."""
    model = load_model(str(folder / WEIGHTS)).to(arguments.device)
    transform = json.loads((folder / CARD).read_text())["transform"]
    return tiltproof.certify_range(
        model,
        images,
        angles,
        transform,
        execution=tiltproof.Execution(memory=arguments.memory),
        tolerance=tiltproof.Tolerance(relative=arguments.excess),
    )


def measured(folder: Path, images: Tensor, angles: Tensor, arguments: argparse.Namespace) -> dict:
    """One row of the table."""
    certified(folder, images[:2], angles[:2], arguments)  # warm-up: tracing, kernels
    summary = certified(folder, images, angles, arguments).summary()
    keys = ("mean_absolute_error", "certified_mean_absolute_error", "mean_width", "mean_inner_width")
    # no figure where a range stayed infinite: then nothing was proved of that frame
    standard, worst, width, inner = (math.degrees(math.inf if summary[key] is None else summary[key]) for key in keys)
    return {
        "complete": summary["complete"],
        "standard_mae_degrees": standard,
        "certified_mae_degrees": worst,
        "ratio": worst / standard,
        "width_degrees": width,
        "inner_width_degrees": inner,
        "boxes_per_image": summary["boxes_per_image"],
        "seconds_per_image": summary["seconds"] / len(images),
    }


def draw(folder: Path, images: Tensor, angles: Tensor, arguments: argparse.Namespace) -> None:
    """CGT's figure: true angles in green, predictions in blue, certified ranges as red fans."""
    arguments.images.mkdir(parents=True, exist_ok=True)
    for name, title, rows in (
        ("frames", "Frames of the test set", spread(len(images), DRAWN)),
        ("strip", "Consecutive frames", torch.arange(min(DRAWN, len(images)))),
    ):
        results = certified(folder, images[rows], angles[rows], arguments).results
        needles = [
            Steering(result.prediction[0], result.lower[0], result.upper[0], angle)
            for result, angle in zip(results, angles[rows].tolist(), strict=True)
        ]
        path = arguments.images / f"{name}.png"
        steering_plot(images[rows].cpu().numpy(), needles, title).save(path)
        print(f"figure: {path}")


if __name__ == "__main__":
    main()
