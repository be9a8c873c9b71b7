"""``tiltproof export``: properties for other verifiers (VNN-LIB and ONNX), and a run's results as CSV or JSON lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor, nn

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.inputs import (
    STDOUT,
    check_text_file,
    images_of_run,
    model_and_transform,
    parse_splits,
    without_none,
    write_atomically,
)
from tiltproof.cli.options import IMAGES, RESULTS
from tiltproof.data import load as load_data
from tiltproof.errors import InputError
from tiltproof.export import VnnlibFolder, as_csv, as_jsonl, export_run, export_vnnlib, result_rows
from tiltproof.export.results import open_to_confirm
from tiltproof.export.vnnlib import TIMEOUT
from tiltproof.models import load as load_model
from tiltproof.runs.reader import read_finished

EXAMPLES = options.examples(
    "tiltproof export runs/r30 --csv r30.csv --jsonl r30.jsonl",
    "tiltproof export runs/r30 --csv r30.csv --model mnist-r30 --data mnist-sample",
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
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write the run's results as a table; - is standard output."),
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(
            "--jsonl", metavar="FILE", help="Write the run's results as JSON, a row a line; - is standard output."
        ),
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
    counterexample) or unknown. A misclassified image is unknown; with --model and
    --data, if the range holds the untransformed image, its answer is bounded in
    exact arithmetic, and it is unsafe if that is wrong.

    --vnnlib writes for each image and box of parameters one property: pixels
    between their bounds, and another class at least as high as the label's.
    Without DIR the boxes are --splits equal parts of the range; with DIR they
    are those that the run proved. A tool that answers unsat for all boxes of
    an image has proved it. sat means that a picture inside the pixel bounds
    breaks it, not that a transformed one does: use more splits.

    Exit codes: 0 written, 2 bad input, 70 internal error, 130 interrupted,
    143 terminated.
    """
    results = csv is not None or jsonl is not None or tolerance is not None
    if not vnnlib and csv is None and jsonl is None:
        raise InputError("nothing to write", do="give --vnnlib, --csv FILE or --jsonl FILE")
    if results:
        _check_results(folder, csv, jsonl, tolerance)
    if not vnnlib:
        given = {"--out": out, "--images": images, "--splits": splits, "--method": method, "--transform": transform}
        _unused(given, "without --vnnlib")
    elif model is None or data is None or out is None:
        raise InputError(
            "--vnnlib needs to know which network, which data and where to write", do="give --model, --data and --out"
        )
    if (model is None) != (data is None):
        raise InputError(
            "misclassified images are confirmed with --model and --data", got="one of them", do="give both"
        )
    if folder is not None:
        _unused({"--splits": splits, "--transform": transform, "--padding": padding}, "with a run, which has its own")
    quiet = quiet or STDOUT in (csv, jsonl)
    network, chosen = None, None
    if model is not None and folder is None:
        network, chosen = model_and_transform(model, arch, allow_pickle, transform, padding)
    elif model is not None:
        network = load_model(model, arch, allow_pickle)
    everything = None if data is None else load_data(data, data_root)
    if results and folder is not None:
        _results(folder, csv, jsonl, tolerance, network, everything, quiet)
    if not vnnlib:
        return
    assert network is not None
    assert everything is not None
    assert out is not None
    common: dict[str, Any] = {"timeout": timeout}
    with live_count(quiet, "writing", "properties") as progress, kept_after_interruption(lambda: "nothing was kept"):
        common["progress"] = progress
        if folder is not None:
            run = read_finished(folder)
            numbers = None if images is None else parse_images(images, run.first + len(run.results))
            of_run = images_of_run(run, *everything)
            written = export_run(folder, network, *of_run, out, numbers=numbers, method=method, **common)
        else:
            if images is None:
                raise InputError("--images is missing", do="say which images to write, e.g. --images 0,3")
            assert chosen is not None
            pictures, labels = everything
            numbers = parse_images(images, len(pictures))
            common |= {"splits": parse_splits(splits) or 1, "numbers": numbers, "method": method or "hull"}
            written = export_vnnlib(network, pictures[numbers], labels[numbers], chosen, out, **common)
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


def _check_results(folder: Path | None, csv: Path | None, jsonl: Path | None, tolerance: str | None) -> None:
    if folder is None:
        raise InputError("results are those of a run", do="name the folder that certify --out wrote")
    if csv is None and jsonl is None:
        raise InputError("--tolerance goes with --csv or --jsonl", got=f"--tolerance {tolerance}")
    if csv == jsonl == STDOUT:
        raise InputError("only one of --csv and --jsonl can go to standard output", got="--csv - --jsonl -")
    for path in (csv, jsonl):
        check_text_file(path)


def _results(
    folder: Path,
    csv: Path | None,
    jsonl: Path | None,
    tolerance: str | None,
    network: nn.Module | None,
    everything: tuple[Tensor, Tensor] | None,
    quiet: bool,
) -> None:
    run = read_finished(folder)
    images = None if everything is None or run.regression else images_of_run(run, *everything)[0]
    rows = result_rows(folder, tolerance, model=None if images is None else network, images=images)
    if csv is not None:
        write_atomically(csv, as_csv(rows))
    if jsonl is not None:
        write_atomically(jsonl, as_jsonl(rows))
    unconfirmed = len(open_to_confirm(run)) if network is None else 0
    if unconfirmed and not quiet:
        which = "1 misclassified image is" if unconfirmed == 1 else f"{unconfirmed:,} misclassified images are"
        typer.echo(
            f"notice: {which} exported as unknown: give --model and --data to confirm that the answer is wrong",
            err=True,
        )


def _unused(options: Mapping[str, object], why: str) -> None:
    for name, value in without_none(**options).items():
        raise InputError(f"{name} has no meaning {why}", got=f"{name} {value}", do="leave it out")
