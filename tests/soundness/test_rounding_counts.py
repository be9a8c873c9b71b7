"""Every rounding allowance covers the worst case of the formula's operations (`rounding_counts`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.soundness.rounding_counts import (
    SECOND_ORDER,
    UNIT,
    Counting,
    Report,
    allowance,
    counted,
    error,
    form_error,
    report,
    value,
)
from tiltproof.enclosures import affine_form as affine
from tiltproof.enclosures import relu as relax
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.enclosures.rounding import gamma, widen
from tiltproof.network.arithmetic import PROOF, Window, proof_arithmetic
from tiltproof.network.backward import refine
from tiltproof.network.forward import margins
from tiltproof.network.graph import Network, Operation
from tiltproof.network.ops import REGISTRY, BackwardResult, activations, base, linear
from tiltproof.network.ops.base import lengths
from tiltproof.pixels import api as resample
from tiltproof.pixels import photometric as filters
from tiltproof.pixels import photometric as kernels
from tiltproof.pixels import photometric as power
from tiltproof.pixels import quadratic, single_cell
from tiltproof.pixels.coordinates import Coordinates, combine, symbols
from tiltproof.transforms.blur import GaussianBlur, MotionBlur

U = UNIT[torch.float64]
SIZES = (0.0, 1e-12, 1e-3, 1.0, 1e6)
"""Of centers, slopes and radii, in all combinations: if one is zero or much larger than the others, an allowance stands alone."""


def covered(needed: Tensor, allowed: Tensor, where: Tensor | None = None) -> Report:
    found = report(needed, allowed, where)
    assert found.share * SECOND_ORDER <= 1, f"{found.count / U:.4g} u of roundings, {found.allowed / U:.4g} u allowed"
    return found


def form_covered(form: AffineForm, more: Tensor | float = 0.0, where: Tensor | None = None) -> Report:
    return covered(form_error(form) + more, allowance(form.radius), where)


def ends_covered(interval: Interval) -> None:
    """Assert that both ends move outwards by at least their roundings; exactly that is enough.

    `Interval.outward` takes w >= 2 u |x| off an end x that was rounded once, and rounds again: two roundings, for which 2 u |x|
    are available. That suffices with room to spare. w is at least one unit in the last place of x (which lies between u |x| and
    2 u |x|), x minus one such unit is a floating-point number, and rounding is monotone, so the end moves by a whole unit; x
    itself is off by at most half a unit.
    """
    for needed, allowed in (
        (error(interval.lower), -allowance(interval.lower)),
        (error(interval.upper), allowance(interval.upper)),
    ):
        assert report(needed, allowed).share <= 1 + 1e-12


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Draw from [-1, 1], with no number near zero."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(shape, generator=generator, dtype=torch.float64) * 0.75 + 0.25
    return numbers * (torch.randint(2, shape, generator=generator) * 2 - 1)


def grid(planes: int, repeat: int = 2, seed: int = 0, sizes: tuple[float, ...] = SIZES) -> Tensor:
    """Combine numbers of all sizes with each other, [planes, entries]."""
    each = torch.tensor(list(itertools.product(sizes, repeat=planes)), dtype=torch.float64).T.repeat(1, repeat)
    return each * draw(*each.shape, seed=seed)


def leaf(numbers: Tensor, quadratic: bool = False) -> AffineForm:
    """Build a form of exactly known numbers: center, slopes, radius."""
    return AffineForm(*counted(numbers[:-1], numbers[-1].abs()), quadratic=quadratic)


# tests of the counter itself


@pytest.mark.parametrize("seed", range(3))
def test_float32_is_never_further_off_than_counted(seed):
    """The same steps in float32 and in float64: the difference is at most the count, and a fraction of it somewhere."""
    x, y, z = (draw(4000, seed=seed + 10 * k).float() for k in range(3))
    matrix = draw(4000, 5, seed=seed).float()

    def steps(x: Tensor, y: Tensor, z: Tensor, m: Tensor) -> list[Tensor]:
        total = torch.zeros_like(x)
        total[:] = x
        total[1:].addcmul_(y[1:], z[1:], value=-2.0)
        return [
            x * y + z,
            (x - y) / z,
            torch.addcmul(x, y, z).mul_(3.125),
            torch.lerp(x, y, z.abs()),
            (m * x.unsqueeze(1)).sum(1),
            m[:4].T @ torch.stack([x, y], 1)[:4],
            torch.maximum(x * 1.125, y * 1.375).clamp_(min=-0.5),
            (x.abs() + 0.125).reciprocal().sqrt(),
            x.exp() * y.sin() - z.cos(),
            x.abs() ** y,
            total,
            torch.where(x > 0, x * y, y / z).abs(),
            torch.linalg.vector_norm(m, 2, 1),
            (x.abs() * 3).log() + torch.cat([y[:10], x[10:]]),
        ]

    exact = steps(x.double(), y.double(), z.double(), matrix.double())
    with Counting():
        made = steps(*counted(x, y, z, matrix))
    for wanted, found in zip(exact, made, strict=True):
        off = (value(found).double() - wanted).abs()
        assert bool((off <= error(found).double() * (1 + 1e-6)).all())
        assert bool((off > 0.05 * error(found).double()).any())


def test_unknown_operations_are_refused():
    with Counting(), pytest.raises(NotImplementedError, match="not known"):
        counted(torch.ones(3, dtype=torch.float64)).erf()
    with pytest.raises(NotImplementedError, match="outside of Counting"):
        counted(torch.ones(3, dtype=torch.float64)) + 1


def test_allowances_are_told_from_values():
    with Counting():
        x = counted(torch.tensor([3.0], dtype=torch.float64))
        for made, expected in (
            (x * (1 + 2.0**-47), (3.0, 3 * 2.0**-47)),
            (x * (0.5 + 4 * U) + 8 * U, (1.5, 20 * U)),
            (torch.add(x, x, alpha=24 * U), (3.0, 72 * U)),
            (x * 0.1, (0.3, 0.0)),
            (torch.zeros_like(x).add_(x * (4 * U)).sub(2.0).abs(), (2.0, -12 * U)),
        ):
            assert float(value(made)) == pytest.approx(expected[0])
            assert float(allowance(made)) == pytest.approx(expected[1])


def test_an_allowance_that_is_too_small_is_noticed():
    with Counting():
        a, b = leaf(grid(3)), leaf(grid(3, seed=1).flip(1))
        total, size = a.stack + b.stack, (a.stack + b.stack).abs().sum(0)
        right = AffineForm(total, widen(a.radius + b.radius, size, 1, U))
        wrong = AffineForm(total, (a.radius + b.radius) * (1 + 8 * U))
    form_covered(right)
    with pytest.raises(AssertionError, match="u allowed"):
        form_covered(wrong)


# affine forms

ARITHMETIC: dict[str, Callable[[AffineForm, AffineForm], AffineForm]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "sum with a number": lambda a, _: a + 0.3,
    "sum with a tensor": lambda a, b: a + b.center,
    "number less": lambda a, _: 0.7 - a,
    "product with a number": lambda a, _: a * 0.3,
    "product with a tensor": lambda a, b: a * b.center,
    "quotient by a number": lambda a, _: a / 7.0,
    "radians": lambda a, _: a.deg2rad(),
    "sine": lambda a, _: a.sin(),
    "cosine": lambda a, _: a.cos(),
}


@pytest.mark.parametrize("quadratic", [False, True], ids=["straight", "quadratic"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_of_forms(name, quadratic):
    numbers = grid(4)
    with Counting():
        result = ARITHMETIC[name](
            leaf(numbers, quadratic), leaf(numbers[:, torch.randperm(numbers.shape[1])], quadratic)
        )
    form_covered(result)


@pytest.mark.parametrize("name", [name for name in ARITHMETIC if "product" in name or "quotient" in name])
def test_underflow_in_products_of_forms(name):
    """Numbers that underflow, covered by `SMALLEST` alone."""
    numbers = grid(4, sizes=(0.0, 1e-200, 1.0))
    with Counting(underflow=True):
        result = ARITHMETIC[name](leaf(numbers), leaf(numbers.flip(1)))
    form_covered(result)


def away_from_zero(numbers: Tensor) -> Tensor:
    """Move centers beyond the form's deviation."""
    numbers = numbers.clone()
    reach = numbers[1:].abs().sum(0)
    return torch.cat([(numbers[0].abs() * 1.5 + reach * 1.25 + 1e-9)[None], numbers[1:]])


