"""Rows of the board (docs/board.md) from run folders, and the runs of those rows that a CPU certifies in minutes.

    python benchmarks/board.py add RUN --network "my network" [--origin "who trained it"]
    python benchmarks/board.py runs --networks DIR --reference DIR --data-root DIR --out RUNS [--rows NAME ...] [--check N]
    python benchmarks/board.py list

add writes the row of a finished run folder into benchmarks/results/board.json: counts from its records, its digest, and what
`tiltproof check` found of it; a row of the same network, data and claim is replaced. Then `python scripts/docs_pages.py` writes
the page. runs certifies the networks of ENTRIES with one thread, checks each run (--check N: N random images of it) and adds it.
DIR of --networks holds files that others published, that of --reference the four networks of CGT's authors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltproof.runs.reader import FinishedRun, read_finished

BOARD = Path(__file__).parent / "results" / "board.json"
OVAL = "--mean 0.485,0.456,0.406 --std 0.225,0.225,0.225"
SRI = "--mean 0.4914,0.4822,0.4465 --std 0.2023,0.1994,0.2010"
CIFAR = "--mean 0.4914,0.4822,0.4465 --std 0.2470,0.2435,0.2616"


@dataclass(frozen=True)
class Entry:
    """Who trained a network, its file (NETWORKS/, REFERENCE/ or a bundled name), how it is read, data and range, and how many images."""

    origin: str
    model: str
    reading: str
    data: str
    transform: str
    limit: int = 100


ENTRIES = {
    **{name: Entry("bundled", name, "", f"{name.partition('-')[0]}-sample", "") for name in (
        "mnist-r30", "mnist-tu2-tv2", "mnist-sc5-r5-c5-b001", "mnist-sh2-r2-sc2-c2-b0001", "cifar10-r10", "cifar10-r2-sh2",
        "cifar10-sc1-r1-c1-b0001")},
    "CGT MNIST R(30)": Entry("CGT's authors", "REFERENCE/mnist-r30.safetensors", "--arch mnist_cnn", "mnist", "R(30)", 10_000),
    "CGT MNIST four parameters": Entry("CGT's authors", "REFERENCE/mnist-sc5-r5-c5-b001.safetensors", "--arch mnist_cnn", "mnist",
                                       "Sc(5), R(5), C(5), B(0.01)", 10_000),
    "CGT CIFAR-10 R(10)": Entry("CGT's authors", "REFERENCE/cifar10-r10.safetensors", "--arch cifar10_cnn", "cifar10", "R(10)", 10_000),
    "CGT CIFAR-10 R(2), Sh(2)": Entry("CGT's authors", "REFERENCE/cifar10-r2-sh2.safetensors", "--arch cifar10_cnn", "cifar10",
                                      "R(2), Sh(2)", 10_000),
    "DeepG MNIST": Entry("DeepG's authors", "NETWORKS/deepg-pgd-mnist_r30.safetensors", "--arch mnist_cnn", "mnist", "R(30)"),
    "DeepG CIFAR-10": Entry("DeepG's authors", "NETWORKS/deepg-pgd-cifar_r10.safetensors", "--arch cifar10_cnn", "cifar10", "R(10)"),
    "DeepG CIFAR-10, two parameters": Entry("DeepG's authors", "NETWORKS/deepg-pgd-cifar_r2_sh2.safetensors", "--arch cifar10_cnn",
                                            "cifar10", "R(2), Sh(2)"),
    "oval21 base": Entry("VNN-COMP 2021", "NETWORKS/v21_cifar_base_kw.onnx", OVAL, "cifar10", "R(1)"),
    "oval21 deep": Entry("VNN-COMP 2021", "NETWORKS/v21_cifar_deep_kw.onnx", OVAL, "cifar10", "R(1)"),
    "oval21 wide": Entry("VNN-COMP 2021", "NETWORKS/v21_cifar_wide_kw.onnx", OVAL, "cifar10", "R(1)"),
    "resnet_2b": Entry("VNN-COMP 2021", "NETWORKS/v21_resnet_2b.onnx", CIFAR, "cifar10", "R(1)"),
    "sri_resnet_a": Entry("VNN-COMP 2022", "NETWORKS/v22_sri_resnet_a.onnx", SRI, "cifar10", "R(1)"),
    "Marabou cifar10_medium": Entry("VNN-COMP 2021", "NETWORKS/v21_cifar10_medium.onnx", "", "cifar10", "R(1)"),
    "MNIST 6x200 sigmoid": Entry("VNN-COMP 2021", "NETWORKS/v21_ffnnSIGMOID__Point_6x200.onnx", "", "mnist", "R(1)"),
    "MNIST maxpool": Entry("VNN-COMP 2021", "NETWORKS/v21_Convnet_maxpool.onnx", "", "mnist", "R(1)"),
    "MNIST PyTorch example": Entry("ONNX Runtime", "NETWORKS/ort_cnn_mnist_pytorch.onnx", "--mean 0.1307 --std 0.3081", "mnist", "R(1)"),
    "ViT ibp_3_3_8": Entry("VNN-COMP 2023", "NETWORKS/vnn_ibp_3_3_8.onnx", SRI, "cifar10", "R(0.2)", 20),
    "MetaRoom 4cnn": Entry("VNN-COMP 2023", "NETWORKS/vnn_4cnn_ry_0_0_no_custom_OP.onnx", "--resize 32x56 --keep-own", "cifar10", "R(1)"),
    "MLPerf ResNet-8": Entry("MLPerf Tiny", "NETWORKS/mlperf_resnet8_cifar10.h5", "--scale 255", "cifar10", "R(1)", 20),
    "ResNet-20": Entry("pytorch_resnet_cifar10", "NETWORKS/resnet20-cifar10.safetensors", "--arch cifar10_resnet20", "cifar10",
                       "R(0.5)", 10),
}  # fmt: skip


def row(run: FinishedRun, network: str, origin: str) -> dict[str, Any]:
    """One line of the board, from a run's own records."""
    summary, checked = run.summary, run.checked
    where = run.environment
    if run.regression or run.radii or run.claim.get("noise"):
        raise SystemExit(f"{run.folder}: the board lists classifiers over a range of parameters")
    last = run.first + summary["images"] - 1
    return {
        "network": network,
        "origin": origin,
        "weights": run.claim["weights_sha256"],
        "data": f"{run.name('data')}, {run.first} to {last}",
        "transform": summary["transform"],
        "semantics": summary["semantics"],
        "keeps": summary.get("keep", ""),
        **{key: summary[key] for key in ("images", "correct", "certified", "unfalsified", "unknown")},
        "boxes_per_image": round(summary["boxes_per_image"], 1),
        "seconds": round(summary["seconds"], 1),
        "verifier": f"tiltproof {where['tiltproof']}, {summary['method']}",
        "source": where["source_sha256"],
        "device": where["device"],
        "date": run.began[:10],
        "run": run.digest,
        "checked": "" if checked is None or not checked.holds else f"{checked.images} of {summary['images']}",
    }


