"""The public API is what __init__ exports; changing it is a decision, not an accident."""

import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

import tiltproof
import tiltproof.training as training
from tests.support.processes import environment

PUBLIC = {
    "Budget",
    "Certificate",
    "CheckFailed",
    "Compose",
    "InputError",
    "RangeCertificate",
    "RayWorkers",
    "Transform",
    "UnsupportedOperation",
    "Verdict",
    "attack",
    "bound_network",
    "bound_pixels",
    "certify",
    "certify_range",
    "check",
    "parse",
    "report",
    "train",
}
SUBMODULES = {"data", "export", "losses", "models", "reports", "training", "transforms"}
TRAINING = {
    "Recipe",
    "TrainProgress",
    "TrainResult",
    "TrainingFailed",
    "Widths",
    "pixel_widths",
    "read_recipe",
    "recipe_names",
    "recipes",
    "train",
    "tune",
}


def test_the_public_names_are_frozen():
    assert set(tiltproof.__all__) == PUBLIC | SUBMODULES
    assert set(training.__all__) == TRAINING


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_no_public_function_shares_its_name_with_a_module(name):
    """`import tiltproof.certify` must not yield a function, nor `tiltproof.certify` a package."""
    assert not isinstance(getattr(tiltproof, name), ModuleType)
    assert importlib.util.find_spec(f"tiltproof.{name}") is None


def test_every_public_thing_says_what_it_is():
    assert all(getattr(tiltproof, name).__doc__ for name in PUBLIC | SUBMODULES)
    for module in (getattr(tiltproof, name) for name in SUBMODULES):
        assert all(getattr(module, name).__doc__ for name in module.__all__ if callable(getattr(module, name)))


def test_bad_input_is_a_value_error():
    assert issubclass(tiltproof.InputError, ValueError)
    assert issubclass(tiltproof.UnsupportedOperation, tiltproof.InputError)


def test_the_verdicts_are_the_four_words():
    assert [verdict.value for verdict in tiltproof.Verdict] == ["certified", "falsified", "unknown", "misclassified"]


def test_import_needs_only_torch_and_numpy():
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'pooch', 'PIL', 'matplotlib', 'onnx', 'onnxruntime', 'ray'): sys.modules[name] = None\n"
        "import tiltproof\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment()).returncode == 0
