"""A classifier's head: what stands between its scores and its outputs without changing which of them is largest.

softmax_k = exp(s_k) / S and log softmax_k = s_k - log S, with one S > 0 for all classes of an image, and a sigmoid of each s_k alone all
increase strictly with s_k. So outputs and scores have the same order, and an argmax of either gives the same class. A run whose claim
names a head is about the scores: `scores` goes back from the outputs to them, through nothing but such functions and reshapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tiltproof.checker import attention, operations  # noqa: F401  (their rules are wrapped here)
from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.form import RULES, Form, Scores, no_rule
from tiltproof.errors import InputError

OVER_CLASSES = {
    "Softmax": (F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax),
    "LogSoftmax": (F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax),
    "ArgMax": (torch.argmax, Tensor.argmax),
}
ONE_BY_ONE = {
    "Sigmoid": (torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.special.expit),
    "LogSigmoid": (F.logsigmoid,),
}
NAMES = (*OVER_CLASSES, *ONE_BY_ONE)
SAME_ORDER = (torch.flatten, Tensor.flatten, torch.reshape, Tensor.reshape, Tensor.view, torch.squeeze, Tensor.squeeze)
KIND = {function: name for table in (OVER_CLASSES, ONE_BY_ONE) for name, entry in table.items() for function in entry}
KIND |= dict.fromkeys(SAME_ORDER, "")


class Call:
    """What a function read, with marks that change when that or its result is written to afterwards."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any, given: Any, result: Any) -> None:
        self.name, self.given = KIND[function], given
        self.axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if self.axis is None and function in (F.softmax, F.log_softmax):
            self.axis = 0 if len(given.shape) in (1, 3) else 1
        self.marks = mark(given), mark(result)

    def keeps_order(self, result: Any) -> bool:
        """Whether the numbers of each image, and they alone, are in the same order before and after."""
        if any(now is not then for now, then in zip((mark(self.given), mark(result)), self.marks, strict=True)):
            return False
        shape = list(self.given.shape)
        if self.name in OVER_CLASSES:
            if type(self.axis) is not int or not -len(shape) <= self.axis < len(shape) or self.axis % len(shape) == 0:
                return False
            return math.prod(shape[1:]) == shape[self.axis]
        return list(result.shape)[:1] == shape[:1]


def mark(value: Any) -> Any:
    """An object that is another one once the value has been written to."""
    if isinstance(value, Form):
        return value.store[0]
    return object() if value.is_inference() else VERSIONS.setdefault(value._version, value._version)


VERSIONS: dict[int, int] = {}
"""One object for each number."""
UNBOUNDED: list[Form] = []
"""Results of heads without a rule; all of them must be taken off."""


def unbounded(name: str, x: Form, *args: Any, **kwargs: Any) -> Form:
    """Stand for the result of a head that has no rule: it may be anything."""
    shape = [*x.shape]
    if name == "ArgMax":
        axis, keep = kwargs.get("dim", args[0] if args else None), kwargs.get("keepdim", len(args) > 1 and args[1])
        if type(axis) is not int:
            raise no_rule("argmax", "over all numbers")
        shape[axis : axis + 1 or len(shape)] = [1] if keep else []
    rows = torch.zeros(len(x.rows), *shape, dtype=torch.float64, device=x.device)
    rows[-1] = math.inf
    UNBOUNDED.append(Form(rows, x.unit))
    return UNBOUNDED[-1]


def keep_call(function: Callable[..., Any]) -> None:
    """Let the rule of this function note on its result what it was computed from."""
    inner, name = RULES.get(function), KIND[function]

    def wrapped(*args: Any, **kwargs: Any) -> Form:
        given = args[0] if args else kwargs["input"]
        result: Any = inner(*args, **kwargs) if inner is not None else unbounded(name, given, *args[1:], **kwargs)
        if not isinstance(given, Scores):  # of which not all numbers take part
            result.call = Call(function, args, kwargs, given, result)
        return result

    RULES[function] = wrapped
    WATCHED.add(wrapped)


WATCHED: set[Callable[..., Any]] = set()


def watch_rules() -> None:
    """Let all these functions note it, also those whose rules were registered by modules that are imported later."""
    for function, name in KIND.items():
        rule = RULES.get(function)
        if rule not in WATCHED and (name or rule is not None):
            keep_call(function)


watch_rules()


class Watched(TorchFunctionMode):
    """Note the same of the last tensors that a module computes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Call]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        given = args[0] if args else kwargs.get("input")
        if function in KIND and isinstance(given, Tensor) and isinstance(result, Tensor) and result is not given:
            self.calls = [*self.calls[-7:], (result, Call(function, args, kwargs, given, result))]
        return result

    def call_of(self, value: Any) -> Call | None:
        return next((call for result, call in reversed(self.calls) if result is value), None)


def call_of_form(value: Any) -> Call | None:
    return getattr(value, "call", None)


def scores(output: Any, call_of: Callable[[Any], Call | None], head: Sequence[str]) -> Any:
    """Return the scores [P, K] that ``head`` made the output of; raise unless exactly these functions did, in this order."""
    value, rows, missing = output, output, [*head]
    if "ArgMax" in missing[1:]:
        raise CheckFailed("the claim takes off an argmax that is not the last function")
    while missing:
        call = call_of(value)
        if call is None or not call.keeps_order(value) or call.name not in ("", missing[0]):
            raise CheckFailed(f"the network does not end in {' and '.join(reversed(head))}, which the claim takes off")
        UNBOUNDED[:] = [form for form in UNBOUNDED if form is not value]
        value = call.given
        if call.name:
            missing.pop(0)
            rows = value
    return rows.flatten(1) if head and len(rows.shape) > 2 else rows


def require_bounded() -> None:
    """Raise if the forward pass went through a head that was not taken off."""
    if UNBOUNDED:
        UNBOUNDED.clear()
        raise InputError(
            "the checker cannot follow the network's forward pass",
            got="it has no rule for a log-softmax or argmax that is not the end of a classifier",
        )
