"""auto_LiRPA's IBP, CROWN-IBP and CROWN beside tiltproof: same network, same images, same transformation, in one run.

    python benchmarks/against_auto_lirpa.py --lirpa CHECKOUT [--rows NAME ...] [--images 10] [--boxes 2000] [--seconds 60] [--json FILE]

CHECKOUT is a clone of https://github.com/Verified-Intelligence/auto_LiRPA; its dependencies beside torch (appdirs, graphviz, tqdm, pyyaml)
must be installed. Without --lirpa the program says so and ends.

auto_LiRPA bounds networks, not transformations, so it gets tiltproof's pixel bounds, in two ways:

- *pixels*: each pixel's exact interval over the parameter box, the input set that every verifier of pixel boxes takes;
- *forms*: tiltproof's affine forms as a first linear layer, so that its inputs are the parameters and each pixel's own error.

Each box is bounded by one call for the margins of all other classes; a box that is not proved is halved along its longest side, relative to
the range, until --boxes or --seconds of an image are spent. auto_LiRPA computes in float32 without outward rounding (float64 with
--double), so its "certified" does not cover rounding errors; tiltproof's does. One thread each; CPU seconds are of the process, for the
images that are classified correctly, tracing included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tiltproof
from tiltproof.pixels.api import bound_pixels
from tiltproof.transforms import Transform, parse

ROWS = {
    "mnist-r30": ("mnist-r30", "mnist-sample", "R(30)"),
    "mnist-r30, 5 degrees": ("mnist-r30", "mnist-sample", "R(5)"),
    "mnist-tu2-tv2": ("mnist-tu2-tv2", "mnist-sample", "Tu(2), Tv(2)"),
    "cifar10-r10": ("cifar10-r10", "cifar10-sample", "R(10)"),
    "cifar10-r2-sh2": ("cifar10-r2-sh2", "cifar10-sample", "R(2), Sh(2)"),
}
"""Bundled networks, their images and a transformation."""
METHODS = ("IBP", "CROWN-IBP", "CROWN")
WAYS = ("pixels", "forms")


class OnForms(nn.Module):
    """The network after x = center + sum_k slopes_k e_k + radius * r, as a function of e [N, d] and r, both in [-1, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, e: Tensor, r: Tensor, center: Tensor, slopes: Tensor, radius: Tensor) -> Tensor:
        moved = torch.matmul(e.unsqueeze(1), slopes).squeeze(1).view(center.shape)
        result: Tensor = self.network(center + moved + radius * r)
        return result


def differences(label: int, classes: int, like: Tensor) -> Tensor:
    """Rows e_label - e_k for all other classes k, [1, K - 1, K]."""
    rows = -torch.eye(classes, dtype=like.dtype)
    rows[:, label] += 1
    return rows[[k for k in range(classes) if k != label]].unsqueeze(0)


class Lirpa:
    """Lower bounds of all margins over parameter boxes, by one method of auto_LiRPA and one way to state the input set."""

    def __init__(self, network: nn.Module, image: Tensor, method: str, way: str, parameters: int) -> None:
        from auto_LiRPA import BoundedModule  # type: ignore[import-not-found]

        self.method, self.way, self.bounded = method, way, None
        if way == "pixels":
            sample: Any = torch.zeros_like(image)
            self.bounded = BoundedModule(network, sample, verbose=False)
        else:
            zero = torch.zeros_like(image)
            slopes = torch.zeros(1, parameters, image.numel(), dtype=image.dtype)
            sample = (torch.zeros(1, parameters, dtype=image.dtype), zero, zero, slopes, zero)
            # its patches of convolutions do not pass a product with constants
            self.bounded = BoundedModule(OnForms(network), sample, bound_opts={"conv_mode": "matrix"}, verbose=False)

    def margins(self, image: Tensor, transform: Transform, low: Tensor, high: Tensor, rows: Tensor) -> Tensor:
        """Return the lower bounds of one box, [1, K - 1]."""
        from auto_LiRPA import BoundedTensor, PerturbationLpNorm

        form = bound_pixels(image.double(), transform, "hull" if self.way == "pixels" else "affine", low, high)
        if self.way == "pixels":
            lower, upper = (end.to(image.dtype).clamp(0, 1) for end in (form.lower, form.upper))
            ball = PerturbationLpNorm(x_L=lower, x_U=upper)
            inputs: Any = (BoundedTensor((lower + upper) / 2, ball),)
        else:
            center, radius = form.center.to(image.dtype), form.radius.to(image.dtype)
            slopes = form.slopes.to(image.dtype).flatten(2).transpose(0, 1)
            e, r = torch.zeros(1, len(form.slopes), dtype=image.dtype), torch.zeros_like(center)
            ends = [PerturbationLpNorm(x_L=each - 1, x_U=each + 1) for each in (e, r)]
            inputs = (BoundedTensor(e, ends[0]), BoundedTensor(r, ends[1]), center, slopes, radius)
        lower, _ = self.bounded.compute_bounds(x=inputs, C=rows, method=self.method, bound_upper=False)
        return lower.detach()


