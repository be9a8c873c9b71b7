"""Certify networks that others published, as they are on disk: what loads, and the verdicts of the first images.

    python benchmarks/public_networks.py --networks DIR --data-root DIR [--images 10] [--seconds 20] [--rows NAME ...]
        [--transform TRANSFORM] [--json FILE]
    python benchmarks/public_networks.py --networks DIR --data-root DIR --deepg [--json FILE]

DIR of --networks holds the files: of VNN-COMP, MLPerf Tiny, DeepG and others. The images
are the first test images of MNIST or CIFAR-10; a network for other images takes these resized, and must keep its own prediction on them.
Of the two networks of integers and signs every 8-bit picture is evaluated (--semantics uint8), whatever it takes.
Prints one line per file: verdicts of R(1) (the ViT: R(0.2)), the boxes bounded and the seconds of reading and certifying, wall and CPU;
or why a file is refused. A network that is no classifier of such images is read and not certified. --json keeps everything, row by row;
rows of an earlier run stay in the file, so that a table can be made in parts.

--deepg: DeepG's networks under DeepG's transformations on its images, the first 100 of each test set, with the default budget, beside the
shares that DeepG certified (Balunovic et al., NeurIPS 2019).
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiltproof
from tiltproof.errors import InputError
from tiltproof.models.architectures import Normalize
from tiltproof.models.loading import load_as_program

IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
OVAL = IMAGENET[0], [0.225, 0.225, 0.225]
CIFAR = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
CIFAR_SRI = CIFAR[0], [0.2023, 0.1994, 0.2010]
BYTES = [0.0], [1.0]
"""For networks that take 0 to 255."""
UNIT = [127 / 255] * 3, [128 / 255] * 3


@dataclass(frozen=True)
class Row:
    """A file and what its network takes; ``data``: mnist, cifar10, or "" if it is read only."""

    file: str
    data: str = ""
    normalization: tuple[list[float], list[float]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    transform: str = "R(1)"
    size: tuple[int, int] | None = None
    """Resize the images to this, and keep the network's own prediction."""
    semantics: str = "real"


ROWS = {
    "oval21 base": Row("v21_cifar_base_kw.onnx", "cifar10", OVAL),
    "oval21 deep": Row("v21_cifar_deep_kw.onnx", "cifar10", OVAL),
    "oval21 wide": Row("v21_cifar_wide_kw.onnx", "cifar10", OVAL),
    "resnet_2b": Row("v21_resnet_2b.onnx", "cifar10", CIFAR),
    "sri_resnet_a": Row("v22_sri_resnet_a.onnx", "cifar10", CIFAR_SRI),
    "Marabou cifar10_medium": Row("v21_cifar10_medium.onnx", "cifar10"),
    "MNIST 6x200 sigmoid": Row("v21_ffnnSIGMOID__Point_6x200.onnx", "mnist"),
    "MNIST maxpool": Row("v21_Convnet_maxpool.onnx", "mnist"),
    "MNIST PyTorch example": Row("ort_cnn_mnist_pytorch.onnx", "mnist", ([0.1307], [0.3081])),
    "ViT ibp_3_3_8": Row("vnn_ibp_3_3_8.onnx", "cifar10", CIFAR_SRI, transform="R(0.2)"),
    "MetaRoom 4cnn": Row("vnn_4cnn_ry_0_0_no_custom_OP.onnx", "cifar10", size=(32, 56)),
    "traffic signs, binarized": Row(
        "vnn_3_30_30_QConv_16_3_QConv_32_2_Dense_43_ep_30.onnx", "cifar10", BYTES, size=(30, 30), semantics="uint8"
    ),
    "MLPerf ResNet-8": Row("mlperf_resnet8_cifar10.h5", "cifar10", BYTES),
    "MLPerf ResNet-8 int8": Row("mlperf_resnet8_int8.tflite", "cifar10", BYTES, semantics="uint8"),
    "DeepG MNIST R(30)": Row("deepg-pgd-mnist_r30.safetensors", "mnist", options={"arch": "mnist_cnn"}),
    "DeepG CIFAR-10 R(10)": Row("deepg-pgd-cifar_r10.safetensors", "cifar10", options={"arch": "cifar10_cnn"}),
    "DeepG CIFAR-10 R(2), Sh(2)": Row("deepg-pgd-cifar_r2_sh2.safetensors", "cifar10", options={"arch": "cifar10_cnn"}),
    "ResNet-20": Row("resnet20-cifar10.safetensors", "cifar10", options={"arch": "cifar10_resnet20"}),
    "TinyYOLO": Row("vnn_TinyYOLO.onnx"),
    "UNet, transposed convolution": Row("v22_unet_upsample_small.onnx", options={"output": "out_mask"}),
    "UNet, resize": Row("v22_unet_simp_small.onnx", options={"output": "out_mask"}),
    "MobileNetV2 int8 QDQ": Row("ort_maui_model.onnx"),
    "SqueezeNet": Row("ort_winml_squeezenet.onnx"),
    "text direction": Row("pypi_ch_ppocr_mobile_v2.0_cls_infer.onnx", options={"shape": (3, 48, 192)}),
    "UltraFace": Row("ultraface_slim-320_simplified.onnx", normalization=UNIT, options={"output": "boxes"}),
    "MobileNetV1 0.25": Row("mobilenetv1__ImageNet__mobilenetv1_a025_224.keras"),
}  # fmt: skip


