"""A run's results as flat rows with the words safe, unsafe and unknown, as CSV or JSON lines.

The words are about the row's ``property``. Certified is safe, falsified is unsafe. A misclassified image is unsafe if the range contains
the untransformed image and exact arithmetic confirms it as a counterexample: the run evaluated it once, in the network's own precision,
and rounding may have decided. Otherwise nothing is known about the range. ``verdict`` keeps this package's word.
"""

from __future__ import annotations

import csv
import io
import json
import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.runs.reader import FinishedRun, check_images, check_model, read_finished
from tiltproof.verify.attack import Attacker
from tiltproof.verify.inputs import check_claimed, proof_on
from tiltproof.verify.options import EIGHT_BITS
from tiltproof.verify.results import ImageResult, RangeResult, Verdict

Row = dict[str, str | int | float | bool | None]
"""A line of the table, by column."""
SAFE, UNSAFE, UNKNOWN = "safe", "unsafe", "unknown"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a text that a spreadsheet takes for a formula."""
KEEPS_CLASS = "the label's output is the largest for all parameters of the range"


def open_to_confirm(run: FinishedRun) -> list[int]:
    """Return the rows of misclassified images if the range contains the untransformed image; else an empty list."""
    if run.claim["semantics"] == EIGHT_BITS:  # its network is wrong about the rounded image, in its own arithmetic
        return []
    if run.regression or not all(
        low <= 0 <= high for low, high in zip(run.transform.low, run.transform.high, strict=True)
    ):
        return []
    return [row for row, result in enumerate(run.results) if result.verdict is Verdict.MISCLASSIFIED]


def confirmed(run: FinishedRun, model: nn.Module, images: Tensor) -> set[int]:
    """Return those of `open_to_confirm` whose margin provably is negative if all parameters are 0.

    ``model`` and ``images`` are compared with the run's digests first.
    """
    check_model(run, model)
    stored, rows = check_images(run, images, None), open_to_confirm(run)
    if not rows:
        return set()
    labels = torch.tensor([run.results[row].label for row in rows], device=stored.device)
    with proof_on(stored):
        keep = None if run.keep is None else run.keep.of_images(rows)
        inputs, rule = check_claimed(model, stored[rows], labels, run.transform.without_noise(), "real", keep)
        with inputs.eval_mode():
            attacker = Attacker(inputs, 0, rule)
            known = attacker.begin(run.first)
            untransformed = torch.zeros(len(rows), len(run.transform.parts), dtype=torch.float64)
            attacker.confirm(known, torch.arange(len(rows)), untransformed)
    return {row for row, wrong in zip(rows, known.falsified.tolist(), strict=True) if wrong}


def result_rows(
    folder: str | Path,
    tolerance: float | str | None = None,
    *,
    model: nn.Module | None = None,
    images: Tensor | None = None,
) -> list[Row]:
    """Return the results of a run, one row per image (and output, of a regression run).

    Parameters
    ----------
    folder : str or Path
        The run folder.
    tolerance : float or str, optional
        For regression runs with known values: the property is that no output is farther than this decimal from the value.
        Without it, the property is the proved range itself.
    model, images : optional
        Those of the run, to confirm misclassified images in exact arithmetic; otherwise such images are ``unknown``.

    Returns
    -------
    list of dict
        The rows; those of one run have the same keys.

    Raises
    ------
    InputError
        If the run is not finished, or an argument does not fit it.
    """
    run = read_finished(folder)
    if not run.regression:
        if tolerance is not None:
            raise InputError("a tolerance belongs to regression runs", got=tolerance, do="leave it out")
        if (model is None) != (images is None):
            raise InputError(
                "both model and images confirm a misclassified image", got="one of them", do="give the other"
            )
        wrong = set() if model is None or images is None else confirmed(run, model, images)
        return [_class_row(run, result, row in wrong) for row, result in enumerate(run.results)]
    exact = None if tolerance is None else _decimal(tolerance)
    if exact is not None and any(result.value is None for result in run.results):
        raise InputError(
            "a tolerance needs the right answers, which the run does not have",
            do="certify with labels, or leave it out",
        )
    return [_range_row(run, result, k, exact) for result in run.results for k in range(len(result.prediction))]


def _decimal(tolerance: float | str) -> Decimal:
    try:
        number = Decimal(str(tolerance))
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number < 0 or abs(number.adjusted()) > 30:
        raise InputError("the tolerance is a number that is not negative", got=shown(tolerance), do="e.g. 0.1")
    return number


def _about(run: FinishedRun, result: ImageResult | RangeResult) -> Row:
    return {
        "task": "regression" if run.regression else "classification",
        "model": run.name("model"),
        "data": run.name("data"),
        "weights_sha256": str(run.claim["weights_sha256"]),
        "transform": str(run.transform),
        "semantics": str(run.claim["semantics"]),
        "method": str(run.settings.get("method", "")),
        "image": result.image,
        "image_sha256": str(run.claim["images_sha256"][result.image - run.first]),
    }


def _class_row(run: FinishedRun, result: ImageResult, wrong: bool) -> Row:
    word, at = _word(run, result, wrong)
    return _about(run, result) | {
        "label": result.label,
        "property": KEEPS_CLASS
        if run.keep is None
        else f"the network {run.keep.words}, for all parameters of the range",
        "result": word,
        "verdict": str(result.verdict),
        **_margins(result),
        "counterexample": _text(at),
        **({"perturbation": result.perturbation or ""} if run.transform.noise else {}),
        "open_box": _text(result.open_box),
        "reason": "" if result.reason is None else str(result.reason),
        "boxes": result.boxes,
        "seconds": float(result.seconds),
    }


def _margins(result: ImageResult) -> Row:
    """Return what is known of the least margin in the range: a proved lower bound, and one that is reached."""
    proved = result.verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN)
    least, most = (result.margin, result.reached) if proved else (None, result.margin)
    return {
        "proved_at_least": None if least is None else _finite(least),
        "reached_at_most": None if most is None else _finite(most),
    }


def _word(run: FinishedRun, result: ImageResult, wrong: bool) -> tuple[str, tuple[float, ...] | None]:
    """Return the result, and the parameters of a counterexample; ``wrong``: all parameters 0 are one."""
    if result.verdict is Verdict.CERTIFIED:
        return SAFE, None
    if result.verdict is Verdict.FALSIFIED:
        return UNSAFE, result.counterexample
    return (UNSAFE, (0.0,) * len(run.transform.parts)) if wrong else (UNKNOWN, None)


def _range_row(run: FinishedRun, result: RangeResult, k: int, tolerance: Decimal | None) -> Row:
    bounded = math.isfinite(result.lower[k]) and math.isfinite(result.upper[k])
    word, at = (SAFE if bounded else UNKNOWN), None
    what = "the output stays between lower and upper for all parameters of the range"
    if tolerance is not None and result.value is not None:
        what = f"the output stays within {tolerance} of value for all parameters of the range"
        value, room = Fraction(result.value[k]), Fraction(tolerance)
        least, most = value - room, value + room
        within = bounded and least <= Fraction(result.lower[k]) and Fraction(result.upper[k]) <= most
        # at lowest_at the output is at most inner_lower, at highest_at at least inner_upper
        if Fraction(result.inner_lower[k]) < least:
            word, at = UNSAFE, result.lowest_at[k]
        elif Fraction(result.inner_upper[k]) > most:
            word, at = UNSAFE, result.highest_at[k]
        else:
            word = SAFE if within else UNKNOWN
    return _about(run, result) | {
        "output": k,
        "property": what,
        "result": word,
        "value": None if result.value is None else float(result.value[k]),
        "prediction": float(result.prediction[k]),
        "lower": _finite(result.lower[k]),
        "upper": _finite(result.upper[k]),
        "inner_lower": float(result.inner_lower[k]),
        "inner_upper": float(result.inner_upper[k]),
        "lowest_at": _text(result.lowest_at[k]),
        "highest_at": _text(result.highest_at[k]),
        "counterexample": _text(at),
        "complete": bool(result.complete),
        "reason": "" if result.reason is None else str(result.reason),
        "boxes": result.boxes,
        "seconds": float(result.seconds),
    }


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _text(numbers: Any) -> str:
    """Return parameters as a JSON list, so that one cell holds any number of them; empty if there are none."""
    return "" if numbers is None else json.dumps(numbers)


def as_csv(rows: list[Row]) -> str:
    """Write rows as CSV with a header line.

    Parameters
    ----------
    rows : list of dict
        The rows of `result_rows`.

    Returns
    -------
    str
        The table. Numbers read back exactly as the same float64; missing ones are empty. A text that a spreadsheet would take for a
        formula gets an apostrophe in front: names of models and data may come from an untrusted run folder.
    """
    stream = io.StringIO()
    table = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: _cell(value) for name, value in row.items()})
    return stream.getvalue()


def _cell(value: str | int | float | bool | None) -> str | int | float | None:
    """Return a value as the file has it.

    >>> [_cell(value) for value in ("=1+1", "mnist-r30", -0.5, True)]
    ["'=1+1", 'mnist-r30', -0.5, 'true']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    apostrophe = "'" if value.startswith(FORMULAS) else ""
    return apostrophe + value.replace("\r", "\n")  # csv quotes a line feed, but not a carriage return


def as_jsonl(rows: list[Row]) -> str:
    """Write rows as JSON lines.

    Parameters
    ----------
    rows : list of dict
        The rows of `result_rows`.

    Returns
    -------
    str
        One object per line; missing numbers are null.
    """
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
