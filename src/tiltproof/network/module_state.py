"""What a module keeps between two calls and asks torch for in one: a text for each thing that its code can reach and change.

The search begins at the modules and their classes, and follows attributes, containers, functions, and what the code of functions names:
closures, globals, defaults. Code of torch, NumPy, the standard library and this package is not searched; values that it made are.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import itertools
import logging
import os
import random
import sys
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import BuiltinMethodType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tiltproof.errors import InputError, shown

MANAGED = ("_parameters", "_buffers", "_modules")
"""Attributes of a module whose contents `unchanged` compares; here only their names count."""
MOST_OBJECTS = 500_000
"""Objects visited before a module is refused."""
FIXED = "make forward a fixed function of each single image"

_LIBRARIES = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, np.__file__, Path(__file__).parent))
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device)
_SHOWN = (itertools.count, itertools.repeat)
"""Iterators whose text shows their position."""
_OUTLETS = (logging.Logger, logging.Handler, logging.Manager, io.IOBase)
"""What a program writes to."""
_GENERATORS = {
    random.Random: lambda generator: generator.getstate(),
    np.random.RandomState: lambda generator: generator.get_state(),
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.BitGenerator: lambda generator: generator.state,
    torch.Generator: lambda generator: generator.get_state(),
}
"""Random number generators and their states."""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Refuse a module whose weights or buffers are changed inside, and give it back as it was if it is refused.

    Some layers take their first batch for their parameters (ActNorm): that one must be the user's, not one of ours.
    """
    before = {name: tensor.clone() for name, tensor in _tensors(model).items()}
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    refused = True
    try:
        yield
        refused = False
    finally:  # a changed module is the cause of any other error
        after = _tensors(model)
        changed = [name for name in before if name not in after or not same_bits(after[name], before[name])]
        for name in changed:
            if name in after and after[name].shape == before[name].shape:
                after[name].copy_(before[name])
        if refused or changed:
            for module, known in attributes:
                _put_back(vars(module), known)
        if changed:
            raise InputError(
                "the model changes its own weights or buffers in forward, in eval mode",
                got=shown(changed[0]),
                why="a layer that takes its parameters from the first images that it sees, or keeps statistics",
                do="call model(images) once on data of yours if its first call is a special one; the model was put back as it was",
            )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, also those that are not saved."""
    return {
        name: tensor.detach()
        for name, tensor in {**model.state_dict(), **dict(model.named_buffers())}.items()
        if isinstance(tensor, Tensor)
    }


def _put_back(attributes: dict[str, Any], known: dict[str, Any]) -> None:
    for name in [name for name in attributes if name not in MANAGED]:
        if name not in known:
            del attributes[name]
    attributes.update((name, value) for name, value in known.items() if name not in MANAGED)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def copied(model: nn.Module) -> nn.Module:
    """A copy to try calls on, so that the user's module keeps nothing of them; the module itself if it has no code of its own or cannot
    be copied."""
    if not any(_own(kind) for module in model.modules() for kind in type(module).__mro__):
        return model
    try:
        return copy.deepcopy(model)
    except Exception:  # whatever a class raises that cannot be copied
        return model


def state_of(model: nn.Module) -> dict[str, str]:
    """State of modules besides the numbers of weights and buffers, and state of their code outside of them, by name; a call that changes
    any of it makes the next call another function."""
    search = _Search(model)
    state = {"os.environ": search.text("os.environ", dict(os.environ))}

    def add(name: str, value: Any) -> None:
        while name in state:  # classes of one name
            name += "'"
        state[name] = search.text(name, value)

    for path, module in model.named_modules():
        for name, value in vars(module).items():
            managed = name in MANAGED and isinstance(value, dict)
            names = {key: each is None for key, each in value.items()} if managed else value
            add(f"{path}.{name}".lstrip("."), names)
    for kind in dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__ if _own(kind)):
        for name, value in _members(kind).items():
            add(f"{kind.__qualname__}.{name}", value)
    return state


class _Search:
    """Visits everything that can be reached from a value, once."""

    def __init__(self, model: nn.Module) -> None:
        self.numbers: dict[int, int] = {}
        self.visited: list[Any] = []  # keeps the values alive, so that no two share an id
        for module in model.modules():  # these and their classes have names of their own in `state_of`
            for value in (module, *filter(_own, type(module).__mro__)):
                self.visit(value)

    def visit(self, value: Any) -> None:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.visited)
            self.visited.append(value)

    def text(self, name: str, value: Any) -> str:
        """A text that changes when anything inside the value does."""
        digest, pending = hashlib.sha256(), [value]
        while pending:
            value = pending.pop()
            if value is None or isinstance(value, _PLAIN):
                shows = repr(value)
            elif id(value) in self.numbers:
                shows = f"#{self.numbers[id(value)]}"
            else:
                self.visit(value)
                if len(self.visited) > MOST_OBJECTS:
                    raise _refused(name, f"more than {MOST_OBJECTS} objects", "hold fewer in the model")
                text, inside = _look(name, value)
                shows = f"{type(value).__qualname__} {len(inside)} {text}"
                pending += inside
            digest.update(shows.encode(errors="backslashreplace") + b"\0")
        return digest.hexdigest()


def _refused(name: str, held: str, do: str = FIXED) -> InputError:
    return InputError(
        f"the model holds {held}",
        got=f"in {shown(name)}",
        why="state that cannot be compared between two calls of forward",
        do=do,
    )


def _look(name: str, value: Any) -> tuple[str, list[Any]]:
    """What a value shows of itself, and the values inside it."""
    kind = type(value)
    if isinstance(value, type):
        return repr(value), [inside for each in value.__mro__ if _own(each) for inside in _flat(_members(each))]
    if isinstance(value, FunctionType):
        return value.__qualname__, _reached(value)
    if isinstance(value, ModuleType):  # its functions and classes count where code names them
        data = {} if _library(getattr(value, "__file__", None)) else vars(value)
        return repr(value), _flat({key: each for key, each in data.items() if not _dunder(key) and not _code(each)})
    if isinstance(value, (CodeType, *_OUTLETS, *_SHOWN)):
        return repr(value), []
    if isinstance(value, random.SystemRandom):
        raise _refused(name, "a random number generator of the operating system")
    if isinstance(value, (Iterator, AsyncIterator, Coroutine)) and not _own(kind):
        raise _refused(name, f"an iterator of type {kind.__qualname__}, which does not show its position")
    text, inside = _numbers(value)
    if not isinstance(value, Tensor) or kind in (Tensor, nn.Parameter):
        with suppress(TypeError):
            inside += _flat(vars(value))
    inside += _slots(value) + [each for each in kind.__mro__ if _own(each)]
    return text if inside or text or _own(kind) else repr(value), inside


def _numbers(value: Any) -> tuple[str, list[Any]]:
    """A digest of arrays; what containers, generators and references hold."""
    if isinstance(value, Tensor):
        with suppress(RuntimeError):  # a tensor without numbers, such as a traced one
            numbers = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            return f"{value.dtype} {list(value.shape)} {hashlib.sha256(numbers.tobytes()).hexdigest()}", []
        return "without numbers", []
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return f"{value.shape}", list(value.flat)
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}", []
    if isinstance(value, Mapping):
        return f"{len(value)}", _flat(value)
    if isinstance(value, (list, tuple, Set, deque)):
        return f"{len(value)}", list(value)
    if isinstance(value, BuiltinMethodType):
        return value.__name__, [] if isinstance(value.__self__, ModuleType) else [value.__self__]
    if isinstance(value, (weakref.ref, ContextVar)):
        return "", [value() if isinstance(value, weakref.ref) else value.get(None)]
    return "", [state(value) for kind, state in _GENERATORS.items() if isinstance(value, kind)]


def _flat(values: Mapping[Any, Any]) -> list[Any]:
    return [each for pair in list(values.items()) for each in pair]


def _slots(value: Any) -> list[Any]:
    """What an object holds outside of its dictionary: slots, and members of types that are written in C (`functools.partial`)."""
    found: list[Any] = []
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, MemberDescriptorType) and not _dunder(
                name, but=("__func__", "__self__", "__wrapped__")
            ):
                with suppress(AttributeError):  # not assigned yet
                    found += [name, member.__get__(value)]
    return found


def _members(kind: type) -> dict[str, Any]:
    """A class's own attributes and methods; of the names that Python reserves, methods only."""
    return {name: value for name, value in vars(kind).items() if not _dunder(name) or _code(value)}


