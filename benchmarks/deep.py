"""How finely a range must be cut for a network: the fraction of (image, box) pairs proved against boxes per image, by method.

    python benchmarks/deep.py RUN [--data-root DIR] [--device cuda] [--images N] [--pairs N] [--grids 512,2048] [--json FILE]

RUN is the folder of a finished training run whose transformation has one parameter. Pairs are random: an image that is
classified correctly at 41 sampled parameters, and a box of a uniform grid. Columns: forward bounds alone, with the
backward pass, and both with quadratic forms; all in float64, and for comparison forward bounds in float32.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import tiltproof
from tiltproof.models import load as load_model
from tiltproof.runtime.batch_size import AdaptiveBatchSize
from tiltproof.training.artefacts import CARD, WEIGHTS
from tiltproof.transforms import parse
from tiltproof.verify.branch_and_bound import PilotRuns
from tiltproof.verify.inputs import check_inputs, proof_on
from tiltproof.verify.prover import BackwardPolicy, Prover

SAMPLES = 41


@torch.no_grad()
def robust(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, transform: tiltproof.transforms.Transform
) -> torch.Tensor:
    """Rows of the images that are right at all sampled parameters."""
    right = torch.ones(len(images), dtype=torch.bool, device=images.device)
    for share in torch.linspace(0, 1, SAMPLES):
        value = transform.low[0] + (transform.high[0] - transform.low[0]) * float(share)
        answers = [model(transform.apply(x, x.new_full((len(x), 1), value))).argmax(1) for x in images.split(250)]
        right &= torch.cat(answers) == labels
    return right.nonzero().flatten()


def row(prover: Prover, rows: torch.Tensor, grid: int, pairs: int, batch: int) -> dict:
    """Fractions proved on a grid of this many boxes."""
    found: dict[str, float] = {"boxes": grid}
    for name, dtype, quadratic in (
        ("float32", torch.float32, False),
        ("", torch.float64, False),
        ("quadratic", torch.float64, True),
    ):
        policy, prover.quadratic = BackwardPolicy.on(rows.device), quadratic
        pilots = PilotRuns(prover, policy, rows, AdaptiveBatchSize(batch), seed=0)
        pilots.pairs = pairs
        began = time.perf_counter()
        pilot = pilots.run((grid,), dtype)
        seconds = time.perf_counter() - began
        label = f"{name} " if name else ""
        found |= {
            f"{label}forward": pilot.forward,
            f"{label}backward": pilot.passed,
            f"{label}seconds": seconds / pairs,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64, help="pairs at a time")
    parser.add_argument("--grids", default="128,512,2048,8192")
    parser.add_argument("--data", help="another data set than the card's")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    card = json.loads((arguments.run / CARD).read_text())
    transform = parse(card["transform"])
    if len(transform.parts) != 1:
        parser.error(f"one parameter is wanted, {card['transform']} has {len(transform.parts)}")
    model = load_model(str(arguments.run / WEIGHTS)).to(arguments.device).eval()
    images, labels = tiltproof.data.load(arguments.data or card["dataset"], root=arguments.data_root)
    images, labels = (tensor[: arguments.images].to(arguments.device) for tensor in (images, labels))
    rows = robust(model, images, labels, transform).cpu()
    print(f"{card['name']}, {card['architecture']}: {len(rows)} of {len(images)} images right at {SAMPLES} parameters")
    with proof_on(images):
        prover = Prover(check_inputs(model, images, labels, transform, "real"), "affine")
        columns = ("float32 backward", "forward", "backward", "quadratic forward", "quadratic backward")
        print(f"{'boxes':>7}" + "".join(f"{name:>18}" for name in columns) + f"{'quadratic ms a pair':>18}")
        table = []
        for grid in map(int, arguments.grids.split(",")):
            table.append(row(prover, rows, grid, arguments.pairs, arguments.batch))
            shares = "".join(f"{100 * table[-1][name]:>16.1f} %" for name in columns)
            print(f"{grid:>7}{shares}{1000 * table[-1]['quadratic seconds']:>18.2f}", flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
