"""The fields of a recipe, their defaults, and the rules that their values are checked against."""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiltproof.errors import InputError
from tiltproof.models import ARCHITECTURES
from tiltproof.pixels.api import METHODS
from tiltproof.training.bounded_network import PROPAGATIONS
from tiltproof.training.losses import MEASURES
from tiltproof.transforms import Transform, parse
from tiltproof.transforms.base import number_text

MAX_LETTERS = 300
"""Longest text in a recipe."""
_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 60
_shortened.maxlevel = 2

TOML_TYPES = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a section",
}
"""Names of TOML's types in messages."""


class Refused(Exception):
    """The value does not follow the rule; the reader adds where."""


@dataclass(frozen=True)
class Rule:
    """A description of the valid values, and a function that returns a valid value or raises `Refused`."""

    expected: str
    accept: Callable[[Any], Any]
    is_text: bool = False


def setting(rule: Rule, default: Any = dataclasses.MISSING) -> Any:
    """Define a field of a recipe with its rule; without a default it is required."""
    return dataclasses.field(default=default, metadata={"rule": rule})


def shown(value: Any) -> str:
    """Describe a value from a file in a message: itself if it is short, and its type; one printable line.

    >>> shown("fast"), shown([1, 2]), shown(True)
    ("'fast', a text", '[1, 2], a list', 'True, a boolean')
    """
    try:
        text = _shortened.repr(value)
    except ValueError:  # an integer with more digits than Python converts
        text = "a number with thousands of digits"
    kind = TOML_TYPES.get(type(value), "a date or time")
    return f"{text}, {kind}" if text.isprintable() else kind


