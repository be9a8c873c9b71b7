"""Certify trained networks on full test sets: the figures of the zoo's cards, and what it took.

    tiltproof train mnist-r30 --data-root DIR --out runs/mnist-r30
    python benchmarks/trained_networks.py runs/mnist-r30 ... --data-root DIR [--device cuda] [--limit N] [--boxes N] [--zoo FOLDER]

Each argument is the folder of a finished training run. Prints a line for each network: clean, certified, unfalsified, unknown,
boxes per image, seconds. --zoo writes NAME.safetensors and its card NAME.json, NAME being the recipe's, as they lie in
src/tiltproof/zoo/weights; --curve FILE keeps, for each network, the share certified with at most so many boxes an image.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

import tiltproof
from tiltproof.certify import Budget
from tiltproof.train.outcome import CARD, WEIGHTS
from tiltproof.zoo import resolve_model

STEPS = [2**k for k in range(15)]


def measured(folder: Path, arguments: argparse.Namespace) -> tuple[dict, dict]:
    """(the network's card after measuring, its curve)."""
    card = json.loads((folder / CARD).read_text())
    model = resolve_model(str(folder / WEIGHTS)).to(arguments.device)
    images, labels = tiltproof.load_data(card["dataset"], root=arguments.data_root)
    images, labels = (tensor[: arguments.limit].to(arguments.device) for tensor in (images, labels))
    tiltproof.certify(model, images[:64], labels[:64], card["transform"])  # warm-up: tracing, kernels
    budget = Budget() if arguments.boxes is None else Budget(boxes=arguments.boxes)
    certificate = tiltproof.certify(model, images, labels, card["transform"], budget=budget)
    summary = certificate.summary()
    spent = [result.boxes for result in certificate.results if result.verdict == "certified"]
    place = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU"
    clean, certified, unfalsified = (
        100 * summary[key] / summary["images"] for key in ("correct", "certified", "unfalsified")
    )
    print(
        f"{card['name']:<30} seed {card['recipe']['train']['seed']}  clean {clean:.2f}  certified {certified:.2f}  "
        f"unfalsified {unfalsified:.2f}  unknown {summary['unknown']}  boxes/image {summary['boxes_per_image']:.0f}  "
        f"{summary['seconds']:.1f} s",
        flush=True,
    )
    card |= {"clean_percent": clean, "certified_percent": certified, "unfalsified_percent": unfalsified}
    card["boxes_per_image"] = round(summary["boxes_per_image"], 1)
    card["measured"] = (
        f"python benchmarks/trained_networks.py: {len(images):,} test images, method affine, "
        f"up to {budget.boxes:,} boxes an image; {place}"
    )
    curve = {str(step): 100 * sum(boxes <= step for boxes in spent) / len(images) for step in STEPS}
    return card, {"name": card["name"], "clean_percent": card["clean_percent"], "certified_within_boxes": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--boxes", type=int, help="most boxes an image (default: the verifier's)")
    parser.add_argument("--zoo", type=Path)
    parser.add_argument("--curve", type=Path)
    arguments = parser.parse_args()
    curves = []
    for folder in arguments.runs:
        card, curve = measured(folder, arguments)
        curves.append(curve)
        if arguments.zoo is not None:
            arguments.zoo.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / WEIGHTS, arguments.zoo / f"{card['name']}.safetensors")
            (arguments.zoo / f"{card['name']}.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
        if arguments.curve is not None:
            arguments.curve.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
