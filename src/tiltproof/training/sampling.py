"""Random numbers and sampled parameters that depend only on a purpose, the seed and a count (an epoch or a step).

No state is carried from step to step, so a resumed run continues exactly. Processes that divide a mini-batch draw what one
process would: each samples for the whole batch and takes its rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms import Transform


def derived_seed(purpose: str, seed: int, number: int) -> int:
    """Return the seed for one purpose and one count.

    >>> derived_seed("crop", 0, 1) == derived_seed("crop", 0, 1), derived_seed("crop", 0, 1) == derived_seed("flip", 0, 1)
    (True, False)
    """
    digest = hashlib.sha256(f"{purpose} {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(purpose: str, seed: int, number: int) -> torch.Generator:
    """Return a new CPU generator for one purpose and one count."""
    return torch.Generator().manual_seed(derived_seed(purpose, seed, number))


class Sampler:
    """Draws parameters of a transformation, uniformly over its range, and boxes around them."""

    def __init__(self, transform: Transform, seed: int = 0, shared_parameters: bool = False) -> None:
        self.transform, self.seed, self.shared_parameters = transform, seed, shared_parameters
        self.shard = (0, 1)
        self.ends: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def generator(self, step: int, device: torch.device, purpose: int = 0) -> torch.Generator:
        """Return the generator of one step; different purposes are independent."""
        return torch.Generator(device).manual_seed(derived_seed(f"parameters {purpose}", self.seed, step))

    def uniform(self, step: int, count: int, like: Tensor, purpose: int = 0) -> Tensor:
        """Draw numbers in [0, 1) for this process's ``count`` images, [count, d]; equal rows with `shared_parameters`."""
        rank, world = self.shard
        generator, d = self.generator(step, like.device, purpose), len(self.transform.parts)
        if self.shared_parameters:
            return torch.rand(1, d, generator=generator, device=like.device, dtype=like.dtype).expand(count, d)
        drawn = torch.rand(count * world, d, generator=generator, device=like.device, dtype=like.dtype)
        return drawn[rank * count : (rank + 1) * count]

    def parameters(self, step: int, count: int, like: Tensor, purpose: int = 0) -> Tensor:
        """Draw one parameter vector per image, [count, d]."""
        low, high = self.range(like)
        return low + (high - low) * self.uniform(step, count, like, purpose)

    def range(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of the range with ``like``'s device and dtype; cached, because a copy to a GPU synchronizes with it."""
        key = like.device, like.dtype
        if key not in self.ends:
            low, high = (like.new_tensor(end) for end in (self.transform.low, self.transform.high))
            self.ends[key] = low, high
        return self.ends[key]

    def boxes(self, parameters: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        """Return the boxes [parameters - half, parameters + half], shifted inside the range, float64."""
        low, high = self.range(parameters.double())
        half = torch.minimum(half.double(), (high - low) / 2)
        center = parameters.double().clamp(low + half, high - half)
        return center - half, center + half


def half_widths(values: float | Sequence[float], transform: Transform, name: str = "half_width") -> tuple[float, ...]:
    """Check and return one half width for each parameter; ``name`` is the argument's name in the message."""
    count = len(transform.parts)
    halves = [float(x) for x in values] if isinstance(values, Sequence) else [float(values)] * count
    if len(halves) != count or not all(0 <= x < float("inf") for x in halves):
        raise InputError(
            f"{name} needs {count} finite half widths, none negative, one per parameter of {transform}",
            got=values,
            do=f"give them in the order {transform}",
        )
    return tuple(halves)


def seed_layers(seed: int, epoch: int, rank: int) -> None:
    """Seed torch's global generator, which layers such as dropout use, so that a repeated epoch draws the same."""
    torch.manual_seed(derived_seed(f"layers of process {rank}", seed, epoch))
