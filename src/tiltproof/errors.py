"""Every error message of the package has one form: what is wrong, what was given, the likely cause, what to do."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any


def shown(value: object, most: int = 200) -> str:
    """Text from a file that may be damaged or hostile, shortened and made printable for a message.

    >>> shown("a\x1b[2J"), shown("long" * 9, most=6)
    ('a?[2J', 'longlo...')
    """
    text = str(value)
    short = text if len(text) <= most else text[:most] + "..."
    return "".join(character if character.isprintable() else "?" for character in short)


def raised(error: BaseException) -> str:
    """What a user's function or module raised, in one line, and where: the innermost place outside of torch and this package."""
    text = shown(" ".join(str(error).split()), 300)
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    torch = sys.modules.get("torch")
    others = [Path(__file__).parent, *([Path(torch.__file__).parent] if torch is not None and torch.__file__ else [])]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not frame.filename.startswith("<") and not any(path.is_relative_to(other) for other in others):
            return f"{what} ({shown(path)}, line {frame.lineno}, in {frame.name})"
    return what


class InputError(ValueError):
    """An input that tiltproof cannot use; on the command line, exit code 2.

    >>> print(InputError("unknown method", got="magic", do="use affine"))
    unknown method. Got: magic. What to do: use affine.
    """

    def __init__(self, what: str, *, got: object = None, why: str = "", do: str = "") -> None:
        self.what, self.got, self.why, self.do = what, got, why, do
        parts = [what]
        if got is not None:
            parts.append(f"Got: {got}")
        if why:
            parts.append(f"Likely cause: {why}")
        if do:
            parts.append(f"What to do: {do}")
        super().__init__(" ".join(part if part.endswith((".", "?")) else part + "." for part in parts))


class UnsupportedOperation(InputError):
    """The network contains operations without a bound rule.

    Attributes
    ----------
    refusals : tuple
        One entry for each use of such an operation, with ``operation``, ``node``, ``module``, ``why`` and ``do``.
    """

    def __init__(
        self, what: str, *, got: object = None, why: str = "", do: str = "", refusals: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(what, got=got, why=why, do=do)
        self.refusals = refusals
