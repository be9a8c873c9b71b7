"""The curve of a run: the certified share over nested ranges, from a tenth of the transformation to all of it.

A proof for a range holds for every range inside it, and a counterexample that lies inside a smaller range falsifies
that one too. Of the images that the whole range left open, the largest proved range is searched for, as `certified_radius`
does. With a uniform grid, or a range that leaves out the untransformed image, they are certified again instead, from the
largest nested range to the smallest. The result is stored with a run as ``curve.json`` (docs/run-folder.md); it is not part of the
sealed evidence.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.runs.atomic_io import document, replace_bytes
from tiltproof.runs.folder import RECORDS, size_of_file
from tiltproof.transforms import Transform, parse
from tiltproof.verify.api import certified_radius, certify
from tiltproof.verify.options import BranchAndBound
from tiltproof.verify.radius_results import RadiusResult
from tiltproof.verify.results import Certificate, ImageResult, Verdict
from tiltproof.verify.shares import check_parameters, nested, upper_share

CURVE = "curve.json"
FORMAT, VERSION = "tiltproof-curve", 1
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
LEAST_SHARE = 1e-4
MOST_POINTS = 200
MOST_BYTES = 2**20


@dataclass(frozen=True)
class CurvePoint:
    """Verdicts of a run's images under ``share`` of its range."""

    share: float
    transform: str
    certified: int
    falsified: int
    unknown: int
    misclassified: int


def certified_curve(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    transform: Transform | str,
    certificate: Certificate,
    *,
    shares: Sequence[float] | None = None,
    **options: Any,
) -> list[CurvePoint]:
    """One point for each share, in increasing order; by default for a few, and for those where the counts change.

    ``certificate`` is the run over the whole range, ``options`` are those of `certify`.
    """
    if shares is not None and (not shares or not all(0 < share <= 1 for share in shares)):
        raise InputError("shares of a range lie above 0 and at most at 1", got=tuple(shares))
    whole = parse(transform) if isinstance(transform, str) else transform
    results = certificate.results
    check_parameters(whole)
    if certificate.transform != str(whole) or len(results) != len(images):
        raise InputError(
            "the certificate is not one of these images over this range",
            got=f"{len(results)} images over {certificate.transform}, and {len(images)} images over {whole}",
            do="give the certificate that `certify` returned for them",
        )
    known = Known(
        {k: 1.0 for k, result in enumerate(results) if result.verdict is Verdict.CERTIFIED},
        {k: [result.counterexample] for k, result in enumerate(results) if result.counterexample is not None},
    )
    open_ = [k for k, result in enumerate(results) if result.verdict in (Verdict.FALSIFIED, Verdict.UNKNOWN)]
    problem = (model, images, labels, whole)
    outward = isinstance(options.get("search", BranchAndBound()), BranchAndBound) and all(
        low <= 0 <= high for low, high in zip(whole.low, whole.high, strict=True)
    )
    if outward and open_:
        _search_outward(problem, open_, known, options)
    if shares is None:
        shares = [*SHARES, *(_changes(known, whole) if outward else ())]
    ranges = _nested_ranges(whole, shares)
    if not outward:
        _certify_each(problem, open_, known, ranges, options)
    return _points(results, known, ranges)


def curve_of_radii(results: Sequence[RadiusResult], whole: Transform) -> list[CurvePoint]:
    """The curve of a run that looked for the largest proved range of each image; it has the points where counts change."""
    known = Known(
        {k: result.share for k, result in enumerate(results)},
        {k: [result.counterexample] for k, result in enumerate(results) if result.counterexample is not None},
    )
    return _points(results, known, _nested_ranges(whole, [*_changes(known, whole), 1.0]))


def _points(results: Sequence[ImageResult], known: Known, ranges: dict[float, Transform]) -> list[CurvePoint]:
    """Count the verdicts of each nested range."""

    def verdict(k: int, share: float, inner: Transform) -> Verdict:
        if share == 1 or results[k].verdict is Verdict.MISCLASSIFIED:
            return results[k].verdict
        if known.proved.get(k, 0.0) >= share:  # the nested range lies inside of this share
            return Verdict.CERTIFIED
        broken = any(_inside(point, inner) for point in known.broken.get(k, ()))
        return Verdict.FALSIFIED if broken else Verdict.UNKNOWN

    points = []
    for share, inner in sorted(ranges.items()):
        counts = Counter(str(verdict(k, share, inner)) for k in range(len(results)))
        points.append(CurvePoint(share, str(inner), **{str(word): counts[str(word)] for word in Verdict}))
    return points


@dataclass
class Known:
    """For each image the share that is proved, and the counterexamples known."""

    proved: dict[int, float]
    broken: dict[int, list[tuple[float, ...]]]


Problem: TypeAlias = tuple[nn.Module, Tensor, Tensor | None, Transform]


