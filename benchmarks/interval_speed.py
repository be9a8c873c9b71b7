"""Seconds for interval bounds of rotated images: CGT's two tables against Semantify-NN, with our own times.

    python benchmarks/interval_speed.py [--rows mnist cifar10 tinyimagenet] [--device cuda] [--threads N] [--repeats 5] [--quick]
        [--json FILE]

First table: one training batch at once on --device (256 images of MNIST, 128 of the others), and its bounds through
CGT's network. Second: the same images one at a time on the CPU. The box is CGT's training box around half of the
largest angle.

``sequential`` is `sequential_rotation.py`, pixel after pixel on one core, in Python and in C. It is not Semantify-NN,
whose published times are printed next to it; speedups are over the Python loop and, in brackets, over the C loop, which
excludes the cost of the language. ``fgv`` is CGT's Algorithm 1 in this package, ``affine`` our default, which keeps the
angle as a symbol, with a distinct box per image; in ``affine shared`` one box serves the batch, as in the other
columns. All of ours account for rounding. Pixels are random, because times do not depend on them. Times are medians of
--repeats, in seconds on this device; single images are timed on --images of them and scaled to the batch. Only ratios
within one run can be compared with other machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from ablation import device_name
from sequential_rotation import Compiled, rotated

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.models import ARCHITECTURES
from tiltproof.network import proof_arithmetic, read_network, run
from tiltproof.pixels.api import bound_pixels, pair_bounds
from tiltproof.transforms import parse


class Row(NamedTuple):
    """A batch, the half width of CGT's training box in degrees, and CGT's seconds."""

    architecture: str
    shape: tuple[int, int, int]
    batch: int
    transform: str
    nu: float
    semantify: float
    fgv: float
    propagate: float
    algorithm1_cpu: float


ROWS = {
    "mnist": Row("mnist_cnn", (1, 28, 28), 256, "R(30)", 0.25, 33.10, 0.0029, 0.0037, 0.25),
    "cifar10": Row("cifar10_cnn", (3, 32, 32), 128, "R(10)", 0.0005, 22.81, 0.0026, 0.0043, 0.11),
    "tinyimagenet": Row("tinyimagenet_cnn7", (3, 56, 56), 128, "R(5)", 0.0025, 62.83, 0.0030, 0.0179, 0.28),
}
PAPER_SPEEDUPS = {"mnist": (11250, 4974, 135), "cifar10": (8645, 3293, 200), "tinyimagenet": (20610, 3003, 221)}
"""Of the batch, of the batch with its way through the network, and one at a time on the CPU."""
SEQUENTIAL = ("sequential", "sequential C")
OURS = ("fgv", "affine", "affine shared")


def seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """The median of some calls, after one that does not count."""

    def once() -> float:
        began = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - began

    once()
    return statistics.median(once() for _ in range(repeats))


def shared(images: torch.Tensor, row: Row, low: float, high: float) -> AffineForm:
    """Affine bounds if all images share the box: as channels of one image they also share the coordinates."""
    image = images.double().reshape(1, -1, *images.shape[-2:])
    ends = [torch.tensor([[end]], dtype=torch.float64, device=images.device) for end in (low, high)]
    form = pair_bounds(
        image, torch.zeros(1, dtype=torch.long, device=images.device), parse(row.transform), "affine", *ends
    )
    return AffineForm(form.stack.view(-1, *images.shape), form.radius.view(images.shape), form.unit).to(images.dtype)


def bounds(name: str, images: torch.Tensor, row: Row, low: float, high: float) -> AffineForm:
    if name == "affine shared":
        return shared(images, row, low, high)
    return bound_pixels(images, row.transform, name, [low], [high])


@torch.no_grad()
def measured(name: str, arguments: argparse.Namespace) -> dict:
    """One row of both tables, in seconds for the whole batch."""
    row, repeats = ROWS[name], arguments.repeats
    images = torch.rand(row.batch, *row.shape, generator=torch.Generator().manual_seed(0))
    middle = parse(row.transform).high[0] / 2
    low, high = middle - row.nu, middle + row.nu
    compiled = Compiled.make()
    few = images[: arguments.images]
    batch: dict[str, float | None] = {
        "sequential": seconds(lambda: rotated(images[0], low, high), "cpu", len(few)) * row.batch,
        "sequential C": None
        if compiled is None
        else seconds(lambda: [compiled(one, low, high) for one in images], "cpu", repeats),
    }
    single = dict(batch)
    place = images.to(arguments.device)
    network = read_network(ARCHITECTURES[row.architecture]().eval().to(place.device), row.shape, place[:2])
    propagate = {}
    with proof_arithmetic(place.device):
        live = network.network_as(torch.float32)
        for method in OURS:
            batch[method] = seconds(lambda m=method: bounds(m, place, row, low, high), arguments.device, repeats)
            form = bounds(method, place, row, low, high)
            propagate[method] = seconds(lambda f=form: run(live, f)[live.output], arguments.device, repeats)
            if method != "affine shared":  # the same for one image
                one_by_one = [
                    seconds(lambda m=method, p=one[None]: bounds(m, p, row, low, high), "cpu", 1) for one in few
                ]
                single[method] = statistics.median(one_by_one) * row.batch
    return {"row": name, "images": row.batch, "batch": batch, "propagate": propagate, "single": single}


def ratio(times: dict, method: str, extra: float = 0.0) -> str:
    """Over the Python loop, and in brackets over the C loop; ``extra`` is added to both sides."""
    over = [
        "" if times[each] is None else f"{(times[each] + extra) / (times[method] + extra):.3g}" for each in SEQUENTIAL
    ]
    return over[0] + (f" ({over[1]})" if over[1] else "")


def line(cells: list[object], first: int = 16) -> str:
    texts = ["" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return f"{texts[0]:<{first}}" + "".join(f"{text:>16}" for text in texts[1:])


def show(rows: list[dict], arguments: argparse.Namespace) -> None:
    print(f"\nOne batch at once: ours on {device_name(arguments.device)}; seconds, speedups over sequential (over C)")
    print(line(["", "Semantify-NN", "sequential", "sequential C", "bounds", "speedup", "propagation", "end to end"]))
    for row in rows:
        paper, speedups = ROWS[row["row"]], PAPER_SPEEDUPS[row["row"]]
        print(f"{row['row']}, {row['images']} images")
        cells = [
            "  paper",
            paper.semantify,
            "",
            "",
            paper.fgv,
            f"{speedups[0]}",
            paper.propagate,
            f"{speedups[1]}",
        ]
        print(line(cells))
        for method in OURS:
            through = row["propagate"][method]
            times = [row["batch"][each] for each in (*SEQUENTIAL, method)]
            speedup, end = ratio(row["batch"], method), ratio(row["batch"], method, through)
            print(line([f"  {method}", "", *times, speedup, through, end]))
    print(f"\nOne image at a time: all on the CPU, {torch.get_num_threads()} threads; seconds for the whole batch")
    print(line(["", "Semantify-NN", "sequential", "sequential C", "bounds", "speedup"]))
    for row in rows:
        paper, speedups = ROWS[row["row"]], PAPER_SPEEDUPS[row["row"]]
        print(f"{row['row']}, {row['images']} images")
        print(line(["  paper", paper.semantify, "", "", paper.algorithm1_cpu, f"{speedups[2]}"]))
        for method in ("fgv", "affine"):
            times = [row["single"][each] for each in (*SEQUENTIAL, method)]
            print(line([f"  {method}", "", *times, ratio(row["single"], method)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="of torch on the CPU (default: torch's choice)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=16, help="timed one at a time; the rest is extrapolated")
    parser.add_argument("--quick", action="store_true", help="one repetition, two images one at a time")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.images = 1, 2
        print("quick run: single timings, which say little")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    rows = [measured(name, arguments) for name in arguments.rows]
    show(rows, arguments)
    if arguments.json is not None:
        about = {"device": device_name(arguments.device), "threads": torch.get_num_threads(), "quick": arguments.quick}
        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
