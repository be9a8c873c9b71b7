"""Networks inside packages of PyPI, as their wheels hold them: what is read, and verdicts of the one that is a small classifier.

    python benchmarks/package_networks.py --wheels DIR [--images 10] [--transform "R(1)"] [--json FILE]

DIR holds the wheels (pip download --no-deps facenet-pytorch==2.6.0 nudenet==3.4.2 ddddocr==1.6.1); they are unpacked into a temporary
folder, and nothing is installed. The face classifier R of facenet-pytorch takes CIFAR-10 samples resized to 24 x 24 pixels, and must keep
its own answer to them.
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

FILES = {
    "ddddocr, text detection": ("ddddocr", "ddddocr/common_det.onnx", {}),
    "ddddocr, characters": ("ddddocr", "ddddocr/common.onnx", {"shape": (1, 64, 128)}),
    "nudenet, detection": ("nudenet", "nudenet/320n.onnx", {"shape": (3, 320, 320)}),
}
"""Package, file and options."""


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


def certified(model: nn.Module, count: int, transform: str) -> str:
    images, _ = tiltproof.data.load("cifar10-sample")
    images = F.interpolate(images[:count], (24, 24), mode="bilinear", antialias=True).clamp(0, 1)
    with torch.no_grad():
        labels = model(images).argmax(1)
    certificate = tiltproof.certify(model, images, labels, transform, search=tiltproof.BranchAndBound(max_seconds=20))
    counts = collections.Counter(str(verdict) for verdict in certificate.verdicts)
    found = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    return f"{transform}: {found}; {sum(certificate.boxes):,} boxes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--transform", default="R(1)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for wheel in sorted(options.wheels.glob("*.whl")):
            if wheel.name.startswith(("facenet_pytorch-", "nudenet-", "ddddocr-")):
                zipfile.ZipFile(wheel).extractall(folder)
        if not any(folder.iterdir()):
            raise SystemExit(
                f"There is no wheel of these packages in {options.wheels}. What to do: pip download --no-deps."
            )
        for name, (package, file, settings) in FILES.items():
            if not (folder / package).exists():
                continue
            began = time.perf_counter()
            try:
                tiltproof.models.load(str(folder / file), **settings)
                said = "reads"
            except InputError as error:
                said = f"refused: {str(error)[:300]}"
            results[name] = said
            print(f"{name:28} {said} ({time.perf_counter() - began:.1f} s)", flush=True)
        if (folder / "facenet_pytorch").exists():
            began = time.perf_counter()
            name = "facenet-pytorch, faces"
            results[name] = certified(face_classifier(folder), options.images, options.transform)
            print(f"{name:28} {results[name]} ({time.perf_counter() - began:.1f} s)")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
