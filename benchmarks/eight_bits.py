"""uint8 semantics on four networks: pictures, boxes and seconds for each image, and verdicts beside those of real numbers.

    python benchmarks/eight_bits.py [--networks DIR] [--data-root DIR] [--only NAME] [--images N] [--enumerate]

DIR holds resnet20-cifar10.safetensors, vnn_ibp_3_3_8.onnx (VNN-COMP 2023) and ort_maui_model.onnx (onnxruntime's tests). Without them
only the bundled network is measured. ``--enumerate`` evaluates every picture, also where bounds would prove boxes.
The picture of 244 x 244 is an enlarged one of CIFAR-10, whose answer is the network's own.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import tiltproof
from tiltproof.models.loading import load_as_program
from tiltproof.verify.eight_bit_bounds import PictureBounds

CIFAR = ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
CASES = {
    "mnist-r30": ("", "mnist-sample", "R(30)", 20),
    "ResNet-20": ("resnet20-cifar10.safetensors", "cifar10-sample", "R(1)", 3),
    "ViT ibp_3_3_8": ("vnn_ibp_3_3_8.onnx", "cifar10-sample", "R(1)", 3),
    "MobileNetV2 int8": ("ort_maui_model.onnx", "cifar10-sample", "R(0.01)", 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=Path)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--images", type=int)
    parser.add_argument("--enumerate", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.enumerate:
        PictureBounds.of = classmethod(lambda *_: None)
    for name, (file, data, text, count) in CASES.items():
        if options.only not in name or (file and options.networks is None):
            continue
        images, labels = tiltproof.data.load(data, options.data_root)
        images, labels = images[: options.images or count], labels[: options.images or count]
        keep = None
        if not file:
            model = tiltproof.models.load(name)
        else:
            arch = "cifar10_resnet20" if file.endswith(".safetensors") else None
            model = load_as_program(str(options.networks / file), arch)
        if "ibp" in file:
            model = tiltproof.models.normalized(model, *CIFAR)
        if "maui" in file:
            images, keep = (
                torch.nn.functional.interpolate(images, (244, 244), mode="bilinear").clamp(0, 1),
                tiltproof.KeepOwn(),
            )
        began = time.process_time()
        found = tiltproof.certify(model, images, labels, text, semantics="uint8", keep=keep)
        spent = time.process_time() - began
        real = None if file else tiltproof.certify(model, images, labels, text).verdicts
        print(f"{name}, {text}: {found}, {spent:.1f} CPU s", flush=True)
        for k, one in enumerate(found.results):
            beside = "" if real is None else f" (real numbers: {real[k]})"
            work = f"{one.pictures:,} pictures, {one.boxes:,} boxes, {one.seconds:.1f} s"
            print(f"  {one.image}: {one.verdict}{beside}, margin {one.margin:.4g}, {work}, {one.reason}", flush=True)


if __name__ == "__main__":
    main()
