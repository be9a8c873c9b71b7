"""`load_onnx`: from the file to a module that agrees with onnxruntime, or a message that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from tiltproof.errors import InputError, shown
from tiltproof.onnx.crosscheck import compare
from tiltproof.onnx.module import MOST_NUMBERS, Draft, Image, OnnxModule, Value
from tiltproof.onnx.ops import merge_biases
from tiltproof.onnx.protobuf import EXPORT_AGAIN, FLOATS, Node, bring_in, numbers, package, parse, read_file, validate
from tiltproof.onnx.registry import READERS
from tiltproof.onnx.reshape import DYNAMIC


def load_onnx(path: str | Path) -> nn.Module:
    """Read the network of an ONNX file, opset 11 to 21, float32 or float64; needs ``tiltproof[onnx]``.

    Its outputs are compared with those of onnxruntime on random images, and later on those of a run.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    torch.nn.Module
        A module in eval mode on the CPU, for images [N, C, H, W] of the size that the file states, and any N.

    Raises
    ------
    InputError
        If the file cannot be read, or its outputs are not those of onnxruntime.
    UnsupportedOperation
        If a node has no bound rule; its operation and name are named.
    """
    path = Path(path)
    package("onnxruntime")  # said before the work, not after it
    content = read_file(path)
    message = parse(content, path)
    try:
        return _read(message, content, path)
    except UnicodeError:
        raise InputError(
            f"not a readable ONNX file: {shown(path)}", got="names that are no text", do=EXPORT_AGAIN
        ) from None


def _read(message: Any, content: bytes, path: Path) -> nn.Module:
    graph = message.graph
    for tensor in [*graph.initializer, *(a.t for node in graph.node for a in node.attribute if a.HasField("t"))]:
        bring_in(tensor, path.parent)
    nodes = [Node(proto) for proto in graph.node]
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or node.op not in READERS:
            where = f" of domain {shown(node.domain, 60)!r}" if node.domain else ""
            raise node.refusal(f"has no bound rule{where}", do=f"supported operations: {', '.join(sorted(READERS))}")
    values: dict[str, Value] = {}
    for tensor in graph.initializer:
        _give(values, tensor.name, numbers(tensor))
    validate(message, path)
    name, draft = _input([entry for entry in graph.input if entry.name not in values])
    _give(values, name, draft.input)
    for node in nodes:
        _convert(draft, values, node)
    result = values.get(graph.output[0].name) if len(graph.output) == 1 else None
    if not isinstance(result, Image) or result.place == 0:
        raise InputError(
            "the network of an ONNX file must have one output, computed from the image",
            got=shown([output.name for output in graph.output]),
        )
    place = merge_biases(draft, result.place)
    model = OnnxModule(dict(zip(draft.labels, draft.steps, strict=True)), place, draft.input.shape, content).eval()
    model.file = compare(message.SerializeToString(), name, model, draft.input.shape, draft.dtype, draft.any_batch)
    return model


def _input(entries: list[Any]) -> tuple[str, Draft]:
    """The one input, images [N, C, H, W] of a known size."""
    what = "the ONNX file must take one input, images [N, C, H, W]"
    if len(entries) != 1:
        raise InputError(what, got=f"{len(entries)} inputs: {shown([entry.name for entry in entries])}")
    kind = entries[0].type.tensor_type
    dims = list(kind.shape.dim)
    if kind.elem_type not in FLOATS:
        raise InputError(f"{what} of float32 or float64", got=f"ONNX's type {kind.elem_type}", do=EXPORT_AGAIN)
    shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    if len(dims) != 4 or any(size is None or size < 1 for size in shape[1:]):
        raise InputError(f"{what} of a fixed size", got=shown(shape), do="export it with C, H and W as numbers")
    if shape[0] not in (None, 1):
        raise InputError("the ONNX file takes batches of one size", got=f"batches of {shape[0]}", do=DYNAMIC)
    channels, height, width = (int(size or 0) for size in shape[1:])
    if channels * height * width > MOST_NUMBERS:
        raise InputError("the ONNX file takes images that are too large", got=shown(shape[1:]))
    return entries[0].name, Draft((channels, height, width), FLOATS[kind.elem_type], shape[0] is None)


def _convert(draft: Draft, values: dict[str, Value], node: Node) -> None:
    missing = [name for name in node.inputs if name and name not in values]
    if missing:
        raise InputError(f"ONNX operation {node} reads {shown(missing[0], 80)!r}, which nothing before it gives")
    converted = READERS[node.op](draft, node, [values[name] if name else None for name in node.inputs])
    node.finish()
    _give(values, node.outputs[0], converted)


def _give(values: dict[str, Value], name: str, value: Value) -> None:
    if not name or name in values:
        raise InputError("the ONNX file gives a value no name, or one name to two values", got=shown(name, 80))
    values[name] = value
