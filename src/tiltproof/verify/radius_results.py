"""What a run says of the largest proved range: per image both ends of its radius, and the curve of all images."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiltproof.transforms import Transform, parse
from tiltproof.verify.results import Certificate, ImageResult, Verdict
from tiltproof.verify.shares import scaled, upper_share


@dataclass(frozen=True, slots=True)
class RadiusResult(ImageResult):
    """The largest proved share of the range of one image, with its evidence.

    ``verdict`` is about the whole range. The tiling is one of the whole range, and every box of it is proved within
    ``share``.
    """

    share: float = 0.0


@dataclass(frozen=True)
class RadiusPoint:
    """Images certified at one radius: at least ``certified`` of them, at most ``possible``. Between two points of a curve the
    first number is that of the next point, and the second one that of the point before."""

    radius: float
    certified: int
    possible: int


def reach(transform: Transform) -> float:
    """Return the radius of the whole range: the first parameter's end that is further from 0."""
    return max(map(abs, transform.parts[0].range))


def upper_radius(result: RadiusResult, transform: Transform) -> float | None:
    """Return the radius of a result's counterexample, rounded up; None if there is none."""
    if result.counterexample is None:
        return None
    return scaled(upper_share(result.counterexample, transform), reach(transform), up=True)


def radius_curve(results: Sequence[RadiusResult], transform: Transform) -> list[RadiusPoint]:
    """Return the steps of "images certified at radius >= r", at every radius where one of the two counts changes."""
    whole = reach(transform)
    right = [each for each in results if each.verdict is not Verdict.MISCLASSIFIED]
    proved = sorted(scaled(each.share, whole) for each in right)
    broken = sorted(upper for each in right if (upper := upper_radius(each, transform)) is not None)
    return [
        RadiusPoint(
            radius,
            len(proved) - bisect.bisect_left(proved, radius),  # proved up to this radius or further
            len(right) - bisect.bisect_right(broken, radius),  # a counterexample at this radius refutes it
        )
        for radius in sorted({0.0, whole, *proved, *(each for each in broken if each < whole)})
    ]


@dataclass(repr=False)
class RadiusCertificate(Certificate):
    """The result of `certified_radius`; every list has one entry per image, in the order given."""

    results: list[RadiusResult]  # type: ignore[assignment]  # narrower than the base class's

    @property
    def unit(self) -> str:
        """The unit of all radii: that of the first parameter."""
        return parse(self.transform).parts[0].unit

    @property
    def radii(self) -> list[tuple[float, float | None]]:
        """Both ends of each image's radius, in `unit`: the answer is proved up to the first one, rounded down; a
        counterexample lies within the second one, rounded up, or is not known (None)."""
        transform = parse(self.transform)
        return [(scaled(each.share, reach(transform)), upper_radius(each, transform)) for each in self.results]

    def curve(self) -> list[RadiusPoint]:
        """The steps of the curve "images certified at radius >= r", with both ends.

        Returns
        -------
        list of RadiusPoint
            By increasing radius, from 0 to that of the whole range.
        """
        return radius_curve(self.results, parse(self.transform))

    def records(self) -> list[dict[str, Any]]:
        """The results as plain values.

        Returns
        -------
        list of dict
            One dictionary per image: that of `certify`, with the proved ``share``, ``radius`` and ``upper_radius`` (as
            in `radii`), and ``proved``, the ends of the proved range of each parameter.
        """
        transform, records = parse(self.transform), []
        for result, (radius, upper) in zip(self.results, self.radii, strict=True):
            proved = [
                [scaled(result.share, end) for end in ends] for ends in zip(transform.low, transform.high, strict=True)
            ]
            records.append(result.record() | {"radius": radius, "upper_radius": upper, "proved": proved})
        return records

    def summary(self) -> dict[str, Any]:
        """Counts and totals.

        Returns
        -------
        dict
            That of a `Certificate`, about the whole range; ``task`` is ``radius``, and ``unit``, ``reach`` (the radius of
            the whole range), ``median_radius`` (proved, of the images that are right), ``median_gap`` and
            ``largest_gap`` between the two ends, and ``open_ended`` (images without a counterexample that are not
            proved for the whole range).
        """
        right = [
            (low, high, each.verdict)
            for (low, high), each in zip(self.radii, self.results, strict=True)
            if each.verdict is not Verdict.MISCLASSIFIED
        ]
        gaps = sorted(high - low for low, high, _ in right if high is not None)
        lows = sorted(low for low, _, _ in right)
        return (
            {"task": "radius"}
            | super().summary()
            | {
                "unit": self.unit,
                "reach": reach(parse(self.transform)),
                "median_radius": lows[len(lows) // 2] if lows else None,
                "median_gap": gaps[len(gaps) // 2] if gaps else None,
                "largest_gap": gaps[-1] if gaps else None,
                "open_ended": sum(each is Verdict.UNKNOWN for _, _, each in right),
            }
        )
