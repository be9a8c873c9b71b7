"""Propagate forms through a network's own forward pass, and compare them with its own answers to single images."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.checker import (  # noqa: F401  (they register rules)
    attention,
    compounds,
    curves,
    fixed_point,
    moved,
    operations,
    piecewise,
    rearranging,
    statistics,
    sums,
)
from tiltproof.checker.form import REFUSED, Form
from tiltproof.checker.head import UNBOUNDED, Watched, call_of_form, require_bounded, scores, watch_rules
from tiltproof.errors import InputError
from tiltproof.process_lock import exclusive

_evaluating: ContextVar[int | None] = ContextVar("evaluating", default=None)


@contextmanager
def evaluation(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Switch to eval mode without gradients or autocast and with full-precision products, and restore everything afterwards.

    Some of these settings belong to the whole process, so other threads that prove or check wait. The forms are float64, but
    the module's own answers, and whatever its forward pass computes from weights alone, are float32.
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
            # without oneDNN torch falls back to NNPACK, which convolves by Winograd and FFT
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
    """Return torch's switches for reduced-precision float32 products with their strict values, for newer and older torch."""
    b: Any = torch.backends
    if hasattr(b, "fp32_precision"):
        return [
            (owner, "fp32_precision", "ieee") for owner in (b.mkldnn.conv, b.mkldnn.matmul, b.cudnn.conv, b.cuda.matmul)
        ]
    return [(b.cudnn, "allow_tf32", False), (b.cuda.matmul, "allow_tf32", False)]


def refuse_short_products(device: torch.device) -> None:
    """Raise if a library below torch computes products with fewer bits than the dtype has.

    The test sums contain a single product of two odd 24-bit (53-bit) numbers, so each must equal that product rounded once.
    Factors with fewer bits, or a product split into several, give other results.
    """
    count = 32
    for dtype, bits in ((torch.float32, 24), (torch.float64, 53)):
        drawn = torch.arange(count * count) * 2246822519 % 2 ** (bits - 1)
        rows = (2 ** (bits - 1) + drawn | 1).to(device, dtype).view(count, count)
        factors, expected = rows[-1], rows * rows[-1]
        diagonal, image = torch.diag(factors), rows.view(1, count, 1, count).expand(1, count, 4, count).contiguous()
        kernel, scaled = diagonal.view(count, count, 1, 1), image * factors.view(-1, 1, 1)
        answers = [rows @ diagonal, (diagonal @ rows.T).T, nn.functional.linear(rows, diagonal)]
        answers += [torch.bmm(rows[None], diagonal[None])[0]]
        convolved = [nn.functional.conv2d(image, kernel), nn.functional.conv_transpose2d(image, kernel)]
        if not all(torch.equal(answer, expected) for answer in answers) or not all(
            torch.equal(result, scaled) for result in convolved
        ):
            raise InputError(
                f"products of {str(dtype).removeprefix('torch.')} numbers lose bits on this machine",
                why="a library below torch was told to compute with fewer bits when the program began",
                do="start a new process without such a setting (ONEDNN_DEFAULT_FPMATH_MODE)",
            )


def require_evaluation() -> None:
    """Raise unless this thread is inside `evaluation` with its settings intact: other products may have fewer bits."""
    if _evaluating.get() != threading.get_ident():
        raise RuntimeError("the network was to be evaluated outside of the checker's arithmetic; please report this")
    refuse_changed()


def refuse_changed() -> None:
    """Raise if the model's own code, or another thread, changed the settings of `evaluation`."""
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) or any(
        getattr(owner, name) != strict for owner, name, strict in precision_settings()
    ):
        raise InputError(
            "torch's precision settings were changed during the check",
            why="another thread, or the model's own code, sets them",
        )


def own_dtype(model: nn.Module) -> torch.dtype:
    """Return the floating-point type that the network computes with."""
    dtypes = [p.dtype for p in [*model.parameters(), *model.buffers()] if p.is_floating_point()]
    return dtypes[0] if dtypes else torch.float32


