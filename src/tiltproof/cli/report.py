"""``tiltproof report``: render a finished run folder as one offline HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.inputs import DataChoice, ModelChoice, check_writable, images_of_run, is_program
from tiltproof.cli.options import EFFORT, RESULTS, option
from tiltproof.errors import InputError
from tiltproof.models.cards import models
from tiltproof.names import DATA_NAMES, REPORT_DETAILS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tiltproof.runs.reader import FinishedRun

EPILOG = options.epilog(
    "tiltproof certify --model mnist-r30 --data mnist-sample --out runs/r30",
    "tiltproof report runs/r30",
    "tiltproof report runs/r30 --images 5,17 --out two.html",
)
Found = TypeVar("Found")


@options.expanded
def command(
    folder: options.RunFolder,
    model: options.OptionalModel = None,
    data: options.OptionalData = None,
    details: Annotated[
        int, option("Draw margins and pixel bounds of N images, those not certified first.", EFFORT, "N")
    ] = REPORT_DETAILS,
    images: Annotated[
        str | None, option("Instead, of these images, by the numbers that the page shows.", EFFORT, "N,...")
    ] = None,
    device: options.Device = "auto",
    out: Annotated[Path | None, option("The page (default: report.html in DIR).", RESULTS, "FILE")] = None,
    quiet: options.Quiet = False,
    files: options.Files = options.NO_FILES,
) -> None:
    """Render a run as one HTML page that opens offline.

    The page shows what was proved, by whom it was proved again, and every image,
    which turns over its margins. It prints on two pages. Images, margins and
    bounds are drawn from model and data, whose hashes are compared with the run's.
    Without --model and --data, the run's own notes are followed if they name a
    bundled model or weight file and a local data set; otherwise the page says
    what is missing.
    """
    from tiltproof.device import choose_device
    from tiltproof.reports import report as write_report
    from tiltproof.reports.page import REPORT
    from tiltproof.runs.reader import read_finished

    only = None if images is None else image_numbers(images)
    place = choose_device(device)
    run = read_finished(folder)
    path = folder / REPORT if out is None else out
    check_writable(path)
    notices: list[str] = []
    chosen_data = None if data is None else DataChoice.of(data, files).noted(run.notes)
    network = (
        _noted(lambda: _noted_model(run), "model", notices)
        if model is None
        else ModelChoice.of(model, files).noted(run.notes).load(chosen_data, is_program(folder))
    )
    of_run = (
        _noted(lambda: _noted_data(run, files.data_root), "data", notices)
        if chosen_data is None
        else images_of_run(run, chosen_data.open(run.task))
    )
    pixels, labels = (None, None) if of_run is None else of_run
    with live_count(quiet, "drawing", "images") as progress, kept_after_interruption(lambda: "no report was written"):
        path = write_report(
            folder,
            None if network is None else network.to(place),
            None if pixels is None else pixels.to(place),
            labels,
            out=path,
            details=details,
            only=only,
            notices=tuple(notices),
            progress=progress,
        )
    for notice in notices:
        typer.echo(f"notice: {notice}", err=True)
    if not quiet:
        typer.echo(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")


def image_numbers(text: str) -> list[int]:
    """Read the numbers of images, separated by commas.

    >>> image_numbers("5, 17")
    [5, 17]
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise InputError(
            "--images takes numbers with commas between them", got=text, do="write --images 5,17"
        ) from None


def _noted(find: Callable[[], Found], kind: str, notices: list[str]) -> Found | None:
    """Find the model or data named in the run's notes; add a notice if they are missing or not the run's."""
    try:
        return find()
    except InputError as error:
        notices.append(f"The {kind} was not given, and the run's notes do not help: {error}")
        return None


def _noted_model(run: FinishedRun) -> nn.Module:
    """Load a bundled model or a weight file. Never a function: a folder from elsewhere must not choose code to run."""
    from tiltproof.runs.reader import check_model

    name, arch = run.notes.get("model"), run.notes.get("arch")
    known = isinstance(name, str) and (name in {card.name for card in models()} or name.endswith(".safetensors"))
    if not isinstance(name, str) or not known:
        raise InputError(
            "the notes name no bundled model and no weight file", got=run.name("model") or "no name", do="give --model"
        )
    choice = ModelChoice(name, arch if isinstance(arch, str) else None, False, None, None, None).noted(run.notes)
    network = choice.load(None)
    check_model(run, network)
    return network


def _noted_data(run: FinishedRun, root: Path | None) -> tuple[Tensor, Tensor]:
    """Load a data set that is available locally; a run folder must not trigger a download."""
    from tiltproof.runs.reader import check_images

    name = run.notes.get("data")
    is_local = isinstance(name, str) and (name.endswith("-sample") or name not in DATA_NAMES or root is not None)
    if not isinstance(name, str) or not is_local:
        raise InputError(
            "the data set is not available locally", got=run.name("data") or "no name", do="give --data, or --data-root"
        )
    source = DataChoice(name, root).noted(run.notes).open(run.task)
    images, labels = images_of_run(run, source)
    check_images(run, images, None if run.regression else labels)
    return images, labels
