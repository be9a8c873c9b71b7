"""`load_tflite`: from the file's operators to the list of steps, or a message that names every operator without a rule."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

from torch import nn

from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.onnx.entry import LAYOUTS
from tiltproof.refusals import all_refused
from tiltproof.tflite import operators, whole_numbers  # noqa: F401  (they fill the table)
from tiltproof.tflite.crosscheck import compare
from tiltproof.tflite.flatbuffer import Damaged
from tiltproof.tflite.module import Draft, Given, TfliteModule, Value, here, whole_of
from tiltproof.tflite.operators import permuted
from tiltproof.tflite.registry import READERS
from tiltproof.tflite.schema import FLOAT32, RANGES, File, Node, TensorEntry, damaged, parse, read_file, signature_of
from tiltproof.tflite.whole_numbers import EXACT, to_real, to_whole

MOST_NUMBERS = 2**26
"""In one image."""


def load_tflite(path: str | Path, *, layout: str | None = None, output: str | None = None) -> nn.Module:
    """Read the network of a ``.tflite`` file, of floats or of whole numbers.

    A network of int8 or uint8 is read as what its kernels compute with whole numbers. It takes the real numbers that its input stands
    for and rounds them itself; its outputs are the real numbers that its last whole numbers stand for. A softmax or sigmoid of whole
    numbers at its end is left out, with a warning that says so. TensorFlow is not needed; where ``ai-edge-litert`` is installed, its
    interpreter's answers are compared.

    Parameters
    ----------
    path : str or Path
        A file of one graph with one image as input.
    layout : str, optional
        ``nchw`` or ``nhwc``: the order of the input's axes; ``nhwc`` unless the network begins by putting
        channels last.
    output : str, optional
        The output to read, of a file with several; an inner value can be named as well.

    Returns
    -------
    torch.nn.Module
        The network in eval mode, on the CPU. It takes images [N, C, H, W] with the pixel range that the file's network takes.

    Raises
    ------
    UnsupportedOperation
        If an operator has no rule; the message names all such operators.
    InputError
        If the file is damaged, the network takes or gives something else, or the interpreter computes something else.
    """
    path = Path(path)
    content = read_file(path)
    file = parse(content, path)
    several, file = len(file.outputs) > 1, _ending_in(file, output)
    try:
        draft, result, refused = _steps(file, layout)
    except Damaged as error:
        raise damaged(error, path) from None
    if refused:
        raise all_refused(refused, ", ".join(sorted(READERS)))
    notes = []
    if result.head:
        notes.append(
            f"{' and '.join(result.head)} of whole numbers at the network's end was left out: its outputs are the numbers before it"
        )
        warnings.warn(f"{shown(path)}: {notes[0]}", stacklevel=2)
    end = Node(len(file.nodes), "OUTPUT", (), (), None, "output")
    if result.whole is not None:
        result = to_real(draft, end, result, result.whole)
    if result.place == 0 or not draft.operators:
        raise InputError("the network of a TFLite file must compute something from the image")
    identity = content if layout is None else content + layout.encode()
    if several or output is not None:  # also of an inner value
        identity += f"\0output {file.outputs[0]}".encode()
    model = TfliteModule(draft.steps, result.place, draft.start.shape, identity, tuple(notes)).eval()
    model = model.float() if draft.largest < EXACT else model.double()
    model.file = compare(file, draft, model)
    return model


def _ending_in(file: File, output: str | None) -> File:
    """Return the file with one output, and the operators that it is computed from."""
    names = shown(", ".join(file.tensors[number].name for number in file.outputs), 300)
    makers: dict[int, Node] = {}
    for node in file.nodes:
        if not makers.keys().isdisjoint(node.outputs):
            raise _given_twice(node)
        makers |= dict.fromkeys(node.outputs, node)
    chosen = file.outputs
    if output is not None:
        chosen = tuple(number for number in makers if file.tensors[number].name == output)
        if len(chosen) != 1:
            raise InputError(
                "the TFLite file has no such output"
                if not chosen
                else "several values of the TFLite file have this name",
                got=shown(output, 80),
                do=f"choose --output among {names} (output= in Python)",
            )
    if len(chosen) != 1:
        raise InputError(
            "the network of a TFLite file must have one output",
            got=f"{len(chosen)}: {names}" if chosen else "none",
            do="choose one of them: --output NAME (output= in Python)",
        )
    waiting, wanted = [*chosen], set()
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is not None and maker.number not in wanted:
            wanted.add(maker.number)
            waiting += [number for number in maker.inputs if number >= 0]
    return replace(file, outputs=chosen, nodes=[node for node in file.nodes if node.number in wanted])


def _given_twice(node: Node) -> InputError:
    return InputError("the TFLite file gives one value twice", got=shown(node.label))


def _steps(file: File, layout: str | None) -> tuple[Draft, Value, list[UnsupportedOperation]]:
    """Convert all operators, and collect those that are refused: behind them stand values of the shapes that the file states."""
    if len(file.inputs) != 1:
        names = ", ".join(file.tensors[number].name for number in file.inputs)
        raise InputError(
            "the TFLite network must take one image", got=f"{len(file.inputs)} inputs: {shown(names, 300)}"
        )
    entry = file.tensors[file.inputs[0]]
    shape, turned = _image(file, entry, layout)
    draft = Draft(shape, file)
    known: dict[int, Given] = {entry.number: _entered(draft, entry, turned)}
    refused: list[UnsupportedOperation] = []
    for node in file.nodes:
        before = len(draft.steps)
        try:
            found = _converted(draft, node, known)
        except UnsupportedOperation as error:
            refused.append(error)
            for number in node.outputs:
                known[number] = _stand_in(file.tensors[number], node)
            continue
        if node.outputs[0] in known:
            raise _given_twice(node)
        known[node.outputs[0]] = found
        draft.operators.append((node, before, len(draft.steps)))
    result = known.get(file.outputs[0])
    if not isinstance(result, Value):
        raise InputError(
            "the TFLite network's output is computed by no operator", got=shown(file.tensors[file.outputs[0]].name)
        )
    return draft, result, refused


def _converted(draft: Draft, node: Node, known: dict[int, Given]) -> Given:
    if node.op not in READERS:
        raise node.refusal("has no bound rule")
    if len(node.outputs) != 1:
        raise node.refusal(f"gives {len(node.outputs)} tensors")
    given: list[Given] = []
    for number in node.inputs:
        if number >= 0 and number not in known:
            known[number] = draft.file.constant(number)
        found = known[number] if number >= 0 else None
        if number >= 0 and found is None:
            name = draft.file.tensors[number].name
            raise InputError("the TFLite file has an operator that reads what nothing before it gives", got=shown(name))
        given.append(found)
    if not given or given[0] is None:
        raise node.refusal("reads nothing")
    try:
        found = READERS[node.op](draft, node, given)
    except IndexError:
        raise node.refusal(f"has {len(given)} inputs, fewer than it needs") from None
    node.finish()
    _agree(draft, node, found)
    return found


def _agree(draft: Draft, node: Node, found: Given) -> None:
    """What a reader gives must have the shape and the kind of numbers that the file states."""
    entry = draft.entry(node)
    if not isinstance(found, Value):
        return
    if entry.shape[:1] != (1,) or here(entry.shape) != found.shape:
        raise InputError(
            f"TFLite operator {node.op} at {shown(node.label, 80)!r} gives another shape than the file states",
            got=f"{list(found.shape)}, and the file says {list(entry.shape)} (images here are channels first)",
            why="a file made for several images at once, or for images of any size, or an operator that was read wrongly",
            do="convert it for one image of a fixed size",
        )
    stated = whole_of(entry, node) if entry.type in RANGES else None
    if not found.head and stated != found.whole:
        raise node.refusal("gives other numbers than the file states")
    if found.whole is None and entry.type != FLOAT32 and not found.head:
        raise node.refusal("gives other numbers than float32")


def _stand_in(entry: TensorEntry, node: Node) -> Given:
    """A value in the place of one that was refused, so that the operators after it are read too; nothing runs it."""
    whole = None
    if entry.type in RANGES:
        try:
            whole = whole_of(entry, node)
        except UnsupportedOperation:
            whole = None
    return Value(0, here(entry.shape), whole)


TO_LAST = [0, 2, 3, 1]
"""The order of axes that puts channels last."""


def _turned_at_once(file: File, entry: TensorEntry) -> bool:
    """Whether the network begins by putting channels last: TFLite's convolutions and poolings take them there."""
    number = entry.number
    for node in file.nodes:
        if number not in node.inputs[:1]:
            continue
        if node.op == "TRANSPOSE" and len(node.inputs) == 2:
            order = file.constant(node.inputs[1]) if node.inputs[1] >= 0 else None
            return order is not None and order.reshape(-1).tolist() == TO_LAST
        if node.op not in ("QUANTIZE", "DEQUANTIZE") or not node.outputs:
            return False
        number = node.outputs[0]
    return False


