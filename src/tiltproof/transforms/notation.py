"""The paper's notation as text: ``"Sc(5), R(5), C(5), B(0.01)"``, ``"R(-10:25)"``, ``"R(30); padding=border"``."""

from __future__ import annotations

import re

from tiltproof.errors import InputError
from tiltproof.transforms.base import Compose, Part, Transform
from tiltproof.transforms.brightness import Brightness
from tiltproof.transforms.colour import Hue, Saturation
from tiltproof.transforms.contrast import Contrast
from tiltproof.transforms.filters import Filter
from tiltproof.transforms.gamma import Gamma
from tiltproof.transforms.gaussian_blur import GaussianBlur
from tiltproof.transforms.motion_blur import MotionBlur
from tiltproof.transforms.rotation import Rotation
from tiltproof.transforms.scaling import Scaling
from tiltproof.transforms.shearing import Shearing
from tiltproof.transforms.translation import TranslationU, TranslationV

LETTERS: dict[str, type[Part]] = {
    part.letter: part for part in (Rotation, TranslationU, TranslationV, Scaling, Shearing, Contrast, Brightness)
}
LETTERS |= {part.letter: part for part in (Gamma, Saturation, Hue, GaussianBlur, MotionBlur)}
_TEXT = r"\s*([^():,@]+?)\s*"
ITEM = re.compile(rf"\s*([A-Za-z_]+)\s*\({_TEXT}(?::{_TEXT})?(?:@{_TEXT})?\)\s*")


def parse(text: str, padding: str | None = None) -> Transform:
    """Read a transformation from its notation.

    >>> parse("R(-10:25), Sh(2)")
    Compose(Rotation(-10, 25), Shearing(-2, 2))
    >>> str(parse("Sc( 5 ),R(5)"))
    'Sc(5), R(5)'
    >>> parse("Mb(5@30), Bl(2)")
    Compose(MotionBlur(0, 5, 30), GaussianBlur(0, 2, 6))
    """
    if not isinstance(text, str):
        raise InputError("the notation is text", got=repr(text), do='write for example "R(30)" or "Sc(5), R(5)"')
    body, _, option = text.partition(";")
    if option.strip():
        key, _, value = option.partition("=")
        if key.strip() != "padding":
            raise InputError("the only option after ';' is padding", got=option.strip(), do='write "; padding=border"')
        padding = padding or value.strip()
    parts, position = [], 0
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
    if padding is None and len(parts) == 1:
        return parts[0]
    return Compose(*parts, padding=padding or "zeros")


def _part(letter: str, low: str, high: str | None, fixed: str | None) -> Part:
    if letter not in LETTERS:
        known = ", ".join(f"{name} ({part.__name__}, {part.unit})" for name, part in LETTERS.items())
        raise InputError("unknown transformation letter", got=letter, do=f"use one of: {known}")
    try:
        numbers = [float(low)] if high is None else [float(low), float(high)]
    except ValueError:
        raise InputError(
            f"{letter}'s range is not a number", got=low if high is None else f"{low}:{high}", do=f"write {letter}(5)"
        ) from None
    if fixed is None:
        return LETTERS[letter](*numbers)
    try:
        setting = float(fixed)
    except ValueError:
        raise InputError(f"{letter}'s setting after @ is not a number", got=fixed) from None
    if not issubclass(LETTERS[letter], Filter):
        raise InputError(f"{letter} has no setting", got=f"@{fixed}", do=f"write {letter}({low}) without @")
    return LETTERS[letter](numbers[0], numbers[1] if len(numbers) > 1 else None, setting)  # type: ignore[call-arg]
