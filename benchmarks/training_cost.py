"""Seconds and memory of a training epoch: CGT's table of training statistics and ours, with CGT's recipes and with our own.

    python benchmarks/training_cost.py [--rows ...] [--recipes paper ours] [--steps 50] [--device cuda] [--json FILE] [--quick]

Times steps of the real training loop with boxes at their full size, as after warm-up and ramp-up, after a few untimed
steps. An epoch has as many steps as CGT's training set has batches (driving: as ours has, because CGT does not state
its number). Images are random, because times do not depend on them, and no data set is needed. MB: peak GPU memory
without the training set, which our loop keeps on the device (last column); unknown on a CPU. Times are of this device
and CGT's of an A100 (four of them for the WideResNet), so only the order of magnitude is comparable.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import torch
from ablation import device_name, gpu_peak_mb

from tiltproof.training import Recipe, read_recipe, recipe_names
from tiltproof.training.cuda import training_arithmetic
from tiltproof.training.data import TrainingSet
from tiltproof.training.distributed import Processes
from tiltproof.training.epoch import EpochRunner
from tiltproof.transforms import parse


class Images(NamedTuple):
    """Shape and classes of a data set's training images; 0 classes: regression."""

    shape: tuple[int, int, int]
    count: int
    classes: int


DATA = {
    "mnist": Images((1, 28, 28), 60_000, 10),
    "cifar10": Images((3, 32, 32), 50_000, 10),
    "tinyimagenet": Images((3, 64, 64), 100_000, 200),
    "driving": Images((3, 66, 200), 4_514, 0),
}
PAPER = {  # row: seconds an epoch, MB
    "mnist-r30": (3.46, 116.3),
    "mnist-tu2-tv2": (3.25, 116.3),
    "mnist-sc5-r5-c5-b001": (3.46, 116.3),
    "mnist-sh2-r2-sc2-c2-b0001": (3.53, 116.3),
    "cifar10-r10": (6.06, 236.2),
    "cifar10-r2-sh2": (6.02, 236.3),
    "cifar10-sc1-r1-c1-b0001": (6.11, 237.3),
    "tinyimagenet-sh2": (48.8, 4362.0),
    "tinyimagenet-sc2": (48.9, 4362.0),
    "tinyimagenet-r5": (48.9, 4361.0),
    "tinyimagenet-sh2-wrn": (98.2, 34143.0),
    "tinyimagenet-sc2-wrn": (98.1, 34143.0),
    "tinyimagenet-r5-wrn": (98.8, 34143.0),
    "driving-r2": (11.7, 3428.0),
}
WIDE = ["model.architecture=tinyimagenet_wide_resnet", "train.batch_size=400"]
WARM_UP = 5


def recipe_of(row: str, kind: str) -> Recipe | None:
    """The recipe as after warm-up and ramp-up; None if there is none of this kind."""
    base = row.removesuffix("-wrn")
    name = f"{base}-paper" if kind == "paper" else base
    if name not in recipe_names() or (kind == "ours" and row != base):
        return None
    settings = ["loss.warm_up_epochs=0", "loss.ramp_epochs=0", "data.hold_out=0.0"]
    return read_recipe(name).with_settings(settings + (WIDE if row != base else []))


def measured(row: str, kind: str, recipe: Recipe, arguments: argparse.Namespace) -> dict:
    """One line of the table."""
    device, like = torch.device(arguments.device), DATA[recipe.data.name]
    size = recipe.train.batch_size if arguments.batch is None else arguments.batch
    recipe = recipe.with_settings([f"train.batch_size={size}"])
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (size, *like.shape), generator=random, dtype=torch.uint8)
    labels = (
        torch.randint(0, like.classes, (size,), generator=random)
        if like.classes
        else torch.rand(size, generator=random)
    )
    peak = gpu_peak_mb(arguments.device, pixels.numel())
    data = TrainingSet(pixels, labels, 0.0, 0, device)
    runner = EpochRunner(recipe, parse(recipe.transform), data, Processes(), None)
    runner.model.train()
    rows, column = torch.arange(size, device=device), torch.zeros(4, device=device)

    def steps(first: int, count: int) -> float:
        began = time.perf_counter()
        for step in range(first, first + count):
            runner.step(rows, step, column)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    with training_arithmetic(device):
        steps(0, arguments.warm_up)
        seconds = steps(arguments.warm_up, arguments.steps)
    return {
        "row": row,
        "recipe": recipe.name,
        "kind": kind,
        "loss": recipe.loss.kind,
        "batch": size,
        "seconds_per_step": seconds,
        "seconds_per_epoch": seconds * (like.count // size),
        "peak_mb": peak(),
        "data_mb": pixels[0].numel() * like.count / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--recipes", nargs="+", default=["paper", "ours"], choices=["paper", "ours"])
    parser.add_argument("--steps", type=int, default=50, help="timed ones")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="one step of 4 images each: shows that the program works")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.batch, arguments.warm_up = (4, 1) if arguments.quick else (None, WARM_UP)
    if arguments.quick:
        arguments.steps = 1
        print("quick run: one step of 4 images each. It only shows that the program works.")
    print(f"paper / here, {device_name(arguments.device)}")
    print(f"{'row':<27}{'recipe':<8}{'loss':<14}{'batch':>6}{'s/step':>10}{'s/epoch':>18}{'MB':>20}{'data MB':>9}")
    lines = []
    for row in arguments.rows:
        for kind in arguments.recipes:
            recipe = recipe_of(row, kind)
            if recipe is None:
                continue
            line = measured(row, kind, recipe, arguments)
            lines.append(line)
            epoch = f"{PAPER[row][0]:g} / {line['seconds_per_epoch']:.3g}"
            memory = f"{PAPER[row][1]:g} / " + ("-" if line["peak_mb"] is None else f"{line['peak_mb']:.0f}")
            print(
                f"{row:<27}{kind:<8}{line['loss']:<14}{line['batch']:>6}{line['seconds_per_step']:>10.4f}{epoch:>18}{memory:>20}"
                f"{line['data_mb']:>9.0f}",
                flush=True,
            )
    if arguments.json is not None:
        about = {"device": device_name(arguments.device), "quick": arguments.quick}
        arguments.json.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
