"""What only a GPU can show, in one command of less than ten minutes: `make gpu`.

    python benchmarks/gpu.py [--networks DIR] [--data-root DIR] [--parts NAME ...] [--json FILE]

Runs each part in a process of its own, with a limit on its time: the kernels' self-checks at each image size and the golden record on cuda,
all at the same time because most of theirs is compilation; then, one after the other because they are timed, the paper authors' networks,
the speed of pixel bounds, large images within 2 GB, and the distance to the device's floor. Prints one table; --json keeps it, with what
each part measured. The exit status is 1 if a part failed, and 0 on a machine without a GPU, where there is nothing to run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError:  # a bare checkout: `make gpu` is to say so, not to fail
    torch = None  # type: ignore[assignment]

HERE = Path(__file__).parent
ROOT = HERE.parent

SIZES = (28, 32, 224, 272)
"""Sides of the images of the self-checks; the last has more than 2^16 pixels, for which a small image stands."""

NETWORKS = {
    28: ("mnist-r30", "mnist-sample", "R(10)"),
    32: ("cifar10-r2-sh2", "cifar10-sample", "R(1), Sh(1)"),
}
"""Sizes at which a bundled network is certified too, which uses the kernels of `network`."""

TRANSFORMS = ("R(10)", "R(2), Sh(2)", "Sc(5), R(5), C(5), B(0.01)")


def self_checks(size: int) -> dict[str, Any]:
    """Use every kernel once on images of this size: the warnings, and the self-checks made and failed of each kernel."""
    import tiltproof
    from tiltproof import device as registry
    from tiltproof.pixels.api import pair_bounds
    from tiltproof.transforms.base import parse

    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        images = torch.rand(2, 3 if size > 28 else 1, size, size, dtype=torch.float64, generator=generator).to(device)
        rows_of = torch.tensor([0, 1], device=device)
        for text in TRANSFORMS:
            transform = parse(text)
            low, high = (
                torch.tensor([end] * 2, dtype=torch.float64, device=device) for end in (transform.low, transform.high)
            )
            for dtype in (torch.float32, torch.float64):
                pair_bounds(images, rows_of, transform, "affine", low * 0.01, high * 0.01, dtype=dtype)
        box = torch.full((2, 1), 0.1, dtype=torch.float64, device=device)
        pair_bounds(images, rows_of, parse(TRANSFORMS[0]), "affine", -box, box, quadratic=True)
        if size in NETWORKS:
            name, data, text = NETWORKS[size]
            images, labels = tiltproof.data.load(data)
            tiltproof.certify(
                tiltproof.models.load(name).to(device), images[:8].to(device), labels[:8].to(device), text
            )
    kernels = {name: registry.find(name) for name in (KERNELS if size in NETWORKS else PIXEL_KERNELS)}
    missing = [
        name
        for name, kernel in kernels.items()
        if kernel is None or kernel.disabled or not any(kernel.checked.values())
    ]
    return {
        "warnings": [
            str(each.message) for each in caught if "differ" in str(each.message) or "Triton" in str(each.message)
        ],
        "checks": {name: list(kernel.checked.values()) for name, kernel in kernels.items() if kernel is not None},
        "not used": [name for name in missing if name != "backward:relaxation_shares"],  # scores have no self-check
    }


PIXEL_KERNELS = ("pixels:spatial", "photometric:values")
KERNELS = (
    *PIXEL_KERNELS,
    "relu:relu",
    "im2col:im2col",
    "linear_epilogue:shift_and_widen",
    "backward:relu_backward",
    "backward:concretized",
    "backward:relaxation_shares",
)


@dataclass
class Part:
    """A program, its limit in seconds, and a line that sums up its JSON file and its output."""

    command: list[str]
    seconds: int
    says: Callable[[Any, list[str]], str]
    needs: tuple[Path, ...] = ()
    timed: bool = True
    """Runs while nothing else does."""


def parts(networks: Path, data_root: Path) -> dict[str, Part]:
    """The parts by name, in order."""
    return {
        **{
            f"self-checks {size}": Part(
                ["benchmarks/gpu.py", "--self-checks", str(size)], 240, _of_self_checks, timed=False
            )
            for size in SIZES
        },
        "golden record": Part(
            ["-m", "tests.golden.record", "--device", "cuda"], 240, lambda _, lines: lines[-1], timed=False
        ),
        "reference networks": Part(
            ["benchmarks/reference_networks.py", "--networks", str(networks), "--data-root", str(data_root), "--repeats", "5"],
            180,
            lambda found, _: "; ".join(f"{row['network']} {row['certified']} in {row['seconds']:.2f} s" for row in found),
            (networks, data_root),
        ),
        "pixel speed": Part(["benchmarks/pixel_speed.py", "--repeat", "10"], 90, _of_pixel_speed),
        "scale": Part(
            ["benchmarks/scale.py", "--device", "cuda", "--memory", "2GB", "--no-curves"], 90,
            lambda found, _: _of_scale(found["end_to_end"]),
        ),
        "floor": Part(
            ["benchmarks/floor.py", "--device", "cuda", "--repeats", "3"], 90,
            lambda found, _: "; ".join(
                f"{row['row']} {statistics.median(row['ratios']):.1f} x floor" for row in found["rows"] if row["ratios"]
            ),
        ),
    }  # fmt: skip


def _of_self_checks(found: Any, _: list[str]) -> str:
    count = sum(map(len, found["checks"].values()))
    return f"{count} self-checks of {len(found['checks'])} kernels, {len(found['warnings'])} warnings"


def _of_scale(run: dict[str, Any]) -> str:
    return (
        f"{run['certified']} of {run['images']} images of {run['size']} x {run['size']} certified in {run['seconds']:.1f} s, "
        f"peak {run['peak'] / 2**30:.2f} GiB"
    )


def _of_pixel_speed(found: Any, _: list[str]) -> str:
    shares = [row["traffic"] / row["device"] / row["copy"] for row in found if "device" in row]
    faster = [row["eager"] / row["fused"] for row in found if "fused" in row]
    return f"{min(shares):.0%} to {max(shares):.0%} of a copy; {min(faster):.0f} to {max(faster):.0f} times eager torch"


def run(name: str, part: Part, folder: Path) -> dict[str, Any]:
    """One part in a process of its own: how it ended, its seconds and what it found."""
    lacking = [str(path) for path in part.needs if not path.exists()]
    if lacking:
        return {"part": name, "outcome": "no data", "seconds": 0.0, "says": f"there is no {' and no '.join(lacking)}"}
    file = folder / f"{name.replace(' ', '-')}.json"
    command = [sys.executable, *part.command]
    if name != "golden record":
        command += ["--json", str(file)]
    paths = [str(ROOT / "src"), str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=part.seconds, check=False
        )
        outcome, output, errors = ("ok" if done.returncode == 0 else "failed"), done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        outcome, errors = "too slow", f"stopped after {part.seconds} s"
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
    row = {"part": name, "outcome": outcome, "seconds": round(time.perf_counter() - began, 1), "output": output}
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    try:
        says = part.says(found, output.splitlines() or ["it printed nothing"]) if outcome == "ok" else ""
    except (KeyError, TypeError, ValueError) as error:
        says = f"its results could not be summed up: {error!r}"
    last = errors.strip().splitlines()[-1:] or output.strip().splitlines()[-1:]
    return row | {"says": says or " ".join(last), "errors": errors[-4000:] if outcome != "ok" else "", "found": found}


def each_row(chosen: dict[str, Part], folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of all parts: first those that are not timed, side by side, then the others one by one."""
    with ThreadPoolExecutor() as pool:
        started = [pool.submit(run, name, part, folder) for name, part in chosen.items() if not part.timed]
        for each in started:
            yield each.result()
    for name, part in chosen.items():
        if part.timed:
            yield run(name, part, folder)


def main() -> int:
    """Run the parts and print the table; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, default=ROOT.parent / "shared" / "reference-networks")
    parser.add_argument("--data-root", type=Path, default=ROOT.parent / "data")
    parser.add_argument("--parts", nargs="+", help="names of parts; default: all")
    parser.add_argument("--self-checks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("There is no GPU on this machine, so there is nothing to run.")
        return 0
    if options.self_checks is not None:
        found = self_checks(options.self_checks)
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
        for line in (*found["warnings"], *(f"kernel {name} was not used" for name in found["not used"])):
            print(line)
        return 1 if found["warnings"] or found["not used"] else 0
    available = parts(options.networks.resolve(), options.data_root.resolve())
    unknown = set(options.parts or []) - set(available)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}"
    print(machine)
    print(f"{'part':20s}{'outcome':10s}{'seconds':>8s}  result")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in each_row({name: available[name] for name in options.parts or available}, Path(folder)):
            rows.append(row)
            print(f"{row['part']:20s}{row['outcome']:10s}{row['seconds']:8.1f}  {row['says']}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps({"machine": machine, "parts": rows}, indent=1), encoding="utf-8")
    return 1 if any(row["outcome"] in ("failed", "too slow") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
