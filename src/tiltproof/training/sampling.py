"""Random numbers that depend on what they are for, the seed and a count, and on nothing drawn before.

A run that is resumed, or spread over several processes, therefore draws what an undisturbed single one would. They are
drawn on the CPU, so that a GPU sees the same ones.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms import Transform


def mixed(purpose: str, seed: int, number: int) -> int:
    """A seed for one purpose and one count.

    >>> mixed("crop", 0, 1) == mixed("crop", 0, 1), mixed("crop", 0, 1) == mixed("flip", 0, 1)
    (True, False)
    """
    digest = hashlib.sha256(f"{purpose} {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(purpose: str, seed: int, number: int) -> torch.Generator:
    """A fresh generator for one purpose and one count: an epoch, or a step."""
    return torch.Generator().manual_seed(mixed(purpose, seed, number))


# Random parameters of a training step, drawn from (seed, step) alone, and the local boxes around them.
#
# Because nothing is remembered between steps, a resumed run continues exactly, and processes that share a batch draw what one process
# would: each samples for the whole batch and takes its own rows.


class Sampler:
    """Parameters of a transform, uniform over its range."""

    def __init__(self, transform: Transform, seed: int = 0, one_for_all: bool = False) -> None:
        self.transform, self.seed, self.one_for_all = transform, seed, one_for_all
        self.share = (0, 1)
        self.ends: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def generator(self, step: int, device: torch.device, purpose: int = 0) -> torch.Generator:
        """Random numbers of one step; different purposes do not interfere."""
        return torch.Generator(device).manual_seed(mixed(f"parameters {purpose}", self.seed, step))

    def uniform(self, step: int, count: int, like: Tensor, purpose: int = 0) -> Tensor:
        """Numbers in [0, 1) for this process's ``count`` images, [count, d]; all rows equal if one vector serves a batch."""
        rank, world = self.share
        generator, d = self.generator(step, like.device, purpose), len(self.transform.parts)
        if self.one_for_all:
            return torch.rand(1, d, generator=generator, device=like.device, dtype=like.dtype).expand(count, d)
        drawn = torch.rand(count * world, d, generator=generator, device=like.device, dtype=like.dtype)
        return drawn[rank * count : (rank + 1) * count]

    def parameters(self, step: int, count: int, like: Tensor, purpose: int = 0) -> Tensor:
        low, high = self.range(like)
        return low + (high - low) * self.uniform(step, count, like, purpose)

    def range(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Ends of the range beside ``like``; kept, because a copy of theirs to a GPU would wait for all its work, at every step."""
        key = like.device, like.dtype
        if key not in self.ends:
            low, high = (like.new_tensor(end) for end in (self.transform.low, self.transform.high))
            self.ends[key] = low, high
        return self.ends[key]

    def boxes(self, parameters: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        """[parameters - half, parameters + half], moved inside the range as the boxes of a certification are, float64."""
        low, high = self.range(parameters.double())
        half = torch.minimum(half.double(), (high - low) / 2)
        center = parameters.double().clamp(low + half, high - half)
        return center - half, center + half


def half_widths(nu: float | tuple[float, ...] | list[float], transform: Transform) -> tuple[float, ...]:
    """One non-negative half width for each parameter."""
    values = tuple(float(x) for x in (nu if isinstance(nu, (tuple, list)) else [nu] * len(transform.parts)))
    if len(values) != len(transform.parts) or not all(0 <= x < float("inf") for x in values):
        raise InputError(
            f"nu must be {len(transform.parts)} half widths, one per parameter of {transform}",
            got=nu,
            do="e.g. half_width=0.25 for R(30), half_width=(0.5, 0.125, 2.5, 0.01) for Sc(5), R(5), C(5), B(0.01)",
        )
    return values
