"""Turn what a user typed into the arguments of public functions, and write result files; unusable input raises `InputError`."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from tiltproof.cli.options import Files
from tiltproof.errors import InputError, shown
from tiltproof.runs.atomic_io import replace_bytes
from tiltproof.verify.options import EIGHT_BITS

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from tiltproof.data.loading import Source
    from tiltproof.runs.reader import FinishedRun
    from tiltproof.transforms import Transform


def without_none(**values: Any) -> dict[str, Any]:
    """The options that were given; the others keep the defaults of the function called."""
    return {name: value for name, value in values.items() if value is not None}


class DataChoice(NamedTuple):
    """The options that name a data set and say how its images are prepared."""

    name: str
    root: Path | None
    resize: str | None = None
    crop: str | None = None
    rgb: bool = False

    @classmethod
    def of(cls, name: str, files: Files) -> DataChoice:
        """Take the options of a command."""
        return cls(name, files.data_root, files.resize, files.crop, files.rgb)

    def open(self, task: str) -> Source:
        """Open the data; images are read when they are asked for."""
        from tiltproof.data.loading import open_data

        return open_data(self.name, self.root, task=task, resize=self.resize, crop=self.crop, rgb=self.rgb)

    def notes(self) -> dict[str, Any]:
        """For the manifest of a run: how to prepare the images again."""
        return without_none(resize=self.resize, crop=self.crop, rgb=self.rgb or None)

    def noted(self, notes: dict[str, Any]) -> DataChoice:
        """Take options that are not given from a run's notes."""
        rgb = self.rgb or notes.get("rgb") is True
        return self._replace(**_noted_texts(self, notes, "resize", "crop"), rgb=rgb)


