"""The rows of `floor.py`: a network, its images, its range, and the timed job."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass

import reference_networks
import torch
from torch import Tensor, nn

import tiltproof
from tiltproof.models import ARCHITECTURES, models
from tiltproof.models import load as load_model
from tiltproof.network import proof_arithmetic
from tiltproof.runtime.batch_size import pairs_at_a_time
from tiltproof.training.artefacts import CARD, WEIGHTS
from tiltproof.verify.inputs import check_inputs
from tiltproof.verify.prover import BackwardPolicy, Promising, Prover
from tiltproof.verify.state import Tiling

CARDS = {card.name: card for card in models()}
CNN7, CNN7_TRANSFORM, CNN7_GRID = "cifar10_cnn7", "R(10)", 4096
UNTRAINED = {"cnn7": torch.float32, "cnn7-float64": torch.float64}
"""Rows that propagate bounds and certify nothing, and the dtype of the bounds."""
DEFAULT_ROWS = [*reference_networks.ROWS, *UNTRAINED]


@dataclass
class Case:
    """One row; ``source`` says whose weights."""

    name: str
    source: str
    model: nn.Module
    images: Tensor
    labels: Tensor
    transform: str

    @property
    def pairs(self) -> int | None:
        return None

    def job(self, part: int | None = None) -> Callable[[], dict]:
        """The timed job, on all images (pairs) or the first few; returns its result."""
        inputs = self.model, self.images[:part], self.labels[:part], self.transform
        return lambda: tiltproof.certify(*inputs).summary()


@dataclass
class Propagation(Case):
    """Random pairs of an image and a box of a fine grid, each bounded once and refined backward for its worst class."""

    count: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def pairs(self) -> int | None:
        return self.count

    def job(self, part: int | None = None) -> Callable[[], dict]:
        inputs = check_inputs(self.model, self.images, self.labels, self.transform)
        random, device = torch.Generator().manual_seed(0), self.images.device
        tiling = Tiling(inputs.transform, (CNN7_GRID,))
        rows = torch.randint(len(self.images), (part or self.count,), generator=random)
        ends = tiling.bounds(tiling.first()[torch.randint(CNN7_GRID, rows.shape, generator=random)])
        pairs = [each.to(device) for each in (rows, *ends)]
        size = pairs_at_a_time(inputs.network, len(inputs.transform.parts), device)
        size = max(1, size // 2) if self.dtype == torch.float64 else size
        with proof_arithmetic(device):
            Prover(inputs, "affine")  # reads the weights, once for all runs

        def work() -> dict:
            with inputs.eval_mode(), proof_arithmetic(device):
                prover = Prover(inputs, "affine")
                policy = OpenPolicy.on(device)
                for some in zip(*(each.split(size) for each in pairs), strict=True):
                    prover.bound(*some, policy, self.dtype)
            return {"boxes": len(rows), "certified": None}

        return work


class OpenPolicy(BackwardPolicy):
    """Lets every box through to the backward pass, whatever its chances."""

    def promising(self, opened: Tensor, first_order: Tensor, remainder: Tensor) -> Promising:
        everything = opened.nonzero().flatten()
        return Promising(everything, torch.zeros_like(everything))


def cases(arguments: argparse.Namespace) -> list[Case]:
    """The rows that were asked for."""
    cuda, found = arguments.device.startswith("cuda"), []
    for folder in arguments.run:
        card = json.loads((folder / CARD).read_text())
        model = load_model(str(folder / WEIGHTS))
        found.append((card["name"], "run", model, card["dataset"], card["transform"]))
    for name in arguments.rows or ([] if arguments.run else DEFAULT_ROWS):
        if name in UNTRAINED:
            torch.manual_seed(0)
            found.append((name, "untrained", ARCHITECTURES[CNN7](), "cifar10", CNN7_TRANSFORM))
        elif arguments.networks is None:
            found.append((name, "bundled", load_model(name), CARDS[name].dataset, CARDS[name].transform))
        else:
            model = reference_networks.load_row(name, arguments.networks, arguments.data_root, "cpu", 1)[0]
            dataset, _, transform, *_ = reference_networks.ROWS[name]
            found.append((name, "authors", model, dataset, transform))
    result = []
    for name, source, model, dataset, transform in found:
        few = 100 if transform == "R(30)" else 10  # on a CPU, so that a run of a row takes seconds
        data = dataset if arguments.data_root else f"{dataset}-sample"
        images, labels = tiltproof.data.load(data, root=arguments.data_root)
        count = arguments.images or (len(images) if cuda else few)
        images, labels = (each[:count].to(arguments.device) for each in (images, labels))
        model = model.eval().to(arguments.device)
        if source == "untrained":
            with torch.no_grad():
                labels = model(images[:1000]).argmax(1)
            images, pairs = images[:1000], arguments.pairs or (16_384 if cuda else 128)
            result.append(Propagation(name, source, model, images, labels, transform, pairs, UNTRAINED[name]))
        else:
            result.append(Case(name, source, model, images, labels, transform))
    return result