@pytest.mark.parametrize("quadratic", [False, True], ids=["straight", "quadratic"])
def test_reciprocal_of_forms(quadratic):
    with Counting():
        result = leaf(away_from_zero(grid(4)), quadratic).reciprocal()
    form_covered(result)


def test_quotient_of_forms():
    """The quotient q of the centers is a free number."""
    numbers, divisor = grid(4, repeat=1), away_from_zero(grid(4, repeat=1, seed=3).flip(1))
    with Counting(free=[numbers[0] / divisor[0]]) as mode:
        result = leaf(numbers).over(leaf(divisor))
    mode.found()
    form_covered(result)


@pytest.mark.parametrize("planes", [2, 3, 5])
def test_ranges_of_forms(planes):
    with Counting():
        form = leaf(grid(planes, repeat=1))
        deviation = form.deviation()
        ends = Interval(form.lower, form.upper)
    if planes > 2:
        covered(error(deviation), allowance(deviation))
    ends_covered(ends)


def test_forms_of_intervals_and_of_boxes():
    """The middle is a free number; the radius reaches both ends from there."""
    numbers = grid(2, repeat=8).sort(0).values
    low, high = numbers
    with Counting(free=[(low + high) / 2]) as mode:
        form = AffineForm.between(*counted(low, high))
    mode.found()
    form_covered(form)
    low, high = numbers.T[:, :1].expand(-1, 2).contiguous(), numbers.T[:, 1:].expand(-1, 2).contiguous()
    with Counting(free=[(low + high) / 2]) as mode:
        first, second = symbols(*counted(low, high))
    for form in (first, second):
        form_covered(form)


