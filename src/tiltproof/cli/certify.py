"""``tiltproof certify``: a verdict for every image, a summary, and on request a run folder and a JSON file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_progress
from tiltproof.cli.inputs import (
    STDOUT,
    DataChoice,
    ModelChoice,
    check_text_file,
    load_selection,
    model_and_transform,
    parse_splits,
    without_none,
    write_json,
)
from tiltproof.cli.kept import AllowOption, ForbidOption, KeepChoice, KeepOwnFlag, TopKOption
from tiltproof.cli.next_step import as_lines, next_steps
from tiltproof.cli.options import EFFORT, PROBLEM, RARE, RESULTS, choice, flag, option
from tiltproof.cli.tables import SHOWN, print_curve, print_not_certified, print_ranges, print_summary
from tiltproof.errors import InputError
from tiltproof.verify.options import (
    EIGHT_BITS,
    Attack,
    BranchAndBound,
    Execution,
    RunFolder,
    Tolerance,
    bounds_for,
    search_for,
)
from tiltproof.verify.results import Certificate, RangeCertificate, Verdict

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tiltproof.runs.curve import CurvePoint
    from tiltproof.transforms import Transform

EPILOG = options.epilog(
    'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(10)"',
    code_1="below --fail-under",
)

TASKS = ("classification", "regression")


@options.expanded
def command(
    model: options.Model,
    data: options.Data,
    transform: options.OptionalTransformText = None,
    task: Annotated[str, choice("classification (default) or regression.", PROBLEM, *TASKS)] = "classification",
    semantics: options.AnySemantics = "real",
    start: options.Start = 0,
    limit: options.Limit = None,
    keep_own: KeepOwnFlag = False,
    top_k: TopKOption = None,
    allow: AllowOption = None,
    forbid: ForbidOption = None,
    boxes: Annotated[
        int | None,
        option(f"Boxes per image before it is unknown [default: {BranchAndBound().max_boxes:,}]", EFFORT, "N"),
    ] = None,
    seconds: Annotated[float | None, option("Seconds per image before it is unknown.", EFFORT, "S")] = None,
    method: options.Method = "affine",
    splits: Annotated[str | None, option("Instead: " + options.SPLITS_HELP, EFFORT, "N,...")] = None,
    samples: options.Samples = None,
    tighten: Annotated[
        float | None, option("Halve boxes until margins are this tight, e.g. 0.05.", EFFORT, "SHARE")
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    memory: options.MemoryLimit = None,
    ray: options.RayCluster = None,
    out: Annotated[Path | None, option("Keep the evidence, for tiltproof check and report.", RESULTS, "FOLDER")] = None,
    resume: Annotated[bool, flag("Continue the run in --out, or start it.", RESULTS, "--resume")] = False,
    overwrite: Annotated[bool, flag("Replace the run in --out.", RESULTS, "--overwrite")] = False,
    curve: Annotated[bool, flag("Also certify smaller ranges, for the report's curve.", RESULTS, "--curve")] = False,
    json_file: options.JsonFile = None,
    fail_under: Annotated[float | None, option("Exit code 1 if fewer images are certified.", RESULTS, "PCT")] = None,
    show: Annotated[int, option("List N images that are not certified.", RESULTS, "N")] = SHOWN,
    quiet: options.Quiet = False,
    excess: Annotated[
        float | None, option("Regression: accepted share beyond the inner range [0.05]", RARE, "SHARE")
    ] = None,
    width: Annotated[float | None, option("Regression: accept ranges narrower than this.", RARE, "X")] = None,
    sequence: Annotated[bool, flag("Regression: one statement about all frames.", RARE, "--sequence")] = False,
    tolerance: Annotated[float | None, option("uint8: margins must exceed this. [measured]", RARE, "X")] = None,
    padding: options.Padding = None,
    interpolation: options.Interpolation = None,
    end: options.End = None,
    files: options.Files = options.NO_FILES,
    batch_size: options.BatchSize = None,
    batch_images: Annotated[int | None, option("Images per batch, or per task of a Ray worker.", RARE, "N")] = None,
    seed: options.Seed = 0,
) -> None:
    """Prove for each image that no transformation changes the answer.

    Verdicts: certified (proved), falsified (a transformation changes the answer),
    unknown (not decided) or misclassified (wrong from the start).
    """
    from tiltproof.device import choose_device, use_threads
    from tiltproof.distributed import RayWorkers
    from tiltproof.runs.curve import check_curve_file
    from tiltproof.verify.sequence import sequence_statement

    if fail_under is not None and not 0 <= fail_under <= 100:
        raise InputError("--fail-under is a percentage", got=fail_under, do="choose 0 to 100")
    kept = KeepChoice(keep_own, top_k, allow, forbid)
    _check_task(
        task,
        only_regression={"--excess": excess, "--width": width, "--sequence": sequence or None},
        only_classes={
            "--tighten": tighten,
            "--fail-under": fail_under,
            "--curve": curve or None,
            "--tolerance": tolerance,
        }
        | kept.given,
    )
    accepted = Tolerance(**without_none(relative=excess, absolute=width))
    if resume and out is None:
        raise InputError("there is nothing to resume without a run folder", do="give --out FOLDER as well")
    if curve:
        if semantics == EIGHT_BITS:
            raise InputError(
                "--curve has no meaning for --semantics uint8", got="both", do="leave it out, or certify smaller ranges"
            )
        if out is None:
            raise InputError("the curve is kept in the run folder", got="--curve without --out", do="add --out FOLDER")
        check_curve_file(out)
    workers = None if ray is None else RayWorkers(ray, device)
    use_threads(threads)
    place = choose_device("cpu" if ray is not None else device)  # with Ray this process only prepares the run
    settings: dict[str, Any] = {
        "semantics": semantics,
        "bounds": bounds_for(method),
        "search": search_for(
            parse_splits(splits), **without_none(max_boxes=boxes, max_seconds=seconds, tighten=tighten)
        ),
        "attack": Attack(**without_none(samples=samples)),
        "execution": Execution(memory, workers, batch_size, batch_images),
        "seed": seed,
    }
    check_text_file(json_file)
    quiet = quiet or json_file == STDOUT
    choice = ModelChoice.of(model, files)
    chosen_data = DataChoice.of(data, files)
    network, chosen = model_and_transform(
        choice, transform, padding, interpolation, chosen_data, program=semantics == EIGHT_BITS
    )
    if tolerance is not None:
        settings["tolerance"] = tolerance
    if kept.given:
        settings["keep"] = kept.keep(chosen_data)
    images, labels, first = load_selection(chosen_data, start, end, limit, task if task == "regression" else kept.task)
    problem = (network.to(place), images.to(place), labels.to(place), chosen)
    notes = {"model": model, "arch": files.arch, "data": data} | choice.notes() | chosen_data.notes() | kept.notes()
    notes |= {"sequence": True} if sequence else {}
    folder = None if out is None else RunFolder(out, resume, overwrite, notes)
    evidence = {"run": folder, "first": first}
    points: list[CurvePoint] = []
    with kept_after_interruption(lambda: kept_batches(out)):
        certificate = _prove(problem, task, accepted, settings | evidence, quiet)
        if curve and out is not None and isinstance(certificate, Certificate):
            points = _curve(problem, certificate, settings, out, quiet)
    summary = certificate.summary() | {"model": model, "data": data}
    ranges = certificate.results if isinstance(certificate, RangeCertificate) else None
    statement = sequence_statement(ranges) if sequence and ranges is not None else None
    if statement is not None:
        summary["sequence"] = statement.record()
    if not quiet:
        (print_ranges if task == "regression" else print_summary)(summary)
        if statement is not None:
            typer.echo(f"sequence: {statement.sentence}")
        print_not_certified(certificate, show)
        print_curve(points)
        selection = {"--start": start or None, "--end": end, "--limit": limit}
        for line in as_lines(next_steps(out, model, data, files, searches(certificate, chosen, kept, selection))):
            typer.echo(line)
    if json_file is not None:
        write_json(json_file, summary | {"records": certificate.records()})
    if fail_under is not None and summary["certified_percent"] < fail_under:
        typer.echo(f"certified {summary['certified_percent']:.2f} % is below --fail-under {fail_under:g} %", err=True)
        raise typer.Exit(1)


Problem: TypeAlias = "tuple[nn.Module, Tensor, Tensor, Transform]"
"""Network, images, labels (regression: target values) and transformation."""


def _prove(
    problem: Problem, task: str, tolerance: Tolerance, settings: dict[str, Any], quiet: bool
) -> Certificate | RangeCertificate:
    """Certify under a live display."""
    from tiltproof.verify.api import certify, certify_range

    network, images, labels, transform = problem
    with live_progress(len(images), quiet) as progress:
        if task == "regression":
            targets = labels.cpu()
            return certify_range(
                network, images, targets, transform, tolerance=tolerance, progress=progress, **settings
            )
        return certify(network, images, labels, transform, progress=progress, **settings)


def _curve(
    problem: Problem, certificate: Certificate, settings: dict[str, Any], out: Path, quiet: bool
) -> list[CurvePoint]:
    """Certify nested ranges for the images that the whole range left open, and keep the curve in the run folder."""
    from tiltproof.runs.curve import certified_curve, write_curve

    began = time.perf_counter()
    with live_progress(len(problem[1]), quiet, "curve") as progress:
        points = certified_curve(*problem, certificate, progress=progress, **settings)
    write_curve(out, points, began)
    return points


def searches(
    certificate: Certificate | RangeCertificate, transform: Transform, kept: KeepChoice, selection: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return commands that search further, with their options: an attack on the first unknown image, and the largest
    ranges if some images are not certified and these ranges contain the image as it is."""
    if isinstance(certificate, RangeCertificate):
        return {}
    about, found = {"--transform": certificate.transform} | kept.given, {}
    first = next((result.image for result in certificate.results if result.verdict is Verdict.UNKNOWN), None)
    if first is not None:
        found["attack"] = about | {"--start": first, "--limit": 1}
    left = any(result.verdict in (Verdict.UNKNOWN, Verdict.FALSIFIED) for result in certificate.results)
    if left and all(low <= 0 <= high for low, high in zip(transform.low, transform.high, strict=True)):
        found["radius"] = about | selection
    return found


def _check_task(task: str, only_regression: dict[str, object], only_classes: dict[str, object]) -> None:
    """Raise if the task is unknown, or an option belongs to the other task."""
    if task not in TASKS:
        raise InputError("unknown task", got=task, do=f"use one of {', '.join(TASKS)}")
    for name, value in (only_classes if task == "regression" else only_regression).items():
        if value is not None:
            raise InputError(f"{name} has no meaning for --task {task}", got=value, do="leave it out")


def kept_batches(out: Path | None) -> str:
    """Say what became of the results of an interrupted run."""
    if out is None:
        return "nothing was kept (--out keeps finished batches)"
    if not (out / "manifest.json").exists():
        return "no batch was finished, so nothing was kept"
    return f"finished batches are kept in {out}; repeat the command with --resume to go on"
