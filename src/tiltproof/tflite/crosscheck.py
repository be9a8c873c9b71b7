"""What was read must compute what TFLite's own interpreter computes from the same file, where it is installed.

This catches an operator that was read wrongly; it has no part in any bound. The interpreter runs its reference kernels, one image at a
time, and keeps what every operator gives.

Whole numbers: each operator is given the interpreter's own numbers, and must give what the interpreter has. Where M x is so close to a tie
that kernels differ in how they round (once or twice, ties up or away from zero), either neighbor is accepted; a difference does not grow
from layer to layer, since the next operator is given the interpreter's number.

Floats: each output is compared relative to that output's own size, over all images seen.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError, shown
from tiltproof.fixed_point import by_channel
from tiltproof.step_module import Step
from tiltproof.tflite.module import Draft, TfliteModule
from tiltproof.tflite.schema import RANGES, File, TensorEntry
from tiltproof.tflite.whole_numbers import requantize

IMAGES = 4
UNITS, TIMES = 2.0**-11, 64
"""Of floats: the share of each output where it is largest, and times of torch's own rounding of it."""


def interpreter_of(content: bytes) -> Any | None:
    """TFLite's interpreter with reference kernels, or None where it is not installed."""
    try:
        package = importlib.import_module("ai_edge_litert.interpreter")
    except ImportError:
        return None
    try:
        made = package.Interpreter(
            model_content=content, num_threads=1, experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=package.OpResolverType.BUILTIN_REF,
        )  # fmt: skip
        made.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise InputError(
            "TFLite's interpreter cannot run the file, so what was read of it cannot be checked",
            got=shown(" ".join(str(error).split()), 300),
        ) from None
    return made


def here(array: np.ndarray) -> Tensor:
    """The file's [1, H, W, C] as [1, C, H, W]."""
    tensor = torch.from_numpy(np.ascontiguousarray(array)).double()
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor


class FileAnswers:
    """The interpreter's answers to the file that a module was read from. Copies of the module, and other processes, do without."""

    def __init__(self, interpreter: Any, file: File, draft: Draft, model: TfliteModule) -> None:
        self.interpreter, self.file = interpreter, file
        self.operators = [(node, before, after) for node, before, after in draft.operators if after > before]
        self.first = draft.operators[0][1]
        self.weights = _digest(model)
        self.result = file.outputs[0]
        self.largest = self.rounding = torch.zeros(())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def compare(self, model: TfliteModule, images: Tensor) -> None:
        """Compare on images of a run; a module whose weights were changed is no longer the file's."""
        if _digest(model) == self.weights:
            self.check(copy.deepcopy(model).cpu(), images.detach().cpu().float())

    @torch.no_grad()
    def check(self, model: TfliteModule, images: Tensor) -> None:
        steps = list(copy.deepcopy(model).double().steps.values())
        for image in images.split(1):
            entry = self.file.tensors[self.file.inputs[0]]
            given = image.double()
            for step in steps[: self.first]:
                assert isinstance(step, Step)
                given = step(given)
            self.interpreter.set_tensor(self.interpreter.get_input_details()[0]["index"], _stored(given, entry))
            self.interpreter.invoke()
            whole = False
            for node, before, after in self.operators:
                entry = self.file.tensors[node.outputs[0]]
                if entry.type in RANGES:
                    whole = True
                    self._compare_whole(node, steps[before:after], before)
            if not whole:
                self._compare_floats(model, image)

    def _held(self, number: int) -> Tensor:
        """The interpreter's tensor as a step holds it."""
        entry, array = self.file.tensors[number], self.interpreter.get_tensor(number)
        zero = 0 if entry.type not in RANGES or entry.scales is None else int(entry.scales.zero[0])
        return here(array.astype(np.float64) - zero)

    def _compare_whole(self, node: Any, steps: list[Any], before: int) -> None:
        """Run an operator's steps on the interpreter's numbers."""
        reads = [number for number in node.inputs if number >= 0 and not len(self._buffer(number))]
        outside = sorted({place for k, step in enumerate(steps) for place in step.reads if place <= before})
        if not outside:
            return
        values = dict(zip(self._places(outside, reads, steps), map(self._held, reads), strict=False))
        for k, step in enumerate(steps):
            read = [values[place] for place in step.reads]
            values[before + k + 1] = step(*read)
        theirs, own = self._held(node.outputs[0]), values[before + len(steps)]
        if theirs.shape != own.shape:
            raise _differs(f"{node.op} at {shown(node.label, 80)!r}: shape {list(theirs.shape)}")
        wrong = (theirs != own) & ~other_choice(steps[-1], read, theirs)
        if bool(wrong.any()):
            raise _differs(
                f"{node.op} at {shown(node.label, 80)!r}: {int(wrong.sum())} of {theirs.numel()} whole numbers are others"
            )

    def _buffer(self, number: int) -> Any:
        return self.file.buffers[self.file.tensors[number].buffer]

    @staticmethod
    def _places(outside: list[int], reads: list[int], steps: list[Any]) -> list[int]:
        """The places of what an operator reads, in its order."""
        ordered: list[int] = []
        for step in steps:
            ordered += [place for place in step.reads if place in outside and place not in ordered]
        return ordered if len(ordered) == len(dict.fromkeys(reads)) else outside

    def _compare_floats(self, model: TfliteModule, image: Tensor) -> None:
        theirs = here(self.interpreter.get_tensor(self.result)).reshape(1, -1)
        own = model(image.to(next(iter(model.parameters()), image).dtype)).double().reshape(1, -1)
        real = copy.deepcopy(model).double()(image.double()).reshape(1, -1)
        if theirs.shape != real.shape:
            raise _differs(f"{theirs.shape[1]} outputs instead of {real.shape[1]}")
        if not bool(theirs.isfinite().all()) or not bool(real.isfinite().all()):
            return
        self.largest = torch.maximum(self.largest, real.abs())
        self.rounding = torch.maximum(self.rounding, (own - real).abs())
        difference, room = (theirs - real).abs(), UNITS * self.largest + TIMES * self.rounding + 2.0**-126
        if bool((difference > room).any()):
            worst = int((difference - room).argmax())
            raise _differs(f"output {worst} differs by {float(difference[0, worst]):.3g}")


