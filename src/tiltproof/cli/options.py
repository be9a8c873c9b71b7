"""The options that several commands share, each declared once with its help, and how ``--help`` shows them.

No module of commands imports torch, which takes seconds, before a command runs: ``--help``, ``--version`` and completion are immediate.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand

from tiltproof.models.cards import models
from tiltproof.names import ARCHITECTURE_NAMES, CLUSTERS, DATA_NAMES, INTERPOLATIONS, NORMALIZATIONS, PADDINGS
from tiltproof.startup import finish_start

PROBLEM, EFFORT, MACHINE, RESULTS = "The problem", "How hard to try", "Where it runs", "Results and evidence"
RARE = "Rarely used"
"""The last heading of every help page."""
FILES = "Reading files and preparing images"
FEW, EXPLAINS_FILES = 4, "inspect"
"""The command whose help explains those options; that of others only names them, if they are many."""


class Command(TyperCommand):
    """A command whose help is plain text: options under headings, the rarely used ones last."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Torch is imported first: until then, Ctrl-C ends the program at once and with one line."""
        importlib.import_module("torch")
        finish_start()
        return super().invoke(ctx)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        arguments = [str(parameter.metavar) for parameter in self.params if parameter.param_type_name == "argument"]
        formatter.write_usage(f"tiltproof {self.name}", " ".join([*arguments, "[OPTIONS]"]))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.params:
            groups.setdefault(getattr(parameter, "rich_help_panel", RARE), []).append(_help_row(parameter))
        files = groups.get(FILES, [])
        if len(files) > FEW and self.name != EXPLAINS_FILES:
            groups[FILES] = []
        width = max(len(name) for rows in groups.values() for name, _ in rows)
        for heading in sorted(groups, key=lambda heading: (heading == RARE, heading == FILES)):
            rows = [(typer.style(f"{name:{width}}", fg="cyan"), text) for name, text in groups[heading]]
            there = "" if rows else f" (see tiltproof {EXPLAINS_FILES} --help)"
            with formatter.section(typer.style(heading + there, bold=True)):
                if rows:
                    formatter.write_dl(rows)
                else:
                    formatter.write_text(", ".join(name.split()[0] for name, _ in files))


def _help_row(parameter: Any) -> tuple[str, str]:
    """The name of an option or argument with its value, and its help with the default."""
    argument = parameter.param_type_name == "argument"
    name = parameter.metavar if argument else ", ".join(parameter.opts)
    if not argument and not parameter.is_flag:
        name += f" {parameter.metavar}"
    if parameter.required:
        return name, f"{parameter.help} [required]"
    shown = parameter.default not in (None, False) and "default" not in parameter.help
    return name, f"{parameter.help} [default: {parameter.default}]" if shown else parameter.help


def epilog(*commands: str, code_1: str = "", code_2: str = "bad input") -> str:
    """Example calls, printed as they are, and the exit codes."""
    meaning = f"1 {code_1}, " if code_1 else ""
    examples = "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])
    return (
        f"{examples}\n\nExit codes: 0 done, {meaning}2 {code_2}, 70 internal error (never a verdict), 130 Ctrl-C, "
        "143 SIGTERM."
    )


Names = Callable[[], Iterable[str]]


def _completion(names: Names | None) -> Callable[[str], list[str]] | None:
    """What a shell completes to; with nothing to offer it completes file names."""
    if names is None:
        return None
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def argument(text: str, metavar: str, names: Names | None = None) -> Any:
    return typer.Argument(metavar=metavar, help=text, rich_help_panel=PROBLEM, autocompletion=_completion(names))


def option(text: str, group: str, metavar: str, *flags: str, names: Names | None = None) -> Any:
    """An option with a value, one of ``names()`` or another."""
    return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=group, autocompletion=_completion(names))


def flag(text: str, group: str, *flags: str) -> Any:
    """An option without a value."""
    return typer.Option(*flags, help=text, rich_help_panel=group)


def choice(text: str, group: str, *values: str) -> Any:
    """An option with a few possible values."""
    return option(text, group, "NAME", names=lambda: values)


