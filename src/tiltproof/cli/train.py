"""``tiltproof train``: train a certifiable network from a recipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltproof.cli import options
from tiltproof.cli.display import Line, LogLine, kept_after_interruption, live_line
from tiltproof.cli.messages import tell
from tiltproof.cli.options import EFFORT, PROBLEM, RESULTS, argument, flag, option
from tiltproof.errors import InputError
from tiltproof.names import SIGNED_LABELS
from tiltproof.training.recipe_files import recipe_names

if TYPE_CHECKING:
    from tiltproof.training import TrainProgress, TrainResult

PHASES = {"train": "training", "certify": "certifying"}


@contextmanager
def live_training(quiet: bool = False) -> Iterator[Callable[[TrainProgress], None] | None]:
    """A callback for `train`: a progress bar on a terminal, elsewhere a line on stderr every half minute."""
    if quiet:
        yield None
    elif not sys.stdout.isatty():
        yield TrainingLog()
    else:
        with live_line(_line, PHASES["train"], None) as update:
            yield update


def _line(progress: TrainProgress) -> Line:
    return Line(PHASES.get(progress.phase, progress.phase), progress.step, progress.steps, statuses(progress))


class TrainingLog(LogLine):
    """One line every half minute and at each change of phase."""

    phase = "train"

    def __call__(self, progress: TrainProgress) -> None:
        if self.due() or progress.phase != self.phase:
            self.phase = progress.phase
            self.say(f"{PHASES.get(progress.phase, progress.phase)} | {statuses(progress)[0]}")


def statuses(progress: TrainProgress) -> list[str]:
    """Epoch, losses, weight of the clean loss, box sizes and time left, each time with less, the longest text first.

    >>> from tiltproof.training import TrainProgress
    >>> for text in statuses(TrainProgress(epoch=3, epochs=100, step=500, steps=20_000, clean_loss=0.1234,
    ...                                    certified_loss=0.5, kappa=0.9, nu=(0.05,), seconds=30.0, seconds_left=3725.0)):
    ...     print(text)
    epoch 3/100 | clean 0.1234, certified 0.5000 | kappa 0.90, nu 0.05 | 1:02:05 left
    epoch 3/100 | clean 0.1234, certified 0.5000 | 1:02:05 left
    epoch 3/100 | 1:02:05 left
    epoch 3/100
    """
    losses, boxes = f"clean {progress.clean_loss:.4f}", []
    if progress.certified_loss is not None:
        losses += f", certified {progress.certified_loss:.4f}"
        boxes = [f"kappa {progress.kappa:.2f}, nu {' '.join(f'{half:.3g}' for half in progress.nu)}"]
    left = []
    if progress.phase == "train" and progress.seconds_left is not None:
        left = [f"{clock(progress.seconds_left)} left"]
    epoch = f"epoch {progress.epoch}/{progress.epochs}"
    parts = [[epoch, losses, *boxes, *left], [epoch, losses, *left], [epoch, *left], [epoch]]
    return list(dict.fromkeys(" | ".join(part) for part in parts))


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any.

    >>> clock(59.6), clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


DIVERGED = 1
EPILOG = options.epilog(
    "tiltproof train mnist-r30 --quick",
    "tiltproof train mnist-r30-paper --set train.seed=1 --out runs/mine --resume",
    "torchrun --nproc-per-node 4 -m tiltproof train mnist-r30-paper",
    "tiltproof certify --model runs/mine/model.safetensors --data mnist",
    code_1="the loss diverged",
)


def command(
    recipe: Annotated[
        str, argument("A bundled recipe, e.g. mnist-r30 (TAB lists them), or a TOML file.", "RECIPE", recipe_names)
    ],
    settings: Annotated[
        list[str] | None,
        option("Change an entry of the recipe, e.g. train.epochs=20; may be repeated.", PROBLEM, "KEY=VALUE", "--set"),
    ] = None,
    quick: Annotated[bool, flag("Train for a few epochs: ten minutes on two cores.", EFFORT, "--quick")] = False,
    device: options.Device = "auto",
    out: Annotated[
        Path | None, option("Weights, card, log and checkpoints (default: runs/RECIPE).", RESULTS, "FOLDER")
    ] = None,
    resume: Annotated[bool, flag("Continue the run in --out from its last checkpoint.", RESULTS, "--resume")] = False,
    certify_images: Annotated[int, option("Held-out images to certify at the end.", RESULTS, "N")] = 200,
    certify_every: Annotated[int, option("Certify them also after every N epochs.", RESULTS, "N")] = 0,
    quiet: options.Quiet = False,
    data_root: options.DataRoot = None,
) -> None:
    """Train a network that can be certified.

    A held-out share of the training set measures the network; the test set is not
    touched. A checkpoint is written after every epoch: after a crash or Ctrl-C the
    same command with --resume continues and ends with the weights of an
    undisturbed run (bit for bit on a CPU). The folder then holds model.safetensors,
    its card.json, log.jsonl and recipe.json; certify reads architecture and
    transformation from the card.
    """
    from tiltproof.training import TrainingFailed, read_recipe, train

    for name, number in (("--certify-images", certify_images), ("--certify-every", certify_every)):
        if number < 0:
            raise InputError(f"{name} is a number of at least 0", got=number)
    chosen = read_recipe(recipe).with_settings(settings or [])
    folder = out or Path("runs") / (chosen.name + ("-quick" if quick else ""))
    silent = quiet or os.environ.get("RANK", "0") != "0"  # of several processes only the first one prints
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
        tell(f"training failed: {failure}", err=True)
        raise typer.Exit(DIVERGED) from None
    if not silent:
        tell(sentence(result))
        task = " --task regression" if chosen.data.name in SIGNED_LABELS else ""
        root = "" if data_root is None else f" --data-root {data_root}"
        model = folder / "model.safetensors"
        typer.echo(f"next: tiltproof certify{task} --model {model} --data {chosen.data.name}{root}")


def sentence(result: TrainResult) -> str:
    """Say in one line what was reached."""
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
    """Say what became of an interrupted run."""
    if any((folder / "checkpoint").glob("*.json")):
        return f"finished epochs are kept in {folder}; repeat the command with --resume to go on"
    return "no epoch was finished, so nothing was kept"
