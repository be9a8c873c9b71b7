"""Looking at a network before a proof: its layers, what is refused, growth, rounding and cost."""

import json
import math

import pytest
import torch
from torch import nn

import tiltproof
from tests.support.building_blocks import Function
from tests.verify.test_reasons import deep
from tiltproof import InputError, UnsupportedOperation, Verdict, certify, inspect
from tiltproof.keras.reader import LAYERS
from tiltproof.models import load
from tiltproof.network.ops.base import CONVERTERS
from tiltproof.onnx.choices import OF_CONSTANTS
from tiltproof.onnx.registry import READERS
from tiltproof.refusals import ADVICE, GENERAL, HEAD, OTHERWISE, USES, Refusal, advice, all_refused, name_of
from tiltproof.tflite.reader import READERS as TFLITE
from tiltproof.verify.inspection import images_of_shape


class Unreadable(nn.Module):
    """Operations without a rule before and behind others, one in a module, one that gives a tuple, and a refused use."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Conv2d(1, 2, 3), nn.Sequential(nn.RReLU()), nn.Linear(8, 4)

    def forward(self, images):
        x = self.inner(self.first(images)).flatten(1)
        values, _ = x.sort(1)
        x = torch.logcumsumexp(self.last(values), 1)
        mixed = torch.linalg.det(x[:, :4].view(-1, 2, 2))
        return torch.relu(x) + mixed.unsqueeze(1)


def test_every_refusal_is_named_with_advice():
    images = torch.rand(1, 1, 4, 4)
    found = inspect(Unreadable().eval(), images)
    assert not found.readable
    operations = [refusal.operation for refusal in found.refusals]
    assert [name.split(".")[0] for name in operations if "det" in name or "sort" in name or "cumsumexp" in name] == [
        "sort",
        "logcumsumexp",
        "linalg_det",
    ]
    assert found.refusals[0].module == "inner.0"
    with pytest.raises(UnsupportedOperation) as error:
        certify(Unreadable().eval(), images, torch.tensor([0]), "B(0.1)")
    assert error.value.refusals == found.refusals
    for refusal in found.refusals:
        assert str(refusal) in str(error.value)
        assert refusal.do in str(error.value)
    json.dumps(found.record(), allow_nan=False)


def test_one_refusal_reads_as_before():
    class Sorts(nn.Module):
        def forward(self, images):
            return images.flatten(1).sort(1).values

    with pytest.raises(
        UnsupportedOperation, match=r"^no bound rule for operation 'sort.default' at node 'sort'\. What"
    ):
        certify(Sorts().eval(), torch.rand(1, 1, 2, 2), torch.tensor([0]), "B(0.1)")


def test_advice():
    assert advice("TopK") == HEAD
    assert advice("no_such.default") == GENERAL
    assert Refusal("no_such", "n", "has axis = 7").do == OTHERWISE
    assert all(name == name.lower() and text for name, text in ADVICE.items())
    lone = UnsupportedOperation("something else")
    assert all_refused([lone, lone], "a").refusals == (Refusal("network", "-", "something else"),) * 2


def test_nothing_that_has_a_rule_is_advised_against():
    """Nor in any file format. An argmax is read as a classifier's last operation; others of ONNX's are read of constants alone."""
    onnx = {*READERS} - {*OF_CONSTANTS, "ArgMax"}
    ruled = {name_of(name) for name in (*CONVERTERS, *onnx, *LAYERS, *TFLITE)}
    assert not ruled & {*ADVICE}
    assert {*USES} <= ruled


def test_advice_is_about_this_use():
    model = Function(lambda _, x: torch.relu(x.masked_fill(torch.ones(4, 4) > 0, -math.inf)).flatten(1))
    with pytest.raises(UnsupportedOperation, match="softmax alone does, right behind the mask"):
        certify(model, torch.rand(1, 1, 4, 4), torch.tensor([0]), "B(0.1)")
    assert Refusal("where.self", "n", "is used in a way").do == USES["where"]


def test_growth_of_a_chain_of_linear_layers():
    """Row sums are exact; singular values come from below, close to numpy's."""
    torch.manual_seed(0)
    first, second = nn.Linear(16, 8), nn.Linear(8, 3)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second).eval()
    found = inspect(model, torch.rand(1, 1, 4, 4))
    layers = {layer.name: layer for layer in found.layers}
    assert [layer.kind for layer in found.layers] == ["reshape", "linear", "relu", "linear"]
    assert [layer.shape for layer in found.layers] == [(16,), (8,), (8,), (3,)]
    assert [layer.parameters for layer in found.layers] == [0, 136, 0, 27]
    assert found.parameters == 163
    sums = [layer.weight.double().abs().sum(1).max().log10().item() for layer in (first, second)]
    assert layers["linear"].row_sums == pytest.approx(sums[0])
    singular = torch.linalg.svdvals(first.weight.double())[0].log10().item()
    assert singular - 0.05 < layers["linear"].spectral <= singular + 1e-9
    assert layers["linear_1"].row_sums <= sum(sums) + 1e-9
    assert all(layer.spectral <= layer.row_sums + 1e-9 for layer in found.layers)


def test_the_preflight_agrees_with_certify():
    for layers, provable in ((8, True), (36, False)):
        model, images, labels = deep(layers)
        found = inspect(model, images, "R(0.1)")
        double = found.rounding[-1]
        assert [rounding.precision for rounding in found.rounding] == ["float32", "float64"]
        assert double.provable is provable
        answers = model.double()(images.double()).detach().topk(2).values
        assert double.margin == pytest.approx(float(answers[0, 0] - answers[0, 1]), rel=1e-4)
        verdict = certify(model.float(), images[:1], labels[:1], "R(0.1)").verdicts[0]
        assert (verdict is Verdict.CERTIFIED) is provable
        assert (found.cost.boxes is not None) is provable
        json.dumps(found.record(), allow_nan=False)


@pytest.mark.parametrize("text", ["R(30)", "Sc(5), R(5), C(5), B(0.01)"])
def test_the_cost_is_of_the_right_size(text):
    images, labels = tiltproof.data.load("mnist-sample")
    model = load("mnist-r30" if text == "R(30)" else "mnist-sc5-r5-c5-b001")
    steps = []
    found = inspect(model, images, text, progress=lambda done, count: steps.append((done, count)))
    boxes = certify(model, images[:1], labels[:1], text).boxes[0]
    assert boxes / 20 <= found.cost.boxes <= 20 * boxes
    assert found.cost.seconds > 0
    assert [done for done, _ in steps] == list(range(1, steps[-1][1] + 1))


def test_heads_ranges_and_layouts():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Softmax(1)).eval()
    assert inspect(body, torch.rand(1, 1, 4, 4)).head == ("Softmax",)
    ranges = inspect(nn.Sequential(nn.Flatten(), nn.Linear(16, 1)).eval(), torch.rand(1, 1, 4, 4), "B(0.1)")
    assert ranges.readable
    assert ranges.cost is None
    assert ranges.rounding[-1].provable
    training = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 2)).train()
    assert inspect(training, torch.rand(1, 1, 4, 4)).readable
    assert training.training


def test_zero_weights_and_made_up_images():
    silent = nn.Linear(16, 2)
    nn.init.zeros_(silent.weight)
    found = inspect(nn.Sequential(nn.Flatten(), silent, nn.ReLU()).eval(), images_of_shape((1, 4, 4)))
    assert found.layers[-1].row_sums == -math.inf
    assert found.record()["layers"][-1]["row_sums"] is None
    with pytest.raises(InputError, match="channels, height and width"):
        images_of_shape((3, 0, 4))
