"""A run's results as JUnit XML: a test case per image, which fails unless the image is certified; CI servers show such files."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tiltproof.errors import shown

if TYPE_CHECKING:
    from tiltproof.export.results import Row

PROPERTIES = ("model", "data", "weights_sha256", "transform", "semantics", "method", "property")
DETAILS = ("counterexample", "open_box", "reason", "margin", "output", "value", "prediction", "lower", "upper")
"""Columns that say why an image is not certified."""


def as_junit(rows: list[Row]) -> str:
    """Write rows as JUnit XML.

    Parameters
    ----------
    rows : list of dict
        The rows of `result_rows`.

    Returns
    -------
    str
        One test suite with a test case per image. It fails if the image, or one of its outputs, is not safe; the failure's
        type is the verdict.
    """
    cases = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["image"])]
    open_ = [[row for row in case if row["result"] != "safe"] for case in cases]
    first = rows[0]
    name = f"{first['data'] or 'data'} {first['transform']}"
    counts = {"tests": len(cases), "failures": sum(map(bool, open_)), "errors": 0, "skipped": 0}
    # the rows of an image's outputs all have the seconds of the image
    seconds = [float(case[0]["seconds"] or 0) for case in cases]
    totals = {key: str(number) for key, number in counts.items()} | {"time": f"{sum(seconds):.3f}"}
    top = ElementTree.Element("testsuites", {"name": "tiltproof"} | totals)
    suite = ElementTree.SubElement(top, "testsuite", {"name": _text(name)} | totals)
    properties = ElementTree.SubElement(suite, "properties")
    for key in PROPERTIES:
        ElementTree.SubElement(properties, "property", {"name": key, "value": _text(first[key])})
    for case, left, time in zip(cases, open_, seconds, strict=True):
        about = {"classname": f"tiltproof.{_text(name)}", "name": f"image {case[0]['image']}", "time": f"{time:.3f}"}
        element = ElementTree.SubElement(suite, "testcase", about)
        if left:
            word = str(left[0].get("verdict") or left[0]["result"])
            message = f"{word}: {'; '.join(_why(row) for row in left)}".removesuffix(": ")
            failure = ElementTree.SubElement(element, "failure", {"type": word, "message": _text(message)})
            failure.text = _text(f"not proved: {left[0]['property']}")
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _why(row: Row) -> str:
    return ", ".join(f"{key} {row[key]}" for key in DETAILS if row.get(key) not in (None, ""))


def _text(value: object) -> str:
    """Return text that XML can hold: names of models and data may come from an untrusted run folder."""
    return shown("" if value is None else value, 2000)
