"""Sentences that state what was proved: counts, network, transformation and range, with units."""

from __future__ import annotations

import math

from tiltproof.errors import shown
from tiltproof.reports.encoding import digits_above, digits_below
from tiltproof.runs.manifest import TENSORS
from tiltproof.runs.reader import FinishedRun
from tiltproof.transforms import Part, Transform
from tiltproof.transforms.base import number_text
from tiltproof.verify.options import EIGHT_BITS

OUTSIDE = {"zeros": "black", "border": "its border continued", "reflect": "its reflection"}


def parameter_name(part: Part) -> str:
    """Return the label of an axis: ``rotation (degrees)``."""
    return f"{part.quantity} ({part.unit})"


def in_words(transform: Transform) -> str:
    """Describe the transformation, as after "every".

    >>> from tiltproof.transforms import parse
    >>> in_words(parse("R(30)"))
    'rotation between -30 and 30 degrees'
    >>> in_words(parse("R(2), Sh(-1:2)"))
    'combination of a rotation between -2 and 2 degrees and a shearing between -1 and 2 percent, applied in this order'
    >>> in_words(parse("R(2), Linf(0.01)"))
    'rotation between -2 and 2 degrees with noise of at most 0.01 in each pixel'
    """
    noise = f"noise of at most {number_text(transform.noise)} in each pixel" if transform.noise else ""
    if not transform.parts:
        return noise
    if noise:
        return f"{in_words(transform.without_noise())} with {noise}"
    each = [
        f"{part.noun} between {number_text(part.range[0])} and {number_text(part.range[1])} {part.unit}"
        + (
            f" ({part.setting[0]} {number_text(part.fixed)} {part.setting[1]}{plane_in_words(part)})"
            if part.setting and part.fixed is not None
            else ""
        )
        for part in transform.parts
    ]
    if len(each) == 1:
        return each[0]
    return f"combination of a {', a '.join(each[:-1])} and a {each[-1]}, applied in this order"


def plane_in_words(part: Part) -> str:
    """Return the normal of the plane a camera moves over, as in the notation."""
    return f", plane {':'.join(map(number_text, part.constants[1]))}" if part.has_plane else ""


def percent(part: int, whole: int) -> str:
    """Return a percentage, rounded down, so that only all reads as 100.00.

    >>> percent(99999, 100000), percent(2, 3)
    ('99.99 %', '66.66 %')
    """
    return f"{math.floor(10_000 * part / whole) / 100:.2f} %"


def quote(run: FinishedRun) -> str:
    """State the result in one sentence."""
    images, sha = len(run.results), str(run.claim["weights_sha256"])[:16]
    network = f"the network {run.name('model')}".rstrip() + f" ({TENSORS} {sha}…)"
    if run.regression:
        largest = run.summary["largest_width"]  # None where nothing bounds an output
        wide = "" if largest is None else f" (at most {digits_above(largest, 4):g} wide)"
        return (
            f"For each of the {images:,} images, it is proved that no output of {network} leaves its certified "
            f"range{wide} for any {in_words(run.transform)}."
        )
    certified = int(run.summary["certified"])
    count = "1 image" if images == 1 else f"{images:,} images"
    what = "gives the right answer" if run.keep is None else run.keep.words
    ending = "" if run.keep is None else ","
    return (
        f"For {certified:,} of the {count} ({percent(certified, images)}), it is proved that {network} {what}{ending} "
        f"for every {in_words(run.transform)}.{_radius(run)}"
    )


def _radius(run: FinishedRun) -> str:
    """State how far the proofs of a run reach that looked for the largest range of each image."""
    median = run.summary.get("median_radius") if run.radii else None
    if median is None:
        return ""
    return f" Half of the images that are right are proved up to {digits_below(median, 4):g} {run.summary['unit']} or further."


MEANINGS = {
    "real": (
        "the network as a real-valued function of its stored weights",
        "Nothing about rounding where the network is evaluated: a float32 evaluation may differ in its last digits "
        "(--semantics float32 covers those).",
    ),
    EIGHT_BITS: (
        "this program, as it was evaluated, on every picture of 8 bits that remains when pixels are rounded, ties either way,",
        "Nothing about pictures that are not rounded, nor about other evaluations of the program than those whose differences "
        "the tolerance covers.",
    ),
    "float32": (
        "the real-valued network and every float32 evaluation of it, in any order of summation",
        "Nothing about other arithmetic, for instance float16 or 8-bit weights, or about an export that changes weights.",
    ),
}
"""What a claim under each semantics is about, and what it leaves out."""


def meaning_of(run: FinishedRun) -> tuple[str, str]:
    """Return what the claim is about, and what it leaves out, by its semantics."""
    semantics = str(run.claim.get("semantics"))
    unknown = f"the network under the semantics {shown(semantics, 200)}", "Nothing about any other arithmetic."
    return MEANINGS.get(semantics, unknown)


def scope(run: FinishedRun) -> str:
    """State the exact meaning of that sentence, and its limits."""
    noise = (
        f"Every pixel of the transformed image may then move by up to {number_text(run.transform.noise)}, within 0 and 1. "
        if run.transform.noise
        else ""
    )
    outside = OUTSIDE.get(run.transform.padding, run.transform.padding)
    return (
        f"The statement is about {meaning_of(run)[0]} and the exact transformation with {run.transform.interpolation} "
        f"interpolation; outside the image lies {outside}. {noise}It is a proof for the closed range, not a test of samples. "
        "The proof accounts for every rounding error of the prover."
    )
