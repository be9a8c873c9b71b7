"""``tiltproof tune``: find the parameter box whose pixel bounds have a given width."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.inputs import STDOUT, check_text_file, write_json
from tiltproof.cli.options import EFFORT, PROBLEM, RARE, choice, flag, option
from tiltproof.cli.tables import print_rows
from tiltproof.errors import InputError
from tiltproof.names import TUNE_SAMPLES

if TYPE_CHECKING:
    from torch import Tensor

    from tiltproof.training import Widths
    from tiltproof.transforms import Transform

EPILOG = options.epilog(
    'tiltproof tune --data mnist-sample --transform "R(30)" --epsilon 0.2',
    'tiltproof tune --data mnist-sample --transform "G(30)" --nu 2 --method hull',
)
COLUMNS = ("fgv", "hull", "affine")
WITH_TRAINING_IMAGES = ("mnist", "cifar10", "tinyimagenet", "driving")
DEFAULT_IMAGES = 1000


def command(
    data: options.Data,
    transform: options.TransformText,
    epsilon: Annotated[
        float | None,
        option("The mean widest pixel wanted: 0.2 to 0.4 for MNIST, 4/255 to 8/255 for CIFAR-10.", PROBLEM, "WIDTH"),
    ] = None,
    nu: Annotated[
        str | None,
        option("Show the widths for these half widths, one per parameter, instead of searching.", PROBLEM, "X,..."),
    ] = None,
    start: Annotated[
        str | None, option("Proportions of nu (default: each parameter widens pixels equally).", PROBLEM, "X,...")
    ] = None,
    method: Annotated[
        str,
        choice(
            "Pixel bounds to bring to epsilon; fgv, the paper's, has none for G, S, H, Bl, Mb.",
            EFFORT,
            *("fgv", "hull", "affine"),
        ),
    ] = "fgv",
    images: Annotated[int | None, option(f"Random images [default: {DEFAULT_IMAGES}]", EFFORT, "N")] = None,
    everything: Annotated[bool, flag("All images, as in the paper: minutes.", EFFORT, "--all")] = False,
    samples: Annotated[int, option("Boxes, at random parameters.", EFFORT, "N")] = TUNE_SAMPLES,
    device: options.Device = "auto",
    json_file: options.JsonFile = None,
    padding: options.Padding = None,
    interpolation: options.Interpolation = None,
    data_root: options.DataRoot = None,
    seed: Annotated[int, option("Seed of boxes and images.", RARE, "N")] = 0,
) -> None:
    """Find box sizes for training from the width of pixel bounds.

    Certified training draws theta from the whole range and bounds the loss on the
    box theta +- nu. The paper's rule: choose the half widths nu such that the widest pixel of an
    image is, on average, as wide as an epsilon customary for the data set. mnist
    and cifar10 mean their training sets here.
    """
    from tiltproof.device import choose_device
    from tiltproof.pixels.api import check_method
    from tiltproof.training import pixel_widths, tune
    from tiltproof.transforms import parse

    chosen, place = parse(transform, padding, interpolation), choose_device(device)
    if nu is None and epsilon is None:
        raise InputError("nothing to tune", do="give --epsilon to search for nu, or --nu to see the widths of a box")
    if nu is not None and start is not None:
        raise InputError(
            "--start gives proportions for a search, and --nu leaves nothing to search", do="give one of them"
        )
    check_method(method, chosen)
    given, proportions = parse_numbers("--nu", nu), parse_numbers("--start", start)
    check_text_file(json_file)
    chosen_images = choose_images(data, data_root, images, everything, seed).to(place)
    begin = time.perf_counter()
    columns = [name for name in COLUMNS if _has_bounds(name, chosen)]
    silent, about = json_file == STDOUT, (samples, seed)
    with kept_after_interruption(lambda: "nothing was kept"):
        if given is None:
            assert epsilon is not None
            with _counted(silent, "finding nu", None) as report:
                given = tune(chosen_images, chosen, epsilon, proportions, method, *about, report)
        with _counted(silent, "measuring", samples * len(columns)) as report:
            widths = {name: pixel_widths(chosen_images, chosen, given, name, *about, report) for name in columns}
    seconds = time.perf_counter() - begin
    if json_file is not None:
        content = {
            "data": data,
            "transform": str(chosen),
            "images": len(chosen_images),
            "samples": samples,
            "seed": seed,
        }
        content |= {"method": method, "epsilon": epsilon, "nu": list(given), "mu": widths[method].maximum}
        content |= {"splits": splits_for(chosen, given), "seconds": seconds}
        write_json(json_file, content | {"widths": {name: asdict(row) for name, row in widths.items()}})
    if json_file == STDOUT:
        return
    _print(chosen, given, widths, method, epsilon)
    typer.echo(f"{len(chosen_images):,} images, {samples} boxes, {seconds:.1f} s")


@contextmanager
def _counted(quiet: bool, doing: str, total: int | None) -> Iterator[Callable[[], None] | None]:
    """A callback for each box that has been measured; ``total`` is not known of a search."""
    with live_count(quiet, doing, "boxes") as update:
        done = itertools.count(1)
        yield None if update is None else lambda: update(next(done), total)


def parse_numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Numbers separated by commas.

    >>> parse_numbers("--nu", "0.5, 0.125")
    (0.5, 0.125)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{option} takes numbers", got=text, do="write 0.25, or one number per parameter: 0.5,0.125"
        ) from None


def _has_bounds(method: str, transform: Transform) -> bool:
    """Whether a method has bounds for this transformation; fgv has none for some."""
    from tiltproof.pixels.api import check_method

    try:
        check_method(method, transform)
    except InputError:
        return False
    return True


def choose_images(data: str, root: Path | None, count: int | None, everything: bool, seed: int) -> Tensor:
    """Random images, or all, of the training set; of a sample or folder if there is no training set."""
    import torch

    from tiltproof.data.loading import open_data

    if everything and count is not None:
        raise InputError("--images and --all exclude each other", got=f"--images {count} --all", do="give one")
    if count is not None and count < 1:
        raise InputError("--images must be at least 1", got=count)
    source = open_data(data, root, "train" if data in WITH_TRAINING_IMAGES else "test", task="any")
    count = len(source) if everything else min(count or DEFAULT_IMAGES, len(source))
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    return source.images(order[:count].sort().values.tolist())


def splits_for(transform: Transform, nu: tuple[float, ...]) -> list[int]:
    """The paper's splits for certification: boxes half as large as those of training; none of an empty box."""
    ranges = [high - low for low, high in zip(transform.low, transform.high, strict=True)]
    return [max(1, round(size / half)) if half else 1 for size, half in zip(ranges, nu, strict=True)]


