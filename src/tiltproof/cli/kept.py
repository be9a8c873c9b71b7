"""The options that say what a classifier must keep: the label, or another rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tiltproof.cli.inputs import DataChoice, without_none
from tiltproof.cli.options import flag, option
from tiltproof.errors import InputError, shown

if TYPE_CHECKING:
    from tiltproof.verify.keep import Keep

KEEP = "What must hold (by default: the label is the answer)"
MOST_BYTES = 2**20

KeepOwnFlag = Annotated[bool, flag("The answer to the untransformed image; needs no labels.", KEEP, "--keep-own")]
TopKOption = Annotated[int | None, option("The label is among the K largest outputs.", KEEP, "K", "--top-k")]
AllowOption = Annotated[
    list[str] | None,
    option(
        "The label or one of these; also LABEL:A,B or @FILE.",
        KEEP,
        "CLASS,...",
        "--allow",
    ),
]
ForbidOption = Annotated[list[str] | None, option("None of these classes; as --allow.", KEEP, "CLASS,...", "--forbid")]


class KeepChoice(NamedTuple):
    """The options as they were given."""

    own: bool = False
    top_k: int | None = None
    allow: list[str] | None = None
    forbid: list[str] | None = None

    @property
    def given(self) -> dict[str, object]:
        """The options that were given, by their names."""
        return without_none(
            **{
                "--keep-own": True if self.own else None,
                "--top-k": self.top_k,
                "--allow": self.allow or None,
                "--forbid": self.forbid or None,
            }
        )

    @property
    def task(self) -> str:
        """What is asked of the data: labels, or nothing."""
        return "any" if self.own else "classification"

    def notes(self) -> dict[str, Any]:
        """For the manifest of a run: classes as they were named."""
        return without_none(allow=self.allow or None, forbid=self.forbid or None)

    def keep(self, data: DataChoice) -> Keep | None:
        """Return what must be kept; None: the label. The data are opened for names of classes."""
        from tiltproof.verify.keep import Allow, Forbid, KeepOwn, TopK

        if len(self.given) > 1:
            raise InputError(
                "a run keeps one thing",
                got=" and ".join(self.given),
                why="--allow forbids every other class already, and --forbid allows them",
                do="give one of these options",
            )
        if self.own:
            return KeepOwn()
        if self.top_k is not None:
            return TopK(self.top_k)
        if self.allow:
            return Allow(parse_classes("--allow", self.allow, lambda: data.open("any").names))
        return Forbid(parse_classes("--forbid", self.forbid, lambda: data.open("any").names)) if self.forbid else None


def parse_classes(
    name: str, texts: Sequence[str], names: Callable[[], Sequence[str]] = tuple
) -> list[int] | dict[int, list[int]]:
    """Parse lists of classes, for all images or by label; ``names``: of the classes, in order.

    >>> parse_classes("--allow", ["1,2", "7"])
    [1, 2, 7]
    >>> parse_classes("--allow", ["14:1,2", "stop: 7"], lambda: ["go", "stop"])
    {14: [1, 2], 1: [7]}
    """
    known = names()
    lines = [line for text in texts for line in (_lines(name, text[1:]) if text.startswith("@") else [text])]
    everywhere: list[int] = []
    by_label: dict[int, list[int]] = {}
    for line in lines:
        label, colon, listed = line.rpartition(":")
        classes = [_class(name, part, known) for part in listed.split(",")]
        if colon:
            by_label.setdefault(_class(name, label, known), []).extend(classes)
        else:
            everywhere += classes
    if everywhere and by_label:
        raise InputError(
            f"{name} is either for all images or by label",
            got=shown(", ".join(lines)),
            do=f"write {name} 1,2 for all images, or {name} 14:1,2 for each label",
        )
    if not lines:
        raise InputError(f"{name} names no class", got="an empty file", do="write a line such as 14:1,2")
    return by_label or everywhere


def _lines(name: str, file: str) -> list[str]:
    path = Path(file)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"the file of {name} is too large", got=f"{path}, {path.stat().st_size:,} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"the file of {name} cannot be read", got=f"{shown(file)} ({why})") from None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _class(name: str, text: str, names: Sequence[str]) -> int:
    """Return the number of a class that is given by its name or number."""
    text = text.strip()
    place = names.index(text) if text in names else None
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if place is not None and number is not None and place != number:
        raise InputError(
            f"{name} {text} may be two classes",
            got=f"the name of class {place}, and the number of another",
            do=f"write {place} for the class that is called {text}, or rename the folders to their numbers"
            if str(place) not in names
            else "rename the folders, so that the name of each is its number",
        )
    found = place if number is None else number
    if found is None:
        some = ", ".join(map(shown, names[:8])) + (", ..." if len(names) > 8 else "")
        raise InputError(
            f"{name} names an unknown class",
            got=shown(text) or "nothing between two commas",
            why="" if names else "the data have no names of classes",
            do=f"use the number of a class, counted from 0{f', or a name: {some}' if names else ''}",
        )
    return found
