"""Rearrangements, constants between branches, and interpolation, against exact arithmetic; what mixes images is refused."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.small_networks import Function, head
from tiltproof import InputError, bound_network
from tiltproof.checker.form import Form
from tiltproof.checker.network import evaluation, outputs
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import UnsupportedOperation
from tiltproof.network import read_network
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.ops.contraction import hats

MIXING = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "roll of the flat tensor": lambda x: x.roll(1),
    "select": lambda x: x[0].expand(len(x), -1, -1, -1),
    "index": lambda x: x[torch.arange(len(x) - 1, -1, -1)],
    "repeat": lambda x: x.repeat(2, 1, 1, 1)[: len(x)],
    "turn": lambda x: torch.rot90(x.unsqueeze(1), 1, (0, 1)).flatten(1, 2),
    "reshape": lambda x: x.transpose(0, 1).reshape(len(x), -1),
    "linear layer": lambda x: F.linear(x.flatten(1).transpose(0, 1), torch.ones(len(x), len(x))).transpose(0, 1),
    "softmax": lambda x: x.flatten(1).transpose(0, 1).softmax(1).transpose(0, 1),
    "largest": lambda x: x - x.amax(0, keepdim=True),
    "sum": lambda x: x - x.sum((0, 2), keepdim=True),
    "product": lambda x: torch.einsum("nc,mn->mc", x.flatten(1), torch.ones(2, 2)),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_images_is_refused_by_both(name):
    model = Function(lambda m, x: m.head(MIXING[name](x).flatten(1)), head=head(60)).eval()
    with pytest.raises((UnsupportedOperation, InputError)):
        bound_network(model, AffineForm.constant(torch.rand(2, 2, 6, 5)))
    with evaluation(model, torch.device("cpu")), pytest.raises((UnsupportedOperation, InputError)):
        outputs(model, Form(torch.rand(3, 2, 2, 6, 5).double()))


def test_a_constant_with_a_row_for_each_image_is_refused_by_both():
    model = Function(
        lambda m, x: m.head(torch.cat([x.flatten(1), torch.arange(len(x)).float().view(-1, 1)], 1)), head=head(61)
    ).eval()
    with pytest.raises(UnsupportedOperation, match="row for each image"):
        bound_network(model, AffineForm.constant(torch.rand(2, 2, 6, 5)))
    with evaluation(model, torch.device("cpu")), pytest.raises((UnsupportedOperation, InputError)):
        outputs(model, Form(torch.rand(3, 2, 2, 6, 5).double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fill", [0.3, 1.0, -1e-40, 2.0**-130, 1e9 + 0.1])
def test_constants_are_enclosed_exactly(fill, dtype):
    """As real numbers and as float32 has them, forward and backward; entries that are copied have summed coefficients."""
    settings = {"index": torch.tensor([0, -1, 0, 1, 0]), "fill": torch.tensor([0, fill, 0, 0, 0], dtype=torch.float64)}
    operation = Operation("y", "gather", ("x",), settings, (5,))
    x = AffineForm(torch.tensor([[[0.5, 0.1]], [[0.25, 0.7]]], dtype=dtype), torch.tensor([[0.01, 0.0]], dtype=dtype))
    y = REGISTRY["gather"].forward(operation, [x])
    for value in (
        Fraction(fill),
        Fraction(float(torch.tensor(fill))),
        Fraction(0) if abs(fill) < 2.0**-126 else Fraction(fill),
    ):
        assert abs(value - Fraction(float(y.center[0, 1]))) <= Fraction(float(y.radius[0, 1]))
    assert torch.equal(y.stack[:, 0, [0, 2, 4, 3]], x.stack[:, 0, [0, 0, 0, 1]])
    a = torch.tensor([[1.0, 3.0, 1e-9, -2.0, 5.0]], dtype=dtype)
    back = REGISTRY["gather"].backward(operation, a, [x])
    exact = sum(Fraction(float(k)) for k in a[0, [0, 2, 4]])
    budget = sum(
        Fraction(float(b)) * abs(Fraction(float(k))) for b, k in zip(back.rounding_budget[0], a[0], strict=True)
    )
    largest = Fraction(float(x.upper[0, 0]))
    off = abs(Fraction(float(back.inputs[0][0, 0])) - exact) * largest
    off += abs(Fraction(float(back.constant[0])) - Fraction(float(a[0, 1])) * Fraction(fill))
    assert off <= budget
    assert float(back.inputs[0][0, 1]) == -2.0


@pytest.mark.parametrize("sizes", [(7, 21), (6, 15), (10, 13), (5, 5), (1, 4), (9, 2)])
@pytest.mark.parametrize("align", [False, True])
def test_interpolation_in_float32_stays_inside(sizes, align):
    """A weight that should be zero is not quite zero in float32, and what it multiplies may be huge."""
    size, result = sizes
    (weights, near), one = hats(size, result, align, None), torch.ones(1, 1, dtype=torch.float64)
    settings = {"rows": one, "near rows": one, "columns": weights, "near columns": near}
    operation = Operation("y", "resize", ("x",), settings, (1, 1, result), evaluation=2.0**-24)
    for place in range(size):
        x = torch.zeros(1, 1, 1, size)
        x[..., place] = 2.0**30
        form = REGISTRY["resize"].forward(operation, [AffineForm.constant(x.double())])
        theirs = F.interpolate(x, size=(1, result), mode="bilinear", align_corners=align).double()
        assert bool(((theirs - form.center).abs() <= form.radius).all())
        back = REGISTRY["resize"].backward(operation, torch.eye(result).view(result, 1, 1, result).double(),
                                           [AffineForm.constant(x.double().expand(result, -1, -1, -1))])  # fmt: skip
        value = (back.inputs[0] * x.double()).sum((1, 2, 3))
        assert bool(
            ((value - theirs.flatten()).abs() <= back.rounding_budget.diagonal(dim1=0, dim2=-1).flatten()).all()
        )
        model = Function(
            lambda _, x: F.interpolate(x, size=(1, result), mode="bilinear", align_corners=align).flatten(1)
        )
        with evaluation(model, torch.device("cpu")):
            rows = torch.cat([x.double()[None], torch.zeros(1, 1, 1, 1, size).double()])
            checked = outputs(model, Form(rows, 2.0**-24))
        assert bool(((theirs.flatten(1) - checked.center).abs() <= checked.reach).all())


def test_the_largest_of_equal_windows():
    """Padding of a window stands for one of its own entries, which is not compared with itself."""
    model = nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Flatten())
    form = bound_network(model, AffineForm(torch.rand(1, 1, 1, 4, 4).double(), torch.full((1, 1, 4, 4), 0.1).double()))
    assert float(form.width.max()) < 0.5


@pytest.mark.parametrize("fill", [0.3, 1e5 / 3])
@pytest.mark.parametrize("unit", [0.0, 2.0**-24])
def test_the_checker_encloses_constants_exactly(fill, unit):
    model = Function(lambda _, x: F.pad(x, (1, 0), value=fill))
    with evaluation(model, torch.device("cpu")):
        form = outputs(model, Form(torch.zeros(2, 1, 1).double(), unit))
    for value in (Fraction(fill), Fraction(float(torch.tensor(fill)))):
        assert Fraction(float(form.lower()[0, 0])) <= value <= Fraction(float(form.upper()[0, 0]))


def test_an_upper_line_of_the_largest_entry():
    """The leader may be as low, and the other entry as high, as their remainders allow."""
    operation = Operation("y", "largest", ("x",), {"index": torch.tensor([[0, 1]])}, (1,))
    form = AffineForm(torch.zeros(1, 1, 2).double(), torch.ones(1, 2).double())
    back = REGISTRY["largest"].backward(operation, torch.tensor([[-1.0]]).double(), [form])
    for x in ([-1.0, 1.0], [1.0, -1.0]):
        below = float(back.inputs[0][0] @ torch.tensor(x).double() + back.constant)
        assert below <= -max(x)


def test_sums_of_copies_are_rounded():
    index, generator = torch.zeros(999, dtype=torch.int64), torch.Generator().manual_seed(0)
    operation = Operation("y", "gather", ("x",), {"index": index, "fill": None}, (999,))
    a, x = torch.rand(1, 999, generator=generator), AffineForm.constant(torch.ones(1, 1))
    back = REGISTRY["gather"].backward(operation, a, [x])
    exact = sum(Fraction(float(k)) for k in a[0])
    off = abs(Fraction(float(back.inputs[0])) - exact)
    assert 0 < off <= Fraction(float((back.rounding_budget * a).sum(dtype=torch.float64)))


def test_products_with_constants_are_rounded_sums():
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.rand(4096, 1, generator=generator), torch.rand(1, 1, 4096, generator=generator)
    settings = {"weight": weight, "bias": None, "equation": "zax,xy->zay", "terms": (4096, 1)}
    operation = Operation("y", "contraction", ("x",), settings, (1, 1))
    form = REGISTRY["contraction"].forward(operation, [AffineForm.constant(x)])
    exact = sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(x.flatten(), weight.flatten(), strict=True))
    assert 0 < abs(exact - Fraction(float(form.center))) <= Fraction(float(form.radius))
    model = Function(lambda m, x: m.head((x.flatten(2) @ m.w).flatten(1)), w=weight, head=head(1))
    network = read_network(model, (1, 4096, 1), x.view(1, 1, 4096, 1))
    assert network.operations[1].settings["terms"] == (4096, 1)
