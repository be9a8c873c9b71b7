"""Write a network as an ONNX file, float32, for one image; compared with onnxruntime before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.network import Network, eval_mode, proof_arithmetic, read_network, run
from tiltproof.onnx import arithmetic, norms, ops, pooling, reshape  # noqa: F401  (they fill the table)
from tiltproof.onnx.ops import LIBRARY
from tiltproof.onnx.protobuf import package
from tiltproof.onnx.registry import WRITERS, GraphDraft
from tiltproof.runs.atomic_io import replace_bytes
from tiltproof.runs.manifest import package_version

OPSET, IR_VERSION = 13, 7
"""Old enough for every verifier that reads ONNX at all."""
INPUT, OUTPUT = "images", "outputs"
IMAGES = 5
UNITS, TIMES = 2.0**12, 64
"""How far each output of onnxruntime may be away: units in its last place where it is largest, and times float32's own rounding error."""


def write_onnx(model: nn.Module, shape: tuple[int, ...], path: str | Path) -> Path:
    """Write a module as ONNX, after comparing its outputs with those that onnxruntime computes from the file.

    Parameters
    ----------
    model : torch.nn.Module
        The network, float32.
    shape : tuple of int
        Shape [C, H, W] of an image.
    path : str or Path
        The file.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If outputs differ, the package onnx or onnxruntime is missing, or the file cannot be written.
    UnsupportedOperation
        If an operation has no bound rule or no form in ONNX.
    """
    weight = next((weight for weight in model.parameters() if weight.is_floating_point()), torch.zeros(0))
    like = weight.new_zeros(1, *shape)
    with proof_arithmetic(like.device), eval_mode(model):
        content = onnx_bytes(read_network(model, shape, like))
    try:
        replace_bytes(Path(path).resolve(), content)
    except OSError as error:
        raise InputError("the ONNX file cannot be written", got=f"{path} ({error.strerror})") from None
    return Path(path)


def onnx_bytes(network: Network) -> bytes:
    """The operations of a float32 network as an ONNX file; in the proof's arithmetic."""
    onnx = package("onnx")
    if network.dtype() != torch.float32:
        raise InputError(
            "networks are written as ONNX in float32",
            got=f"a network of {network.dtype()}, of which float32 would make another one",
            do="certify and export model.float()",
        )
    live = network.network_as(torch.float32)
    names = {live.input: INPUT}
    draft = GraphDraft({INPUT: live.shape})
    for operation in live.operations:
        if operation.kind == "identity" and operation.name != live.output:
            names[operation.name] = names[operation.inputs[0]]
            continue
        name = OUTPUT if operation.name == live.output else f"n_{operation.name}"
        if operation.kind not in WRITERS:
            raise UnsupportedOperation(
                f"operation {operation.kind!r} at node {operation.name!r} cannot be written as ONNX"
            )
        WRITERS[operation.kind](draft, operation, [names[given] for given in operation.inputs], name)
        names[operation.name], draft.shapes[name] = name, operation.shape
    if live.output == live.input:
        draft.add("Identity", [INPUT], OUTPUT)
    ends = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, *shape])]
        for name, shape in ((INPUT, live.shape), (OUTPUT, live.output_shape()))
    ]
    graph = onnx.helper.make_graph(draft.nodes, "network", *ends, initializer=draft.numbers)
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    message = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tiltproof")
    message.producer_version = package_version()
    onnx.checker.check_model(message, full_check=True)
    content: bytes = message.SerializeToString()
    _compare(content, network)
    return content


def _compare(content: bytes, network: Network) -> None:
    """onnxruntime on the file against the operations in float64, on random images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(IMAGES, *network.shape, generator=generator)
    device = next((get().device for get in network.leaves.values()), torch.device("cpu"))
    with torch.no_grad():
        own, real = (_outputs(network, images.to(device, kind)) for kind in (torch.float32, torch.float64))
    theirs = _run(content, images)
    if not bool(real.isfinite().all()) or not bool(theirs.isfinite().all()):
        raise InputError("the network gives NaN or infinity", why="training that diverged")
    # each output by what rounding does to itself: beside a large one a small one would not be compared at all
    largest, rounding = real.abs().amax(0), (own - real).abs().amax(0)
    allowed = UNITS * torch.finfo(torch.float32).eps * largest + TIMES * rounding
    if _ends_in(network, {"sigmoid", "tanh"}):  # a library's are off by units of 1, however small they are
        allowed = allowed + LIBRARY * torch.finfo(torch.float32).eps / 2
    if theirs.shape != real.shape or not bool(((theirs - real).abs() <= allowed).all()):
        got = "another shape"
        if theirs.shape == real.shape:
            excess = ((theirs - real).abs() - allowed).amax(0).flatten()
            worst = int(excess.argmax())
            difference = float((theirs - real).abs().amax(0).flatten()[worst])
            got = f"output {worst} differs by up to {difference:.3g}, where rounding explains {float(allowed.flatten()[worst]):.2g}"
        raise InputError(
            "onnxruntime does not compute the network from the ONNX file made of it, so nothing was written",
            got=got,
            why="weights at the edge of what float32 holds",
            do="please report the network",
        )


def _ends_in(network: Network, kinds: set[str]) -> bool:
    """Whether an output may be nothing but the result of an operation of these kinds, rearranged."""
    operations, ends = {operation.name: operation for operation in network.operations}, [network.output]
    while ends:
        operation = operations.get(ends.pop())
        if operation is not None and operation.kind in kinds:
            return True
        if operation is not None and operation.kind in ("reshape", "permute", "concat", "slice", "gather", "identity"):
            ends.extend(operation.inputs)
    return False


def _outputs(network: Network, images: Tensor) -> Tensor:
    live = network.network_as(images.dtype)
    return run(live, AffineForm.constant(images))[live.output].center.double().cpu()


def _run(content: bytes, images: Tensor) -> Tensor:
    runtime = package("onnxruntime")
    options: Any = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is wrong is said by the exception
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        answers = [session.run([OUTPUT], {INPUT: image[None].numpy()})[0] for image in images]
    except Exception as error:  # onnxruntime's exceptions have no common class
        raise InputError(
            "onnxruntime cannot run the ONNX file made of the network, so nothing was written",
            got=shown(" ".join(str(error).split()), 300).rstrip("."),
        ) from None
    return torch.cat([torch.from_numpy(answer) for answer in answers]).double()
