"""A network from an ONNX file gets the verdicts, margins and counterexamples of its PyTorch original, and passes the check."""

import pickle

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.onnx.onnx_files import answers, exported, message, node
from tiltproof import BranchAndBound, InputError, RunFolder, UniformGrid, attack, bound_network, certify, check
from tiltproof.checker import CheckFailed
from tiltproof.data import load as load_data
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.models import cifar10_cnn, load_onnx
from tiltproof.models import load as load_model
from tiltproof.onnx import ops

BUDGET = BranchAndBound(max_boxes=200)


class Residual(nn.Module):
    """Two residual blocks with batch norm, one with a strided shortcut, as in a ResNet."""

    def __init__(self):
        super().__init__()
        self.start = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.c, self.short = nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(4, 6, 1, 2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (4, 4, 6))
        self.end = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.norms[0](self.start((x - 0.5) / 0.25)))
        x = F.relu(x + self.norms[1](self.b(F.relu(self.a(x)))))
        x = F.relu(self.short(x) + self.norms[2](self.c(x)))
        return self.end(F.adaptive_avg_pool2d(x, 1).reshape(x.size(0), -1))


def settle(model, seed=0):
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.running_mean.uniform_(-0.3, 0.3)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return model.eval()


def mlp():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 20),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(20, 12),
        nn.LeakyReLU(0.125),
        nn.Linear(12, 3),
    )


def norms():
    """The exporter folds a batch norm into the convolution before it, but not one that comes first or after a ReLU."""
    return nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 6, 3, 1, 1), nn.ReLU(), nn.BatchNorm2d(6), nn.Conv2d(6, 8, 4, 2, 1),
        nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3),
    )  # fmt: skip


def small(make):
    torch.manual_seed(3)
    model = settle(make())
    images = torch.rand(8, 1, 8, 8)
    labels = model(images).argmax(1)
    labels[0] = (labels[0] + 1) % 3
    return model, images, labels, "R(12), B(0.02)"


def mnist():
    images, labels = load_data("mnist-sample")
    return load_model("mnist-r30"), images[:10], labels[:10], "R(30)"


def cifar():
    torch.manual_seed(0)
    model = cifar10_cnn().eval()
    images, _ = load_data("cifar10-sample")
    return model, images[:2], model(images[:2]).argmax(1), "R(0.05)"


NETWORKS = {
    "mlp": lambda: small(mlp),
    "the paper's MNIST CNN": mnist,
    "the paper's CIFAR-10 CNN": cifar,
    "batch norm": lambda: small(norms),
    "residual": lambda: small(Residual),
}


def close(first, second):
    return all(
        (a is None and b is None) or a == pytest.approx(b, rel=1e-3, abs=2e-4)
        for a, b in zip(first, second, strict=True)
    )


CASES = [(name, any_batch) for name in NETWORKS for any_batch in (True, False) if any_batch or "paper" not in name]


@pytest.mark.parametrize(("name", "any_batch"), CASES)
def test_the_verdicts_are_those_of_the_original(tmp_path, name, any_batch):
    model, images, labels, transform = NETWORKS[name]()
    path = tmp_path / "net.onnx"
    path.write_bytes(exported(model, tuple(images.shape[1:]), any_batch=any_batch))
    loaded = load_onnx(path)
    assert not loaded.training
    assert torch.allclose(loaded(images), model(images), atol=1e-4)
    theirs, ours = (
        certify(m, images, labels, transform, search=BUDGET, run=RunFolder(tmp_path / k))
        for k, m in (("a", model), ("b", loaded))
    )
    assert ours.verdicts == theirs.verdicts
    assert len({verdict.value for verdict in ours.verdicts}) > 1 or name == "the paper's CIFAR-10 CNN"
    # pilot runs choose the initial grid and may differ by a rounding: compare margins of equal boxes
    uniform = [certify(m, images, labels, transform, search=UniformGrid(4)).margins for m in (loaded, model)]
    assert close(*uniform)
    for mine, original in zip(ours.results, theirs.results, strict=True):
        assert (mine.counterexample is None) == (original.counterexample is None)
        if mine.counterexample is not None:
            assert list(mine.counterexample) == pytest.approx(list(original.counterexample), abs=1e-3)
    if not any_batch:
        return
    report = check(tmp_path / "b", loaded, images, labels)
    assert report.images == len(images)
    found, original = (attack(m, images, labels, transform) for m in (loaded, model))
    assert close(found.margins, original.margins)


def test_a_run_is_tied_to_the_file(tmp_path):
    """The weights are the same, but the graph differs in one attribute."""
    model, images, labels, transform = NETWORKS["mlp"]()
    content = exported(model, (1, 8, 8))
    (tmp_path / "net.onnx").write_bytes(content)
    certify(load_onnx(tmp_path / "net.onnx"), images, labels, transform, search=BUDGET, run=RunFolder(tmp_path / "run"))
    changed = onnx.load_from_string(content)
    (leaky,) = (node for node in changed.graph.node if node.op_type == "LeakyRelu")
    leaky.attribute[0].f = 0.25
    onnx.save(changed, tmp_path / "other.onnx")
    with pytest.raises(CheckFailed, match="sha256"):
        check(tmp_path / "run", load_onnx(tmp_path / "other.onnx"), images, labels)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["mlp", "norms", "residual"])
