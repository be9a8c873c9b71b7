"""An ONNX file as onnxruntime runs it: a module of which nothing but its answers is known, for uint8 semantics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.onnx.entry import Entry, entry_of
from tiltproof.onnx.protobuf import bring_in, package, parse, read_file
from tiltproof.onnx.reader import chosen_output, identity


class OnnxProgram(nn.Module):
    """The file in an onnxruntime session with its default optimizations, on the CPU. The message is among the buffers, so that a run
    folder knows it."""

    content: Tensor
    opaque = True

    def __init__(self, message: bytes, identity: bytes, entry: Entry, output: str) -> None:
        super().__init__()
        self.message, self.entry, self.output = message, entry, output
        self.register_buffer("content", torch.frombuffer(bytearray(identity), dtype=torch.uint8))
        self.session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"session": None}  # made again by a worker

    def _run(self, images: Tensor) -> Tensor:
        if self.session is None:
            runtime = package("onnxruntime")
            options = runtime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
            options.log_severity_level = 4  # what is wrong is said by the exception
            self.session = runtime.InferenceSession(self.message, options, providers=["CPUExecutionProvider"])
        (result,) = self.session.run([self.output], {self.entry.name: self.entry.feed(images)})
        return torch.from_numpy(result)[: len(images)].flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        given = self.entry.rounded(images.detach().cpu())
        try:
            parts = given.split(self.entry.batch or max(1, len(given)))
            return torch.cat([self._run(part) for part in parts]).to(images.device)
        except Exception as error:  # onnxruntime's exceptions have no common class
            raise InputError(
                "onnxruntime cannot run the ONNX file", got=shown(" ".join(str(error).split()), 300).rstrip(".")
            ) from None


def load_program(
    path: str | Path,
    *,
    shape: Sequence[int] | Callable[[], Sequence[int]] | None = None,
    layout: str | None = None,
    output: str | None = None,
) -> nn.Module:
    """Read an ONNX file for onnxruntime; arguments as in `load_onnx`. No operation needs a bound rule."""
    file = Path(path)
    package("onnxruntime")
    content = read_file(file)
    message = parse(content, file)
    graph = message.graph
    for tensor in [*graph.initializer, *(a.t for node in graph.node for a in node.attribute if a.HasField("t"))]:
        bring_in(tensor, file.parent)
    result = chosen_output(graph, output)
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in constants]
    entry = entry_of(graph, inputs, shape, layout, constants)
    about = identity(content, entry, result, graph)
    if result not in {given.name for given in graph.output}:
        graph.output.add().name = result
    return OnnxProgram(message.SerializeToString(), about, entry, result).eval()
