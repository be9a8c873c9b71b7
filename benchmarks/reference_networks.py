"""Certify the CGT authors' networks on full test sets, by this package's default and by CGT's verifier.

    python benchmarks/reference_networks.py --networks DIR --data-root DIR [--device cuda] [--method affine fgv] [--rows ...] [--limit N]
        [--semantics real|float32] [--repeats 3] [--out RUNS]

DIR of --networks holds the four safetensors files and, for two of them, the list of images that the authors' code
certified. Prints one line per row and, for fgv, how many images differ from that list; --json FILE stores everything.
--repeats N: seconds are the median of N runs after a warm-up run, which compiles kernels.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from pathlib import Path

import torch
from safetensors.torch import load_file

import tiltproof
from tiltproof.models import ARCHITECTURES
from tiltproof.verify.options import BOUNDS, search_for

ROWS = {  # network: data set, architecture, transformation, CGT's splits, CGT's certified percentage
    "mnist-r30": ("mnist", "mnist_cnn", "R(30)", (240,), 94.2),
    "mnist-sc5-r5-c5-b001": ("mnist", "mnist_cnn", "Sc(5), R(5), C(5), B(0.01)", (20, 80, 2, 1), 92.6),
    "cifar10-r10": ("cifar10", "cifar10_cnn", "R(10)", (100_000,), 63.2),
    "cifar10-r2-sh2": ("cifar10", "cifar10_cnn", "R(2), Sh(2)", (400, 160), 51.0),
}


def load_row(name: str, networks: Path, data_root: str, device: str, limit: int | None) -> tuple:
    """(model, images, labels, transformation, splits, paper's percentage) of one row."""
    dataset, architecture, transform, splits, paper = ROWS[name]
    model = ARCHITECTURES[architecture]()
    model.load_state_dict(load_file(networks / f"{name}.safetensors"))
    images, labels = tiltproof.data.load(dataset, root=data_root)
    return model.eval().to(device), images[:limit].to(device), labels[:limit].to(device), transform, splits, paper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--method", nargs="+", default=["affine"], choices=["affine", "hull", "fgv"])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--limit", type=int)
    parser.add_argument(
        "--samples", type=int, default=24, help="of the attack before any proof, as of tiltproof certify"
    )
    parser.add_argument("--repeats", type=int, default=0, help="seconds are the median of N more runs")
    parser.add_argument("--semantics", default="real", choices=["real", "float32"])
    parser.add_argument(
        "--out", type=Path, help="keep each run as a folder DIR/NETWORK-METHOD that `tiltproof check` reads"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for name in arguments.rows:
        model, images, labels, transform, splits, paper = load_row(
            name, arguments.networks, arguments.data_root, arguments.device, arguments.limit
        )
        tiltproof.certify(model, images[:64], labels[:64], transform)  # warm-up: tracing, kernels
        for method in arguments.method:
            prove = functools.partial(
                tiltproof.certify,
                *(model, images, labels, transform),
                semantics=arguments.semantics,
                bounds=BOUNDS[method],
                search=search_for(splits if method == "fgv" else None),
                attack=tiltproof.Attack(samples=arguments.samples),
            )
            certificate = prove(run=arguments.out and tiltproof.RunFolder(arguments.out / f"{name}-{method}"))
            again = [prove().summary()["seconds"] for _ in range(arguments.repeats)]
            summary = certificate.summary() | {"network": name, "paper_percent": paper}
            if again:
                summary |= {"seconds": statistics.median(again), "seconds_of_repeats": again}
            certified = {k for k, verdict in enumerate(certificate.verdicts) if verdict == "certified"}
            listed = arguments.networks / f"{name}.fgv-certified.json"
            if method == "fgv" and listed.exists():
                theirs = {k for k in json.loads(listed.read_text()) if k < len(images)}
                summary |= {"only_here": sorted(certified - theirs), "only_authors": sorted(theirs - certified)}
            results.append(summary)
            print(
                f"{name:22s} {method:6s} correct {summary['correct']:5d}  certified {summary['certified']:5d}"
                f"  unfalsified {summary['unfalsified']:5d}  unknown {summary['unknown']:4d}"
                f"  boxes/image {summary['boxes_per_image']:8.1f}  seconds {summary['seconds']:7.2f}  paper {paper}"
                + (
                    f"  only here {summary['only_here']}, only authors {summary['only_authors']}"
                    if "only_here" in summary
                    else ""
                ),
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
