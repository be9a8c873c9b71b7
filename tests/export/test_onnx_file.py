"""Networks written as ONNX: every operation, compared with the module itself, and read back by this package."""

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.forms import assert_inside, make_form
from tests.support import small_networks
from tiltproof import InputError, UnsupportedOperation, bound_network, certify
from tiltproof.data import load as load_data
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.export import write_onnx
from tiltproof.models import load as load_model
from tiltproof.models import load_onnx
from tiltproof.network import proof_arithmetic, read_network, run
from tiltproof.network.ops import REGISTRY
from tiltproof.onnx import writer
from tiltproof.onnx.registry import WRITERS


class Function(nn.Module):
    """Wraps a function, with a convolution in front so that the module has weights."""

    def __init__(self, function, channels=4):
        super().__init__()
        self.start, self.function = nn.Conv2d(2, channels, 3, padding=1), function

    def forward(self, x):
        return self.function(self.start(x))


def normed():
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.running_mean.uniform_(-0.3, 0.3)
        norm.running_var.uniform_(0.5, 1.5)
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.3, 0.3)
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU())


NETWORKS = {
    "conv2d": lambda: nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 0), (1, 2), groups=2, bias=False),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(96, 5), nn.Linear(5, 3, bias=False)),
    "scale": normed,
    "scale by numbers": lambda: Function(lambda x: 3 - (x - 0.5) / torch.tensor([1.0, 2.0, 0.3, 4.0])[:, None, None]),
    "scale pixel by pixel": lambda: Function(lambda x: x * torch.linspace(0.5, 2, 48).view(6, 8) - 0.3),
    "shift pixel by pixel": lambda: Function(lambda x: x + torch.linspace(0.5, 2, 48).view(6, 8)),
    "scale rows": lambda: Function(lambda x: (x.flatten(2) * torch.linspace(0.5, 2, 4)[:, None]).flatten(1) * 3),
    "scale rows by nothing": lambda: Function(lambda x: (x.flatten(2) * 1.0).flatten(1)),
    "scale by nothing": lambda: Function(lambda x: x * 1.0 + 0.0),
    "relu": lambda: Function(F.relu),
    "leaky relu": lambda: Function(lambda x: F.leaky_relu(x, 0.2)),
    "sigmoid": lambda: Function(torch.sigmoid),
    "tanh": lambda: Function(torch.tanh),
    "max_pool2d": lambda: Function(lambda x: F.max_pool2d(x, 3, 2, 1)),
    "max pooling with gaps": lambda: Function(lambda x: F.max_pool2d(x, 2, 1, 0, 2)),
    "avg_pool2d": lambda: Function(lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0))),
    "average without padding": lambda: Function(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "average with divisor": lambda: Function(lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=7)),
    "adaptive_avg_pool2d": lambda: Function(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "adaptive in parts": lambda: Function(lambda x: F.adaptive_avg_pool2d(x, (3, 4))),
    "mean": lambda: Function(lambda x: x.mean((2, 3)) - x.mean(-1, keepdim=True).mean((-1, -2))),
    "reshape": lambda: Function(lambda x: x.reshape(len(x), 2, 6, -1).flatten(1)),
    "permute": lambda: Function(lambda x: x.permute(0, 2, 3, 1).transpose(1, 2)),
    "slice": lambda: Function(lambda x: x[:, 1:, -5:-1, ::3]),
    "pad": lambda: Function(lambda x: F.pad(x, (1, 2, 0, 3))),
    "identity": lambda: Function(lambda x: F.dropout(x, 0.5, False).contiguous()),
    "identity on the way": lambda: Function(lambda x: F.relu(F.dropout(x, 0.5, False).clone()) - x),
    "concat": lambda: Function(lambda x: torch.cat([F.relu(x), x], 1)),
    "add": lambda: Function(lambda x: x + F.relu(x)),
    "sub": lambda: Function(lambda x: F.relu(x) - x),
    "nothing at all": nn.Identity,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_computes_what_the_module_does(name, tmp_path):
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    path = write_onnx(model, (2, 6, 8), tmp_path / "net.onnx")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [1, 2, 6, 8]
    for image in torch.rand(4, 1, 2, 6, 8):
        (answer,) = session.run(None, {"images": image.numpy()})
        torch.testing.assert_close(torch.from_numpy(answer), model(image).detach(), rtol=1e-4, atol=1e-5)


def test_every_operation_can_be_written():
    assert set(WRITERS) == set(REGISTRY)


@pytest.fixture
def traced(monkeypatch):
    """Collect the networks that `write_onnx` traces, so that a test need not trace its module again."""
    networks = []

    def read(*given):
        networks.append(read_network(*given))
        return networks[-1]

    monkeypatch.setattr(writer, "read_network", read)
    return networks


@pytest.mark.parametrize("name", small_networks.in_turn(small_networks.SUPPORTED, 0, 2))
def test_every_operation_is_written_and_read(name, tmp_path, traced):
    """Writing and reading each compare with onnxruntime; then the network that was read is bounded like the first."""
    model = small_networks.build(small_networks.SUPPORTED[name], 2)
    if name in small_networks.NOT_WRITTEN:
        with pytest.raises(UnsupportedOperation, match="cannot be written as ONNX"):
            write_onnx(model, small_networks.SHAPE, tmp_path / "net.onnx")
        return
    path = write_onnx(model, small_networks.SHAPE, tmp_path / "net.onnx")
    if name in small_networks.NOT_READ:
        with pytest.raises(UnsupportedOperation, match="is supported|has (a|no bound) rule"):
            load_onnx(path)
        return
    in_parts = name in small_networks.READ_IN_PARTS
    again, form = load_onnx(path), make_form(small_networks.SHAPE, 2, 0, rows=1, scale=1e-3 if in_parts else 0.3)
    bound = bound_network(again, form)
    assert_inside(model, form, AffineForm(bound.stack, bound.radius + 1e-5))
    if not in_parts:
        with proof_arithmetic(torch.device("cpu")):
            written = traced[0].network_as(torch.float32)
            wanted = run(written, form)[written.output]
        assert torch.allclose(bound.radius, wanted.radius, rtol=0.02, atol=1e-4)


def test_read_back_it_gets_the_same_verdicts(tmp_path):
    images, labels = load_data("mnist-sample")
    model = load_model("mnist-r30")
    again = load_onnx(write_onnx(model, (1, 28, 28), tmp_path / "net.onnx"))
    first, second = (certify(each, images[:3], labels[:3], "R(10)") for each in (model, again))
    assert first.verdicts == second.verdicts
    # the file has one scale where the model has two, which are folded and allowed 6 more float32 roundings
    assert first.margins == pytest.approx(second.margins, rel=3e-4)


def test_small_results_of_a_library_s_sigmoid_are_read(tmp_path):
    """onnxruntime's sigmoid is off by some 1e-7 however small it is: more than rounding explains of a small number."""
    model = nn.Sequential(nn.Conv2d(2, 64, 1), nn.Sigmoid(), nn.Flatten())
    with torch.no_grad():
        model[0].weight.mul_(0.01)
        model[0].bias.copy_(torch.linspace(-18, -8, 64))
    again = load_onnx(write_onnx(model, (2, 6, 8), tmp_path / "net.onnx"))
    images = torch.rand(2, 2, 6, 8)
    assert torch.allclose(again(images), model(images), atol=1e-6)


def test_another_precision_is_refused(tmp_path):
    with pytest.raises(InputError, match="float32"):
        write_onnx(nn.Conv2d(2, 2, 3).double(), (2, 6, 6), tmp_path / "net.onnx")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.avg_pool2d(x, 2, 2, 0, ceil_mode=True),
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), True, False),
        lambda x: F.avg_pool2d(x, (2, 3), (3, 2), (1, 1), True, True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, divisor_override=7),
        lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    ],
)
def test_averages_that_tools_read_differently_are_written_as_products(function, tmp_path):
    path = write_onnx(Function(function), (2, 7, 7), tmp_path / "net.onnx")
    assert {node.op_type for node in onnx.load(path).graph.node} == {"Conv", "MatMul"}


