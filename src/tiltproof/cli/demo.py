"""``tiltproof demo``: certify bundled digits or road frames with a bundled model; write figures and a report."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import live_progress
from tiltproof.cli.inputs import make_folder, write_figure
from tiltproof.cli.messages import tell
from tiltproof.cli.options import choice, option
from tiltproof.cli.tables import print_curve, print_ranges, print_summary
from tiltproof.errors import InputError
from tiltproof.verify.options import RunFolder
from tiltproof.verify.results import Verdict

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tiltproof.transforms import Transform

MODEL, DATA = "mnist-r30", "mnist-sample"
BOXES, SAMPLES = 60, 961
DETAILS = 40
STEERING_MODEL, STEERING_DATA = "driving-r2-narrow", "driving-sample"
DRAWN = 6
"""Frames in the figure of steering angles."""
TASKS = ("digits", "driving")
EPILOG = options.epilog("tiltproof demo", "tiltproof demo --task driving --out figures")


def command(
    task: Annotated[
        str, choice("digits: a classifier (default); driving: steering angles.", options.PROBLEM, *TASKS)
    ] = "digits",
    out: Annotated[Path, option("Folder for figures, run and report.", options.RESULTS, "FOLDER")] = Path(
        "tiltproof-demo"
    ),
) -> None:
    """Certify what is bundled, and write a report.

    100 digits for every rotation of up to 30 degrees, or the steering angles of 24
    road frames for every roll of the camera of up to 2 degrees. Takes less than a
    minute on a CPU and downloads nothing.
    """
    if task not in TASKS:
        raise InputError("unknown demo", got=task, do=f"use one of {', '.join(TASKS)}")
    begin = time.perf_counter()
    make_folder(out)
    if task == "driving":  # noqa: SIM108 - one call a line: the tests name live displays by their lines
        report = _certify_steering(out)
    else:
        report = _certify_digits(out)
    typer.echo(f"done in {time.perf_counter() - begin:.1f} s")
    typer.echo(f"report, for any browser: {report}")


def _certify_steering(out: Path) -> Path:
    """The angles that a steering network may give while the camera rolls: figure and report."""
    from tiltproof import data, models
    from tiltproof.reports import Steering, steering_plot
    from tiltproof.reports import report as write_report
    from tiltproof.reports.page import REPORT
    from tiltproof.transforms import Rotation
    from tiltproof.verify.api import certify_range

    whole_range = Rotation(2)
    model = models.load(STEERING_MODEL)
    frames, angles = data.load(STEERING_DATA)
    tell(
        f"Proving steering angles of {len(frames)} road frames of {STEERING_DATA} with {STEERING_MODEL} for {whole_range}: "
        "every roll of the camera from -2 to 2 degrees"
    )
    with live_progress(len(frames)) as progress:
        certificate = certify_range(
            *(model, frames, angles, whole_range),
            progress=progress,
            run=RunFolder(out / "run", overwrite=True, notes={"model": STEERING_MODEL, "data": STEERING_DATA}),
        )
    print_ranges(certificate.summary())
    widest = max(certificate.results, key=lambda result: result.upper[0] - result.lower[0])
    low, high = (math.degrees(end) for end in (widest.lower[0], widest.upper[0]))
    tell(f"widest range: frame {widest.image}, from {low:.2f} to {high:.2f} degrees of the steering wheel")

    drawn = range(0, len(frames), math.ceil(len(frames) / DRAWN))
    needles = [
        Steering(result.prediction[0], result.lower[0], result.upper[0], float(angles[k]))
        for k, result in ((k, certificate.results[k]) for k in drawn)
    ]
    figure = steering_plot(frames[list(drawn)].numpy(), needles, f"Steering angles proved for {whole_range}")
    write_figure(out / "steering.png", figure)
    tell(f"steering angles and their proved ranges: {out / 'steering.png'}")
    return write_report(out / "run", model, frames, angles, out=out / REPORT, details=DETAILS)


def _certify_digits(out: Path) -> Path:
    """Digits, the margin of one of them over all angles, and their report."""
    from tiltproof import data, models
    from tiltproof.pixels.api import bound_pixels
    from tiltproof.reports import bounds_plot, margin_plot
    from tiltproof.reports import report as write_report
    from tiltproof.reports.page import REPORT
    from tiltproof.runs.curve import certified_curve, write_curve
    from tiltproof.transforms import Rotation
    from tiltproof.verify.api import certify

    whole_range, small_box = Rotation(30), Rotation(10, 11)
    model = models.load(MODEL)
    images, labels = data.load(DATA)
    tell(
        f"Certifying {len(images)} digits of {DATA} with {MODEL} for {whole_range}: every angle from -30 to 30 degrees"
    )
    with live_progress(len(images)) as progress:
        certificate = certify(
            *(model, images, labels, whole_range),
            progress=progress,
            run=RunFolder(out / "run", overwrite=True, notes={"model": MODEL, "data": DATA}),
        )
        curve_began = time.perf_counter()
        points = certified_curve(model, images, labels, whole_range, certificate, progress=progress)
    write_curve(out / "run", points, curve_began)
    print_summary(certificate.summary())
    print_curve(points)
    shown = next((k for k, verdict in enumerate(certificate.verdicts) if verdict is Verdict.CERTIFIED), 0)
    image, label = images[shown : shown + 1], labels[shown : shown + 1]
    subject = f"digit {shown} (label {int(label)})"

    form = bound_pixels(image, small_box)
    title = f"Pixel bounds of {subject} over {small_box}: every angle from 10 to 11 degrees at once"
    figure = bounds_plot(image[0].numpy(), form.lower[0].numpy(), form.upper[0].numpy(), title)
    write_figure(out / "pixel-bounds.png", figure)

    boxes = proved_margins(model, image, label, whole_range, BOXES)
    angles, margins = sampled_margins(model, image, label, whole_range, SAMPLES)
    title = f"Margin of {subject} over the angle: {BOXES} boxes of {60 / BOXES:g} degrees"
    write_figure(out / "margin.png", margin_plot(angles, margins, boxes, title, "rotation (degrees)"))

    typer.echo(f"pixel bounds: {out / 'pixel-bounds.png'}")
    typer.echo(f"margin over the angle: {out / 'margin.png'}")
    return write_report(out / "run", model, images, labels, out=out / REPORT, details=DETAILS)


def proved_margins(
    model: nn.Module, image: Tensor, label: Tensor, transform: Transform, count: int
) -> list[tuple[float, float, float]]:
    """Lower bounds of the margin on equal boxes of a one-parameter range: (box low, box high, bound)."""
    import torch

    from tiltproof.network import bound_network
    from tiltproof.pixels.api import bound_pixels

    edges = torch.linspace(transform.low[0], transform.high[0], count + 1, dtype=torch.float64)
    low, high = edges[:-1, None], edges[1:, None]
    form = bound_pixels(image.expand(count, -1, -1, -1), transform, low=low, high=high)
    with torch.no_grad():
        margins = bound_network(model, form, label.expand(count)).lower
    others = margins.scatter(1, label.expand(count)[:, None], torch.inf).amin(1)
    return list(zip(low[:, 0].tolist(), high[:, 0].tolist(), others.tolist(), strict=True))


def sampled_margins(
    model: nn.Module, image: Tensor, label: Tensor, transform: Transform, count: int
) -> tuple[list[float], list[float]]:
    """The margin f_label - max f_other at evenly spaced parameters of a one-parameter range."""
    import torch

    from tiltproof.verify.attack import margin_of

    parameters = torch.linspace(transform.low[0], transform.high[0], count)
    with torch.no_grad():
        scores = model(transform.apply(image.expand(count, -1, -1, -1), parameters[:, None]))
    return parameters.tolist(), margin_of(scores, label.expand(count)).tolist()
