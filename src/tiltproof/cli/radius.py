"""``tiltproof radius``: the largest proved range of every image, and the curve of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from tiltproof.cli import options
from tiltproof.cli.certify import kept_batches
from tiltproof.cli.display import kept_after_interruption, live_progress
from tiltproof.cli.inputs import (
    STDOUT,
    DataChoice,
    ModelChoice,
    check_text_file,
    load_selection,
    model_and_transform,
    without_none,
    write_json,
)
from tiltproof.cli.kept import AllowOption, ForbidOption, KeepChoice, KeepOwnFlag, TopKOption
from tiltproof.cli.options import EFFORT, RARE, RESULTS, flag, option
from tiltproof.cli.tables import print_cost, print_unknown_reasons, run_title, share_bar
from tiltproof.errors import InputError
from tiltproof.verify.options import Attack, BranchAndBound, Execution, RunFolder, bounds_for

ROWS = 10
"""Steps of the radius in the printed table."""
EPILOG = options.epilog(
    'tiltproof radius --model mnist-r30 --data mnist-sample --transform "R(90)"',
    'tiltproof radius --model net.onnx --data photos/ --transform "R(9), Sc(9)"',
)


@options.expanded
def command(
    model: options.Model,
    data: options.Data,
    transform: options.OptionalTransformText = None,
    semantics: options.Semantics = "real",
    start: options.Start = 0,
    limit: options.Limit = None,
    keep_own: KeepOwnFlag = False,
    top_k: TopKOption = None,
    allow: AllowOption = None,
    forbid: ForbidOption = None,
    gap: Annotated[
        float | None, option("Stop when both ends are this close, e.g. 0.1 degrees [a thousandth]", EFFORT, "X")
    ] = None,
    boxes: Annotated[
        int | None,
        option(f"Most boxes per image [default: {BranchAndBound().max_boxes:,}]", EFFORT, "N"),
    ] = None,
    seconds: Annotated[float | None, option("Most seconds per image.", EFFORT, "S")] = None,
    method: options.Method = "affine",
    samples: Annotated[int | None, option("Rays that the attack samples per image.", EFFORT, "N")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    memory: options.MemoryLimit = None,
    ray: options.RayCluster = None,
    out: Annotated[Path | None, option("Keep the evidence, for tiltproof check and report.", RESULTS, "FOLDER")] = None,
    resume: Annotated[bool, flag("Continue the run in --out, or start it.", RESULTS, "--resume")] = False,
    overwrite: Annotated[bool, flag("Replace the run in --out.", RESULTS, "--overwrite")] = False,
    json_file: options.JsonFile = None,
    quiet: options.Quiet = False,
    padding: options.Padding = None,
    interpolation: options.Interpolation = None,
    end: options.End = None,
    files: options.Files = options.NO_FILES,
    batch_size: options.BatchSize = None,
    batch_images: Annotated[int | None, option("Images per batch, or per task of a Ray worker.", RARE, "N")] = None,
    seed: options.Seed = 0,
) -> None:
    """Find for each image the largest range that can be proved.

    The range of --transform is proved outward from the image as it is, all
    parameters in proportion. Each image has a radius up to which no
    transformation changes the answer (proved), and one at which a
    counterexample lies (at most).
    """
    from tiltproof.device import choose_device, use_threads
    from tiltproof.distributed import RayWorkers
    from tiltproof.verify.api import certified_radius

    if resume and out is None:
        raise InputError("there is nothing to resume without a run folder", do="give --out FOLDER as well")
    kept = KeepChoice(keep_own, top_k, allow, forbid)
    workers = None if ray is None else RayWorkers(ray, device)
    use_threads(threads)
    place = choose_device("cpu" if ray is not None else device)
    settings: dict[str, Any] = {
        "gap": gap,
        "semantics": semantics,
        "bounds": bounds_for(method),
        "search": BranchAndBound(**without_none(max_boxes=boxes, max_seconds=seconds)),
        "attack": Attack(**without_none(samples=samples)),
        "execution": Execution(memory, workers, batch_size, batch_images),
        "seed": seed,
    }
    choice, chosen_data = ModelChoice.of(model, files), DataChoice.of(data, files)
    check_text_file(json_file)
    quiet = quiet or json_file == STDOUT
    network, chosen = model_and_transform(choice, transform, padding, interpolation, chosen_data)
    keep = kept.keep(chosen_data) if kept.given else None
    images, labels, first = load_selection(chosen_data, start, end, limit, kept.task)
    notes = {"model": model, "arch": files.arch, "data": data} | choice.notes() | chosen_data.notes() | kept.notes()
    folder = None if out is None else RunFolder(out, resume, overwrite, notes)
    problem = (network.to(place), images.to(place), labels.to(place), chosen)
    with kept_after_interruption(lambda: kept_batches(out)), live_progress(len(images), quiet) as progress:
        certificate = certified_radius(*problem, keep=keep, run=folder, first=first, progress=progress, **settings)
    summary = certificate.summary() | {"model": model, "data": data}
    curve = [asdict(point) for point in certificate.curve()]
    if not quiet:
        print_radii(summary, curve)
    if json_file is not None:
        write_json(json_file, summary | {"curve": curve, "records": certificate.records()})


def print_radii(summary: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]) -> None:
    """Print the share of images that are certified at a few radii, with both ends, and how close these are."""
    images, unit = summary["images"], summary["unit"]
    console = Console()
    table = Table(title=run_title(summary), title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column(unit, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("proved", justify="right", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    for k in range(ROWS + 1):
        radius = summary["reach"] * k / ROWS
        proved = next(each["certified"] for each in curve if each["radius"] >= radius)
        most = next(each["possible"] for each in reversed(curve) if each["radius"] <= radius)
        # rounded down and up
        low, high = math.floor(10_000 * proved / images) / 100, math.ceil(10_000 * most / images) / 100
        bar = share_bar(console, proved, most, images)
        table.add_row(f"{radius:g}", bar, f"{low:.2f} %", f"{high:.2f} %")
    console.print(table)
    if summary.get("keep"):
        console.print(f"proved: the network {summary['keep']}", highlight=False)
    if "," in summary["transform"]:
        console.print(f"radius: that of the first parameter, in {unit}; the others in proportion", highlight=False)
    if summary["median_radius"] is not None:
        console.print(f"proved radius, median: {summary['median_radius']:.4g} {unit}", highlight=False)
    if summary["median_gap"] is not None:
        gaps = f"median {summary['median_gap']:.2g}, largest {summary['largest_gap']:.2g} {unit}"
        console.print(f"from the proved radius to a counterexample: {gaps}", highlight=False)
    whole = f"{summary['certified']:,} proved for the whole range, {summary['falsified']:,} with a counterexample"
    console.print(f"{whole}, {summary['unknown']:,} without either", highlight=False)
    print_cost(console, summary)
    print_unknown_reasons(console, summary)
