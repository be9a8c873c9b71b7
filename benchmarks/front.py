"""The cost of provability: one recipe with different weights of the terms that make networks provable, and the Pareto front.

    python benchmarks/front.py --data-root DIR --out FOLDER [--recipe cifar10-r2-sh2] [--epochs 40] [--images 1000] [--device cuda]

Trains the recipe once for each line of POINTS below (a fifth of the training images held out), certifies the first
held-out images, and writes FOLDER/front.json and FOLDER/front.png. Finished networks are not trained again, so a
stopped run can be continued.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from tiltproof import BranchAndBound
from tiltproof.data import load as load_data
from tiltproof.reports import Point, tradeoff_plot
from tiltproof.training import read_recipe, train
from tiltproof.training.data import TrainingSet
from tiltproof.transforms import parse
from tiltproof.verify.api import certify

WORST = ["loss.kind=worst-of", "loss.samples=4"]
POINTS = {
    "L1 1e-5": [*WORST, "train.l1=1e-5"],
    "L1 3e-5": [*WORST, "train.l1=3e-5"],
    "L1 1e-4": [*WORST, "train.l1=1e-4"],
    "bound 0.02": ["loss.kappa=[1.0, 0.98]"],
    "bound 0.05": ["loss.kappa=[1.0, 0.95]"],
    "bound 0.1": ["loss.kappa=[1.0, 0.9]"],
    "bound 0.2": ["loss.kappa=[1.0, 0.8]"],
    "bound 0.1, boxes twice as wide": ["loss.kappa=[1.0, 0.9]", "wide"],
}
"""Name: settings; "bound w" gives the certified term the weight w."""


def measured(name: str, arguments: argparse.Namespace) -> dict:
    """Train one network, or load it if finished, and certify held-out images."""
    recipe = read_recipe(arguments.recipe)
    scale = arguments.epochs / recipe.train.epochs
    settings = [
        "data.hold_out=0.2",
        f"train.epochs={arguments.epochs}",
        f"loss.warm_up_epochs={round(recipe.loss.warm_up_epochs * scale)}",
        f"loss.ramp_epochs={round(recipe.loss.ramp_epochs * scale)}",
    ]
    if "wide" in POINTS[name]:
        settings.append(f"loss.nu={[2 * half for half in recipe.loss.nu]}")
    recipe = recipe.with_settings(settings + [line for line in POINTS[name] if line != "wide"])
    images, labels = load_data(recipe.data.name, arguments.data_root, split="train")
    device = torch.device(arguments.device)
    folder = arguments.out / name.replace(" ", "-").replace(",", "")
    trained = train(
        recipe, out=folder, resume=folder.exists(), device=device, images=images, labels=labels, certify_images=0
    )
    held = TrainingSet(images, labels, 0.2, recipe.train.seed, device).first_held_out(arguments.images)
    certificate = certify(
        trained.model, *held, parse(recipe.transform), search=BranchAndBound(max_boxes=arguments.boxes)
    )
    summary = certificate.summary()
    return {
        "name": name,
        "clean": 100 * summary["correct"] / summary["images"],
        "certified": summary["certified_percent"],
        "unfalsified": 100 * summary["unfalsified"] / summary["images"],
        "boxes": summary["boxes_per_image"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="cifar10-r2-sh2")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--boxes", type=int, default=4000)
    parser.add_argument("--only", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "front.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    for name in arguments.only:
        if name not in {row["name"] for row in rows}:
            rows.append(measured(name, arguments))
            file.write_text(json.dumps(rows, indent=1) + "\n")
            print(rows[-1], flush=True)
    points = [Point(row["name"], row["clean"], row["certified"], row["boxes"]) for row in rows]
    title = f"{arguments.recipe}: {arguments.epochs} epochs, {arguments.images:,} held-out images, up to {arguments.boxes:,} boxes each"
    tradeoff_plot(points, title).save(arguments.out / "front.png")


if __name__ == "__main__":
    main()