def outputs(model: nn.Module, images: Form, least: int = 1, head: Sequence[str] = ()) -> Form:
    """Return the network's outputs [P, K] over P boxes, K at least ``least`` (one or two).

    ``head``: what the claim takes off them; the scores before it are returned.
    """
    require_evaluation()
    UNBOUNDED.clear()
    watch_rules()
    Form.strided = Form.stepped = False
    REFUSED.clear()
    Form.shown_dtype = own_dtype(model)
    try:
        output = model(images)
    except InputError:
        raise
    except (AttributeError, TypeError, RuntimeError, ValueError, NotImplementedError) as error:
        raise InputError("the checker cannot follow the network's forward pass", got=error) from error
    refuse_changed()
    if REFUSED:
        raise InputError("the checker cannot follow the network's forward pass", got=REFUSED[0])
    output = scores(output, call_of_form, head)
    require_bounded()
    if least == 1 and isinstance(output, Form) and output.ndim == 1:
        output = output.unsqueeze(1)  # one value for each image
    number = "one output" if least == 1 else "two outputs"
    if (
        not isinstance(output, Form)
        or output.ndim != 2
        or output.shape[0] != images.shape[0]
        or output.shape[1] < least
    ):
        raise InputError(f"the network must return one row of at least {number} for each image")
    return output


def own_answers(model: nn.Module, images: Tensor, head: Sequence[str] = ()) -> Tensor | None:
    """Return the module's own answers [P, K] to these images, or the scores from which ``head`` makes them.

    None if it does not return one row per image, or if an answer depends on the other images or changes between calls.
    """
    require_evaluation()
    batch = images.to(own_dtype(model))
    given, again, alone = (_answers(model, part, head) for part in (batch, batch, batch[:1]))
    refuse_changed()
    if given.ndim == 1:
        given, again, alone = (answers.unsqueeze(1) for answers in (given, again, alone))
    if given.ndim != 2 or len(given) != len(images):
        return None
    # on a GPU a library may sum in another order from call to call, elsewhere from batch size to batch size
    fixed = given.is_cuda or torch.allclose(given, again, rtol=0, atol=0, equal_nan=True)
    same = fixed and torch.allclose(alone, given[:1], rtol=1e-2, atol=1e-2, equal_nan=True)
    return given.double() if same else None


def _answers(model: nn.Module, batch: Tensor, head: Sequence[str]) -> Tensor:
    watched = Watched()
    with watched:
        output = model(batch)
    found: Tensor = scores(output, watched.call_of, head)
    return found


def coarse(answers: Tensor) -> Tensor:
    """Bound how far the module's own arithmetic may be from exact [P]: far more than float32, or TF32 on a GPU, can explain."""
    return 2.0**-7 * (1 + answers.abs().amax(1))


FLOAT32, GPU = 2.0, 2.0**14
"""How many half widths of the float32 bounds an evaluation may be off by. They hold for float32 sums in any order; a GPU
library may use other algorithms (Winograd, FFT), for which only `coarse` is known.
"""


def explained(answers: Tensor, exact: Form, rounded: Form) -> Tensor:
    """Return which answers [P, K] float rounding explains: close to the exact ones, and to what float32 can produce.

    Worst-case bounds of a deep network may be wide, or infinite if an overflow is possible: then `coarse` alone decides.
    """
    slack = ((GPU if answers.is_cuda else FLOAT32) - 1) * rounded.reach
    near = (answers >= rounded.lower() - slack) & (answers <= rounded.upper() + slack)
    far, known = coarse(answers)[:, None], torch.isfinite(rounded.reach)
    if Form.stepped:  # a network of whole numbers may take a step where a float32 sum ends on the other side of a half
        far = torch.where(known, math.inf, far)
    return (
        torch.isfinite(answers) & (near | ~known) & (answers >= exact.lower() - far) & (answers <= exact.upper() + far)
    )