def add(folder: Path, network: str, origin: str) -> dict[str, Any]:
    """Put a run's row onto the board, in place of one about the same claim."""
    new = row(read_finished(folder), network, origin)
    rows = json.loads(BOARD.read_text(encoding="utf-8")) if BOARD.exists() else []
    same = ("network", "origin", "data", "transform", "semantics", "keeps")
    kept = [old for old in rows if any(old[key] != new[key] for key in same)]
    BOARD.write_text(json.dumps([*kept, new], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return new


def certify_and_add(name: str, entry: Entry, options: argparse.Namespace) -> None:
    """Certify, check and add one of ENTRIES, by the commands that anybody would type."""
    model = entry.model.replace("NETWORKS", str(options.networks)).replace("REFERENCE", str(options.reference))
    folder = options.out / name.lower().replace(" ", "-").replace(",", "").replace("(", "").replace(")", "")
    reading = [word for word in entry.reading.split() if word != "--keep-own"]
    about = f"--data {entry.data} --data-root {options.data_root} --threads 1 --device cpu --quiet".split()
    about += ["--model", model, *reading]
    claim = ["--limit", str(entry.limit), *(["--transform", entry.transform] if entry.transform else [])]
    keep = ["--keep-own"] if "--keep-own" in entry.reading else []
    tiltproof = [sys.executable, "-m", "tiltproof"]
    subprocess.run([*tiltproof, "certify", *about, *claim, *keep, "--out", str(folder), "--resume"], check=True)
    sample = ["--sample", str(options.check)] if options.check else []
    subprocess.run([*tiltproof, "check", str(folder), *about, *sample], check=True)
    print(line(add(folder, name, entry.origin)), flush=True)


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['network']:32} {found['transform']:28} {found['images']:6} images, {found['correct']} correct, {found['certified']} "
        f"certified, {found['unfalsified']} unfalsified, {found['seconds']} s; checked: {found['checked'] or 'no'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("run", type=Path)
    adding.add_argument("--network", required=True)
    adding.add_argument("--origin", default="")
    running = commands.add_parser("runs")
    for name in ("--networks", "--reference"):
        running.add_argument(name, type=Path, default=Path())
    running.add_argument("--data-root", default="")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--rows", nargs="+", default=list(ENTRIES), choices=list(ENTRIES), metavar="NAME")
    running.add_argument("--check", type=int, default=0, help="prove only N random images of each run again")
    commands.add_parser("list")
    options = parser.parse_args()
    if options.command == "add":
        print(line(add(options.run, options.network, options.origin)))
    elif options.command == "list":
        print("\n".join(map(line, json.loads(BOARD.read_text(encoding="utf-8")))))
    else:
        for name in options.rows:
            certify_and_add(name, ENTRIES[name], options)


if __name__ == "__main__":
    main()
