"""Speed of the affine verifier over CGT's, as a ratio of seconds per image in one run on this machine.

    python benchmarks/speed_ratio.py --networks DIR --data-root DIR [--images 100] [--boxes 40] [--device cpu]

CGT's verifier (``fgv``) is timed on a random sample of its splits and extrapolated to all of them; it runs no attack,
and every image is taken through every sampled split, as in CGT. The affine verifier's time is that of the whole
`certify` call, attack and search included.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from reference_networks import ROWS, load_row

import tiltproof
from tiltproof.network import proof_arithmetic
from tiltproof.runtime.batch_size import pairs_at_a_time
from tiltproof.verify.inputs import check_inputs
from tiltproof.verify.prover import BackwardPolicy, Prover
from tiltproof.verify.state import Tiling


def fgv_seconds(model, images, labels, transform: str, splits: tuple[int, ...], sample: int) -> float:
    """Seconds per image for all of CGT's splits, from ``sample`` of them."""
    inputs = check_inputs(model, images, labels, transform)
    tiling = Tiling(inputs.transform, splits)
    boxes = tiling.first()
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(boxes), generator=generator)[:sample]
    rows = torch.arange(len(images), device=images.device)
    size = pairs_at_a_time(inputs.network, 0, images.device)

    def one(box: int) -> None:
        low, high = (end.to(images.device).expand(len(rows), -1) for end in tiling.bounds(boxes[torch.tensor([box])]))
        for part in rows.split(size):
            prover.bound(part, low[part], high[part], policy)

    with proof_arithmetic(images.device):
        prover, policy = Prover(inputs, "fgv"), BackwardPolicy.on(images.device)
        one(int(chosen[0]))  # warm-up
        began = time.perf_counter()
        for box in chosen.tolist():
            one(box)
        if images.is_cuda:
            torch.cuda.synchronize()
    return (time.perf_counter() - began) / len(chosen) * math.prod(splits) / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--boxes", type=int, default=40, help="number of CGT's splits to time")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    arguments = parser.parse_args()
    print(f"first {arguments.images} test images, {arguments.device}, {torch.get_num_threads()} threads")
    for name in arguments.rows:
        row = load_row(name, arguments.networks, arguments.data_root, arguments.device, arguments.images)
        model, images, labels, transform, splits, _ = row
        tiltproof.certify(model, images[:8], labels[:8], transform)  # warm-up: imports, tracing
        certificate = tiltproof.certify(model, images, labels, transform)
        affine = certificate.seconds / len(images)
        paper = fgv_seconds(model, images, labels, transform, splits, arguments.boxes)
        summary = certificate.summary()
        print(
            f"{name:22s} certified {summary['certified']:4d}  unknown {summary['unknown']:3d}"
            f"  affine {affine:8.4f} s/image  fgv {paper:10.4f} s/image ({math.prod(splits)} splits)  ratio {paper / affine:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
