"""What a transformation is: parameters with ranges, and a function from pictures to pictures.

A *part* has one parameter and is `Spatial` (it moves pixels), `Pixelwise` (contrast, brightness: it changes their
values) or `Photometric` (a step of its own on pictures with values in [0, 1]: gamma, colours, blurs). A part writes its
formula once, with ``+ - * /``, ``sin``, ``cos``, ``deg2rad`` and ``reciprocal`` (all but gamma and blurs); the
formula then runs on torch tensors (concrete parameters, differentiable), on `Interval` and on `AffineForm`
(all parameters of a box at once), so the three can never drift apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.homography import Matrix, multiply, pixel_coordinates
from tiltproof.transforms.interpolation import PADDINGS, sample, sample_each


def number_text(value: float) -> str:
    """The shortest text that reads back as exactly this float, without a trailing ``.0``."""
    text = repr(float(value))
    return text[:-2] if text.endswith(".0") else text


class Transform:
    """A composition of one-parameter parts, applied in the order given, with one padding rule."""

    parts: tuple[Part, ...]
    padding: str

    @property
    def low(self) -> tuple[float, ...]:
        return tuple(part.range[0] for part in self.parts)

    @property
    def high(self) -> tuple[float, ...]:
        return tuple(part.range[1] for part in self.parts)

    def stages(self) -> Iterator[tuple[type[Part], list[int]]]:
        """Runs of parts of one kind: spatial parts in a row are resampled once, pixelwise ones clamped once; a photometric
        part stands alone.
        """

        def group(k: int) -> tuple[type[Part], int]:
            kind = self.parts[k].kind
            return kind, k if kind is Photometric else 0

        for (kind, _), run in itertools.groupby(range(len(self.parts)), group):
            yield kind, list(run)

    def check_channels(self, channels: int) -> None:
        """Refuse pictures that have not the channels a part needs."""
        for part in self.parts:
            if part.channels not in (None, channels):
                raise InputError(
                    f"{type(part).__name__} needs pictures of {part.channels} channels: red, green, blue",
                    got=f"{channels} channel{'s' * (channels != 1)}",
                    why="grey pictures have no colours to change",
                    do=f"leave {part.text} out",
                )

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        """Transform each image of a batch [N, C, H, W] with its own parameters [N, d] (or [d] for all).

        Differentiable in both arguments; computed in the images' dtype.
        """
        if images.ndim != 4 or not images.dtype.is_floating_point:
            raise InputError(
                "images must be a floating-point batch [N, C, H, W]",
                got=f"shape {tuple(images.shape)}, {images.dtype}",
                do="add a batch dimension with images[None], or divide 8-bit pixels by 255",
            )
        parameters = torch.as_tensor(parameters, dtype=images.dtype, device=images.device)
        if parameters.ndim == 1:
            parameters = parameters.expand(len(images), -1)
        if parameters.shape != (len(images), len(self.parts)):
            raise InputError(
                f"parameters must have shape [{len(images)}, {len(self.parts)}], one row per image",
                got=tuple(parameters.shape),
                do=f"give the parameters in the order {self}",
            )
        self.check_channels(images.shape[1])
        for kind, run in self.stages():
            images = self._changed(kind, run, images, parameters)
        # in the usual order in memory: after a convolution some networks view() what they get
        return images.flatten(1).view(images.shape)

    @torch.no_grad()
    def apply_each(self, images: Tensor, parameters: Tensor) -> Tensor:
        """Each of N images with each of S parameter vectors [S, d], image by image: [N * S, C, H, W], as `apply` gives but for rounding.

        Where pixels move first, they are looked for once for all images.
        """
        parameters = parameters.to(images)
        (kind, run), *others = self.stages()
        if kind is Spatial:
            images = sample_each(images, *self._positions(run, images, parameters), self.padding)
        else:
            images = images.repeat_interleave(len(parameters), 0)
            others = [(kind, run), *others]
        every = parameters.repeat(len(images) // len(parameters), 1)
        for kind, run in others:
            images = self._changed(kind, run, images, every)
        return images.flatten(1).view(images.shape)

    def _changed(self, kind: type[Part], run: list[int], images: Tensor, parameters: Tensor) -> Tensor:
        """One stage, with each image's own parameters."""
        if kind is Photometric:
            return self.parts[run[0]].changed(images, parameters[:, run[0]].view(-1, 1, 1, 1), self.padding)
        if kind is Spatial:
            return sample(images, *self._positions(run, images, parameters), self.padding)
        for k in run:
            images = self.parts[k].pixels(images, parameters[:, k].view(-1, 1, 1, 1))
        return images.clamp(0, 1)

    def _positions(self, run: list[int], images: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Where pixels come from: columns and rows, for each row of parameters."""
        matrix = self.composed_inverse(run, [parameters[:, k].view(-1, 1, 1) for k in run])
        height, width = images.shape[-2:]
        return pixel_coordinates(matrix, height, width, images)

    def composed_inverse(self, run: list[int], values: list[Any]) -> Matrix:
        """The inverse map of a run of spatial parts: T = T_n ... T_1, so T^-1 = T_1^-1 ... T_n^-1."""
        matrices = [self.parts[k].inverse_matrix(value) for k, value in zip(run, values, strict=True)]
        product = matrices[0]
        for matrix in matrices[1:]:
            product = multiply(product, matrix)
        return product

    def __str__(self) -> str:
        text = ", ".join(part.text for part in self.parts)
        return text if self.padding == "zeros" else f"{text}; padding={self.padding}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transform):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        return (*((type(part), part.range, part.fixed) for part in self.parts), self.padding)


class Part(Transform):
    """One transformation with one parameter in a closed range [low, high]."""

    letter: str
    unit: str
    padding = "zeros"
    least: float | None = None
    """The smallest parameter that means anything, where there is one; ``(x)`` then stands for ``least`` to x."""
    setting: tuple[str, str] | None = None
    """Name and unit of a number that belongs to the transformation and does not vary; written after ``@``."""
    fixed: float | None = None
    """That number, the third argument of the class; left out of the notation where it is the `usual` one."""
    channels: int | None = None
    """How many channels a picture must have, where it matters."""
    effect = 1.0
    """Roughly how far one unit of the parameter moves pixel values; for parts that are not spatial."""

    def __init__(self, low: float, high: float | None = None) -> None:
        if high is None:
            low, high = -low if self.least is None else self.least, low
        name = type(self).__name__
        try:
            low, high = float(low) + 0.0, float(high) + 0.0  # + 0.0 turns -0.0 into 0.0
        except (TypeError, ValueError):
            raise InputError(f"{name} needs numbers in {self.unit}", got=(low, high)) from None
        if not (math.isfinite(low) and math.isfinite(high)):
            raise InputError(f"{name}'s range must be finite", got=f"{low} to {high} {self.unit}")
        if low >= high:
            first = -1 if self.least is None else number_text(self.least)
            raise InputError(
                f"{name}'s range is {'reversed' if low > high else 'empty'}",
                got=f"{number_text(low)} to {number_text(high)} {self.unit}",
                why="low and high swapped" if low > high else "low and high are equal, so nothing varies",
                do=f'give low < high, e.g. {name}({first}, 1) or, as text, "{self.letter}({first}:1)" or "{self.letter}(1)"',
            )
        self.range = (low, high)
        self.check(low, high)

    @property
    def parts(self) -> tuple[Part, ...]:  # type: ignore[override]
        return (self,)

    @property
    def kind(self) -> type[Part]:
        return next(kind for kind in (Spatial, Photometric, Pixelwise) if isinstance(self, kind))

    @property
    def text(self) -> str:
        low, high = self.range
        short = low == (-high if self.least is None else self.least)
        inside = number_text(high) if short else f"{number_text(low)}:{number_text(high)}"
        extra = "" if self.fixed is None or self.fixed == self.usual() else f"@{number_text(self.fixed)}"
        return f"{self.letter}({inside}{extra})"

    def usual(self) -> float | None:
        """What `fixed` is where nothing is said."""
        return None

    def over(self, low: float, high: float) -> Part:
        """The same transformation over another range."""
        return type(self)(*([low, high] if self.fixed is None else [low, high, self.fixed]))

    def check(self, low: float, high: float) -> None:
        """Refuse a range for which the transformation is not defined."""

    def inverse_matrix(self, value: Any) -> Matrix:
        raise NotImplementedError

    def pixels(self, picture: Any, value: Any) -> Any:
        raise NotImplementedError

    def changed(self, images: Tensor, value: Tensor, padding: str) -> Tensor:
        raise NotImplementedError

    def __repr__(self) -> str:
        numbers = [*self.range] if self.fixed is None else [*self.range, self.fixed]
        return f"{type(self).__name__}({', '.join(map(number_text, numbers))})"


class Spatial(Part):
    """Moves pixels: output pixel (u, v) shows the source picture at (x / w, y / w), (x, y, w) = inverse_matrix @ (u, v, 1).

    Two rows say that w is 1; the third is for cameras (`perspective.py`).
    """

    def inverse_matrix(self, value: Any) -> Matrix:
        raise NotImplementedError


class Pixelwise(Part):
    """Changes each pixel's value by itself; the result is clamped to [0, 1] at the end of a run of such parts."""

    def pixels(self, picture: Any, value: Any) -> Any:
        raise NotImplementedError


class Photometric(Part):
    """A step of its own, from pictures with values in [0, 1] to such pictures; clamped to [0, 1] where it could leave it."""

    def changed(self, images: Tensor, value: Tensor, padding: str) -> Tensor:
        """Each picture [N, C, H, W] with its own parameter [N, 1, 1, 1]."""
        return self.pixels(images, value).clamp(0, 1)


class Compose(Transform):
    """Parts applied one after the other, in the order given.

    Spatial parts that stand next to each other are composed into one map, so the picture is interpolated once;
    contrast and brightness that stand next to each other are clamped to [0, 1] once, after the last (the paper's
    definition); each photometric part is a step of its own.

    ``padding`` says what lies outside the picture: ``zeros``, ``border`` or ``reflect``.
    """

    def __init__(self, *transforms: Transform, padding: str = "zeros") -> None:
        if not transforms:
            raise InputError("a composition needs at least one transformation", got="none")
        for transform in transforms:
            if not isinstance(transform, Transform):
                raise InputError("only transformations can be composed", got=repr(transform))
            if transform.padding not in ("zeros", padding):
                raise InputError(
                    "the parts of a composition share one padding",
                    got=f"{transform.padding!r} inside {padding!r}",
                    do="give padding= to the outermost Compose only",
                )
        if padding not in PADDINGS:
            raise InputError("unknown padding", got=repr(padding), do=f"use one of {', '.join(PADDINGS)}")
        self.parts = tuple(part for transform in transforms for part in transform.parts)
        self.padding = padding

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.parts))
        return f"Compose({inside})" if self.padding == "zeros" else f"Compose({inside}, padding={self.padding!r})"
