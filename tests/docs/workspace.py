"""A folder in which the documentation's commands run verbatim, on a handful of images."""

from __future__ import annotations

import gzip
import struct
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import tiltproof
from tiltproof.models import ARCHITECTURES

IMAGES = 2
STEADY = '''
"""A network that always answers 0, so that proofs about it take no time."""
import torch
from torch import nn

def make():
    layer = nn.Linear(784, 10)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.eye(10)[0])
    return nn.Sequential(nn.Flatten(), layer).eval()
'''


def make_workspace(folder: Path) -> Path:
    """Fill a folder; return its data root."""
    root = folder / "DIR"
    write_data(root)
    for name in ("photos", "folder-with-labels-csv"):
        write_photos(folder / name)
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "nets.py").write_text(STEADY)
    steady = {name: torch.zeros_like(x) for name, x in ARCHITECTURES["cifar10_cnn"]().state_dict().items()}
    save_file(steady, folder / "weights.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tiltproof.models.load("mnist-r30")
        axes = {"images": {0: "batch"}}
        example = torch.zeros(1, 1, 28, 28)
        torch.onnx.export(model, example, folder / "net.onnx", dynamo=False, input_names=["images"], dynamic_axes=axes)
    return root


def write_data(root: Path) -> None:
    """Write MNIST and CIFAR-10 in their own formats: the first images of the bundled samples, as test and as training set."""
    images, labels = pixels("mnist-sample")
    (root / "mnist").mkdir(parents=True)
    for prefix in ("t10k", "train"):
        content = struct.pack(">4B3I", 0, 0, 8, 3, IMAGES, 28, 28) + images.tobytes()
        (root / "mnist" / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        content = struct.pack(">4B1I", 0, 0, 8, 1, IMAGES) + labels.tobytes()
        (root / "mnist" / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    images, labels = pixels("cifar10-sample")
    records = np.concatenate([labels[:, None], images.reshape(IMAGES, -1)], axis=1).tobytes()
    (root / "cifar10").mkdir()
    for name in ("test_batch", *(f"data_batch_{k}" for k in range(1, 6))):
        (root / "cifar10" / f"{name}.bin").write_bytes(records)


def pixels(name: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = tiltproof.data.load(name)
    return (images[:IMAGES] * 255).round().byte().numpy(), labels[:IMAGES].byte().numpy()


def write_photos(folder: Path) -> None:
    folder.mkdir()
    images, labels = pixels("mnist-sample")
    rows = ["filename,label"]
    for k in range(2):
        Image.fromarray(images[k, 0]).save(folder / f"{k}.png")
        rows.append(f"{k}.png,{labels[k]}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