def test_what_onnx_does_not_have_is_refused_by_name(tmp_path):
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.ConvTranspose2d(2, 2, 2, 1, 0, 1, dilation=2))
    with pytest.raises(UnsupportedOperation, match=r"conv_transpose2d' at node .* cannot be written as ONNX"):
        write_onnx(model, (2, 7, 7), tmp_path / "net.onnx")


def test_batch_norms_read_where_an_epsilon_of_zero_is_refused(tmp_path):
    """torch before 2.13 refuses it; variance + epsilon is exactly 1 in any precision."""
    model = nn.Sequential(nn.ReLU(), normed()[1]).eval()
    graph = onnx.load(write_onnx(nn.Sequential(nn.Conv2d(4, 4, 1), *model), (4, 6, 8), tmp_path / "net.onnx")).graph
    (norm,) = (node for node in graph.node if node.op_type == "BatchNormalization")
    (epsilon,) = (attribute.f for attribute in norm.attribute)
    (variance,) = (onnx.numpy_helper.to_array(each) for each in graph.initializer if each.name == norm.input[4])
    assert epsilon >= 1e-5
    assert (variance + variance.dtype.type(epsilon) == 1).all()
    assert (variance.astype("d") + epsilon == 1).all()


def test_a_node_written_wrongly_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(WRITERS, "relu", WRITERS["identity"])
    with pytest.raises(InputError, match="onnxruntime does not compute the network"):
        write_onnx(Function(F.relu), (2, 6, 6), tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()
