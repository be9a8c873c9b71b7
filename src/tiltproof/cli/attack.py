"""``tiltproof attack``: look for a transformation of the range that breaks the answer, and prove nothing."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tiltproof.cli import options
from tiltproof.cli.display import print_rows
from tiltproof.cli.inputs import STDOUT, check_text_file, load_selection, model_and_transform, without_none, write_json
from tiltproof.cli.options import SEARCH
from tiltproof.device import choose_device
from tiltproof.verify.attack import attack

MOST_ROWS = 20
EXAMPLES = options.examples(
    "tiltproof attack --model mnist-r30 --data mnist-sample",
    'tiltproof attack --model mnist-r30 --data mnist-sample --transform "R(60)"',
    'tiltproof attack --model mnist-r30 --data mnist-sample --transform "R(30), Tu(2)" --json found.json',
)


def command(
    model: options.Model,
    data: options.Data,
    transform: options.OptionalTransformText = None,
    arch: options.Architecture = None,
    allow_pickle: options.AllowPickle = False,
    data_root: options.DataRoot = None,
    padding: options.Padding = None,
    device: options.Device = "auto",
    start: options.Start = 0,
    end: options.End = None,
    limit: options.Limit = None,
    samples: options.Samples = None,
    steps: Annotated[
        int | None, typer.Option(help="Gradient steps from the worst sample.", rich_help_panel=SEARCH)
    ] = None,
    seed: options.Seed = 0,
    json_file: options.JsonFile = None,
    quiet: options.Quiet = False,
) -> None:
    """Search for parameters in the range that change the answer, by sampling and gradient steps.

    Without --transform the range is the one the network was trained for, as its
    card says: a bundled model's, or the card beside a weight file.

    Every counterexample is checked again in double precision. Finding none
    proves nothing: that is what certify is for.
    """
    place = choose_device(device)
    check_text_file(json_file)
    network, chosen = model_and_transform(model, arch, allow_pickle, transform, padding)
    network = network.to(place)
    images, labels, first = load_selection(data, data_root, start, end, limit)
    begin = time.perf_counter()
    settings = without_none(samples=samples, steps=steps)
    result = attack(network, images.to(place), labels.to(place), chosen, seed=seed, first=first, **settings)
    seconds = time.perf_counter() - begin
    found: list[dict[str, Any]] = [
        {"image": first + k, "label": int(labels[k]), "parameters": list(parameters), "margin": result.margins[k]}
        for k, parameters in enumerate(result.parameters)
        if parameters is not None
    ]
    correct, falsified = sum(result.correct), len(found)
    summary = {
        "transform": str(chosen),
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
    if not quiet and json_file != STDOUT:
        _print(summary, found)


def _print(summary: dict[str, Any], found: list[dict[str, Any]]) -> None:
    columns = {"image": "right", "label": "right", f"parameters of {summary['transform']}": "left", "margin": "right"}
    rows = [
        [str(one["image"]), str(one["label"]), ", ".join(f"{x:.6g}" for x in one["parameters"]), f"{one['margin']:.4f}"]
        for one in found
    ]
    if rows:
        print_rows(columns, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        typer.echo(f"({len(rows) - MOST_ROWS} more: see --json)")
    counts = (
        "{images:,} images, {correct:,} correct: {falsified:,} falsified, {unfalsified:,} unfalsified ({seconds:.1f} s)"
    )
    typer.echo(counts.format(**summary))