def _print(
    transform: Transform, nu: tuple[float, ...], widths: dict[str, Widths], method: str, epsilon: float | None
) -> None:
    mu = widths[method].maximum
    typer.echo(f"{transform}: pixel widths over boxes theta +- nu, method {method}")
    numbers = ", ".join(f"{half:.6g}" for half in nu)
    typer.echo(f"nu = [{numbers}]")
    compared = ""
    if epsilon is not None:
        percent = 100 * (mu / epsilon - 1)
        compared = f", {abs(percent):.1f} % {'above' if percent > 0 else 'below'} epsilon {epsilon:g}"
    typer.echo(f"mu = {mu:.4g} +- {widths[method].maximum_error:.2g}{compared}")
    rows = [
        ("widest pixel of an image", *(f"{widths[name].maximum:.4g}" for name in widths)),
        ("  standard error", *(f"{widths[name].maximum_error:.2g}" for name in widths)),
        ("all pixels of an image", *(f"{widths[name].average:.4g}" for name in widths)),
        ("  standard error", *(f"{widths[name].average_error:.2g}" for name in widths)),
        ("widest remainder", *(f"{widths[name].remainder_maximum:.4g}" for name in widths)),
        ("mean remainder", *(f"{widths[name].remainder_average:.4g}" for name in widths)),
    ]
    print_rows({"mean over images": "left"} | dict.fromkeys(widths, "right"), rows)
