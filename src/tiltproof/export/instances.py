"""A folder in the layout of VNN-COMP: for each version of VNN-LIB instances.csv, the network as ONNX and one property a box."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.export.vnnlib import VERSIONS, pixel_box
from tiltproof.onnx.writer import onnx_bytes
from tiltproof.pixels.api import METHODS, bound_pixels
from tiltproof.runs.atomic_io import document, replace_bytes
from tiltproof.runs.manifest import package_version, weights_digest
from tiltproof.runs.reader import FinishedRun, check_images, check_model, read_finished
from tiltproof.transforms import Transform, parse
from tiltproof.verify.inputs import Inputs, check_inputs, check_splits, proof_on
from tiltproof.verify.partition import DEEPEST, Boxes, Tiling, leaves
from tiltproof.verify.results import Verdict

MOST_PROPERTIES = 20_000
TIMEOUT = 100.0
"""Seconds a property that instances.csv suggests."""
NETWORK, INSTANCES, BOXES, MANIFEST = "onnx/network.onnx", "instances.csv", "boxes.jsonl", "manifest.json"
BOXES_AT_ONCE = 64


@dataclass(frozen=True)
class Property:
    """One file: which image it is about, and which box of parameters its pixels come from."""

    vnnlib: str
    image: int
    label: int
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class VnnlibFolder:
    """What was written."""

    folder: Path
    properties: list[Property]


Ends = tuple[Tensor, Tensor]
"""Lower and upper parameters of an image's boxes, float64 [P, d] each."""


def export_vnnlib(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Transform | str,
    out: str | Path,
    *,
    splits: int | Sequence[int] = 1,
    numbers: Sequence[int] | None = None,
    method: str = "hull",
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
) -> VnnlibFolder:
    """Write every box of a uniform grid over the range, for every image, as a VNN-LIB property about the network.

    ``splits``: equal parts, one number or one a parameter. ``numbers``: what the images are called in file names, by default
    their places in ``images``. ``method``: the pixel bounds, ``hull`` (exact intervals over the coordinate box), ``fgv`` or ``affine``.
    """
    chosen = parse(transform) if isinstance(transform, str) else transform
    inputs = inputs_for(model, images, labels, chosen)
    parts = check_splits(splits, chosen)
    if math.prod(parts) > MOST_PROPERTIES:
        raise too_many(f"{math.prod(parts):,} boxes an image")
    tiling = Tiling(chosen, parts)
    grid = tiling.bounds(tiling.first())
    numbers = list(range(len(images))) if numbers is None else list(numbers)
    return write_folder(inputs, [grid] * len(images), numbers, method, timeout, Path(out), progress)


def too_many(got: str) -> InputError:
    return InputError(
        f"more than {MOST_PROPERTIES:,} properties are not written at once", got=got, do="choose fewer images or splits"
    )


def inputs_for(model: nn.Module, images: Tensor, labels: Tensor, transform: Transform) -> Inputs:
    """Checked, and on the CPU, where files are written from."""
    if isinstance(model, nn.Module) and any(tensor.device.type != "cpu" for tensor in model.parameters()):
        model = copy.deepcopy(model).cpu()
    with proof_on(images.cpu()):
        return check_inputs(model, images.cpu(), torch.as_tensor(labels).cpu(), transform)


def write_folder(
    inputs: Inputs,
    boxes: list[Ends],
    numbers: list[int],
    method: str,
    timeout: float,
    out: Path,
    progress: Callable[[int, int], None] | None,
) -> VnnlibFolder:
    total = sum(len(low) for low, _ in boxes)
    if total > MOST_PROPERTIES:
        raise too_many(f"{total:,} boxes of {len(boxes):,} images")
    if len(numbers) != len(boxes) or len(set(numbers)) != len(numbers) or min(numbers, default=0) < 0:
        raise InputError("every image needs a number of its own", got=shown(numbers))
    if method not in METHODS:
        raise InputError("unknown method", got=repr(method), do=f"use one of {', '.join(METHODS)}")
    if not 0 < timeout < 1e9:
        raise InputError("the timeout is a positive number of seconds", got=timeout)
    with proof_on(inputs.images), inputs.eval_mode():
        network = onnx_bytes(inputs.network)
    made = not out.exists()
    try:
        _empty_folder(out)
    except OSError as error:
        raise _cannot_write(out, error) from None
    try:
        for version in VERSIONS:
            for name in ("onnx", "vnnlib"):
                (out / version / name).mkdir(parents=True)
            (out / version / NETWORK).write_bytes(network)
        written = []
        for prop, texts in _properties(inputs, boxes, numbers, method):
            for version, text in texts.items():
                (out / version / prop.vnnlib).write_text(text, encoding="utf-8")
            written.append(prop)
            if progress is not None:
                progress(len(written), total)
        _finish(out, inputs, network, method, written, timeout)
    except BaseException as error:
        _remove(out, made)
        if isinstance(error, OSError):
            raise _cannot_write(out, error) from None
        raise
    return VnnlibFolder(out, written)


def _cannot_write(out: Path, error: OSError) -> InputError:
    return InputError("the folder cannot be written", got=f"{out} ({error.strerror})")


def _remove(out: Path, made: bool) -> None:
    """Take back what was written, so that the same command can be given again; ``made``: the folder itself was."""
    for version in VERSIONS:
        shutil.rmtree(out / version, ignore_errors=True)
    with suppress(OSError):
        for name in (MANIFEST, BOXES):
            (out / name).unlink(missing_ok=True)
        if made:
            out.rmdir()


