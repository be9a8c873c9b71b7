"""Where the search begins: how finely to cut the range before adaptive splitting takes over.

Cutting too coarsely wastes bounds that fail, too finely wastes bounds that would have passed in one. A ladder of ever
finer grids is tried on a few random (image, box) pairs each, and the rung with the least expected number of bounds is
taken. This only decides where work is spent; whatever grid is chosen, every box still has to be proved.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.bounds.coordinates import coordinates, symbols
from tiltproof.certify.memory import Halving
from tiltproof.certify.prover import Prover
from tiltproof.certify.tiling import Tiling
from tiltproof.transforms import Contrast, Spatial, Transform

FEWEST_PAIRS, MOST_PAIRS = 32, 256
"""Pilot pairs for each rung: a small share of what is bounded at once."""
REFINED_COST = 0.6
"""What taking one margin through a backward pass costs, in forward passes: 0.8 to 1.4 on a CPU, about 0.2 on a GPU."""
PIXEL_CONTRAST = 0.2
"""Typical change of a pixel's value from one pixel to the next."""


def influence(transform: Transform, height: int, width: int) -> Tensor:
    """Roughly how far each parameter's whole range moves pixel values, [d]."""
    low = torch.tensor([transform.low], dtype=torch.float64)
    high = torch.tensor([transform.high], dtype=torch.float64)
    center, half = (low + high) / 2, (high - low) / 2
    small = 2.0**-10
    result = half[0].clone()
    for kind, run in transform.stages():
        if kind is Spatial:
            box = center - half * small, center + half * small
            place = coordinates(transform, run, symbols(*box), *box, height, width)
            moved = place.column.slopes.abs() + place.row.slopes.abs()
            for k in run:
                result[k] = moved[k].mean() / small * PIXEL_CONTRAST
        else:
            for k in run:
                if isinstance(transform.parts[k], Contrast):
                    result[k] = half[0, k] / 100 * 0.5
    return result


def ladder(effect: Tensor, most: int) -> list[tuple[int, ...]]:
    """Grids from one box upwards; each rung halves the axis that moves pixels most."""
    splits = torch.ones(len(effect), dtype=torch.int64)
    rungs = [tuple(splits.tolist())]
    while math.prod(rungs[-1]) * 2 <= most and float((effect / splits).max()) > 1e-4:
        splits[(effect / splits).argmax()] *= 2
        rungs.append(tuple(splits.tolist()))
    return rungs


def starting_grid(prover: Prover, rows: Tensor, budget_boxes: int, batch: Halving, seed: int) -> tuple[int, ...]:
    """The rung of least expected cost, from the share of pilot pairs proved forward and in all."""
    transform = prover.transform
    height, width = prover.pictures.shape[-2:]
    rungs = ladder(influence(transform, height, width), max(1, min(4096, budget_boxes // 2)))
    generator = torch.Generator().manual_seed(seed)
    device = prover.labels.device
    cost, passed = [], []
    pairs = max(FEWEST_PAIRS, min(MOST_PAIRS, batch.size // 16))
    for rung in rungs:
        tiling = Tiling(transform, rung)
        boxes = tiling.first()
        chosen = rows[torch.randint(len(rows), (pairs,), generator=generator)]
        low, high = tiling.bounds(boxes[torch.randint(len(boxes), (pairs,), generator=generator)])

        def work(size: int, chosen: Tensor = chosen, low: Tensor = low, high: Tensor = high) -> tuple[int, int, int]:
            counts, refined = [0, 0], prover.refined
            for part in torch.arange(pairs).split(size):
                outcome = prover.bound(chosen[part].to(device), low[part].to(device), high[part].to(device))
                counts[0] += int((outcome.forward > 0).sum())
                counts[1] += int((outcome.bound > 0).sum())
            return counts[0], counts[1], prover.refined - refined

        forward, total, refined = batch.run(work)
        cost.append(1 + REFINED_COST * refined / pairs)
        passed.append(total / pairs)
        if forward >= 0.98 * pairs:
            break
    best, least = len(cost) - 1, math.inf
    onward = cost[-1] / max(passed[-1], 1 / pairs)
    for k in reversed(range(len(cost))):
        onward = cost[k] + (1 - passed[k]) * 2 * onward
        if math.prod(rungs[k]) * onward <= least:
            best, least = k, math.prod(rungs[k]) * onward
    return rungs[best]
