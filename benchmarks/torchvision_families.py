"""Read one network of every torchvision family, with random weights: loads, or refused and why.

    python benchmarks/torchvision_families.py --source DIR [--size 224] [--rows NAME ...] [--trace] [--bound] [--json FILE]

DIR holds torchvision's Python files: a checkout of https://github.com/pytorch/vision, or a wheel unpacked with ``python -m zipfile -e``.
Nothing of it is compiled or installed: the definitions of models are pure Python, and operations that are not (nms, roi_align) are left
undeclared, because no classifier calls them. Prints one line per network: what reading says, the steps of the network that was read, and
the seconds. --trace reads without comparing the network with the module, which takes minutes for the large ones.
--bound also bounds a box around one gray image (forward), which takes memory at 224.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch

import tiltproof
from tiltproof.errors import InputError
from tiltproof.network import export_network, read_network

FAMILIES = {
    "AlexNet": ("alexnet",),
    "VGG": ("vgg11", "vgg16_bn"),
    "ResNet": ("resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2"),
    "DenseNet": ("densenet121",),
    "SqueezeNet": ("squeezenet1_0", "squeezenet1_1"),
    "GoogLeNet": ("googlenet",),
    "Inception": ("inception_v3",),
    "MobileNetV2": ("mobilenet_v2",),
    "MobileNetV3": ("mobilenet_v3_small", "mobilenet_v3_large"),
    "ShuffleNetV2": ("shufflenet_v2_x1_0",),
    "EfficientNet": ("efficientnet_b0", "efficientnet_v2_s"),
    "RegNet": ("regnet_x_400mf", "regnet_y_400mf"),
    "MNASNet": ("mnasnet1_0",),
    "ConvNeXt": ("convnext_tiny",),
    "ViT": ("vit_b_16",),
    "Swin": ("swin_t", "swin_v2_t"),
    "MaxViT": ("maxvit_t",),
}
"""Families, and the constructors that are read of each."""

OWN_SIZE = {"inception_v3": 299}
"""Networks whose default input is not 224 pixels wide; they are read at that size, too."""


def models_of(source: Path) -> Any:
    """``torchvision.models`` of a checkout, without its compiled parts."""
    if not (source / "torchvision" / "models").is_dir():
        raise SystemExit(
            f"There is no folder torchvision/models in {source}. What to do: clone https://github.com/pytorch/vision, or unpack a wheel of"
            " torchvision (pip download --no-deps torchvision; python -m zipfile -e FILE DIR), and name that folder with --source."
        )
    package = types.ModuleType("torchvision")  # its own __init__ declares compiled operations
    package.__path__ = [str(source / "torchvision")]
    sys.modules["torchvision"] = package
    extension = types.ModuleType("torchvision.extension")
    extension._assert_has_ops = extension._has_ops = lambda: False  # type: ignore[attr-defined]
    sys.modules["torchvision.extension"] = extension
    return importlib.import_module("torchvision.models")


def read(make: Any, size: int, trace: bool, bound: bool) -> dict[str, Any]:
    """What reading one network said."""
    torch.manual_seed(0)
    model = make(weights=None).eval()
    images = torch.full((1, 3, size, size), 0.5)
    began = time.perf_counter()
    try:
        network = (export_network if trace else read_network)(model, tuple(images.shape[1:]), images)
        result: dict[str, Any] = {"reads": True, "steps": len(network.operations)}
        if bound:
            form = tiltproof.AffineForm(torch.stack([images[0], torch.full_like(images[0], 1e-6)])[None], images * 0)
            result["bounded"] = bool(tiltproof.bound_network(model, form).radius.isfinite().all())
    except InputError as error:
        result = {"reads": False, "refused": str(error)}
    return result | {"seconds": time.perf_counter() - began, "size": size}


def line(name: str, result: dict[str, Any]) -> str:
    text = f"reads, {result['steps']:,} steps" if result["reads"] else "refused: " + result["refused"][:400]
    if "bounded" in result:
        text += ", finite bounds" if result["bounded"] else ", bounds are not finite"
    return f"{name:20} {result['size']:4} {text} ({result['seconds']:.1f} s)"


def main() -> None:
    names = [name for members in FAMILIES.values() for name in members]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="folder that holds torchvision/models")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rows", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--trace", action="store_true", help="do not compare with the module")
    parser.add_argument("--bound", action="store_true", help="also bound a tiny box forward")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    models = models_of(options.source)
    results = {}
    for name in options.rows:
        make, size = getattr(models, name), max(options.size, OWN_SIZE.get(name, 0))
        if name.startswith(("googlenet", "inception")):
            make = lambda weights, make=make: make(weights=weights, init_weights=False)  # noqa: E731
        if name.startswith("vit"):
            make = lambda weights, make=make, size=size: make(weights=weights, image_size=size)  # noqa: E731
        results[name] = read(make, size, options.trace, options.bound)
        print(line(name, results[name]), flush=True)
    for family, members in FAMILIES.items():
        done = [results[name]["reads"] for name in members if name in results]
        if done:
            print(f"{family:20} {sum(done)} of {len(done)} read")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
