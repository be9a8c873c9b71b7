"""A small network and images whose run has all four verdicts and many short batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tiltproof import Certificate, Execution, RayWorkers, RunFolder, certify
from tiltproof.verify.results import Progress

TRANSFORM = "R(8), B(0.02)"
IMAGES = 24


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
    images = torch.rand(IMAGES, 1, 5, 5, generator=generator)
    labels = model(images).argmax(1)
    labels[5] = (labels[5] + 1) % 4  # one that is misclassified
    return model.eval(), images, labels


def run(
    folder: Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    workers: RayWorkers | None = None,
) -> Certificate:
    """Certify in batches of two images that take some hundredths of a second each."""
    model, images, labels = problem()
    stored = None if folder is None else RunFolder(folder, resume=resume)
    return certify(
        model,
        images,
        labels,
        TRANSFORM,
        execution=Execution(batch_size=2, workers=workers),
        run=stored,
        progress=progress,
    )


def evidence(folder: Path) -> list[dict]:
    """Read the records of a run, without the fields that depend on the clock."""
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]
