"""Forms through a network's own forward pass, and the network's own answers to single pictures beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.checker import activations, moves  # noqa: F401  (their rules)
from tiltproof.checker.form import REFUSED, Form
from tiltproof.errors import InputError
from tiltproof.exclusive import exclusive

_evaluating: ContextVar[bool] = ContextVar("evaluating", default=False)


@contextmanager
def evaluation(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, no gradients, no autocast, full-precision products; afterwards everything is as it was.

    Some of this is state of the whole process, so other threads that prove or check wait. The forms are float64, but what a forward pass
    computes from its weights alone is float32, and the module's own answers are.
    """
    with exclusive():
        modes = [(module, module.training) for module in model.modules()]
        settings = precision_settings()
        before = [getattr(owner, name) for owner, name, _ in settings]
        token = _evaluating.set(True)
        try:
            model.eval()
            for owner, name, strict in settings:
                setattr(owner, name, strict)
            off = (torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda"))
            with torch.no_grad(), next(off), next(off):
                refuse_short_products(device)
                yield
                if [getattr(owner, name) for owner, name, _ in settings] != [strict for *_, strict in settings]:
                    raise InputError(
                        "torch's precision settings were changed during the check",
                        why="another thread, or the model's own code, sets them",
                    )
        finally:
            _evaluating.reset(token)
            for (owner, name, _), value in zip(settings, before, strict=True):
                setattr(owner, name, value)
            for module, mode in modes:
                module.training = mode


def precision_settings() -> list[tuple[Any, str, Any]]:
    """Where torch keeps its leave to make float32 products of fewer bits, and the value without it; newer and older torch."""
    b: Any = torch.backends
    if hasattr(b, "fp32_precision"):
        return [
            (owner, "fp32_precision", "ieee") for owner in (b.mkldnn.conv, b.mkldnn.matmul, b.cudnn.conv, b.cuda.matmul)
        ]
    return [(b.cudnn, "allow_tf32", False), (b.cuda.matmul, "allow_tf32", False)]


def refuse_short_products(device: torch.device) -> None:
    """What the libraries below torch do is asked of them: 2^23 + k times 1 is exact in float32, and not in bf16 or TF32."""
    count = 32
    rows = (torch.arange(count * count, device=device) + 2**23).float().view(count, count)
    one = torch.eye(count, dtype=torch.float32, device=device)
    picture = rows.view(1, count, 1, count).expand(1, count, 4, count).contiguous()
    answers = [rows @ one, one @ rows, nn.functional.linear(rows, one)]
    if not all(torch.equal(answer, rows) for answer in answers) or not torch.equal(
        nn.functional.conv2d(picture, one.view(count, count, 1, 1)), picture
    ):
        raise InputError(
            "float32 products lose bits on this machine",
            why="a library below torch was told to compute with fewer bits when the program began",
            do="start a new process without such a setting (ONEDNN_DEFAULT_FPMATH_MODE)",
        )


def require_evaluation() -> None:
    """Raise unless inside `evaluation`: products made elsewhere may have fewer bits."""
    if not _evaluating.get():
        raise RuntimeError("the network was to be evaluated outside of the checker's arithmetic; please report this")


def own_dtype(model: nn.Module) -> torch.dtype:
    """The floating-point type that the network computes with."""
    dtypes = [p.dtype for p in [*model.parameters(), *model.buffers()] if p.is_floating_point()]
    return dtypes[0] if dtypes else torch.float32


def outputs(model: nn.Module, pictures: Form, least: int = 1) -> Form:
    """The network's outputs [P, K] over P boxes, K at least ``least`` (one or two)."""
    require_evaluation()
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
    """What the module itself answers to these pictures [P, K]; None if that is no row for each, depends on the other pictures, or
    changes from call to call."""
    require_evaluation()
    batch = pictures.to(own_dtype(model))
    given, again, alone = model(batch), model(batch), model(batch[:1])
    if given.ndim != 2 or len(given) != len(pictures):
        return None
    # on a GPU a library may choose another order of summation each time, and elsewhere for another batch
    fixed = given.is_cuda or torch.allclose(given, again, rtol=0, atol=0, equal_nan=True)
    same = fixed and torch.allclose(alone, given[:1], rtol=1e-2, atol=1e-2, equal_nan=True)
    return given.double() if same else None


def coarse(answers: Tensor) -> Tensor:
    """How far [P] the module's own arithmetic may be from exact: far more than float32, or TF32 where a GPU uses it, can explain."""
    return 2.0**-7 * (1 + answers.abs().amax(1))


FLOAT32, GPU = 2.0, 2.0**14
"""By how many times the half width of float32 bounds an evaluation may leave them: they hold for float32 sums in any order; a GPU's
libraries may choose other algorithms (Winograd, FFT), of which no more than `coarse` is known."""


def explained(answers: Tensor, exact: Form, rounded: Form) -> Tensor:
    """Which answers [P, K] of a machine float rounding explains: those near the exact ones, and near what float32 can give.

    Worst-case bounds of a deep network may be wide, or infinite where an overflow is possible: then `coarse` alone decides.
    """
    slack = ((GPU if answers.is_cuda else FLOAT32) - 1) * rounded.reach
    near = (answers >= rounded.lower() - slack) & (answers <= rounded.upper() + slack)
    far, known = coarse(answers)[:, None], torch.isfinite(rounded.reach)
    return (
        torch.isfinite(answers) & (near | ~known) & (answers >= exact.lower() - far) & (answers <= exact.upper() + far)
    )
