"""Speed of the demo's job: `certify` at an earlier commit over `certify` here, as a ratio within one run.

    python benchmarks/demo_ratio.py [--before COMMIT] [--after COMMIT] [--rounds 5] [--networks mnist-r30 ...] [--images N]
        [--device cpu] [--threads N] [--cpu-seconds] [--json FILE]

The job certifies every bundled image with `certify(model, images, labels, transform)`, as `tiltproof demo` does for
mnist-r30. Both sides use today's bundled weights and images (networks were retrained in between) and the same
interpreter. Each time is that of a fresh process, after a warm-up on a few images. Rounds alternate which side runs
first. The ratio is that of the two times of a round, so that a slow phase of the machine affects both; the median and
the range are printed. If the verdicts of the two sides differ, the images are named and the exit code is 1. --after
also takes a commit; without it, the working tree is measured.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from safetensors.torch import save_file

import tiltproof
from tiltproof.models import load as load_model
from tiltproof.models import models

ROOT = Path(__file__).parents[1]
CARDS = {card.name: card for card in models()}
JOB = """
import json, sys, time
import torch
from safetensors.torch import load_file
import tiltproof
try:
    from tiltproof.models import ARCHITECTURES
except ImportError:  # before 0.2.0 the package was called zoo
    from tiltproof.zoo import ARCHITECTURES

task = json.loads(sys.argv[1])
if task["threads"]:
    torch.set_num_threads(task["threads"])
model = ARCHITECTURES[task["architecture"]]()
model.load_state_dict(load_file(task["weights"]))
model = model.eval().to(task["device"])
images, labels = (load_file(task["data"])[name].to(task["device"]) for name in ("images", "labels"))

def certify(count=None):
    certificate = tiltproof.certify(model, images[:count], labels[:count], task["transform"])
    if images.is_cuda:
        torch.cuda.synchronize()
    return certificate

certify(8)
began = time.perf_counter(), time.process_time()
certificate = certify()
wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
verdicts = [str(verdict) for verdict in certificate.verdicts]
found = {"wall": wall, "cpu": cpu, "verdicts": verdicts, "boxes": sum(certificate.boxes), "file": tiltproof.__file__}
print(json.dumps(found))
"""
"""Runs at both commits: only names that all of them have."""


class Failed(Exception):
    """Said in one line, with exit code 2."""


def tree(commit: str | None, folder: Path) -> Path:
    """The ``src`` of a commit, unpacked into ``folder``; for the working tree, its own."""
    if commit is None:
        return ROOT / "src"
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise Failed("git is not installed; it is needed to fetch an earlier commit") from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise Failed(f"git cannot read commit {commit!r}: {why[-1] if why else 'no reason given'}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def once(source: Path, task: dict) -> dict:
    """One fresh process with the package of ``source``."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, "-P", "-c", JOB, json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()
        raise Failed(f"the job does not run with {source}: {last[-1] if last else f'exit code {done.returncode}'}")
    found = json.loads(done.stdout.splitlines()[-1])
    if Path(found["file"]).parents[1].resolve() != source.resolve():
        raise Failed(f"{found['file']} was imported instead of {source}")
    return found


def measured(name: str, sides: dict[str, Path], folder: Path, arguments: argparse.Namespace) -> dict:
    """All rounds of one network."""
    card = CARDS[name]
    data, transform = arguments.data or f"{card.dataset}-sample", arguments.transform or card.transform
    images, labels = tiltproof.data.load(data)
    images, labels = images[: arguments.images], labels[: arguments.images]
    weights, inputs = folder / f"{name}.safetensors", folder / f"{name}-data.safetensors"
    state = {key: value.contiguous() for key, value in load_model(name).state_dict().items()}
    save_file(state, weights)
    save_file({"images": images.contiguous(), "labels": labels.contiguous()}, inputs)
    task = {"architecture": card.architecture, "weights": str(weights), "data": str(inputs)}
    task |= {"transform": transform, "device": arguments.device, "threads": arguments.threads}
    clock = "cpu" if arguments.cpu_seconds else "wall"
    runs: dict[str, list[dict]] = {side: [] for side in sides}
    for number in range(arguments.rounds):
        for side in list(sides) if number % 2 == 0 else reversed(sides):
            runs[side].append(once(sides[side], task))
            print(f"{name} {side} {runs[side][-1][clock]:.3g} s", file=sys.stderr, flush=True)
    seconds = {side: [each[clock] for each in runs[side]] for side in sides}
    first, *rest = [each["verdicts"] for side in sides for each in runs[side]]
    return {
        "network": name,
        "transform": transform,
        "data": data,
        "images": len(images),
        "clock": clock,
        "seconds": seconds,
        "boxes": {side: runs[side][0]["boxes"] for side in sides},
        "ratios": [before / after for before, after in zip(seconds["before"], seconds["after"], strict=True)],
        "certified": first.count("certified"),
        "differing": [k for k, verdict in enumerate(first) if any(other[k] != verdict for other in rest)],
    }


def show(row: dict) -> None:
    before, after = (statistics.median(row["seconds"][side]) for side in ("before", "after"))
    ratios, boxes = row["ratios"], row["boxes"]
    print(
        f"{row['network']}, {row['transform']}, {row['images']} images of {row['data']}, {row['certified']} certified: "
        f"before {before:.3g} s, after {after:.3g} s, ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"boxes {boxes['before']} and {boxes['after']}"
    )
    if row["differing"]:
        print(
            f"  VERDICTS DIFFER on images {', '.join(map(str, row['differing']))}: the times are of different answers"
        )
    else:
        print("  the same verdicts in all runs of both")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="46fa133", help="a commit (default: %(default)s)")
    parser.add_argument("--after", help="a commit (default: the working tree)")
    parser.add_argument("--networks", nargs="+", default=["mnist-r30"], choices=list(CARDS))
    parser.add_argument("--transform", help="default: the network's own")
    parser.add_argument("--data", help="a bundled sample or a folder with labels.csv (default: the network's sample)")
    parser.add_argument("--images", type=int, help="only the first N (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of the CPU; default: torch's")
    parser.add_argument(
        "--cpu-seconds", action="store_true", help="of the processes, not of the clock; with one thread"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for name in ("images", "rounds", "threads"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if arguments.cpu_seconds and (arguments.device != "cpu" or arguments.threads != 1):
        parser.error("--cpu-seconds needs --device cpu --threads 1: seconds of several threads do not add up to a time")
    return arguments


def main() -> int:
    arguments, rows = parsed(), []
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            sides = {side: tree(getattr(arguments, side), folder / side) for side in ("before", "after")}
            for network in arguments.networks:
                rows.append(measured(network, sides, folder, arguments))
                show(rows[-1])
    except Failed as error:
        print(f"demo_ratio: {error}", file=sys.stderr)
        return 2
    if arguments.json is not None:
        found = {"before": arguments.before, "after": arguments.after, "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["differing"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
