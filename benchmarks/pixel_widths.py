"""Pixel widths over boxes theta +- nu: CGT's table, and the same quantity by our three methods.

    python benchmarks/pixel_widths.py --data-root DIR [--rows ...] [--images 1000] [--samples 10] [--device cpu] [--json FILE]

For each row the training and the certification interval; for each of them the average and the maximum width. ``fgv`` is
CGT's method and should reproduce CGT's figure; ``hull`` and ``affine`` are ours, ``remainder`` is the part of the
affine width that the parameters do not explain. Tiny ImageNet: the central 56 x 56 pixels of training images, as at
test time (CGT's networks see crops of that size); CGT's R(5) widths at certification are those of an interval of 0.002,
not of the 0.001 that it names, so that row deviates by half. CGT's row for driving is omitted: its frames are not ours.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tiltproof.data import center_crop, load_pixels
from tiltproof.training import pixel_widths, read_recipe

METHODS = ("fgv", "hull", "affine")


@dataclass(frozen=True)
class Row:
    """Certification interval sizes, and (average, maximum) of CGT's widths for training and certification."""

    sizes: tuple[float, ...]
    training: tuple[float, float]
    certification: tuple[float, float]


PAPER = {
    "mnist-r30": Row((0.25,), (0.019, 0.234), (0.010, 0.124)),
    "mnist-tu2-tv2": Row((0.05, 0.05), (0.041, 0.334), (0.022, 0.181)),
    "mnist-sc5-r5-c5-b001": Row((0.5, 0.125, 5, 0.02), (0.043, 0.356), (0.031, 0.223)),
    "mnist-sh2-r2-sc2-c2-b0001": Row((0.25, 0.0625, 0.25, 4, 0.002), (0.022, 0.253), (0.015, 0.153)),
    "cifar10-r10": Row((0.0002,), (2.67e-4, 8.53e-4), (5.38e-5, 1.71e-4)),
    "cifar10-r2-sh2": Row((0.01, 0.025), (8.94e-3, 2.82e-2), (4.52e-3, 1.42e-2)),
    "cifar10-sc1-r1-c1-b0001": Row((0.005, 0.005, 0.5, 0.002), (6.37e-3, 1.26e-2), (6.37e-3, 1.26e-2)),
    "tinyimagenet-sh2": Row((0.002,), (1.21e-3, 4.90e-3), (2.44e-4, 9.82e-4)),
    "tinyimagenet-sc2": Row((0.002,), (2.39e-3, 8.76e-3), (4.81e-4, 1.76e-3)),
    "tinyimagenet-r5": Row((0.001,), (2.15e-3, 7.88e-3), (8.63e-4, 3.17e-3)),
}


def training_images(name: str, root: str, count: int | None, seed: int, crop_size: int) -> torch.Tensor:
    """Random training images in [0, 1], or all; ``crop_size``: the middle of them, 0 the whole."""
    pixels, _ = load_pixels(name, root, "train")
    if count is not None:
        pixels = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))[:count]]
    return (center_crop(pixels, crop_size) if crop_size else pixels).to(torch.float32).div_(255)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--rows", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--images", type=int, default=1000, help="random training images; 0: all of them")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    headings = ["paper", "fgv", "error", "deviation", "hull", "affine", "remainder"]
    print(f"{'row':26s} {'interval':14s} {'width':8s}" + "".join(f"{heading:>11s}" for heading in headings))
    worst, found = 0.0, []
    for name in arguments.rows:
        recipe, row = read_recipe(f"{name}-paper"), PAPER[name]
        data, count = recipe.data, arguments.images or None
        images = training_images(data.name, arguments.data_root, count, arguments.seed, data.crop_size)
        images = images.to(arguments.device)
        boxes = {
            "training": (recipe.loss.nu, row.training),
            "certification": (tuple(size / 2 for size in row.sizes), row.certification),
        }
        for interval, (nu, paper) in boxes.items():
            widths = {
                method: pixel_widths(images, recipe.transform, nu, method, arguments.samples, arguments.seed)
                for method in arguments.methods
            }
            own = {method: asdict(each) for method, each in widths.items()}
            found.append({"row": name, "interval": interval, "nu": nu, "images": len(images), "paper": paper} | own)
            for k, width in enumerate(("average", "maximum")):
                cells = [f"{paper[k]:.3g}"]
                for method in METHODS:
                    cells.append(f"{getattr(widths[method], width):.4g}" if method in widths else "")
                    if method == "fgv" and method in widths:
                        deviation = 100 * (getattr(widths[method], width) / paper[k] - 1)
                        worst = max(worst, abs(deviation))
                        cells += [f"{getattr(widths[method], width + '_error'):.2g}", f"{deviation:+.1f} %"]
                if "affine" in widths:
                    cells.append(f"{getattr(widths['affine'], 'remainder_' + width):.4g}")
                print(f"{name:26s} {interval:14s} {width:8s}" + "".join(f"{cell:>11s}" for cell in cells), flush=True)
    print(f"largest deviation of fgv from CGT: {worst:.1f} %")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
