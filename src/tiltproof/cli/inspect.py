"""``tiltproof inspect``: what a network is made of, what has no rule, how bounds grow, and what a proof may cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
from tiltproof.cli.inputs import STDOUT, DataChoice, ModelChoice, check_text_file, parse_shape, write_json
from tiltproof.cli.messages import tell
from tiltproof.cli.options import PROBLEM, option
from tiltproof.cli.tables import print_lines, print_rows
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.refusals import advised

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tiltproof.verify.inspection import Cost, Inspection, Layer, Rounding

EPILOG = options.epilog(
    "tiltproof inspect mnist-r30 --data mnist-sample",
    'tiltproof inspect net.onnx --data photos/ --transform "R(5)"',
    "tiltproof inspect package.module:function --shape 3x224x224 --json net.json",
    code_2="bad input or a refused network",
)
FILES = (".onnx", ".keras", ".h5", ".hdf5")
"""Files whose readers take the images' size."""


@options.expanded
def command(
    model: options.ModelArgument,
    data: options.OptionalData = None,
    shape: Annotated[str | None, option("Images to inspect it with, if no data.", PROBLEM, "CxHxW", "--shape")] = None,
    transform: Annotated[
        str | None, option(options.TRANSFORM_HELP + " Estimates its cost.", PROBLEM, "TEXT", "--transform")
    ] = None,
    index: Annotated[int, option("Index of the image that is bounded.", PROBLEM, "N")] = 0,
    semantics: options.Semantics = "real",
    device: options.Device = "auto",
    json_file: options.JsonFile = None,
    quiet: options.Quiet = False,
    padding: options.Padding = None,
    interpolation: options.Interpolation = None,
    files: options.Files = options.NO_FILES,
) -> None:
    """Analyze a network before a proof.

    Lists its layers and, in powers of ten, how far bounds grow from layer to
    layer; every operation without a bound rule, and what to do about each; and
    how the rounding of one untransformed image compares with its margin: where
    that alone is more, nothing can be proved, whatever the budget. With
    --transform it estimates boxes and seconds per image.
    """
    from tiltproof.device import choose_device
    from tiltproof.transforms import parse
    from tiltproof.verify.inspection import Inspection, inspect

    check_text_file(json_file)
    quiet, place = quiet or json_file == STDOUT, choose_device(device)
    chosen = None if transform is None else parse(transform, padding, interpolation)
    stated = shape if Path(model).suffix.lower() in FILES else None
    choice = ModelChoice.of(model, files)._replace(shape=stated)
    chosen_data = None if data is None else DataChoice.of(data, files)
    with kept_after_interruption(lambda: "nothing was decided"), live_count(quiet, "inspecting", "steps") as progress:
        try:
            network = choice.load(chosen_data).to(place)
            image = _image(network, chosen_data, shape, index)
            found = inspect(network, image.to(place), chosen, semantics=semantics, progress=progress)
        except UnsupportedOperation as error:
            found = Inspection.refused(error)
    if not quiet:
        (_print_inspection if found.readable else _print_refusals)(found)
    if json_file is not None:
        write_json(json_file, {"model": model} | found.record())
    if not found.readable:
        text = f"error: {model} is refused: {len(found.refusals)} uses of operations without a bound rule"
        typer.echo(text, err=True)
        raise typer.Exit(2)


def _image(network: nn.Module, data: DataChoice | None, shape: str | None, index: int) -> Tensor:
    """One image of the data, or one made up in the size that was given or that the file takes."""
    from tiltproof.step_module import StepModule
    from tiltproof.verify.inspection import images_of_shape

    if data is not None:
        source = data.open("any")
        if not 0 <= index < len(source):
            raise InputError(f"{data.name} has images 0 to {len(source) - 1}", got=f"--index {index}")
        return source.images([index])
    if shape is not None:
        return images_of_shape(parse_shape(shape))
    own = next((module.shape for module in network.modules() if isinstance(module, StepModule)), None)
    if own is None:
        raise InputError(
            "there is no image to inspect the network with", got="no data", do="add --data DATA or --shape CxHxW"
        )
    return images_of_shape(own)


def _print_refusals(found: Inspection) -> None:
    """List every use, and below the table each advice once."""
    columns = {"operation": "left", "where": "left", "why": "left"}
    rows = [
        (each.operation, each.node + (f" in {each.module}" if each.module else ""), each.why) for each in found.refusals
    ]
    print_rows(columns, rows)
    print_lines("What to do", advised(found.refusals))


def _print_inspection(found: Inspection) -> None:
    columns = {"layer": "left", "kind": "left", "shape": "left", "parameters": "right"}
    columns |= {"row sums": "right", "spectral": "right", "rounding": "right"}
    print_rows(columns, map(_row, found.layers))
    tell("row sums, spectral: growth of bounds and of the network, log10; rounding: in float64, of this image")
    tell(f"images {_size(found.shape)}; {found.parameters:,} parameters; every operation has a rule")
    if found.layout:
        typer.echo(f"read: {found.layout}")
    if found.head:
        tell(f"taken off the end: {', '.join(found.head)}; what is certified is which score is largest")
    for rounding in found.rounding:
        tell(_rounding(rounding))
    if found.cost is not None:
        tell(_cost(found.cost))


def _row(layer: Layer) -> tuple[str, ...]:
    growth = (f"{number:.1f}" for number in (layer.row_sums, layer.spectral))
    return (layer.name, layer.kind, _size(layer.shape), f"{layer.parameters:,}", *growth, f"{layer.rounding:.1e}")


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _rounding(rounding: Rounding) -> str:
    """Say whether the untransformed image could be proved."""
    back = "" if rounding.allowance == rounding.forward else f", {rounding.allowance:.2g} after a backward pass"
    text = f"{rounding.precision}: rounding {rounding.forward:.2g}{back}, against a margin of {rounding.margin:.2g}"
    return text if rounding.provable else f"{text}: nothing can be proved in it, however small the box"


def _cost(cost: Cost) -> str:
    if cost.boxes is None:
        return f"{cost.transform}: no box that was tried is small enough; expect unknown"
    return f"{cost.transform}: about {cost.boxes:,} boxes and {cost.seconds:.2g} s per image"
