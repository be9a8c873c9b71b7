"""Pairs of floats against exact arithmetic: sums, products in slices, constants, pixels, forms, and boxes that floats cannot prove."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor, nn

from tests.support.exact_network import PRECISION, features, margin, numbers, rotated
from tests.support.very_deep import very_deep
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.centered import ONE
from tiltproof.enclosures.fixed import Fixed, Unsupported
from tiltproof.enclosures.pair_form import PairForm, with_errors
from tiltproof.enclosures.pairs import Pair, product_of_slices, slice_bits, sliced, summed, times, two_product, two_sum
from tiltproof.network import read_network
from tiltproof.network.pair_constants import constants_of
from tiltproof.network.pair_pass import PairPass, forward, needs_pairs, relu_of_pair
from tiltproof.pixels.pair_polynomial import pair_form
from tiltproof.transforms import parse
from tiltproof.verify import deep_prover
from tiltproof.verify.deep_prover import DeepProver

pytestmark = pytest.mark.usefixtures("in_proof")


@pytest.fixture(autouse=True)
def in_many_bits():
    with torch.no_grad(), mp.workprec(PRECISION):
        yield


def draw(*shape: int, seed: int = 0, spread: int = 0) -> Tensor:
    """Numbers that need all their bits, with exponents up to ``spread`` above or below."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1
    return x * 2.0 ** torch.randint(-spread, spread + 1, shape, generator=generator)


def exact(x: Tensor) -> np.ndarray:
    return np.array([Fraction(each) for each in x.flatten().tolist()], dtype=object).reshape(tuple(x.shape))


def value(x: Pair) -> np.ndarray:
    return exact(x.high) + exact(x.low)


def test_what_sums_and_products_leave_out_is_exact():
    for seed in range(3):
        a, b = draw(200, seed=seed, spread=40), draw(200, seed=seed + 9, spread=40)
        assert (value(Pair(*two_sum(a, b))) == exact(a) + exact(b)).all()
        assert (value(Pair(*two_product(a, b))) == exact(a) * exact(b)).all()


def test_sums_and_products_of_pairs():
    for seed in range(4):
        spread = 60 * (seed % 2)
        x, y = (Pair(draw(100, seed=seed + k, spread=spread), draw(100, seed=seed + k + 1) * 2.0**-54) for k in (0, 5))
        for (found, off), true in (
            (summed([*x, *y]), value(x) + value(y)),
            (times(x, y), value(x) * value(y)),
        ):
            error = abs(value(found) - true)
            assert (error <= exact(off)).all()
            assert (off <= 2.0**-95 * found.high.abs() + 2.0 ** (2 * spread - 100)).all()


@pytest.mark.parametrize("terms", [1, 27, 512, 600])
def test_products_of_slices_are_exact_but_for_what_is_left_out(terms):
    """Also of numbers that fill their slices and have one sign, whose sums are the largest."""
    bits = slice_bits(terms)
    assert terms << (2 * bits) <= 1 << 53
    for seed, spread in ((0, 0), (1, 12), (2, 0)):
        weight, x = (
            Pair(draw(2, terms, seed=seed + k, spread=spread), draw(2, terms, seed=k) * 2.0**-55) for k in (0, 7)
        )
        if seed == 2:
            weight, x = (Pair(0.999 + 1e-3 * each.high.abs(), each.low.abs()) for each in (weight, x))
        cut = [sliced(each, bits, 4) for each in (weight, x)]
        for each, pair in zip(cut, (weight, x), strict=True):
            assert all((part == part.round()).all() and part.abs().max() <= 2.0**bits for part in each.parts)
            scale = [Fraction(2) ** int(e) for e in each.exponent]
            total = sum(exact(part) / Fraction(2) ** (bits * (k + 1)) for k, part in enumerate(each.parts))
            left = abs(total * np.array(scale, dtype=object)[:, None] - value(pair))
            assert (left <= np.array(scale, dtype=object)[:, None] / 2 ** (4 * bits)).all()
        found, off = product_of_slices(*cut, terms, lambda _, part, rows: rows @ part.T)
        result, more = summed(found)
        error = abs(value(result) - value(x) @ value(weight).T)
        assert (error <= exact(off + more)).all()
        assert (off + more <= 2.0**-55 * 2.0 ** (2 * spread)).all()


