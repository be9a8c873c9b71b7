"""`load_onnx`: from the file to a module that agrees with onnxruntime, or a message that says why not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.onnx import arithmetic, choices, norms, pooling, rearranging, sums  # noqa: F401  (they fill the table)
from tiltproof.onnx.crosscheck import compare
from tiltproof.onnx.entry import Entry, entry_of
from tiltproof.onnx.heads import refuse_inner_heads
from tiltproof.onnx.legacy import fill_paddings
from tiltproof.onnx.module import TRY_BATCH, Draft, Image, OnnxModule, Quantized, Value
from tiltproof.onnx.ops import merge_biases
from tiltproof.onnx.protobuf import (
    EXPORT_AGAIN,
    NEWEST,
    Node,
    bring_in,
    defined_by,
    numbers,
    opset,
    package,
    parse,
    read_file,
    validate,
)
from tiltproof.onnx.quantized import MOVES, OF_RUNTIME
from tiltproof.onnx.registry import READERS
from tiltproof.onnx.reshape import in_shape, turned
from tiltproof.refusals import advice, all_refused


def load_onnx(
    path: str | Path,
    *,
    shape: Sequence[int] | Callable[[], Sequence[int]] | None = None,
    layout: str | None = None,
    output: str | None = None,
) -> nn.Module:
    """Read the network of an ONNX file as a module in eval mode, on the CPU.

    It takes images [N, C, H, W] for any N, whatever layout and batch size the file has. A node without a bound rule is
    refused by its op and name. On random images, and later on those of a run, its answers are compared with those of
    onnxruntime to the file. Needs ``tiltproof[onnx]``.

    Parameters
    ----------
    path : str or Path
        The file: opset 7 or newer; float16, float32 or float64.
    shape : (int, int, int), optional
        Channels, height and width of the images, where the file leaves them open or takes a row of numbers. A function
        that returns them is called only if the file leaves height or width open.
    layout : str, optional
        ``nchw`` or ``nhwc``: the order of the file's axes, or of the numbers in its row; by default as its sizes say.
    output : str, optional
        The output to read, of a file with several; an inner value can be named as well.

    Returns
    -------
    torch.nn.Module
        The network; its parameters are the file's numbers.

    Raises
    ------
    InputError
        If the file is damaged, its input is ambiguous, or onnxruntime computes something else.
    UnsupportedOperation
        If a node has no bound rule.
    """
    path = Path(path)
    package("onnxruntime")  # said before the work, not after it
    content = read_file(path)
    message = parse(content, path)
    try:
        return _read(message, content, path, shape, layout, output)
    except UnicodeError:
        raise InputError(
            f"not a readable ONNX file: {shown(path)}", got="names that are no text", do=EXPORT_AGAIN
        ) from None


def _read(
    message: Any,
    content: bytes,
    path: Path,
    shape: Sequence[int] | Callable[[], Sequence[int]] | None,
    layout: str | None,
    output: str | None,
) -> nn.Module:
    graph, version = message.graph, opset(message)
    for tensor in [*graph.initializer, *(a.t for node in graph.node for a in node.attribute if a.HasField("t"))]:
        bring_in(tensor, path.parent)
    result = chosen_output(graph, output)
    nodes = [Node(proto, version) for proto in _needed(graph, result)]
    refused = _without_rule(nodes)
    if refused:
        with suppress(Exception):  # the file may be read no further; what can be is for the list alone
            _steps(message, nodes, path, shape, layout, refused)
        raise all_refused(refused, _supported())
    draft, values, entry, start = _steps(message, nodes, path, shape, layout, refused)
    if refused:
        raise all_refused(refused, _supported())
    value = values.get(result)
    if not isinstance(value, Image) or value.place <= start:
        raise InputError(
            "the network of an ONNX file must have one output, computed from the image", got=shown(result, 80)
        )
    fill_paddings(draft, value.place)
    refuse_inner_heads(draft, value.place)
    place = merge_biases(draft, draft.without(draft.unread(value.place), value.place))
    steps = dict(zip(draft.labels, draft.steps, strict=True))
    model = OnnxModule(steps, place, entry.shape, identity(content, entry, result, graph), entry.text).eval()
    if result not in {given.name for given in graph.output}:
        graph.output.add().name = result
    model.file = compare(message.SerializeToString(), model, entry, result, draft.half)
    return model


def _steps(
    message: Any,
    nodes: Sequence[Node],
    path: Path,
    shape: Sequence[int] | Callable[[], Sequence[int]] | None,
    layout: str | None,
    refused: list[UnsupportedOperation],
) -> tuple[Draft, dict[str, Value], Entry, int]:
    """Convert the nodes, all but the refused ones, which are added to the list; return the number of the first step too."""
    graph = message.graph
    values: dict[str, Value] = {}
    for tensor in graph.initializer:
        _give(values, tensor.name, numbers(tensor))
    validate(message, path)
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in values]
    entry = entry_of(graph, inputs, shape, layout, constants)
    draft = Draft(entry.shape, entry.dtype, entry.batch, entry.half)
    _give(values, entry.name, _enter(draft, entry))
    start, stand_ins = len(draft.steps), _StandIns(message, draft)
    for node in nodes:
        try:
            if _has_rule(node) and not stand_ins.unread(node):
                _convert(draft, values, node)
                continue
        except UnsupportedOperation as error:
            refused.append(error)
        except InputError:
            if not refused:
                raise
        assert refused, "a stand-in for a node that was not refused"
        values |= stand_ins.of(node)
    return draft, values, entry, start


class _StandIns:
    """Values in the place of those that refused nodes would give, so that the nodes after them are read too; nothing runs them."""

    def __init__(self, message: Any, draft: Draft) -> None:
        self.message, self.draft = message, draft
        self.shapes: dict[str, tuple[int, ...]] | None = None
        self.unknown: set[str] = set()
        """Values whose shape onnx cannot tell, or which are not floats."""

    def unread(self, node: Node) -> bool:
        return not self.unknown.isdisjoint(node.inputs)

    def of(self, node: Node) -> dict[str, Value]:
        made: dict[str, Value] = {}
        self.shapes = _inferred(self.message) if self.shapes is None else self.shapes
        for name in filter(None, node.outputs):
            self.unknown.add(name)
            with suppress(InputError, KeyError):
                made[name] = self.draft.add(node, _anything, (), shape=self.shapes[name], dtype=self.draft.dtype)
                self.unknown.remove(name)
        return made


def _anything(*, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(TRY_BATCH, *shape, dtype=dtype, device="meta")


FLOATS = (1, 10, 11)
"""onnx's numbers of float32, float16 and float64."""


