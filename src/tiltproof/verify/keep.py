"""What a classifier must keep under every transformation: the label, or one of these options of `certify`.

Each has a record, plain values for the claim in a run's manifest, and words for reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiltproof.errors import InputError, shown
from tiltproof.verify.options import _Option
from tiltproof.verify.rules import ClassRule, OwnRule, RowRule, Rule

Classes = tuple[int, ...]
LARGEST, SMALLEST = 2.0**60, 2.0**-60
"""Limits of the sizes of coefficients, and of bounds the upper one; 0 is allowed."""
MOST_CLASSES = 2**31
NAMED = 12
"""Most classes that a sentence lists."""


class Keep(_Option):
    """Base class of what must be kept."""

    def record(self) -> dict[str, Any]:
        """Return plain values for the claim of a run."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """What is proved of the network, for sentences: "the network ..."."""
        raise NotImplementedError

    def rule(self, labels: Tensor, classes: int) -> Rule:
        """Return the rule for images of these labels [N] and a network of ``classes`` classes."""
        raise NotImplementedError

    def of_images(self, numbers: Sequence[int]) -> Keep:
        """Return the same for some of the images."""
        return self


@dataclass(frozen=True, repr=False)
class KeepOwn(Keep):
    """The network keeps its own answer, that to the untransformed image. No labels are needed, and no image is
    misclassified. The own answer is proved too: an image that ties, or nearly so, is unknown."""

    def record(self) -> dict[str, Any]:
        """Return plain values for the claim of a run."""
        return {"rule": "own"}

    @property
    def words(self) -> str:
        """What is proved of the network, for sentences."""
        return "gives the same answer as to the untransformed image"

    def rule(self, labels: Tensor, classes: int) -> Rule:
        """Return the rule for images of these labels [N] and a network of ``classes`` classes."""
        return OwnRule()


@dataclass(frozen=True, repr=False)
class TopK(Keep):
    """The label stays among the ``k`` largest outputs: fewer than ``k`` others are not strictly smaller. Which others
    these are may differ from one parameter to the next.

    Parameters
    ----------
    k : int
        At least 1, and less than the number of classes; 1 is the plain rule of labels.

    Raises
    ------
    InputError
        If ``k`` is no positive whole number.
    """

    k: int

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise InputError(
                "the label is kept among at least one largest output",
                got=f"k {self.k!r}",
                do="e.g. TopK(2) (--top-k 2)",
            )

    def record(self) -> dict[str, Any]:
        """Return plain values for the claim of a run."""
        return {"rule": "top", "k": self.k}

    @property
    def words(self) -> str:
        """What is proved of the network, for sentences."""
        return "has " + (
            "the label as its largest output" if self.k == 1 else f"the label among its {self.k} largest outputs"
        )

    def rule(self, labels: Tensor, classes: int) -> Rule:
        """Return the rule for images of these labels [N] and a network of ``classes`` classes."""
        if self.k >= classes:
            raise InputError(
                "the label is among all classes anyway",
                got=f"k {self.k} of {classes} classes",
                do=f"choose k from 1 to {classes - 1} (--top-k)",
            )
        return ClassRule(_one_hot(labels, classes), self.k - 1)


@dataclass(frozen=True, repr=False)
class ClassSets(Keep):
    """Base class of sets of classes, for all images or by label."""

    classes: Sequence[int] | Mapping[int, Sequence[int]]

    def __post_init__(self) -> None:
        given = self.classes
        if isinstance(given, Mapping):
            table = {_class(label, self._option): _classes(given[label], self._option) for label in given}
            if not table:
                raise InputError(f"{self._option} names no label", got="an empty mapping", do=self._example)
            object.__setattr__(self, "classes", dict(sorted(table.items())))
        else:
            object.__setattr__(self, "classes", _classes(given, self._option))

    def __hash__(self) -> int:
        return hash(str(self.record()))

    @property
    def _option(self) -> str:
        """The name of the option in messages."""
        return type(self).__name__

    @property
    def _example(self) -> str:
        """A call to suggest."""
        return f"e.g. {self._option}([1, 2]) or {self._option}({{14: [1, 2]}}) (--{self._option.lower()} 14:1,2)"

    @property
    def by_label(self) -> dict[int, Classes] | None:
        """The classes by label, if they differ."""
        return dict(self.classes) if isinstance(self.classes, dict) else None

    def record(self) -> dict[str, Any]:
        """Return plain values for the claim of a run."""
        table = self.by_label
        if table is None:
            return {"rule": self._option.lower(), "classes": list(self.classes)}
        return {"rule": self._option.lower(), "by_label": {str(label): list(table[label]) for label in table}}

    def _check(self, classes: int) -> None:
        """Raise for a class that the network does not have."""
        table = self.by_label
        named = {*self.classes} if table is None else {*table}.union(*table.values())
        if max(named) >= classes:
            raise InputError(
                f"{self._option} names a class that the network does not have",
                got=f"class {max(named)}",
                why=f"the network has the classes 0 to {classes - 1}",
                do="count classes from 0, as the network's outputs",
            )

    def _mask(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Return the classes given for each image [N, K], and which images have any [N]."""
        self._check(classes)
        sets, known = torch.zeros(classes, classes, dtype=torch.bool), torch.zeros(classes, dtype=torch.bool)
        table = self.by_label
        for label in range(classes) if table is None else table:
            sets[label, list(self.classes if table is None else table[label])] = True
            known[label] = True
        labels = labels.cpu()
        return sets[labels], known[labels]


