"""Forms with a ball, symbols and degrees 1 to 4 through tiny networks, against rational arithmetic without tolerance.

A case is a form (a row of a batch) and a network. `DeepPass` bounds the batch; then members of each form are followed
through the network exactly, and with them the value of each symbol: those of the input are given, and a symbol that an
operation makes stands in one entry alone and takes what it can there. At every operation what is left over must obey both
of the form's claims, |x_i| <= r_i and |x|_2 <= ball; at the end each margin must lie in its form and between its ends.

`images` goes the whole way instead, from exact transformed images to margins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.soundness.exact_networks import Layer, Of, Rational, evaluate
from tests.soundness.network_fuzz import Rng, batch_norm, conv, flat, linear, read, relu
from tests.support.oracle import transformed
from tests.support.polynomial_check import Batch, chebyshev, random_batch
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import Network, margins, refine_between
from tiltproof.network.deep import DeepPass, cuts
from tiltproof.network.windows import Windows

ROWS, MEMBERS, IMAGES = 4, 5, 8
F64 = torch.float64
FINE = 200
"""Values of new symbols are multiples of 2^-200."""
SINES = Fraction(1, 2**200)
"""What the oracle's sines may be off, magnified by a network."""


class Watched(DeepPass):
    """A pass that keeps every form, and begins with a ball of its own."""

    def __init__(self, network: Network, ball: Tensor | None, **options: Any) -> None:
        super().__init__(network, **options)
        self.ball, self.seen, self.widest = ball, {}, 0

    def _keep(self, name: str, form: AffineForm, numbers: Tensor, windows: dict[int, Windows]) -> None:
        if name == self.network.input and self.ball is not None:
            form = form.with_ball(self.ball)
        super()._keep(name, form, numbers, windows)
        # with whole columns, which the pass goes on without
        kept = self.forms[name], self.numbers[name], dict(self.windows[name])
        self.widest = max(self.widest, *(each.values[0, 0].numel() for each in kept[2].values()), 0)
        self._whole(name)
        self.seen[name] = self.forms[name], self.numbers[name].tolist()
        self.forms[name], self.numbers[name], self.windows[name] = kept


@dataclass
class Case:
    layers: list[Layer]
    stack: Tensor  # [1 + n, P, ...]
    radius: Tensor
    ball: Tensor | None
    symbols: int  # of the input's radii, at most
    options: dict[str, Any]
    labels: Tensor
    quadratic: bool = False
    cut: bool = False


