"""Unusable input gets one clear message on stderr and exit code 2: no traceback, and never a verdict."""

import pytest
import torch
import typer
from safetensors.torch import save_file

from tiltproof.cli import app
from tiltproof.models import mnist_cnn


def refused(result, *words):
    """Assert exit code 2, a single message on stderr with these words, and no other output."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    return True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("R(10:-10)", ["reversed"]),
        ("R(5:5)", ["empty"]),
        ("R(0)", ["empty"]),
        ("Sc(-100:5)", ["-100"]),
        ("Sc(150)", ["-100"]),
        ("R(361)", ["full turn"]),
        ("Yaw(5)", ["focal length", "Yaw(5@300)"]),
        ("Yaw(60@5)", ["8 x 8", "depth reaches zero", "longer focal length"]),
        ("Q(5)", ["unknown transformation letter", "Tu", "Tv", "Sc", "Sh", "B"]),
        ("R(five)", ["not a number"]),
        ("R(nan)", ["finite"]),
        ("R(inf)", ["finite"]),
        ("", ["cannot read"]),
        ("R 30", ["cannot read"]),
        ("S(10)", ["3 channels", "leave S(10) out"]),
        ("Bl(-1:2)", ["between 0 and 32"]),
        ("Mb(2@north)", ["Mb's angle is not a number", "north"]),
    ],
)
def test_transformations(certify, text, words):
    assert refused(certify(transform=text), *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--boxes", 0], ["at least one box"]),
        (["--seconds", 0], ["positive number of seconds"]),
        (["--samples", 0], ["at least one sample"]),
        (["--batch-size", 0], ["batch size"]),
        (["--memory", "2 apples"], ["memory limit", "2GB"]),
        (["--memory", "1KB"], ["leaves no room"]),
        (["--limit", 0], ["--limit must be at least 1"]),
        (["--start", 5], ["images 0 to 4"]),
        (["--start", -1], ["images 0 to 4"]),
        (["--end", 6], ["images 0 to 4"]),
        (["--start", 3, "--end", 3], ["images 0 to 4"]),
        (["--end", 3, "--limit", 3], ["twice"]),
        (["--splits", "ten"], ["whole numbers"]),
        (["--splits", "0"], ["splits"]),
        (["--splits", "3,3"], ["splits"]),
        (["--method", "magic"], ["unknown method", "affine", "hull", "fgv"]),
        (["--method", "fgv", "--transform", "Bl(1)"], ["use method affine or hull"]),
        (["--padding", "mirror"], ["unknown padding", "zeros, border, reflect"]),
        (["--interpolation", "cubic"], ["unknown interpolation", "bilinear, nearest, bicubic"]),
        (["--device", "abacus"], ["unknown device"]),
        (["--device", "cuda:99"], ["not available", "--device cpu"]),
        (["--fail-under", 101], ["percentage"]),
        (["--fail-under", "nan"], ["percentage"]),
        (["--json", "photo_networks.py/result.json"], ["cannot be written"]),
        (["--json", "photos/labels.csv/more/result.json"], ["cannot be written"]),
        (["--json", "photos"], ["is a folder"]),
        (["--out", "photo_networks.py"], ["result folder cannot be written"]),
        (["--arch", "mnist_cnn"], ["--arch goes with a .safetensors file only"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_options(certify, options, words):
    assert refused(certify(*options), *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none(certify):
    assert refused(certify("--device", "cuda"), "not available", "--device auto")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("huge-net", ["no bundled model has this name", "huge-net", "use one of"]),
        ("missing.safetensors", ["cannot be read", "missing.safetensors"]),
        ("model.pt", ["safetensors files only", "can run any code"]),
        ("photo_networks:nothing", ["not found"]),
        ("no_such_module:build", ["not found"]),
        ("photo_networks:one_class", ["at least two classes"]),
        ("photo_networks:not_finite", ["NaN or infinity"]),
        ("photo_networks:sorting", ["sort"]),
    ],
)
def test_models(certify, model, words):
    assert refused(certify(model=model), *words)


WITH_MODEL = {
    "certify": ["certify", "--data", "photos"],
    "attack": ["attack", "--data", "photos"],
    "radius": ["radius", "--data", "photos"],
    "export": ["export", "--vnnlib", "--data", "photos", "--out", "properties"],
    "check": ["check", "run", "--data", "photos"],
    "report": ["report", "run", "--data", "photos"],
}
WRONG_MODELS = {
    "mnist-r31": ["no bundled model has this name", "Got: mnist-r31"],
    "runs/unfinished/model.safetensors": ["cannot be read", "runs/unfinished/model.safetensors"],
    "missing.onnx": ["missing.onnx"],
    "no_such_module:build": ["was not found", "no_such_module"],
    "photo_networks:nothing": ["was not found", "photo_networks:nothing"],
}


def options_of(command):
    inner = getattr(command, "commands", None)
    return {option for parameter in command.params for option in parameter.opts} if inner is None else set()


def test_every_command_with_a_model_is_tried():
    commands = typer.main.get_command(app).commands
    assert {name for name, command in commands.items() if "--model" in options_of(command)} == set(WITH_MODEL)


@pytest.mark.parametrize("model", WRONG_MODELS)
@pytest.mark.parametrize("command", WITH_MODEL)
def test_a_wrong_model_is_what_is_wrong(tiltproof, certify, command, model):
    """The message is not about the transformation, which a card would have given."""
    if "run" in WITH_MODEL[command]:
        assert certify("--out", "run", "--quiet", "--limit", 1).exit_code == 0
    result = tiltproof(*WITH_MODEL[command], "--model", model)
    assert refused(result, *WRONG_MODELS[model])
    assert "--transform" not in result.stderr


@pytest.mark.parametrize("command", ["certify", "attack"])
def test_outputs_that_are_not_finite(tiltproof, command):
    """All images but the black one; its misclassification is not an error."""
    network = ["--model", "photo_networks:overflowing", "--data", "photos", "--transform", "B(0.01)"]
    assert refused(tiltproof(command, *network, "--start", 2), "outputs for image 2 are not finite", "Got: inf")
    assert tiltproof(command, *network, "--start", 4).exit_code == 0


def test_a_run_that_cannot_begin_leaves_no_folder(certify, workspace):
    """Even if that shows only when the first images are evaluated."""
    options = ("--out", "runs/first", "--start", 2, "--transform", "B(0.01)")
    assert refused(certify(*options, model="photo_networks:overflowing"), "outputs for image 2 are not finite")
    assert not (workspace / "runs").exists()
    (workspace / "runs" / "first").mkdir(parents=True)
    assert refused(certify(*options, model="photo_networks:overflowing"), "not finite")
    assert list((workspace / "runs" / "first").iterdir()) == []
    assert certify(*options, "--quiet").exit_code == 0
    assert refused(certify(*options, "--resume", model="photo_networks:overflowing"))
    assert (workspace / "runs" / "first" / "summary.json").exists()


def test_weight_files(certify, workspace):
    weights = workspace / "net.safetensors"
    save_file(mnist_cnn().state_dict(), weights)
    assert refused(certify(model="net.safetensors"), "--arch", "mnist_cnn, cifar10_cnn")
    assert refused(
        certify("--arch", "resnet", model="net.safetensors"), "unknown architecture", "mnist_cnn, cifar10_cnn"
    )
    assert refused(certify("--arch", "cifar10_cnn", model="net.safetensors"), "do not fit cifar10_cnn", "conv3.weight")
    weights.write_bytes(weights.read_bytes()[:1000])
    assert refused(certify("--arch", "mnist_cnn", model="net.safetensors"), "not a readable safetensors file")


def test_images_of_another_size_than_the_network_takes(certify):
    result = certify(data="mnist-sample")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("imagenet", ["neither a known data set nor a folder", "mnist-sample"]),
        (".", ["no labels.csv"]),
    ],
)
def test_data(certify, data, words):
    assert refused(certify(data=data), *words)


def test_a_data_root_without_the_data(certify):
    assert refused(certify("--data-root", "photos", data="mnist"), "mnist is not in the data folder")


def test_a_corrupt_data_file(certify, workspace):
    (workspace / "t10k-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bnonsense")
    (workspace / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    assert refused(certify("--data-root", ".", data="mnist"), "damaged", "t10k-images-idx3-ubyte.gz")


def test_a_folder_with_no_images(certify, workspace):
    (workspace / "photos" / "labels.csv").write_text("filename,label\n")
    assert refused(certify(), "lists no images")


def test_a_label_outside_the_classes(certify, workspace):
    (workspace / "photos" / "labels.csv").write_text("filename,label\nbright.png,2\n")
    assert refused(certify(), "labels must lie between 0 and 1")


def test_bad_input_leaves_no_files(certify, workspace):
    before = set(workspace.rglob("*"))
    assert refused(certify("--json", "new/result.json", "--out", "runs", model="huge-net"))
    assert set(workspace.rglob("*")) == before


@pytest.mark.parametrize("arguments", [["certify"], ["certify", "--no-such-option"], ["no-such-command"]])
def test_the_parser_refuses_too(tiltproof, arguments):
    result = tiltproof(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
