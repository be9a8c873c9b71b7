"""Random numbers that depend on what they are for, the seed and a count, and on nothing drawn before.

A run that is resumed, or spread over several processes, therefore draws what an undisturbed single one would. They are
drawn on the CPU, so that a GPU sees the same ones.
"""

from __future__ import annotations

import hashlib

import torch


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
