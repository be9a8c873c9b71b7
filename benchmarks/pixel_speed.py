"""Pixel bounds of the affine method: eager torch against the fused kernels, and against the memory bandwidth.

    python benchmarks/pixel_speed.py [--device cuda] [--gigabytes 1] [--repeat 20] [--boxes own shared] [--json FILE]
    python benchmarks/pixel_speed.py --block 32 --warps 1 --registers 64 --shared 16   # how the kernel is launched

For each image size and transformation, over as many pairs as fill --gigabytes of results: milliseconds of one call of
`pair_bounds`, including all host work, and of the kernels alone; the least traffic (each pair's image read once, in the
result's dtype, as a copy is made once for all calls, and its form written once) per second of each, and its fraction of
the bandwidth of a plain copy, measured here. Results in float32, with which a prover starts, and in float64. Images are
random. A CPU has only the eager figures.

``own``: every pair has a distinct box, as late in a search. ``shared``: all images have the same 16 boxes, one image
after the other, as at the start of a search; source positions are then computed once for several images. ``ps``:
picoseconds of the device per pixel and channel.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path

import torch

from tiltproof import device as registry
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.pixels.api import pair_bounds
from tiltproof.transforms.base import parse

IMAGES = {"mnist": (1, 28, 28), "cifar": (3, 32, 32), "imagenet": (3, 224, 224)}
BOXES = {"R(10)": (0.01, 0.2), "R(2), Sh(2)": (0.01, 0.05)}
"""Half widths of the boxes, in degrees and percent."""
GRID = 16
"""Boxes per image, if they are shared."""

CONFIGURATION = {
    "--block": (("BLOCK", "SMALL_BLOCK"), "pixels of one program"),
    "--warps": (("WARPS",), "warps of one program"),
    "--registers": (("REGISTERS",), "registers of a thread, at most; 0: no limit"),
    "--shared": (("SHARED_PAIRS",), "pairs of one program, at most"),
    "--strip": (("STRIP", "LARGE_STRIP"), "blocks of one program, at most"),
    "--programs": (("PROGRAMS",), "programs that strips and shared pairs have to leave"),
    "--launched": (("LAUNCHED",), "programs that are started, at most"),
}
"""Options that change how the kernel is launched: the constants they set."""


def configure(constant: str, value: int) -> None:
    """Change a constant of the launcher."""
    from tiltproof.kernels import pixels

    registers = dict.fromkeys(pixels.REGISTERS, value or None)
    setattr(pixels, constant, registers if constant == "REGISTERS" else value)


def seconds(work, repeat: int, device: torch.device) -> float:
    """The median of several calls, each until it is done."""
    taken = []
    for _ in range(repeat + 2):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken[2:])[repeat // 2]


def kernel_seconds(work, repeat: int) -> float:
    """Milliseconds of one call among many queued ones: the device's time, unless the host is slower."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeat):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / repeat


def copy_bandwidth(device: torch.device, gigabytes: float) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.empty(int(gigabytes * 2**30 / 8), dtype=torch.float64, device=device).zero_()
    target = torch.empty_like(source)
    work = lambda: target.copy_(source)  # noqa: E731
    taken = kernel_seconds(work, 20) if device.type == "cuda" else seconds(work, 5, device)
    return 2 * source.numel() * 8 / taken


