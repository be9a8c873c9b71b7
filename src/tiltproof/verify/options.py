"""The options of `certify` and `certify_range` as objects: bounds, search, attack, tolerance, execution and run folder.

Each option is declared once, here, with its default and its check. The `repr` of an object rebuilds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tiltproof.errors import InputError
from tiltproof.runtime.memory_size import parse_memory

if TYPE_CHECKING:
    from torch import Tensor

    from tiltproof.verify.batch import Workers


EIGHT_BITS = "uint8"
"""Semantics of the program itself, of which nothing but its answers is known, on images of 8 bits."""


class _Option:
    """Base class of all options."""

    def __repr__(self) -> str:
        """The call that makes this object; fields with their default values are left out."""
        shown, entries = [], fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        for each in sorted(entries, key=lambda entry: bool(entry.kw_only)):
            value = getattr(self, each.name)
            if value != each.default:
                text = repr(str(value) if isinstance(value, Path) else value)
                shown.append(text if each.default is MISSING else f"{each.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Bounds(_Option):
    """Base class of the pixel bounds; ``method`` is their name in records and on the command line."""

    method: ClassVar[str]


@dataclass(frozen=True, repr=False)
class AffineBounds(Bounds):
    """Affine forms in the parameters: the tightest pixel bounds, and the default."""

    method: ClassVar[str] = "affine"


@dataclass(frozen=True, repr=False)
class IntervalHull(Bounds):
    """The exact interval of each pixel's values; cheaper for a box, but a proof needs many more boxes."""

    method: ClassVar[str] = "hull"


@dataclass(frozen=True, repr=False)
class FGV(Bounds):
    """Interval bounds of the Fast Geometric Verifier (CGT, ICLR 2023), to compare with; for the paper's transformations only."""

    method: ClassVar[str] = "fgv"


BOUNDS: dict[str, AffineBounds | IntervalHull | FGV] = {"affine": AffineBounds(), "hull": IntervalHull(), "fgv": FGV()}
"""Pixel bounds by their name in records and on the command line."""


def bounds_for(method: str) -> AffineBounds | IntervalHull | FGV:
    """Return the pixel bounds of this name."""
    if method not in BOUNDS:
        raise InputError("unknown method", got=repr(method), do=f"use one of {', '.join(BOUNDS)}")
    return BOUNDS[method]


@dataclass(frozen=True, repr=False)
class Limits(_Option):
    """Base class of the searches: the most that one image may cost before its verdict is unknown."""

    _: KW_ONLY
    max_boxes: int = 20_000
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.max_boxes, int) or self.max_boxes < 1:
            raise InputError(
                "the search needs at least one box per image",
                got=f"max_boxes {self.max_boxes!r}",
                do="e.g. max_boxes=20_000 (--boxes)",
            )
        seconds = self.max_seconds
        if seconds is not None and not (isinstance(seconds, (int, float)) and 0 < seconds < math.inf):
            raise InputError(
                "the search needs a positive number of seconds per image",
                got=f"max_seconds {seconds!r}",
                do="e.g. max_seconds=10 (--seconds), or None for no limit",
            )

    @property
    def excess(self) -> float | None:
        """The share to which margins of certified images are tightened, if they are."""
        return None

    @property
    def grid(self) -> tuple[int, ...] | None:
        """Boxes per parameter if they are fixed, else None."""
        return None

    def spent(self, boxes: Tensor, seconds: Tensor) -> Tensor:
        """Return which images have spent what one may cost."""
        spent = boxes >= self.max_boxes
        return spent if self.max_seconds is None else spent | (seconds >= self.max_seconds)


@dataclass(frozen=True, repr=False)
class BranchAndBound(Limits):
    """Halve parameter boxes until each is proved; images differ in how many they need.

    Parameters
    ----------
    max_boxes : int
        Parameter boxes bounded per image before its verdict is unknown.
    max_seconds : float, optional
        Seconds of computation per image, the attack included, before its verdict is unknown.
    tighten : float, optional
        Go on halving the boxes of certified images until the proved margin is within this share of a margin that is
        reached, 0.05 for 5 %; an image whose budget is spent stays certified. Without it a margin says how early the
        proof succeeded, and compares nothing.

    Raises
    ------
    InputError
        If a limit is not positive, or ``tighten`` not between 0 and 1.
    """

    _: KW_ONLY
    tighten: float | None = None

    @property
    def excess(self) -> float | None:
        """The share to which margins of certified images are tightened, if they are."""
        return self.tighten

    def __post_init__(self) -> None:
        super().__post_init__()
        tighten = self.tighten
        if tighten is not None and not (isinstance(tighten, (int, float)) and 0 < tighten < 1):
            raise InputError(
                "margins are tightened to a share between 0 and 1",
                got=f"tighten {tighten!r}",
                do="e.g. tighten=0.05 (--tighten) for 5 %",
            )


