"""The cost of accounting for rounding: seconds and certified images of the default path, and of the same path without
allowances.

    python benchmarks/rounding_cost.py --networks DIR --data-root DIR [--device cuda] [--rows ...] [--limit N] [--repeat 3]

The path without allowances proves nothing; it exists only here, by giving the prover pixel forms whose unit roundoff is
declared zero.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from reference_networks import ROWS, load_row

import tiltproof
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.pixels.api import pair_bounds
from tiltproof.verify import prover


def without_slack(*arguments, dtype=torch.float64, **named) -> AffineForm:
    form = pair_bounds(*arguments, **named)
    return AffineForm(form.stack, form.radius, unit=0.0, quadratic=form.quadratic).to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each path, in turn; the fastest counts")
    arguments = parser.parse_args()
    for name in arguments.rows:
        row = load_row(name, arguments.networks, arguments.data_root, arguments.device, arguments.limit)
        model, images, labels, transform, _, _ = row
        tiltproof.certify(model, images[:64], labels[:64], transform)  # warm-up
        best = {}
        for _ in range(arguments.repeat):
            for label, bound in (("sound", pair_bounds), ("without", without_slack)):
                prover.pair_bounds = bound
                certificate = tiltproof.certify(model, images, labels, transform)
                prover.pair_bounds = pair_bounds
                if label not in best or certificate.seconds < best[label].seconds:
                    best[label] = certificate
        sound, without = best["sound"], best["without"]
        lost = without.summary()["certified"] - sound.summary()["certified"]
        print(
            f"{name:22s} certified {sound.summary()['certified']:5d}, without slack {without.summary()['certified']:5d}"
            f" (lost {lost})  seconds {sound.seconds:6.2f} / {without.seconds:6.2f} = {sound.seconds / without.seconds:.2f}"
            f"  boxes/image {sound.summary()['boxes_per_image']:.1f} / {without.summary()['boxes_per_image']:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