def _reached(function: FunctionType) -> list[Any]:
    """A function's attributes, defaults and closure, and the global variables that its code names, except in libraries."""
    found: dict[str, Any] = {"defaults": function.__defaults__, "keyword defaults": function.__kwdefaults__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            found[f"closure {name}"] = cell.cell_contents
    if not _library(function.__code__.co_filename):
        names = _names(function.__code__)
        found |= _named(function.__globals__, names, "")
    return _flat(found) + _flat(vars(function))


def _named(variables: Mapping[str, Any], names: Iterable[str], prefix: str) -> dict[str, Any]:
    """The variables of these names, and those of modules among them."""
    found: dict[str, Any] = {}
    for name in names:
        value = variables.get(name)
        if not isinstance(value, ModuleType):
            found |= {prefix + name: value} if name in variables else {}
        elif not _library(getattr(value, "__file__", None)) and prefix.count(".") < 4:
            found |= _named(vars(value), names, f"{prefix}{name}.")
    return found


def _names(code: CodeType) -> list[str]:
    """Names of global variables and attributes in a function and the functions defined in it."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _dunder(name: str, but: tuple[str, ...] = ()) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in but


def _code(value: Any) -> bool:
    return isinstance(value, (FunctionType, staticmethod, classmethod, property, type, ModuleType))


def _own(kind: type) -> bool:
    """Whether the class is not a library's."""
    module = sys.modules.get(str(kind.__module__))
    if module is None or str(kind.__module__) in sys.builtin_module_names:
        return module is None
    return not _library(getattr(module, "__file__", None))


@functools.lru_cache(maxsize=4096)
def _library(file: str | None) -> bool:
    """Whether code of this file is torch's, NumPy's, the standard library's or this package's."""
    if file is None or file.startswith("<"):
        return file is not None and file.startswith("<frozen")
    standard = file.startswith(_STANDARD) and not {"site-packages", "dist-packages"}.intersection(Path(file).parts)
    return standard or file.startswith(_LIBRARIES)


# What a forward pass asks torch to compute, call by call, so that the traced pass and the module's own can be
# compared.
# Code in forward may find out that it is traced, by torch's flags, a tensor's type, or operations that fail on
# tensors without numbers. However it does that, the certificate is wrong only if it then asks torch for something
# else: another function, another constant, another tensor. Python code that differs otherwise does no harm.

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
        do="take that branch out of forward; instead of weight.tolist() or weight.item() compute with the weight itself, or take "
        "the numbers once in __init__",
    )