def test_bounds_contain_what_onnxruntime_computes(tmp_path, name, seed):
    make = {"mlp": mlp, "norms": norms, "residual": Residual}[name]
    torch.manual_seed(seed)
    content = exported(settle(make(), seed), (1, 8, 8))
    (tmp_path / "net.onnx").write_bytes(content)
    center, slopes, radius = torch.rand(2, 1, 8, 8), 0.05 * torch.randn(3, 2, 1, 8, 8), 0.01 * torch.rand(2, 1, 8, 8)
    bounds = bound_network(load_onnx(tmp_path / "net.onnx"), AffineForm(torch.cat([center[None], slopes]), radius))
    inside = []
    for _ in range(20):
        symbols = torch.rand(3, 1, 1, 1, 1) * 2 - 1
        inside.append(center + (symbols * slopes).sum(0) + radius * (torch.rand_like(radius) * 2 - 1))
    for outputs in answers(content, torch.cat(inside)).split(len(center)):
        assert bool((outputs >= bounds.lower - 1e-5).all())
        assert bool((outputs <= bounds.upper + 1e-5).all())


def test_float64(tmp_path):
    """As far as onnxruntime supports it: it has no float64 convolution."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 3)).double().eval()
    images = torch.rand(4, 1, 8, 8).double()
    labels = model(images).argmax(1)
    (tmp_path / "net.onnx").write_bytes(exported(model, (1, 8, 8)))
    loaded = load_onnx(tmp_path / "net.onnx")
    assert {p.dtype for p in loaded.parameters()} == {torch.float64}
    theirs = certify(model, images, labels, "R(12)", search=BUDGET)
    ours = certify(loaded, images, labels, "R(12)", search=BUDGET, run=RunFolder(tmp_path / "run"))
    assert ours.verdicts == theirs.verdicts
    assert ours.margins == theirs.margins
    check(tmp_path / "run", loaded, images, labels)
    (tmp_path / "net.onnx").write_bytes(exported(Residual().eval().double(), (1, 8, 8)))
    with pytest.raises(InputError, match="onnxruntime cannot run.*Conv.*float32"):
        load_onnx(tmp_path / "net.onnx")


def test_float32_evaluations(tmp_path):
    model, images, labels, transform = NETWORKS["residual"]()
    (tmp_path / "net.onnx").write_bytes(exported(model, (1, 8, 8)))
    loaded = load_onnx(tmp_path / "net.onnx")
    both = [certify(m, images, labels, transform, search=BUDGET, semantics="float32") for m in (model, loaded)]
    assert both[0].verdicts == both[1].verdicts


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_misreading_that_only_the_run_s_images_show(wrapped, tmp_path, monkeypatch):
    """No random image reaches the branch that is misread; the run's own images do."""
    board = (np.indices((8, 8)).sum(0) % 2).astype(np.float32)
    weights = {
        "w": np.stack([2 * board.ravel() - 1, np.zeros(64, np.float32)], 1).astype(np.float32),
        "c": np.float32([-31.5, 0.0]),
        "last": np.float32([1.0, 0.5]),
    }
    nodes = [
        node("Flatten", "images", name="flat"),
        node("Gemm", "flat", "w", "c", name="product"),
        node("Relu", "product", name="active"),
        node("Neg", "active", name="falls"),
        node("Mul", "falls", "four", name="steep"),
        node("Add", "steep", "last", name="out"),
    ]
    path = tmp_path / "net.onnx"
    onnx.save(message(nodes, weights | {"four": np.float32([4.0])}, shape=(1, 8, 8)), path)
    images, labels = torch.tensor(board)[None, None], torch.tensor([0])
    assert answers(path.read_bytes(), images).argmax(1).tolist() == [1]
    monkeypatch.setitem(ops.FUNCTIONS, "Neg", ops.FUNCTIONS["Relu"])
    model = load_onnx(path)
    model = nn.Sequential(nn.Identity(), model).eval() if wrapped else model
    assert model(images).argmax(1).tolist() == [0]
    with pytest.raises(InputError, match="not read as onnxruntime reads it"):
        certify(model, images, labels, "R(1)")
    copied = pickle.loads(pickle.dumps(model))  # as a worker gets it: already compared
    assert torch.equal(copied(images), model(images))
    assert certify(copied, images, labels, "R(1)").verdicts == ["certified"]


def test_weights_that_were_changed_are_no_longer_the_file_s(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(exported(mlp().eval(), (1, 8, 8)))
    model = load_onnx(path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    images = torch.rand(1, 1, 8, 8)
    for each in (model, load_onnx(path).double()):
        labels = each(images.to(next(each.parameters()).dtype)).argmax(1)
        assert certify(each, images, labels, "R(0.01)").verdicts == ["certified"]