def _noted_texts(choice: NamedTuple, notes: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the texts in the notes for those options that are not given."""
    return {name: notes[name] for name in names if getattr(choice, name) is None and isinstance(notes.get(name), str)}


class ModelChoice(NamedTuple):
    """The options that name a network, say how its file is read, and what inputs it wants."""

    name: str
    arch: str | None
    allow_pickle: bool
    shape: str | None
    layout: str | None
    output: str | None
    mean: str | None = None
    std: str | None = None
    scale: float | None = None

    @classmethod
    def of(cls, name: str, files: Files) -> ModelChoice:
        """Take the options of a command."""
        return cls(name, *(getattr(files, option) for option in cls._fields[1:]))

    def load(self, data: DataChoice | None, program: bool = False) -> nn.Module:
        """Load the network. A file that leaves the size of images open is asked with those of ``data``. ``program``: for uint8 semantics,
        as what is evaluated."""

        from tiltproof.models import load, normalized
        from tiltproof.models.loading import load_as_program

        def of_data() -> tuple[int, ...]:
            if data is None:
                raise InputError("the model takes images of any size", got="no data", do="add --shape CxHxW, or --data")
            return tuple(data.open("any").pixels(range(1)).shape[1:])

        shape = of_data if self.shape is None else parse_shape(self.shape)
        read = load_as_program if program else load
        network = read(self.name, self.arch, self.allow_pickle, shape=shape, layout=self.layout, output=self.output)
        wanted = self.mean, self.std, self.scale
        return network if wanted == (None, None, None) else normalized(network, *wanted)

    def notes(self) -> dict[str, Any]:
        """For the manifest of a run: how to read the file again, the normalization, and the file's sha256."""
        reading = {name: getattr(self, name) for name in READING + NORMALIZATION}
        return without_none(**reading, weights_file_sha256=file_digest(self.name))

    def noted(self, notes: dict[str, Any]) -> ModelChoice:
        """Take options that are not given from a run's notes: the normalization, and how to read a file of the same name."""
        reading = ("arch", *READING) if notes.get("model") == self.name else ()
        scale = notes.get("scale") if self.scale is None else self.scale
        number = float(scale) if isinstance(scale, (int, float)) and not isinstance(scale, bool) else None
        return self._replace(**_noted_texts(self, notes, *reading, "mean", "std"), scale=number)


def file_digest(model: str) -> str | None:
    """Return the sha256 of the file that a model is read from; None of a function."""
    from tiltproof.models.cards import WEIGHTS_FOLDER, models

    path = WEIGHTS_FOLDER / f"{model}.safetensors" if model in {card.name for card in models()} else Path(model)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


READING, NORMALIZATION = ("shape", "layout", "output"), ("mean", "std", "scale")


def notes_of(folder: Path) -> dict[str, Any]:
    """Return the notes of a run's manifest; none if it cannot be read, which is left for the checker to refuse."""
    try:
        notes = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["notes"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return notes if isinstance(notes, dict) else {}


def is_program(folder: Path) -> bool:
    """Whether the run in a folder is about a program, by its claim; what cannot be read is left for others to refuse."""
    try:
        claim = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["claim"]
        return bool(claim["semantics"] == EIGHT_BITS)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse an image's shape: channels, height and width.

    >>> parse_shape("3x224x200")
    (3, 224, 200)
    """
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise InputError("--shape is channels, height and width", got=text, do="write CxHxW, e.g. 3x224x224")
    return tuple(map(int, parts))


def model_and_transform(
    choice: ModelChoice,
    transform: str | None,
    padding: str | None,
    interpolation: str | None,
    data: DataChoice | None,
    program: bool = False,
) -> tuple[nn.Module, Transform]:
    """The network, and the transformation given or else the one on the model's card.

    The text is parsed first because that is cheap. Without a text the model is loaded first: a wrong ``--model`` must not
    be reported as a missing ``--transform``.
    """
    from tiltproof.transforms import parse

    asked = None if transform is None else parse(transform, padding, interpolation)
    network = choice.load(data, program)
    return network, parse(_of_card(choice.name), padding, interpolation) if asked is None else asked


def _of_card(model: str) -> str:
    from tiltproof.models import card_of

    card = card_of(model)
    if card is None:
        raise InputError(
            "--transform is missing",
            got=f"--model {model}, which has no card that tells it",
            do='say what may happen to an image, e.g. --transform "R(30)"',
        )
    return card.transform


def parse_splits(text: str | None) -> int | tuple[int, ...] | None:
    """Parse ``240`` (for every parameter) or ``10,20`` (one number per parameter).

    >>> parse_splits("240"), parse_splits("10, 20"), parse_splits(None)
    (240, (10, 20), None)
    """
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            "--splits takes whole numbers", got=text, do="write 240, or one number per parameter: 10,20"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def images_of_run(run: FinishedRun, source: Source) -> tuple[Tensor, Tensor]:
    """Read a run's own images and labels from its data set."""
    end = run.first + len(run.results)
    if not 0 <= run.first < end <= len(source):
        raise InputError(f"the run is about images {run.first} to {end - 1}", got=f"data with {len(source)} images")
    return source.read(range(run.first, end))


def load_selection(
    data: DataChoice, start: int, end: int | None, limit: int | None, task: str = "classification"
) -> tuple[Tensor, Tensor, int]:
    """The chosen images and labels, and the index of the first of them."""
    from tiltproof.data.loading import selected

    if limit is not None and limit < 1:
        raise InputError("--limit must be at least 1", got=limit)
    source = data.open(task)
    return *source.read(selected(shown(data.name), len(source), start, end, limit)), start


STDOUT = Path("-")
"""Stands for standard output, where nothing else is then printed."""


def check_writable(path: Path | None) -> None:
    """Raise before a run begins if its result file could not be written at the end; missing folders are made then."""
    if path is None:
        return
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return  # a pipe or a device
        folder = path.resolve().parent
        while not folder.exists():
            folder = folder.parent
        right = not path.is_dir() and _takes_files(folder)
    except OSError:  # a name that is too long, or leads through a file
        right = False
    if not right:
        raise InputError(
            "the result file cannot be written there",
            got=f"{path}, which is a folder" if path.is_dir() else f"{path}, whose folder is not writable",
            do="give a file name in a folder that you may write to",
        )


def check_text_file(path: Path | None) -> None:
    """The same for a text file, which may also be STDOUT."""
    if path != STDOUT:
        check_writable(path)


def _takes_files(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def make_folder(folder: Path) -> None:
    """Make the folder; its files stay."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("the result folder cannot be used", got=f"{folder} ({error.strerror})") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one JSON document."""
    write_atomically(path, json.dumps(content, indent=2, allow_nan=False, default=str) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that a reader sees the old file or the whole new one.

    A link is followed to its file. STDOUT, a pipe or a device such as /dev/stdout is written to directly.
    """
    if path == STDOUT:
        typer.echo(text, nl=False)
        return
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path.resolve(), text.encode())
    except OSError as error:
        raise InputError("the result file cannot be written", got=f"{path} ({error.strerror})") from None


def write_figure(path: Path, figure: Image) -> None:
    """Save a figure in the format of its suffix."""
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        figure.save(path)
    except OSError as error:
        raise InputError("the figure cannot be written", got=f"{path} ({error.strerror or error})") from None
