"""Base classes of transformations: parameters with ranges, a function from images to images, and their notation.

A *part* has one parameter. It is `Spatial` (it moves pixels), `Pixelwise` (contrast, brightness: it changes each value)
or `Photometric` (gamma, colors, blurs: a separate stage on images with values in [0, 1]). Except for gamma and blurs, a
part writes its formula once, with ``+ - * /``, ``sin``, ``cos``, ``deg2rad`` and ``reciprocal``. The same formula runs on
torch tensors (concrete parameters, differentiable), on `Interval` and on `AffineForm` (all parameters of a box), so that
the three cannot come to differ.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.names import INTERPOLATIONS, PADDINGS
from tiltproof.transforms.interpolation import (
    Matrix,
    as_positions,
    centered_grid,
    multiply,
    projected,
    resampled,
    sample_each,
)

LETTERS: dict[str, type[Part]] = {}
"""The classes the text notation knows, by letter. A class of this package registers itself when it is defined.

A user's class is not registered: run folders name a transformation by its letter, and the checker knows only these.
"""


NOISE = "Linf"
"""The name of noise in the notation: the one part that has no parameter."""
OPTIONS = {"padding": PADDINGS, "interpolation": INTERPOLATIONS}
"""What the notation allows after a semicolon; the first of each is the usual one."""


def number_text(value: float) -> str:
    """Return the shortest text that reads back as exactly this float, without a trailing ``.0``."""
    text = repr(float(value))
    return text[:-2] if text.endswith(".0") else text


def noise_text(epsilon: float) -> str:
    """Return the notation of `Linf`."""
    return f"{NOISE}({number_text(epsilon)})"


class Transform:
    """A composition of one-parameter parts, applied in order, with one padding rule, one interpolation and perhaps noise at the end.

    Attributes
    ----------
    parts : tuple of Part
        The parts.
    padding : {"zeros", "border", "reflect"}
        What lies outside the image.
    interpolation : {"bilinear", "nearest", "bicubic"}
        How spatial parts find values between pixels.
    noise : float
        How far each pixel of the transformed image may move in addition (`Linf`); 0 without noise.
    """

    parts: tuple[Part, ...]
    padding: str
    interpolation: str = "bilinear"
    noise: float = 0.0

    def without_noise(self) -> Transform:
        """Return the same transformation without noise; of `Linf` alone the identity, which has no parameter."""
        if not self.noise:
            return self
        plain = copy(self)
        plain.noise = 0.0
        return plain

    @property
    def low(self) -> tuple[float, ...]:
        """Lower ends of the parameter ranges."""
        return tuple(part.range[0] for part in self.parts)

    @property
    def high(self) -> tuple[float, ...]:
        """Upper ends of the parameter ranges."""
        return tuple(part.range[1] for part in self.parts)

    def refuse_noise(self, what: str) -> None:
        """Raise `InputError` if there is noise: ``what`` does not know it."""
        if self.noise:
            raise InputError(f"{what} does not support noise", got=str(self), do=f"leave {noise_text(self.noise)} out")

    def stages(self) -> Iterator[tuple[type[Part], list[int]]]:
        """Group consecutive parts: spatial parts resample once, pixelwise parts clamp once, a photometric part stands alone."""

        def group(k: int) -> tuple[type[Part], int]:
            kind = self.parts[k].kind
            return kind, k if kind is Photometric else 0

        for (kind, _), indices in itertools.groupby(range(len(self.parts)), group):
            yield kind, list(indices)

    def check_channels(self, channels: int) -> None:
        """Raise `InputError` if a part needs another number of channels."""
        for part in self.parts:
            if part.channels not in (None, channels):
                raise InputError(
                    f"{type(part).__name__} needs images of {part.channels} channels: red, green, blue",
                    got=f"{channels} channel{'s' * (channels != 1)}",
                    why="gray images have no colors to change",
                    do=f"leave {part.text} out",
                )

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        """Transform images with concrete parameters, without noise; differentiable in both.

        Parameters
        ----------
        images : Tensor
            Batch [N, C, H, W] of floating-point images; the result has their dtype.
        parameters : Tensor
            One vector per image, [N, d], or one for all images, [d]; in the order of the parts.

        Returns
        -------
        Tensor
            The transformed images, [N, C, H, W].

        Raises
        ------
        InputError
            If a shape, the dtype or the number of channels does not fit.
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
        for kind, indices in self.stages():
            images = self._apply_stage(kind, indices, images, parameters)
        # contiguous, because some networks call view() on their input
        return images.flatten(1).view(images.shape)

    @torch.no_grad()
    def apply_each(self, images: Tensor, parameters: Tensor) -> Tensor:
        """Apply each of S parameter vectors [S, d] to each of N images; returns [N * S, C, H, W], image by image.

        Equal to `apply` except for rounding. A leading spatial stage computes source positions once for all images.
        """
        parameters, others = parameters.to(images), list(self.stages())
        if others and others[0][0] is Spatial and self.interpolation == "bilinear":
            _, indices = others.pop(0)
            images = sample_each(images, *self._positions(indices, images, parameters), self.padding)
        else:
            images = images.repeat_interleave(len(parameters), 0)
        repeated = parameters.repeat(len(images) // len(parameters), 1)
        for kind, indices in others:
            images = self._apply_stage(kind, indices, images, repeated)
        return images.flatten(1).view(images.shape)

    def _apply_stage(self, kind: type[Part], indices: list[int], images: Tensor, parameters: Tensor) -> Tensor:
        if kind is Photometric:
            part, value = self.parts[indices[0]], parameters[:, indices[0]]
            return part.change(images, value.view(-1, 1, 1, 1), self.padding)
        if kind is Spatial:
            positions = self._positions(indices, images, parameters)
            return resampled(images, *positions, self.padding, self.interpolation)
        for k in indices:
            images = self.parts[k].pixels(images, parameters[:, k].view(-1, 1, 1, 1))
        return images.clamp(0, 1)

    def _positions(self, indices: list[int], images: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return the source columns and rows of all pixels, for each row of ``parameters``."""
        height, width = images.shape[-2:]
        u, v = centered_grid(height, width, images)
        for group in self.maps(indices):
            values = [parameters[:, k].view(-1, 1, 1) for k in group]
            if self.one_matrix(group):
                u, v = projected(self.composed_inverse(group, values), u, v)
            else:
                u, v = self.parts[group[0]].moved(values[0], u, v, height, width)
        return as_positions(u, v, height, width)

    def maps(self, indices: list[int]) -> list[list[int]]:
        """Group consecutive spatial parts whose inverse maps are one matrix; other parts stand alone. In the order in which the
        inverse maps act on a pixel: T^-1 = T_1^-1 ... T_n^-1, so the last parts come first."""
        groups = [list(group) for _, group in itertools.groupby(indices, lambda k: -1 if self.one_matrix([k]) else k)]
        return groups[::-1]

    def one_matrix(self, indices: list[int]) -> bool:
        """Return whether the inverse map of these spatial parts is a matrix."""
        return all(self.parts[k].by_matrix for k in indices)

    def composed_inverse(self, indices: list[int], values: list[Any]) -> Matrix:
        """Return the inverse map of consecutive spatial parts: T = T_n ... T_1, so T^-1 = T_1^-1 ... T_n^-1."""
        matrices = [self.parts[k].inverse_matrix(value) for k, value in zip(indices, values, strict=True)]
        product = matrices[0]
        for matrix in matrices[1:]:
            product = multiply(product, matrix)
        return product

    def __str__(self) -> str:
        text = ", ".join([*(part.text for part in self.parts), *([noise_text(self.noise)] if self.noise else [])])
        return "".join([text, *(f"; {name}={value}" for name, value in self.options().items())])

    def options(self) -> dict[str, str]:
        """Return padding and interpolation, where they are not the usual ones."""
        chosen = {"padding": self.padding, "interpolation": self.interpolation}
        return {name: value for name, value in chosen.items() if value != OPTIONS[name][0]}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transform):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        parts = ((type(part), part.range, part.constants) for part in self.parts)
        return (*parts, self.padding, self.interpolation, self.noise)


class Part(Transform):
    """One transformation with one parameter in a closed range.

    Parameters
    ----------
    low, high : float
        Ends of the range; a single number x means -x to x, or from `minimum` to x.

    Raises
    ------
    InputError
        If an end is not finite, low is not below high, or the transformation is not defined on the range.
    """

    letter: str
    """Its name in the text notation."""
    unit: str
    """The parameter's unit."""
    noun = "transformation"
    """Its name in the report, as in "every rotation"."""
    quantity = "parameter"
    """The name of its parameter in the report, for instance on an axis."""
    padding = "zeros"
    interpolation = "bilinear"
    minimum: float | None = None
    """The smallest meaningful parameter, if there is one; ``(x)`` then stands for the range from it to x."""
    setting: tuple[str, str] | None = None
    """Name and unit of a constant of the transformation, the class's third argument; written after ``@``."""
    fixed: float | None = None
    """The value of that constant; the notation omits it if it is the default."""
    has_plane = False
    """Whether the transformation depends on a plane in front of the camera; its normal follows a second ``@``."""
    channels: int | None = None
    """The number of channels an image must have; None if any number will do."""
    by_matrix = True
    """Whether a spatial part's inverse map is a matrix, `inverse_matrix`; else it is `moved`."""
    effect = 1.0
    """Roughly how far one unit of the parameter moves pixel values; for parts that are not spatial."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "letter" in vars(cls) and cls.__module__.startswith("tiltproof."):
            LETTERS[cls.letter] = cls

    def __init__(self, low: float, high: float | None = None) -> None:
        if high is None:
            low, high = -low if self.minimum is None else self.minimum, low
        name = type(self).__name__
        try:
            low, high = float(low) + 0.0, float(high) + 0.0  # + 0.0 turns -0.0 into 0.0
        except (TypeError, ValueError):
            raise InputError(f"{name} needs numbers in {self.unit}", got=(low, high)) from None
        if not (math.isfinite(low) and math.isfinite(high)):
            raise InputError(f"{name}'s range must be finite", got=f"{low} to {high} {self.unit}")
        if low >= high:
            first = -1 if self.minimum is None else number_text(self.minimum)
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
        """The part itself."""
        return (self,)

    @property
    def kind(self) -> type[Part]:
        """`Spatial`, `Photometric` or `Pixelwise`: the base class."""
        return next(kind for kind in (Spatial, Photometric, Pixelwise) if isinstance(self, kind))

    @property
    def text(self) -> str:
        """The part in the notation that `parse` reads."""
        low, high = self.range
        short = low == (-high if self.minimum is None else self.minimum)
        inside = number_text(high) if short else f"{number_text(low)}:{number_text(high)}"
        return f"{self.letter}({inside}{self.constants_text()})"

    @property
    def constants(self) -> tuple[Any, ...]:
        """The arguments of the class that follow the range."""
        return () if self.fixed is None else (self.fixed,)

    def constants_text(self) -> str:
        """Return what follows the range in the notation."""
        return "" if self.fixed is None or self.fixed == self.default_setting() else f"@{number_text(self.fixed)}"

    def default_setting(self) -> float | None:
        """Return the value of `fixed` that the notation omits."""
        return None

    def over(self, low: float, high: float) -> Part:
        """Return the same transformation over another range."""
        return type(self)(low, high, *self.constants)

    def check(self, low: float, high: float) -> None:
        """Raise `InputError` if the transformation is not defined over the whole range."""

    def inverse_matrix(self, value: Any) -> Matrix:
        """Return a spatial part's inverse map as rows of a matrix; ``value`` is a tensor, `Interval` or `AffineForm`."""
        raise NotImplementedError

    def moved(self, value: Any, u: Any, v: Any, height: int, width: int) -> tuple[Any, Any]:
        """Return the source position of (u, v) in an image of this size; for a spatial part whose inverse map is no matrix."""
        raise NotImplementedError

    def growth(self, value: Any, u: Any, v: Any, height: int, width: int) -> Any:
        """Return what has to stay above 1/16 at (u, v), so that such a map does not fold the image; None if it never does."""
        return None

    def pixels(self, image: Any, value: Any) -> Any:
        """Return the changed pixels before the clamp; arguments are tensors or `AffineForm` objects."""
        raise NotImplementedError

    def change(self, images: Tensor, value: Tensor, padding: str) -> Tensor:
        """Change images [N, C, H, W], each with its own parameter [N, 1, 1, 1]; for photometric parts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        numbers = [
            number_text(x) if isinstance(x, float) else f"({', '.join(map(number_text, x))})"
            for x in (*self.range, *self.constants)
        ]
        return f"{type(self).__name__}({', '.join(numbers)})"


class Spatial(Part):
    """Moves pixels: output pixel (u, v) shows the source image at (x / w, y / w), (x, y, w) = inverse_matrix @ (u, v, 1).

    A matrix of two rows means w = 1; cameras give the third row. A part with ``by_matrix = False`` defines `moved` instead.
    """


class Pixelwise(Part):
    """Changes the value of each pixel; consecutive pixelwise parts are clamped to [0, 1] once, after the last."""


class Photometric(Part):
    """A stage that maps images with values in [0, 1] to such images, clamping to [0, 1] where necessary."""

    def change(self, images: Tensor, value: Tensor, padding: str) -> Tensor:
        return self.pixels(images, value).clamp(0, 1)


class InDegrees(Part):
    """A part whose parameter is an angle in degrees, at most a full turn."""

    unit = "degrees"

    def __init__(self, low_degrees: float, high_degrees: float | None = None) -> None:
        super().__init__(low_degrees, high_degrees)

    def check(self, low: float, high: float) -> None:
        if low < -360 or high > 360:
            raise InputError(
                f"{type(self).__name__} must stay within a full turn",
                got=f"{low} to {high} degrees",
                why="another unit than degrees",
                do="keep the range within -360 to 360",
            )


class InPixels(Part):
    """A part whose parameter is a length in pixels."""

    unit = "pixels"

    def __init__(self, low_pixels: float, high_pixels: float | None = None) -> None:
        super().__init__(low_pixels, high_pixels)


class InPercent(Part):
    """A part whose parameter is a change in percent."""

    unit = "percent"

    def __init__(self, low_percent: float, high_percent: float | None = None) -> None:
        super().__init__(low_percent, high_percent)


class Compose(Transform):
    """Parts applied one after the other, in the order given.

    Consecutive spatial parts are composed into one map, so the image is interpolated once. Consecutive contrast and
    brightness changes are clamped to [0, 1] once, after the last (the paper's definition). Each photometric part is
    a stage of its own. Noise (`Linf`) comes last.

    Parameters
    ----------
    *transforms : Transform
        The parts, or compositions of parts, in the order of application.
    padding : {"zeros", "border", "reflect"}
        What lies outside the image.
    interpolation : {"bilinear", "nearest", "bicubic"}
        How spatial parts find values between pixels.

    Raises
    ------
    InputError
        If there is no part, an option is unknown, an inner composition has another one, or noise is not last.
    """

    def __init__(self, *transforms: Transform, padding: str = "zeros", interpolation: str = "bilinear") -> None:
        if not transforms:
            raise InputError("a composition needs at least one transformation", got="none")
        for transform in transforms:
            if not isinstance(transform, Transform):
                raise InputError("only transformations can be composed", got=repr(transform))
            for name, value in transform.options().items():
                if value != (own := {"padding": padding, "interpolation": interpolation}[name]):
                    raise InputError(
                        f"the parts of a composition share one {name}",
                        got=f"{value!r} inside {own!r}",
                        do=f"give {name}= to the outermost Compose only",
                    )
        for transform in transforms[:-1]:
            if transform.noise:  # what follows would change the size of the noise, or smear it
                raise InputError(
                    f"{NOISE} is added to the transformed image, so it must be the last part",
                    got=", ".join(map(str, transforms)),
                    do=f"write {noise_text(transform.noise)} once, at the end",
                )
        for name, value in (("padding", padding), ("interpolation", interpolation)):
            if value not in OPTIONS[name]:
                raise InputError(f"unknown {name}", got=repr(value), do=f"use one of {', '.join(OPTIONS[name])}")
        self.parts = tuple(part for transform in transforms for part in transform.parts)
        self.padding, self.interpolation = padding, interpolation
        self.noise = transforms[-1].noise

    def __repr__(self) -> str:
        noise = [noise_text(self.noise)] if self.noise else []
        options = [f"{name}={value!r}" for name, value in self.options().items()]
        return f"Compose({', '.join([*map(repr, self.parts), *noise, *options])})"


# The paper's notation as text: ``"Sc(5), R(5), C(5), B(0.01)"``, ``"R(-10:25)"``, ``"R(30); padding=border"``.
# A constant of a transformation follows an @: ``"Yaw(5@300)"`` has a camera with a focal length of 300 pixels. The normal of a plane
# follows another one: ``"Tz(0.1@300@0:-1:0)"``.


NUMBER = r"\s*([^():,@]+?)\s*"
ITEM = re.compile(rf"\s*([A-Za-z_]+)\s*\({NUMBER}(?::{NUMBER})?(?:@{NUMBER})?(?:@{NUMBER}:{NUMBER}:{NUMBER})?\)\s*")


def parse(text: str, padding: str | None = None, interpolation: str | None = None) -> Transform:
    """Read a transformation from its notation.

    Parameters
    ----------
    text : str
        Letters with ranges, separated by commas; ``(x)`` is the range from -x to x. Optionally ``; padding=...`` and
        ``; interpolation=...``.
    padding : {"zeros", "border", "reflect"}, optional
        What lies outside the image; takes precedence over the text's.
    interpolation : {"bilinear", "nearest", "bicubic"}, optional
        How spatial parts find values between pixels; takes precedence over the text's.

    Returns
    -------
    Transform
        A single part, or a `Compose`.

    Raises
    ------
    InputError
        If the text cannot be read, or a range is not one the transformation is defined for.

    Examples
    --------
    >>> parse("R(-10:25), Sh(2)")
    Compose(Rotation(-10, 25), Shearing(-2, 2))
    >>> str(parse("Sc( 5 ),R(5)"))
    'Sc(5), R(5)'
    >>> parse("Yaw(5@300), Mb(5@30), Bl(2)")
    Compose(Yaw(-5, 5, 300), MotionBlur(0, 5, 30), GaussianBlur(0, 2, 6))
    >>> parse("R(5), Linf(0.01)")
    Compose(Rotation(-5, 5), Linf(0.01))
    """
    if not isinstance(text, str):
        raise InputError("the notation is text", got=repr(text), do='write for example "R(30)" or "Sc(5), R(5)"')
    body, *options = text.split(";")
    chosen: dict[str, str] = {}
    for option in filter(str.strip, options):
        key, _, value = option.partition("=")
        if key.strip() not in OPTIONS or key.strip() in chosen:
            raise InputError(
                "the options after ';' are padding and interpolation, once each",
                got=option.strip(),
                do='write "; padding=border" or "; interpolation=nearest"',
            )
        chosen[key.strip()] = value.strip()
    chosen |= {name: value for name, value in (("padding", padding), ("interpolation", interpolation)) if value}
    parts: list[Transform] = []
    position = 0
    while True:
        item = ITEM.match(body, position)
        if item is None:
            raise InputError(
                f"cannot read the transformation {text!r} at {body[position:]!r}",
                do='write letters with ranges, separated by commas: "R(30)", "R(-10:25)", "Sc(5), R(5), C(5), B(0.01)"',
            )
        parts.append(_part(*item.groups()))
        position = item.end()
        if position == len(body):
            break
        if body[position] != ",":
            raise InputError(f"expected a comma in {text!r} before {body[position:]!r}")
        position += 1
    if not chosen and len(parts) == 1:
        return parts[0]
    return Compose(*parts, **chosen)


def _part(letter: str, low: str, high: str | None, fixed: str | None, *normal: str | None) -> Transform:
    if letter == NOISE:
        from tiltproof.transforms.noise import Linf  # it derives from `Transform`

        if high is not None or fixed is not None or normal[0] is not None:
            text = low + (f":{high}" if high is not None else "") + (f"@{fixed}" if fixed is not None else "")
            raise InputError(
                f"{NOISE} takes one number, the largest change of a pixel", got=text, do="write Linf(0.01)"
            )
        return Linf(_number(f"{NOISE}'s epsilon", low, "Linf(0.01)"))
    if letter not in LETTERS:
        known = ", ".join(f"{name} ({part.__name__}, {part.unit})" for name, part in LETTERS.items())
        known += f", {NOISE} (noise, units of pixel value)"
        raise InputError("unknown transformation letter", got=letter, do=f"use one of: {known}")
    part, example = LETTERS[letter], f"{letter}(5)"
    ends = [None if end is None else _number(f"{letter}'s range", end, example) for end in (low, high)]
    if fixed is None:
        return part(*ends)  # type: ignore[arg-type]
    if part.setting is None:
        raise InputError(f"{letter} has no setting", got=f"@{fixed}", do=f"write {example}, without @")
    setting = _number(f"{letter}'s {part.setting[0]}", fixed, f"{letter}(5@30) for 30 {part.setting[1]}")
    if None in normal:
        return part(*ends, setting)  # type: ignore[call-arg, arg-type]
    if not part.has_plane:
        raise InputError(
            f"{letter} has no plane", got=f"@{':'.join(map(str, normal))}", do=f"write {letter}(5@{fixed})"
        )
    plane = tuple(_number(f"{letter}'s normal", str(x), f"{letter}(0.1@300@0:-1:0)") for x in normal)
    return part(*ends, setting, plane)  # type: ignore[call-arg, arg-type]


def _number(what: str, text: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{what} is not a number", got=text, do=f"write {example}") from None
