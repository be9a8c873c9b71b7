"""Validation of the arguments of `certify`, `certify_range` and `attack`: checked here once, trusted afterwards."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.network import (
    Network,
    as_rows,
    check_labels,
    eval_mode,
    proof_arithmetic,
    read_network,
    users_code,
    without_head,
)
from tiltproof.pixels.api import check_images
from tiltproof.pixels.coordinates import check_limits
from tiltproof.program import as_program
from tiltproof.runtime.batch_size import AdaptiveBatchSize, Memory, image_bytes, pair_bytes
from tiltproof.transforms import Transform, parse
from tiltproof.verify.keep import Keep, Linear, is_own
from tiltproof.verify.options import EIGHT_BITS
from tiltproof.verify.program import bounded_network, pictures_dtype, rounded, shades, stand_in
from tiltproof.verify.rules import Rule

MOST_PARAMETERS = 26  # one letter each in a tiling's text
SEMANTICS = {"real": 0.0, "float32": 2.0**-24}
"""Unit roundoff of the evaluations that are certified by bounds."""


@dataclass
class Inputs:
    """Checked inputs on one device, or a batch of their images."""

    model: nn.Module
    network: Network
    images: Tensor
    labels: Tensor
    transform: Transform
    semantics: str = "real"
    head: tuple[str, ...] = ()
    """What was taken off the model's end (`without_head`), the last one first; ``model`` and ``network`` are without it."""
    networks: dict[tuple[torch.dtype, float], Network] = field(default_factory=dict)  # shared by all batches
    limit: int | None = None  # bytes that may be taken, if the user says so
    batch_sizes: dict[str, AdaptiveBatchSize] = field(default_factory=dict)  # shared by all batches
    bounded: list[Network | None] = field(default_factory=list)  # once it was looked for; shared by all batches

    def part(self, rows: slice) -> Inputs:
        """Return the inputs for some of the images."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    @functools.cached_property
    def images64(self) -> Tensor:
        """The images in float64, in which pixel bounds are computed."""
        return self.images.double()

    def answers(self, images: Tensor) -> Tensor:
        """Run the module on images [N, C, H, W]; an exception in its code becomes an `InputError`."""
        with users_code("the model failed on transformed images, though not on the one that it was traced with"):
            outputs: Tensor = as_rows(self.model(images))
        return outputs

    @property
    def memory(self) -> Memory:
        return Memory(self.images.device, self.limit)

    def evaluations(self, most: int, gradient: bool = False) -> AdaptiveBatchSize:
        """Return the batch size for evaluating transformed images, at most ``most``."""
        return self._batch_size(f"images {gradient}", most, image_bytes(self.network, gradient))

    def points(self, most: int) -> AdaptiveBatchSize:
        """Return the batch size for bounding boxes of a single point in float64, at most ``most``."""
        return self._batch_size("points", most, 2 * pair_bytes(self.network, len(self.transform.parts)))

    def _batch_size(self, name: str, most: int, each: int) -> AdaptiveBatchSize:
        if name not in self.batch_sizes:
            memory = self.memory
            self.batch_sizes[name] = AdaptiveBatchSize(max(1, min(most, memory.room() // each)), memory, each)
        return self.batch_sizes[name]

    def network_as(self, dtype: torch.dtype, semantics: str = "real") -> Network:
        """Return the network with weights in ``dtype``, for bounds of real or float32 evaluations."""
        if self.semantics == EIGHT_BITS:
            return self.network
        key = dtype, SEMANTICS[semantics]
        if key not in self.networks:
            self.networks[key] = self.network.network_as(*key)
        return self.networks[key]

    def bounded_network(self) -> Network | None:
        """uint8 semantics: return the network whose bounds cover the program's evaluations, or None."""
        if not self.bounded:
            self.bounded.append(bounded_network(self.model, self.images))
        return self.bounded[0]

    def eval_mode(self) -> AbstractContextManager[None]:
        """Put the model into eval mode inside, with a notice if it was not, and restore its mode."""
        if any(module.training for module in self.model.modules()):
            text = "the model is in training mode; it is evaluated in eval mode and restored"
            warnings.warn(text, stacklevel=3)
        return eval_mode(self.model)


def proof_on(images: Tensor) -> AbstractContextManager[None]:
    """Use the proof's arithmetic on the device of the images; `check_inputs` refuses what is not a tensor."""
    return proof_arithmetic(images.device if isinstance(images, Tensor) else torch.device("cpu"))


