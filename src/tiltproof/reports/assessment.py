"""What an assessor asks of a run, as HTML that needs no script: counts, claim, assumptions, evidence, what is not claimed."""

from __future__ import annotations

import html
from datetime import UTC, datetime

from tiltproof.errors import shown
from tiltproof.reports.encoding import digits_above, digits_below
from tiltproof.reports.sentences import meaning_of, percent
from tiltproof.runs.checked import Checked
from tiltproof.runs.folder import CHECKED
from tiltproof.runs.manifest import TENSORS, WEIGHTS_FILE
from tiltproof.runs.reader import FinishedRun
from tiltproof.verify.results import Verdict

LISTED = 9
"""Most images that are not certified in the list for an assessor."""
SIGNS = {"degrees": "\N{DEGREE SIGN}", "pixels": " px", "percent": " %"}
"""Units as they follow a number."""


def blocks(run: FinishedRun) -> dict[str, str]:
    """Return the parts of the page's template."""
    return {
        "when": html.escape(_when(run)),
        "summary": _counts(run),
        "checked": _checked(run.checked, len(run.results)),
        "assumptions": _items(assumptions(run)),
        "unclaimed": _items(unclaimed(run)),
        "uncertified": _uncertified(run),
        "facts": "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts(run)),
    }


def _items(sentences: list[str]) -> str:
    return "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)


def _day(moment: datetime) -> str:
    """Return a date and time as text, in UTC.

    >>> _day(datetime.fromisoformat("2026-11-19T20:53:26+00:00"))
    '19 November 2026, 20:53 UTC'
    """
    there = moment.astimezone(UTC)
    return f"{there.day} {there:%B %Y, %H:%M} UTC"


def began(run: FinishedRun) -> str:
    return _day(datetime.fromisoformat(run.began)) if run.began else ""


def _when(run: FinishedRun) -> str:
    data = f"{len(run.results):,} images of {run.name('data')}" if run.name("data") else f"{len(run.results):,} images"
    return " · ".join(part for part in (began(run), data, f"run {run.digest[:16]}…") if part)


def _counts(run: FinishedRun) -> str:
    """Return the counts, each once: a bar of verdicts with their numbers, or the widths of a regression."""
    if run.regression:
        pairs = "".join(
            f"<li><strong>{html.escape(value)}</strong> <span>{html.escape(name)}</span></li>"
            for name, value in _widths(run)
        )
        return f'<ul class="counts">{pairs}</ul>'
    counts = [(str(verdict), int(run.summary[str(verdict)])) for verdict in Verdict]
    bar = "".join(
        f'<rect class="share-{name}" x="{100 * sum(n for _, n in counts[:k]) / len(run.results):.4f}" y="0" '
        f'width="{100 * count / len(run.results):.4f}" height="4"/>'
        for k, (name, count) in enumerate(counts)
        if count
    )
    words = "".join(
        f'<li class="{name}"><svg class="mark" aria-hidden="true"><use href="#mark-{name}"/></svg>'
        f"<strong>{count:,}</strong> <span>{name}</span></li>"
        for name, count in counts
    )
    picture = f'<svg class="shares" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>'
    return f'{picture}<ul class="counts">{words}</ul>'


def _widths(run: FinishedRun) -> list[tuple[str, str]]:
    """Return the numbers of a regression; proved widths are rounded up, reached ones down."""
    summary = run.summary
    found = [
        ("images with proved ranges", f"{len(run.results):,}"),
        ("mean proved width", _above(summary["mean_width"])),
        ("mean width reached for certain", _below(summary["mean_inner_width"])),
        ("as tight as asked for", f"{summary['complete']:,}"),
    ]
    if "certified_mean_absolute_error" in summary:
        found.append(("mean of the largest error a range allows", _above(summary["certified_mean_absolute_error"])))
    return found


def _above(value: float | None) -> str:
    return "not bounded" if value is None else f"{digits_above(value, 4):g}"


def _below(value: float | None) -> str:
    return "not bounded" if value is None else f"{digits_below(value, 4):g}"


def _checked(checked: Checked | None, images: int) -> str:
    """Say who proved the run again and when, or that nobody did as far as the folder tells."""
    if checked is None:
        kind, text = "nobody", "Not yet proved again: tiltproof check does so, with code of its own."
    elif not checked.holds:
        kind, text = "refused", f"Refused by the checker on {_day(checked.on)}{_by(checked)}: {checked.reason}"
    else:
        what = (
            f"A sample of {checked.images:,} of the {images:,} images was re-proved" if checked.sampled else "Re-proved"
        )
        kind, text = "holds", f"{what} by the checker on {_day(checked.on)}{_by(checked)}."
    return f'<p class="checked {kind}">{html.escape(text)}</p>'


def _by(checked: Checked) -> str:
    return f", by {shown(checked.by, 80)}" if checked.by else ""


