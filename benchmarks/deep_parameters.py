"""What a ball and symbols for kinks bring where several parameters vary: bounds of random boxes, by how finely the range is cut.

    python benchmarks/deep_parameters.py --networks DIR [--data-root DIR] [--transform TRANSFORM] [--images 3] [--json FILE]

DIR holds v21_resnet_2b.onnx and v22_sri_resnet_a.onnx. For each network, and ranges cut into 1, 2, 4, ... parts along every parameter: one
random box for each of the first images that the network classifies correctly. Prints the median bound, the number of boxes proved, and
CPU seconds per box: of forms with radii, of these with a backward pass, of the pass for deep networks with a ball alone, and of that with
symbols for kinks and for the 64 largest radii of the pixels.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from public_networks import ROWS, Normalize
from torch import Tensor, nn

import tiltproof
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import margins, refine, run
from tiltproof.network.deep import DeepPass
from tiltproof.pixels.api import pair_bounds
from tiltproof.verify.inputs import check_inputs, proof_on

NAMES, PIXEL_SYMBOLS = ("resnet_2b", "sri_resnet_a"), 64
CUTS = (1, 2, 4, 8, 16, 32, 64)
Bounds = Callable[[Any, AffineForm, Tensor], Tensor]


def least(form: AffineForm, label: Tensor) -> Tensor:
    return form.lower.scatter(1, label.unsqueeze(1), torch.inf)


def radii(network: Any, pixels: AffineForm, label: Tensor) -> Tensor:
    return least(margins(network, run(network, pixels), label), label)


def backward(network: Any, pixels: AffineForm, label: Tensor) -> Tensor:
    forms = run(network, pixels)
    bound = least(margins(network, forms, label), label)
    classes = (~(bound[0] > 0)).nonzero().flatten()
    if len(classes):
        better = refine(network, forms, label, torch.zeros_like(classes), classes)[0]
        bound[0, classes] = torch.maximum(bound[0, classes], better.to(bound.dtype))
    return bound


def deep(symbols: int, **options: Any) -> Bounds:
    def bounds(network: Any, pixels: AffineForm, label: Tensor) -> Tensor:
        forms = DeepPass(network, **options).run(pixels, symbols)
        return torch.full((1, 1), -torch.inf) if forms is None else least(margins(network, forms, label), label)

    return bounds


METHODS: dict[str, Bounds] = {
    "radii": radii,
    "backward": backward,
    "ball": deep(0, tolerance=1e300),
    "ball, symbols": deep(PIXEL_SYMBOLS),
}


@torch.no_grad()
def table(model: nn.Module, images: Tensor, labels: Tensor, transform: str) -> list[dict[str, Any]]:
    """One row for each cut and method."""
    rows, generator = [], torch.Generator().manual_seed(0)
    with proof_on(images):
        inputs = check_inputs(model, images, labels, transform)
        network, change = inputs.network_as(torch.float64), inputs.transform
        bottom, top = (torch.tensor(each, dtype=torch.float64) for each in (change.low, change.high))
        size = top - bottom
        for cut in CUTS:
            place = torch.randint(cut, (len(images), len(size)), generator=generator)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
            for k, parts in enumerate(place):
                low = (bottom + size * parts / cut).unsqueeze(0)
                high, row = low + size / cut, torch.tensor([k])
                pixels = pair_bounds(inputs.images64, row, change, "affine", low, high)
                for name, method in METHODS.items():
                    began = time.process_time()
                    bound = float(method(network, pixels, inputs.labels[row]).min())
                    found[name].append((bound, time.process_time() - began))
            for name, pairs in found.items():
                bounds = torch.tensor([bound for bound, _ in pairs])
                rows.append(
                    {
                        "cut": cut,
                        "boxes": cut ** len(size),
                        "method": name,
                        "proved": int((bounds > 0).sum()),
                        "of": len(pairs),
                        "median bound": float(bounds.median()),
                        "CPU seconds": sum(seconds for _, seconds in pairs) / len(pairs),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--data-root")
    parser.add_argument("--transform", default="Sc(2), R(2), C(2), B(0.01)")
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = "cifar10" if options.data_root else "cifar10-sample"
    images, labels = tiltproof.data.load(name, options.data_root)
    results = {}
    for name in NAMES:
        normalization = ROWS[name].normalization
        assert normalization is not None
        network = tiltproof.models.load(str(options.networks / ROWS[name].file))
        model = nn.Sequential(Normalize(*normalization), network).eval()
        with torch.no_grad():
            right = (model(images[:100]).argmax(1) == labels[:100]).nonzero().flatten()[: options.images]
        print(name, flush=True)
        results[name] = table(model, images[right], labels[right], options.transform)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": results}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
