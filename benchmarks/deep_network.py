"""What each part of the deep pass brings: margins of one box of a ResNet-20 over its width, and the work for a range.

    python benchmarks/deep_network.py --networks DIR [--images 2] [--json FILE]
    python benchmarks/deep_network.py --networks DIR --certify "R(0.5)" [--images 10] [--data-root DIR] [--json FILE]

DIR holds resnet20-cifar10.safetensors, ordinary training, 92 % clean. Without --certify: the lower bound of the margin of one box at 0.7
degrees, for boxes of several widths: by today's forms (radii alone, quadratic), with a ball, with a symbol for every kink too, and with
pixels of degree 4 too; beside the margin in its middle; and how many columns a degree of range takes, and CPU seconds. With --certify: the
first images that the network gets right, one by one: verdict, boxes, columns (of all boxes, the first random ones included) and CPU seconds
a degree beside those of one plain evaluation in the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tiltproof
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import margins, run
from tiltproof.network.deep import DeepPass
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.polynomial import polynomial_form
from tiltproof.verify.deep_prover import DeepOutcome, DeepProver
from tiltproof.verify.inputs import Inputs, check_inputs, proof_on

FILE, AT = "resnet20-cifar10.safetensors", 0.7
WIDTHS = (1e-4, 1e-3, 4e-3, 1e-2, 2e-2, 5e-2)


def methods(pixels: AffineForm, polynomials: AffineForm) -> dict[str, Any]:
    """Name -> forms that margins come from, as a function of the network."""
    return {
        "radii": lambda network: run(network, pixels),
        "ball": lambda network: DeepPass(network, tolerance=1e300).run(pixels),
        "ball, symbols": lambda network: DeepPass(network).run(pixels, 64),
        "ball, symbols, degree 4": lambda network: DeepPass(network).run(polynomials),
    }


@torch.no_grad()
def box(inputs: Inputs, image: int, width: float) -> dict[str, Any]:
    """Bounds of one box by each method."""
    network = inputs.network_as(torch.float64)
    rows, low = torch.tensor([image]), torch.tensor([[AT]], dtype=torch.float64)
    pixels = pair_bounds(inputs.images64, rows, inputs.transform, "affine", low, low + width, quadratic=True)
    polynomials = polynomial_form(inputs.images64, rows, inputs.transform, low, low + width, symbols=64)
    label = inputs.labels[rows]
    found: dict[str, Any] = {"width_degrees": width, "image": image}
    for name, forms_of in methods(pixels, polynomials).items():
        began, forms = time.process_time(), forms_of(network)
        if forms is None:
            found[name] = None
            continue
        form = margins(network, forms, label)
        hidden = label.unsqueeze(1)
        found[name] = float(form.lower.scatter(1, hidden, torch.inf).min())
        found["middle"] = float(form.center.scatter(1, hidden, torch.inf).min())
        found[f"{name}: CPU seconds"] = time.process_time() - began
    walk = DeepPass(network)
    walk.run(polynomials)
    return found | {"columns": walk.columns, "columns a degree": walk.columns / width}


def right(model: torch.nn.Module, images: Tensor, labels: Tensor, count: int) -> list[int]:
    """The first images that the network gets right."""
    with torch.no_grad():
        return (model(images).argmax(1) == labels).nonzero().flatten()[:count].tolist()


@contextmanager
def counted() -> Iterator[list[float]]:
    """Columns of every box that is bounded inside, pilots included."""
    columns, bound = [], DeepProver.bound

    def counting(*arguments: Any) -> DeepOutcome:
        outcome = bound(*arguments)
        columns.extend(outcome.columns.tolist())
        return outcome

    DeepProver.bound = counting  # type: ignore[method-assign]
    try:
        yield columns
    finally:
        DeepProver.bound = bound  # type: ignore[method-assign]


def certified(model: torch.nn.Module, image: Tensor, label: Tensor, transform: str) -> dict[str, Any]:
    """Verdict and work of one image."""
    began = time.process_time()
    with torch.no_grad():
        for _ in range(10):
            model(image)
    plain = (time.process_time() - began) / 10
    began = time.process_time()
    with counted() as columns:
        result = tiltproof.certify(model, image, label, transform).results[0]
    seconds = time.process_time() - began
    degrees = 2 * tiltproof.parse(transform).high[0]
    return {
        "verdict": str(result.verdict),
        "boxes": result.boxes,
        "columns a degree": round(sum(columns) / degrees),
        "CPU seconds a degree": seconds / degrees,
        "CPU seconds of a plain evaluation": plain,
        "plain evaluations a degree": seconds / degrees / plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--data-root")
    parser.add_argument("--certify", metavar="TRANSFORM")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = tiltproof.models.load(str(options.networks / FILE), "cifar10_resnet20")
    name = "cifar10" if options.data_root else "cifar10-sample"
    images, labels = tiltproof.data.load(name, options.data_root)
    rows = []
    if options.certify:
        for row in right(model, images[:100], labels[:100], options.images):
            part = slice(row, row + 1)
            rows.append({"image": row} | certified(model, images[part], labels[part], options.certify))
            print(rows[-1], flush=True)
    else:
        images, labels = images[: options.images], labels[: options.images]
        with proof_on(images):
            inputs = check_inputs(model, images, labels, "R(10)")
            for image in range(len(images)):
                for width in WIDTHS:
                    rows.append(box(inputs, image, width))
                    print(rows[-1], flush=True)
    if options.json:
        content = {"torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
