"""``tiltproof attack``: search for a counterexample without proving anything."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tiltproof.cli import options
from tiltproof.cli.display import kept_after_interruption, live_count
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
from tiltproof.cli.messages import tell
from tiltproof.cli.options import EFFORT, option
from tiltproof.cli.tables import print_rows

MAX_ROWS = 20
EPILOG = options.epilog(
    "tiltproof attack --model mnist-r30 --data mnist-sample",
    'tiltproof attack --model mnist-r30 --data mnist-sample --transform "R(60)"',
)


@options.expanded
def command(
    model: options.Model,
    data: options.Data,
    transform: options.OptionalTransformText = None,
    start: options.Start = 0,
    limit: options.Limit = None,
    keep_own: KeepOwnFlag = False,
    top_k: TopKOption = None,
    allow: AllowOption = None,
    forbid: ForbidOption = None,
    samples: options.Samples = None,
    steps: Annotated[int | None, option("Gradient steps from the worst sample.", EFFORT, "N")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    json_file: options.JsonFile = None,
    quiet: options.Quiet = False,
    padding: options.Padding = None,
    interpolation: options.Interpolation = None,
    end: options.End = None,
    files: options.Files = options.NO_FILES,
    seed: options.Seed = 0,
) -> None:
    """Search for a transformation that changes the answer.

    The attack samples parameters and follows gradients from the worst ones.
    Every counterexample is confirmed in double precision. Finding none proves
    nothing; use tiltproof certify for that.
    """
    from tiltproof.device import choose_device, use_threads
    from tiltproof.verify.attack import attack

    use_threads(threads)
    place = choose_device(device)
    check_text_file(json_file)
    choice = ModelChoice.of(model, files)
    chosen_data = DataChoice.of(data, files)
    network, chosen = model_and_transform(choice, transform, padding, interpolation, chosen_data)
    network = network.to(place)
    kept = KeepChoice(keep_own, top_k, allow, forbid)
    keep = kept.keep(chosen_data)
    images, labels, first = load_selection(chosen_data, start, end, limit, kept.task)
    begin = time.perf_counter()
    settings = without_none(samples=samples, steps=steps)
    silent = quiet or json_file == STDOUT
    with live_count(silent, "attacking", "images") as report, kept_after_interruption(lambda: "nothing was kept"):
        settings |= {"keep": keep, "seed": seed, "first": first, "progress": report}
        result = attack(network, images.to(place), labels.to(place), chosen, **settings)
    seconds = time.perf_counter() - begin
    found: list[dict[str, Any]] = [
        {"image": first + k, "label": result.labels[k], "parameters": list(parameters), "margin": result.margins[k]}
        | ({} if (push := result.perturbations[k]) is None else {"perturbation": push})
        for k, parameters in enumerate(result.parameters)
        if parameters is not None
    ]
    correct, falsified = sum(result.correct), len(found)
    summary = {
        "transform": str(chosen),
        **({} if keep is None else {"keep": keep.words}),
        "images": len(images),
        "correct": correct,
        "falsified": falsified,
        "unfalsified": correct - falsified,
        "seconds": seconds,
        "model": model,
        "data": data,
    }
    if json_file is not None:
        write_json(json_file, summary | {"counterexamples": found})
    if not silent:
        _print(summary, found)


def _print(summary: dict[str, Any], found: list[dict[str, Any]]) -> None:
    columns = {"image": "right", "label": "right", f"parameters of {summary['transform']}": "left", "margin": "right"}
    rows = [
        [
            str(one["image"]),
            str(one["label"]),
            ", ".join([*(f"{x:.6g}" for x in one["parameters"]), *(["noise"] if "perturbation" in one else [])]),
            f"{one['margin']:.4f}",
        ]
        for one in found
    ]
    if rows:
        print_rows(columns, rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        typer.echo(f"({len(rows) - MAX_ROWS} more: see --json)")
    right = "satisfy it untransformed" if "keep" in summary else "correct"
    if "keep" in summary:
        tell(f"to break: the network {summary['keep']}")
    counts = (
        "{images:,} images, {correct:,} "
        + right
        + ": {falsified:,} falsified, {unfalsified:,} unfalsified ({seconds:.1f} s)"
    )
    tell(counts.format(**summary))
