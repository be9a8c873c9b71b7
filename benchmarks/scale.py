"""The cost of certification against image size, parameters and layers, and large images certified within a memory limit.

    python benchmarks/scale.py [--device cuda] [--memory 2GB] [--images 2] [--out FOLDER] [--json FILE] [--quick] [--no-curves]

First some images of 224 x 224 x 3 (bundled CIFAR-10 images, enlarged) are certified from end to end, with a ResNet-18
whose own predictions are the labels. Its weights are random, and the absolute weights of each output are scaled to sum
to 1, because bounds of an untrained network grow by that sum from layer to layer. So this shows what certification
costs and nothing about robustness; R(0.001) is small enough to be proved.

Then seconds and memory of an (image, box) pair, in float32, stage by stage, against the number of pixels, of parameters
and of layers, with exponents of growth: of a straight line through the logarithms, and of the last step. Wide: pixel
bounds of a box of R(30). ``--out`` writes a plot of each. On a CPU, seconds are CPU seconds of all threads together,
and memory is the growth of the resident set.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiltproof
from tiltproof.models.architectures import BasicBlock
from tiltproof.network import margins, proof_arithmetic, refine, run
from tiltproof.pixels.api import pair_bounds
from tiltproof.reports.plots import FAINT, INK, OPEN, PROVED, SAMPLED
from tiltproof.runtime.batch_size import Memory
from tiltproof.runtime.memory_size import parse_memory, shown_size
from tiltproof.transforms import Rotation
from tiltproof.verify.inputs import Inputs, check_inputs

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from svg import Chart, Sheet

PARAMETERS = (
    "R(W)",
    "R(W), Sc(W)",
    "R(W), Sc(W), C(W)",
    "R(W), Sc(W), C(W), B(0.001)",
    "R(W), Sc(W), Sh(W), C(W), B(0.001)",
)
STAGES = ("pixels", "forward", "backward", "wide")
WIDTH, RANGE, WIDE = 0.1, "R(0.001)", 30.0
"""Half width of the timed boxes, in degrees and percent; the certified range; and a box that spans many cells."""


class ResNet(nn.Module):
    """ResNet-18 with ``blocks`` (2) basic blocks in each of its four stages: a 7 x 7 convolution and a maximum of 3 x 3 pixels, both with
    stride 2, the stages, the average of every channel, one linear layer."""

    def __init__(self, blocks: int = 2, width: int = 64, outputs: int = 10) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        stages, before = [], width
        for k in range(4):
            after = width * 2**k
            for block in range(blocks):
                stages.append(BasicBlock(before, after, 2 if k and not block else 1))
                before = after
        self.stages, self.fc = nn.Sequential(*stages), nn.Linear(before, outputs, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        values = F.max_pool2d(torch.relu(self.norm(self.conv(images * 4 - 2))), 3, 2, 1)
        return self.fc(self.stages(values).mean((2, 3)))


def network(device: str, width: int, blocks: int = 2) -> ResNet:
    torch.manual_seed(0)
    model = ResNet(blocks, width)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data /= module.weight.data.abs().sum((1, 2, 3), keepdim=True)
    return model.eval().to(device)


def some_images(count: int, size: int, device: str) -> Tensor:
    small = tiltproof.data.load("cifar10-sample")[0][:count]
    return F.interpolate(small, (size, size), mode="bilinear").clamp(0, 1).to(device)


class Meter:
    """Seconds and bytes of a call; on a CPU the peak of the resident set is reset first, if Linux permits."""

    def __init__(self, device: str) -> None:
        self.gpu, self.memory = torch.device(device).type == "cuda", Memory(torch.device(device))

    def __call__(self, function: Callable[[], Any]) -> tuple[float, float, Any]:
        if self.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
        clock = time.perf_counter if self.gpu else time.process_time  # whatever else the machine is doing
        before, began = self.memory.taken(), clock()
        result = function()
        if self.gpu:
            torch.cuda.synchronize()
        return clock() - began, self.memory.peak() - before, result


def cost(inputs: Inputs, pairs: int, repeats: int, wide: bool) -> dict[str, float]:
    """Seconds and bytes per pair of the stages; the least seconds and the most bytes of all repeats."""
    device, transform = str(inputs.images.device), inputs.transform
    meter = Meter(device)
    rows = torch.arange(pairs, device=device) % len(inputs.images)
    low, high = (
        torch.tensor([end], dtype=torch.float64, device=device).expand(pairs, -1).contiguous()
        for end in (transform.low, transform.high)
    )
    labels = inputs.labels[rows]
    others = (labels + 1) % inputs.network.output_shape()[0]
    found: dict[str, float] = {}
    with torch.no_grad(), proof_arithmetic(inputs.images.device):
        live = inputs.network_as(torch.float32)
        for number in range(repeats + 1):  # the first one warms up
            stages: dict[str, tuple[float, float]] = {}
            *stages["pixels"], bounds = meter(
                lambda: pair_bounds(inputs.images64, rows, transform, "affine", low, high).to(torch.float32)
            )

            def forward(bounds: Any = bounds) -> Any:
                forms = run(live, bounds, lasting=len(transform.parts))
                margins(live, forms, labels)
                return forms

            *stages["forward"], forms = meter(forward)
            *stages["backward"], _ = meter(
                lambda forms=forms: refine(live, forms, labels, torch.arange(pairs, device=device), others)
            )
            del bounds, forms
            if wide:
                ends = (torch.full((pairs, 1), end, dtype=torch.float64, device=device) for end in (-WIDE, WIDE))
                angles = Rotation(WIDE)
                *stages["wide"], _ = meter(lambda: pair_bounds(inputs.images64, rows, angles, "affine", *ends))  # noqa: B023
            for name, (seconds, peak) in stages.items() if number else ():
                found[f"{name} seconds"] = min(seconds / pairs, found.get(f"{name} seconds", math.inf))
                found[f"{name} bytes"] = max(peak / pairs, found.get(f"{name} bytes", 0.0))
    return found


def exponent(points: list[tuple[float, float]]) -> float:
    """The slope of a straight line through the points' logarithms."""
    logs = [(math.log(x), math.log(max(y, 1e-12))) for x, y in points]
    middle = [sum(column) / len(logs) for column in zip(*logs, strict=True)]
    return sum((x - middle[0]) * (y - middle[1]) for x, y in logs) / sum((x - middle[0]) ** 2 for x, _ in logs)


