"""`load_model`: bundled names, weight files and functions, and the answer to each wrong text."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tiltproof.errors import InputError
from tiltproof.models import ARCHITECTURES, cifar10_cnn, mnist_cnn
from tiltproof.models import load as load_model


@pytest.fixture
def weights(models_folder):
    (models_folder / "tiny.json").rename(models_folder / "away.json")
    return models_folder / "tiny.safetensors"


def test_a_weight_file_with_its_architecture(weights):
    model = load_model(str(weights), "mnist_cnn")
    assert not model.training
    assert torch.equal(model.fc2.bias, load_file(weights)["fc2.bias"])


def test_a_bundled_name(models_folder, monkeypatch):
    monkeypatch.setattr("tiltproof.models.cards.WEIGHTS_FOLDER", models_folder)
    assert isinstance(load_model("tiny"), nn.Module)


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (None, "needs the architecture.*mnist_cnn, cifar10_cnn"),
        ("resnet", "unknown architecture.*Got: resnet.*mnist_cnn, cifar10_cnn"),
        ("cifar10_cnn", r"do not fit cifar10_cnn.*conv3.weight is missing.*and \d more"),
    ],
)
def test_a_wrong_architecture(weights, arch, message):
    with pytest.raises(InputError, match=message):
        load_model(str(weights), arch)


def test_mismatching_shapes_are_listed(tmp_path):
    path = tmp_path / "other.safetensors"
    state = mnist_cnn().state_dict()
    save_file({**state, "fc2.bias": torch.zeros(7), "extra": torch.zeros(1)}, path)
    with pytest.raises(InputError, match=r"extra is unknown.*fc2.bias is \[7\] instead of \[10\]"):
        load_model(str(path), "mnist_cnn")


@pytest.mark.parametrize(
    ("value", "message"),
    [(torch.full((10,), float("nan")), "NaN or infinite"), (torch.zeros(10, dtype=torch.float64), "torch.float64")],
)
def test_weights_that_are_not_finite_float32(tmp_path, value, message):
    path = tmp_path / "other.safetensors"
    save_file({**mnist_cnn().state_dict(), "fc2.bias": value}, path)
    with pytest.raises(InputError, match=message):
        load_model(str(path), "mnist_cnn")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_network_with_batch_norm_comes_back(tmp_path, suffix):
    """Its state contains a counter, which is not a float32."""
    path, model = tmp_path / f"model.{suffix}", ARCHITECTURES["cifar10_cnn7"]()
    model(torch.rand(4, 3, 32, 32))
    if suffix == "pt":
        torch.save(model.state_dict(), path)
    else:
        save_file(model.state_dict(), path)
    state = load_model(str(path), "cifar10_cnn7", allow_pickle=True).state_dict()
    assert state["norm_conv1.num_batches_tracked"] == 1
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_file(weights, keep):
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_model(str(weights), "mnist_cnn")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read.*none\.safetensors"):
        load_model(str(tmp_path / "none.safetensors"), "mnist_cnn")


@pytest.mark.parametrize("suffix", ["pt", "pth", "pkl", "ckpt"])
def test_a_pickle_is_refused_unopened(tmp_path, suffix):
    path = tmp_path / f"model.{suffix}"
    torch.save(cifar10_cnn().state_dict(), path)
    with pytest.raises(InputError, match="safetensors files only.*can run any code.*convert"):
        load_model(str(path), "cifar10_cnn")


def test_an_architecture_without_a_file():
    with pytest.raises(InputError, match="--arch goes with a .safetensors file"):
        load_model("tiny", "mnist_cnn")


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_small_nets.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Linear(2, 3)\n"
        "def number(): return 5\n"
        "def fails(): raise OSError('no weights')\n"
        "def needs(argument): return argument\n"
    )
    (tmp_path / "my_broken_nets.py").write_text("import this is not python\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere", *__import__("sys").path])


@pytest.mark.usefixtures("module")
def test_a_function_of_the_current_directory():
    assert isinstance(load_model("my_small_nets:build"), nn.Linear)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_missing_nets:build", "module of --model .*not found"),
        ("my_small_nets:nothing", "function of --model .*not found"),
        ("my_small_nets:number", "did not return a torch.nn.Module.*int"),
        ("my_small_nets:fails", "OSError: no weights"),
        ("my_small_nets:needs", "takes arguments.*--semantics uint8"),
        ("my_broken_nets:build", "importing the module .*SyntaxError"),
        (":build", "module of --model :build"),
    ],
)
def test_functions_that_give_no_model(spec, message):
    with pytest.raises(InputError, match=message):
        load_model(spec)


@pytest.mark.parametrize("name", ["net.pb", "net.mlmodel"])
def test_a_file_of_another_format_is_named_as_that(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"TFL3")
    with pytest.raises(InputError, match=r"files of this kind cannot be read.*convert it to ONNX"):
        load_model(str(path))
    with pytest.raises(InputError, match="no bundled model has this name"):
        load_model(str(tmp_path / f"other-{name}"))