DEEPG = {
    "DeepG MNIST R(30)": ("R(30)", 86.0),
    "DeepG CIFAR-10 R(10)": ("R(10)", 65.0),
    "DeepG CIFAR-10 R(2), Sh(2)": ("R(2), Sh(2)", 39.0),
}
"""Transformations, and the percentage of 100 images that DeepG certified."""


def problem(row: Row, model: nn.Module, data_root: str, count: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The normalized network, and the first images with their labels."""
    images, labels = tiltproof.data.load(row.data, root=data_root)
    images, labels = images[:count], labels[:count]
    if row.normalization is BYTES:
        model = tiltproof.models.normalized(model, scale=255.0)
    elif row.normalization is not None:
        model = nn.Sequential(Normalize(*row.normalization), model)
    if row.size is not None:
        images = F.interpolate(images, row.size, mode="bilinear", antialias=True).clamp(0, 1)
        with torch.no_grad():
            labels = model.eval()(images).argmax(1)
    return model.eval(), images, labels


def measured(row: Row, networks: Path, data_root: str, count: int, seconds: float | None) -> dict[str, Any]:
    """What became of one file."""
    began, worked = time.perf_counter(), time.process_time()
    try:
        read = load_as_program if row.semantics == "uint8" else tiltproof.models.load
        model = read(str(networks / row.file), **row.options)
        result: dict[str, Any] = {"reads": True, "reading_seconds": time.perf_counter() - began}
        if row.data:
            model, images, labels = problem(row, model, data_root, count)
            budget = tiltproof.BranchAndBound(max_seconds=seconds)
            if row.semantics == "uint8":  # all pictures are evaluated, however long it takes
                budget = tiltproof.BranchAndBound()
            certificate = tiltproof.certify(
                model, images, labels, row.transform, search=budget, semantics=row.semantics
            )
            verdicts = collections.Counter(str(verdict) for verdict in certificate.verdicts)
            result |= {"transform": row.transform, "verdicts": dict(verdicts), "boxes": sum(certificate.boxes)}
            result |= {"semantics": row.semantics, "certify_seconds": certificate.seconds}
            result |= {
                name: certificate.summary()[name]
                for name in ("pictures", "unknown_reasons")
                if name in certificate.summary()
            }
    except InputError as error:
        result = {"reads": False, "refused": str(error)}
    return result | {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}


def line(name: str, result: dict[str, Any]) -> str:
    """The row of the table."""
    if not result["reads"]:
        text = "refused: " + result["refused"].partition(" What to do")[0][:160]
    elif "verdicts" in result:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(result["verdicts"].items()))
        pictures = f"; {result['pictures']:,} pictures of 8 bits" if "pictures" in result else ""
        text = f"{result['transform']}: {counts}{pictures}; {result['boxes']:,} boxes"
    else:
        text = "reads"
    deepg = result.get("deepg_certified_percent")
    return f"{name:28} {text} ({result['seconds']:.1f} s, CPU {result['cpu_seconds']:.1f} s)" + (
        f"; DeepG: {deepg:g} certified" if deepg else ""
    )


def keep(file: Path, name: str, result: dict[str, Any]) -> None:
    """Put a row into the file, in the order of `ROWS`."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else {}
    rows[name] = result
    ordered = {known: rows[known] for known in ROWS if known in rows}
    file.write_text(json.dumps({"rows": ordered}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="per image")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="NAME")
    parser.add_argument("--transform", help="instead of R(1)")
    parser.add_argument("--deepg", action="store_true", help="the same-network table")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    count, seconds = (100, None) if options.deepg else (options.images, options.seconds)
    for name in DEEPG if options.deepg else options.rows:
        row = ROWS[name]
        transform = DEEPG[name][0] if options.deepg else options.transform
        row = row if transform is None else replace(row, transform=transform)
        results[name] = measured(row, options.networks, options.data_root, count, seconds)
        if options.deepg:
            results[name]["deepg_certified_percent"] = DEEPG[name][1]
        print(line(name, results[name]), flush=True)
        if options.json:
            keep(options.json, name, results[name] | {"images": count, "torch": torch.__version__})
    print(f"{sum(result['reads'] for result in results.values())} of {len(results)} files are read")


if __name__ == "__main__":
    main()
