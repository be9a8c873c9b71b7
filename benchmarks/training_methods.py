"""Five training methods for the same proof: CGT's table of methods, its figures and ours, and our own recipe below.

    python benchmarks/training_methods.py --data-root DIR --out FOLDER [--rows mnist-tu2-tv2 cifar10-r10] [--methods ...] [--epochs 40]
        [--images 1000] [--boxes 4000] [--paper-images 100] [--device cuda] [--memory 2GB] [--json FILE] [--quick]

CGT is CGT's loss, IBP+A a box around each augmented pixel, PGD+A a pixel-wise attack on augmented images, Augment.
augmentation alone, all with the schedules of CGT's recipe and its epsilons and steps; "ours" is the recipe of the row's
name. All are trained on the whole training set, with --epochs instead of CGT's 100 (MNIST) and 120 (CIFAR-10); 0 keeps
the recipe's number.

Certified: by CGT's verifier and splits (fgv) on the first --paper-images test images, and by our default on the first
--images, on which clean accuracy is measured too. Seconds per epoch are of epochs after warm-up on this device; MB are
peak GPU memory without the data set (CGT: an A100). Each network has a folder below FOLDER: finished ones are not
trained again and stopped ones are resumed, so the same command can be repeated until it is finished.
"""

from __future__ import annotations

import argparse

from ablation import add_options, certified, network, parsed, report, shortened

from tiltproof.training import Recipe, read_recipe

PAPER = {  # clean %, certified %, seconds an epoch, MB of GPU memory
    "mnist-tu2-tv2": {
        "CGT": (99.2, 89.8, 3.25, 116.3),
        "IBP+A": (98.5, 82.6, 2.53, 116.2),
        "PGD+A": (99.4, 0.0, 16.6, 67.07),
        "Augment.": (99.4, 0.0, 1.50, 64.76),
    },
    "cifar10-r10": {
        "CGT": (80.5, 63.2, 6.06, 236.2),
        "IBP+A": (62.2, 46.4, 5.44, 235.3),
        "PGD+A": (76.7, 38.8, 7.48, 83.26),
        "Augment.": (83.7, 0.04, 5.13, 74.38),
    },
}
ATTACK = {
    "mnist-tu2-tv2": {"epsilon": 0.1, "step_size": 0.005, "steps": 40},
    "cifar10-r10": {"epsilon": 2 / 255, "step_size": 0.002, "steps": 7},
}
KINDS = {"CGT": "certified", "IBP+A": "ibp", "PGD+A": "pgd", "Augment.": "augmentation"}
METHODS = (*KINDS, "ours")


def recipe_of(row: str, method: str) -> Recipe:
    """CGT's recipe with another loss, or our own."""
    if method == "ours":
        return read_recipe(row)
    settings = [f"loss.kind={KINDS[method]}", *(f"loss.{key}={value}" for key, value in ATTACK[row].items())]
    return read_recipe(f"{row}-paper").with_settings(settings)


def measured(row: str, method: str, arguments: argparse.Namespace) -> dict:
    """One line of the table."""
    recipe = shortened(recipe_of(row, method), arguments)
    splits = shortened(read_recipe(f"{row}-paper"), arguments).certify.splits
    assert splits is not None
    name = f"{row}-{method.lower().replace('+', '-').strip('.')}"
    model, cost, folder = network(recipe, name, arguments)
    found = certified(model, recipe, folder, arguments, splits)
    return {"row": row, "method": method, "epochs": recipe.train.epochs} | cost | found


def cell(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def show(line: dict) -> str:
    """CGT's figure / ours, and columns that CGT does not have."""
    paper = PAPER[line["row"]].get(line["method"], (None,) * 4)
    theirs, ours = line["paper"] or {}, line["ours"]
    pairs = [
        (paper[0], ours["correct"]),
        (paper[1], theirs.get("certified")),
        (paper[2], line.get("seconds_per_epoch")),
        (paper[3], line.get("peak_mb")),
    ]
    texts = [f"{cell(a)} / {cell(b)}" for a, b in pairs]
    ends = [cell(ours["certified"]), cell(ours["unfalsified"]), cell(ours["boxes_per_image"], 0)]
    return f"{line['row']:<15}{line['method']:<10}" + "".join(f"{text:>18}" for text in texts + ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, epochs=40)
    parser.add_argument("--rows", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    arguments = parsed(parser)
    headings = ("clean %", "certified %, fgv", "s/epoch", "MB", "certified %, ours", "unfalsified %", "boxes per image")
    lines = (measured(row, method, arguments) for row in arguments.rows for method in arguments.methods)
    report(arguments, f"{'row':<15}{'method':<10}" + "".join(f"{text:>18}" for text in headings), lines, show)


if __name__ == "__main__":
    main()
