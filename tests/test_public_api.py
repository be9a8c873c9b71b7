"""The public API is what __init__ exports; a change here is a decision, not an accident."""

import subprocess
import sys

import tiltproof
import tiltproof.training as training
from tests.support.processes import environment

PUBLIC = {
    "AffineForm",
    "AttackResult",
    "AugmentationLoss",
    "Brightness",
    "Budget",
    "Certificate",
    "CertifiedLoss",
    "CertifiedRegressionLoss",
    "CheckFailed",
    "CheckReport",
    "Compose",
    "Contrast",
    "Gamma",
    "GaussianBlur",
    "Hue",
    "IbpLoss",
    "ImageResult",
    "InputError",
    "LossValue",
    "MotionBlur",
    "PgdLoss",
    "Pitch",
    "Progress",
    "Ramp",
    "RangeCertificate",
    "RangeProgress",
    "RangeResult",
    "RayWorkers",
    "Recipe",
    "Roll",
    "Rotation",
    "Saturation",
    "Scaling",
    "ScalingU",
    "ScalingV",
    "Shearing",
    "ShearingV",
    "Transform",
    "TranslationU",
    "TranslationV",
    "UnsupportedOperation",
    "Verdict",
    "WorstOfLoss",
    "Yaw",
    "attack",
    "bound_network",
    "bound_pixels",
    "certify",
    "certify_range",
    "check_run",
    "load_data",
    "load_model",
    "load_onnx",
    "parse",
    "read_recipe",
}
OF_TRAINING_ALONE = {
    "TrainProgress",
    "TrainResult",
    "TrainingFailed",
    "TrainingLoss",
    "Widths",
    "pixel_widths",
    "recipe_names",
    "recipes",
    "train",
    "tune",
}
"""Public in tiltproof.training and not in tiltproof, where the function's name is the subpackage's."""


def test_the_public_names_are_frozen():
    assert set(tiltproof.__all__) == PUBLIC
    assert all(hasattr(tiltproof, name) for name in PUBLIC)


def test_the_public_names_of_training_are_frozen():
    assert set(training.__all__) - PUBLIC == OF_TRAINING_ALONE
    for name in set(training.__all__) & PUBLIC:
        assert getattr(training, name) is getattr(tiltproof, name)
    assert tiltproof.training is training  # a subpackage, whoever was imported first
    assert callable(training.train)


def test_every_public_thing_says_what_it_is():
    assert all(getattr(tiltproof, name).__doc__ for name in PUBLIC)
    assert all(getattr(training, name).__doc__ for name in OF_TRAINING_ALONE)


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
