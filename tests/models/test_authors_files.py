"""State dicts as the paper's authors published them: layers of Sequential modules, and the constants of the normalization."""

import pytest
import torch
from torch import nn

from tiltproof.errors import InputError
from tiltproof.models import ARCHITECTURES, load

MEAN, STD = torch.tensor([0.2779, 0.3013, 0.3703]), torch.tensor([0.2274, 0.2265, 0.26])


class AuthorsDriving(nn.Module):
    """Their driving network: the same layers under other names, and a flat output."""

    def __init__(self, dropout):
        super().__init__()
        self.normalize = nn.Module()
        self.normalize.register_buffer("mean", MEAN)
        self.normalize.register_buffer("std", STD)
        sizes = [(3, 24, 5, 2), (24, 36, 5, 2), (36, 48, 5, 2), (48, 64, 3, 1), (64, 64, 3, 1)]
        self.conv_layers = nn.Sequential(
            *(layer for size in sizes for layer in (nn.Conv2d(*size), nn.ReLU())), nn.Flatten()
        )
        hidden = [(1152, 100), (100, 50), (50, 10)]
        between = [nn.ReLU(), nn.Dropout()] if dropout else [nn.ReLU()]
        self.fc_layers = nn.Sequential(
            *(layer for size in hidden for layer in (nn.Linear(*size), *between)), nn.Linear(10, 1)
        )

    def forward(self, images):
        images = (images - self.normalize.mean.view(1, 3, 1, 1)) / self.normalize.std.view(1, 3, 1, 1)
        return self.fc_layers(self.conv_layers(images)).view(-1)


@pytest.mark.parametrize("arch", ["driving_cnn", "driving_cnn_dropout"])
def test_the_driving_network(tmp_path, arch):
    torch.manual_seed(0)
    theirs = AuthorsDriving("dropout" in arch).eval()
    torch.save(theirs.state_dict(), tmp_path / "final.pt")
    ours = load(str(tmp_path / "final.pt"), arch, allow_pickle=True)
    images = torch.rand(2, 3, 66, 200)
    with torch.no_grad():
        assert torch.equal(ours(images)[:, 0], theirs(images))
    with pytest.raises(InputError, match="--allow-pickle"):
        load(str(tmp_path / "final.pt"), arch)


def theirs_of_tiny(state):
    """Name the weights of our CNN7 as theirs: one Sequential with batch norm and ReLU."""
    layers = [name for k in range(1, 6) for name in (f"conv{k}", f"norm_conv{k}", "relu")]
    layers += ["flatten", "fc1", "relu", "fc2"]
    place = {name: k for k, name in enumerate(layers)}
    return {f"model.{place[name.rsplit('.', 1)[0]]}.{name.rsplit('.', 1)[1]}": tensor for name, tensor in state.items()}


def test_the_tiny_imagenet_network(tmp_path):
    torch.manual_seed(0)
    state = ARCHITECTURES["tinyimagenet_cnn7"]().state_dict()
    torch.save(theirs_of_tiny(state) | {"normalize.mean": MEAN, "normalize.std": STD}, tmp_path / "tiny.pt")
    model = load(str(tmp_path / "tiny.pt"), "tinyimagenet_cnn7", allow_pickle=True)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model.normalize.mean.flatten(), MEAN)
    assert torch.equal(model.normalize.deviation.flatten(), STD)


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1), (1, 1, 1, 1), ()])
def test_the_constants_of_the_file_are_used(tmp_path, shape):
    state = ARCHITECTURES["mnist_cnn"]().state_dict()
    constants = {"normalize.mean": torch.full(shape, 0.25), "normalize.std": torch.full(shape, 0.5)}
    torch.save(state | constants, tmp_path / "mnist.pt")
    model = load(str(tmp_path / "mnist.pt"), "mnist_cnn", allow_pickle=True)
    assert (float(model.normalize.mean), float(model.normalize.deviation)) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalize.mean": torch.zeros(3)}, r"normalize.mean is \[3\]"),
        ({"normalize.std": torch.zeros(1)}, "normalize.std.*not positive"),
        ({"normalize.std": torch.tensor([-1.0])}, "normalize.std"),
        ({"normalize.std": torch.tensor([float("nan")])}, "normalize.std"),
        ({"normalize.mean": torch.tensor([1])}, "normalize.mean"),
        ({"normalize.mean": None}, "normalize.std is unknown"),
        ({"normalize.scale": torch.zeros(1)}, "normalize.scale is unknown"),
        ({"conv_layers.0.weight": torch.zeros(1)}, "conv_layers.0.weight is unknown"),
    ],
)
def test_constants_that_do_not_fit(tmp_path, change, message):
    state = ARCHITECTURES["mnist_cnn"]().state_dict()
    state |= {"normalize.mean": torch.zeros(1), "normalize.std": torch.ones(1)} | change
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "mnist.pt")
    with pytest.raises(InputError, match=f"do(es)? not fit mnist_cnn.*{message}"):
        load(str(tmp_path / "mnist.pt"), "mnist_cnn", allow_pickle=True)


def test_another_networks_layers_are_compared(tmp_path):
    torch.save(AuthorsDriving(False).state_dict(), tmp_path / "final.pt")
    for arch in ("mnist_cnn", "cifar10_cnn7"):
        with pytest.raises(InputError, match=f"(do not fit|far larger than) {arch}"):
            load(str(tmp_path / "final.pt"), arch, allow_pickle=True)
