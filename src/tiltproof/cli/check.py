"""``tiltproof check``: prove a finished run folder again with code that shares nothing with the prover."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.inputs import DataChoice, ModelChoice, is_program, notes_of
from tiltproof.cli.messages import tell
from tiltproof.cli.options import EFFORT, RARE, option
from tiltproof.errors import shown

if TYPE_CHECKING:
    from tiltproof.checker import CheckReport
    from tiltproof.runs.checked import Checked

EPILOG = options.epilog(
    "tiltproof certify --model mnist-r30 --data mnist-sample --out runs/r30",
    "tiltproof check runs/r30 --model mnist-r30 --data mnist-sample",
    code_1="the certificate does not hold",
)
DOES_NOT_HOLD = 1


@options.expanded
def command(
    folder: options.RunFolder,
    model: options.Model,
    data: options.Data,
    sample: Annotated[
        int | None,
        option("Re-prove N random images only; hashes, covering and counts are checked for all.", EFFORT, "N"),
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    files: options.Files = options.NO_FILES,
    by: Annotated[str, option("Who checks; the report then says so.", RARE, "NAME")] = "",
    seed: Annotated[int, option("Seed of --sample.", RARE, "N")] = 0,
) -> None:
    """Prove every box of a run again, with independent code.

    The checker is a separate program that shares no code with the prover. It
    compares the hashes of weights and images, confirms that the boxes of each
    image cover the whole range, bounds every box again in double precision and
    re-runs every counterexample. The first image that fails is named. How images are
    prepared and normalized is taken from the run's notes, unless options say it.
    The result is kept as check.json in the folder; it is no part of the run, and
    the report shows it.
    """
    from tiltproof.checker import CheckFailed
    from tiltproof.checker import check as check_run
    from tiltproof.device import choose_device, use_threads
    from tiltproof.runs.checked import COUNTS, Checked, run_digest

    use_threads(threads)
    place = choose_device(device)
    notes = notes_of(folder)
    chosen_data = DataChoice.of(data, files).noted(notes)
    choice = ModelChoice.of(model, files)
    network = choice.noted(notes).load(chosen_data, is_program(folder)).to(place)
    source = chosen_data.open(task_of(folder))
    start, end, without_answers = selection(folder, len(source))
    images, labels = source.read(range(start, end))
    answers = None if without_answers else labels
    try:
        run_sha256 = run_digest(folder)
    except OSError:
        run_sha256 = ""  # the checker will say what is missing
    try:
        with (
            live_count(quiet, "re-proving", "boxes") as progress,
            kept_after_interruption(lambda: "nothing was decided"),
        ):
            report = check_run(folder, network, images, answers, sample=sample, seed=seed, progress=progress)
    except CheckFailed as failure:
        _keep(folder, run_sha256, Checked(False, reason=shown(failure, 200), by=by))
        tell(f"the certificate does not hold: {failure}", err=True)
        raise typer.Exit(DOES_NOT_HOLD) from None
    found = {name: getattr(report, name) for name in (*COUNTS, "seconds", "sampled")}
    _keep(folder, run_sha256, Checked(True, **found, by=by))
    if not quiet:
        tell(sentence(report))


def _keep(folder: Path, run_sha256: str, found: Checked) -> None:
    """Keep the result in the folder, if that can be written; it is printed in any case."""
    from tiltproof.runs.checked import write_checked

    if run_sha256 and (problem := write_checked(folder, run_sha256, found)) is not None:
        tell(f"notice: the result was not kept in the folder: {problem}", err=True)


def task_of(folder: Path) -> str:
    """What the run's manifest asks of the data: target values, labels, or nothing."""
    try:
        claim = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["claim"]
        if claim.get("task") == "regression":
            return "regression"
        return "any" if "keep" in claim and claim["keep"]["rule"] == "own" else "classification"
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "classification"


def selection(folder: Path, count: int) -> tuple[int, int, bool]:
    """The run's image range by its manifest, and whether it is a regression run without target values.

    What cannot be read is left for the checker to refuse.
    """
    try:
        claim = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["claim"]
        start, end = int(claim["first"]), int(claim["first"]) + len(claim["images_sha256"])
        without_answers = claim.get("task") == "regression" and claim["values"] is None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return 0, count, False
    return (start, end, without_answers) if 0 <= start < end <= count else (0, count, without_answers)


def sentence(report: CheckReport) -> str:
    """Say in one line what was checked.

    >>> from tiltproof.checker import CheckReport
    >>> sentence(CheckReport(100, 98, 1664, 2120, 1, 23.2, False))
    'the certificate holds: 98 certified images, 1,664 boxes re-proved (2,120 sub-boxes), 1 counterexample re-run, in 23 s'
    >>> sentence(CheckReport(3, 3, 48, 72, 0, 1.2, False, "regression"))
    'the certificate holds: the output ranges of 3 images, 48 boxes re-proved (72 sub-boxes), in 1 s'
    >>> sentence(CheckReport(9, 9, 48, 72, 1, 1.2, False, "radius"))
    'the certificate holds: 9 proved radii, 48 boxes re-proved (72 sub-boxes), 1 counterexample re-run, in 1 s'
    """
    sampled = f"the certificate holds for a sample of {report.images:,} images"
    proved = f"{count(report.boxes, 'box', 'boxes')} re-proved ({count(report.sub_boxes, 'sub-box', 'sub-boxes')}), "
    if report.task == "regression":
        what = f"the output ranges of {count(report.certified, 'image')}, {proved}"
    else:
        things = "proved radius" if report.task == "radius" else "certified image"
        many = "proved radii" if report.task == "radius" else ""
        reruns = f"{count(report.counterexamples, 'counterexample')} re-run, "
        what = f"{count(report.certified, things, many)}, {proved}{reruns}"
    return f"{sampled if report.sampled else 'the certificate holds'}: {what}in {report.seconds:.0f} s"


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
