"""Live progress of a training run: one changing line on a terminal, a line now and then in a log."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import HalfMinutes, Line, kept_after_interruption, live_line
from tiltproof.cli.options import RESULTS
from tiltproof.data import SIGNED_LABELS
from tiltproof.errors import InputError
from tiltproof.training import TrainingFailed, TrainProgress, TrainResult, read_recipe, recipe_names, train

PHASES = {"train": "training", "certify": "certifying"}


@contextmanager
def live_training(quiet: bool = False) -> Iterator[Callable[[TrainProgress], None] | None]:
    """A callback for `train`: one line kept up to date on a terminal, a line on stderr now and then elsewhere."""
    if quiet:
        yield None
    elif not sys.stdout.isatty():
        yield Occasionally()
    else:
        with live_line(_line, PHASES["train"], None) as update:
            yield update


def _line(progress: TrainProgress) -> Line:
    return Line(PHASES.get(progress.phase, progress.phase), progress.step, progress.steps, status(progress))


class Occasionally(HalfMinutes):
    """For logs: the first report after each half minute, and the change of phase."""

    phase = "train"

    def __call__(self, progress: TrainProgress) -> None:
        if self.passed() or progress.phase != self.phase:
            self.phase = progress.phase
            self.say(f"{PHASES.get(progress.phase, progress.phase)} | {status(progress)}")


def status(progress: TrainProgress) -> str:
    """Epoch, losses, the clean term's weight, box sizes and the time left, in one line.

    >>> status(TrainProgress(epoch=3, epochs=100, step=500, steps=20_000, clean_loss=0.1234, certified_loss=0.5,
    ...                      kappa=0.9, nu=(0.05,), seconds=30.0, seconds_left=3725.0))
    'epoch 3/100 | clean 0.1234, certified 0.5000 | kappa 0.90, nu 0.05 | 1:02:05 left'
    """
    losses = f"clean {progress.clean_loss:.4f}"
    parts = [f"epoch {progress.epoch}/{progress.epochs}"]
    if progress.certified_loss is None:
        parts.append(losses)
    else:
        parts.append(f"{losses}, certified {progress.certified_loss:.4f}")
        parts.append(f"kappa {progress.kappa:.2f}, nu {' '.join(f'{half:.3g}' for half in progress.nu)}")
    if progress.phase == "train" and progress.seconds_left is not None:
        parts.append(f"{clock(progress.seconds_left)} left")
    return " | ".join(parts)


def clock(seconds: float) -> str:
    """Hours (where there are any), minutes and seconds.

    >>> clock(59.6), clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


# ``tiltproof train``: a recipe becomes a network that can be certified.


WENT_ASTRAY = 1
EXAMPLES = options.examples(
    "tiltproof train mnist-r30 --quick",
    "tiltproof train mnist-r30-paper --data-root DIR --device cuda --out runs/mnist-r30",
    "tiltproof train mnist-r30-paper --out runs/mnist-r30 --resume",
    "tiltproof train mnist-r30-paper --set train.seed=1 --set loss.nu=[0.1] --set data.hold_out=0.0",
    "tiltproof train my-recipe.toml --certify-every 10 --certify-images 500",
    "torchrun --nproc-per-node 4 -m tiltproof train mnist-r30-paper --out runs/mnist-r30",
    "tiltproof certify --model runs/mnist-r30/model.safetensors --data mnist",
)


def _complete_recipe(incomplete: str) -> list[str]:
    return options.beginning(recipe_names(), incomplete)


def command(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=_complete_recipe,
            help="A recipe of the package by name, or the path of a TOML file.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change one entry of the recipe, e.g. train.epochs=20; may be repeated."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few epochs: a useful network in some ten minutes on two CPU cores."),
    ] = False,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Weights, card, log and checkpoints (default: runs/ and the recipe's name).",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run that --out holds, whatever stopped it; the same command otherwise.",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    certify_images: Annotated[
        int,
        typer.Option(help="Certify so many held-out images at the end; 0: none.", rich_help_panel=RESULTS),
    ] = 200,
    certify_every: Annotated[
        int,
        typer.Option(help="Certify them also after every so many epochs; 0: only at the end.", rich_help_panel=RESULTS),
    ] = 0,
    quiet: options.Quiet = False,
) -> None:
    """Train a network for a range of transformations, by a recipe.

    The network is measured on a share of the training set that is held out;
    no test image is touched. After every epoch a checkpoint is written: after
    a crash or Ctrl-C the same command with --resume goes on, and ends with the
    weights of an undisturbed run (bit for bit on a CPU).

    The folder holds model.safetensors and card.json (what it is, and what was
    measured), log.jsonl (a line an epoch), recipe.json, and TensorBoard's event files
    where the package tensorboard is installed. certify reads the architecture
    and the transformation from the card.

    Exit codes: 0 done, 1 the loss went astray, 2 bad input, 70 internal error,
    130 interrupted, 143 terminated.
    """
    for name, number in (("--certify-images", certify_images), ("--certify-every", certify_every)):
        if number < 0:
            raise InputError(f"{name} is a number of at least 0", got=number)
    chosen = read_recipe(recipe).with_settings(settings or [])
    folder = out or Path("runs") / (chosen.name + ("-quick" if quick else ""))
    silent = quiet or os.environ.get("RANK", "0") != "0"  # of several processes the first one speaks
    try:
        with live_training(silent) as progress, kept_after_interruption(lambda: _kept(folder)):
            result = train(
                chosen,
                data_root=data_root,
                device=device,
                out=folder,
                resume=resume,
                progress=progress,
                quick=quick,
                certify_images=certify_images,
                certify_every=certify_every,
            )
    except TrainingFailed as failure:
        typer.echo(f"training failed: {failure}", err=True)
        raise typer.Exit(WENT_ASTRAY) from None
    if not silent:
        typer.echo(sentence(result))
        task = " --task regression" if chosen.data.name in SIGNED_LABELS else ""
        typer.echo(f"next: tiltproof certify{task} --model {folder / 'model.safetensors'} --data {chosen.data.name}")


def sentence(result: TrainResult) -> str:
    """What was reached, in one line."""
    text = f"{result.folder}: {result.epochs} epochs in {clock(result.seconds)}"
    if result.mean_absolute_error is not None:
        text += f"; mean absolute error {result.mean_absolute_error:.4g} on the held-out images"
        if result.mean_width is not None:
            text += (
                f", of the first {result.certified_images:,} of them {result.certified_mean_absolute_error:.4g} certified, "
                f"with ranges {result.mean_width:.4g} wide"
            )
        return text
    if result.clean_percent is None:
        return text + "; no image was held out, so nothing was measured"
    text += f"; of the held-out images {result.clean_percent:.2f} % are right"
    if result.certified_percent is not None:
        text += f", of the first {result.certified_images:,} of them {result.certified_percent:.2f} % certified"
    return text


def _kept(folder: Path) -> str:
    """What became of a run that was interrupted."""
    if any((folder / "checkpoint").glob("*.json")):
        return f"finished epochs are kept in {folder}; repeat the command with --resume to go on"
    return "no epoch was finished, so nothing was kept"
