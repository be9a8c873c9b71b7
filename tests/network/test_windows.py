"""Windows of columns: every operation on them agrees with the same operation on the whole columns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.small_networks import Function, settle
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import margins, read_network, refine_between
from tiltproof.network.arithmetic import Window
from tiltproof.network.deep import DeepPass, cuts
from tiltproof.network.graph import Operation
from tiltproof.network.ops import REGISTRY
from tiltproof.network.windows import Windows

pytestmark = pytest.mark.usefixtures("in_proof")
SHAPE = torch.Size((2, 9, 7))


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def some(seed: int, size: tuple[int, int] = (3, 2), count: int = 12) -> Windows:
    """Windows anywhere in the image, and beyond its edges, where they are zero."""
    generator = torch.Generator().manual_seed(seed)
    top, left = (
        torch.randint(1 - n, end, (count,), generator=generator) for n, end in zip(size, SHAPE[1:], strict=True)
    )
    values = torch.randn(count, SHAPE[0], *size, generator=generator, dtype=torch.float64)
    return Windows(values, top, left, torch.arange(count))._with(values, top, left, *SHAPE[1:])


def test_columns_stand_where_windows_say():
    windows = some(0)
    whole = torch.zeros(len(windows), *SHAPE, dtype=torch.float64)
    for k, (top, left) in enumerate(zip(windows.top.tolist(), windows.left.tolist(), strict=True)):
        for y in range(3):
            for x in range(2):
                if 0 <= top + y < SHAPE[1] and 0 <= left + x < SHAPE[2]:
                    whole[k, :, top + y, left + x] = windows.values[k, :, y, x]
                else:
                    assert not windows.values[k, :, y, x].any()
    assert torch.equal(windows.columns(SHAPE), whole)
    exact = whole.abs().sum(0)
    assert (windows.sizes(SHAPE) >= exact).all()
    assert (windows.sizes(SHAPE) <= exact * (1 + 1e-12)).all()


def test_a_kink_stands_in_one_entry():
    values, index = torch.tensor([0.5, 2.0]).double(), torch.tensor([5, 2 * 63 - 1])
    windows = Windows.of_entries(values, index, SHAPE, torch.arange(2))
    expected = torch.zeros(2, 2 * 9 * 7).double().scatter(1, index.unsqueeze(1), values.unsqueeze(1))
    assert torch.equal(windows.columns(SHAPE).flatten(1), expected)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (3, 2), (4, 4), (1, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_convolutions(kernel, stride, padding):
    windows, where = some(1), (padding, padding)
    weight = torch.randn(3, 2, *kernel, dtype=torch.float64)
    window = Window(stride, where, (1, 1), 1)
    expected = F.conv2d(windows.columns(SHAPE), weight, None, stride, where)
    operation = Operation(
        "conv", "conv2d", ("x",), {"weight": weight, "window": window}, tuple(expected.shape[1:]), kept={}
    )
    found = windows.convolved(operation)
    assert torch.allclose(found.columns(expected.shape[1:]), expected, rtol=0, atol=1e-13)
    beyond = found._with(found.values, found.top, found.left, *expected.shape[2:])
    assert torch.equal(beyond.values, found.values), "zero beyond the image"


def test_products_sums_and_padding():
    first, second = some(2), some(3, (1, 4))
    factor = torch.randn(*SHAPE, dtype=torch.float64)
    assert torch.equal(first.scaled(factor).columns(SHAPE), first.columns(SHAPE) * factor)
    for sign in (1, -1):
        expected = first.columns(SHAPE) + sign * second.columns(SHAPE)
        assert torch.allclose(first.plus(second, sign).columns(SHAPE), expected, rtol=0, atol=1e-15)
    larger = torch.Size((2, 12, 9))
    assert torch.equal(first.moved(2, 1).columns(larger), F.pad(first.columns(SHAPE), (1, 1, 2, 1)))


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(),
        Function(lambda m, x: m.b(F.relu(m.a(x))) - x, a=nn.Conv2d(4, 4, 3, padding=1), b=nn.Conv2d(4, 4, 3, padding=1)),
        nn.ReLU(), nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(5), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_a_pass_with_windows_gives_the_same_form(seed):
    """And cuts lose something, of which a backward pass wins nearly all back."""
    model, image = settle(residual(), seed).double(), torch.rand(1, 1, 20, 20).double()
    network = read_network(model, (1, 20, 20), image).network_as(torch.float64)
    stack = torch.stack([image, torch.randn_like(image) * 0.1, torch.randn_like(image) * 0.01])
    label = model(image).argmax(1)

    def bound(**options: object) -> tuple[Tensor, dict[str, AffineForm], DeepPass]:
        walk = DeepPass(network, **options)
        forms = walk.run(AffineForm(stack, torch.full_like(image, 1e-9), quadratic=True), lasting=2)
        assert forms is not None
        return margins(network, forms, label), forms, walk

    wide, narrow = bound(window_pixels=10**9), bound(window_pixels=1)
    assert torch.allclose(wide[0].lower, narrow[0].lower, rtol=0, atol=1e-10)
    assert torch.allclose(wide[0].upper, narrow[0].upper, rtol=0, atol=1e-10)
    assert wide[2].next_number == narrow[2].next_number > 10
    assert narrow[2].columns < wide[2].columns
    first_only = bound(window_pixels=150)  # behind a stride images are smaller
    assert torch.allclose(wide[0].lower, first_only[0].lower, rtol=0, atol=1e-10)
    assert wide[2].next_number == first_only[2].next_number
    places = cuts(network)
    assert len(places) >= 2
    classes, row = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    for cut in places:
        found, forms, _ = bound(cut=cut)
        assert (found.lower <= wide[0].lower + 1e-10).all()
        back, _ = refine_between(network, forms, row, label.expand(3), classes, None, False, source=cut)
        assert (back >= found.lower[0] - 1e-10).all()
        assert (back <= wide[0].upper[0]).all()


class Covered(DeepPass):
    """Magnitudes, which roundings are relative to, cover columns and windows."""

    checked = 0

    def _keep(self, name: str, form: AffineForm, numbers: Tensor, windows: dict[int, Windows]) -> None:
        super()._keep(name, form, numbers, windows)
        form, windows = self.forms[name], self.windows[name]
        if windows and form._magnitude is not None:
            columns = [form.stack[:, 0], *(each.columns(form.shape[1:]) for each in windows.values())]
            assert (form.magnitude()[0] >= torch.cat(columns).abs().sum(0) * (1 - 1e-12)).all()
            self.checked += name.startswith("sub")


def test_roundings_of_a_difference_know_the_windows_of_both_branches():
    model, image = settle(residual(), 0).double(), torch.rand(1, 1, 20, 20).double()
    walk = Covered(read_network(model, (1, 20, 20), image).network_as(torch.float64), window_pixels=1)
    assert walk.run(AffineForm(torch.stack([image, torch.randn_like(image) * 0.1]), torch.zeros_like(image)))
    assert walk.checked


@pytest.mark.parametrize("kernel", [(1, 20), (20, 1)])
def test_a_sum_that_repeats_a_line_repeats_its_windows(kernel):
    """A kink in one entry of a branch with one column stands in a whole line of the sum."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        Function(lambda m, x: x + F.relu(m.a(x)), a=nn.Conv2d(2, 2, kernel)), nn.Conv2d(2, 2, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * 18 * 18, 3),
    )  # fmt: skip
    settle(model, 1).double()
    image = torch.rand(1, 1, 20, 20).double()
    network = read_network(model, (1, 20, 20), image).network_as(torch.float64)
    form = AffineForm(torch.stack([image, torch.randn_like(image)]), torch.zeros_like(image))
    bounds = []
    for window_pixels in (1, 10**9):
        walk = DeepPass(network, window_pixels=window_pixels)
        bounds.append(margins(network, walk.run(form), torch.tensor([0])))
        assert walk.next_number > 10
    assert torch.allclose(bounds[0].lower, bounds[1].lower, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_a_backward_pass_uses_the_ball(seed):
    """Behind the cut this network is linear: the bounds are what the worst member attains, and never below those by radii alone."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 16, 3)
    )
    settle(model, seed).double()
    network = read_network(model, (1, 6, 6), torch.rand(1, 1, 6, 6).double()).network_as(torch.float64)
    (cut,) = cuts(network)
    center, radius = torch.rand(1, 2, 4, 4).double(), torch.rand(1, 2, 4, 4).double() + 0.1
    with torch.enable_grad():
        x = center.clone().requires_grad_()
        y = model[2:](x)[0]
        (direction,) = torch.autograd.grad(y[0] - y[1], x)
    own, other, row = torch.tensor([0]), torch.tensor([1]), torch.tensor([0])
    bounds = []
    for ball in (None, 1e9, 1.0, 0.05):
        form = AffineForm(center[None], radius).with_ball(None if ball is None else torch.tensor([ball]).double())
        forms = {cut: form}
        for operation in network.operations[
            network.operations.index(next(o for o in network.operations if o.name == cut)) + 1 : -1
        ]:
            forms[operation.name] = REGISTRY[operation.kind].forward(
                operation, [forms[name] for name in operation.inputs]
            )
        back, _ = refine_between(network, forms, row, own, other, None, False, source=cut)
        bounds.append(float(back))
    value = float((y[0] - y[1]).detach())
    assert bounds[0] <= bounds[1] <= bounds[2] <= bounds[3], "never looser"
    worst = value - 0.05 * float(direction.norm())
    assert worst - 1e-4 * float(direction.norm()) <= bounds[3] <= worst
    assert bounds[0] <= value - float((direction.abs() * radius).sum()) <= bounds[0] + 1e-9
