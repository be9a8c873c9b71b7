"""A run's claim, counts and files in MLflow, if that is installed."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

from tiltproof.errors import InputError, shown
from tiltproof.runs.reader import read_finished

LONGEST = 250
"""Longest parameter that every version of MLflow takes."""


def log_mlflow(folder: str | Path) -> str:
    """Log a finished run to MLflow: into its active run, or a new one of the folder's name.

    Claim and settings become parameters, the numbers of the summary metrics, and the folder's files artifacts. MLflow's own
    settings, such as the variables ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``, say where.

    Parameters
    ----------
    folder : str or Path
        The run folder.

    Returns
    -------
    str
        The id of the run in MLflow.

    Raises
    ------
    InputError
        If the run is not finished, or MLflow is not installed or refuses.
    """
    run = read_finished(folder)
    try:
        mlflow: Any = importlib.import_module("mlflow")
    except ImportError as error:
        raise InputError("MLflow is not installed", got=shown(error), do="pip install mlflow") from None
    claim = {"transform": str(run.transform), "semantics": run.claim["semantics"], "task": run.task}
    claim |= {"model": run.name("model"), "data": run.name("data"), "weights_sha256": run.claim["weights_sha256"]}
    if run.keep is not None:
        claim["keep"] = run.keep.words
    parameters = {name: shown(value, LONGEST - 3) for name, value in (run.settings | claim).items()}
    metrics = {name: float(value) for name, value in run.summary.items() if _is_number(value)}
    try:
        active = mlflow.active_run()
        opened = mlflow.start_run(run_name=Path(folder).resolve().name) if active is None else active
        try:
            mlflow.log_params(parameters)
            mlflow.log_metrics(metrics)
            mlflow.log_artifacts(str(folder), artifact_path="tiltproof")
        finally:
            if active is None:
                mlflow.end_run()
    except Exception as error:  # of servers, files and settings that are MLflow's
        got = f"{type(error).__name__}: {shown(error, 300)}"
        raise InputError("MLflow refused the run", got=got, do="check MLFLOW_TRACKING_URI, and the server") from error
    return str(opened.info.run_id)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