def measure(
    name: str,
    text: str,
    half: float,
    dtype: torch.dtype,
    boxes: str,
    gigabytes: float,
    repeat: int,
    device: torch.device,
) -> dict:
    """Pairs, bytes of least traffic, and seconds: ``eager``, and on a GPU ``fused`` and ``device``."""
    shape, transform = IMAGES[name], parse(text)
    values, entry = shape[0] * shape[1] * shape[2], torch.finfo(dtype).bits // 8
    form = entry * (2 + len(transform.parts))
    pairs = max(1, int(gigabytes * 2**30 / (values * form)))
    count = max(1, pairs // 4)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, *shape, dtype=torch.float64, generator=generator).to(device)
    rows_of = torch.arange(pairs, device=device)
    rows_of = rows_of % count if boxes == "own" else rows_of // GRID % count
    ends = [torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high)]
    place = torch.rand(pairs, len(transform.parts), dtype=torch.float64, generator=generator)
    if boxes == "shared":
        place = place[:GRID].repeat(-(-pairs // GRID), 1)[:pairs]
    middle = ends[0] + half + (ends[1] - ends[0] - 2 * half) * place
    low, high = (middle - half).to(device), (middle + half).to(device)

    def work(number: int = pairs) -> AffineForm:
        return pair_bounds(images, rows_of[:number], transform, "affine", low[:number], high[:number], dtype=dtype)

    kernel = registry.find("pixels:spatial") if device.type == "cuda" else None
    if kernel is not None:
        before, kernel.disabled = kernel.disabled, True
    fewer = max(1, min(pairs, 2**23 // values))  # eager needs forty times the memory
    row = {"image": name, "transform": text, "half": half, "dtype": str(dtype)[6:], "boxes": boxes, "pairs": pairs}
    row |= {"traffic": pairs * values * (entry + form)}  # a copy of the images in float32 is made once
    row["eager"] = seconds(lambda: work(fewer), min(repeat, 5), device) * pairs / fewer
    if kernel is not None:
        kernel.disabled = before
    if device.type == "cuda":
        row |= {"fused": seconds(work, repeat, device), "device": kernel_seconds(work, repeat)}
        row["ps"] = row["device"] / (pairs * values) * 1e12
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--gigabytes", type=float, help="of results at a time (cuda: 1, cpu: 0.002)")
    parser.add_argument("--repeat", type=int, help="calls that are timed (cuda: 20, cpu: 3)")
    parser.add_argument("--images", nargs="+", default=list(IMAGES), choices=list(IMAGES))
    parser.add_argument("--boxes", nargs="+", default=["own", "shared"], choices=["own", "shared"])
    for option, (constants, about) in CONFIGURATION.items():
        parser.add_argument(option, type=int, help=f"{about} (see {', '.join(constants)} in kernels/pixels.py)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    gigabytes, repeat = arguments.gigabytes or (1.0 if on_gpu else 0.002), arguments.repeat or (20 if on_gpu else 3)
    for option, (constants, _) in CONFIGURATION.items():
        value = vars(arguments)[option[2:]]
        for constant in constants if value is not None else ():
            configure(constant, value)
    copied = copy_bandwidth(device, gigabytes)
    machine = torch.cuda.get_device_name(device) if on_gpu else "CPU"
    print(f"{machine}, torch {torch.__version__}: a copy reads and writes {copied / 1e9:.0f} GB/s")
    headings = ["pairs", "eager ms", "call ms", "faster", "GB/s", "of copy", "device ms", "GB/s", "of copy", "ps"]
    print(
        f"{'image':9s} {'transform':12s} {'half':>5s} {'result':>8s} {'boxes':>7s}"
        + "".join(f"{each:>10s}" for each in headings)
    )
    rows = []
    for name in arguments.images:
        for text, halves in BOXES.items():
            for half, dtype, boxes in product(halves, (torch.float32, torch.float64), arguments.boxes):
                row = measure(name, text, half, dtype, boxes, gigabytes, repeat, device)
                rows.append(row | {"copy": copied})
                line = f"{name:9s} {text:12s} {half:5g} {row['dtype']:>8s} {boxes:>7s}{row['pairs']:10d}"
                line += f"{row['eager'] * 1e3:10.2f}"
                for taken in ("fused", "device") if on_gpu else ():
                    speed = row["traffic"] / row[taken]
                    line += f"{row[taken] * 1e3:10.3f}"
                    line += f"{row['eager'] / row[taken]:10.1f}" if taken == "fused" else ""
                    line += f"{speed / 1e9:10.0f}{speed / copied:10.0%}"
                print(line + (f"{row['ps']:10.1f}" if on_gpu else ""), flush=True)
    kernel = registry.find("pixels:spatial") if on_gpu else None
    if on_gpu and (kernel is None or kernel.disabled or not any(kernel.checked.values())):
        print("The kernels were not used: Triton is missing, or they differ from the reference.")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
