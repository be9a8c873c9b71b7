"""Forms through a network's own forward pass, and the network's own answers to single pictures beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tiltproof.checker import activations, moves  # noqa: F401  (their rules)
from tiltproof.checker.form import REFUSED, Form
from tiltproof.errors import InputError


@contextmanager
def evaluation(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, no gradients, no autocast; afterwards every module is back in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def own_dtype(model: nn.Module) -> torch.dtype:
    """The floating-point type that the network computes with."""
    dtypes = [p.dtype for p in [*model.parameters(), *model.buffers()] if p.is_floating_point()]
    return dtypes[0] if dtypes else torch.float32


def outputs(model: nn.Module, pictures: Form, least: int = 1) -> Form:
    """The network's outputs [P, K] over P boxes, K at least ``least`` (one or two)."""
    Form.strided = False
    REFUSED.clear()
    Form.shown_dtype = own_dtype(model)
    try:
        output = model(pictures)
    except InputError:
        raise
    except (AttributeError, TypeError, RuntimeError, ValueError, NotImplementedError) as error:
        raise InputError("the checker cannot follow the network's forward pass", got=error) from error
    if REFUSED:
        raise InputError("the checker cannot follow the network's forward pass", got=REFUSED[0])
    number = "one output" if least == 1 else "two outputs"
    if (
        not isinstance(output, Form)
        or output.ndim != 2
        or output.shape[0] != pictures.shape[0]
        or output.shape[1] < least
    ):
        raise InputError(f"the network must return one row of at least {number} for each picture")
    return output


def own_answers(model: nn.Module, pictures: Tensor) -> Tensor | None:
    """What the module itself answers to these pictures [P, K]; None if that is no row for each, or depends on the other pictures."""
    batch = pictures.to(own_dtype(model))
    answers = model(batch).double()
    alone = model(batch[:1]).double()
    if answers.ndim != 2 or len(answers) != len(pictures):
        return None
    return answers if torch.allclose(alone, answers[:1], rtol=1e-2, atol=1e-2, equal_nan=True) else None


def coarse(answers: Tensor) -> Tensor:
    """How far [P] the module's own arithmetic may be from exact: far more than float32, or TF32 where a GPU uses it, can explain."""
    return 2.0**-7 * (1 + answers.abs().amax(1))
