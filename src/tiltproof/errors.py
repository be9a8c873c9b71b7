"""Every failure text of the package, in one form: what is wrong, what was got, why it is likely, what to do."""

from __future__ import annotations


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
