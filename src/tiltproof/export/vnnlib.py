"""VNN-LIB properties, versions 1.0 and 2.0, in the layout of VNN-COMP: instances.csv, the network as ONNX, one file per box.

Bounds are rounded outwards. Tools read the decimals into float32, float64 or rationals. Each bound is therefore a float32 number b,
printed as a decimal d that lies beyond b by less than 1e-8 |b|, which is less than half the distance from b to the next float32 (at
least 2^-25 |b| = 2.9e-8 |b|). So a reader in float32 gets exactly b; one in float64 gets a number between d and b, because rounding is
monotonic; a rational reader gets d.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.names import PROPERTY_SECONDS
from tiltproof.onnx.writer import onnx_bytes
from tiltproof.pixels.api import METHODS, bound_pixels
from tiltproof.runs.atomic_io import document, replace_bytes
from tiltproof.runs.manifest import package_version, weights_digest
from tiltproof.runs.reader import FinishedRun, check_images, check_model, read_finished
from tiltproof.transforms import Transform, parse
from tiltproof.verify.inputs import Inputs, check_claimed, check_splits, proof_on
from tiltproof.verify.keep import Keep
from tiltproof.verify.options import EIGHT_BITS
from tiltproof.verify.results import Verdict
from tiltproof.verify.rules import ClassRule, RowRule, Rule
from tiltproof.verify.state import DEEPEST, Boxes, Tiling, leaves

DIGITS = 9
"""Significant decimal digits of a bound."""
TINY = 2.0**-40
"""Bounds closer to zero are moved outwards, to 0 or to this: the format has no exponents."""
_BELOW, _ABOVE = Context(prec=DIGITS, rounding=ROUND_FLOOR), Context(prec=DIGITS, rounding=ROUND_CEILING)


def pixel_box(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Round a box outwards to float32, within [0, 1], where every transformed pixel lies."""
    lower, upper = lower.double().nan_to_num(nan=0.0).clamp(0, 1), upper.double().nan_to_num(nan=1.0).clamp(0, 1)
    below, above = lower.float(), upper.float()  # rounded to nearest: perhaps inwards
    below = torch.where(below.double() > lower, torch.nextafter(below, torch.tensor(-torch.inf)), below)
    above = torch.where(above.double() < upper, torch.nextafter(above, torch.tensor(torch.inf)), above)
    below = torch.where(below < TINY, 0.0, below)
    above = torch.where((above > 0) & (above < TINY), TINY, above)
    return below, above


def decimal_below(bound: float) -> str:
    """Return a decimal without exponent, at most ``bound`` and as close to it as the module docstring says.

    >>> decimal_below(0.0), decimal_below(1.0), decimal_below(0.10000000149011612), decimal_below(-0.10000000149011612)
    ('0.0', '1.0', '0.100000001', '-0.100000002')
    """
    return _plain(_BELOW.create_decimal_from_float(bound))


def decimal_above(bound: float) -> str:
    """Return a decimal without exponent, at least ``bound``.

    >>> decimal_above(0.10000000149011612)
    '0.100000002'
    """
    return _plain(_ABOVE.create_decimal_from_float(bound))


def _plain(number: Decimal) -> str:
    text = format(number, "f")
    return text if "." in text else text + ".0"


Broken = list[list[tuple[int, int]]]
"""When a property is broken: in one of these cases, where each output is at least the other one of its pair."""
MAX_CASES = 10_000


def broken(inputs: Inputs, rule: Rule | None, row: int) -> Broken:
    """Return the cases in which what the image in this row keeps is broken, with ties.

    A class j that is not allowed is at least every allowed one; where c classes may be spared, c + 1 of them are.
    """
    classes, label = inputs.network.output_shape()[0], int(inputs.labels[row])
    if isinstance(rule, RowRule):
        raise InputError(
            "rows C y > d of outputs cannot be written as VNN-LIB properties here",
            got="a run that keeps Linear(C, d)",
            why="decimals would round the coefficients",
            do="export the run with --csv or --jsonl, or certify another property",
        )
    if not isinstance(rule, ClassRule):
        return [[(other, label)] for other in range(classes) if other != label]
    allowed = rule.allowed[row].nonzero().flatten().tolist()
    others = [other for other in range(classes) if other not in allowed]
    if math.comb(len(others), 1 + rule.spare) > MAX_CASES:
        raise InputError(
            f"a property of more than {MAX_CASES:,} cases cannot be written",
            got=f"every {1 + rule.spare} of {len(others)} classes",
            do="certify a smaller --top-k, or export the run with --csv or --jsonl",
        )
    sets = itertools.combinations(others, 1 + rule.spare)
    return [[(other, own) for other in some for own in allowed] for some in sets]


