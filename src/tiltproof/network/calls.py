"""What a forward pass asks torch to compute, call by call, so that the traced pass and the module's own can be compared.

Code in forward may find out that it is traced, by torch's flags, a tensor's type, or operations that fail on tensors without numbers.
However it does that, the certificate is wrong only if it then asks torch for something else: another function, another constant, another
tensor. Python code that differs otherwise does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tiltproof.errors import InputError, shown
from tiltproof.network.module_state import same_bits

WAYS_OUT = {"numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "item"}
"""Functions after which numbers may be read or written without torch."""
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""What `item` gives while a module is traced."""


class Call(NamedTuple):
    """A function of torch, its arguments and its results. A weight is ("weight", name), another tensor ("tensor", number)."""

    function: Callable[..., Any]
    arguments: Any
    results: Any

    def __str__(self) -> str:
        function = self.function
        name = getattr(function, "__name__", str(function))
        return getattr(getattr(function, "__self__", None), "__name__", name) if name == "__get__" else name


class Pass(TorchFunctionMode):
    """Writes down the calls of one forward pass that give tensors, write into them, or take their numbers elsewhere."""

    def __init__(self, weights: dict[int, str]) -> None:
        super().__init__()
        self.weights, self.calls = weights, list[Call]()
        self.numbers: dict[int, int] = {}
        self.tensors: list[Any] = []  # and symbols, by number; alive, so that no two share an id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = self.told((args, kwargs))
        result = func(*args, **kwargs)
        written = result is None and _holds_tensor((*args, *kwargs.values()))
        if written or _holds_tensor(result) or getattr(func, "__name__", "") in WAYS_OUT:
            self.calls.append(Call(func, arguments, self.told(result)))
        return result

    def told(self, value: Any) -> Any:
        if isinstance(value, (Tensor, *SYMBOLS)):
            if id(value) in self.weights:
                return "weight", self.weights[id(value)]
            if id(value) not in self.numbers:
                self.numbers[id(value)] = len(self.tensors)
                self.tensors.append(value)
            return "tensor" if isinstance(value, Tensor) else "symbol", self.numbers[id(value)]
        if isinstance(value, (list, tuple)):
            return tuple(self.told(each) for each in value)
        if isinstance(value, dict):
            return tuple((str(key), self.told(each)) for key, each in value.items())
        if isinstance(value, slice):
            return "slice", self.told((value.start, value.stop, value.step))
        if isinstance(value, np.ndarray):
            return "array", value.shape, str(value.dtype), value.tobytes()
        if type(value) is int:
            return value
        if value is None or isinstance(
            value, (bool, float, complex, str, bytes, np.generic, torch.dtype, torch.device)
        ):
            return repr(value)  # tells -0.0 from 0.0, and NaN is equal to NaN
        return type(value).__qualname__


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and any(map(_holds_tensor, value)))


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Pass]]:
    """Write down each call of the module inside."""
    passes: list[Pass] = []
    names: dict[int, str] = {}
    first = {name: names.setdefault(id(tensor), name) for name, tensor in _weights(model).items()}
    """A name for each weight, the same for shared ones; while it is traced, a module has other tensors of these names."""
    open_passes: list[Pass] = []

    def begin(module: nn.Module, _inputs: Any) -> None:
        open_passes.append(Pass({id(tensor): first.get(name, name) for name, tensor in _weights(module).items()}))
        open_passes[-1].__enter__()

    def end(_module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        if open_passes:
            passes.append(open_passes.pop())
            passes[-1].__exit__(None, None, None)

    hooks = (
        []
        if isinstance(model, torch.jit.ScriptModule)
        else [  # which export refuses
            model.register_forward_pre_hook(begin, prepend=True),
            model.register_forward_hook(end, always_call=True),
        ]
    )
    try:
        yield passes
    finally:
        for unfinished in reversed(open_passes):  # an interrupt skips hooks
            unfinished.__exit__(None, None, None)
        for hook in hooks:
            hook.remove()


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Weights, buffers, and other tensors among the attributes."""
    found = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    for path, part in module.named_modules(remove_duplicate=False):
        found |= {f"{path}.{name}": value for name, value in vars(part).items() if isinstance(value, Tensor)}
    return found


def difference(traced: Pass, own: Pass, sizes: bool = True) -> str | None:
    """Where two passes part, in words; None if they ask for the same. Without ``sizes`` whole numbers may differ, as for another batch."""
    same = _Matched(traced, own, sizes)
    for place in range(max(len(traced.calls), len(own.calls))):
        one, other = (each.calls[place] if place < len(each.calls) else None for each in (traced, own))
        if one is None or other is None or one.function != other.function:
            return f"call {place + 1} of torch is {shown(one or 'missing')} when traced, and {shown(other or 'missing')} otherwise"
        if not same.arguments(one.arguments, other.arguments):
            return f"call {place + 1} of torch, {shown(one)}, has other arguments when traced"
        if not same.results(one.results, other.results):
            return f"call {place + 1} of torch, {shown(one)}, has other results when traced"
    return None


class _Matched:
    """Which tensor of the traced pass is which one of the module's own."""

    def __init__(self, traced: Pass, own: Pass, sizes: bool) -> None:
        self.traced, self.own, self.sizes = traced, own, sizes
        self.known: dict[int, int] = {}
        self.values: dict[int, Any] = {}
        """What the symbols of the traced pass stand for in the other one."""

    def arguments(self, one: Any, other: Any) -> bool:
        if isinstance(one, tuple) and one[:1] == ("symbol",):
            return one[1] in self.values and bool(self.values[one[1]] == other)
        if not (isinstance(one, tuple) and isinstance(other, tuple)):
            return bool(one == other) or (not self.sizes and type(one) is int and type(other) is int)
        if one[:1] == ("tensor",) and other[:1] == ("tensor",):
            if one[1] not in self.known and not self._from_outside(one[1], other[1]):
                return False
            return self.known[one[1]] == other[1]
        return len(one) == len(other) and all(map(self.arguments, one, other))

    def _from_outside(self, one: int, other: int) -> bool:
        """The image, or a tensor that no call made: different ones stay different, and have the same numbers where both have numbers."""
        if other in self.known.values():
            return False
        tensors = self.traced.tensors[one], self.own.tensors[other]
        self.known[one] = other
        return {type(tensor) for tensor in tensors} != {Tensor} or not self.sizes or same_bits(*tensors)

    def results(self, one: Any, other: Any) -> bool:
        """In eval mode dropout returns its input, and a new tensor when it is traced: two numbers for one are right."""
        if isinstance(one, tuple) and one[:1] == ("symbol",):
            return bool(self.values.setdefault(one[1], other) == other)
        if isinstance(one, tuple) and isinstance(other, tuple):
            if one[:1] == ("tensor",) and other[:1] == ("tensor",):
                return self.known.setdefault(one[1], other[1]) == other[1]
            return len(one) == len(other) and all(map(self.results, one, other))
        return True


def other_calls(got: str) -> InputError:
    return InputError(
        "the model asks torch for something else while it is traced",
        got=got,
        why="code in forward that depends on being exported, on the type of tensors, on what fails while tracing, or on the "
        "batch size; or numbers taken out of tensors",
        do="take that branch out of forward",
    )