def whole(low: int, high: int) -> Rule:
    """Return the rule for a whole number from low to high."""

    def accept(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Refused
        return value

    return Rule(f"a whole number from {low:,} to {high:,}", accept)


def number(low: float, high: float, above: bool = False) -> Rule:
    """Return the rule for a finite number from low (excluded if ``above``) to high; integers are converted."""

    def accept(value: Any) -> float:
        if type(value) not in (int, float):
            raise Refused
        # compare before converting: an integer may be too large for a float; NaN fails every comparison
        if not low <= value <= high or (above and value == low) or not math.isfinite(value):
            raise Refused
        return float(value) + 0.0  # turns -0.0 into 0.0

    return Rule(f"a number {f'above {low:g}, at most' if above else f'from {low:g} to'} {high:g}", accept)


def flag() -> Rule:
    """Return the rule for true or false."""

    def accept(value: Any) -> bool:
        if type(value) is not bool:
            raise Refused
        return value

    return Rule("true or false", accept)


def word(choices: Sequence[str]) -> Rule:
    """Return the rule for one of some words."""

    def accept(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise Refused
        return value

    return Rule(f"one of {', '.join(choices)}", accept, is_text=True)


def text(pattern: Callable[[str], bool] = str.isprintable, expected: str = "printable") -> Rule:
    """Return the rule for a text of limited length."""

    def accept(value: Any) -> str:
        if type(value) is not str or len(value) > MAX_LETTERS or not pattern(value):
            raise Refused
        return value

    return Rule(f"a text ({expected}, at most {MAX_LETTERS} letters)", accept, is_text=True)


def several(item: Rule, shortest: int, longest: int) -> Rule:
    """Return the rule for a list whose items follow one rule; the recipe stores a tuple."""

    def accept(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not shortest <= len(value) <= longest:
            raise Refused
        return tuple(item.accept(entry) for entry in value)

    count = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    return Rule(f"a list of {count}, each {item.expected}", accept)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MAX_EPOCHS = 100_000
LOSSES = ("certified", "augmentation", "worst-of", "pgd", "ibp")
"""Kinds of losses."""
REGRESSION_LOSSES = LOSSES[:3]
"""Those for regression."""


@dataclass(frozen=True)
class DataPart:
    """Section [data]: the images, and their augmentation before any transformation."""

    name: str = setting(word(("mnist", "cifar10", "tinyimagenet", "driving")))
    crop_size: int = setting(whole(0, 1024), 0)
    """Size of random crops, and of the center crops of held-out images; 0: the image's size."""
    crop_padding: int = setting(whole(0, 16), 0)
    """Pixels of padding on every side before a random crop."""
    crop_fill: str = setting(word(("zeros", "edge")), "zeros")
    """The padding: black (the paper), or the nearest pixel of the image."""
    flip: bool = setting(flag(), False)
    """Random horizontal flips, which change the sign of a steering angle."""
    erase: int = setting(whole(0, 1024), 0)
    """Side of a random square of each image that is made gray before any transformation; 0: none."""
    hold_out: float = setting(number(0, 0.9), 0.2)
    """Fraction of the training set that is held out for validation."""
    hold_out_run: int = setting(whole(1, 1_000_000), 1)
    """Number of consecutive images held out together, because neighboring frames look alike (200 are ten seconds)."""


@dataclass(frozen=True)
class ModelPart:
    """Section [model]: the network and its initial weights."""

    architecture: str = setting(word(tuple(ARCHITECTURES)))
    start: str = setting(text(), "")
    """Initial weights, of the same architecture: a file of an earlier run, or the name of a bundled network. Empty: random."""


@dataclass(frozen=True)
class TrainPart:
    """Section [train]: the optimizer and its schedule."""

    epochs: int = setting(whole(1, MAX_EPOCHS), 100)
    batch_size: int = setting(whole(1, 65_536), 256)
    optimizer: str = setting(word(("adam", "adamw")), "adam")
    learning_rate: float = setting(number(0, 10, above=True), 1e-3)
    schedule: str = setting(word(("steps", "one-cycle", "constant")), "constant")
    """steps: multiply by ``decay`` after each milestone; one-cycle: the peak ``learning_rate`` is at a fifth of the run."""
    milestones: tuple[int, ...] = setting(several(whole(1, MAX_EPOCHS), 0, 100), ())
    decay: float = setting(number(0, 1, above=True), 0.1)
    weight_decay: float = setting(number(0, 1), 0.0)
    l1: float = setting(number(0, 1), 0.0)
    """Factor of the sum of absolute weights (parameters with several dimensions) in the loss."""
    clip_norm: float = setting(number(0, 1e6), 0.0)
    """Largest norm of the gradient; 0: no clipping."""
    precision: str = setting(word(("tf32", "bf16")), "tf32")
    """Products on a GPU: TF32, or bfloat16, with which large networks train twice as fast. A CPU ignores it."""
    seed: int = setting(whole(0, 2**63 - 1), 0)


@dataclass(frozen=True)
class LossPart:
    """Section [loss]; which keys matter depends on ``kind``."""

    kind: str = setting(word(LOSSES))
    nu: tuple[float, ...] = setting(several(number(0, 1e6, above=True), 0, 100), ())
    """certified: half widths of the boxes after the ramp, one per parameter; `tiltproof tune` finds them."""
    bounds: str = setting(word(METHODS), "fgv")
    propagation: str = setting(word(PROPAGATIONS), "interval")
    kappa: tuple[float, ...] = setting(several(number(0, 1), 2, 2), (1.0, 0.5))
    """certified, ibp: weight of the clean term at the start and after the ramp."""
    warm_up_epochs: int = setting(whole(0, MAX_EPOCHS), 0)
    """Epochs with the clean term only."""
    ramp_epochs: int = setting(whole(0, MAX_EPOCHS), 0)
    """Epochs after warm-up in which kappa and nu change linearly to their final values."""
    parameters_per_batch: str = setting(word(("one", "each")), "one")
    """One sampled parameter vector per mini-batch (the paper), or one for each image."""
    every: int = setting(whole(1, 1000), 1)
    """certified: compute bounds for every n-th image of the mini-batch; 1: for all (the paper)."""
    measure: str = setting(word(MEASURES), "worst")
    """certified: the cross-entropy of the worst outputs (the paper), or the logarithm of the width of the margins' bounds."""
    samples: int = setting(whole(1, 1000), 1)
    """certified, worst-of: train on the worst of this many sampled parameter vectors per image."""
    spread: float = setting(number(0, 1e6), 0.0)
    """certified, regression only: weight of the variance of the outputs at an image's sampled parameters."""
    epsilon: float = setting(number(0, 1, above=True), 0.1)
    """pgd, ibp: half width of the box around each pixel."""
    step_size: float = setting(number(0, 1, above=True), 0.005)
    steps: int = setting(whole(1, 10_000), 40)


@dataclass(frozen=True)
class CertifyPart:
    """Section [certify]: how the trained network is certified; without ``splits`` the search is adaptive."""

    method: str = setting(word(METHODS), "affine")
    splits: tuple[int, ...] | None = setting(several(whole(1, 10**6), 1, 100), None)


PARTS = {"data": DataPart, "model": ModelPart, "train": TrainPart, "loss": LossPart, "certify": CertifyPart}
"""The sections of a recipe."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a network: data, model, optimizer, loss and certification. `read_recipe` returns one.

    Parameters
    ----------
    name : str
        Its name, which can name a folder.
    transform : str
        The transformation in text notation.
    data, model, train, loss, certify
        The sections of the file.
    about : str
        A remark.
    """

    name: str = setting(
        text(lambda value: NAME.fullmatch(value) is not None, "letters, digits, dots, dashes; it names a folder")
    )
    transform: str = setting(text())
    data: DataPart
    model: ModelPart
    train: TrainPart
    loss: LossPart
    certify: CertifyPart
    about: str = setting(text(), "")

    def to_dict(self) -> dict[str, Any]:
        """Return all values, defaults included, in the form of a recipe file."""
        content = dataclasses.asdict(self)
        if self.certify.splits is None:
            del content["certify"]["splits"]
        for part in content.values():
            if isinstance(part, dict):
                part.update({key: list(value) for key, value in part.items() if isinstance(value, tuple)})
        return content

    def with_settings(self, settings: Sequence[str]) -> Recipe:
        """Return the recipe with some values replaced.

        Parameters
        ----------
        settings : sequence of str
            Settings with TOML values, such as ``["train.epochs=3", "loss.nu=[0.1]"]``.

        Returns
        -------
        Recipe
            The changed recipe.

        Raises
        ------
        InputError
            If a key is unknown, or a value is invalid.
        """
        from tiltproof.training.recipe import changed

        return changed(self, settings)


def check_whole(recipe: Recipe, source: str) -> None:
    """Check conditions that involve several values of a recipe."""
    try:
        transform = parse(recipe.transform)
    except InputError as error:
        raise InputError(f"the transform of {source} cannot be read: {error}".rstrip(".")) from None
    transform.refuse_noise("training")
    _check_boxes(recipe, transform, source)
    train, loss = recipe.train, recipe.loss
    if loss.warm_up_epochs + loss.ramp_epochs > train.epochs:
        raise InputError(
            f"warm-up and ramp-up are longer than the training of {source}",
            got=f"loss.warm_up_epochs {loss.warm_up_epochs} + loss.ramp_epochs {loss.ramp_epochs}, train.epochs {train.epochs}",
            why="only the number of epochs was changed",
            do="keep their sum at train.epochs or below",
        )
    if loss.samples > 1 and loss.parameters_per_batch == "one" and loss.kind == "certified":
        raise InputError(
            f"the worst of several samples needs parameters for each image in {source}",
            got=f"loss.samples {loss.samples}, loss.parameters_per_batch 'one'",
            do='set loss.parameters_per_batch = "each"',
        )
    if loss.kind == "worst-of" and loss.samples < 2:
        raise InputError(f"a worst-of loss needs loss.samples of 2 or more in {source}", got=loss.samples)
    if train.schedule == "steps" and not train.milestones:
        raise InputError(f"train.schedule 'steps' of {source} needs train.milestones", do="add milestones = [80]")
    if list(train.milestones) != sorted(set(train.milestones)):
        raise InputError(f"train.milestones of {source} must ascend", got=list(train.milestones[:10]))


def _check_boxes(recipe: Recipe, transform: Transform, source: str) -> None:
    """Check half widths and splits: one per parameter, and no box wider than twice its range."""
    count, nu, splits = len(transform.parts), recipe.loss.nu, recipe.certify.splits
    if len(nu) != count and (nu or recipe.loss.kind == "certified"):
        raise InputError(
            f"loss.nu of {source} needs {count} numbers, one for each parameter of {recipe.transform}",
            got=f"{len(nu)} numbers" if nu else "none",
            do="give half widths in the order of the transformation; tiltproof tune finds them",
        )
    for half, part in zip(nu, transform.parts, strict=False):
        low, high = part.range
        if half > high - low:
            raise InputError(
                f"loss.nu of {source} makes boxes larger than the range of {part.text}",
                got=f"half width {number_text(half)}, range {number_text(low)} to {number_text(high)}",
                do="give half widths below the width of the range",
            )
    if splits is not None and len(splits) != count:
        raise InputError(
            f"certify.splits of {source} needs {count} numbers, one for each parameter of {recipe.transform}",
            got=f"{len(splits)} numbers",
            do="leave splits out for the adaptive search",
        )