def of_label(cases: Broken) -> bool:
    """Whether these are the cases of another output that is at least the label's."""
    return len({own for case in cases for _, own in case}) == 1 and all(len(case) == 1 for case in cases)


def vnnlib_1(comments: list[str], lower: Tensor, upper: Tensor, classes: int, cases: Broken) -> str:
    """Write the box [C, H, W] and "one of the cases holds" in VNN-LIB 1.0 (VNN-COMP up to 2025)."""
    inputs, outputs = [f"X_{k}" for k in range(lower.numel())], [f"Y_{k}" for k in range(classes)]
    declared = [f"(declare-const {name} Real)" for name in (*inputs, *outputs)]
    return _property_text(comments, declared, inputs, outputs, lower, upper, cases)


def vnnlib_2(comments: list[str], lower: Tensor, upper: Tensor, classes: int, cases: Broken) -> str:
    """Write the same in version 2.0, whose variables are entries of tensors."""
    shape = [1, *lower.shape]
    outputs = [f"Y[0,{k}]" for k in range(classes)]
    declared = [
        "(vnnlib-version <2.0>)",
        "(declare-network network",
        f"  (declare-input X float32 [{','.join(map(str, shape))}])",
        f"  (declare-output Y float32 [1,{classes}])",
        ")",
    ]
    return _property_text(comments, declared, list(_entries(tuple(shape))), outputs, lower, upper, cases)


VERSIONS = {"1.0": vnnlib_1, "2.0": vnnlib_2}
"""The writers of the versions of VNN-LIB."""