def test_conversion_to_float32():
    with Counting():
        double = leaf(grid(4, sizes=(0.0, 1e-6, 1.0, 1e6)))
        single = double.to(torch.float32)
    assert value(single.radius).dtype == torch.float32
    unit, size = UNIT[torch.float32], value(double.stack).abs().sum(0) + value(double.radius)
    # the allowance is not a first-order term of float64, so it is read off: the surplus over the radius
    more = value(single.radius).double() - value(double.radius)
    rounded = (value(single.stack).double() - value(double.stack)).abs().sum(0)
    assert bool((more >= rounded).all())
    assert bool((rounded > 0.5 * unit * size)[value(double.radius) == 0].any())


# intervals


def intervals(seed: int = 0, sizes: tuple[float, ...] = SIZES) -> tuple[Tensor, Tensor]:
    low, high = grid(2, repeat=16, seed=seed, sizes=sizes).sort(0).values
    return low, high


INTERVALS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "product with a number": lambda a, _: a * -0.3,
    "quotient": lambda a, _: a / 7.0,
    "radians": lambda a, _: a.deg2rad(),
    "reciprocal": lambda a, _: a.reciprocal(),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_arithmetic_of_intervals(name):
    low, high = intervals()
    if name == "reciprocal":
        low, high = high.abs() + 1e-15, (low.abs() + high.abs()) * 2 + 1e-15
    order = torch.randperm(len(low))
    with Counting():
        result = INTERVALS[name](Interval(*counted(low, high)), Interval(*counted(low[order], high[order])))
    ends_covered(result)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_of_intervals(name):
    """The ends, and which multiples of pi lie inside: a doubtful one does, because the tested ends are moved outwards."""
    low, high = intervals(sizes=(0.0, 1e-3, 0.5, 1.0, 3.0, 100.0))
    with Counting() as mode:
        result = getattr(Interval(*counted(low, high)), name)()
    ends_covered(result)
    assert len(mode.cut) == 2
    for cut in mode.cut:
        covered(cut.error, -cut.allowance)


# coordinates


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("offset", [0.0, 13.5, 111.5])
def test_rows_of_matrices(sign, offset):
    u = torch.tensor([[[-111.5, -3.5, 0.0, 0.5, 13.5]]], dtype=torch.float64)
    v = u.transpose(1, 2)
    numbers = grid(3, repeat=1, sizes=(0.0, 1e-9, 1.0, 1e3))
    orders = [torch.randperm(numbers.shape[1]) for _ in range(3)]
    with Counting():
        row = tuple(leaf(numbers[:, order]) for order in orders)
        result = combine(row, *counted(u.clone(), v.clone()), row[0], sign, offset)
    form_covered(result)


# single cell