def assumptions(run: FinishedRun) -> list[str]:
    """Return what the claim rests on."""
    network, _ = meaning_of(run)
    names = f"digest of the tensors {str(run.claim['weights_sha256'])[:16]}…"
    return [
        f"The network in use is {network}, with the {names}; nothing before or after it changes images or answers.",
        "Images are the pixels whose digests the run lists, after the preparation noted below, with values from 0 to 1.",
        f"The transformation is {run.transform} as tiltproof defines it, of the stored pixels and not of the scene; "
        "parameters stay inside the closed range.",
        "A regression's range is about the outputs as they leave the network."
        if run.regression
        else "The labels are right: they are taken from the data."
        if run.keep is None
        else f"What is to be kept is what matters: the network {run.keep.words}.",
        "Prover, Python, torch's sums in IEEE arithmetic and the hardware work as specified; a complete check replaces the "
        "prover by a separate program that shares no code with it, but the mathematics.",
    ]


def unclaimed(run: FinishedRun) -> list[str]:
    """Return what the run does not say."""
    _, excluded = meaning_of(run)
    said = [
        "Nothing about images that are not in the run: the share is one of these images, not of a population.",
        "Nothing about parameters outside the range, other transformations, or several one after the other beyond those "
        "named.",
        excluded,
        "Nothing about rain, noise, occlusion, blur or another camera, unless it is named as a transformation.",
    ]
    if not run.regression:
        said.append(
            "Unknown images are neither proved nor broken; misclassified ones are wrong without a transformation."
        )
    return said


def _uncertified(run: FinishedRun) -> str:
    """List the images that are not certified, the broken ones first."""
    if run.regression:
        return ""
    open_ = [result for result in run.results if result.verdict is not Verdict.CERTIFIED]
    if not open_:
        return "<h3>Images not certified</h3><p>None.</p>"
    ranks = [Verdict.FALSIFIED, Verdict.UNKNOWN, Verdict.MISCLASSIFIED]
    open_.sort(key=lambda result: ranks.index(result.verdict))
    parts = run.transform.parts
    lines = []
    for result in open_[:LISTED]:
        where = ""
        if result.counterexample is not None:
            pairs = zip(parts, result.counterexample, strict=True)
            where = " at " + ", ".join(
                f"{part.quantity} {value:.5g}{SIGNS.get(part.unit, '')}" for part, value in pairs
            )
        elif result.reason is not None:
            where = f": {result.reason.meaning}"
        lines.append(f"Image {result.image}, label {result.label}: {result.verdict}{where}")
    if len(open_) > LISTED:
        lines.append(f"and {len(open_) - LISTED:,} more, listed above and in verdicts.jsonl")
    return f'<h3>Images not certified</h3><ul class="uncertified">{_items(lines)}</ul>'


def facts(run: FinishedRun) -> list[tuple[str, str]]:
    """Return names and values of the claim and of how it was proved."""
    file = run.notes.get("weights_file_sha256")
    images = len(run.results)
    values: list[tuple[str, str]] = [
        ("Begun", began(run)),
        ("Network", run.name("model") or "not named"),
        (_capital(TENSORS), str(run.claim["weights_sha256"])),
        (_capital(WEIGHTS_FILE), f"{shown(file, 64)} (as noted by certify)" if isinstance(file, str) else ""),
        ("Data", f"{images:,} of {run.name('data') or 'data not named'}, from number {run.first}"),
        ("Digest of the run", f"{run.digest} (sha256 of summary.json, which holds those of the other files)"),
        ("Checked", _evidence_of_check(run)),
        ("Transformation", str(run.transform)),
        ("Statement about", meaning_of(run)[0]),
        ("What is kept", "" if run.regression or run.keep is None else run.keep.words),
        ("Right without transformation", "" if run.regression else _share(run.summary["correct"], images)),
        ("Without a counterexample", "" if run.regression else _share(run.summary["unfalsified"], images)),
        ("Taken off the network's end", _head(run.claim.get("head"))),
        ("Method", str(run.settings.get("method", ""))),
        ("Boxes", f"{run.summary['boxes']:,}" if isinstance(run.summary.get("boxes"), int) else ""),
        ("Seconds", _number(run.summary.get("seconds"))),
        ("Computed with", _environment(run.environment)),
        *(("Resumed with", _environment(each)) for each in run.resumed),
    ]
    return [(name, value) for name, value in values if value != ""]


def _evidence_of_check(run: FinishedRun) -> str:
    if run.checked is None or not run.checked.holds:
        return "" if run.checked is None else f"refused on {_day(run.checked.on)}"
    found = run.checked
    what = f"{found.certified:,} images with {found.boxes:,} boxes ({found.sub_boxes:,} of the checker's own)"
    points = f", {found.counterexamples:,} counterexamples" if found.counterexamples else ""
    return f"on {_day(found.on)}{_by(found)}: {what}{points}, as {CHECKED} records; run tiltproof check to be sure"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({percent(part, whole)})"


def _head(names: object) -> str:
    """The functions between scores and outputs, in the order in which the network applies them."""
    if not isinstance(names, list):
        return ""
    return ", ".join(shown(name, 40) for name in reversed(names)) + " (the order of the outputs is that of the scores)"


def _environment(versions: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def _number(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, (int, float)) else ""