@functools.cache
def _entries(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return ``X[0,0,0,0]`` and so on, the last index running fastest, as in ONNX."""
    return tuple(f"X[{','.join(map(str, index))}]" for index in itertools.product(*map(range, shape)))


def _property_text(
    comments: list[str],
    declared: list[str],
    inputs: list[str],
    outputs: list[str],
    lower: Tensor,
    upper: Tensor,
    cases: Broken,
) -> str:
    lines = [f"; {comment}" for comment in comments] + ["", *declared, "", "; the pixels"]
    for name, low, high in zip(inputs, lower.flatten().tolist(), upper.flatten().tolist(), strict=True):
        lines += [f"(assert (<= {name} {decimal_above(high)}))", f"(assert (>= {name} {decimal_below(low)}))"]
    about = (
        f"another output is at least {outputs[cases[0][0][1]]}" if of_label(cases) else "what must be kept is broken"
    )
    lines += ["", f"; {about}", "(assert (or"]
    for case in cases:
        lines.append(f"  (and {' '.join(f'(>= {outputs[other]} {outputs[own]})' for other, own in case)})")
    return "\n".join([*lines, "))"]) + "\n"


MAX_PROPERTIES = 20_000
"""The largest number of files in one folder."""
NETWORK, INSTANCES, BOXES, MANIFEST = "onnx/network.onnx", "instances.csv", "boxes.jsonl", "manifest.json"
"""Names of the files in the folder."""
BATCH = 64
"""Boxes bounded at once."""


@dataclass(frozen=True)
class Property:
    """A VNN-LIB file.

    Attributes
    ----------
    vnnlib : str
        Its path within the folder.
    image, label : int
        Number and class of its image.
    low, high : tuple of float
        The box of parameters whose pixel bounds it contains.
    """

    vnnlib: str
    image: int
    label: int
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class VnnlibFolder:
    """A folder of VNN-LIB properties in the layout of VNN-COMP.

    Attributes
    ----------
    folder : Path
        The folder.
    properties : list of Property
        Its properties.
    """

    folder: Path
    properties: list[Property]


Ends = tuple[Tensor, Tensor]
"""Lower and upper ends of an image's boxes, float64 [P, d] each."""


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
    timeout: float = PROPERTY_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> VnnlibFolder:
    """Write every box of a uniform grid over the range, for every image, as a VNN-LIB property about the network.

    Parameters
    ----------
    model : torch.nn.Module
        The classifier.
    images, labels : Tensor
        Images [N, C, H, W] with values in [0, 1], and their classes [N].
    transform : Transform or str
        The transformation.
    out : str or Path
        A new or empty folder.
    splits : int or sequence of int
        Equal parts of the range, for every parameter or for each.
    numbers : sequence of int, optional
        The numbers of the images in file names; by default their positions.
    method : {"hull", "fgv", "affine"}
        The pixel bounds; ``hull`` is the exact interval over the coordinate box.
    timeout : float
        Seconds per property that instances.csv suggests.
    progress : callable, optional
        Called with the number of files written, and of all files.

    Returns
    -------
    VnnlibFolder
        The folder and its properties.

    Raises
    ------
    InputError
        If an argument is invalid, there are more than 20,000 properties, or the folder cannot be written.
    UnsupportedOperation
        If the network cannot be written as ONNX.
    """
    chosen = parse(transform) if isinstance(transform, str) else transform
    inputs, _ = inputs_for(model, images, labels, chosen)
    parts = check_splits(splits, chosen)
    if math.prod(parts) > MAX_PROPERTIES:
        raise too_many(f"{math.prod(parts):,} boxes per image")
    tiling = Tiling(chosen, parts)
    grid = tiling.bounds(tiling.first())
    numbers = list(range(len(images))) if numbers is None else list(numbers)
    return write_folder(inputs, [grid] * len(images), numbers, method, timeout, Path(out), progress)


def too_many(got: str) -> InputError:
    return InputError(
        f"more than {MAX_PROPERTIES:,} properties cannot be written into one folder",
        got=got,
        do="choose fewer images or splits",
    )


def inputs_for(
    model: nn.Module, images: Tensor, labels: Tensor, transform: Transform, keep: Keep | None = None
) -> tuple[Inputs, Rule | None]:
    """Validate the arguments and move them to the CPU."""
    if isinstance(model, nn.Module) and any(tensor.device.type != "cpu" for tensor in model.parameters()):
        model = copy.deepcopy(model).cpu()
    with proof_on(images.cpu()):
        return check_claimed(model, images.cpu(), torch.as_tensor(labels).cpu(), transform, "real", keep)


def write_folder(
    inputs: Inputs,
    boxes: list[Ends],
    numbers: list[int],
    method: str,
    timeout: float,
    out: Path,
    progress: Callable[[int, int], None] | None,
    rule: Rule | None = None,
) -> VnnlibFolder:
    cases = [broken(inputs, rule, row) for row in range(len(boxes))]
    total = sum(len(low) for low, _ in boxes)
    if total > MAX_PROPERTIES:
        raise too_many(f"{total:,} boxes of {len(boxes):,} images")
    if len(numbers) != len(boxes) or len(set(numbers)) != len(numbers) or min(numbers, default=0) < 0:
        raise InputError("every image needs a different number", got=shown(numbers))
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
        for prop, texts in _properties(inputs, boxes, numbers, method, cases):
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
    """Remove what was written, and the folder if it was ``made``, so that the command can be repeated."""
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
            "properties are written into a new folder", got=f"{out}, which is not empty", do="choose another"
        )
    out.mkdir(parents=True, exist_ok=True)