def _of_rows(
    problem: Problem, rows: list[int], options: dict[str, Any]
) -> tuple[tuple[nn.Module, Tensor, Tensor | None], dict[str, Any]]:
    """Return images and labels of some rows, and the options for them."""
    model, images, labels, _ = problem
    some = None if labels is None else labels[rows]
    options = options | {"keep": options["keep"].of_images(rows)} if options.get("keep") else options
    return (model, images[rows], some), options


def _search_outward(problem: Problem, rows: list[int], known: Known, options: dict[str, Any]) -> None:
    """Find the largest proved range of these images."""
    if isinstance(search := options.get("search"), BranchAndBound):
        options = options | {"search": replace(search, tighten=None)}
    given, options = _of_rows(problem, rows, options)
    found = certified_radius(*given, problem[3], **_phase(options, "curve"))
    for k, result in zip(rows, found.results, strict=True):
        known.proved[k] = result.share
        if result.counterexample is not None:
            known.broken.setdefault(k, []).append(result.counterexample)


def _certify_each(
    problem: Problem, open_: list[int], known: Known, ranges: dict[float, Transform], options: dict[str, Any]
) -> None:
    """Certify images for one nested range after the other, from the largest to the smallest."""
    for share, inner in sorted(ranges.items(), reverse=True):
        rest = [
            k
            for k in open_
            if k not in known.proved and not any(_inside(point, inner) for point in known.broken.get(k, ()))
        ]
        if not rest or share == 1:
            continue
        given, some = _of_rows(problem, rest, options)
        found = certify(*given, inner, **_phase(some, f"curve at {100 * share:g} %"))
        for k, result in zip(rest, found.results, strict=True):
            if result.verdict is Verdict.CERTIFIED:
                known.proved[k] = share
            elif result.counterexample is not None:
                known.broken.setdefault(k, []).append(result.counterexample)


def _phase(options: dict[str, Any], phase: str) -> dict[str, Any]:
    """Return the options with a callback that is told this phase."""
    progress = options.get("progress")
    if not callable(progress):
        return options
    return options | {"progress": lambda report: progress(replace(report, phase=phase))}


def _nested_ranges(whole: Transform, shares: Sequence[float]) -> dict[float, Transform]:
    """Return the transformation over each share of its range; each lies inside of all larger ones."""
    ranges, outer = {}, whole
    for share in sorted({*shares}, reverse=True):
        inner = nested(whole, share)
        # what is proved for the outer range counts for the inner one
        if not all(_inside(end, outer) for end in (inner.low, inner.high)):
            raise RuntimeError(f"{inner} is not inside of {outer}; please report this")
        ranges[share] = outer = inner
    return ranges


def _changes(known: Known, whole: Transform) -> list[float]:
    """Return the shares at which the counts change, or at most `MOST_POINTS` of them."""
    found = {share for share in known.proved.values() if share > 0}
    found |= {min(upper_share(point, whole) for point in points) for points in known.broken.values()}
    ordered = sorted(share for share in found if LEAST_SHARE <= share <= 1)
    step = max(1, math.ceil(len(ordered) / MOST_POINTS))
    return ordered[::step]


def _inside(point: tuple[float, ...] | None, transform: Transform) -> bool:
    if point is None:
        return False
    return all(low <= x <= high for low, x, high in zip(transform.low, point, transform.high, strict=True))


def check_curve_file(folder: Path) -> None:
    """Refuse to replace anything but a curve; called before a run that is to end with one."""
    path = folder / CURVE
    if size_of_file(path):
        with path.open("rb") as stream:
            if f'"{FORMAT}"'.encode() not in stream.read(100):
                raise InputError(f"{path} was not written by a run", do="choose another folder, or move the file away")


def write_curve(folder: Path, points: Sequence[CurvePoint], began: float) -> None:
    """Write the curve into its run's folder, with the digest of the run's verdicts; ``began``: by
    `time.perf_counter`."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "verdicts_sha256": hashlib.sha256((folder / RECORDS).read_bytes()).hexdigest(),
        "points": [asdict(point) for point in points],
        "seconds": time.perf_counter() - began,
    }
    check_curve_file(folder)
    try:
        replace_bytes(folder / CURVE, document(content))
    except OSError as error:
        raise InputError("the curve cannot be written", got=f"{folder / CURVE} ({error.strerror})") from None


def read_curve(folder: Path, verdicts_sha256: str, images: int) -> list[CurvePoint] | None:
    """Return the curve of the run with these verdicts; None if there is none, or one of another run."""
    path = folder / CURVE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size <= MOST_BYTES else {}
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError("of another format")
        if content["verdicts_sha256"] != verdicts_sha256:
            return None
        points = [
            CurvePoint(**{field.name: entry[field.name] for field in fields(CurvePoint)}) for entry in content["points"]
        ]
        for point in points:
            counts = (point.certified, point.falsified, point.unknown, point.misclassified)
            if not 0 < point.share <= 1 or sum(counts) != images or any(type(n) is not int or n < 0 for n in counts):
                raise ValueError("its counts do not add up")
            parse(point.transform)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged", got=error, do="delete it, or compute it again with --curve") from None
    return sorted(points, key=lambda point: point.share)