def _inferred(message: Any) -> dict[str, tuple[int, ...]]:
    """Shapes without the batch of the floats whose shape onnx can tell."""
    try:
        graph = package("onnx").shape_inference.infer_shapes(message).graph
    except Exception:  # it refuses what it does not know
        return {}
    shapes = {}
    for info in [*graph.value_info, *graph.output]:
        sizes = tuple(int(dim.dim_value) for dim in info.type.tensor_type.shape.dim)[1:]
        if info.type.tensor_type.elem_type in FLOATS and sizes and all(sizes):
            shapes[info.name] = sizes
    return shapes


def identity(content: bytes, entry: Entry, result: str, graph: Any) -> bytes:
    """What the file's digest in the module is taken of: its content and, where there was a choice, how it was read."""
    plain = len(graph.output) == 1 and result == graph.output[0].name
    reading = {
        "shape": list(entry.shape) if tuple(entry.shape) != tuple(entry.sizes) else None,
        "layout": "nhwc" if entry.last else None,
        "output": None if plain else result,
    }
    chosen = {name: value for name, value in reading.items() if value is not None}
    return content + hashlib.sha256(json.dumps(chosen).encode()).digest() if chosen else content


def chosen_output(graph: Any, output: str | None) -> str:
    """The name of the value that is the network's output."""
    names = [str(entry.name) for entry in graph.output]
    inner = {str(name) for node in graph.node for name in node.output if name}
    if output is not None:
        if output not in inner:
            raise InputError(
                "the ONNX file has no such output",
                got=shown(output, 80),
                do=f"choose --output among {shown(', '.join(names), 300)} (output= in Python)",
            )
        return output
    behind = {_behind_names(graph, name) for name in names}
    if len(behind) == 1:
        return behind.pop()
    if len(names) != 1:
        raise InputError(
            "the network of an ONNX file must have one output",
            got=f"{len(names)}: {shown(', '.join(names), 300)}" if names else "none",
            do="choose one of them: --output NAME (output= in Python)",
        )
    return names[0]


