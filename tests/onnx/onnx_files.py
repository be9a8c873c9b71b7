"""ONNX files to read: exported by torch, or assembled node by node."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tiltproof.models import load_onnx

SHAPE = (2, 6, 5)
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
QUIET = onnxruntime.SessionOptions()
QUIET.log_severity_level, QUIET.intra_op_num_threads = 4, 1


def exported(model: nn.Module, shape: tuple[int, ...], *, any_batch: bool = True, **options: object) -> bytes:
    """Export a model with torch.onnx.export, without further packages."""
    buffer = io.BytesIO()
    axes = {"dynamic_axes": {"images": {0: "batch"}}} if any_batch else {}
    example = torch.zeros(1, *shape, dtype=next(model.parameters()).dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, example, buffer, dynamo=False, input_names=["images"], **axes, **options)
    return buffer.getvalue()


def node(op: str, *inputs: str, to: str = "", name: str = "", **attributes: object) -> onnx.NodeProto:
    """Return a node named after its op, whose output is named after the node, or ``to``."""
    name = name or f"my_{op.lower()}"
    return helper.make_node(op, inputs, [to or name], name=name, **attributes)


def random(*shape: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) / max(1.0, np.prod(shape[1:]) ** 0.5)).astype(dtype)


def message(
    nodes: list[onnx.NodeProto],
    constants: dict[str, object] | None = None,
    *,
    batch: object = "batch",
    shape: tuple[object, ...] = SHAPE,
    opset: int = 17,
    kind: int = FLOAT,
) -> onnx.ModelProto:
    """Assemble a model; the last node gives the output."""
    tensors = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name)
        for name, value in (constants or {}).items()
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("images", kind, [batch, *shape])],
        [helper.make_tensor_value_info(nodes[-1].output[0], kind, [None, None])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def with_head(
    nodes: list[onnx.NodeProto], features: int, constants: dict[str, object] | None = None, **options: object
) -> onnx.ModelProto:
    """Append a linear layer with three outputs to the nodes."""
    dtype = np.float64 if options.get("kind") == DOUBLE else np.float32
    nodes = [
        *nodes,
        node("Flatten", nodes[-1].output[0], name="flat"),
        node("Gemm", "flat", "w", "b", name="out", transB=1),
    ]
    head = {"w": random(3, features, seed=1, dtype=dtype), "b": random(3, seed=2, dtype=dtype)}
    return message(nodes, {**(constants or {}), **head}, **options)


def answers(content: bytes, images: torch.Tensor) -> torch.Tensor:
    """Return onnxruntime's outputs, image by image."""
    session = onnxruntime.InferenceSession(content, QUIET, providers=["CPUExecutionProvider"])
    (name,) = (entry.name for entry in session.get_inputs())
    return torch.cat([torch.from_numpy(session.run(None, {name: image[None].numpy()})[0]) for image in images])


def load(model: bytes | onnx.ModelProto, folder: Path, **options: object) -> nn.Module:
    """Write the file into the folder and read it."""
    (folder / "net.onnx").write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return load_onnx(folder / "net.onnx", **options)
