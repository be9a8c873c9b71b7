"""What bounds cost at the least, counted from the network, and what a device can do at most, measured; shared by `floor.py`.

Not a program. Formulae, for a pair of an image and a box; d: symbols, so a form has d + 2 planes (center, d
slopes, radius); b: bytes of a number in the dtype of the bounds (float32: 4, float64: 8); n_out, n_in: entries of an
operation's output and inputs:

    pixels     bytes  = b_image n_pixels + (d + 2) b n_pixels                      the image read, its form written, nothing between
    forward    flop   = sum over convolutions and linear layers of 2 n_out k (d + 2)     k: products of an output
               bytes  = sum over operations of (d + 2) b (n_in + n_out)              each form written once, and read once by each reader
    backward   flop   = sum over convolutions and linear layers, without a last linear one, of 2 n_out k         for each single margin
               bytes  = sum over the same operations of b (n_in + n_out), (d + 2) b n_in more for each one that is neither a product
                        nor a mere sum, mean or move (its relaxation reads the form), and (d + 3) b n_pixels at the pixels;
                        an operation counts for the margins that were pulled through it

d is what each operation's form really carries: float64 bounds begin with more symbols and drop them. Arithmetic that is
no matrix product costs nothing here, nor do reshapes, constant scales (they fold into a product), weights (read once a
batch), coordinates, error terms; margins take the place of the last layer, which counts once. Each stage's floor is the
larger of flop / matrix ceiling and bytes / copy ceiling, as if all else were hidden behind it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tiltproof.network import Network, Operation, proof_arithmetic

FREE = {"scale", "reshape", "identity"}
UNRELAXED = {"add", "sub", "concat", "pad", "slice", "permute", "mean", "avg_pool2d", "adaptive_avg_pool2d"}
STAGES = ("pixels", "forward", "backward")
BYTES = {"float32": 4, "float64": 8}


@dataclass
class Tally:
    """Pairs bounded, margins taken backward, and by (stage, dtype) what they cost at the least."""

    pairs: Counter[str] = field(default_factory=Counter)
    margins: int = 0
    flop: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, stage: str, dtype: str, flop: float, moved: float) -> None:
        self.flop[stage, dtype] += flop
        self.bytes[stage, dtype] += moved

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.pairs + other.pairs,
            self.margins + other.margins,
            self.flop + other.flop,
            self.bytes + other.bytes,
        )


class Counts:
    """Counts one network's work; ``network`` is what `read_network` gives, so that later folding and fusing does not move the floor."""

    def __init__(self, network: Network, image_bytes: int) -> None:
        live = network.network_as()
        self.operations, self.input, self.image_bytes = live.operations, live.input, image_bytes
        self.entries = {live.input: math.prod(live.shape)} | {
            each.name: math.prod(each.shape) for each in live.operations
        }
        last = live.operations[-1] if live.operations else None
        linear_end = last is not None and last.name == live.output and last.kind == "linear"
        self.backwards = live.operations[:-1] if linear_end else live.operations

    @property
    def pixels(self) -> int:
        return self.entries[self.input]

    def add_pixels(self, tally: Tally, pairs: int, symbols: int, dtype: str) -> None:
        moved = self.pixels * (self.image_bytes + (symbols + 2) * BYTES[dtype])
        tally.add("pixels", dtype, 0, pairs * moved)

    def add_forward(self, tally: Tally, pairs: int, symbols: dict[str, int], dtype: str) -> None:
        """``symbols``: of the forms, by name; an operation without one has those of its first input."""
        symbols, flop, moved = dict(symbols), 0, 0
        for operation in self.operations:
            planes = [symbols[name] + 2 for name in operation.inputs]
            own = symbols.setdefault(operation.name, max(planes) - 2) + 2
            flop += 2 * products(operation) * max(planes)
            if operation.kind not in FREE:
                moved += own * self.entries[operation.name]
                moved += sum(each * self.entries[name] for each, name in zip(planes, operation.inputs, strict=True))
        tally.add("forward", dtype, pairs * flop, pairs * moved * BYTES[dtype])

    def add_backward(
        self, tally: Tally, margins: int, symbols: dict[str, int], dtype: str, reached: dict[str, int]
    ) -> None:
        """``reached``: how many of the margins were pulled through an operation; the others were proved before."""
        symbols, flop, moved, rows = dict(symbols), 0, 0, margins
        for operation in self.operations:  # forward, because symbols are handed on
            symbols.setdefault(operation.name, max(symbols[name] for name in operation.inputs))
        for operation in reversed(self.backwards):
            rows = reached.get(operation.name, rows)
            flop += rows * 2 * products(operation)
            if operation.kind in FREE:
                continue
            before = sum(self.entries[name] for name in operation.inputs)
            moved += rows * (before + self.entries[operation.name])
            if not products(operation) and operation.kind not in UNRELAXED:
                moved += rows * sum((symbols[name] + 2) * self.entries[name] for name in operation.inputs)
        moved += rows * (symbols[self.input] + 3) * self.pixels
        tally.margins += margins
        tally.add("backward", dtype, flop, moved * BYTES[dtype])


