"""``tiltproof certify``: a verdict for every image, a summary, and files for those who want more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor, nn

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_progress, print_ranges, print_summary
from tiltproof.cli.inputs import (
    STDOUT,
    check_text_file,
    load_selection,
    model_and_transform,
    parse_splits,
    without_none,
    write_json,
)
from tiltproof.cli.options import RESULTS, SEARCH
from tiltproof.device import choose_device
from tiltproof.distributed import RayWorkers
from tiltproof.errors import InputError
from tiltproof.runs.curve import certified_curve, check_curve_file, write_curve
from tiltproof.runtime.batch_size import parse_memory
from tiltproof.transforms import Transform
from tiltproof.verify.api import certify
from tiltproof.verify.regression import certify_range
from tiltproof.verify.results import Budget, Certificate, RangeCertificate

EXAMPLES = options.examples(
    'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(30)"',
    "tiltproof certify --model runs/mnist-r30/model.safetensors --data mnist",
    'tiltproof certify --model net.safetensors --arch cifar10_cnn --data cifar10 --transform "R(2), Sh(2)" --limit 100',
    'tiltproof certify --model net.onnx --data photos/ --transform "R(5)"',
    'tiltproof certify --model mynets.small:build --data photos/ --transform "Sc(5), C(5)" --out runs/photos',
    'tiltproof certify --model mnist-r30 --data mnist --transform "R(30)" --out runs/mnist --resume',
    'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(10)" --fail-under 95 --quiet',
    'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(30)" --method fgv --splits 240',
    'tiltproof certify --model mnist-r30 --data mnist --transform "R(30)" --memory 2GB',
    'tiltproof certify --model mnist-r30 --data mnist --transform "R(30)" --out runs/mnist --ray auto',
    "tiltproof certify --task regression --model runs/driving-r2/model.safetensors --data driving --limit 50",
)

TASKS = ("classification", "regression")
BOXES_HELP = f"Give an image up as unknown after this many boxes (default {Budget().boxes:,})."


def command(
    model: options.Model,
    data: options.Data,
    transform: options.OptionalTransformText = None,
    task: Annotated[
        str,
        typer.Option(
            metavar="classification|regression",
            help="Prove that the answer stays the same, or prove a range that the outputs never leave.",
        ),
    ] = "classification",
    arch: options.Architecture = None,
    allow_pickle: options.AllowPickle = False,
    data_root: options.DataRoot = None,
    padding: options.Padding = None,
    method: options.Method = "affine",
    semantics: options.Semantics = "real",
    device: options.Device = "auto",
    start: options.Start = 0,
    end: options.End = None,
    limit: options.Limit = None,
    splits: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Cut the range into this many equal boxes, as the paper does, instead of splitting where needed; "
            "with several parameters one number for each, e.g. 10,20.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    boxes: Annotated[
        int | None,
        typer.Option(help=BOXES_HELP, rich_help_panel=SEARCH),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Give an image up as unknown after this many seconds.", rich_help_panel=SEARCH)
    ] = None,
    excess: Annotated[
        float | None,
        typer.Option(
            help="Regression: stop when the proved range is wider than the one known to be reached by at most this share "
            "(default 0.05).",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            help="Regression: or when it is narrower than this, in the network's own units.", rich_help_panel=SEARCH
        ),
    ] = None,
    samples: options.Samples = None,
    batch_size: options.BatchSize = None,
    batch_images: Annotated[
        int | None,
        typer.Option(
            help="Images in a batch at most: what is written at a time, and what a worker of --ray is handed.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    memory: options.MemoryLimit = None,
    seed: options.Seed = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT|local",
            help="Share the run among the workers of a Ray cluster: the one this machine belongs to, the one at an address, or one "
            "of this machine alone (needs tiltproof\\[ray]). Each GPU is a worker, and each CPU core of a machine without; --device "
            "cpu or cuda takes one kind only. Verdicts and evidence are those of a single process; docs/many-machines.md.",
        ),
    ] = None,
    json_file: options.JsonFile = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the run as it goes: manifest, verdicts with their tilings and counterexamples, summary; for "
            "[bold]tiltproof check[/bold] and for --resume.",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run that --out holds, whatever stopped it, or begin one in an empty folder.",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Let --out replace the run that the folder holds; files that are not the run's stay.",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve",
            help="Afterwards certify smaller ranges inside the whole one, for the curve in [bold]tiltproof report[/bold]; "
            "needs --out.",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    fail_under: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="Exit code 1 when fewer images are certified.", rich_help_panel=RESULTS),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Prove, image by image, that no transformation of the range changes the answer; or find one that does.

    Every image gets one of four verdicts: certified (proved for the whole
    range), falsified (with the parameters that break it), unknown (the budget
    ran out) or misclassified (wrong to begin with).

    Certified means proved: for the closed range of parameters, the exact
    transformation and the network on real numbers; every rounding error of the
    proof itself is accounted for. --semantics float32 extends this to every
    float32 evaluation of the network, in any order of summation. TF32, bf16,
    Winograd and FFT arithmetic never take part in a proof, whatever torch is set to.

    With --task regression every image gets a range: no transformation makes the
    network's output leave it. Beside it stands the inner range that is known to
    be reached, so one sees how much tighter any proof could be.

    Exit codes: 0 done, 1 below --fail-under, 2 bad input, 70 internal error,
    130 interrupted, 143 terminated.
    """
    if fail_under is not None and not 0 <= fail_under <= 100:
        raise InputError("--fail-under is a percentage", got=fail_under, do="choose 0 to 100")
    _check_task(
        task,
        only_regression={"--excess": excess, "--width": width},
        only_classes={"--fail-under": fail_under, "--curve": curve or None},
    )
    if curve and out is None:
        raise InputError("the curve is kept in the run folder", got="--curve without --out", do="add --out FOLDER")
    if curve and out is not None:
        check_curve_file(out)
    budget = Budget(**without_none(boxes=boxes, seconds=seconds))
    search = without_none(
        splits=parse_splits(splits),
        samples=samples,
        batch_size=batch_size,
        batch_images=batch_images,
        memory=parse_memory(memory),
    )
    if ray is not None:
        search["workers"] = RayWorkers(ray, device)
        device = "cpu"  # where this process prepares the run; workers have their own
    place = choose_device(device)
    check_text_file(json_file)
    quiet = quiet or json_file == STDOUT
    network, chosen = model_and_transform(model, arch, allow_pickle, transform, padding)
    network = network.to(place)
    images, labels, first = load_selection(data, data_root, start, end, limit)
    common: dict[str, Any] = search | {
        "method": method,
        "semantics": semantics,
        "budget": budget,
        "seed": seed,
        "out": out,
        "resume": resume,
        "overwrite": overwrite,
        "first": first,
        "notes": {"model": model, "arch": arch, "data": data},
    }
    certificate: Certificate | RangeCertificate
    with kept_after_interruption(lambda: _kept(out)):
        with live_progress(len(images), quiet) as progress:
            if task == "regression":
                common |= without_none(excess=excess, width=width)
                certificate = certify_range(network, images.to(place), chosen, labels, progress=progress, **common)
            else:
                certificate = certify(network, images.to(place), labels.to(place), chosen, progress=progress, **common)
        if curve and out is not None and isinstance(certificate, Certificate):
            options_of_curve = {name: common[name] for name in ("method", "semantics", "budget", "seed")} | search
            _curve(out, network, images.to(place), labels.to(place), chosen, certificate, options_of_curve, quiet)
    summary = certificate.summary() | {"model": model, "data": data}
    if not quiet:
        (print_ranges if task == "regression" else print_summary)(summary)
    if json_file is not None:
        write_json(json_file, summary | {"records": certificate.records()})
    if fail_under is not None and summary["certified_percent"] < fail_under:
        typer.echo(f"certified {summary['certified_percent']:.2f} % is below --fail-under {fail_under:g} %", err=True)
        raise typer.Exit(1)


def _curve(
    out: Path,
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Transform,
    certificate: Certificate,
    search: dict[str, Any],
    quiet: bool,
) -> None:
    """Nested ranges, for the images that the whole range left open."""
    began = time.perf_counter()
    with live_progress(len(images), quiet) as report:
        points = certified_curve(network, images, labels, transform, certificate, progress=report, **search)
    write_curve(out, points, began)


def _check_task(task: str, only_regression: dict[str, object], only_classes: dict[str, object]) -> None:
    """One of the two tasks, and no option that belongs to the other."""
    if task not in TASKS:
        raise InputError("unknown task", got=task, do=f"use one of {', '.join(TASKS)}")
    for name, value in (only_classes if task == "regression" else only_regression).items():
        if value is not None:
            raise InputError(f"{name} has no meaning for --task {task}", got=value, do="leave it out")


def _kept(out: Path | None) -> str:
    """What became of the results of a run that was interrupted."""
    if out is None:
        return "nothing was kept (--out keeps finished batches)"
    return f"finished batches are kept in {out}; repeat the command with --resume to go on"
