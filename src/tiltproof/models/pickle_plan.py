"""What a torch.save pickle would build, worked out without building it: no code is run and no tensor is allocated.

A pickle is a program. Here its instructions are followed with inert stand-ins instead of functions, and only those that
a dictionary of tensors needs are known; anything else ends the reading. What comes out tells how large every tensor is
before torch is asked to load one.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

STORAGES = {
    f"torch {name}Storage": size
    for name, size in {
        "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "Bool": 1,
    }.items()
}  # fmt: skip
TENSOR, PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
DICTIONARY = "collections OrderedDict"
PROTOCOL = 2
"""The one that torch.save uses; torch.load remarks on others."""
NAMES = {*STORAGES, TENSOR, PARAMETER, DICTIONARY}


class NotPlain(Exception):
    """The pickle asks for more than dictionaries, lists, numbers, texts and tensors; the message names it."""


@dataclass(frozen=True)
class Name:
    """A function or class that the pickle names."""

    text: str


@dataclass(frozen=True)
class Storage:
    """The record of the archive that holds a tensor's numbers."""

    key: str
    nbytes: int
    itemsize: int


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor as the pickle describes it."""

    storage: Storage

    def __init__(self, storage: Any, offset: Any, shape: Any, stride: Any) -> None:
        numbers = [offset, *shape, *stride]
        if not (isinstance(storage, Storage) and len(shape) == len(stride) <= 8 and all(map(_is_count, numbers))):
            raise ValueError("a tensor without a usable shape")
        last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        # Within its storage, and no number of it used twice: else a few bytes could stand for gigabytes.
        if math.prod(shape) and (last + 1) * storage.itemsize > storage.nbytes:
            raise ValueError("a tensor that is larger than its storage")
        if math.prod(shape) * storage.itemsize > storage.nbytes:
            raise ValueError("a tensor that repeats its storage")
        object.__setattr__(self, "storage", storage)


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**40


def plan(program: bytes) -> tuple[Any, dict[str, Storage]]:
    """The object that the pickle describes, and all storages it needs by key.

    Raises `NotPlain`, or some other exception where the pickle is damaged.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(program):
        machine.step(opcode.name, argument)
    (result,) = machine.stack
    return result, machine.storages


class _Machine:
    """The pickle machine: a stack, marks on it, and a memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "PROTO" if argument == PROTOCOL:
                pass
            case "STOP":
                pass
            case "GLOBAL":
                if argument not in NAMES:
                    raise NotPlain(argument.replace(" ", "."))
                stack.append(Name(argument))
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[name]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                items = [stack.pop() for _ in range(count)]
                stack.append(tuple(reversed(items)))
            case "MARK":
                self.marks.append(stack)
                self.stack = []
            case "TUPLE" | "APPENDS" | "SETITEMS":
                self.stack = self.marks.pop()
                self._collect(name, stack)
            case "APPEND":
                self._collect("APPENDS", [stack.pop()])
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._collect("SETITEMS", [key, value])
            case "BINPERSID":
                stack.append(self._storage(*stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._call(function, arguments))
            case "BUILD":
                state = stack.pop()  # the attribute _metadata of a state dict
                if not (isinstance(stack[-1], dict) and isinstance(state, dict) and set(state) <= {"_metadata"}):
                    raise NotPlain("an object with attributes")
            case _:
                raise NotPlain(f"the pickle instruction {name}" + (f" {argument}" if name == "PROTO" else ""))

    def _collect(self, name: str, items: list[Any]) -> None:
        if name == "TUPLE":
            self.stack.append(tuple(items))
        elif name == "APPENDS" and type(self.stack[-1]) is list:
            self.stack[-1].extend(items)
        # Keys are texts and numbers alone: Python's hash of a tuple nested a million deep overruns the C stack.
        elif name == "SETITEMS" and type(self.stack[-1]) is dict and {type(key) for key in items[::2]} <= {str, int}:
            self.stack[-1].update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError("items for something that takes none")

    def _storage(self, word: Any, kind: Any, key: Any, location: Any, count: Any) -> Storage:
        if word != "storage" or not isinstance(key, str) or not isinstance(location, str) or not _is_count(count):
            raise ValueError("a storage without a usable description")
        storage = Storage(key, count * STORAGES[kind.text], STORAGES[kind.text])
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError("a storage described in two ways")
        return storage

    def _call(self, function: Any, arguments: Any) -> Any:
        if function == Name(DICTIONARY) and arguments == ():
            return {}
        *wanted, gradient, hooks = arguments
        if isinstance(gradient, bool) and hooks == {}:
            if function == Name(TENSOR):
                return PlannedTensor(*wanted)
            if function == Name(PARAMETER) and isinstance(wanted[0], PlannedTensor):
                return wanted[0]
        raise ValueError("a call that a dictionary of tensors does not need")
