"""Shared by `training_methods.py` and `nu_ablation.py`: shortened recipes, networks trained once, and their certification."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import tiltproof
from tiltproof import FGV, BranchAndBound, Execution, UniformGrid
from tiltproof.data import load_pixels
from tiltproof.models import load as load_model
from tiltproof.training import Recipe, train
from tiltproof.training.artefacts import CARD, LOG, WEIGHTS

QUICK_EPOCHS, QUICK_BATCH, QUICK_SPLITS = 2, 50, 8
QUICK_IMAGES = {"mnist": 1000, "cifar10": 1000, "tinyimagenet": 100}
COST, MEASURED = "cost.json", "measured.json"


def device_name(device: str) -> str:
    """The device as a table names it."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"


def add_options(parser: argparse.ArgumentParser, epochs: int) -> None:
    """The options that all ablations of training have."""
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the trained networks")
    parser.add_argument(
        "--epochs", type=int, default=epochs, help="schedules are scaled; 0: as many as the recipe says"
    )
    parser.add_argument("--images", type=int, default=1000, help="test images certified by our verifier")
    parser.add_argument("--boxes", type=int, default=4000, help="most boxes per image, for our verifier")
    parser.add_argument(
        "--paper-images",
        type=int,
        default=100,
        help="test images certified by CGT's verifier and splits; 0: none",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", help="memory limit of a certification, such as 2GB (default: available memory)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a look at the program in minutes on two CPU cores")


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, reduced in a quick run, with a notice."""
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epochs = QUICK_EPOCHS
        arguments.images, arguments.paper_images = min(arguments.images, 20), min(arguments.paper_images, 10)
        arguments.boxes = min(arguments.boxes, 100)
        print(
            f"quick run: {QUICK_EPOCHS} epochs on few images, at most {QUICK_SPLITS} of CGT's splits per parameter. "
            "It shows that the program works; its figures mean nothing."
        )
    return arguments


def shortened(recipe: Recipe, arguments: argparse.Namespace) -> Recipe:
    """All training images, and the wanted number of epochs; every schedule keeps its share of them."""
    before, epochs = recipe.train.epochs, arguments.epochs or recipe.train.epochs
    warm_up = round(recipe.loss.warm_up_epochs * epochs / before)
    milestones = sorted({min(max(round(each * epochs / before), 1), epochs) for each in recipe.train.milestones})
    batch = min(QUICK_BATCH, recipe.train.batch_size) if arguments.quick else recipe.train.batch_size
    splits = recipe.certify.splits
    if arguments.quick and splits is not None:
        splits = tuple(min(QUICK_SPLITS, split) for split in splits)
    return replace(
        recipe,
        data=replace(recipe.data, hold_out=0.0),
        train=replace(recipe.train, epochs=epochs, milestones=tuple(milestones), batch_size=batch),
        loss=replace(
            recipe.loss,
            warm_up_epochs=warm_up,
            ramp_epochs=min(round(recipe.loss.ramp_epochs * epochs / before), epochs - warm_up),
        ),
        certify=replace(recipe.certify, splits=splits),
    )


def network(recipe: Recipe, name: str, arguments: argparse.Namespace) -> tuple[nn.Module, dict, Path]:
    """(the network, its training cost, its folder): trained, resumed, or loaded if finished."""
    kind = "quick" if arguments.quick else f"{recipe.train.epochs}-epochs"
    folder = arguments.out / f"{name}-{kind}"
    if not (folder / CARD).exists():
        images, labels = load_pixels(recipe.data.name, arguments.data_root, split="train")
        if arguments.quick:
            images, labels = (each[: QUICK_IMAGES[recipe.data.name]] for each in (images, labels))
        print(f"training {folder}", file=sys.stderr, flush=True)
        done = len((folder / LOG).read_text().splitlines()) if (folder / LOG).exists() else 0
        peak = gpu_peak_mb(arguments.device, images.numel())
        result = train(
            recipe,
            out=folder,
            resume=folder.exists(),
            device=arguments.device,
            images=images,
            labels=labels,
            certify_images=0,
        )
        used = peak() if done < recipe.train.epochs else None  # nothing was left to train, and to measure
        save(folder / COST, cost(result.log, recipe, used, arguments.device))
    model = load_model(str(folder / WEIGHTS)).to(arguments.device)
    file = folder / COST
    return model, json.loads(file.read_text()) if file.exists() else {}, folder


def save(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def gpu_peak_mb(device: str, data_bytes: int = 0) -> Callable[[], float | None]:
    """Begins to watch; the result says how many MB of GPU memory were in use at most, less what was before and the data set, which
    our loop keeps on the device. None on a CPU.
    """
    if not device.startswith("cuda"):
        return lambda: None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() + data_bytes
    return lambda: (torch.cuda.max_memory_allocated() - before) / 2**20


def cost(log: list[dict], recipe: Recipe, peak_mb: float | None, device: str) -> dict:
    """Like the paper only of epochs after warm-up, and without the first of them, which compiles and records."""
    counted = [record["seconds"] for record in log if record["epoch"] > recipe.loss.warm_up_epochs]
    return {
        "seconds_per_epoch": statistics.median(counted[1:] or counted),
        "peak_mb": peak_mb,
        "device": device_name(device),
    }


def certified(
    model: nn.Module, recipe: Recipe, folder: Path, arguments: argparse.Namespace, splits: tuple[int, ...]
) -> dict:
    """Percentages by our verifier and by CGT's with its splits; cached in the folder."""
    asked = {
        "images": arguments.images,
        "boxes": arguments.boxes,
        "paper_images": arguments.paper_images,
        "splits": list(splits),
    }
    file = folder / MEASURED
    if file.exists() and (kept := json.loads(file.read_text()))["asked"] == asked:
        return kept
    count = max(arguments.images, arguments.paper_images)
    test = tiltproof.data.load(recipe.data.name, arguments.data_root)
    images, labels = (each[:count].to(arguments.device) for each in test)

    def percentages(count: int, **options: object) -> dict:
        execution = Execution(memory=arguments.memory)
        return certify(model, images[:count], labels[:count], recipe.transform, execution=execution, **options)

    ours = percentages(arguments.images, search=BranchAndBound(max_boxes=arguments.boxes))
    found = {"asked": asked, "ours": ours, "paper": None}
    if arguments.paper_images:
        found["paper"] = percentages(arguments.paper_images, bounds=FGV(), search=UniformGrid(splits))
    save(file, found)
    return found


def certify(model: nn.Module, images: Tensor, labels: Tensor, transform: str, **options: object) -> dict:
    """Percentages of these images."""
    summary = tiltproof.certify(model, images, labels, transform, **options).summary()
    percent = {key: 100 * summary[key] / summary["images"] for key in ("correct", "certified", "unfalsified")}
    return percent | {
        "boxes_per_image": summary["boxes_per_image"],
        "seconds": summary["seconds"],
        "images": len(images),
    }


def report(arguments: argparse.Namespace, headings: str, lines: Iterable[dict], show: Callable[[dict], str]) -> None:
    """A line of the table as soon as its network is there, and all of them in --json."""
    images, few = f"{arguments.images:,}", f"{arguments.paper_images:,}"
    print(
        f"paper / here ({device_name(arguments.device)}); first {images} test images; fgv is CGT's verifier, on {few}"
    )
    print(headings, flush=True)
    done = []
    for line in lines:
        done.append(line)
        print(show(line), flush=True)
        if arguments.json is not None:
            save(arguments.json, {"quick": arguments.quick, "lines": done})
