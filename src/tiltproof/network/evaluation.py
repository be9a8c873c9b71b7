"""A module in eval mode for a while, and as it was afterwards, each submodule by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from tiltproof.exclusive import exclusive


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    with exclusive():  # a module has one mode for all threads
        before = {module: module.training for module in model.modules()}
        try:
            model.eval()
            yield
        finally:
            for module, training in before.items():
                module.training = training
