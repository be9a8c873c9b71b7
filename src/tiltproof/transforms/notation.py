"""The paper's notation as text: ``"Sc(5), R(5), C(5), B(0.01)"``, ``"R(-10:25)"``, ``"R(30); padding=border"``.

A constant of a transformation follows an @: ``"Yaw(5@300)"`` has a camera with a focal length of 300 pixels.
"""

from __future__ import annotations

import re

from tiltproof.errors import InputError
from tiltproof.transforms.base import LETTERS, Compose, Part, Transform

NUMBER = r"\s*([^():,@]+?)\s*"
ITEM = re.compile(rf"\s*([A-Za-z_]+)\s*\({NUMBER}(?::{NUMBER})?(?:@{NUMBER})?\)\s*")


def parse(text: str, padding: str | None = None) -> Transform:
    """Read a transformation from its notation.

    Parameters
    ----------
    text : str
        Letters with ranges, separated by commas; ``(x)`` is the range from -x to x. Optionally ``; padding=...``.
    padding : {"zeros", "border", "reflect"}, optional
        What lies outside the image; takes precedence over the text's.

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
    part, example = LETTERS[letter], f"{letter}(5)"
    ends = [None if end is None else _number(f"{letter}'s range", end, example) for end in (low, high)]
    if fixed is None:
        return part(*ends)  # type: ignore[arg-type]
    if part.setting is None:
        raise InputError(f"{letter} has no setting", got=f"@{fixed}", do=f"write {example}, without @")
    setting = _number(f"{letter}'s {part.setting[0]}", fixed, f"{letter}(5@30) for 30 {part.setting[1]}")
    return part(*ends, setting)  # type: ignore[call-arg, arg-type]


def _number(what: str, text: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{what} is not a number", got=text, do=f"write {example}") from None
