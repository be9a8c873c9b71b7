"""Forms through a network's own forward pass, and the network's own answers to single pictures beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.checker import operations  # noqa: F401  (registers their rules)
from tiltproof.checker.form import REFUSED, Form
from tiltproof.errors import InputError
from tiltproof.process_lock import exclusive

_evaluating: ContextVar[int | None] = ContextVar("evaluating", default=None)


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
        token = _evaluating.set(threading.get_ident())
        try:
            model.eval()
            for owner, name, strict in settings:
                setattr(owner, name, strict)
            off = (torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda"))
            # NNPACK, which torch turns to where oneDNN is switched off, convolves by Winograd and FFT
            with torch.no_grad(), next(off), next(off), torch.backends.nnpack.flags(enabled=False):
                refuse_short_products(device)
                yield
                refuse_changed()
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
    """What the libraries below torch do is asked of them: sums of one product of two odd numbers of 24 (53) bits, which are that product,
    rounded once. Numbers with fewer bits, or several of them in place of one, give other results."""
    count = 32
    for dtype, bits in ((torch.float32, 24), (torch.float64, 53)):
        drawn = torch.arange(count * count) * 2246822519 % 2 ** (bits - 1)
        rows = (2 ** (bits - 1) + drawn | 1).to(device, dtype).view(count, count)
        factors, expected = rows[-1], rows * rows[-1]
        diagonal, picture = torch.diag(factors), rows.view(1, count, 1, count).expand(1, count, 4, count).contiguous()
        kernel, turned = diagonal.view(count, count, 1, 1), picture * factors.view(-1, 1, 1)
        answers = [rows @ diagonal, (diagonal @ rows.T).T, nn.functional.linear(rows, diagonal)]
        answers += [torch.bmm(rows[None], diagonal[None])[0]]
        images = [nn.functional.conv2d(picture, kernel), nn.functional.conv_transpose2d(picture, kernel)]
        if not all(torch.equal(answer, expected) for answer in answers) or not all(
            torch.equal(image, turned) for image in images
        ):
            raise InputError(
                f"products of {str(dtype).removeprefix('torch.')} numbers lose bits on this machine",
                why="a library below torch was told to compute with fewer bits when the program began",
                do="start a new process without such a setting (ONEDNN_DEFAULT_FPMATH_MODE)",
            )


def require_evaluation() -> None:
    """Raise unless inside `evaluation`, in whose thread and with its settings: products made elsewhere may have fewer bits."""
    if _evaluating.get() != threading.get_ident():
        raise RuntimeError("the network was to be evaluated outside of the checker's arithmetic; please report this")
    refuse_changed()


def refuse_changed() -> None:
    """The model's own code may set what `evaluation` has set."""
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) or any(
        getattr(owner, name) != strict for owner, name, strict in precision_settings()
    ):
        raise InputError(
            "torch's precision settings were changed during the check",
            why="another thread, or the model's own code, sets them",
        )


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
    refuse_changed()
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
    refuse_changed()
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
