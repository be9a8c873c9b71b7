"""``tiltproof export``: properties for other verifiers (VNN-LIB and ONNX), and a run's results as CSV or JSON lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.inputs import (
    STDOUT,
    DataChoice,
    ModelChoice,
    check_text_file,
    images_of_run,
    model_and_transform,
    parse_splits,
    without_none,
    write_atomically,
)
from tiltproof.cli.messages import tell
from tiltproof.cli.options import EFFORT, PROBLEM, RARE, RESULTS, argument, choice, flag, option
from tiltproof.errors import InputError
from tiltproof.names import PROPERTY_SECONDS

if TYPE_CHECKING:
    from torch import nn

    from tiltproof.data.loading import Source
    from tiltproof.export import VnnlibFolder

EPILOG = options.epilog(
    "tiltproof export runs/r30 --csv r30.csv --junit r30.xml",
    "tiltproof export --vnnlib --model mnist-r30 --data mnist-sample \\",
    '  --transform "R(3)" --images 0,3 --splits 16 --out props',
)
MAX_IMAGES = 100_000


@options.expanded
def command(
    folder: Annotated[Path | None, argument("A run: the folder that certify --out wrote.", "[DIR]")] = None,
    model: options.OptionalModel = None,
    data: options.OptionalData = None,
    csv: Annotated[Path | None, option("Write the run's results as a table.", RESULTS, "FILE", "--csv")] = None,
    jsonl: Annotated[Path | None, option("The same as JSON, one row per line.", RESULTS, "FILE", "--jsonl")] = None,
    junit: Annotated[
        Path | None, option("The same as JUnit XML: a test per image, certified or failed.", RESULTS, "FILE", "--junit")
    ] = None,
    mlflow: Annotated[bool, flag("Log the run to MLflow, if that is installed.", RESULTS, "--mlflow")] = False,
    tolerance: Annotated[
        str | None, option("Regression: safe means this close to the target.", RESULTS, "NUMBER")
    ] = None,
    vnnlib: Annotated[
        bool, flag("Write VNN-LIB 1.0 and 2.0, and the network as ONNX, to --out.", RESULTS, "--vnnlib")
    ] = False,
    out: Annotated[Path | None, option("A new folder for --vnnlib.", RESULTS, "FOLDER")] = None,
    quiet: options.Quiet = False,
    transform: options.OptionalTransformText = None,
    images: Annotated[
        str | None,
        option("--vnnlib: which images, e.g. 0,3,10-19 (default: those the run certified).", PROBLEM, "N,N-N"),
    ] = None,
    splits: Annotated[str | None, option("--vnnlib: " + options.SPLITS_HELP, EFFORT, "N,...")] = None,
    method: Annotated[
        str | None, choice("--vnnlib: pixel bounds (default: hull, or the run's).", EFFORT, "hull", "fgv", "affine")
    ] = None,
    timeout: Annotated[float, option("Seconds per property in instances.csv.", RARE, "S")] = PROPERTY_SECONDS,
    padding: options.Padding = None,
    interpolation: options.Interpolation = None,
    files: options.Files = options.NO_FILES,
) -> None:
    """Export results as CSV, JSON, JUnit or to MLflow; or problems as VNN-LIB.

    --csv and --jsonl write a row per image (regression: per output) with the
    verdicts of verification competitions: safe, unsafe (with a counterexample) or
    unknown. A misclassified image is unknown unless --model and --data are given
    to confirm that its answer is wrong.

    --vnnlib writes one property per image and box: pixels between their bounds,
    and some other class at least as high as the label's. unsat for all boxes of an
    image proves it. sat means that some image within the pixel bounds breaks it,
    not necessarily a transformed one: use more splits.
    """
    from tiltproof.export import export_run, export_vnnlib, log_mlflow
    from tiltproof.runs.reader import read_finished

    tables = without_none(csv=csv, jsonl=jsonl, junit=junit)
    results = bool(tables) or mlflow or tolerance is not None
    if not vnnlib and not tables and not mlflow:
        raise InputError("nothing to write", do="give --vnnlib, --csv FILE, --jsonl FILE, --junit FILE or --mlflow")
    if results:
        _check_results(folder, tables, tolerance)
    if not vnnlib:
        given = {"--out": out, "--images": images, "--splits": splits, "--method": method, "--transform": transform}
        _unused(given, "without --vnnlib")
    elif model is None or data is None or out is None:
        raise InputError("--vnnlib needs a network, data and a folder", do="give --model, --data and --out")
    if (model is None) != (data is None):
        raise InputError(
            "misclassified images are confirmed with --model and --data", got="one of them", do="give both"
        )
    if folder is not None:
        given = {"--splits": splits, "--transform": transform, "--padding": padding, "--interpolation": interpolation}
        _unused(given, "with a run, which has its own")
    quiet = quiet or STDOUT in tables.values()
    network, chosen = None, None
    choice = None if model is None else ModelChoice.of(model, files)
    chosen_data = None if data is None else DataChoice.of(data, files)
    run = None if folder is None else read_finished(folder)
    if run is not None:
        choice = None if choice is None else choice.noted(run.notes)
        chosen_data = None if chosen_data is None else chosen_data.noted(run.notes)
    if choice is not None and folder is None:
        network, chosen = model_and_transform(choice, transform, padding, interpolation, chosen_data)
    elif choice is not None:
        network = choice.load(chosen_data)
    task = "classification" if run is None else run.task
    source = None if chosen_data is None else chosen_data.open(task)
    if results and folder is not None:
        if tables:
            _results(folder, tables, tolerance, network, source, quiet)
        if mlflow:
            logged = log_mlflow(folder)
            if not quiet:
                typer.echo(f"{folder}: logged as MLflow run {logged}")
    if not vnnlib:
        return
    assert network is not None
    assert source is not None
    assert out is not None
    common: dict[str, Any] = {"timeout": timeout}
    with live_count(quiet, "writing", "properties") as progress, kept_after_interruption(lambda: "nothing was kept"):
        common["progress"] = progress
        if folder is not None and run is not None:
            numbers = None if images is None else parse_images(images, run.first + len(run.results))
            of_run = images_of_run(run, source)
            written = export_run(folder, network, *of_run, out, numbers=numbers, method=method, **common)
        else:
            if images is None:
                raise InputError("--images is missing", do="say which images to write, e.g. --images 0,3")
            assert chosen is not None
            numbers = parse_images(images, len(source))
            some, labels = source.read(numbers)
            common |= {"splits": parse_splits(splits) or 1, "numbers": numbers, "method": method or "hull"}
            written = export_vnnlib(network, some, labels, chosen, out, **common)
    if not quiet:
        tell(sentence(written))


def sentence(written: VnnlibFolder) -> str:
    """Say what was written where."""
    properties = len(written.properties)
    count = len({prop.image for prop in written.properties})
    return (
        f"{written.folder}: {properties:,} {'property' if properties == 1 else 'properties'} of {count:,} "
        f"{'image' if count == 1 else 'images'}, in {written.folder / '1.0'} and {written.folder / '2.0'}"
    )


def parse_images(text: str, count: int) -> list[int]:
    """Numbers below ``count``, in the order given.

    >>> parse_images("3, 0,10-12", 100)
    [3, 0, 10, 11, 12]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= count or len(numbers) + last - first >= MAX_IMAGES:
            raise InputError(f"--images takes numbers from 0 to {count - 1}", got=text, do="write e.g. 0,3,10-19")
        numbers += range(first, last + 1)
    if len(set(numbers)) != len(numbers):
        raise InputError("--images names an image twice", got=text)
    return numbers