MODEL_HELP = "Bundled model, .safetensors, .onnx, .keras, .h5 or .tflite file, or package.module:function."
_model_names: Names = lambda: (card.name for card in models())  # noqa: E731
_model = option(MODEL_HELP, PROBLEM, "MODEL", names=_model_names)
_data = option(
    "mnist[-sample], cifar10[-sample], driving[-sample], tinyimagenet, gtsrb, or a folder (labels.csv or per class).",
    *(PROBLEM, "DATA"),
    names=lambda: DATA_NAMES,
)
Model = Annotated[str, _model]
ModelArgument = Annotated[str, argument(MODEL_HELP, "MODEL", _model_names)]
OptionalModel = Annotated[str | None, _model]
Data = Annotated[str, _data]
OptionalData = Annotated[str | None, _data]
TRANSFORM_HELP = 'E.g. "R(30), Tu(-2:1)"; see tiltproof --help.'
LETTERS_HELP = (
    'A transformation is a list of letters with ranges: "R(30)" is -30 to 30, "R(-10:25)" is not symmetric. R: rotation '
    "(degrees). Tu, Tv: translation (pixels). Sc, Scu, Scv: scaling (percent). Sh, Shv: shearing (percent). C: contrast "
    "(percent). B: brightness (of 1). G: gamma (percent). S: saturation (percent). H: hue (degrees). Bl: Gaussian blur "
    "(pixels). Mb(5@30): motion blur of 0 to 5 pixels at 30 degrees. Yaw(5@300), Pitch(5@300), Roll: camera rotation "
    "(degrees) at a focal length of 300 pixels. Tx(0.1@300), Ty, Tz: moves of the camera to the right, up and forwards (in "
    "distances of a plane, by default the ground below). Ld(5), Ld(5@300): lens distortion (percent at the corner, or at 300 "
    'pixels from the center). "R(5); interpolation=nearest", or bicubic: instead of bilinear. '
    "Linf(0.01): any noise of up to 0.01 in each pixel, last (of 1)."
)
TransformText = Annotated[str, option(TRANSFORM_HELP, PROBLEM, "TEXT", "--transform")]
OptionalTransformText = Annotated[str | None, option(TRANSFORM_HELP + " [its own]", PROBLEM, "TEXT", "--transform")]
Start = Annotated[int, option("Index of the first image.", PROBLEM, "N")]
End = Annotated[int | None, option("Index after the last image.", RARE, "N")]
Limit = Annotated[int | None, option("At most this many images.", PROBLEM, "N")]
Semantics = Annotated[str, choice("real (default) or float32 (every evaluation in it).", PROBLEM, "real", "float32")]
AnySemantics = Annotated[
    str, choice("real (default), float32, or uint8 (8 bits, any program).", PROBLEM, "real", "float32", "uint8")
]
RunFolder = Annotated[Path, argument("The folder that certify --out wrote.", "DIR")]
Method = Annotated[str, choice("Pixel bounds: affine, hull or fgv.", EFFORT, "affine", "hull", "fgv")]
Samples = Annotated[int | None, option("Parameters the attack samples per image.", EFFORT, "N")]
SPLITS_HELP = "grid of N equal boxes, or per parameter: 10,20."
Device = Annotated[str, choice("auto, cpu or cuda.", MACHINE, "auto", "cpu", "cuda")]
Threads = Annotated[int | None, option("CPU threads [OMP_NUM_THREADS, else one per core].", MACHINE, "N")]
MemoryLimit = Annotated[str | None, option("Size batches for this much, e.g. 2GB; no hard limit.", MACHINE, "SIZE")]
JsonFile = Annotated[Path | None, option("Write all results as JSON; - is standard output.", RESULTS, "FILE", "--json")]
Quiet = Annotated[bool, flag("Print errors and notices only.", RESULTS, "--quiet", "-q")]
Padding = Annotated[
    str | None,
    choice(
        f"Outside the image: {PADDINGS[0]} (default), {', '.join(PADDINGS[1:-1])} or {PADDINGS[-1]}.", RARE, *PADDINGS
    ),
]
Interpolation = Annotated[
    str | None,
    choice("bilinear (default), nearest or bicubic.", RARE, *INTERPOLATIONS),
]
Architecture = Annotated[
    str | None,
    option("Architecture of a .safetensors file without a card.", FILES, "NAME", names=lambda: ARCHITECTURE_NAMES),
]
AllowPickle = Annotated[bool, flag("Let --model be a state dict of torch.save.", FILES, "--allow-pickle")]
ImageShape = Annotated[str | None, option("Images that an .onnx file takes, e.g. 1x28x28.", FILES, "CxHxW", "--shape")]
Layout = Annotated[str | None, choice("Axes of an .onnx file: nchw or nhwc.", FILES, "nchw", "nhwc")]
Output = Annotated[str | None, option("Output to read of an .onnx or .tflite file.", FILES, "NAME", "--output")]
DataRoot = Annotated[Path | None, option("Folder of mnist/, cifar10/ [default: $TILTPROOF_DATA]", FILES, "DIR")]
Resize = Annotated[str | None, option("Resize images: shorter side, or height x width.", FILES, "N or HxW", "--resize")]
Crop = Annotated[str | None, option("Keep the center of images.", FILES, "N or HxW", "--crop")]
Rgb = Annotated[bool, flag("Give gray images three equal channels.", FILES, "--rgb")]
Mean = Annotated[
    str | None,
    option("Normalize inputs: X, X,X,X, imagenet, cifar10 or mnist.", FILES, "MEAN", names=lambda: NORMALIZATIONS),
]
Std = Annotated[str | None, option("With --mean: the network takes (x - mean) / std.", FILES, "STD")]
Scale = Annotated[float | None, option("The network wants pixels times this, e.g. 255.", FILES, "X")]
RayCluster = Annotated[
    str | None, option("Use Ray workers: auto, local or HOST:PORT.", MACHINE, "CLUSTER", names=lambda: CLUSTERS)
]
BatchSize = Annotated[int | None, option("Boxes per batch [default: what fits]", RARE, "N")]
Seed = Annotated[int, option("Seed of the attack's samples.", RARE, "N")]


class Files(NamedTuple):
    """The options of every command that reads a network and images: how their files are read and prepared."""

    arch: Architecture = None
    allow_pickle: AllowPickle = False
    shape: ImageShape = None
    layout: Layout = None
    output: Output = None
    mean: Mean = None
    std: Std = None
    scale: Scale = None
    data_root: DataRoot = None
    resize: Resize = None
    crop: Crop = None
    rgb: Rgb = False


NO_FILES = Files()


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: give a command the options in `Files` in place of its parameter ``files``, except those that it has itself."""
    own, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    fields = get_type_hints(Files, include_extras=True)
    names = [name for name in Files._fields if name not in own.parameters]
    several = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=Files._field_defaults[name], annotation=fields[name]
        )
        for name in names
    ]
    parameters = []
    for name, each in own.parameters.items():
        alone = each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        parameters += several if name == "files" else [alone]

    @functools.wraps(command)
    def with_files(**given: Any) -> None:
        files = Files(**{name: given.pop(name) for name in names})
        command(**given, files=files)

    with_files.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_files.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_files
