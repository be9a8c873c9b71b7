"""``tiltproof demo``: certify the bundled digits with a bundled model; write two figures and a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import live_progress
from tiltproof.cli.inputs import make_folder, write_figure
from tiltproof.cli.messages import tell
from tiltproof.cli.options import option
from tiltproof.cli.tables import print_curve, print_summary
from tiltproof.verify.options import RunFolder
from tiltproof.verify.results import Verdict

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tiltproof.transforms import Transform

MODEL, DATA = "mnist-r30", "mnist-sample"
BOXES, SAMPLES = 60, 961
DETAILS = 40
EPILOG = options.epilog("tiltproof demo", "tiltproof demo --out figures")


def command(
    out: Annotated[Path, option("Folder for figures, run and report.", options.RESULTS, "FOLDER")] = Path(
        "tiltproof-demo"
    ),
) -> None:
    """Certify 100 digits for every rotation of up to 30 degrees.

    Takes less than a minute on a CPU and downloads nothing.
    """
    from tiltproof import data, models
    from tiltproof.pixels.api import bound_pixels
    from tiltproof.reports import bounds_plot, margin_plot
    from tiltproof.reports import report as write_report
    from tiltproof.reports.page import REPORT
    from tiltproof.runs.curve import certified_curve, write_curve
    from tiltproof.transforms import Rotation
    from tiltproof.verify.api import certify

    whole_range, small_box = Rotation(30), Rotation(10, 11)
    begin = time.perf_counter()
    make_folder(out)
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

    report = write_report(out / "run", model, images, labels, out=out / REPORT, details=DETAILS)

    typer.echo(f"pixel bounds: {out / 'pixel-bounds.png'}")
    typer.echo(f"margin over the angle: {out / 'margin.png'}")
    typer.echo(f"done in {time.perf_counter() - begin:.1f} s")
    typer.echo(f"report, for any browser: {report}")


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
