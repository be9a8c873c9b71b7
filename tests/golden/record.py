"""A record of the package's answers, bit for bit, so that code can be moved without changing any of them.

    python tests/golden/record.py            compare, and print the differences
    python tests/golden/record.py --write    write the record anew: only for an intended change, explained in the commit
    python tests/golden/record.py --add      record the jobs that have no rows yet, and leave all others alone
    python -m tests.golden.record --device cuda    compare verdicts alone: another device may search in another order

Verdicts, numbers of boxes, tilings and counterexamples are the same on every machine. Margins and ranges are sums of floats,
whose order depends on the processor: they are compared bit for bit on a processor like the recording one, elsewhere to a few
digits. Jobs that were added later may have been recorded on another processor than the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tiltproof
from tiltproof import Attack, BranchAndBound, certify, certify_range
from tiltproof.models import load as load_model
from tiltproof.training import train
from tiltproof.verify.options import BOUNDS

FILE = Path(__file__).with_name("record.json")
NETWORKS = {
    "mnist-r30": "mnist-sample",
    "mnist-tu2-tv2": "mnist-sample",
    "mnist-sc5-r5-c5-b001": "mnist-sample",
    "mnist-sh2-r2-sc2-c2-b0001": "mnist-sample",
    "cifar10-r10": "cifar10-sample",
    "cifar10-r2-sh2": "cifar10-sample",
    "cifar10-sc1-r1-c1-b0001": "cifar10-sample",
}
TRANSFORMS = {  # for digits, for CIFAR-10's images
    "rotation": ("R(8)", "R(1)"),
    "translation": ("Tu(0.3), Tv(0.3)", "Tu(0.05), Tv(0.05)"),
    "four parameters": ("Sc(1), R(1), C(1), B(0.01)", "Sc(0.2), R(0.2), C(0.2), B(0.001)"),
}
METHODS = ("affine", "hull", "fgv")
IMAGES, BOXES = 3, 24
DIGITS = 1e-4
"""Relative tolerance for numbers on another processor."""


def regression() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(784, 16), nn.Tanh(), nn.Linear(16, 2)
    )
    return body.eval()


def classes(name: str, text: str, method: str, device: str = "cpu", first: int = 0) -> list[dict[str, Any]]:
    images, labels = (each[first:] for each in tiltproof.data.load(NETWORKS[name]))
    certificate = certify(
        load_model(name).to(device),
        images[:IMAGES].to(device),
        labels[:IMAGES].to(device),
        text,
        bounds=BOUNDS[method],
        search=BranchAndBound(max_boxes=BOXES),
        attack=Attack(samples=6),
    )
    return [
        {
            "exact": [str(r.verdict), r.boxes, r.grid and list(r.grid), hashed(r.tree or ""), r.counterexample],
            "bits": [r.margin],
        }
        for r in certificate.results
    ]


def ranges(text: str, method: str, device: str = "cpu") -> list[dict[str, Any]]:
    images, _ = tiltproof.data.load("mnist-sample")
    certificate = certify_range(
        regression().to(device),
        images[:IMAGES].to(device),
        None,
        text,
        bounds=BOUNDS[method],
        search=BranchAndBound(max_boxes=BOXES),
        attack=Attack(samples=6),
    )
    return [
        {
            "exact": [r.complete, r.boxes, list(r.grid), hashed(r.tree)],
            "bits": [*r.lower, *r.upper, *r.inner_lower, *r.inner_upper],
        }
        for r in certificate.results
    ]


def hashed(tree: str) -> str:
    return tree if len(tree) <= 16 else hashlib.sha256(tree.encode()).hexdigest()[:16]


def jobs(device: str = "cpu") -> dict[str, Callable[[], list[dict[str, Any]]]]:
    made: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    for name, data in NETWORKS.items():
        for kind, texts in TRANSFORMS.items():
            for method in METHODS:
                text = texts[data.startswith("cifar10")]
                made[f"{name}, {kind}, {method}"] = lambda name=name, text=text, method=method: classes(
                    name, text, method, device
                )
    for kind, method in (("rotation", "affine"), ("four parameters", "hull")):
        made[f"regression, {kind}, {method}"] = lambda kind=kind, method=method: ranges(
            TRANSFORMS[kind][0], method, device
        )
    if device == "cpu":
        made["training"] = training
    made["verdicts, falsified"] = lambda: classes("mnist-r30", "R(80)", "affine", device)
    made["verdicts, misclassified"] = lambda: classes("cifar10-r10", "R(1)", "affine", device, 24)
    return made


def training() -> list[dict[str, Any]]:
    """Train the bundled recipe on 60 digits for two epochs."""
    images, labels = tiltproof.data.load("mnist-sample")
    settings = ["train.epochs=2", "train.batch_size=20"]
    recipe = tiltproof.training.read_recipe("mnist-r30").with_settings(settings)
    with tempfile.TemporaryDirectory() as folder:
        result = train(recipe, images=images[:60], labels=labels[:60], out=Path(folder) / "run", device="cpu")
    parameters = [p.detach().double() for p in result.model.parameters()]
    return [
        {
            "exact": [len(parameters)],
            "bits": [float(p.sum()) for p in parameters] + [float(p.norm()) for p in parameters],
        }
    ]


def processor() -> str:
    """Return what determines the order of sums: the instruction sets that libraries choose by, and the libraries."""
    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        flags += next((line for line in lines if line.startswith("vendor_id")), "")
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:12]}, torch {torch.__version__}"


def encoded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"exact": json.loads(json.dumps(row["exact"])), "bits": [float(x).hex() for x in row["bits"]]} for row in rows
    ]


def processor_of(record: dict[str, Any], name: str) -> str:
    """Return the processor that a job was recorded on."""
    return record.get("processors", {}).get(name, record["processor"])


def written(record: dict[str, Any]) -> str:
    """Return a record as text, with a line for each job."""
    text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rows)}" for name, rows in record["rows"].items())
    more = f'"processors": {json.dumps(record["processors"])}, ' if record.get("processors") else ""
    return f'{{"processor": {json.dumps(record["processor"])}, {more}"rows": {{\n{text}\n}}}}\n'


def differences(old: list[dict[str, Any]], new: list[dict[str, Any]], same_processor: bool) -> list[str]:
    """Return one line for each row that differs from the record."""
    found = []
    for number, (before, now) in enumerate(zip(old, new, strict=True)):
        if before["exact"] != now["exact"]:
            found.append(f"row {number}: {before['exact']} -> {now['exact']}")
        then, today = ([float.fromhex(x) for x in row["bits"]] for row in (before, now))
        if same_processor and before["bits"] != now["bits"]:
            found.append(f"row {number}: {then} -> {today}, to the last bit")
        elif not all(
            math.isclose(a, b, rel_tol=DIGITS, abs_tol=DIGITS) or a == b for a, b in zip(then, today, strict=True)
        ):
            found.append(f"row {number}: {then} -> {today}")
    return found


def on_another_device(device: str) -> int:
    """Compare verdicts. A budget of boxes may run out on one device alone; a contradiction may not be."""
    recorded, undecided, wrong = json.loads(FILE.read_text(encoding="utf-8"))["rows"], 0, 0
    made = jobs(device)
    for name, job in made.items():
        for number, (before, now) in enumerate(zip(recorded[name], encoded(job()), strict=True)):
            then, today = before["exact"][0], now["exact"][0]
            if then != today:
                contradicts = isinstance(then, str) and "unknown" not in (then, today)
                wrong, undecided = wrong + contradicts, undecided + (not contradicts)
                print(f"{name}, row {number}: {then} -> {today}")
    print(f"{len(made)} jobs on {device}: {wrong} contradictions, {undecided} verdicts undecided on one device alone")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make the record anew")
    parser.add_argument("--add", action="store_true", help="record the jobs that have no rows yet")
    parser.add_argument("--device", default="cpu", help="on any but cpu, verdicts alone are compared")
    options = parser.parse_args()
    if options.device != "cpu":
        if options.write or options.add:
            parser.error("the record is made on a CPU")
        return on_another_device(options.device)
    torch.set_num_threads(1)
    if options.write:
        record = {"processor": processor(), "rows": {name: encoded(job()) for name, job in jobs().items()}}
        FILE.write_text(written(record), encoding="utf-8")
        print(f"{len(record['rows'])} jobs, written")
        return 0
    record, wrong, count = json.loads(FILE.read_text(encoding="utf-8")), 0, 0
    if options.add:
        for name, job in jobs().items():
            if name not in record["rows"]:
                record["rows"][name], count = encoded(job()), count + 1
                if processor() != record["processor"]:
                    record.setdefault("processors", {})[name] = processor()
        FILE.write_text(written(record), encoding="utf-8")
        print(f"{count} jobs added")
        return 0
    for name, job in jobs().items():
        found = differences(record["rows"][name], encoded(job()), processor_of(record, name) == processor())
        wrong, count = wrong + len(found), count + 1
        for line in found:
            print(f"{name}: {line}")
    print(f"{count} jobs, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
