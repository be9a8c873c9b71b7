"""The checker's digits against exact arithmetic: sums and products, pixels, and networks that floats cannot follow."""

from __future__ import annotations

import operator
from fractions import Fraction

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor, nn

import tiltproof
from tests.support.exact_network import PRECISION, features, numbers, rotated
from tests.support.very_deep import very_deep
from tiltproof.checker import CheckFailed, check, deep, digits
from tiltproof.checker.long_forms import LongForm, with_kinks
from tiltproof.checker.long_pixels import long_images
from tiltproof.checker.network import evaluation
from tiltproof.checker.tiling import read_transform
from tiltproof.checker.verdicts import differences
from tiltproof.errors import UnsupportedOperation


@pytest.fixture(autouse=True)
def in_evaluation(request):
    """Except for whole checks, which begin their own."""
    with torch.no_grad(), mp.workprec(PRECISION):
        if "tmp_path" in request.fixturenames:
            yield
        else:
            with evaluation(nn.Identity(), torch.device("cpu")):
                yield


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1


def value(x: Tensor) -> np.ndarray:
    """Digits as fractions."""
    parts = [
        np.array([Fraction(each) / 2 ** (20 * k) for each in part.flatten().tolist()], dtype=object)
        for k, part in enumerate(x)
    ]
    return sum(parts).reshape(tuple(x.shape[1:]))


def exact(x: Tensor) -> np.ndarray:
    return np.array([Fraction(each) for each in x.flatten().tolist()], dtype=object).reshape(tuple(x.shape))


LAST = Fraction(1, 2**100)


def test_digits_of_numbers():
    x = draw(200) * 2.0 ** torch.randint(-60, 18, (200,), generator=torch.Generator().manual_seed(1))
    found = digits.of_floats(x)
    assert (abs(value(found) - exact(x)) <= LAST).all()
    assert (found[1:].abs() <= 2.0**19).all()
    near, off = digits.floats(found)
    assert (abs(exact(near) - value(found)) <= exact(off)).all()
    fractions = [Fraction(k, 3 * 7**5) for k in range(-300, 300, 7)]
    found = digits.of_fractions(fractions, torch.Size((len(fractions),)), torch.device("cpu"))
    assert (abs(value(found) - np.array(fractions, dtype=object)) <= LAST).all()
    with pytest.raises(UnsupportedOperation):
        digits.of_floats(torch.tensor([2.0**20], dtype=torch.float64))


def test_carries_lose_nothing_but_the_last_places():
    x = torch.randint(-(2**51), 2**51, (7, 50), generator=torch.Generator().manual_seed(0)).double()
    x[0], x[1] = 5.0, x[1] / 2.0**32
    x[1] = x[1].round()
    found = digits.carried(x)
    assert (abs(value(found) - value(x)) <= LAST).all()
    assert (found[1:].abs() <= 2.0**19).all()


@pytest.mark.parametrize("terms", [1, 40, 2700])
def test_products_of_digits(terms):
    """Also of digits that are as large as they may be and have one sign."""
    for seed in range(2):
        x, weight = (digits.of_floats(draw(2, terms, seed=seed + k)) for k in (0, 5))
        if seed:
            x[1:], weight[1:] = 2.0**19 - 1, 2.0**19 - 3
        found, off = digits.product(x, weight, terms, lambda w, rows: rows @ w.T)
        error = abs(value(found) - value(x) @ value(weight).T)
        assert (error <= Fraction(off)).all()
        assert off < terms * 2.0**-96
    with pytest.raises(UnsupportedOperation):
        digits.product(x[:, :1, :1], weight[:, :1, :1], 2**15, lambda w, rows: rows @ w.T)


def test_digits_as_large_as_they_may_be_are_added_exactly():
    x = torch.full((6, 1, 2700), 2.0**19 - 1, dtype=torch.float64)
    x[0] = 1.0
    found, off = digits.product(x, x, 2700, lambda w, rows: rows @ w.T)
    assert abs(value(found) - value(x) @ value(x).T).max() <= Fraction(off)


def inside(form: LongForm, true: np.ndarray, e: object) -> None:
    chebyshev = [mpf(1), e, 2 * e**2 - 1, 4 * e**3 - 3 * e, 8 * e**4 - 8 * e**2 + 1]
    head = sum(numbers(part) / mpf(2) ** (20 * k) for k, part in enumerate(form.head[:, :, 0]))
    off = abs(true - sum(t * column for t, column in zip(chebyshev, head, strict=True)))
    assert (off <= numbers(form.rows[1:, 0].abs()).sum(0)).all()


def image_of(image: Tensor, low: float, width: float) -> LongForm:
    ends = (torch.tensor([[each]], dtype=torch.float64) for each in (low, low + width))
    found = long_images(image.double(), read_transform("R(50)"), *ends, 64)
    assert found is not None
    return found