@pytest.mark.parametrize("size", [0.0, 1e-200])
def test_weights_of_which_no_slice_has_a_bit(size):
    """Layers that are zero, as some are before training, and weights that are lost in cutting."""
    weight, x = (Pair.of(draw(2, 9, seed=k)) for k in (0, 7))
    weight = weight.apply(lambda part: part * size)
    found, off = product_of_slices(
        *(sliced(each, 20, 4) for each in (weight, x)), 9, lambda _, part, rows: rows @ part.T
    )
    result, more = summed(found)
    assert (abs(value(result) - value(x) @ value(weight).T) <= exact(off + more)).all()
    assert (off + more < 1e-20).all()


def test_rows_that_are_not_finite_or_huge_prove_nothing():
    for number in (torch.inf, torch.nan, 2.0**410):
        x = Pair.of(torch.tensor([[1.0, number]], dtype=torch.float64))
        found, off = product_of_slices(sliced(x, 20, 4), sliced(x, 20, 4), 2, lambda _, part, rows: rows @ part.T)
        assert off.isinf().all() or summed(found)[0].high.isnan().all()


def test_functions_in_whole_numbers():
    box = Fixed.of([0.7, 0.002, 1e-7, 0.0, 1e-12])

    def true(e: object) -> object:
        return mpf(0.7) + mpf(0.002) * e + mpf(1e-7) * (2 * e**2 - 1) + mpf(1e-12) * (8 * e**4 - 8 * e**2 + 1)

    def at(x: Fixed, e: object) -> object:
        chebyshev = [1, e, 2 * e**2 - 1, 4 * e**3 - 3 * e, 8 * e**4 - 8 * e**2 + 1]
        return sum(mpf(term) * t for term, t in zip(x.terms, chebyshev, strict=True)) / ONE

    for function, of in (
        (lambda x: x.sin(), mp.sin),
        (lambda x: x.cos(), mp.cos),
        (lambda x: (x / 100 + 1).reciprocal(), lambda x: 1 / (x / 100 + 1)),
        (lambda x: x.deg2rad() * x * -1.25, lambda x: x * mp.pi / 180 * x * mpf(-1.25)),
        (lambda x: x * x, lambda x: x * x),
    ):
        found = function(box)
        assert found.error < ONE >> 40
        for k in range(-8, 9):
            e = mpf(k) / 8
            assert abs(at(found, e) - of(true(e))) <= mpf(found.error) / ONE
    for wrong in (lambda: Fixed.of([2000.0, 0, 0]).sin(), lambda: Fixed.of([0.1, 0.2, 0]).reciprocal()):
        with pytest.raises(Unsupported):
            wrong()


@pytest.fixture(scope="module")
def small():
    return very_deep(4, 2, seed=3)


def network_of(model: nn.Module, image: Tensor):
    dtype = next(model.parameters()).dtype
    return read_network(model, tuple(image.shape[1:]), image.to(dtype)).network_as(torch.float64)


def test_constants_have_more_bits(small):
    model, image, _ = small
    network = network_of(model, image)
    norm, layer = model.norm, model.head
    scale = [
        mpf(w) / mp.sqrt(mpf(v) + mpf(norm.eps))
        for w, v in zip(norm.weight.tolist(), norm.running_var.tolist(), strict=True)
    ]
    (first, second) = [each for each in network.operations if each.kind in ("scale", "conv2d")][:2]
    found = constants_of(first)
    for k in range(3):
        deviation, mean = (mpf(each.double().flatten()[k].item()) for each in (model.deviation, model.mean))
        pairs = [Pair(*(part.flatten()[k] for part in pair)) for pair in (found.weight, found.shift)]
        values = [mpf(pair.high.item()) + mpf(pair.low.item()) for pair in pairs]
        assert abs(values[0] - 1 / deviation) <= mpf(found.weight_off.flatten()[k].item()) < 2.0**-99
        assert abs(values[1] + mean / deviation) <= mpf(found.shift_off.flatten()[k].item()) < 2.0**-99
    found = constants_of(second)
    true = numbers(layer.weight) * np.array(scale, dtype=object)[:, None, None, None]
    weight = numbers(found.weight.high) + numbers(found.weight.low)
    assert (abs(weight - true) <= numbers(found.weight_off)).all()
    assert found.weight_off.max() < 2.0**-98
    shift = numbers(norm.bias) + (numbers(layer.bias) - numbers(norm.running_mean)) * np.array(scale, dtype=object)
    assert (abs(numbers(found.shift.high) + numbers(found.shift.low) - shift) <= numbers(found.shift_off)).all()