def curve(name: str, rows: list[dict]) -> dict:
    """Rows with ``x``: a table, and exponents of growth by stage and unit, of all rows and of the last two."""
    stages = [stage for stage in STAGES if f"{stage} seconds" in rows[0]]
    keys = [f"{stage} {unit}" for stage in stages for unit in ("seconds", "bytes")]
    points = {key: [(row["x"], row[key]) for row in rows] for key in keys}
    found = {
        "of all": {key: exponent(points[key]) for key in keys},
        "last": {key: exponent(points[key][-2:]) for key in keys},
    }
    print(f"\n{name}: seconds and MB of a pair, and exponents of their growth")
    print(f"{'':>10} " + " ".join(f"{stage:>20}" for stage in stages))
    for row in rows:
        cells = (f"{row[f'{stage} seconds']:10.4f} {row[f'{stage} bytes'] / 1e6:7.1f}MB" for stage in stages)
        print(f"{row['label']:>10} " + " ".join(cells))
    for which, exponents in found.items():
        cells = (f"{exponents[f'{stage} seconds']:10.2f} {exponents[f'{stage} bytes']:9.2f}" for stage in stages)
        print(f"{which:>10} " + " ".join(cells))
    return {"name": name, "stages": stages, "rows": rows, "exponents": found}


def plot(curves: list[dict]) -> Sheet:
    """Seconds above, memory below, a column for each curve."""
    sheet = Sheet(60 + 300 * len(curves), 560)
    for column, each in enumerate(curves):
        for line, (unit, scale, label) in enumerate((("seconds", 1.0, "seconds a pair"), ("bytes", 1e-6, "MB a pair"))):
            series = {
                stage: [(row["x"], max(row[f"{stage} {unit}"] * scale, 1e-6)) for row in each["rows"]]
                for stage in each["stages"]
            }
            xs, ys = ([point[k] for points in series.values() for point in points] for k in (0, 1))
            place = (60 + 300 * column, 40 + 270 * line, 210, 190)
            ends = (min(xs) / 1.3, max(xs) * 1.3), (min(ys) / 2, max(ys) * 2)
            chart = Chart(sheet, place, *ends, (f"number of {each['name']}", label), logarithmic=True)
            for place_of, (stage, points) in enumerate(series.items()):
                color = (SAMPLED, PROVED, OPEN, FAINT)[place_of]
                chart.line(points, color)
                chart.dots(points, color, 3)
                words = f"{stage}: {each['exponents']['of all'][f'{stage} {unit}']:.2f}"
                sheet.text(place[0] + 6, place[1] + 14 + 14 * place_of, words, 11, fill=color)
    title = "The cost of a pair of an image and a box; numbers: exponents of its growth (1 is linear)"
    sheet.text(60, 16, title, 12, fill=INK)
    sheet.text(60, 552, "both axes logarithmic", 10, fill=FAINT)
    return sheet