def check_inputs(
    model: nn.Module | Callable[[Tensor], Any],
    images: Tensor,
    labels: Tensor,
    transform: Transform | str,
    semantics: str = "real",
) -> Inputs:
    """Inputs of a classifier, whose final softmax, sigmoid or argmax is taken off."""
    inputs = check_model_and_images(model, images, transform, semantics, classes=True)
    return replace(inputs, labels=check_labels(labels, len(images), inputs.network).to(images.device))


def check_keep(keep: object) -> Keep | None:
    """Return what must be kept, or None for the label; raise for anything else."""
    if keep is None or isinstance(keep, Keep):
        return keep
    raise InputError(
        "keep must be an object of its own class",
        got=shown(repr(keep)),
        do="e.g. keep=KeepOwn(), TopK(2), Allow([3, 5]), Forbid({14: [1, 2]}), Linear(C, d), or None for the label",
    )


def check_kept(
    model: nn.Module | Callable[[Tensor], Any],
    images: Tensor,
    labels: Tensor | None,
    transform: Transform | str,
    semantics: str,
    keep: object,
    first: int = 0,
) -> tuple[Inputs, Rule | None]:
    """Inputs of a classifier, and the rule for what it must keep; None: that of labels, which is built in.

    The network's own answers take the place of labels where it must keep them. For rows of outputs nothing is taken
    off the model's end. ``first``: the number of the first image, for messages.
    """
    keep = check_keep(keep)
    if labels is None and not is_own(keep):
        raise InputError(
            "labels are missing",
            got="None",
            why="data without labels",
            do="give the right classes, or keep=KeepOwn() (--keep-own), which needs none",
        )
    if keep is None:
        assert labels is not None
        return check_inputs(model, images, labels, transform, semantics), None
    inputs = check_model_and_images(model, images, transform, semantics, classes=not isinstance(keep, Linear))
    if is_own(keep):
        check_labels(images.new_zeros(len(images), dtype=torch.int64), len(images), inputs.network)
        labels = _own_answers(inputs, first)
    inputs = replace(inputs, labels=check_labels(labels, len(images), inputs.network).to(images.device))
    return inputs, keep.rule(inputs.labels, inputs.network.output_shape()[0])


def check_claimed(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Transform | str,
    semantics: str,
    keep: Keep | None,
) -> tuple[Inputs, Rule | None]:
    """As `check_kept`, for the labels of a run: the network's own answers are among them."""
    return check_kept(model, images, labels, transform, semantics, None if is_own(keep) else keep)


@torch.no_grad()
def _own_answers(inputs: Inputs, first: int) -> Tensor:
    """Return the network's answers to the untransformed images, as it is evaluated; a proof confirms them."""

    images = inputs.images
    if inputs.semantics == EIGHT_BITS:
        images = shades(pictures_dtype(inputs.model))[rounded(images).long()].to(images.device)

    def work(size: int) -> Tensor:
        return torch.cat([inputs.answers(part) for part in images.split(size)])

    with eval_mode(inputs.model):
        outputs = inputs.evaluations(256).run(work)
    wrong = (~outputs.isfinite()).any(1)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise not_finite(first + row, outputs[row])
    return outputs.argmax(1)


