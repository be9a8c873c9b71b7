"""The kinds of files that are damaged: one entry each in `KINDS`.

A new kind needs a function that makes a small valid file and a function that reads it; the reader asserts what holds for
every value it returns.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from PIL import Image
from safetensors.torch import save
from torch import nn

from tests.fuzz import certificate_files
from tiltproof.data import load as load_data
from tiltproof.data import load_folder
from tiltproof.models import load as load_model
from tiltproof.training.recipe import FOLDER, from_dict, read_recipe


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, a valid file, and its reader; ``read`` gets the path of the damaged file."""

    file: str
    make_seed: Callable[[], bytes]
    read: Callable[[Path], object]
    beside: dict[str, bytes] = field(default_factory=dict)
    """Undamaged files in the same folder."""
    finish: Callable[[bytes], bytes] = bytes
    """Builds the file from the damaged bytes, for example with checksums that hide the damage."""


def tiny() -> nn.Module:
    """Build an architecture with small weight files, which the reading process knows by name."""
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2))


IMAGES = struct.pack(">4B3I", 0, 0, 8, 3, 3, 4, 5) + bytes(range(60))
LABELS = struct.pack(">4BI", 0, 0, 8, 1, 3) + bytes([7, 2, 1])
CIFAR = b"".join(bytes([label]) + bytes(k % 251 for k in range(3072)) for label in (3, 8))
IMAGES_FILE, LABELS_FILE, CIFAR_FILE = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "test_batch.bin"
TABLE = b"filename,label\nfirst.png,3\nsecond.png,14\n"
SIGNS = b"Filename;Width;Height;ClassId\nfirst.png;8;8;3\nsecond.png;8;8;14\n"
TARGETS = b"filename,target_0,target_1\nfirst.png,-0.25,1e-3\nsecond.png,14,.5\n"


def read_data(name: str) -> Callable[[Path], object]:
    return lambda path: check_images(*load_data(name, path.parent))


def read_folder(path: Path) -> None:
    check_images(*load_folder(path.parent))


def read_targets(path: Path) -> None:
    images, targets = load_data(path.parent, task="regression")
    assert len(images) == len(targets)
    assert bool(targets.isfinite().all())


def check_images(images: torch.Tensor, labels: torch.Tensor) -> None:
    assert images.dtype == torch.float32
    assert images.ndim == 4
    assert images.min() >= 0
    assert images.max() <= 1
    assert labels.shape == images.shape[:1]
    assert labels.min() >= 0


def read_weights(path: Path) -> None:
    model = load_model(str(path), "tiny", allow_pickle=True)
    assert not model.training
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def read_recipe_file(path: Path) -> None:
    recipe = read_recipe(path)
    assert from_dict(recipe.to_dict(), "itself") == recipe


def image(format: str, mode: str = "RGB", **options: object) -> Callable[[], bytes]:
    def make() -> bytes:
        shape = (12, 10, 3) if mode == "RGB" else (12, 10)
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format, **options)
        return buffer.getvalue()

    return make


def image_kind(file: str, format: str, mode: str = "RGB", finish: Callable[[bytes], bytes] = bytes, **options) -> Kind:
    table = f"filename,label\n{file},3\n".encode()
    return Kind(file, image(format, mode, **options), read_folder, {"labels.csv": table}, finish)


def with_right_checksums(content: bytes) -> bytes:
    """Recompute the checksums of all chunks of a PNG."""
    pieces, place = [content[:8]], 8
    while place + 12 <= len(content):
        end = place + 8 + int.from_bytes(content[place : place + 4], "big")
        if end + 4 > len(content):
            break
        pieces.append(content[place:end] + zlib.crc32(content[place + 4 : end]).to_bytes(4, "big"))
        place = end + 4
    return b"".join(pieces) + content[place:]


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(tiny().state_dict())


def torch_file() -> bytes:
    buffer = io.BytesIO()
    torch.save(state(), buffer)
    return buffer.getvalue()


def pickle_program() -> bytes:
    with zipfile.ZipFile(io.BytesIO(torch_file())) as archive:
        return archive.read("archive/data.pkl")