def _empty_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            "properties are written into a new folder", got=f"{out}, which holds something", do="name another"
        )
    out.mkdir(parents=True, exist_ok=True)


def _properties(
    inputs: Inputs, boxes: list[Ends], numbers: list[int], method: str
) -> Iterator[tuple[Property, dict[str, str]]]:
    """Image by image, box by box; the text of each in every version."""
    transform, classes = inputs.transform, inputs.network.output_shape()[0]
    about = f"tiltproof {package_version()}, {transform}, pixel bounds {method}"
    for row, ((lows, highs), number) in enumerate(zip(boxes, numbers, strict=True)):
        label, first = int(inputs.labels[row]), 0
        for low, high in zip(lows.split(BOXES_AT_ONCE), highs.split(BOXES_AT_ONCE), strict=True):
            form = bound_pixels(inputs.pictures[row].expand(len(low), -1, -1, -1), transform, method, low, high)
            lower, upper = pixel_box(form.lower, form.upper)
            for k in range(len(low)):
                name = f"vnnlib/image_{number:05d}_box_{first + k:05d}.vnnlib"
                prop = Property(name, number, label, tuple(low[k].tolist()), tuple(high[k].tolist()))
                comments = [
                    about,
                    f"image {number}, label {label}, box {first + k}: parameters {list(prop.low)} to {list(prop.high)}",
                    "unsat: every picture inside the pixel bounds is classified right, so every transformed one is",
                    "sat: some picture inside them is not; it need not be a transformed one",
                ]
                yield (
                    prop,
                    {version: make(comments, lower[k], upper[k], classes, label) for version, make in VERSIONS.items()},
                )
            first += len(low)


def _finish(out: Path, inputs: Inputs, network: bytes, method: str, properties: list[Property], timeout: float) -> None:
    """What the files mean, and last instances.csv: without it the folder is not complete."""
    content = {
        "format": "tiltproof-vnnlib",
        "version": 1,
        "tiltproof": package_version(),
        "transform": str(inputs.transform),
        "method": method,
        "weights_sha256": weights_digest(inputs.model),
        "onnx_sha256": hashlib.sha256(network).hexdigest(),
        "properties": len(properties),
    }
    replace_bytes(out / MANIFEST, document(content))
    rows = "".join(json.dumps(asdict(prop)) + "\n" for prop in properties)
    replace_bytes(out / BOXES, rows.encode())
    for version in VERSIONS:
        lines = "".join(f"{NETWORK},{prop.vnnlib},{timeout:g}\n" for prop in properties)
        replace_bytes(out / version / INSTANCES, lines.encode())


# The boxes that a run proved as VNN-LIB properties, so that another tool can prove them again.


def export_run(
    folder: str | Path,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    out: str | Path,
    *,
    numbers: Sequence[int] | None = None,
    method: str | None = None,
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
) -> VnnlibFolder:
    """Write the boxes that a run proved, of its certified images or of those named by ``numbers``.

    Model, images and labels are compared with the run's digests. ``method``: by default the run's own if that bounds pixels by
    intervals, as VNN-LIB does, else ``hull``.
    """
    run = read_finished(folder)
    if run.regression:
        raise InputError(
            "the run proves ranges of outputs, not classes", got=str(folder), do="export it with --csv or --jsonl"
        )
    check_model(run, model)
    stored = check_images(run, images, labels)
    rows = _rows(run, numbers)
    own = str(run.settings.get("method"))
    inputs = inputs_for(model, stored[rows], torch.as_tensor([run.results[row].label for row in rows]), run.transform)
    boxes = [_tiling(run, row) for row in rows]
    chosen = method or (own if own in ("hull", "fgv") else "hull")
    return write_folder(inputs, boxes, [run.first + row for row in rows], chosen, timeout, Path(out), progress)


def _rows(run: FinishedRun, numbers: Sequence[int] | None) -> list[int]:
    """Which images of the run: those that have a tiling."""
    certified = [
        row
        for row, result in enumerate(run.results)
        if result.verdict is Verdict.CERTIFIED and result.tree and result.grid
    ]
    if numbers is None:
        if not certified:
            raise InputError("the run has no certified image, and only those have boxes", got=str(run.folder))
        return certified
    for number in numbers:
        row = number - run.first
        if not 0 <= row < len(run.results):
            last = run.first + len(run.results) - 1
            raise InputError(f"the run is about images {run.first} to {last}", got=f"image {number}")
        if row not in certified:
            raise InputError(
                f"image {number} has no boxes in the run",
                got=f"the verdict {run.results[row].verdict}",
                do="choose certified images, or give --transform and --splits instead of a run",
            )
    return [number - run.first for number in numbers]


def _tiling(run: FinishedRun, row: int) -> Ends:
    result = run.results[row]
    nodes = leaves(result.grid, result.tree, MOST_PROPERTIES)
    if nodes is None:
        raise too_many(f"image {result.image} alone has more")
    count = len(result.grid)
    if any(part * 2**level > DEEPEST for node in nodes for part, level in zip(result.grid, node[count:], strict=True)):
        raise InputError(f"the run in {run.folder} is damaged", got=f"image {result.image}: boxes too small to exist")
    table = torch.tensor(nodes)
    return Tiling(run.transform, result.grid).bounds(Boxes(table[:, :count], table[:, count:]))