def _properties(
    inputs: Inputs, boxes: list[Ends], numbers: list[int], method: str, cases: list[Broken]
) -> Iterator[tuple[Property, dict[str, str]]]:
    """Yield the properties image by image and box by box, each with its text in every version."""
    transform, classes = inputs.transform, inputs.network.output_shape()[0]
    about = f"tiltproof {package_version()}, {transform}, pixel bounds {method}"
    for row, ((lows, highs), number) in enumerate(zip(boxes, numbers, strict=True)):
        label, first = int(inputs.labels[row]), 0
        for low, high in zip(lows.split(BATCH), highs.split(BATCH), strict=True):
            form = bound_pixels(inputs.images64[row].expand(len(low), -1, -1, -1), transform, method, low, high)
            lower, upper = pixel_box(form.lower, form.upper)
            for k in range(len(low)):
                name = f"vnnlib/image_{number:05d}_box_{first + k:05d}.vnnlib"
                prop = Property(name, number, label, tuple(low[k].tolist()), tuple(high[k].tolist()))
                comments = [
                    about,
                    f"image {number}, label {label}, box {first + k}: parameters {list(prop.low)} to {list(prop.high)}",
                    "unsat: every image within the pixel bounds is classified correctly, so every transformed one is"
                    if of_label(cases[row])
                    else "unsat: every image within the pixel bounds keeps what it must, so every transformed one does",
                    f"sat: some image within them {'is' if of_label(cases[row]) else 'does'} not; it need not be a transformed one",
                ]
                yield (
                    prop,
                    {
                        version: make(comments, lower[k], upper[k], classes, cases[row])
                        for version, make in VERSIONS.items()
                    },
                )
            first += len(low)


def _finish(out: Path, inputs: Inputs, network: bytes, method: str, properties: list[Property], timeout: float) -> None:
    """Write the manifest, the boxes and, last, instances.csv: without it the folder is incomplete."""
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


def export_run(
    folder: str | Path,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    out: str | Path,
    *,
    numbers: Sequence[int] | None = None,
    method: str | None = None,
    timeout: float = PROPERTY_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> VnnlibFolder:
    """Write the boxes that a run proved as VNN-LIB properties, so that another tool can prove them again.

    Parameters
    ----------
    folder : str or Path
        The run folder of `certify`.
    model, images, labels
        Those of the run; they are compared with its digests.
    out : str or Path
        A new or empty folder.
    numbers : sequence of int, optional
        Numbers of certified images; by default all of them.
    method : {"hull", "fgv", "affine"}, optional
        The pixel bounds; by default the run's if they are intervals, as in VNN-LIB, else ``hull``.
    timeout, progress
        As in `export_vnnlib`.

    Returns
    -------
    VnnlibFolder
        The folder and its properties.

    Raises
    ------
    InputError
        If the run is about a regression network, has no such certified image, or something else was given than the run used.
    """
    run = read_finished(folder)
    if run.regression:
        raise InputError(
            "the run proves ranges of outputs, not classes", got=str(folder), do="export it with --csv or --jsonl"
        )
    if run.claim["semantics"] == EIGHT_BITS:
        raise InputError(
            "the run is about pictures rounded to 8 bits, which need not lie within the pixel bounds of a property",
            got=str(folder),
            do="export it with --csv or --jsonl, or certify with the semantics real",
        )
    check_model(run, model)
    stored = check_images(run, images, labels)
    rows = _rows(run, numbers)
    own = str(run.settings.get("method"))
    labels = torch.as_tensor([run.results[row].label for row in rows])
    keep = None if run.keep is None else run.keep.of_images(rows)
    inputs, rule = inputs_for(model, stored[rows], labels, run.transform, keep)
    boxes = [_tiling(run, row) for row in rows]
    chosen = method or (own if own in ("hull", "fgv") else "hull")
    return write_folder(inputs, boxes, [run.first + row for row in rows], chosen, timeout, Path(out), progress, rule)


def _rows(run: FinishedRun, numbers: Sequence[int] | None) -> list[int]:
    """Return the rows of the images to export: those with a partition into proved boxes."""
    certified = [
        row
        for row, result in enumerate(run.results)
        if result.verdict is Verdict.CERTIFIED and result.tree and result.grid
    ]
    if numbers is None:
        if not certified:
            raise InputError("the run has no certified image", got=str(run.folder))
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
    nodes = leaves(result.grid, result.tree, MAX_PROPERTIES)
    if nodes is None:
        raise too_many(f"image {result.image} alone has more")
    count = len(result.grid)
    if any(part * 2**level > DEEPEST for node in nodes for part, level in zip(result.grid, node[count:], strict=True)):
        raise InputError(f"the run in {run.folder} is damaged", got=f"image {result.image}: boxes too small to exist")
    table = torch.tensor(nodes)
    return Tiling(run.transform, result.grid).bounds(Boxes(table[:, :count], table[:, count:]))
