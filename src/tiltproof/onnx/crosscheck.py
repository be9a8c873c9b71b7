"""How far rounding can take each output of an ONNX network, for any order of its sums.

A running error analysis of the steps: with each value x it carries e with |computed x - real x| <= e. With the unit roundoff u and
gamma_n = n u / (1 - n u), of which n counts a sum's products:

    y = W x + b       e_y = |W| e + gamma_{n+4} (|W| (|x| + e) + |b|)
    x + c, c x, x / c each as the real function changes e, and 2 u of the result
    x + z             e_x + e_z, and 2 u of the result
    x z               |x| e_z + |z| e_x + e_x e_z, and 2 u of the result
    X Z               |X| e_Z + e_X (|Z| + e_Z), and gamma_{n+4} of the sizes' product
    softmax, norms    `attention`, `norms`
    activations       their Lipschitz constant times e, and `LIBRARY` units of 1 for those that libraries approximate
    what rearranges   e, rearranged; of the largest of several numbers, the largest e

It is computed in float64, whose own roundings are far smaller than the factor by which results may exceed it.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError, shown
from tiltproof.onnx.entry import Entry
from tiltproof.onnx.module import OnnxModule
from tiltproof.onnx.ops import LIBRARY
from tiltproof.onnx.protobuf import package
from tiltproof.onnx.registry import ERRORS, STEPPED, rearranged
from tiltproof.step_module import Step


def evaluated(model: OnnxModule, images: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """The outputs of a float64 copy of the network, and how far an evaluation with this unit roundoff may be from them."""
    values, errors = {0: images}, {0: torch.zeros_like(images)}
    for number, step in enumerate(model.steps.values(), 1):
        assert isinstance(step, Step)
        read = [values[place] for place in step.reads]
        values[number] = step(*read)
        rule = ERRORS.get(step.function)
        errors[number] = (
            torch.full_like(values[number], math.inf)
            if rule is None
            else rule(step, read, [errors[place] for place in step.reads], values[number], unit)
        )
    return values[model.result].double(), errors[model.result].nan_to_num(nan=math.inf, posinf=math.inf)


def approximated(model: OnnxModule, images: Tensor, unit: float) -> Tensor:
    """How far the library's own sigmoid or tanh may be off in outputs that are nothing but its results, rearranged.

    It is off by units of 1, however small the result is.
    """
    values, errors = {0: images}, {0: torch.zeros_like(images)}
    for number, step in enumerate(model.steps.values(), 1):
        assert isinstance(step, Step)
        read = [values[place] for place in step.reads]
        values[number], rule = step(*read), ERRORS.get(step.function)
        if step.function in (torch.sigmoid, torch.tanh):
            errors[number] = torch.full_like(values[number], LIBRARY * unit)
        elif rule is rearranged:
            errors[number] = rule(step, read, [errors[place] for place in step.reads], values[number], unit)
        else:
            errors[number] = torch.zeros_like(values[number])
    return errors[model.result]


# What was read must compute what onnxruntime computes from the same message, up to float rounding.
#
# This catches a node that was read wrongly; it has no part in any bound. The steps are run in float64 on the file's weights, so that what
# is left of a difference is onnxruntime's own rounding, which is about as large as torch's in the file's precision.


ALONE, TOGETHER = 5, 3
TWICE = 2
"""How many times the bound of rounding onnxruntime may be off: the comparison's own side rounds too."""
UNITS, TIMES = 2.0**12, 64
"""For networks so deep that the bound says little: units in the last place of each output where it is largest, and times of torch's own
rounding of it."""
MOST = 2.0**-4
"""The most that these units may come to, as a share of the output: float16 has long ones."""