def blocks(rng: Rng, shape: tuple[int, int, int], residual: bool = False) -> list[Layer]:
    """Three to six blocks, then a linear layer; ``residual``: mostly convolutions and sums of branches."""
    layers, at, kind = [], "x", ("plain", "plain", "cancelling", "equal")
    channels, height, width = shape

    def add(layer: Layer) -> str:
        layers.append(layer)
        return layer.name

    def name() -> str:
        return f"n{len(layers)}"

    def weighted() -> str:
        return str(kind[rng.integers(len(kind))])

    for _ in range(rng.integers(3, 7)):
        which = rng.integers(4 if residual and rng.random() < 0.8 else 9)
        if which <= 2:
            side = [int(rng.integers(1, min(3, n) + 1)) for n in (height, width)]
            stride = [int(rng.integers(1, 3)) for _ in side]
            padding = [int(rng.integers(0, k)) for k in side]
            groups = 2 if channels == 2 and rng.random() < 0.3 else 1
            out = int(rng.integers(1, 4)) if groups == 1 else 2 * int(rng.integers(1, 3))
            at = add(
                conv(
                    rng, name(), at, (out, channels, *side), stride, padding, groups=groups, kind=weighted(), dtype=F64
                )
            )
            height, width = (
                (n + 2 * p - k) // s + 1 for n, p, k, s in zip((height, width), padding, side, stride, strict=True)
            )
            channels = out
            if rng.random() < 0.5:
                at = add(batch_norm(rng, name(), at, channels, F64))
            if rng.random() < 0.8:
                at = add(relu(name(), at))
        elif which == 3:
            one = add(conv(rng, name(), at, (channels, channels, 1, 1), kind=weighted(), dtype=F64))
            other = add(relu(name(), one))
            call = ("add.Tensor", "sub.Tensor")[rng.integers(2)]
            at = add(Layer(name(), call, [Of(other), Of(at)]))
            at = add(relu(name(), at))
        elif which == 4:
            one = add(relu(name(), at))
            at = add(Layer(name(), "cat.default", [[Of(one), Of(at)], 1]))
            channels *= 2
        elif which == 5 and min(height, width) > 1:
            at = add(Layer(name(), "avg_pool2d.default", [Of(at), [2, 2], [1, 2], [0, 0]]))
            height, width = height - 1, width // 2
        elif which == 6 and height > 1:
            at = add(Layer(name(), "slice.Tensor", [Of(at), 2, 0, height, 2]))
            height = -(-height // 2)
        elif which == 7:
            at = add(Layer(name(), "mul.Tensor", [Of(at), float(rng.normal() * 3)]))
            at = add(Layer(name(), "add.Tensor", [Of(at), float(rng.normal())]))
        else:
            at = add(Layer(name(), "leaky_relu.default", [Of(at), 0.1]) if rng.random() < 0.3 else relu(name(), at))
    if rng.random() < 0.3:
        at, inputs = add(Layer(name(), "mean.dim", [Of(at), [2, 3]])), channels
    else:
        at, inputs = add(flat(name(), at)), channels * height * width
    add(linear(rng, "y", at, inputs, 3, weighted(), F64))
    return layers


def draw(rng: Rng) -> Case:
    alone = rng.random() < 0.5  # one row has windows
    shape = (int(rng.integers(1, 3)), *(int(n) for n in rng.integers(2 + 3 * alone, 5 + 4 * alone, 2)))
    layers, full = blocks(rng, shape, alone), (1 if alone else ROWS, *shape)
    degree = int(rng.integers(1, 5))
    spread = 10.0 ** rng.uniform(-2 if alone else -8, 0)
    stack = rng.normal(size=(1 + degree, *full))
    for k in range(1, 1 + degree):
        stack[k] *= spread**k if rng.random() < 0.7 else spread
    radius = abs(rng.normal(size=full)) * (rng.random(full) < 0.7) * spread * 10.0 ** rng.uniform(-9, 0)
    symbols, ball = (int(rng.integers(0, 4)), None) if rng.random() < 0.5 else (0, None)
    if not symbols:
        lengths = np.sqrt((radius**2).reshape(len(radius), -1).sum(1))
        ball = torch.from_numpy(lengths * 10.0 ** rng.uniform(-1.5, 0.1, len(radius)))
    options = {"tolerance": 10.0 ** rng.uniform(-12, -3 if alone else 2), "window_pixels": int(rng.integers(1, 9))}
    options |= {"most_symbols": 9} if rng.random() < 0.2 else {}
    labels = torch.from_numpy(rng.integers(0, 3, len(radius)))
    quadratic, cut = degree > 1 and rng.random() < 0.5, rng.random() < 0.5
    stack, radius = torch.from_numpy(stack), torch.from_numpy(radius)
    return Case(layers, stack, radius, ball, symbols, options, labels, quadratic, cut)


def members(rng: Rng, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Symbols [P, S, n], and what is left over [P, S, ...], as floats: inside of what the form allows, often at its edge."""
    rows, shape, degree = len(case.radius), case.radius.shape[1:], len(case.stack) - 1
    t = np.concatenate([[-1.0, 1.0], rng.integers(-64, 65, MEMBERS - 2) / 64])
    polynomial = np.array([[float(each) for each in chebyshev(Fraction(x), degree)] for x in t])
    e = np.where(
        (rng.random((rows, MEMBERS, 1)) < 0.5) | case.quadratic,
        polynomial[None],
        rng.choice([-1.0, 1.0], (rows, MEMBERS, degree)),
    )
    direction = rng.normal(size=(rows, MEMBERS, *shape)) * 10.0 ** rng.uniform(-2, 2, (rows, MEMBERS, *shape))
    slope = gradients(rng, case)
    for s in range(0, MEMBERS, 2):  # towards the least or the largest of a margin
        sign = rng.choice([-1.0, 1.0], rows)
        along = (slope[None] * case.stack[1:].numpy()).reshape(degree, rows, -1).sum(2).T
        if not case.quadratic:
            e[:, s] = np.where(along * sign[:, None] > 0, 1.0, -1.0)
        direction[:, s] = slope * sign.reshape(-1, *[1] * len(shape))
    radius = case.radius.numpy()[:, None]
    rest = np.where(rng.random((rows, MEMBERS, *[1] * len(shape))) < 0.5, np.sign(direction) * radius, 0.0)
    if case.ball is not None:
        flat_ = direction.reshape(rows, MEMBERS, -1)
        length = np.sqrt((flat_**2).sum(2)).reshape(rows, MEMBERS, *[1] * len(shape)) + 1e-300
        ball = case.ball.numpy().reshape(-1, *[1] * (len(shape) + 1))
        rest = np.where(rest == 0, direction / length * ball, rest)
        rest = np.clip(rest, -radius, radius)
        size = np.sqrt((rest**2).reshape(rows, MEMBERS, -1).sum(2)).reshape(rows, MEMBERS, *[1] * len(shape)) + 1e-300
        rest = rest * np.minimum(1, ball / size * (1 - 2.0**-50))
    return e, rest


def gradients(rng: Rng, case: Case) -> np.ndarray:
    """Of the difference of two outputs, at the centers."""
    values = {"x": case.stack[0].clone().requires_grad_()}
    with torch.enable_grad():
        for layer in case.layers:
            values[layer.name] = layer.apply(values)
        first, second = rng.permutation(3)[:2]
        (found,) = torch.autograd.grad((values["y"][:, first] - values["y"][:, second]).sum(), values["x"])
    return found.numpy()


def fixed(values: Rational, bits: int = FINE) -> np.ndarray:
    """Integers: the values times 2^bits, rounded towards zero."""

    def one(number: int) -> int:
        size = (abs(number) << bits) // (values.den << values.exp) if values.exp >= 0 else 0
        return size if number >= 0 else -size

    return np.vectorize(one, otypes=[object])(values.ints)


def rows_of(values: Any, count: int) -> Rational:
    """The entries of each row [P, ...] for all its members, [P S, entries]."""
    found = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    return Rational.of(np.repeat(found, count, 0))


def least_exponent(*values: Rational) -> list[np.ndarray]:
    """Integers over one power of two and denominator."""
    exp, den = max(each.exp for each in values), math.lcm(*(each.den for each in values))
    return [each.ints * ((den // each.den) << (exp - each.exp)) for each in values]


def check_form(form: AffineForm, numbers: list[int], known: dict[int, np.ndarray], truth: Rational, what: str) -> str:
    """What the form says wrongly about the members' values [P S, ...]; adds the values of new symbols to ``known``."""
    rows, count = len(form), truth.shape[0] // len(form)
    truth = truth.reshape(truth.shape[0], -1)
    rest = truth - rows_of(form.center, count)
    for number, column in zip(numbers, form.slopes, strict=True):
        plane = column.reshape(rows, -1).numpy()
        if number not in known:
            if (np.count_nonzero(plane, axis=1) > 1).any():
                return f"{what}: a new symbol in several entries"
            known[number] = taken(rest, plane, count)
        if plane.any():
            rest = rest - rows_of(plane, count) * Rational(known[number][:, None], FINE)
    assert form.ball is not None
    size, radius = least_exponent(rest, rows_of(form.radius, count))
    if (np.abs(size) > radius).any():
        return f"{what}: outside of the radius"
    size, ball = least_exponent(rest, rows_of(form.ball.view(-1, 1), count))
    if ((size * size).sum(1) > (ball * ball)[:, 0]).any():
        return f"{what}: outside of the ball"
    return ""


def taken(rest: Rational, plane: np.ndarray, count: int) -> np.ndarray:
    """The value in [-1, 1] of a symbol that stands in one entry of each row: as much of what is left over there as it can take."""
    entry = np.abs(plane).argmax(1)
    one, found = 1 << FINE, np.empty(len(plane) * count, dtype=object)
    for i in range(len(found)):
        k = entry[i // count]
        column = Fraction(float(plane[i // count, k]))
        found[i] = max(-one, min(one, int(rest.fraction(i, k) / column * one))) if column else 0
    return found


def check(case: Case, rng: Rng) -> tuple[str, int, bool, bool]:
    """What is wrong, or nothing; how many symbols the network's operations made, and whether any had wide windows, and whether a
    backward pass was checked."""
    network = read(case.layers, tuple(case.radius.shape[1:])).network_as(F64)
    places = cuts(network) if case.cut else []
    cut = places[rng.integers(len(places))] if places else None
    walk, degree = Watched(network, case.ball, cut=cut, **case.options), len(case.stack) - 1
    with torch.no_grad():
        pixels = AffineForm(case.stack.clone(), case.radius.clone(), quadratic=case.quadratic)
        forms = walk.run(pixels, case.symbols, degree)
        margin = None if forms is None else margins(network, forms, case.labels)
        back = None if forms is None or cut is None else backward(network, forms, case.labels, cut)
    e, rest = members(rng, case)
    count = e.shape[1]
    x = rows_of(case.stack[0], count) + Rational.of(rest.reshape(len(case.radius) * count, -1))
    known = {}
    for k in range(e.shape[2]):
        value = Rational.of(e[:, :, k].reshape(-1, 1))
        x = x + rows_of(case.stack[1 + k], count) * value
        known[k] = fixed(value)[:, 0]
    values = evaluate(case.layers, x.reshape(-1, *case.radius.shape[1:]))
    for name, (form, numbers) in walk.seen.items():
        if "/" not in name and name in values:
            found = check_form(form, numbers, known, values[name], name)
            if found:
                return found, 0, False, False
    made = walk.next_number - e.shape[2]
    if margin is None:
        return "", made, walk.widest > 1, False
    own = case.labels.numpy().repeat(count)
    y = values["y"]
    gaps = Rational(np.take_along_axis(y.ints, own[:, None], 1) - y.ints, y.exp, y.den)
    margin.ball = torch.full((len(margin),), 1e300, dtype=F64)
    found = check_form(margin, walk.seen[walk.wanted][1], known, gaps, "margins")
    if found:
        return found, 0, False, False
    if back is not None:
        low, true = least_exponent(rows_of(back, count), gaps)
        if (low > true).any():
            return f"margins: below the bounds of a backward pass from {cut}", made, False, False
    low, high, true = least_exponent(rows_of(margin.lower, count), rows_of(margin.upper, count), gaps)
    wrong = "margins: outside of the ends" if (low > true).any() or (true > high).any() else ""
    return wrong, made, walk.widest > 1, back is not None


def backward(network: Network, forms: dict[str, AffineForm], labels: Tensor, cut: str) -> Tensor:
    """Lower bounds of all margins [P, 3] by backward passes that end at the cut, with every form behind it."""
    rows, classes = (
        each.flatten() for each in torch.meshgrid(torch.arange(len(labels)), torch.arange(3), indexing="ij")
    )
    found, _ = refine_between(network, forms, rows, labels[rows], classes, None, False, source=cut)
    return found.view(-1, 3)


def images(rng: Rng) -> tuple[str, int]:
    """From exact transformed images to margins, and how many boxes there were."""
    while True:
        batch: Batch = random_batch(rng, IMAGES)
        if min(batch.images.shape[2:]) > 1:
            break
    layers = blocks(rng, batch.images.shape[1:])
    network = read(layers, batch.images.shape[1:]).network_as(F64)
    form, labels = batch.form(), torch.from_numpy(rng.integers(0, 3, IMAGES))
    with torch.no_grad():
        forms = DeepPass(network, tolerance=10.0 ** rng.uniform(-12, 2)).run(form)
        if forms is None:
            return "", 0
        margin = margins(network, forms, labels)
    for p, label in enumerate(labels.tolist()):
        low, high = (margin.lower[p].tolist(), margin.upper[p].tolist())
        for share in (Fraction(0), Fraction(1), Fraction(int(rng.integers(1, 64)), 64)):
            ends = [(Fraction(a), Fraction(b)) for a, b in zip(batch.low[p], batch.high[p], strict=True)]
            exact = transformed(batch.images[p], batch.letters, [a + (b - a) * share for a, b in ends], batch.padding)
            x = Rational(exact.numerator[None], 0, exact.denominator)
            y = evaluate(layers, x)["y"]
            for k in range(3):
                gap = y.fraction(0, label) - y.fraction(0, k)
                if not Fraction(low[k]) - SINES <= gap <= Fraction(high[k]) + SINES:
                    return f"image {p}, {batch.letters}, share {share}: margin {k} outside of its ends", IMAGES
    return "", IMAGES


@dataclass
class Tally:
    forms: int = 0
    images: int = 0
    symbols: int = 0
    windows: int = 0
    """Cases with windows of more than one pixel."""
    cuts: int = 0
    """Cases with bounds by a backward pass from a cut."""
    degrees: list[int] = field(default_factory=lambda: [0] * 5)
    violation: str = ""

    @property
    def cases(self) -> int:
        return self.forms + self.images


def campaign(cases: int, seed: int) -> Tally:
    """Check until there were enough cases, or a violation; a tenth of the cases are images."""
    tally, number = Tally(), 0
    while tally.cases < cases and not tally.violation:
        rng = np.random.default_rng([seed, number])
        if number % 20:
            case = draw(rng)
            found, made, wide, went_back = check(case, rng)
            tally.forms, tally.symbols = tally.forms + len(case.radius), tally.symbols + made
            tally.windows, tally.cuts = tally.windows + wide, tally.cuts + went_back
            tally.degrees[len(case.stack) - 1] += len(case.radius)
        else:
            found, count = images(rng)
            tally.images += count
        tally.violation = found and f"seed {seed}, number {number}: {found}"
        number += 1
    return tally