@dataclass(frozen=True, repr=False)
class UniformGrid(Limits):
    """Divide every range into equal boxes, as in CGT; none is halved.

    Parameters
    ----------
    splits : int or sequence of int
        Boxes per parameter; a single number is distributed over several parameters, 256 for two as 16 by 16.
    max_boxes : int
        Parameter boxes bounded per image before its verdict is unknown; a block of boxes bounded at once counts as one.
    max_seconds : float, optional
        Seconds of computation per image, the attack included, before its verdict is unknown.

    Raises
    ------
    InputError
        If a number of boxes or a limit is not positive.
    """

    splits: int | Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = (self.splits,) if isinstance(self.splits, int) else self.splits
        if not isinstance(numbers, Sequence) or not all(isinstance(n, int) and n >= 1 for n in numbers) or not numbers:
            raise InputError(
                "splits must be positive whole numbers, one per parameter",
                got=f"splits {self.splits!r}",
                do="e.g. UniformGrid(240) for one parameter, or UniformGrid((20, 80)) for two (--splits)",
            )
        if not isinstance(self.splits, int):
            object.__setattr__(self, "splits", tuple(self.splits))

    @property
    def grid(self) -> tuple[int, ...]:
        """Boxes per parameter as given."""
        return (self.splits,) if isinstance(self.splits, int) else tuple(self.splits)


def search_for(splits: int | Sequence[int] | None = None, **limits: Any) -> BranchAndBound | UniformGrid:
    """Return a uniform grid of these splits, or branch and bound without any; ``limits``: those of `Limits`."""
    if splits is not None and "tighten" in limits:
        raise InputError(
            "margins are tightened by halving boxes, and those of a grid are not halved",
            got=f"--tighten {limits['tighten']} and --splits",
            do="leave one of them out",
        )
    return BranchAndBound(**limits) if splits is None else UniformGrid(splits, **limits)


@dataclass(frozen=True, repr=False)
class Attack(_Option):
    """The search for counterexamples that precedes any proof.

    Parameters
    ----------
    samples : int
        Parameter vectors evaluated per image; images that resist proof are attacked harder.

    Raises
    ------
    InputError
        If there is no sample.
    """

    samples: int = 24

    def __post_init__(self) -> None:
        if not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(
                "the attack needs at least one sample",
                got=f"samples {self.samples!r}",
                do="e.g. Attack(samples=24) (--samples)",
            )


@dataclass(frozen=True, repr=False)
class Tolerance(_Option):
    """How tight a range of `certify_range` becomes before its boxes are no longer halved; the range holds in any case.

    Parameters
    ----------
    relative : float
        Accepted excess of the proved range over the inner range (outputs of evaluated parameters), as a share of the
        inner range's width.
    absolute : float
        Ranges narrower than this need no halving.

    Raises
    ------
    InputError
        If one is negative, or not finite.
    """

    relative: float = 0.05
    absolute: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.relative < math.inf and 0 <= self.absolute < math.inf):
            raise InputError(
                "a tolerance is a finite number, and not negative",
                got=f"relative {self.relative!r}, absolute {self.absolute!r}",
                do="e.g. Tolerance(relative=0.05) (--excess) or Tolerance(absolute=0.5) (--width)",
            )

    def record(self) -> dict[str, Any]:
        """Return plain values under their names in the manifest of a run."""
        return {"excess": self.relative, "width": self.absolute}


@dataclass(frozen=True)
class EightBits:
    """What uint8 semantics need: the ``tolerance`` that margins must exceed, by default measured for each image."""

    tolerance: float | None = None

    def __post_init__(self) -> None:
        given = self.tolerance
        if given is not None and not (isinstance(given, (int, float)) and 0 <= given < math.inf):
            raise InputError(
                "a tolerance is a finite number, and not negative",
                got=f"tolerance {given!r}",
                do="e.g. tolerance=1e-3 (--tolerance), or leave it out to have it measured",
            )


