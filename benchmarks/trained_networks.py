"""Certify trained networks on full test sets: the measurements of the model cards, and their cost.

    tiltproof train mnist-r30 --data-root DIR --out runs/mnist-r30
    python benchmarks/trained_networks.py runs/mnist-r30 ... --data-root DIR [--device cuda] [--limit N] [--boxes N] [--seconds S]
        [--memory 2GB] [--cards FOLDER] [--curve FILE]

Each argument is the folder of a finished training run. Prints one line per network: clean, certified, unfalsified,
unknown, boxes per image, seconds. --cards writes NAME.safetensors and its card NAME.json, with the recipe's name, in
the layout of src/tiltproof/models/weights. --curve FILE stores, for each network, the fraction certified with at most N
boxes per image. --seconds limits the time for each network: no image then takes more than twice its share of the
remaining seconds, and the figures cover the images that were reached.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import tiltproof
from tiltproof import BranchAndBound
from tiltproof.models import load as load_model
from tiltproof.training.artefacts import CARD, WEIGHTS
from tiltproof.verify.results import Certificate

STEPS = [2**k for k in range(15)]
PART = 2_500
"""Images after which the time limit is checked."""


def within(
    seconds: float, search: BranchAndBound, images: torch.Tensor, prove: Callable[[slice, BranchAndBound], Certificate]
) -> Certificate:
    """Batch after batch until the time is over; an image that exceeds twice its share of the remaining time stays unknown."""
    end, needing, done = time.perf_counter() + seconds, 0.5, []
    for start in range(0, len(images), PART):
        left = end - time.perf_counter()
        if left <= 0:
            break
        share = left / ((len(images) - start) * needing)  # misclassified and falsified images take next to nothing
        done.append(prove(slice(start, start + PART), replace(search, max_seconds=2 * share)))
        tried = [result for part in done for result in part.results]
        needing = max(0.05, sum(result.verdict in ("certified", "unknown") for result in tried) / len(tried))
    return replace(done[0], results=tried, seconds=sum(part.seconds for part in done))


def measured(folder: Path, arguments: argparse.Namespace) -> tuple[dict, dict]:
    """(the network's card after measuring, its curve)."""
    card = json.loads((folder / CARD).read_text())
    model = load_model(str(folder / WEIGHTS)).to(arguments.device)
    images, labels = tiltproof.data.load(card["dataset"], root=arguments.data_root)
    images, labels = (tensor[: arguments.limit].to(arguments.device) for tensor in (images, labels))
    search = BranchAndBound() if arguments.boxes is None else BranchAndBound(max_boxes=arguments.boxes)

    def prove(rows: slice, search: BranchAndBound) -> Certificate:
        return tiltproof.certify(
            model,
            images[rows],
            labels[rows],
            card["transform"],
            search=search,
            execution=tiltproof.Execution(memory=arguments.memory),
        )

    limit, everything = arguments.seconds, slice(None)
    prove(slice(64), BranchAndBound(max_boxes=64))  # warm-up: tracing, kernels
    certificate = prove(everything, search) if limit is None else within(limit, search, images, prove)
    summary = certificate.summary()
    spent = [result.boxes for result in certificate.results if result.verdict == "certified"]
    place = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "CPU"
    clean, certified, unfalsified = (
        100 * summary[key] / summary["images"] for key in ("correct", "certified", "unfalsified")
    )
    each = f"{summary['seconds'] / summary['certified']:.4f}" if summary["certified"] else "no"
    print(
        f"{card['name']:<30} seed {card['recipe']['train']['seed']}  clean {clean:.2f}  certified {certified:.2f}  "
        f"unfalsified {unfalsified:.2f}  unknown {summary['unknown']}  boxes/image {summary['boxes_per_image']:.0f}  "
        f"{summary['seconds']:.1f} s  {each} s/certified image  "
        f"{summary['images']:,} of {len(images):,} images",
        flush=True,
    )
    card |= {"clean_percent": clean, "certified_percent": certified, "unfalsified_percent": unfalsified}
    card["boxes_per_image"] = round(summary["boxes_per_image"], 1)
    within_seconds = "" if limit is None else f" and about {limit:g} s for all"
    card["measured"] = (
        f"python benchmarks/trained_networks.py: {summary['images']:,} test images, method affine, "
        f"up to {search.max_boxes:,} boxes per image{within_seconds}; {place}"
    )
    curve = {str(step): 100 * sum(boxes <= step for boxes in spent) / summary["images"] for step in STEPS}
    return card, {"name": card["name"], "clean_percent": card["clean_percent"], "certified_within_boxes": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--boxes", type=int, help="most boxes per image (default: the verifier's)")
    parser.add_argument("--seconds", type=float, help="most seconds a network, about (default: no limit)")
    parser.add_argument("--memory", help="memory limit, such as 2GB (default: available memory)")
    parser.add_argument("--cards", type=Path)
    parser.add_argument("--curve", type=Path)
    arguments = parser.parse_args()
    curves = []
    for folder in arguments.runs:
        card, curve = measured(folder, arguments)
        curves.append(curve)
        if arguments.cards is not None:
            arguments.cards.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / WEIGHTS, arguments.cards / f"{card['name']}.safetensors")
            (arguments.cards / f"{card['name']}.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
        if arguments.curve is not None:
            arguments.curve.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