class Allow(ClassSets):
    """The answer stays within the image's allowed classes: its label, and those given.

    Parameters
    ----------
    classes : sequence of int, or mapping of int to sequence of int
        Classes that are allowed for every image; or by label, where images of other labels keep their label.

    Raises
    ------
    InputError
        If a class is no whole number, or none is given.
    """

    @property
    def words(self) -> str:
        """What is proved of the network, for sentences."""
        table = self.by_label
        if table is None:
            return f"answers with the label or {_listed(self.classes)}"
        each = "; ".join(f"for the label {label} also {_listed(table[label])}" for label in [*table][:NAMED])
        return f"answers with the label or an allowed class ({each}{'; and so on' if len(table) > NAMED else ''})"

    def rule(self, labels: Tensor, classes: int) -> Rule:
        """Return the rule for images of these labels [N] and a network of ``classes`` classes."""
        mask, _ = self._mask(labels, classes)
        allowed = mask | _one_hot(labels, classes).cpu()
        if bool(allowed.all(1).any()):
            raise InputError(
                "every class is allowed, so that there is nothing to prove",
                got=f"Allow, for images of the label {int(labels[int(allowed.all(1).int().argmax())])}",
                do="leave at least one class out",
            )
        return ClassRule(allowed)


class Forbid(ClassSets):
    """The answer never is one of the forbidden classes; any other answer will do, the label or not.

    Parameters
    ----------
    classes : sequence of int, or mapping of int to sequence of int
        Classes that are forbidden for every image; or by label, where images of other labels keep their label.

    Raises
    ------
    InputError
        If a class is no whole number, none is given, or a label is forbidden for its own images.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for label, forbidden in (self.by_label or {}).items():
            if label in forbidden:
                raise InputError(
                    "a label is forbidden for its own images",
                    got=f"Forbid, {label} for the label {label}",
                    do="leave it out: the right answer would be the wrong one",
                )

    @property
    def words(self) -> str:
        """What is proved of the network, for sentences."""
        table = self.by_label
        if table is None:
            return f"never answers with {_listed(self.classes)}"
        each = "; ".join(f"with {_listed(table[label])} for the label {label}" for label in [*table][:NAMED])
        return (
            f"never answers {each}{'; and so on' if len(table) > NAMED else ''} (other labels: answers with the label)"
        )

    def rule(self, labels: Tensor, classes: int) -> Rule:
        """Return the rule for images of these labels [N] and a network of ``classes`` classes."""
        forbidden, known = self._mask(labels, classes)
        if bool(forbidden.all(1).any()):
            raise InputError("every class is forbidden, so that no answer is left", got="Forbid", do="leave one out")
        return ClassRule(torch.where(known.unsqueeze(1), ~forbidden, _one_hot(labels, classes).cpu()))


class Linear(Keep):
    """Every row of C y > d holds for the network's outputs y.

    Nothing is taken off the network's end: y are the outputs of the module.

    Parameters
    ----------
    rows : Tensor or nested sequence of float
        C: [R, K] for all images; or, with ``each``, [M, R, K].
    bounds : Tensor, sequence of float or float
        d: a number, [R] or [M, R].
    each : {"label", "image"}, optional
        Whether the matrices of a C [M, R, K] are those of the labels 0 to M - 1, or of the M images.

    Raises
    ------
    InputError
        If shapes do not fit, or a number is not finite or too large or small: coefficients are 0 or between 2^-60 and
        2^60 in size.
    """

    def __init__(self, rows: Any, bounds: Any = 0.0, each: str | None = None) -> None:
        self.rows, self.bounds, self.each = _table(rows, "C"), _table(bounds, "d"), each
        if each not in (None, "label", "image"):
            raise InputError("unknown kind of rows", got=f"each {shown(repr(each))}", do="use 'label', 'image' or None")
        if self.rows.ndim != (2 if each is None else 3) or not self.rows.numel():
            raise InputError(
                "C has the wrong shape",
                got=f"{list(self.rows.shape)}",
                do="[rows, classes] for all images; or [labels or images, rows, classes], and each='label' or 'image'",
            )
        self.rows = self.rows.unsqueeze(0) if each is None else self.rows
        if list(self.bounds.shape) not in ([], [self.rows.shape[1]], [*self.rows.shape[:2]]):
            raise InputError(
                "d has the wrong shape",
                got=f"{list(self.bounds.shape)} for C of shape {list(self.rows.shape)}",
                do="give one number, or one for each row",
            )
        self.bounds = self.bounds.expand(self.rows.shape[:2]).clone()
        size = self.rows.abs()
        if not bool(((size == 0) | ((size >= SMALLEST) & (size <= LARGEST))).all()) or bool((size == 0).all(2).any()):
            raise InputError(
                "a row of C is zero, or has a coefficient that is too large or too small",
                got=f"sizes from {float(size.min()):.3g} to {float(size.max()):.3g}",
                do="use coefficients of 0, or between 2^-60 and 2^60 in size, at least one of them not 0",
            )
        if not bool((self.bounds.abs() <= LARGEST).all()):
            raise InputError("d is too large", got=f"{float(self.bounds.abs().max()):.3g}", do="scale the rows")

    def __repr__(self) -> str:
        """The call that makes this object."""
        rows = (self.rows[0] if self.each is None else self.rows).tolist()
        return f"Linear({rows}, {self.bounds.tolist()}{'' if self.each is None else f', each={self.each!r}'})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Linear) and self.record() == other.record()

    def __hash__(self) -> int:
        return hash(str(self.record()))

    def record(self) -> dict[str, Any]:
        """Return plain values for the claim of a run."""
        return {"rule": "linear", "each": self.each, "rows": self.rows.tolist(), "bounds": self.bounds.tolist()}

    @property
    def words(self) -> str:
        """What is proved of the network, for sentences."""
        count, which = self.rows.shape[1], "" if self.each is None else f", C and d by {self.each}"
        return f"has outputs y with C y > d ({count} row{'s' if count > 1 else ''}{which})"

    def rule(self, labels: Tensor, classes: int) -> Rule:
        """Return the rule for images of these labels [N] and a network of ``classes`` classes."""
        count, wanted = len(self.rows), {None: 1, "label": classes, "image": len(labels)}[self.each]
        if self.rows.shape[2] != classes or count != wanted:
            first = "" if self.each is None else f"{wanted}, "
            raise InputError(
                f"C must have the shape [{first}rows, {classes}] for these images and this network's {classes} outputs",
                got=f"{list(self.rows.shape[0 if self.each else 1 :])}",
            )
        if self.each is None:
            which = torch.zeros(len(labels), dtype=torch.int64)
        else:
            which = labels.cpu() if self.each == "label" else torch.arange(count)
        return RowRule(self.rows, self.bounds, which)

    def of_images(self, numbers: Sequence[int]) -> Keep:
        """Return the same for some of the images."""
        if self.each != "image":
            return self
        return Linear(self.rows[list(numbers)], self.bounds[list(numbers)], "image")


def keep_of(record: Any) -> Keep | None:
    """Return what the claim of a run says must be kept; ValueError, InputError or TypeError for what no run writes."""
    if record is None:
        return None
    kinds = {"allow": Allow, "forbid": Forbid}
    rule = record["rule"]
    keep: Keep
    if rule in kinds:
        table = record.get("by_label")
        keep = kinds[rule](record["classes"] if table is None else {int(label): table[label] for label in table})
    elif rule == "linear":
        each, rows = record["each"], record["rows"]
        keep = Linear(rows[0] if each is None else rows, record["bounds"], each)
    elif rule in ("own", "top"):
        keep = KeepOwn() if rule == "own" else TopK(record["k"])
    else:
        raise ValueError(f"unknown rule {shown(rule)}")
    if keep.record() != record:
        raise ValueError("what is kept is not written as a run writes it")
    return keep


def words_of(record: Any) -> str:
    """Return what such a claim proves of the network, in words; of the label nothing."""
    keep = keep_of(record)
    return "" if keep is None else keep.words


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, classes).bool()


def _class(number: Any, option: str) -> int:
    if type(number) is not int or not 0 <= number < MOST_CLASSES:
        raise InputError(f"{option} takes numbers of classes", got=shown(repr(number)), do="count them from 0")
    return number


def _classes(given: Any, option: str) -> Classes:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{option} takes a list of classes", got=shown(repr(given)), do=f"e.g. {option}([1, 2])")
    numbers = sorted({_class(number, option) for number in given})
    if not numbers:
        raise InputError(f"{option} names no class", got="an empty list", do="name at least one, or leave it out")
    return tuple(numbers)


def _listed(classes: Iterable[int]) -> str:
    numbers = [*classes]
    text = ", ".join(map(str, numbers[:NAMED])) + (f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else "")
    return f"class {text}" if len(numbers) == 1 else f"one of the classes {text}"


def _table(numbers: Any, name: str) -> Tensor:
    try:
        table = torch.as_tensor(numbers).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is a table of numbers", got=shown(repr(numbers)), do="give a tensor") from None
    if not bool(table.isfinite().all()):
        raise InputError(
            f"{name} has a number that is not finite", got=shown(str(table.tolist())), why="NaN or infinity"
        )
    return table


def is_own(keep: Keep | None) -> bool:
    """Whether the network's own answers stand for the labels."""
    return isinstance(keep, KeepOwn)