def _image(file: File, entry: TensorEntry, layout: str | None) -> tuple[tuple[int, ...], bool]:
    """Channels, height and width of the images, and whether channels come first in the file."""
    if layout is not None and layout not in LAYOUTS:
        raise InputError("unknown layout", got=shown(layout), do=f"use one of {', '.join(LAYOUTS)}")
    seen, sizes = signature_of(entry.signature), entry.shape[1:]
    if entry.type != FLOAT32 and entry.type not in RANGES:
        raise InputError("the TFLite network must take images of float32, int8 or uint8", got=f"type {entry.type}")
    if len(entry.shape) != 4 or any(size < 1 for size in sizes) or math.prod(sizes) > MOST_NUMBERS:
        raise InputError("the TFLite network must take images [N, H, W, C]", got=seen)
    if any(size < 0 for size in entry.signature[1:]):
        raise InputError("the TFLite network takes images of any size", got=seen, do="convert it for one size")
    if entry.shape[0] != 1:
        raise InputError("the TFLite network takes several images at once", got=seen, do="convert it for one image")
    first = layout == "nchw" if layout else _turned_at_once(file, entry)
    return (sizes if first else here(entry.shape)), first


def _entered(draft: Draft, entry: TensorEntry, first: bool) -> Value:
    """Steps from images to what the file takes."""
    node, found = Node(-1, "INPUT", (), (), None, "input"), draft.start
    if first:  # the file calls these axes height, width and channels
        found = draft.step(node, permuted, (found,), order=(0, 3, 1, 2))
    if entry.type == FLOAT32:
        return found
    return to_whole(draft, node, found, whole_of(entry, node))
