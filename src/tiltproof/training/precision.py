"""Fast arithmetic for training alone: TF32 and cuDNN's choice of the fastest kernel; proofs never see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from tiltproof.process_lock import exclusive
from tiltproof.training.sampling import mixed


@contextmanager
def training_arithmetic(device: torch.device) -> Iterator[None]:
    """Fast products on a GPU, and a random state of its own; the user's settings come back afterwards.

    The settings are the process's: on a GPU a proof in another thread waits, and so does training for one (`tiltproof.process_lock`).
    """
    switches = _switches() if device.type == "cuda" else []
    with exclusive() if switches else nullcontext():
        before = [getattr(owner, name) for owner, name, _ in switches]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                for owner, name, fast in switches:
                    setattr(owner, name, fast)
                yield
            finally:
                for (owner, name, _), value in zip(switches, before, strict=True):
                    setattr(owner, name, value)


def short_products(device: torch.device, precision: str) -> torch.autocast:
    """The context of a forward pass in a recipe's ``train.precision``. Nothing is cached, so that a GPU can record it."""
    short = precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, torch.bfloat16, enabled=short, cache_enabled=False)


def seed_layers(seed: int, epoch: int, rank: int) -> None:
    """For layers that draw by themselves (dropout): the same again when an epoch is repeated."""
    torch.manual_seed(mixed(f"layers of process {rank}", seed, epoch))


def _switches() -> list[tuple[Any, str, Any]]:
    """Torch 2.9 brought one text setting per backend and warns where old and new ones are mixed."""
    backends = torch.backends
    benchmark: list[tuple[Any, str, Any]] = [(backends.cudnn, "benchmark", True)]
    if hasattr(backends, "fp32_precision"):
        owners = (backends.cuda.matmul, backends.cudnn.conv)  # type: ignore[attr-defined]
        return benchmark + [(owner, "fp32_precision", "tf32") for owner in owners]
    return [*benchmark, (backends.cuda.matmul, "allow_tf32", True), (backends.cudnn, "allow_tf32", True)]