def inside(form: PairForm, true: np.ndarray, e: object) -> None:
    """``true`` [C, ...] lies in the form at e, up to what the tail's symbols can take."""
    chebyshev = [mpf(1), e, 2 * e**2 - 1, 4 * e**3 - 3 * e, 8 * e**4 - 8 * e**2 + 1]
    head = numbers(form.head.high[:, 0]) + numbers(form.head.low[:, 0])
    off = abs(true - sum(t * column for t, column in zip(chebyshev, head, strict=True)))
    slopes = numbers(form.tail.slopes[:, 0].abs())
    assert (off <= numbers(form.tail.radius[0]) + slopes.sum(0)).all()
    if not form.tail.symbols:
        assert mp.sqrt((off**2).sum()) <= mpf(float(form.tail.ball[0]))


@pytest.mark.parametrize(("text", "low", "width"), [("R(50)", 0.7, 1e-3), ("R(50)", 0.0, 0.25), ("R(50)", 40.0, 3.0)])
def test_pixels_in_pairs_hold_at_every_angle(small, text, low, width):
    _, image, _ = small
    image = image.double()
    ends = (torch.tensor([[each]], dtype=torch.float64) for each in (low, low + width))
    form = pair_form(image, torch.tensor([0]), parse(text), *ends, symbols=8)
    form.tail.with_ball(form.tail.radius.flatten(1).norm(dim=1) * (1 + 1e-12))
    first, last = mpf(low), mpf(low + width)
    for k in (-4, -3, -1, 0, 2, 4):
        e = mpf(k) / 4
        inside(form, rotated(image[0], (first + last) / 2 + (last - first) / 2 * e), e)
    if width < 0.1:
        assert float(form.tail.radius.max()) < 1e-21


@pytest.mark.parametrize("beyond", [2.0**-44, 2.0**-20])
def test_paths_that_leave_their_cell(beyond):
    """By so little that nothing is charged but the difference, or far enough to cross a line."""
    image = draw(1, 1, 4, 4, seed=4).abs()
    low, high = (torch.tensor([[each]], dtype=torch.float64) for each in (0.5, 1 + beyond))
    form = pair_form(image, torch.tensor([0]), parse("Tu(2)"), low, high, symbols=0)
    form.tail.with_ball(torch.tensor([1.0], dtype=torch.float64))
    source = np.concatenate([np.full((4, 2), mpf(0), dtype=object), numbers(image[0, 0])], 1)
    for shift, e in ((mpf(1) + mpf(beyond), mpf(1)), (mpf(0.5), mpf(-1))):
        at = 1 if shift > 1 else 0
        part = shift - at
        columns = [part * source[:, j + 1 - at] + (1 - part) * source[:, j + 2 - at] for j in range(4)]
        inside(form, np.stack(columns, 1)[None], e)


def passed(model: nn.Module, image: Tensor, low: float, width: float) -> PairForm | None:
    network = network_of(model, image)
    ends = (torch.tensor([[each]], dtype=torch.float64) for each in (low, low + width))
    walk = PairPass(network, tolerance=1e-12)
    pixels = pair_form(image.double(), torch.tensor([0]), parse("R(50)"), *ends, symbols=8)
    assert walk.run_pair(pixels, 64) is not None
    return PairForm(walk.heads[walk.wanted], walk.forms[walk.wanted])


@pytest.mark.parametrize("width", [0.0, 1e-3, 0.5])
def test_a_network_holds_at_every_angle(small, width):
    """What the last layer reads, of single images to more bits than floats have."""
    model, image, _ = small
    form, low, last = passed(model, image, 0.7, width), mpf(0.7), mpf(0.7 + width)
    for e in (mpf(-1), mpf(1) / 3, mpf(1)):
        true = features(model, rotated(image[0].double(), (low + last) / 2 + (last - low) / 2 * e))
        inside(form, true, e)
    if width == 0:
        assert float(form.tail.radius.max()) < 1e-18
        assert form.head.low.abs().max() > 0


