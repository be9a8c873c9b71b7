"""``tiltproof export``: properties for other verifiers (VNN-LIB and ONNX), and a run's results as CSV or JSON lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.files import check_writable, write_atomically
from tiltproof.cli.inputs import choose_transform, parse_splits
from tiltproof.cli.live import live_count
from tiltproof.cli.options import IMAGES, RESULTS
from tiltproof.data import load_data
from tiltproof.errors import InputError
from tiltproof.export import VnnlibFolder, as_csv, as_jsonl, export_run, export_vnnlib, result_rows
from tiltproof.export.instances import TIMEOUT
from tiltproof.report.finished import read_finished
from tiltproof.transforms import parse
from tiltproof.zoo import resolve_model

EXAMPLES = options.examples(
    "tiltproof export runs/r30 --csv r30.csv --jsonl r30.jsonl",
    "tiltproof export runs/driving --csv driving.csv --tolerance 0.1",
    'tiltproof export --vnnlib --model mnist-r30 --data mnist-sample --transform "R(3)" --images 0,3 --splits 16 --out props',
    'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(3)" --method hull --out runs/hull',
    "tiltproof export runs/hull --vnnlib --model mnist-r30 --data mnist-sample --images 0-4 --out props",
)
MOST_IMAGES = 100_000


def command(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A run: the folder that certify --out wrote.")
    ] = None,
    vnnlib: Annotated[
        bool,
        typer.Option(
            "--vnnlib",
            help="Write pixel boxes as VNN-LIB (1.0 and 2.0) and the network as ONNX, in VNN-COMP's layout; needs "
            "tiltproof\\[onnx], --model, --data and --out.",
        ),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the run's results as a table.")
    ] = None,
    jsonl: Annotated[
        Path | None, typer.Option("--jsonl", metavar="FILE", help="Write the run's results as JSON, a row a line.")
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Regression results: safe means that no output is farther than this from the right answer.",
        ),
    ] = None,
    model: options.OptionalModel = None,
    data: options.OptionalData = None,
    transform: options.OptionalTransformText = None,
    arch: options.Architecture = None,
    allow_pickle: options.AllowPickle = False,
    data_root: options.DataRoot = None,
    padding: options.Padding = None,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N-N...]",
            help="Which images, e.g. 0,3,10-19 (default: the certified ones of a run).",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Cut the range into this many equal boxes; with several parameters one number for each.",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="hull|fgv|affine",
            help="Pixel bounds: exact intervals, the paper's, or intervals around affine forms (default: hull, or the run's own).",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds a property, as instances.csv suggests them.", rich_help_panel=RESULTS)
    ] = TIMEOUT,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A new folder for the properties.", rich_help_panel=RESULTS),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Hand results and problems over to other tools.

    --csv and --jsonl write one row for each image of a run (for regression:
    for each output), with the same columns for every run of a kind. Results
    are named as in verification competitions: safe (proved), unsafe (with a
    counterexample) or unknown. A misclassified image is unsafe if the range
    holds the untransformed image.

    --vnnlib writes for each image and box of parameters one property: pixels
    between their bounds, and another class at least as high as the label's.
    Without DIR the boxes are --splits equal parts of the range; with DIR they
    are those that the run proved. A tool that answers unsat for all boxes of
    an image has proved it. sat means that a picture inside the pixel bounds
    breaks it, not that a transformed one does: use more splits.

    Exit codes: 0 written, 2 bad input.
    """
    if not vnnlib and csv is None and jsonl is None:
        raise InputError("nothing to write", do="give --vnnlib, --csv FILE or --jsonl FILE")
    if not vnnlib:
        given = {"--out": out, "--images": images, "--splits": splits, "--method": method, "--transform": transform}
        _unused({name: value for name, value in given.items() if value is not None}, "without --vnnlib")
    if csv is not None or jsonl is not None or tolerance is not None:
        _results(folder, csv, jsonl, tolerance)
    if not vnnlib:
        return
    if model is None or data is None or out is None:
        raise InputError(
            "--vnnlib needs to know which network, which data and where to write", do="give --model, --data and --out"
        )
    network = resolve_model(model, arch, allow_pickle)
    everything, labels = load_data(data, data_root)
    with live_count(quiet, "writing", "properties") as progress:
        if folder is not None:
            given = {"--splits": splits, "--transform": transform, "--padding": padding}
            _unused(
                {name: value for name, value in given.items() if value is not None}, "with a run, which has its own"
            )
            run = read_finished(folder)
            end = run.first + len(run.results)
            if not 0 <= run.first < end <= len(everything):
                raise InputError(f"the run is about images {run.first} to {end - 1}", got=f"{len(everything)} images")
            numbers = None if images is None else parse_images(images, end)
            of_run = everything[run.first : end], labels[run.first : end]
            written = export_run(
                folder, network, *of_run, out, numbers=numbers, method=method, timeout=timeout, progress=progress
            )
        else:
            if images is None:
                raise InputError("--images is missing", do="say which images to write, e.g. --images 0,3")
            numbers = parse_images(images, len(everything))
            written = export_vnnlib(
                network,
                everything[numbers],
                labels[numbers],
                parse(choose_transform(transform, model), padding),
                out,
                splits=parse_splits(splits) or 1,
                numbers=numbers,
                method=method or "hull",
                timeout=timeout,
                progress=progress,
            )
    if not quiet:
        typer.echo(sentence(written))


def sentence(written: VnnlibFolder) -> str:
    """What lies where."""
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
        if first > last or last >= count or len(numbers) + last - first >= MOST_IMAGES:
            raise InputError(f"--images takes numbers from 0 to {count - 1}", got=text, do="write e.g. 0,3,10-19")
        numbers += range(first, last + 1)
    if len(set(numbers)) != len(numbers):
        raise InputError("--images names an image twice", got=text)
    return numbers


def _results(folder: Path | None, csv: Path | None, jsonl: Path | None, tolerance: str | None) -> None:
    if folder is None:
        raise InputError("results are those of a run", do="name the folder that certify --out wrote")
    if csv is None and jsonl is None:
        raise InputError("--tolerance goes with --csv or --jsonl", got=f"--tolerance {tolerance}")
    for path in (csv, jsonl):
        check_writable(path)
    rows = result_rows(folder, tolerance)
    if csv is not None:
        write_atomically(csv, as_csv(rows))
    if jsonl is not None:
        write_atomically(jsonl, as_jsonl(rows))


def _unused(given: dict[str, object], why: str) -> None:
    if given:
        name, value = next(iter(given.items()))
        raise InputError(f"{name} has no meaning {why}", got=f"{name} {value}", do="leave it out")