@dataclass(frozen=True, repr=False)
class Execution(_Option):
    """Where and how a run is computed; results depend on it by rounding at most.

    Parameters
    ----------
    memory : int or str, optional
        Bytes, or text such as "2GB", for which batches are sized, from an estimate that the first batches correct. No
        hard limit: the measured peak is in the certificate's ``settings``. Each worker sizes its own batches.
    workers : object, optional
        Processes and machines that prove batches, for example `RayWorkers`; this process alone writes the run folder.
    batch_size : int, optional
        Boxes bounded at once.
    batch_images : int, optional
        Most images in a batch, the unit that is written to the run folder or given to a worker (docs/many-machines.md).

    Raises
    ------
    InputError
        If a size is not positive, the memory cannot be read, or ``workers`` is no such object.
    """

    memory: int | str | None = None
    workers: Workers | None = None
    batch_size: int | None = None
    batch_images: int | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            parse_memory(self.memory)
        if self.workers is not None and not hasattr(self.workers, "work"):
            raise InputError(
                "workers is an object such as RayWorkers",
                got=repr(self.workers),
                do='e.g. Execution(workers=RayWorkers("auto")) (--ray)',
            )
        for name, size in (("batch_size", self.batch_size), ("batch_images", self.batch_images)):
            if size is not None and (not isinstance(size, int) or size < 1):
                raise InputError(
                    f"the batch size must be at least 1 {'box' if name == 'batch_size' else 'image'}",
                    got=f"{name} {size!r}",
                    do=f"leave {name} (--{name.replace('_', '-')}) out for a size that fits into memory",
                )

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` in bytes."""
        return None if self.memory is None else parse_memory(self.memory)


@dataclass(frozen=True, repr=False)
class RunFolder(_Option):
    """The folder that a run is stored in, batch by batch; it can be checked (`check`), rendered (`report`) and resumed.

    Parameters
    ----------
    folder : str or Path
        The folder, which is created if necessary.
    resume : bool
        Continue the run in the folder, or begin it.
    overwrite : bool
        Replace the run in the folder.
    notes : mapping, optional
        JSON values for human readers, stored in the run's manifest.

    Raises
    ------
    InputError
        If a run is to be both resumed and replaced, or ``folder`` is no path.
    """

    folder: str | Path
    resume: bool = False
    overwrite: bool = False
    notes: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.folder, (str, Path)):
            raise InputError("the run folder is a path", got=f"folder {self.folder!r}", do='e.g. RunFolder("runs/r30")')
        if self.resume and self.overwrite:
            raise InputError(
                "a run is either resumed or replaced",
                got="resume and overwrite",
                do="choose resume=True (--resume) or overwrite=True (--overwrite)",
            )


EXAMPLES = {
    "bounds": (Bounds, "AffineBounds(), IntervalHull() or FGV()"),
    "search": (Limits, "BranchAndBound(max_boxes=20_000) or UniformGrid((20, 80))"),
    "attack": (Attack, "Attack(samples=24)"),
    "tolerance": (Tolerance, "Tolerance(relative=0.05)"),
    "execution": (Execution, 'Execution(memory="2GB")'),
    "run": (RunFolder, 'RunFolder("runs/r30", resume=True)'),
}
"""The class of each option, and values to suggest."""


def check_kinds(**options: object) -> None:
    """Raise unless every option that is not None is an object of its class."""
    for name, value in options.items():
        kind, example = EXAMPLES[name]
        if value is not None and not isinstance(value, kind):
            raise InputError(f"{name} must be an object of its own class", got=repr(value), do=f"e.g. {name}={example}")


@dataclass(frozen=True)
class Settings:
    """What determines the results of a run, besides its images, network and claim; ``tolerance``: None for classes;
    ``gap``: if the largest proved range is searched for, the difference of the shares of both its ends;
    ``eight_bits``: None for other semantics."""

    bounds: AffineBounds | IntervalHull | FGV = BOUNDS["affine"]
    search: BranchAndBound | UniformGrid = BranchAndBound()
    attack: Attack = Attack()
    seed: int = 0
    tolerance: Tolerance | None = None
    gap: float | None = None
    eight_bits: EightBits | None = None

    def __post_init__(self) -> None:
        check_kinds(bounds=self.bounds, search=self.search, attack=self.attack, tolerance=self.tolerance)

    def record(self) -> dict[str, Any]:
        """Return plain values for the manifest of a run."""
        grid = self.search.grid
        more = {} if self.eight_bits is None else {"tolerance": self.eight_bits.tolerance}
        return more | {
            "method": self.bounds.method,
            "splits": None if grid is None else list(grid),
            "budget_boxes": self.search.max_boxes,
            "budget_seconds": self.search.max_seconds,
            "samples": self.attack.samples,
            "seed": self.seed,
            **({} if self.tolerance is None else self.tolerance.record()),
            **({} if self.gap is None else {"gap": self.gap}),
            **({} if self.search.excess is None else {"tighten": self.search.excess}),
        }