def _check_results(folder: Path | None, tables: Mapping[str, Path], tolerance: str | None) -> None:
    if folder is None:
        raise InputError("results are exported from a run", do="name the folder that certify --out wrote")
    if not tables and tolerance is not None:
        raise InputError("--tolerance goes with --csv, --jsonl or --junit", got=f"--tolerance {tolerance}")
    printed = [f"--{name} -" for name, path in tables.items() if path == STDOUT]
    if len(printed) > 1:
        raise InputError("only one of the tables can go to standard output", got=" ".join(printed))
    for path in tables.values():
        check_text_file(path)


def _results(
    folder: Path,
    tables: Mapping[str, Path],
    tolerance: str | None,
    network: nn.Module | None,
    source: Source | None,
    quiet: bool,
) -> None:
    from tiltproof.export import as_csv, as_jsonl, as_junit, result_rows
    from tiltproof.export.results import open_to_confirm
    from tiltproof.runs.reader import read_finished

    run = read_finished(folder)
    images = None if source is None or run.regression else images_of_run(run, source)[0]
    rows = result_rows(folder, tolerance, model=None if images is None else network, images=images)
    formats = {"csv": as_csv, "jsonl": as_jsonl, "junit": as_junit}
    for name, path in tables.items():
        write_atomically(path, formats[name](rows))
        if not quiet:
            typer.echo(f"{path}: {len(rows):,} {'row' if len(rows) == 1 else 'rows'}")
    unconfirmed = len(open_to_confirm(run)) if network is None else 0
    if unconfirmed and not quiet:
        which = "1 misclassified image is" if unconfirmed == 1 else f"{unconfirmed:,} misclassified images are"
        tell(
            f"notice: {which} exported as unknown: give --model and --data to confirm that the answer is wrong",
            err=True,
        )


def _unused(options: Mapping[str, object], why: str) -> None:
    for name, value in without_none(**options).items():
        raise InputError(f"{name} has no meaning {why}", got=f"{name} {value}", do="leave it out")