def other_choice(step: Step, read: list[Tensor], theirs: Tensor) -> Tensor:
    """Where these whole numbers are what another kernel may give: within 1/2 + 2^-(r + 1) of M x."""
    s = step.settings
    if step.function is not requantize:
        return torch.zeros_like(theirs, dtype=torch.bool)
    m, shift = (by_channel(theirs, s[name]).double() for name in ("multipliers", "shifts"))
    units = read[0] * m * 2.0 ** (shift - 31)
    room = 0.5 + torch.where(shift < 0, 2.0 ** (shift - 1), 0.0) + 2.0**-40 * (1 + units.abs())
    least, most = (units - room).ceil(), (units + room).floor()
    return (theirs >= least.clamp(s["low"], s["high"])) & (theirs <= most.clamp(s["low"], s["high"]))


def _stored(given: Tensor, entry: TensorEntry) -> np.ndarray:
    """What the file's input is given: the numbers that the input's step gives."""
    array = (given.permute(0, 2, 3, 1) if given.ndim == 4 else given).contiguous()
    if entry.type not in RANGES:
        return array.float().numpy()
    zero = 0 if entry.scales is None else int(entry.scales.zero[0])
    return (array.numpy() + zero).astype(np.int8 if RANGES[entry.type][0] < 0 else np.uint8)


def _digest(model: TfliteModule) -> str:
    digest = hashlib.sha256()
    for tensor in model.parameters():
        digest.update(tensor.detach().cpu().double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def compare(file: File, draft: Draft, model: TfliteModule) -> FileAnswers | None:
    """Compare on random images, over the whole range of the input; what is returned compares on other images."""
    interpreter = interpreter_of(file.content)
    if interpreter is None:
        return None
    answers = FileAnswers(interpreter, file, draft, model)
    entry = file.tensors[file.inputs[0]]
    images = torch.rand(IMAGES, *draft.start.shape, generator=torch.Generator().manual_seed(0))
    if entry.type in RANGES and entry.scales is not None:
        scale, zero = float(entry.scales.scale[0]), int(entry.scales.zero[0])
        low, high = RANGES[entry.type]
        images = scale * (low - zero + (high - low) * images)
    answers.check(model, images)
    return answers


def _differs(got: str) -> InputError:
    return InputError(
        "the TFLite file was not read as TFLite's interpreter reads it, so nothing is proved about it",
        got=got,
        why="an operator whose meaning is not the one that tiltproof gives it",
        do="please report the file",
    )
