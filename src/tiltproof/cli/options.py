"""The options that several commands share, each declared once with the help that teaches it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from tiltproof.data import DATA_NAMES
from tiltproof.models import ARCHITECTURES, models

IMAGES, SEARCH, RESULTS = "Which images", "How hard to look", "Where the results go"


def examples(*lines: str) -> str:
    """An epilog of example calls, one a line."""
    return "\n\n".join(["[bold]Examples[/bold]", *(line.replace("[", r"\[") for line in lines)])


def beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """What a shell may complete to; with nothing to offer it completes file names."""
    return [name for name in names if name.startswith(incomplete)]


def _complete_model(incomplete: str) -> list[str]:
    return beginning((card.name for card in models()), incomplete)


def _complete_data(incomplete: str) -> list[str]:
    return beginning(DATA_NAMES, incomplete)


def _complete_architecture(incomplete: str) -> list[str]:
    return beginning(ARCHITECTURES, incomplete)


_model = typer.Option(
    metavar="NAME|FILE|FUNCTION",
    autocompletion=_complete_model,
    help="A bundled model's name (see [bold]tiltproof models[/bold]), a .safetensors file together with --arch or "
    "beside its card (as [bold]tiltproof train[/bold] writes it), an .onnx file (needs tiltproof\\[onnx]), or "
    "package.module:function, called without arguments; the current directory is importable.",
)
Model = Annotated[str, _model]
OptionalModel = Annotated[str | None, _model]
Architecture = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=_complete_architecture,
        help=f"The architecture of a .safetensors file: {', '.join(ARCHITECTURES)}.",
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Let --model also be a state dict of torch.save (.pt, .pth, ...); no code in it is run.",
    ),
]
_data = typer.Option(
    metavar="NAME|FOLDER",
    autocompletion=_complete_data,
    help="mnist, cifar10, tinyimagenet, driving (test sets; driving is for regression), mnist-sample, cifar10-sample "
    "(100 bundled images of each), or a folder of images with a labels.csv (first line: filename,label).",
)
Data = Annotated[str, _data]
OptionalData = Annotated[str | None, _data]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The folder that holds mnist/, cifar10/, tinyimagenet/ or driving/ (default: $TILTPROOF_DATA; mnist and cifar10 are "
        "downloaded where neither is given).",
    ),
]
TRANSFORM_HELP = (
    'What may happen to an image, in order: "R(30)" is a rotation by -30 to 30 degrees, "R(-10:25)" is not '
    "symmetric. Tu, Tv: translation (pixels), Sc: scaling (percent), Sh: shearing (percent), C: contrast "
    "(percent), B: brightness (of 1). Scu, Scv: scaling of width, height alone; Shv: vertical shearing (percent). "
    "Yaw(5@300), Pitch(5@300): a camera with a focal length of 300 pixels turns by -5 to 5 degrees; Roll (degrees). "
    "G: gamma (percent of the exponent), S: saturation (percent), H: hue (degrees), "
    'Bl: Gaussian blur (standard deviation, pixels; "Bl(2)" is 0 to 2), Mb: motion blur (length, pixels; "Mb(5@30)" is 0 '
    "to 5 at 30 degrees)."
)
TransformText = Annotated[str, typer.Option("--transform", metavar="TEXT", help=TRANSFORM_HELP)]
OptionalTransformText = Annotated[
    str | None,
    typer.Option(
        "--transform",
        metavar="TEXT",
        help=TRANSFORM_HELP + " Default: what the model's card says it was trained for.",
    ),
]
Padding = Annotated[
    str | None, typer.Option(metavar="zeros|border|reflect", help="What lies outside the image (default: zeros).")
]
Method = Annotated[
    str,
    typer.Option(
        metavar="affine|hull|fgv",
        help="Pixel bounds as affine forms, as exact intervals, or by the paper's Algorithm 1.",
    ),
]
Semantics = Annotated[
    str,
    typer.Option(
        metavar="real|float32",
        help="Which function is certified: the network on real numbers, exactly as its weights define it, or in addition every "
        "float32 evaluation of it, in any order of summation. The transformation is the real-valued one in both.",
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that certify --out wrote.")]
Start = Annotated[int, typer.Option(help="The first image's index.", rich_help_panel=IMAGES)]
End = Annotated[int | None, typer.Option(help="The index after the last image's.", rich_help_panel=IMAGES)]
Limit = Annotated[
    int | None,
    typer.Option(help="At most this many images from --start on; not together with --end.", rich_help_panel=IMAGES),
]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute; auto takes a GPU when there is one.")
]
Samples = Annotated[
    int | None, typer.Option(help="Parameters the attack samples for each image.", rich_help_panel=SEARCH)
]
BatchSize = Annotated[
    int | None, typer.Option(help="Boxes bounded at once (default: what memory takes).", rich_help_panel=SEARCH)
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Size batches so that the process (on a GPU: its tensors) is expected to stay below this: 500MB, 2GB, 1.5GiB, or bytes. "
        "It bounds batches, not the process; the peak is reported (default: what is free).",
        rich_help_panel=SEARCH,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the attack's random parameters.", rich_help_panel=SEARCH)]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write summary and verdicts as JSON; - is standard output, and nothing else is printed there.",
        rich_help_panel=RESULTS,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no table; errors still speak.", rich_help_panel=RESULTS)
]
