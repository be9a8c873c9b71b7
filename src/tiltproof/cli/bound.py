"""``tiltproof bound``: a picture of the pixel bounds of one image over the whole range of a transformation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.inputs import check_writable, load_selection, write_picture
from tiltproof.errors import InputError
from tiltproof.pixels.api import bound_pixels
from tiltproof.reports import bounds_plot
from tiltproof.transforms import parse

EXAMPLES = options.examples(
    'tiltproof bound --data mnist-sample --index 0 --transform "R(10:11)" --out seven.png',
    'tiltproof bound --data cifar10-sample --index 1 --transform "R(1), C(2)" --method hull --out ship.png',
)


def command(
    data: options.Data,
    transform: options.TransformText,
    out: Annotated[Path, typer.Option(metavar="FILE.png", help="The picture to write.")],
    index: Annotated[int, typer.Option(help="Which image of the data.")] = 0,
    data_root: options.DataRoot = None,
    padding: options.Padding = None,
    method: options.Method = "affine",
) -> None:
    """Draw an image beside the lower bound, the upper bound and the width of its pixels over the range.

    The range is one box: choose a small one, such as "R(10:11)", to see what a
    single step of a proof looks like.
    """
    chosen = parse(transform, padding)
    if out.suffix.lower() != ".png":
        raise InputError("the picture is written as PNG", got=out, do="end the file name in .png")
    check_writable(out)
    images, labels, _ = load_selection(data, data_root, index, index + 1, None)
    form = bound_pixels(images, chosen, method=method)
    title = f"Image {index} of {data} (label {int(labels[0])}) under {chosen}, method {method}"
    lower, upper = form.lower[0].numpy(), form.upper[0].numpy()
    write_picture(out, bounds_plot(images[0].numpy(), lower, upper, title))
    typer.echo(f"{out}: widest pixel {(upper - lower).max():.4f}")
