"""The layout of a message on a terminal: what, got, why and do on lines of their own, wrapped between words; elsewhere it is one line."""

from __future__ import annotations

import shutil
import sys
import textwrap

import typer

from tiltproof.errors import InputError

LEAST_WIDTH = 20
LABELS = {"got": "got: ", "why": "why: ", "do": "do:  "}
"""Attributes of `InputError` after the first line."""


def say(kind: str, text: str, error: BaseException | None = None) -> None:
    """Print ``kind: text`` on stderr; ``error``: the exception, whose parts a terminal shows line by line."""
    if not sys.stderr.isatty():
        typer.echo(f"{kind}: {text}" if text else kind, err=True)
        return
    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns)
    if isinstance(error, InputError):
        first, *rest = message_lines(error, width, kind)
    else:
        first, *rest = wrapped(f"{kind}: {text}" if text else kind, "", width)
    typer.echo("\n".join([typer.style(kind, fg="red", bold=True) + first[len(kind) :], *rest]), err=True)


def tell(text: str, err: bool = False) -> None:
    """Print a sentence; a terminal gets it broken between words."""
    if (sys.stderr if err else sys.stdout).isatty():
        text = "\n".join(wrapped(text, "", max(LEAST_WIDTH, shutil.get_terminal_size().columns)))
    typer.echo(text, err=err)


def message_lines(error: InputError, width: int, kind: str = "error") -> list[str]:
    """Return the lines of a message.

    >>> print("\\n".join(message_lines(InputError("unknown method", got="magic", do="use affine, hull or fgv"), 24)))
    error: unknown method
      got: magic
      do:  use affine, hull
           or fgv
    """
    lines = wrapped(f"{kind}: {error.what}", "", width)
    for name, label in LABELS.items():
        value = getattr(error, name)
        if value not in (None, ""):
            lines += wrapped(str(value), "  " + label, width)
    return lines


def wrapped(text: str, label: str, width: int) -> list[str]:
    """Break between words only: paths and commands stay whole, so that they can be copied."""
    indent = " " * (len(label) or 2)
    lines = textwrap.wrap(
        text, width, initial_indent=label, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines or [label.rstrip()]
