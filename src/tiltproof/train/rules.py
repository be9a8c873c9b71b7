"""What a value of a recipe may be: each rule says in words what it expects, and lets nothing else through."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_LETTERS = 300
"""Of a text in a recipe."""

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


class Refused(Exception):
    """The value is not what the rule expects; the reader says where."""


@dataclass(frozen=True)
class Rule:
    """What is expected, in words, and the function that lets it through, or raises `Refused`."""

    expected: str
    accept: Callable[[Any], Any]
    is_text: bool = False

    def check(self, value: Any) -> Any:
        """The value in the form that a recipe keeps."""
        return self.accept(value)


def setting(rule: Rule, default: Any = dataclasses.MISSING) -> Any:
    """A field of a recipe: its rule, and its default unless it has to be given."""
    return dataclasses.field(default=default, metadata={"rule": rule})


def shown(value: Any) -> str:
    """A value from a file for a message: its kind, and itself where that is short; always one printable line.

    >>> shown("fast"), shown([1, 2]), shown(True)
    ("'fast', a text", '[1, 2], a list', 'True, a boolean')
    """
    try:
        text = _shortened.repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        text = "a number of very many digits"
    kind = TOML_TYPES.get(type(value), "a date or time")
    return f"{text}, {kind}" if text.isprintable() else kind


def whole(low: int, high: int) -> Rule:
    """A whole number from low to high."""

    def accept(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Refused
        return value

    return Rule(f"a whole number from {low:,} to {high:,}", accept)


def number(low: float, high: float, above: bool = False) -> Rule:
    """A finite number from low (or, ``above``, greater than low) to high; a whole one will do."""

    def accept(value: Any) -> float:
        if type(value) not in (int, float):
            raise Refused
        # compared before it is converted: a whole number may be too large for a float; NaN fails every comparison
        if not low <= value <= high or (above and value == low) or not math.isfinite(value):
            raise Refused
        return float(value) + 0.0  # turns -0.0 into 0.0

    return Rule(f"a number {f'above {low:g}, at most' if above else f'from {low:g} to'} {high:g}", accept)


def flag() -> Rule:
    """True or false."""

    def accept(value: Any) -> bool:
        if type(value) is not bool:
            raise Refused
        return value

    return Rule("true or false", accept)


def word(choices: Sequence[str]) -> Rule:
    """One of some known words."""

    def accept(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise Refused
        return value

    return Rule(f"one of {', '.join(choices)}", accept, is_text=True)


def text(pattern: Callable[[str], bool] = str.isprintable, expected: str = "printable") -> Rule:
    """A text of limited length."""

    def accept(value: Any) -> str:
        if type(value) is not str or len(value) > MOST_LETTERS or not pattern(value):
            raise Refused
        return value

    return Rule(f"a text ({expected}, at most {MOST_LETTERS} letters)", accept, is_text=True)


def several(item: Rule, least: int, most: int) -> Rule:
    """A list of things that each follow one rule; kept as a tuple."""

    def accept(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            raise Refused
        return tuple(item.check(entry) for entry in value)

    count = f"{least}" if least == most else f"{least} to {most}"
    return Rule(f"a list of {count}, each {item.expected}", accept)
