"""The curve of a run: the certified share over nested ranges, from a tenth of the transformation to all of it.

A proof for a range holds for every range inside it, and a counterexample that lies inside a smaller range falsifies
that one too. Only the images that the whole range left open are therefore certified again, from the largest nested
range to the smallest. The result is stored with a run as ``curve.json`` (docs/run-folder.md); it is not part of the
sealed evidence.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tiltproof.errors import InputError
from tiltproof.runs.atomic_io import document, replace_bytes
from tiltproof.runs.folder import VERDICTS, size_of_file
from tiltproof.transforms import Transform, parse
from tiltproof.verify.api import certify
from tiltproof.verify.results import Certificate, Verdict
from tiltproof.verify.shares import nested

CURVE = "curve.json"
FORMAT, VERSION = "tiltproof-curve", 1
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
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
    shares: Sequence[float] = SHARES,
    **options: Any,
) -> list[CurvePoint]:
    """One point for each share, in increasing order.

    ``certificate`` is the run over the whole range, ``options`` are those of `certify`.
    """
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError("shares of a range lie above 0 and at most at 1", got=tuple(shares))
    whole = parse(transform) if isinstance(transform, str) else transform
    results = certificate.results
    if certificate.transform != str(whole) or len(results) != len(images):
        raise InputError(
            "the certificate is not one of these images over this range",
            got=f"{len(results)} images over {certificate.transform}, and {len(images)} images over {whole}",
            do="give the certificate that `certify` returned for them",
        )
    broken = {k: result.counterexample for k, result in enumerate(results) if result.counterexample is not None}
    proved: dict[int, float] = {k: 1.0 for k, result in enumerate(results) if result.verdict is Verdict.CERTIFIED}
    left = [k for k, result in enumerate(results) if result.verdict in (Verdict.FALSIFIED, Verdict.UNKNOWN)]
    outer = whole
    for share in sorted({*shares} - {1.0}, reverse=True):
        inner = nested(whole, share)
        # what is proved for the outer range counts for the inner one
        if not all(_inside(end, outer) for end in (inner.low, inner.high)):
            raise RuntimeError(f"{inner} is not inside of {outer}; please report this")
        outer = inner
        rest = [k for k in left if not _inside(broken.get(k), inner)]
        if rest:
            of_rest = options | {"keep": options["keep"].of_images(rest)} if options.get("keep") else options
            some = None if labels is None else labels[rest]
            outcome = certify(model, images[rest], some, inner, **of_rest).results
            for k, result in zip(rest, outcome, strict=True):
                if result.verdict is Verdict.CERTIFIED:
                    proved[k] = share
                elif result.counterexample is not None:
                    broken[k] = result.counterexample
        left = [k for k in left if k not in proved]

    def verdict(k: int, share: float, inner: Transform) -> Verdict:
        if share == 1 or results[k].verdict is Verdict.MISCLASSIFIED:
            return results[k].verdict
        if proved.get(k, 0.0) >= share:
            return Verdict.CERTIFIED
        return Verdict.FALSIFIED if _inside(broken.get(k), inner) else Verdict.UNKNOWN

    points = []
    for share in sorted({*shares}):
        inner = nested(whole, share)
        counts = Counter(str(verdict(k, share, inner)) for k in range(len(results)))
        points.append(CurvePoint(share, str(inner), **{str(word): counts[str(word)] for word in Verdict}))
    return points


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
        "verdicts_sha256": hashlib.sha256((folder / VERDICTS).read_bytes()).hexdigest(),
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