def prove(
    margins: Callable[[Tensor, Tensor], Tensor], low: Tensor, high: Tensor, boxes: int, seconds: float
) -> tuple[bool, int]:
    """Bisect depth first: whether all boxes were proved, and how many were bounded."""
    stack, count, began, whole = [(low, high)], 0, time.process_time(), high - low
    while stack:
        if count >= boxes or time.process_time() - began > seconds:
            return False, count
        low, high = stack.pop()
        count += 1
        if bool((margins(low, high) > 0).all()):
            continue
        side = int(((high - low) / whole).argmax())  # the longest; the first among equals
        middle = (low + high)[side] / 2
        below, above = high.clone(), low.clone()
        below[side] = above[side] = middle
        stack += [(above, high), (low, below)]
    return True, count


def compare(row: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All methods on one row's images."""
    name, data, text = ROWS[row]
    network = tiltproof.models.load(name).eval()
    images, labels = (each[: options.images] for each in tiltproof.data.load(data))
    transform = parse(text)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    dtype = torch.float64 if options.double else torch.float32
    with torch.no_grad():
        right = (network(images).argmax(1) == labels).nonzero().flatten().tolist()
    found = []
    began = time.process_time()
    certificate = tiltproof.certify(network, images[right], labels[right], text, semantics="real")
    ours = sum(verdict == "certified" for verdict in certificate.verdicts)
    count = sum(result.boxes for result in certificate.results)
    found.append(line(row, "tiltproof", "", ours, len(right), count, time.process_time() - began))
    for way in WAYS:
        for method in options.methods:
            certified = bounded = 0
            began = time.process_time()
            failed = ""
            for k in right:
                image = images[k : k + 1].to(dtype)
                try:
                    verifier = Lirpa(network.to(dtype), image, method, way, len(low))
                    rows = differences(int(labels[k]), network(image).shape[1], image)
                    proved, used = prove(
                        lambda a, b, v=verifier, i=image, r=rows: v.margins(i, transform, a, b, r),
                        low, high, options.boxes, options.seconds,
                    )  # fmt: skip
                except Exception as error:  # its own, of whatever kind: the row says so
                    failed = f"{type(error).__name__}: {error}"[:60]
                    break
                certified, bounded = certified + proved, bounded + used
            seconds = time.process_time() - began
            network.float()
            found.append(line(row, f"auto_LiRPA {method}", way, certified, len(right), bounded, seconds, failed))
    return found


def line(
    row: str, verifier: str, way: str, certified: int, of: int, boxes: int, seconds: float, failed: str = ""
) -> Any:
    """Print and return one line of the table."""
    shown = failed or f"{certified:3} of {of}  {boxes:8,} boxes  {seconds:8.1f} CPU s"
    print(f"{row:22} {verifier:22} {way:7} {shown}", flush=True)
    return {
        "row": row, "verifier": verifier, "way": way, "certified": certified, "of": of, "boxes": boxes,
        "cpu_seconds": round(seconds, 2), "failed": failed,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lirpa", type=Path, help="a clone of auto_LiRPA")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--boxes", type=int, default=2000, help="boxes per image, at most")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds per image, at most")
    parser.add_argument("--double", action="store_true", help="auto_LiRPA in float64")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.lirpa is None or not (options.lirpa / "auto_LiRPA").is_dir():
        print("no clone of auto_LiRPA given: nothing to compare with; clone it and give its folder to --lirpa")
        return 0
    sys.path.insert(0, str(options.lirpa))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = [each for row in options.rows for each in compare(row, options)]
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
