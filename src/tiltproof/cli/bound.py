"""``tiltproof bound``: draw the pixel bounds of one image over the range of a transformation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.inputs import DataChoice, check_writable, write_figure
from tiltproof.cli.options import option
from tiltproof.errors import InputError

EPILOG = options.epilog(
    'tiltproof bound --data mnist-sample --transform "R(10:11)" --out seven.png',
    'tiltproof bound --data cifar10-sample --transform "R(1), C(2)" --out b.png',
)


def command(
    data: options.Data,
    transform: options.TransformText,
    out: Annotated[Path, option("The figure to write.", options.RESULTS, "FILE.png")],
    index: Annotated[int, option("Index of the image.", options.PROBLEM, "N")] = 0,
    method: options.Method = "affine",
    padding: options.Padding = None,
    interpolation: options.Interpolation = None,
    data_root: options.DataRoot = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    rgb: options.Rgb = False,
) -> None:
    """Draw the pixel bounds of an image over a range.

    The figure shows the image, and the lower bound, upper bound and width of each
    pixel. The bounds hold for the whole range, taken as one box: a small range such as
    "R(10:11)" shows what a single step of a proof works with.
    """
    from tiltproof.pixels.api import bound_pixels
    from tiltproof.reports import bounds_plot
    from tiltproof.transforms import parse

    chosen = parse(transform, padding, interpolation)
    if out.suffix.lower() != ".png":
        raise InputError("the figure is written as PNG", got=out, do="end the file name in .png")
    check_writable(out)
    source = DataChoice(data, data_root, resize, crop, rgb).open("any")
    if not 0 <= index < len(source):
        raise InputError(f"{data} has images 0 to {len(source) - 1}", got=f"--index {index}")
    image, label = source.images([index])[0], source.labels[index]
    with live_count(False, "bounding", "pixels"), kept_after_interruption(lambda: "nothing was written"):
        form = bound_pixels(image[None], chosen, method=method)
    known = f" (label {int(label)})" if label.ndim == 0 else ""
    title = f"Image {index} of {data}{known} under {chosen}, method {method}"
    lower, upper = form.lower[0].numpy(), form.upper[0].numpy()
    write_figure(out, bounds_plot(image.numpy(), lower, upper, title))
    typer.echo(f"{out}: widest pixel {(upper - lower).max():.4f}")
