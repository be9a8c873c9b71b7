"""When rounding alone exceeds the margin of a deep network: bounds at single images, where nothing else is left over.

    python benchmarks/deep_rounding.py --networks DIR [--images 3] [--json FILE]

DIR holds resnet20-cifar10.safetensors. Deeper networks of the same growth are made of it: ResNet-32, -44 and -56 have 5, 7 and 9 blocks a
stage, of which all after the third repeat the trained ones. Their outputs mean nothing; how their layers magnify roundings is that of a
trained network, and their means and variances are those of the sample images. Prints, for each: the product of the layers' norms, branches
added; the margin; how far float64's roundings let the bound reach below it; and whether boxes of no width are abandoned, because
roundings alone make too many kinks (the bound is then that without symbols). Then, for those that need them, with columns in pairs of
floats, for boxes of several widths at 0.7 degrees: how far the bound lies below the margin in the middle, and CPU seconds.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tiltproof
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import Network, margins
from tiltproof.network.deep import DeepPass, sensitivities
from tiltproof.network.pair_pass import needs_pairs
from tiltproof.verify.deep_prover import DeepProver
from tiltproof.verify.inputs import Inputs, check_inputs, proof_on

FILE = "resnet20-cifar10.safetensors"
WIDTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)


def deeper(model: nn.Module, blocks: int, images: Tensor) -> nn.Module:
    """The network with ``blocks`` blocks a stage, and batch norms calibrated to the images."""
    model = copy.deepcopy(model)
    for name, stage in model.named_children():
        if isinstance(stage, nn.Sequential) and len(stage) == 3:
            more = [copy.deepcopy(stage[1 + k % 2]) for k in range(blocks - 3)]
            setattr(model, name, nn.Sequential(*stage, *more))
    if blocks > 3:
        norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = None  # the mean of all batches
            norm.reset_running_stats()
        with torch.no_grad():
            model.train()(images)
    return model.eval()


@torch.no_grad()
def at_a_point(model: nn.Module, image: Tensor) -> dict[str, Any]:
    """The margin of the network's own answer, and the bound's distance from it."""
    label = model(image).argmax(1)
    with proof_on(image):
        inputs = check_inputs(model, image, label, "R(1)")
        network = inputs.network_as(torch.float64)
        began = time.process_time()
        point = AffineForm.constant(inputs.images64)
        forms = DeepPass(network).run(point)
        abandoned = forms is None
        if forms is None:  # roundings alone make more kinks than a box may have: none gets a symbol
            forms = DeepPass(network, tolerance=1e300).run(point)
        assert forms is not None
        form = margins(network, forms, inputs.labels)
        seconds = time.process_time() - began
        growth = sensitivities(network)[network.input]
        own = inputs.labels.unsqueeze(1)
        center, lower = (each.scatter(1, own, torch.inf).min() for each in (form.center, form.lower))
        pairs = in_pairs(inputs, network) if needs_pairs(network) else {}
    return {
        "log10 of norms": math.log10(growth),
        "margin": float(center),
        "below": float(center - lower),
        "abandoned": abandoned,
        "CPU seconds": seconds,
    } | pairs


def in_pairs(inputs: Inputs, network: Network) -> dict[str, Any]:
    """The bound's distance from the margin in the middle, for boxes of several widths in degrees; infinite where they get no bound."""
    prover, found = DeepProver(inputs.images64, inputs.labels, inputs.transform), {}
    for width in WIDTHS:
        low, began = torch.tensor([[0.7]], dtype=torch.float64), time.process_time()
        outcome = prover.bound(torch.tensor([0]), low, low + width, network)
        below = float(outcome.center - outcome.bound) if bool(outcome.bound.isfinite()) else math.inf
        found |= {f"below, width {width:g}": below, f"CPU seconds, width {width:g}": time.process_time() - began}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = tiltproof.models.load(str(options.networks / FILE), "cifar10_resnet20")
    images, _ = tiltproof.data.load("cifar10-sample")
    rows = []
    for blocks in (3, 5, 7, 9):
        network = deeper(model, blocks, images)
        for k in range(options.images):
            rows.append({"layers": 6 * blocks + 2, "image": k} | at_a_point(network, images[k : k + 1]))
            print(rows[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