def products(operation: Operation) -> int:
    """Multiplications of one evaluation: outputs times the length of their sums; none of what is no matrix product."""
    weight = operation.settings.get("weight")
    return math.prod(operation.shape) * weight[0].numel() if isinstance(weight, Tensor) and weight.ndim > 1 else 0


def matrix_seconds(tally: Tally, stage: str, ceilings: dict[str, float]) -> float:
    return sum(tally.flop[stage, dtype] / ceilings[dtype] for dtype in BYTES)


def copy_seconds(tally: Tally, stage: str, ceilings: dict[str, float]) -> float:
    return sum(tally.bytes[stage, dtype] / ceilings["copy"] for dtype in BYTES)


def floor_seconds(tally: Tally, ceilings: dict[str, float]) -> dict[str, float]:
    """By stage."""
    return {s: max(matrix_seconds(tally, s, ceilings), copy_seconds(tally, s, ceilings)) for s in STAGES}


def best_seconds(
    work: Callable[[], object], device: torch.device, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The fastest of some calls, after one that does not count; a GPU's events have their own clock."""
    work()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize(device)
            times.append(begin.elapsed_time(end) / 1000)
        else:
            began = clock()
            work()
            times.append(clock() - began)
    return min(times)


def measured_ceilings(
    device: torch.device, quick: bool, clock: Callable[[], float] = time.perf_counter, repeats: int = 5
) -> dict[str, float]:
    """flop/s of a large product in float32 (no TF32) and float64, and bytes/s of a large copy, reading and writing counted. On a CPU torch
    multiplies by MKL and convolves by oneDNN: the faster of both in float32."""
    cuda = device.type == "cuda"
    sizes = {"float32": 8192 if cuda else 2048, "float64": 4096 if cuda else 1536}
    ceilings = {}
    with proof_arithmetic(device), torch.no_grad():
        for name, size in sizes.items():
            size = 256 if quick else size
            left, right, out = (torch.rand(size, size, dtype=getattr(torch, name), device=device) for _ in range(3))
            works = [lambda a=left, b=right, c=out: torch.mm(a, b, out=c)]
            if not cuda and name == "float32" and torch.backends.mkldnn.is_available():
                given = left.to_mkldnn(), right.to_mkldnn()
                works.append(lambda given=given: torch.ops.aten.mkldnn_linear(*given))
            ceilings[name] = 2 * size**3 / min(best_seconds(work, device, repeats, clock) for work in works)
        source = torch.rand(2**18 if quick else 2**28 if cuda else 2**25, device=device)
        target = torch.empty_like(source)
        once = best_seconds(lambda: target.copy_(source), device, repeats, clock)
        ceilings["copy"] = 2 * source.nbytes / once
    return ceilings


def highest(several: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of ceilings measured at different times, the best of each."""
    return {name: max(each[name] for each in several) for name in several[0]}
