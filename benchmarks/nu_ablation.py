"""The size of training boxes: CGT's table of nu, clean and certified accuracy for five sizes, its figures and ours.

    python benchmarks/nu_ablation.py --data-root DIR --out FOLDER [--rows cifar10-r2-sh2] [--sizes ...] [--epochs 40]
        [--images 1000] [--boxes 4000] [--paper-images 100] [--device cuda] [--memory 2GB] [--json FILE] [--quick]

CGT's recipe of the row, trained once for each final size of nu: c, c + g/2, o, o + g/2 and o + g, where c is the size
at certification, o that of CGT's main results and g = o - c. All are trained on the whole training set, with --epochs
instead of CGT's 120 (CIFAR-10) and 160 (Tiny ImageNet); 0 keeps the recipe's number. --rows tinyimagenet-sc2 is CGT's
other row, whose networks take several times longer.

Certified: by CGT's verifier and splits (fgv; size c for all) on the first --paper-images test images, and by our
default on the first --images, on which clean accuracy is measured too. Each network has a folder below FOLDER: finished
ones are not trained again and stopped ones are resumed, so the same command can be repeated until it is finished.
"""

from __future__ import annotations

import argparse

from ablation import add_options, certified, network, parsed, report, shortened

from tiltproof.training import read_recipe
from tiltproof.transforms import parse

SIZES = {"c": 0.0, "c+g/2": 0.5, "o": 1.0, "o+g/2": 1.5, "o+g": 2.0}
"""How many times g is added to c."""
PAPER = {  # certified %, clean %
    "cifar10-r2-sh2": dict(
        zip(SIZES, [(45.6, 73.5), (49.8, 71.8), (51.0, 70.1), (51.7, 69.8), (50.8, 66.6)], strict=True)
    ),
    "tinyimagenet-sc2": dict(
        zip(SIZES, [(9.4, 28.5), (13.6, 26.9), (15.2, 26.1), (16.0, 25.4), (16.5, 25.2)], strict=True)
    ),
}


def half_widths(row: str, size: str) -> list[float]:
    """nu of training; like all of a recipe's nu it is half of the interval."""
    recipe = read_recipe(f"{row}-paper")
    transform, splits = parse(recipe.transform), recipe.certify.splits
    assert splits is not None
    c = [(high - low) / 2 / count for low, high, count in zip(transform.low, transform.high, splits, strict=True)]
    return [least + SIZES[size] * (usual - least) for least, usual in zip(c, recipe.loss.nu, strict=True)]


def measured(row: str, size: str, arguments: argparse.Namespace) -> dict:
    """One column of CGT's table."""
    nu = half_widths(row, size)
    recipe = shortened(read_recipe(f"{row}-paper").with_settings([f"loss.nu={nu}"]), arguments)
    assert recipe.certify.splits is not None
    name = f"{row}-nu-{size.replace('/', '-')}"
    model, cost, folder = network(recipe, name, arguments)
    found = certified(model, recipe, folder, arguments, recipe.certify.splits)
    return {"row": row, "size": size, "nu": nu, "epochs": recipe.train.epochs} | cost | found


def show(line: dict) -> str:
    """CGT's figure / ours, and columns that CGT does not have."""
    certified_paper, clean_paper = PAPER[line["row"]][line["size"]]
    theirs, ours = line["paper"], line["ours"]
    nu = ", ".join(f"{half:g}" for half in line["nu"])
    texts = [
        f"{clean_paper:.1f} / {ours['correct']:.1f}",
        f"{certified_paper:.1f} / {'-' if theirs is None else format(theirs['certified'], '.1f')}",
        f"{ours['certified']:.1f}",
        f"{ours['unfalsified']:.1f}",
        f"{ours['boxes_per_image']:.0f}",
    ]
    return f"{line['row']:<18}{line['size']:<7}{nu:<18}" + "".join(f"{text:>18}" for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, epochs=40)
    parser.add_argument("--rows", nargs="+", default=["cifar10-r2-sh2"], choices=list(PAPER))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    arguments = parsed(parser)
    headings = ("clean %", "certified %, fgv", "certified %, ours", "unfalsified %", "boxes per image")
    lines = (measured(row, size, arguments) for row in arguments.rows for size in arguments.sizes)
    report(arguments, f"{'row':<18}{'size':<7}{'nu':<18}" + "".join(f"{text:>18}" for text in headings), lines, show)


if __name__ == "__main__":
    main()