def certified(arguments: argparse.Namespace) -> dict:
    """From end to end, within the limit."""
    size, model = arguments.size, network(arguments.device, arguments.width)
    images = some_images(arguments.images, size, arguments.device)
    memory = Memory(torch.device(arguments.device), parse_memory(arguments.memory))
    with torch.no_grad():
        labels = torch.cat([model(image[None]).argmax(1) for image in images])
    began = time.perf_counter()
    result = tiltproof.certify(
        model,
        images,
        labels,
        RANGE,
        search=tiltproof.BranchAndBound(max_boxes=arguments.boxes),
        execution=tiltproof.Execution(memory=memory.limit),
    )
    counts = {key: result.summary()[key] for key in ("certified", "falsified", "unknown", "boxes")}
    peak = memory.peak()
    figures = {
        "size": size,
        "images": len(images),
        "transform": RANGE,
        "limit": memory.limit,
        "peak": peak,
        "seconds": time.perf_counter() - began,
    }
    print(
        f"{len(images)} images of {size} x {size} x 3, ResNet-18 of width {arguments.width} (random weights and own labels), {RANGE}: "
        f"{counts['certified']} certified, {counts['unknown']} unknown, {counts['boxes']} boxes, {figures['seconds']:.0f} s; "
        f"limit {shown_size(memory.limit or 0)}, peak {shown_size(peak)}"
    )
    return figures | counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", default="2GB", help="limit of the run from end to end")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--boxes", type=int, default=64, help="most boxes per image")
    parser.add_argument("--pairs", type=int, help="pairs per measured batch (default 2, 8 on a GPU)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--sizes", default="28,56,112,224,448", help="of images whose cost is measured")
    parser.add_argument("--size", type=int, default=224, help="of certified images")
    parser.add_argument("--out", type=Path, help="folder for the plot")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="small images and a narrow network: shows that the program works"
    )
    parser.add_argument("--no-curves", action="store_true", help="certify the large images only")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.width, arguments.sizes, arguments.size, arguments.repeats, arguments.images = 4, "16,32", 32, 1, 1
    sizes = [int(size) for size in arguments.sizes.split(",")]
    pairs = arguments.pairs or (8 if arguments.device.startswith("cuda") else 2)
    warnings.filterwarnings("error", message="memory reached")  # above the limit
    from_end_to_end = certified(arguments)

    def measured(size: int, text: str = PARAMETERS[0], blocks: int = 2, wide: bool = False) -> dict[str, float]:
        model, images = network(arguments.device, arguments.width, blocks), some_images(2, size, arguments.device)
        with torch.no_grad():
            labels = model(images).argmax(1)
        inputs = check_inputs(model, images, labels, text.replace("W", f"{WIDTH:g}"))
        return cost(inputs, pairs, arguments.repeats, wide)

    middle = sizes[len(sizes) // 2]
    depths = [(blocks, 2 + 8 * blocks) for blocks in ((1, 2) if arguments.quick else (1, 2, 4, 8))]
    curves = []
    if not arguments.no_curves:
        rows = {
            "pixels": [{"x": size**2, "label": f"{size}^2"} | measured(size, wide=True) for size in sizes],
            "parameters": [{"x": k, "label": str(k)} | measured(middle, text) for k, text in enumerate(PARAMETERS, 1)],
            "layers": [{"x": layers, "label": str(layers)} | measured(middle, blocks=k) for k, layers in depths],
        }
        curves = [curve(name, found) for name, found in rows.items()]
    if arguments.out is not None and curves:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "scale.svg").write_text(str(plot(curves)), encoding="utf-8")
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"device": arguments.device, "end_to_end": from_end_to_end, "curves": curves}, indent=1)
        )


if __name__ == "__main__":
    main()
