"""Every failure text of the package, in one form: what is wrong, what was got, why it is likely, what to do."""

from __future__ import annotations


def shown(value: object, most: int = 200) -> str:
    """Something out of a file that may be damaged or hostile, short and printable, for a message.

    >>> shown("a\x1b[2J"), shown("long" * 9, most=6)
    ('a?[2J', 'longlo...')
    """
    text = str(value)
    short = text if len(text) <= most else text[:most] + "..."
    return "".join(character if character.isprintable() else "?" for character in short)


class InputError(ValueError):
    """Something handed to tiltproof cannot be used; the command line turns it into exit code 2."""

    def __init__(self, what: str, *, got: object = None, why: str = "", do: str = "") -> None:
        self.what, self.got, self.why, self.do = what, got, why, do
        text = what if what.endswith("...") else what.rstrip(".")
        if got is not None:
            text += f". Got: {got}"
        if why:
            text += f". Likely cause: {why}"
        if do:
            text += f". What to do: {do}"
        super().__init__(text if text.endswith("?") else text + ".")


class UnsupportedOperation(InputError):
    """The network contains an operation that has no bound rule."""
