"""What was read must compute what onnxruntime computes from the same message, up to float rounding.

This catches a node that was read wrongly; it has no part in any bound. The steps are run in float64 on the file's weights, so that what
is left of a difference is onnxruntime's own rounding, which is about as large as torch's in the file's precision.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.zoo.onnx_model.file import package

ALONE, TOGETHER = 5, 3
UNITS = 2.0**12
"""Units in the last place of the largest output that any order of summation and any library function may take."""
TIMES = 64
"""How many times torch's own rounding error onnxruntime's may be."""


def compare(
    message: bytes, name: str, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, any_batch: bool
) -> None:
    """Run both on random pictures in [0, 1], one by one, and where the file takes any batch on three at once."""
    session = _session(message)
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(ALONE, *shape, generator=generator, dtype=torch.float64).to(dtype)
    batches = [*pictures.split(1), *([pictures[:TOGETHER]] if any_batch else [])]
    with torch.no_grad():
        precise = copy.deepcopy(model).double()
        for batch in batches:
            theirs, own, real = _answer(session, name, batch), model(batch).double(), precise(batch.double())
            if theirs.shape != real.shape:
                raise _differs(f"shape {list(theirs.shape)} instead of {list(real.shape)}")
            if not bool(theirs.isfinite().all()) or not bool(real.isfinite().all()):
                raise InputError("the network of the ONNX file gives NaN or infinity", why="training that diverged")
            rounding = float((own - real).abs().max())
            allowed = UNITS * torch.finfo(dtype).eps * float(real.abs().max()) + TIMES * rounding
            difference = float((theirs - real).abs().max())
            if not difference <= allowed:
                raise _differs(f"outputs that differ by up to {difference:.3g}, where rounding explains {allowed:.2g}")


def _session(message: bytes) -> Any:
    """Without its optimiser: the nodes as the file lists them."""
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # what is wrong is said by the exception
    try:
        return runtime.InferenceSession(message, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common class
        raise _failed(error) from None


def _answer(session: Any, name: str, batch: Tensor) -> Tensor:
    try:
        (result,) = session.run(None, {name: batch.numpy()})
    except Exception as error:
        raise _failed(error) from None
    return torch.from_numpy(result).double()


def _failed(error: Exception) -> InputError:
    return InputError(
        "onnxruntime cannot run the ONNX file, so what was read of it cannot be checked",
        got=shown(" ".join(str(error).split()), 300).rstrip("."),
        do="if the network is float64, export it in float32: onnxruntime has no float64 convolution",
    )


def _differs(got: str) -> InputError:
    return InputError(
        "the ONNX file was not read as onnxruntime reads it, so nothing is proved about it",
        got=got,
        why="a node whose meaning is not the one that tiltproof gives it, or a network at the edge of overflow",
        do="please report the file",
    )
