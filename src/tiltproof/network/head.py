"""Take the head off a classifier: a softmax, sigmoid or argmax that comes last says nothing that the scores before it do not say.

A softmax or log-softmax over the classes, p_k = exp(s_k) / sum_j exp(s_j), and a sigmoid of every class are strictly increasing in s_k
for a given image, so p_a > p_b exactly if s_a > s_b: the largest of the outputs is the largest of the scores, and "every other output is
smaller" means the same of both. An argmax only names it. So the statement about real numbers is unchanged, margins are those of the
scores, and no bound has to follow an exponential. A float32 evaluation of a head may round two different scores to the same output; what
is certified of float32 evaluations is about the scores.

Ranges of outputs are another matter: there nothing is taken off.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tiltproof.errors import InputError

SOFTMAX, LOG_SOFTMAX, SIGMOID, LOG_SIGMOID, ARGMAX = "Softmax", "LogSoftmax", "Sigmoid", "LogSigmoid", "ArgMax"
RESHAPE = ""
KINDS: dict[Callable[..., Any], str] = {
    **dict.fromkeys([F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax], SOFTMAX),
    **dict.fromkeys([F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax], LOG_SOFTMAX),
    **dict.fromkeys([torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.special.expit], SIGMOID),
    F.logsigmoid: LOG_SIGMOID,
    **dict.fromkeys([torch.argmax, Tensor.argmax], ARGMAX),
    **dict.fromkeys([torch.flatten, Tensor.flatten, torch.reshape, Tensor.reshape, Tensor.view], RESHAPE),
    **dict.fromkeys([torch.squeeze, Tensor.squeeze], RESHAPE),
}
"""Functions that may stand between the scores and the outputs; reshapes keep the order of the numbers."""
MOST_STEPS = 8


class Made(NamedTuple):
    """A call of one of these functions: what it read and gave, and how often these tensors had been written to."""

    kind: str
    read: Tensor
    result: Tensor
    dim: int | None
    versions: tuple[int, int]

    @property
    def unchanged(self) -> bool:
        return self.versions == (self.read._version, self.result._version)

    @property
    def one_row(self) -> bool:
        """Whether all that is computed from one image is compared with one another: no other dimension has several entries."""
        if self.dim is None or not -self.read.ndim <= self.dim < self.read.ndim or self.dim % self.read.ndim == 0:
            return False
        others = [size for axis, size in enumerate(self.read.shape[1:], 1) if axis != self.dim % self.read.ndim]
        return all(size == 1 for size in others)


class _Watch(TorchFunctionMode):
    """Keeps the last calls of these functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: deque[Made] = deque(maxlen=MOST_STEPS)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kind = KINDS.get(func)
        read = args[0] if args else kwargs.get("input")
        if kind is None or not isinstance(read, Tensor) or not isinstance(result, Tensor) or kwargs.get("dtype"):
            return result
        if read.is_inference() or result.is_inference() or not read.ndim:
            return result  # nobody counts the writes to these
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if func in (F.softmax, F.log_softmax) and dim is None:
            dim = 0 if read.ndim in (1, 3) else 1  # as torch chooses it, with a warning
        dim = dim if type(dim) is int else None
        self.calls.append(Made(kind, read, result, dim, (read._version, result._version)))
        return result

    def scores(self, output: Any) -> tuple[Any, tuple[str, ...]]:
        """What the output was computed from by heads, and their names, the last one first; the output itself without any."""
        value, rows, names = output, output, list[str]()
        for made in reversed(self.calls):
            if made.result is not value or not isinstance(value, Tensor):
                continue
            if not made.unchanged or made.result.shape[:1] != made.read.shape[:1]:
                break
            if made.kind in (SOFTMAX, LOG_SOFTMAX, ARGMAX) and not made.one_row:
                break
            if made.kind == ARGMAX and names:
                break
            value = made.read
            if made.kind:
                names.append(made.kind)
                rows = value
        if not names or math.prod(rows.shape[1:]) < 2 or not (names[0] == ARGMAX or output.ndim == 2):
            return output, ()
        return (rows if rows.ndim == 2 else rows.flatten(1)), tuple(names)


class WithoutHead(nn.Module):
    """The scores of a classifier. Weights and digests are those of ``model``."""

    def __init__(self, model: nn.Module, head: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.head, self.training = model, head, model.training

    def forward(self, images: Tensor) -> Tensor:
        watch = _Watch()
        with watch:
            output = self.model(images)
        scores, head = watch.scores(output)
        if head != self.head:
            raise InputError(
                "the model ends in another head than before",
                got=f"{', '.join(head) or 'none'} instead of {', '.join(self.head)}",
                why="code in forward that depends on the values of images, or on how many there are",
            )
        result: Tensor = scores
        return result


def head_of(model: nn.Module, images: Tensor) -> tuple[str, ...]:
    """Names of the functions that make the model's outputs of scores, the last one first.

    A model that fails has none: whoever reads it says why.
    """
    watch = _Watch()
    try:
        with watch:
            output = model(images)
    except Exception:
        return ()
    return watch.scores(output)[1]
