"""What a training run tells while it goes, when it is done, and when it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True)
class TrainProgress:
    """Where a run stands; handed to the ``progress`` callback every few steps."""

    epoch: int  # the one under way, from 1
    epochs: int
    step: int  # steps done, of this and all earlier epochs
    steps: int  # of the whole run
    clean_loss: float  # mean over the epoch so far
    certified_loss: float | None
    kappa: float
    nu: tuple[float, ...]  # half widths of the boxes now
    seconds: float
    seconds_left: float | None
    phase: str = "train"  # or "certify"


@dataclass
class TrainResult:
    """A trained network, and what was measured on the held-out images; None where nothing was."""

    model: nn.Module = field(repr=False)
    folder: Path
    epochs: int  # done
    finished: bool
    clean_percent: float | None = None
    certified_percent: float | None = None
    unfalsified_percent: float | None = None
    boxes_per_image: float | None = None
    mean_absolute_error: float | None = None  # this and the next two: of a regression network
    certified_mean_absolute_error: float | None = None
    mean_width: float | None = None
    certified_images: int = 0
    seconds: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list, repr=False)


class TrainingFailed(RuntimeError):
    """The run went astray, and going on would be of no use; the last good checkpoint is kept."""

    def __init__(self, what: str, epoch: int, step: int | None, checkpoint: Path | None) -> None:
        self.epoch, self.step, self.checkpoint = epoch, step, checkpoint
        where = f"epoch {epoch}" if step is None else f"epoch {epoch}, step {step}"
        kept = f"the last good weights are {checkpoint}" if checkpoint else "no epoch was finished before"
        super().__init__(
            f"{what} ({where}). Likely cause: steps that are too large. What to do: lower train.learning_rate, "
            f"or clip gradients with a smaller train.clip_norm; {kept}."
        )