def boxes_in_one_cell(shape: tuple[int, ...], size: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return stack and radius of positions' forms, and the ends of their boxes.

    The boxes are thin and wide, at the ends of cells, inside and outside the image; some forms are centered and some reach far
    beyond their boxes.
    """
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: float) -> Tensor:
        return torch.tensor(choices, dtype=torch.float64)[torch.randint(len(choices), shape, generator=generator)]

    spot = torch.rand(shape, generator=generator, dtype=torch.float64)
    line = torch.randint(-2, size + 1, shape, generator=generator).double()
    begin = pick(0.0, 2.0**-52, 1e-9, 0.25, 0.5, 1 - 2.0**-40, -1.0)
    low = line + torch.where(begin < 0, spot, begin)
    high = torch.minimum(low + pick(0.0, 1e-12, 1e-3, 0.3, 1.0) * (line + 1 - low), line + 1).maximum(low)
    shift = pick(0.0, 1e-9, 0.5, 3.0, 1e3) * (spot - 0.5) * 2
    center, most = (low + high) / 2 + shift, shift.abs() + (high - low) / 2
    slopes = torch.stack([most * 0.75, most * -0.25])
    return torch.cat([center[None], slopes]), pick(0.0, 1e-12, 1e-3, 1.0), low, high


def some_image(name: str) -> Tensor:
    noise = draw(1, 1, 5, 6).abs()
    checks = ((torch.arange(5).view(-1, 1) + torch.arange(6)) % 2).double()[None, None]
    return {
        "noise": noise,
        "checks": checks,
        "of both signs": 2 * checks - 1,
        "bright, hardly any difference": 1000 - 1e-9 * noise,
        "dark": 1e-6 * checks,
        "below zero": 0.1 * noise - 1,
        "random black and white": (noise > 0.6).double(),
    }[name]


IMAGE_KINDS = (
    "noise",
    "checks",
    "of both signs",
    "bright, hardly any difference",
    "dark",
    "below zero",
    "random black and white",
)


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("name", IMAGE_KINDS)
def test_one_cell(name, padding):
    """Compare the form's possible error with `Table.floor`, 24 times the reach, and the factor, in total.

    Any slopes will do, as long as the same ones are used throughout: with slopes that are off by s and s', the residual
    p - g_u (u - u_c) - g_v (v - v_c) is off by at most s t + s' y, where t and y are the distances along the box from the first
    line and from the middle (b n + g_u m is in the center; g_v n is not): s + s' / 2 at most. A box whose end was rounded down
    reaches as far into the next cell, where the image and the first cell's function may differ by twice the largest difference
    of two pixels per unit of length.
    """
    shape, image = (30, 5, 6), some_image(name)
    across, down = (boxes_in_one_cell(shape, size, seed) for size, seed in ((6, 1), (5, 2)))

    def place(wrapped: Callable[..., list[Tensor]]) -> Coordinates:
        x, y = wrapped(*across), wrapped(*down)
        return Coordinates(AffineForm(*x[:2]), AffineForm(*y[:2]), Interval(*x[2:]), Interval(*y[2:]))

    table = single_cell.Table(image, padding)
    spots = single_cell._Places.of(place(lambda *each: list(each)), table, 5, 6)
    _, a, b, d = (plane[spots.index] for plane in table.planes[0])
    m, n, *_ = spots.numbers
    slopes = [torch.addcmul(a, d, n), torch.addcmul(b, d, m)]
    with Counting(free=[m.view(shape), n.view(shape), *slopes]) as mode:
        table = single_cell.Table(counted(image), padding)
        spots = single_cell._Places.of(place(counted), table, 5, 6)
        index = spots.index.flatten()
        result = single_cell._form(
            [p.index_select(0, index).view(30, 30) for p in table.planes[0]], spots.numbers, table.floor
        )
    assert bool((value(spots.cells) <= 1).all())
    pixels = value(table.planes[0][0])
    beyond = 2 * (2 * (pixels.max() - pixels.min())) * error(spots.cells)
    form_covered(result, mode.found(2).error + mode.found(3).error / 2 + beyond)


def test_one_cell_on_its_own_numbers():
    """The formula's radius, a sum of products of numbers >= 0, is covered by the factor `UPWARD` alone."""
    planes = grid(4, repeat=1, sizes=(0.0, 1e-9, 1.0))
    numbers = draw(11, planes.shape[1]).abs()
    q, a, b, d = planes
    slopes = [torch.addcmul(a, d, numbers[1]), torch.addcmul(b, d, numbers[0])]
    with Counting(free=slopes):
        floor = counted(torch.tensor(1e-15, dtype=torch.float64))
        result = single_cell._form(list(counted(q, a, b, d)), counted(numbers), floor)
    covered(error(result.radius), allowance(result.radius))


def test_half_sides_in_one_cell():
    """From the middle, wherever that is rounded to, half a side reaches either end of the box."""
    (stack, radius, low, high), size = boxes_in_one_cell((4000,), 6, seed=3), 6
    first = low.floor()
    middle = ((low - first) + (high - first)) / 2
    with Counting(free=[middle]) as mode:
        out = [torch.empty(4000, dtype=torch.float64) for _ in range(3)]
        form, box = AffineForm(*counted(stack, radius)), Interval(*counted(low, high))
        _, end, half = single_cell._axis(form, box, size, *out)
    off = error(half) + mode.found().error
    covered(off, allowance(half))
    # covered by the part that does not grow with the box, where it is thin
    covered(off, allowance(half), where=value(half) < 1e-9)
    assert bool((error(end) <= U).all())  # as `test_one_cell` and the formula's docstring assume


def test_ends_that_are_not_known_in_one_cell():
    """They are beyond everything: NaN is not a number between the others either."""
    low = torch.tensor([torch.nan, -torch.inf, 1.5, torch.nan], dtype=torch.float64)
    high = torch.tensor([2.5, torch.inf, torch.nan, torch.nan], dtype=torch.float64)
    form = AffineForm(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    out = [torch.empty(4, dtype=torch.float64) for _ in range(3)]
    first, end, half = single_cell._axis(form, Interval(low, high), 6, *out)
    assert first.tolist() == [-2, -2, 1, -2]
    assert (first + end).tolist() == [2.5, 7, 7, 7]
    assert bool((half >= (high.nan_to_num(nan=7.0, posinf=7.0) - low.nan_to_num(nan=-2.0, neginf=-2.0)) / 2).all())


# pixels from all points


def learned(monkeypatch, module, name: str, run: Callable[[], object], pick: int | None = None) -> list[Tensor]:
    """Record what a function of the package returns while counting: free numbers, to be declared as ``free``."""
    found: list[Tensor] = []
    function = getattr(module, name)

    def watched(*args: object) -> object:
        result = function(*args)
        found.append(value(result if pick is None else result[pick]))
        return result

    with monkeypatch.context() as patch, Counting():
        patch.setattr(module, name, watched)
        run()
    return [each.clone() for each in found]


def wide_boxes(shape: tuple[int, ...], size: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `boxes_in_one_cell` returns, for boxes that touch up to four cells."""
    stack, radius, low, high = boxes_in_one_cell(shape, size, seed)
    more = draw(*shape, seed=seed).clamp(min=0) * 1.4
    return stack, radius, low - more, high + more.flip(0)


@pytest.mark.parametrize(
    ("name", "padding"),
    [
        ("noise", "border"),
        ("of both signs", "reflect"),
        ("bright, hardly any difference", "zeros"),
        ("checks", "zeros"),
    ],
)
def test_pixels_by_points(name, padding, monkeypatch):
    """12 roundings of the largest pixel cover the hull's ends; 24 of everything involved cover the form.

    Its secant slopes are free numbers. The error of the residual's extrema counts once: one end of the form must reach the least,
    the other the largest.
    """
    shape, image, rows_of = (6, 5, 6), some_image(name), torch.zeros(6, dtype=torch.int64)
    across, down = (wide_boxes(shape, size, seed) for size, seed in ((6, 1), (5, 2)))

    def place() -> Coordinates:
        x, y = counted(*across), counted(*down)
        return Coordinates(AffineForm(*x[:2]), AffineForm(*y[:2]), Interval(*x[2:]), Interval(*y[2:]))

    def run() -> AffineForm:
        return resample.affine_by_points(counted(image), rows_of, place(), padding, None, torch.float64)

    slopes = learned(monkeypatch, resample, "_secant", run)
    with Counting(free=slopes, watch=("amin", "amax")) as mode:
        run()
    extremes = [each for each in mode.watched if each.ndim == 4]
    with Counting(free=[*slopes, *extremes]) as mode:
        form = run()
        ends = resample.hull(counted(image), rows_of, place(), padding)
    form_covered(form, torch.maximum(mode.found(2).error, mode.found(3).error).permute(0, 3, 1, 2))
    ends_covered(ends)


def test_quadratic_pixels(monkeypatch):
    """One parameter, to second order, with hinges, which are free."""
    shape, image, rows_of = (6, 5, 6), some_image("of both signs"), torch.zeros(6, dtype=torch.int64)
    across, down = (wide_boxes(shape, size, seed) for size, seed in ((6, 1), (5, 2)))

    def run() -> AffineForm:
        x, y = counted(*across), counted(*down)
        forms = AffineForm(*x[:2], quadratic=True), AffineForm(*y[:2], quadratic=True)
        place = Coordinates(*forms, Interval(*x[2:]), Interval(*y[2:]))
        return resample.affine_by_points(counted(image), rows_of, place, "zeros", None, torch.float64)

    slopes, found = learned(monkeypatch, resample, "_secant", run), learned(monkeypatch, quadratic, "hinges", run)
    with Counting(free=slopes, watch=("amin", "amax")) as mode:
        run()
    extremes = [each for each in mode.watched if each.ndim == 4]
    with Counting(free=[*slopes, *extremes, *found]) as mode:
        form = run()
    assert form.symbols == 3
    form_covered(form, torch.maximum(mode.found(2).error, mode.found(3).error).permute(0, 3, 1, 2))


# ReLU


@pytest.mark.parametrize("negative", [0.0, 0.125, -0.5])
def test_relu_by_lines(negative, monkeypatch):
    """Any slope will do: the gap is that of the slope used.

    Half of it is in the center and half in the radius, so its error costs nothing below, and above costs twice what is missing.
    1 - a is rounded as well, outside of tensors.
    """
    numbers = grid(4)

    def run() -> AffineForm:
        return relax.zonotope_relu(leaf(numbers), negative)

    (slope,), (gap,) = learned(monkeypatch, relax, "relu_chord", run, 2), learned(monkeypatch, relax, "relu_gap", run)
    with Counting(free=[slope, gap]) as mode:
        result = run()
    mode.found(0)
    found = mode.found(1)
    lacking = (1 - negative) * (found.error - found.allowance).clamp(min=0)
    form_covered(result, lacking + (U * value(result.magnitude()) if negative else 0.0))


@pytest.mark.parametrize("symbols", [0, 1, 2, 18])
def test_relu_on_a_cpu(symbols):
    """Twice the deviation, 2 D, may be any larger number, h = c + D is off by e, and the slope s is free.

    The formula takes t = (1 - s) h for the maximum of relu(x) - s x, which is (1 - s) (h + e) or s (2 D - (h - e)). With
    s = h / (2 D) up to rounding, s off by d, the first is (1 - s) e more, the second 2 D d + s e.
    """
    numbers = grid(4)
    numbers = torch.cat([numbers[:1], numbers[1:2] * draw(symbols, numbers.shape[1]), numbers[-1:]])
    width = 2 * (numbers[-1].abs() + affine.absolute_sum(numbers[1:-1]) if symbols else numbers[-1].abs())
    above = (numbers[0] + 0.5 * width).clamp(min=0)
    with Counting(watch=("threshold_backward",)) as mode:
        relax._zonotope_relu_on_cpu(leaf(numbers))
    (slope,) = mode.watched
    with Counting(free=[width, above, slope]) as mode:
        result = relax._zonotope_relu_on_cpu(leaf(numbers))
    deviation, high, chord = (mode.found(k) for k in range(3))
    covered(deviation.error, deviation.allowance)
    more = torch.maximum((1 - slope) * high.error, slope * high.error + chord.error * width)
    form_covered(result, more)


def test_parabolas():
    """Tilt and curvature are free numbers; the shift is rounded together with the center it is added to."""
    numbers = grid(5, repeat=1, sizes=(0.0, 1e-9, 1.0, 1e3))
    numbers = numbers[:, numbers[0].abs() < numbers[1].abs()]

    def parts() -> tuple[AffineForm, AffineForm]:
        nothing = AffineForm(
            torch.zeros(4, 1, numbers.shape[1], dtype=torch.float64), torch.full_like(numbers[:1], 1e9)
        )
        return leaf(numbers.unsqueeze(1), quadratic=True), AffineForm(*counted(nothing.stack, nothing.radius))

    with Counting():
        found = relax.quadratic_relaxation(parts()[0])
    with Counting(free=[value(found.tilt), value(found.curvature)]) as mode:
        result = relax.with_quadratic_relu(*parts())
    mode.found(0), mode.found(1)
    form_covered(result, where=value(result.radius) < 1e9)


# value changes


def test_powers(monkeypatch):
    """Gamma: the slope in the pixel is free; each end attains one of the bounds of x^c - s x.

    Left out is the replacement of the form by an interval where x^g can vary little (`test_intervals_of_powers`).
    """
    base = grid(3, repeat=15, sizes=(0.0, 1e-6, 0.02, 0.5))
    base[0] = base[0].abs() + base[1].abs() * 0.9
    count = base.shape[1]
    exponent, spread = (
        torch.tensor(each, dtype=torch.float64).repeat(count // len(each) + 1)[:count]
        for each in ((0.01, 0.3, 1.0, 2.2, 30.0), (0.0, 1e-9, 0.9))
    )
    spread = exponent * spread
    exponent = torch.stack([exponent, torch.zeros_like(exponent), spread * draw(count), spread * 1e-12])

    def run() -> AffineForm:
        return power.power_form(leaf(torch.stack([base[0], base[1], 0 * base[1], base[2]])), leaf(exponent))

    monkeypatch.setattr(power, "power_interval", lambda low, _: Interval(low.lower - 1e9, low.upper + 1e9))
    numbers = [learned(monkeypatch, power, "_power_of_pixel", run, pick)[0] for pick in range(3)]
    with Counting(free=numbers) as mode:
        result = run()
    least, greatest = mode.found(1), mode.found(2)
    form_covered(result, torch.maximum(least.error + least.allowance, greatest.error - greatest.allowance).clamp(min=0))


@pytest.mark.parametrize("part", [GaussianBlur(0.4, 1.2), MotionBlur(0, 5, 30)], ids=["Gaussian", "motion"])
def test_blurs(part):
    """One pass: the weights as given forms, and the sums over all positions."""
    low = torch.tensor([0.4, 0.5, 1.0], dtype=torch.float64).view(-1, 1, 1, 1)
    value_of = AffineForm.between(low, low + torch.tensor([0.0, 1e-6, 0.2], dtype=torch.float64).view(-1, 1, 1, 1))
    value_of = AffineForm(torch.cat([value_of.stack, value_of.radius[None]]), value_of.radius * 1e-3)
    weights = kernels.enclose(part, value_of.center, value_of.lower, value_of.upper)
    forms = weights.forms(value_of)
    for seed, size in itertools.product(range(3), ((1.0, 0.0, 0.0), (1.0, 0.3, 0.0), (0.5, 0.1, 0.3))):
        planes = torch.tensor(size, dtype=torch.float64).view(3, 1, 1, 1, 1) * draw(3, 3, 2, 5, 6, seed=seed)
        with Counting():
            image = AffineForm(*counted(planes[:2], planes[2].abs()))
            taken = AffineForm(*counted(forms.stack, forms.radius))
            result = filters._pass(image, taken, weights, part.passes()[0], "zeros")
        form_covered(result)


def test_weights_as_forms():
    """`Weights.forms`: 8 roundings for the computation of weights, slopes and ranges; slope and middle are free."""
    part = GaussianBlur(0.4, 1.2)
    low = torch.tensor([0.4, 0.5, 1.0, 2.0], dtype=torch.float64).view(-1, 1, 1, 1)
    high = low + torch.tensor([0.0, 1e-6, 0.2, 1.0], dtype=torch.float64).view(-1, 1, 1, 1)
    form = AffineForm.between(low, high)
    form = AffineForm(torch.cat([form.stack, form.radius[None]]), form.radius * 1e-3)
    found = kernels.enclose(part, form.center, form.lower, form.upper)
    names = ("value", "slope", "bend", "lower", "upper", "error", "slope_error")

    def run() -> AffineForm:
        numbers = {name: counted(getattr(found, name)) for name in names}
        weights = kernels.Weights(**numbers, slopes=tuple(counted(*found.slopes)))
        return weights.forms(AffineForm(*counted(form.stack, form.radius)))

    with Counting():
        first = run()
    with Counting(free=[value(first.stack)[0]]):
        result = run()
    form_covered(result)


def test_intervals_of_powers():
    low, high = grid(2, repeat=100, sizes=(1e-300, 1e-6, 0.5, 1.0)).abs().sort(0).values
    least, most = grid(2, repeat=100, seed=1, sizes=(1e-3, 1.0, 20.0)).abs().sort(0).values
    order = torch.randint(len(least), (len(low),), generator=torch.Generator().manual_seed(0))
    with Counting():
        result = power.power_interval(Interval(*counted(low, high)), Interval(*counted(least[order], most[order])))
    ends_covered(result)


# network rules


def layers() -> dict[str, tuple[Operation, tuple[int, ...]]]:
    """Return operations, with their weights counted, and the shape of their input."""

    def weights(*shape: int) -> Tensor:
        return counted(draw(*shape, seed=5))

    def made(kind: str, shape: tuple[int, ...], **settings: object) -> Operation:
        return Operation("y", kind, ("x",), settings, shape)

    window = Window((1, 1), (1, 1), (1, 1), 1)
    pooling = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil_mode": False}
    pooling |= {"count_include_pad": True, "divisor": None}
    return {
        "one input": (made("linear", (3,), weight=weights(3, 1), bias=weights(3)), (1,)),
        "no bias": (made("linear", (4,), weight=weights(4, 5), bias=None), (5,)),
        "linear": (made("linear", (4,), weight=weights(4, 30), bias=weights(4)), (30,)),
        "many inputs": (made("linear", (2,), weight=weights(2, 300), bias=weights(2)), (300,)),
        "convolution": (
            made("conv2d", (3, 4, 4), weight=weights(3, 2, 3, 3), bias=weights(3), window=window),
            (2, 4, 4),
        ),
        "scale": (made("scale", (2, 4, 4), scale=weights(2, 1, 1), shift=weights(2, 1, 1)), (2, 4, 4)),
        "average": (made("avg_pool2d", (2, 2, 2), **pooling), (2, 4, 4)),
        "mean": (made("mean", (2, 1, 1), dim=(2, 3), keepdim=True), (2, 4, 4)),
    }


LAYERS = ("one input", "no bias", "linear", "many inputs", "convolution", "scale", "average", "mean")


def entering(shape: tuple[int, ...], symbols: int = 2, seed: int = 0) -> AffineForm:
    """Draw input forms whose planes have every combination of magnitudes; signs that agree, and others."""
    each = torch.tensor(list(itertools.product((0.0, 1e-9, 1.0, 1e4), repeat=symbols + 2)), dtype=torch.float64).T
    numbers = each.view(*each.shape, *[1] * len(shape)) * draw(symbols + 2, each.shape[1], *shape, seed=seed)
    numbers[:, ::2] = numbers[:, ::2].abs()
    return AffineForm(*counted(numbers[:-1], numbers[-1].abs()))


@pytest.mark.parametrize("name", LAYERS)
def test_linear_operations_forward(name):
    with Counting():
        operation, shape = layers()[name]
        result = REGISTRY[operation.kind].forward(operation, [entering(shape)])
    form_covered(result)


def lost_backward(result: BackwardResult, form: AffineForm) -> Tensor:
    """Return what a backward step loses to rounding: errors of each coefficient times the largest |x|, and of the constant."""
    (a,) = result.inputs
    largest = (value(form.stack).abs().sum(0) + value(form.radius)).flatten(1)
    constant = result.constant
    return (error(a).flatten(1) * largest).sum(1) + (error(constant) if isinstance(constant, Tensor) else 0.0)


def paid_backward(result: BackwardResult, a: Tensor) -> Tensor:
    """Return the rounding budget. `FLOOR` and `MORE` come on top: for underflow, and for the roundings of these sums themselves."""
    if result.error is not None:
        return allowance(result.error)
    with Counting():
        sizes = lengths(counted(value(a)))
    paid = value(sizes) * allowance(result.rounding_budget)
    return paid.flatten(1).sum(1)


@pytest.mark.parametrize("name", LAYERS[:6])
def test_linear_operations_backward(name):
    with Counting():
        operation, shape = layers()[name]
        form = entering(shape)
        a = counted(draw(len(form), *operation.shape, seed=7))
        result = REGISTRY[operation.kind].backward(operation, a, [form])
    covered(lost_backward(result, form), paid_backward(result, a))


@pytest.mark.parametrize("name", LAYERS[:6])
def test_coefficients_backward(name, monkeypatch):
    """Count roundings of the bounds' own dtype alone: in float64 the much larger allowance for long sums would hide them."""
    for module in (base, linear):
        monkeypatch.setattr(module, "backward_gamma", lambda count, _, unit: gamma(count, unit))
    with Counting():
        operation, shape = layers()[name]
        form = entering(shape)
        a = counted(draw(len(form), *operation.shape, seed=7))
        result = REGISTRY[operation.kind].backward(operation, a, [form])
    result.constant = 0.0
    covered(lost_backward(result, form), paid_backward(result, a))


@pytest.mark.parametrize("negative", [0.0, 0.125])
def test_relu_backward(negative, monkeypatch):
    """The chord's slope is free; what the offset lacks counts."""
    operation = Operation("y", "relu", ("x",), {"negative_slope": negative} if negative else {}, (6,))

    def run() -> tuple[BackwardResult, AffineForm, Tensor]:
        form = entering((6,))
        a = counted(draw(len(form), 6, seed=7))
        return REGISTRY["relu"].backward(operation, a, [form]), form, a

    names = ("relu_chord", 2), ("relu_gap", None)
    free = [learned(monkeypatch, activations, name, run, pick)[0] for name, pick in names]
    with Counting(free=free) as mode:
        result, form, a = run()
    gap = mode.found(1)
    lacking = (value(a).clamp(max=0).abs() * (gap.error - gap.allowance).clamp(min=0)).sum(1)
    covered(lost_backward(result, form) + lacking, paid_backward(result, a))


def test_max_pooling(monkeypatch):
    """Half the excess is in the center and half in the radius: above, what it lacks counts twice; below, not at all."""
    settings = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "ceil_mode": False}
    operation, pool = Operation("y", "max_pool2d", ("x",), settings, (2, 2, 2)), REGISTRY["max_pool2d"]

    def run() -> AffineForm:
        return pool.forward(operation, [entering((2, 4, 4))])

    (excess,) = learned(monkeypatch, pool, "_leader", run, 1)
    with Counting(free=[excess]) as mode:
        result = run()
    found = mode.found()
    lacking = (found.error - found.allowance).clamp(min=0).view(result.shape)
    form_covered(result, lacking)


@pytest.mark.parametrize("kind", ["sigmoid", "tanh", "clamp"])
def test_functions_between_parallel_lines(kind, monkeypatch):
    """Any slope small enough will do (of a clamp any at all), and any offsets far enough from each other."""
    operation, function = Operation("y", kind, ("x",), {"low": -0.3, "high": 0.7}, (6,)), REGISTRY[kind]

    def run() -> AffineForm:
        return function.forward(operation, [entering((6,))])

    free = [learned(monkeypatch, function, "band", run, pick)[0] for pick in range(3)]
    with Counting(free=free[:1]) as mode:
        _, low, high = function.band(operation, entering((6,)))
    if kind != "clamp":
        assert float(mode.found().error.max()) < 2.0**-40  # which is subtracted from the slope
    covered(error(low), -allowance(low))
    covered(error(high), allowance(high))
    with Counting(free=free):
        result = run()
    form_covered(result)


@pytest.mark.parametrize("hidden", [1, 40])
def test_margins(hidden):
    """Forward by differences of rows, and backward by the same, concretized with the form of the inputs."""
    with proof_arithmetic(torch.device("cpu")), Counting():
        weight, bias = counted(draw(4, hidden, seed=5), draw(4, seed=6))
        last = Operation("y", "linear", ("x",), {"weight": weight, "bias": bias}, (4,), kept={})
        network = Network("x", "y", (hidden,), [last], arithmetic=PROOF)
        forms = {"x": entering((hidden,))}
        count = len(forms["x"])
        labels, pairs = torch.zeros(count, dtype=torch.int64), torch.arange(count)
        forward = margins(network, forms, labels)
        backward, _ = refine(network, forms, labels, pairs, torch.full((count,), 2))
    form_covered(forward)
    covered(error(backward), -allowance(backward))


# evaluations in float32

SINGLE = UNIT[torch.float32]


def evaluations() -> dict[str, Callable[[dict[str, Tensor], Tensor], Tensor]]:
    """Return what a module may compute in float32, in several ways."""
    return {
        "linear": lambda w, x: F.linear(x, w["weight"], w["bias"]),
        "many inputs": lambda w, x: F.linear(x, w["weight"], w["bias"]),
        "no bias": lambda w, x: F.linear(x, w["weight"]),
        "convolution": lambda w, x: F.conv2d(x, w["weight"], w["bias"], 1, 1),
        "average": lambda _, x: F.avg_pool2d(x, (2, 2)),
        "mean": lambda _, x: x.mean((2, 3), keepdim=True),
    }


@pytest.mark.parametrize("name", evaluations())
def test_float32_evaluations_are_counted(name):
    """A rule with float32 semantics has a radius of at least an evaluation's worst case, at points and in float64."""
    operation, shape = layers()[name]
    settings = {key: value(each) if isinstance(each, Tensor) else each for key, each in operation.settings.items()}
    settings = {key: each.float().double() if isinstance(each, Tensor) else each for key, each in settings.items()}
    x = draw(20, *shape, seed=4).float()
    point = AffineForm.constant(x.double())
    rule = REGISTRY[operation.kind]
    exact = rule.forward(replace(operation, settings=settings), [point])
    allowed = rule.forward(replace(operation, settings=settings, evaluation=SINGLE), [point]).radius - exact.radius
    with Counting():
        numbers = {key: counted(each.float()) for key, each in settings.items() if isinstance(each, Tensor)}
        made = evaluations()[name](numbers, counted(x))
    covered(error(made).double(), allowed)
