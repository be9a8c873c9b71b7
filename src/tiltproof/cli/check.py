"""``tiltproof check``: re-prove a finished run folder with code that shares nothing with the prover."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltproof.checker import CheckFailed, CheckReport
from tiltproof.checker import check as check_run
from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.options import SEARCH
from tiltproof.data import load as load_data
from tiltproof.device import choose_device
from tiltproof.models import load as load_model

EXAMPLES = options.examples(
    'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(30)" --out runs/r30',
    "tiltproof check runs/r30 --model mnist-r30 --data mnist-sample",
    "tiltproof check runs/r30 --model mnist-r30 --data mnist-sample --sample 10 --seed 1",
)
DOES_NOT_HOLD = 1


def command(
    folder: options.RunFolder,
    model: options.Model,
    data: options.Data,
    arch: options.Architecture = None,
    allow_pickle: options.AllowPickle = False,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Re-prove this many images only, chosen at random; hashes, tilings and counts are checked for all.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --sample's choice.", rich_help_panel=SEARCH)] = 0,
    quiet: options.Quiet = False,
) -> None:
    """Check a certificate: prove every box of a run again, from the weights and images alone.

    The checker is a small program of its own, written to be read, and shares no code with the prover. It compares
    the hashes of weights and images, sees that each tiling covers the whole range, bounds every box again in
    double precision, and runs every counterexample again. Of a regression run it proves the range of every
    output again; the data's labels are the right answers, where the run was given any. Exit code 0: all of it
    holds. 1: it does not, and the first image for which it fails is named. 2: something given cannot be used. 70: internal
    error, which says nothing about the certificate. 130: interrupted. 143: terminated.
    """
    place = choose_device(device)
    network = load_model(model, arch, allow_pickle).to(place)
    images, labels = load_data(data, data_root)
    start, end, without_answers = selection(folder, len(images))
    answers = None if without_answers else labels[start:end]
    try:
        with (
            live_count(quiet, "re-proving", "boxes") as progress,
            kept_after_interruption(lambda: "nothing was decided"),
        ):
            report = check_run(folder, network, images[start:end], answers, sample=sample, seed=seed, progress=progress)
    except CheckFailed as failure:
        typer.echo(f"the certificate does not hold: {failure}", err=True)
        raise typer.Exit(DOES_NOT_HOLD) from None
    if not quiet:
        typer.echo(sentence(report))


def selection(folder: Path, count: int) -> tuple[int, int, bool]:
    """Which images the run is about, as its manifest says, and whether it is a regression run that was told no right answers; what
    cannot be read is left for the checker to refuse."""
    try:
        claim = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["claim"]
        start, end = int(claim["first"]), int(claim["first"]) + len(claim["images_sha256"])
        without_answers = "task" in claim and claim["values"] is None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return 0, count, False
    return (start, end, without_answers) if 0 <= start < end <= count else (0, count, without_answers)


def sentence(report: CheckReport) -> str:
    """What was checked, in one line.

    >>> sentence(CheckReport(100, 98, 1664, 2120, 1, 23.2, False))
    'the certificate holds: 98 certified images, 1,664 boxes re-proved (2,120 sub-boxes), 1 counterexample re-run, in 23 s'
    >>> sentence(CheckReport(3, 3, 48, 72, 0, 1.2, False, "regression"))
    'the certificate holds: the output ranges of 3 images, 48 boxes re-proved (72 sub-boxes), in 1 s'
    """
    sampled = f"the certificate holds for a sample of {report.images:,} images"
    proved = f"{count(report.boxes, 'box', 'boxes')} re-proved ({count(report.sub_boxes, 'sub-box', 'sub-boxes')}), "
    if report.task == "regression":
        what = f"the output ranges of {count(report.certified, 'image')}, {proved}"
    else:
        reruns = f"{count(report.counterexamples, 'counterexample')} re-run, "
        what = f"{count(report.certified, 'certified image')}, {proved}{reruns}"
    return f"{sampled if report.sampled else 'the certificate holds'}: {what}in {report.seconds:.0f} s"


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