@pytest.mark.parametrize(("low", "width"), [(0.7, 1e-3), (0.0, 0.25), (40.0, 0.5)])
def test_pixels_hold_at_every_angle(low, width):
    _, image, _ = very_deep(4, 2, seed=3)
    form, first, last = image_of(image, low, width), mpf(low), mpf(low + width)
    for k in (-4, -3, -1, 0, 2, 4):
        e = mpf(k) / 4
        inside(form, rotated(image[0].double(), (first + last) / 2 + (last - first) / 2 * e), e)
    if width < 0.1:
        assert float(form.radius.max()) < 1e-20


class Features(nn.Module):
    """What the last layer reads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        model.last = nn.Identity()

    def forward(self, x):
        return self.model(x)


@pytest.mark.parametrize("width", [0.0, 1e-3, 0.5])
def test_a_network_holds_at_every_angle(width):
    model, image, _ = very_deep(4, 2, seed=3)
    form = Features(model)(image_of(image, 0.7, width))
    assert isinstance(form, LongForm)
    first, last = mpf(0.7), mpf(0.7 + width)
    for e in (mpf(-1), mpf(1) / 3, mpf(1)):
        inside(form, features(model, rotated(image[0].double(), (first + last) / 2 + (last - first) / 2 * e)), e)
    if width == 0:
        assert float(form.radius.max()) < 1e-18


def test_relu_of_digits():
    for seed in range(4):
        center = draw(1, 1, 40, seed=seed)
        head = torch.stack([center, *(draw(1, 1, 40, seed=seed + k) * 0.1 for k in range(1, 5))])
        radius = draw(1, 40, seed=seed + 9).abs() * 1e-3
        if seed == 3:  # what is left over decides about the sign: no kink gets a symbol
            center, head = center * 1e-3, head * torch.tensor([1e-3, *[1e-6] * 4]).view(-1, 1, 1, 1)
        tail = deep.DeepForm(torch.stack([torch.zeros_like(radius), radius]), 99.0, torch.arange(0), [4])
        x = LongForm.join(tail, digits.of_floats(head[:, 0]))
        found = with_kinks(x)
        for signs in ((1, 1, 1, 1, 1), (-1, 1, -1, 1, -1), (1, -1, 1, 1, 1)):
            weights = np.array([1, *signs[:4]], dtype=object)[:, None, None]
            given = (value(x.head) * weights).sum(0) + exact(radius) * signs[4]
            rest = abs(np.where(given > 0, given, 0) - (value(found.head) * weights).sum(0))
            assert (rest <= exact(found.rows[1:].abs().sum(0))).all()
        certain = (head[1:].abs().sum(0)[0] + radius + 1e-12) < center[0].abs()
        assert (found.radius[certain] <= radius[certain] * (1 + 1e-10) + 1e-150).all()


def test_sums_of_digits_and_floats():
    """A branch whose digits have been rounded, plus one that has them, in every way to write it."""
    form = image_of(very_deep(4, 2, seed=3)[1], 0.7, 1e-3)
    whole = form.whole()
    for found in (
        whole + form, form + whole, torch.add(whole, form), torch.add(form, whole), whole.add(form), form.add(whole),
        operator.iadd(form.whole(), form),
    ):  # fmt: skip
        assert type(found) is deep.DeepForm
        assert torch.equal(found.numbers, whole.numbers)
        assert torch.equal(found.center, 2 * whole.center)
        assert (found.slopes - 2 * whole.slopes).abs().max() < 1e-12
    with pytest.raises(UnsupportedOperation):
        form += whole


def test_a_view_that_was_padded_is_a_view():
    form = image_of(very_deep(4, 2, seed=3)[1], 0.7, 1e-3)
    view = form.view(form.shape)
    assert not nn.functional.pad(view, (1, 1)).viewed
    for each in (form, view):
        with pytest.raises(UnsupportedOperation):
            each.relu_()


def test_what_floats_cannot_follow():
    model, image, label = very_deep(16, seed=1)
    form = image_of(image, 0.3, 1e-3)
    least, most = deep.margins(model, form, label, differences)
    assert 0.34 < least < most < 0.35
    floats = deep.margins(model, form.whole(), label, differences)
    assert not floats[0] > 0


def test_a_run_is_proved_again(tmp_path):
    model, image, label = very_deep(16, seed=1)
    folder = tmp_path / "run"
    found = tiltproof.certify(model, image, label, "R(0.02)", run=tiltproof.RunFolder(folder))
    assert [str(each.verdict) for each in found.results] == ["certified"]
    check(folder, model, image, label)
    with torch.no_grad():
        model.last.bias[label] -= 1.0  # smaller margins than the claimed one
    with pytest.raises((CheckFailed, tiltproof.InputError)):
        check(folder, model, image, label)