def test_relu_rounds_only_where_it_has_a_kink():
    """Pairs of either sign, and near zero; members at the ends of their symbols."""
    for seed in range(5):
        high = draw(3, 1, 40, seed=seed) * torch.tensor([1.0, 0.2, 0.1], dtype=torch.float64).view(3, 1, 1)
        head = Pair(high, draw(3, 1, 40, seed=seed + 50) * 2.0**-54)
        radius = draw(1, 40, seed=seed + 90).abs() * (1e-3 if seed % 2 else 0.0)
        tail = AffineForm(torch.zeros(1, 1, 40, dtype=torch.float64), radius)
        tail.with_ball(torch.tensor([1e9], dtype=torch.float64))
        found = relu_of_pair(PairForm(head, tail), 0 if seed < 3 else 99, 0.0)
        certain = (high[1:].abs().sum(0) + radius + 1e-14) < high[0].abs()
        assert (found.tail.radius[certain] <= radius[certain] * (1 + 1e-14) + 1e-200).all()
        for signs in ((1, 1, 1), (1, -1, -1), (-1, 1, -1)):
            weights = np.array([1, signs[0], signs[1]], dtype=object)[:, None, None]
            x = (value(head) * weights).sum(0) + exact(radius) * signs[2]
            rest = abs(np.where(x > 0, x, 0) - (value(found.head) * weights).sum(0))
            assert (rest <= exact(found.tail.radius) + exact(found.tail.slopes.abs().sum(0))).all()


def test_whole_forms_and_errors_keep_everything():
    head = Pair(draw(3, 1, 40), draw(3, 1, 40, seed=1) * 2.0**-54)
    tail = AffineForm(
        draw(2, 1, 40, seed=2) * torch.tensor([0.0, 1.0], dtype=torch.float64).view(2, 1, 1),
        draw(1, 40, seed=3).abs() * 2.0**-60,
    )
    tail.with_ball(torch.tensor([2.0**-60], dtype=torch.float64))
    whole, lows = PairForm(head, tail).whole(), abs(exact(head.low)).sum(0)
    assert (exact(whole.radius) >= lows + exact(tail.radius)).all()
    assert exact(whole.ball.square())[0] >= (lows**2).sum()
    assert torch.equal(whole.stack, torch.cat([head.high, tail.slopes]))
    errors = draw(1, 40, seed=4).abs()
    found = with_errors(tail, errors)
    assert (exact(found.radius) >= exact(tail.radius) + exact(errors)).all()
    assert float(found.ball) >= float(errors.norm()) + float(tail.ball)


def test_unknown_operations_take_whole_forms(small):
    """Sigmoid has no rule for pairs: low parts join the radius."""
    model = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8, 2))
    _, image, _ = small
    network = network_of(model.double(), image)
    form = PairForm.of(AffineForm.constant(image.double(), 4), 5)
    form.tail.with_ball(torch.zeros(1, dtype=torch.float64))
    forms = {network.input: form}
    for operation in network.operations:
        forms[operation.name] = forward(operation, [forms[each] for each in operation.inputs])
    whole = forms[network.output].whole()
    assert ((model(image.double()) - whole.center).abs() <= whole.radius).all()
    assert whole.radius.max() < 1e-11


def test_boxes_that_floats_cannot_prove(monkeypatch):
    """A network that multiplies roundings by 10^15: its boxes are proved in pairs, and their bounds hold at angles inside."""
    model, image, label = very_deep(16, seed=1)
    network = network_of(model, image)
    assert needs_pairs(network)
    prover, row = DeepProver(image.double(), label, parse("R(1)")), torch.tensor([0])
    low = torch.tensor([[0.3]], dtype=torch.float64)
    found = [float(prover.bound(row, low, low + width, network).bound) for width in (1e-3, 0.05)]
    assert found[0] > 0.34
    assert found[1] > 0.3
    monkeypatch.setattr(deep_prover, "needs_pairs", lambda _: False)
    assert float(prover.bound(row, low, low + 1e-3, network).bound) < -10
    true = margin(model, rotated(image[0].double(), mpf(0.3005)), int(label))
    assert mpf(found[0]) <= true <= mpf(found[0]) + mpf("1e-3")