def check_model_and_images(
    model: nn.Module | Callable[[Tensor], Any],
    images: Tensor,
    transform: Transform | str,
    semantics: str = "real",
    classes: bool = False,
) -> Inputs:
    """Inputs without labels (an empty tensor stands for them). ``classes``: only which output is largest matters."""
    if semantics not in (*SEMANTICS, EIGHT_BITS):
        raise InputError(
            "unknown semantics", got=repr(semantics), do=f"use one of {', '.join([*SEMANTICS, EIGHT_BITS])}"
        )
    if semantics == EIGHT_BITS:
        model = as_program(model)
    if not isinstance(model, nn.Module):
        raise InputError(
            "the model must be a torch.nn.Module",
            got=type(model).__name__,
            do=f'a function of images can be certified with semantics="{EIGHT_BITS}"' if callable(model) else None,
        )
    transform = parse(transform) if isinstance(transform, str) else transform
    if not isinstance(transform, Transform):
        raise InputError(
            "the transform must be a Transform or its notation as text", got=repr(transform), do='e.g. "R(30)"'
        )
    if len(transform.parts) > MOST_PARAMETERS:
        raise InputError(f"at most {MOST_PARAMETERS} parameters can be searched", got=len(transform.parts))
    check_images(images)
    check_limits(transform, *images.shape[-2:])
    transform.check_channels(images.shape[1])
    tensors = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        if nn.parameter.is_lazy(tensor):
            raise InputError(
                "the model has parameters that only its first call makes",
                got="a lazy module",
                do="call model(images) once",
            )
        if tensor.device != images.device:
            raise InputError(
                "the model and the images are on different devices",
                got=f"model on {tensor.device}, images on {images.device}",
                do="move one of them: model.to(images.device)",
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(
                "the model's weights contain NaN or infinity", why="training that diverged, or a damaged file"
            )
    if semantics == EIGHT_BITS:
        check_one_parameter(transform)
        network = stand_in(model, images)
        return Inputs(model, network, images, images.new_empty(0, dtype=torch.int64), transform, semantics)
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        raise InputError(
            "the model must be all float32 or all float64", got=", ".join(map(str, kinds)), do="model.float()"
        )
    if kinds and kinds != {images.dtype}:
        if kinds == {torch.float32}:
            narrowed = images.float()
            if not bool((narrowed.double() == images).all()):
                raise InputError(
                    "images are float64 but the model is float32",
                    do="use model.double(), or images.float() if rounding the pixels is what you want",
                )
            images = narrowed
        else:
            images = images.double()
    if semantics == "float32" and images.dtype != torch.float32:
        raise InputError(
            "evaluations in float32 can be certified for float32 models only",
            got="a float64 model",
            do="model.float(), or leave semantics at 'real'",
        )
    head: tuple[str, ...] = ()
    if classes:
        model, head = without_head(model, images[:2])
    network = read_network(model, tuple(images.shape[1:]), images, _transformed(images[:2], transform))
    return Inputs(model, network, images, images.new_empty(0, dtype=torch.int64), transform, semantics, head)


def check_one_parameter(transform: Transform) -> None:
    """Raise unless a transformation has one parameter, and no noise."""
    transform.refuse_noise(f"{EIGHT_BITS} semantics")
    if transform.interpolation != "bilinear":
        raise InputError(
            f"{EIGHT_BITS} semantics are for bilinear interpolation",
            got=str(transform),
            do="leave the interpolation out",
        )
    if len(transform.parts) != 1:
        raise InputError(
            f"{EIGHT_BITS} semantics evaluates every picture, which are too many for more than one parameter",
            got=f"{transform}, with {len(transform.parts)} parameters",
            do=f'certify one at a time, e.g. "{transform.parts[0].text}", or use the semantics real or float32',
        )


def _transformed(images: Tensor, transform: Transform) -> Tensor:
    """Transform these images at both ends of the range and at random parameters."""
    generator = torch.Generator().manual_seed(0)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    share = torch.cat([torch.zeros(1, len(low)), torch.ones(1, len(low)), torch.rand(3, len(low), generator=generator)])
    parameters = (low + share.double() * (high - low)).to(images)
    with torch.no_grad():
        return torch.cat([transform.apply(image.expand(len(parameters), *image.shape), parameters) for image in images])


def not_finite(image: int, outputs: Tensor) -> InputError:
    """Return the error for an image whose ``outputs`` are not finite."""
    output = int((~outputs.isfinite()).int().argmax())
    return InputError(
        f"the network's outputs for image {image} are not finite numbers",
        got=f"{float(outputs[output])} as output {output}",
        why="weights so large that numbers overflow, or a division by zero",
        do="inspect the weights, and what the layers compute for this image; finished batches of a run folder are kept",
    )


def check_splits(splits: int | Sequence[int], transform: Transform) -> tuple[int, ...]:
    """Validate the number of splits per parameter; a single number is distributed over several parameters."""
    count = len(transform.parts)
    numbers = (splits,) if isinstance(splits, int) else tuple(splits)
    if len(numbers) == 1 and count > 1:
        root = round(numbers[0] ** (1 / count)) if isinstance(numbers[0], int) and numbers[0] > 0 else 0
        if root**count == numbers[0]:
            numbers = (root,) * count
    if len(numbers) != count or not all(isinstance(n, int) and n >= 1 for n in numbers):
        raise InputError(
            f"splits must be {count} positive whole number(s), one per parameter of {transform}",
            got=splits,
            do="e.g. 240 for one parameter, or (20, 80, 2, 1) for four",
        )
    if math.prod(numbers) > 2**26:
        raise InputError("that is more boxes than can be listed", got=math.prod(numbers))
    return numbers