def around_program(program: bytes) -> bytes:
    """Put another pickle into the archive of `torch_file`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(torch_file())) as archive, zipfile.ZipFile(buffer, "w") as packed:
        for name in archive.namelist():
            packed.writestr(name, program if name == "archive/data.pkl" else archive.read(name))
    return buffer.getvalue()


def safetensors_header() -> bytes:
    content = save(state())
    return json.dumps(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])).encode()


def around_header(header: bytes) -> bytes:
    """Put the tensors of `state` after another header."""
    content = save(state())
    return len(header).to_bytes(8, "little") + header + content[8 + int.from_bytes(content[:8], "little") :]


def onnx_message() -> onnx.ModelProto:
    weights = {name: tensor.numpy() for name, tensor in state().items()}
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "1.weight", "1.bias"], ["hidden"], name="first", transB=1),
        helper.make_node("Relu", ["hidden"], ["positive"], name="relu"),
        helper.make_node("Gemm", ["positive", "3.weight", "3.bias"], ["logits"], name="second", transB=1),
    ]
    images = helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["batch", 1, 2, 3])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 2])
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "tiny", [images], [logits], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def onnx_file(weights: bool = True) -> bytes:
    message = onnx_message()
    if not weights:
        del message.graph.initializer[:]
    return message.SerializeToString()


def around_graph(content: bytes) -> bytes:
    """Concatenate messages, which merges them: the damaged graph with the undamaged weights."""
    message = onnx.ModelProto()
    message.graph.initializer.extend(onnx_message().graph.initializer)
    return content + message.SerializeToString()


def read_onnx(path: Path) -> None:
    model = load_model(str(path), layout="nchw")
    assert not model.training
    with torch.no_grad():
        answer = model(torch.zeros(3, *model.shape, dtype=next(iter(model.parameters()), torch.zeros(1)).dtype))
    assert len(answer) == 3
    assert answer.isfinite().all()


def run_file(name: str, task: str = "classification") -> bytes:
    return certificate_files.run_files(task)[name]


MNIST, CIFAR10 = read_data("mnist"), read_data("cifar10")
PNG = image("PNG", "L")()

KINDS = {
    "idx images": Kind(IMAGES_FILE, lambda: IMAGES, MNIST, {LABELS_FILE: LABELS}),
    "idx labels": Kind(LABELS_FILE, lambda: LABELS, MNIST, {IMAGES_FILE: IMAGES}),
    "idx in gz": Kind(f"{IMAGES_FILE}.gz", lambda: gzip.compress(IMAGES, mtime=0), MNIST, {LABELS_FILE: LABELS}),
    "idx in xz": Kind(f"{IMAGES_FILE}.xz", lambda: lzma.compress(IMAGES), MNIST, {LABELS_FILE: LABELS}),
    "cifar": Kind(CIFAR_FILE, lambda: CIFAR, CIFAR10),
    "cifar in gz": Kind(f"{CIFAR_FILE}.gz", lambda: gzip.compress(CIFAR, mtime=0), CIFAR10),
    "cifar in xz": Kind(f"{CIFAR_FILE}.xz", lambda: lzma.compress(CIFAR), CIFAR10),
    "labels table": Kind("labels.csv", lambda: TABLE, read_folder, {"first.png": PNG, "second.png": PNG}),
    "signs table": Kind("GT-final_test.csv", lambda: SIGNS, read_folder, {"first.png": PNG, "second.png": PNG}),
    "targets table": Kind("labels.csv", lambda: TARGETS, read_targets, {"first.png": PNG, "second.png": PNG}),
    "png": image_kind("image.png", "PNG"),
    "png, right checksums": image_kind("image.png", "PNG", finish=with_right_checksums),
    "jpeg": image_kind("image.jpg", "JPEG"),
    "jpeg, progressive": image_kind("image.jpg", "JPEG", "L", progressive=True),
    "bmp": image_kind("image.bmp", "BMP"),
    "ppm": image_kind("image.ppm", "PPM"),
    "webp": image_kind("image.webp", "WEBP"),
    "webp, lossless": image_kind("image.webp", "WEBP", lossless=True),
    "tiff": image_kind("image.tiff", "TIFF", "L"),
    "tiff, deflate": image_kind("image.tiff", "TIFF", compression="tiff_adobe_deflate"),
    "tiff, lzw": image_kind("image.tiff", "TIFF", compression="tiff_lzw"),
    "safetensors": Kind("weights.safetensors", lambda: save(state()), read_weights),
    "safetensors header": Kind("weights.safetensors", safetensors_header, read_weights, finish=around_header),
    "recipe": Kind("recipe.toml", (FOLDER / "mnist-tu2-tv2-paper.toml").read_bytes, read_recipe_file),
    "onnx": Kind("net.onnx", onnx_file, read_onnx),
    "onnx graph": Kind("net.onnx", functools.partial(onnx_file, weights=False), read_onnx, finish=around_graph),
    "torch archive": Kind("weights.pt", torch_file, read_weights),
    "torch pickle": Kind("weights.pt", pickle_program, read_weights, finish=around_program),
} | {
    f"{action.__name__}: {name}": Kind(name, functools.partial(run_file, name), action)
    for action in (certificate_files.check, certificate_files.resume)
    for name in certificate_files.RUN_FILES
    if (action, name) != (certificate_files.resume, "summary.json")  # a resumed run does not read it
}
KINDS |= {
    f"check_ranges: {name}": Kind(name, functools.partial(run_file, name, "regression"), certificate_files.check_ranges)
    for name in certificate_files.RUN_FILES
}