class FileAnswers:
    """onnxruntime's answers to the file that a module was read from. Copies of the module, and other processes, do without."""

    def __init__(self, message: bytes, model: OnnxModule, entry: Entry, output: str, half: bool) -> None:
        self.session, self.entry, self.output = _session(message), entry, output
        self.unit = torch.finfo(torch.float16 if half else entry.dtype).eps / 2
        self.weights = _digest(model, entry.dtype)
        self.largest = self.rounding = torch.zeros(())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def compare(self, model: OnnxModule, images: Tensor) -> None:
        """Compare on images of a run, one by one; a module whose weights were changed is no longer the file's."""
        if _digest(model, self.entry.dtype) != self.weights:
            return
        own = copy.deepcopy(model).cpu().to(self.entry.dtype)
        batches = images.detach().cpu().to(self.entry.dtype).split(1)
        self.check(own, copy.deepcopy(own).double(), batches, overflow=True)

    @torch.no_grad()
    def check(self, model: OnnxModule, precise: OnnxModule, batches: Sequence[Tensor], overflow: bool = False) -> None:
        """Raise unless both agree; with ``overflow``, outputs that are not finite are for others to judge.

        Each output is allowed what rounding can do to itself: beside a large output a small one would not be compared at all. How large it
        is, and by how much torch's own rounding moves it, is taken over all images seen.
        """
        compared = []
        for batch in map(self.entry.rounded, batches):
            theirs, own = self.answer(batch), model(batch).double()
            real, error = evaluated(precise, batch.double(), self.unit)
            if theirs.shape != real.shape:
                raise _differs(f"shape {list(theirs.shape)} instead of {list(real.shape)}")
            if not bool(theirs.isfinite().all()) or not bool(real.isfinite().all()):
                if overflow:
                    continue
                raise InputError("the network of the ONNX file gives NaN or infinity", why="training that diverged")
            self.largest = torch.maximum(self.largest, real.abs().amax(0))
            self.rounding = torch.maximum(self.rounding, (own - real).abs().amax(0))
            compared.append((theirs, real, error))
        coarse = min(UNITS * 2 * self.unit, MOST) * self.largest + TIMES * self.rounding
        coarse = coarse + approximated(precise, batches[0][:1].double(), self.unit)
        if any(isinstance(step, Step) and step.function in STEPPED for step in model.steps.values()):
            coarse = torch.full_like(coarse, math.inf)
        for theirs, real, error in compared:
            allowed = torch.minimum(TWICE * error + torch.finfo(self.entry.dtype).tiny, coarse)
            difference = (theirs - real).abs()
            worst = int((difference - allowed).argmax())
            if not bool((difference <= allowed).all()):
                raise _differs(
                    f"output {worst % math.prod(real.shape[1:])} differs by {float(difference.flatten()[worst]):.3g}, "
                    f"where rounding explains {float(allowed.flatten()[worst]):.2g}"
                )

    def answer(self, batch: Tensor) -> Tensor:
        """The file's answers to a batch; of a file for batches of one size, to one image in a batch of copies."""
        result = _answer(self.session, self.entry.name, self.output, self.entry.feed(batch))
        return result if self.entry.batch is None or len(batch) == self.entry.batch else result[: len(batch)]


def _digest(model: OnnxModule, dtype: torch.dtype) -> str:
    digest = hashlib.sha256()
    for tensor in model.parameters():
        digest.update(tensor.detach().cpu().to(dtype).contiguous().numpy().tobytes())
    return digest.hexdigest()


def compare(message: bytes, model: OnnxModule, entry: Entry, output: str, half: bool) -> FileAnswers:
    """Run both on random images in [0, 1] and around it, one by one, and where the file takes any batch on three at once.

    What is returned compares on other images.
    """
    answers = FileAnswers(message, model, entry, output, half)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(ALONE, *entry.shape, generator=generator, dtype=torch.float64)
    images = torch.cat([images, torch.randn(ALONE, *entry.shape, generator=generator, dtype=torch.float64)])
    images = images.to(entry.dtype)
    together = TOGETHER if entry.batch is None else entry.batch
    batches = [*images.split(1), *([images[:together]] if together > 1 else [])]
    answers.check(model, copy.deepcopy(model).double(), batches)
    return answers


def _session(message: bytes) -> Any:
    """Run onnxruntime without its optimizer: the nodes as the file lists them."""
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


def _answer(session: Any, name: str, output: str, batch: Any) -> Tensor:
    try:
        (result,) = session.run([output], {name: batch})
        return torch.from_numpy(result).double()
    except Exception as error:
        raise _failed(error) from None


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
