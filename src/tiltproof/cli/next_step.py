"""The lines ``next: ...`` after a run of certify: commands to copy, with the options that this run was given."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiltproof.cli.options import Files
from tiltproof.models.cards import models
from tiltproof.names import DATA_NAMES


def next_steps(
    out: Path | None, model: str, data: str, files: Files, searches: Mapping[str, dict[str, Any]]
) -> list[str]:
    """Return what is worth doing after a run; ``searches``: further options of other commands about the same images.

    >>> next_steps(None, "net.onnx", "photos", Files(), {"attack": {"--transform": "R(5)", "--start": 3}})[0]
    "tiltproof attack --model net.onnx --data photos --transform 'R(5)' --start 3"
    """
    about = {"--model": model, "--data": data}
    steps = []
    if out is not None:
        not_noted = {"--data-root": files.data_root, "--allow-pickle": files.allow_pickle}
        steps.append(_command("check", out, about | not_noted))
        own = _found_by_report(model, data, files.data_root)
        steps.append(_command("report", out, ({} if own else about) | not_noted))
    given = {"--" + name.replace("_", "-"): value for name, value in files._asdict().items()}
    steps += [_command(name, None, about | given | options) for name, options in searches.items()]
    if out is None:
        steps.append("certify with --out FOLDER, to keep the evidence for tiltproof check and report")
    return steps


def as_lines(steps: list[str]) -> list[str]:
    """Return the lines to print.

    >>> as_lines(["tiltproof check runs/a", "tiltproof report runs/a"])
    ['next: tiltproof check runs/a', '      tiltproof report runs/a']
    """
    return [("next: " if k == 0 else "      ") + step for k, step in enumerate(steps)]


def _command(name: str, folder: Path | None, options: Mapping[str, Any]) -> str:
    words = ["tiltproof", name] + ([] if folder is None else [str(folder)])
    for option, value in options.items():
        if isinstance(value, list):
            words += [word for each in value for word in (option, each)]
        elif value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, str(value)]
    return shlex.join(words)


def _found_by_report(model: str, data: str, root: Path | None) -> bool:
    """Whether ``tiltproof report`` finds network and images by the run's notes alone."""
    known = model.endswith(".safetensors") or model in {card.name for card in models()}
    return known and (data not in DATA_NAMES or data.endswith("-sample") or root is not None)