def _behind_names(graph: Any, name: str) -> str:
    """The scores behind an output that gives the names of classes: a text looked up by ArgMax, or a dictionary of all scores."""
    makers = {made: node for node in graph.node for made in node.output}
    start = name
    while (maker := makers.get(name)) is not None and (maker.domain, maker.op_type) in NAMING:
        name = str(maker.input[NAMING[maker.domain, maker.op_type]])
    if name != start and (maker := makers.get(name)) is not None and maker.op_type == "ArgMax":
        return str(maker.input[0])
    return name


NAMING = {("ai.onnx.ml", "ZipMap"): 0, ("ai.onnx.ml", "ArrayFeatureExtractor"): 1}
"""Operations that put names to classes, and the input that holds the scores or the largest one's number."""


DOMAINS = (("", "ai.onnx"), ("com.microsoft",))
"""Of ONNX's own operations, and of onnxruntime's."""


def _needed(graph: Any, result: str) -> list[Any]:
    """The nodes that the output is computed from, in the file's order."""
    makers = {name: node for node in graph.node for name in node.output if name}
    waiting, wanted = [result], set()
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is not None and id(maker) not in wanted:
            wanted.add(id(maker))
            waiting += list(maker.input)
    return [node for node in graph.node if id(node) in wanted]


def _supported() -> str:
    return ", ".join(sorted(set(READERS) - set(choices.OF_CONSTANTS)))


def _known_domain(node: Node) -> bool:
    return node.domain in DOMAINS[node.op in OF_RUNTIME]


def _has_rule(node: Node) -> bool:
    return _known_domain(node) and node.op in READERS and defined_by(node.op, node.opset) <= NEWEST


def _without_rule(nodes: Sequence[Node]) -> list[UnsupportedOperation]:
    """Refuse the nodes whose operation has no reader, or a definition that is too new."""
    refused = []
    for node in nodes:
        if not _known_domain(node) or node.op not in READERS:
            where = f" of domain {shown(node.domain, 60)!r}" if node.domain else ""
            refused.append(
                node.refusal(f"has no bound rule{where}", f"{advice(node.op)}; supported operations: {_supported()}")
            )
        elif (changed := defined_by(node.op, node.opset)) > NEWEST:
            refused.append(
                node.refusal(f"has a definition of opset {changed}, which is newer than {NEWEST}", do=EXPORT_AGAIN)
            )
    return refused


def _enter(draft: Draft, entry: Entry) -> Image:
    """Steps from images [N, C, H, W] to what the file takes."""
    value = draft.input
    node = Node(package("onnx").NodeProto(op_type="Input", name=entry.name))
    if entry.turned:
        value = draft.add(node, turned, (value,), order=(0, 2, 3, 1))
    if value.shape != tuple(entry.sizes):
        value = draft.add(node, in_shape, (value,), shape=tuple(entry.sizes))
    return value


def _convert(draft: Draft, values: dict[str, Value], node: Node) -> None:
    missing = [name for name in node.inputs if name and name not in values]
    if missing:
        raise InputError(f"ONNX operation {node} reads {shown(missing[0], 80)!r}, which nothing before it gives")
    given = [values[name] if name else None for name in node.inputs]
    constants = choices.constants_alone(node, given)
    if constants is not None:
        for name, result in zip(node.outputs, choices.evaluated(node, constants), strict=False):
            _give(values, name, result)
        return
    whole = given[0] if given and node.op in MOVES else None
    if isinstance(whole, Quantized):
        moved = READERS[node.op](draft, node, [whole.image, *given[1:]])
        assert isinstance(moved, Image)
        converted: Value | tuple[Value, ...] = dataclasses.replace(whole, image=moved)
    else:
        converted = READERS[node.op](draft, node, given)
    node.finish()
    for name, value in zip(node.outputs, converted if isinstance(converted, tuple) else (converted,), strict=False):
        _give(values, name, value)


def _give(values: dict[str, Value], name: str, value: Value) -> None:
    if not name or name in values:
        raise InputError("the ONNX file gives a value no name, or one name to two values", got=shown(name, 80))
    values[name] = value
