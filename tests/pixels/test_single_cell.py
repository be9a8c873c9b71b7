"""The closed form for boxes in one cell or on a flat part of an image, against exact numbers and against all points."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.pixels import api as resample
from tiltproof.pixels import single_cell
from tiltproof.pixels.api import distinct, pair_bounds
from tiltproof.pixels.coordinates import Coordinates, coordinates
from tiltproof.pixels.coordinates import symbols as symbols_of
from tiltproof.transforms.base import parse

HEIGHT, WIDTH = 4, 5
ENDS = [
    (0.25, 0.75), (0.0, 1.0), (1.0, 1.0), (1.5, 1.5), (0.0, 1 - 2.0**-53), (1 - 2.0**-53, 1.0), (2.0, 2 + 2.0**-51), (0.3, 0.3 + 2.0**-31),
    (-1e-20, -1e-21), (-0.5, 2.0**-60), (-1.0, 2.0**-55), (-1.0, 0.0), (-0.25, -1e-17), (-1.75, -1.25), (-2.0, -1.0), (-7.5, -3.0),
    (0.9, 1.1), (0.5, 2.5), (-0.25, 0.25), (-1.5, 3.25), (1.0, 3.0), (-3.0, 9.0), (3.5, 4.0), (4.2, 4.9), (5.1, 5.7), (6.0, 6.0),
    (8.0, 40.0),
]  # fmt: skip
"""Where boxes begin and end along an axis: on and near grid lines, thin, a whole cell, outside, in several cells."""


def forms(generator: np.random.Generator, symbols: int) -> tuple[AffineForm, Interval]:
    """Draw positions [1, H, W] and their boxes, each inside its form's range, which may reach further."""
    ends = np.array([ENDS[k] for k in generator.integers(len(ENDS), size=HEIGHT * WIDTH)])
    aside = generator.choice([0.0, 0.0, 1e-9, 0.3, 40.0], HEIGHT * WIDTH) * generator.choice([-1, 1], HEIGHT * WIDTH)
    center = ends.mean(1) + aside
    reach = np.maximum(center - ends[:, 0], ends[:, 1] - center)
    parts = generator.dirichlet(np.full(symbols + 1, 0.5), HEIGHT * WIDTH).T * reach
    slopes = parts[1:] * generator.choice([-1, 1], parts[1:].shape)
    shape = 1, HEIGHT, WIDTH
    stack = torch.tensor(np.concatenate([center[None], slopes])).view(1 + symbols, *shape)
    radius = torch.tensor(parts[0] * (1 + 1e-12) + 1e-15).view(shape)
    return AffineForm(stack, radius), Interval(*(torch.tensor(end.copy()).view(shape) for end in ends.T))


def image(generator: np.random.Generator, kind: int) -> np.ndarray:
    """Draw two channels."""
    values = generator.random((2, HEIGHT, WIDTH))
    if kind == 1:  # either sign, and widely different magnitudes
        return (values - 0.5) * 10.0 ** generator.integers(-12, 6, values.shape)
    if kind == 2:  # flat, except for one pixel
        flat = np.full_like(values, 0.7)
        flat[0, generator.integers(HEIGHT), generator.integers(WIDTH)] += generator.choice([0.25, 2.0**-40])
        return flat
    return np.zeros_like(values) if kind == 3 else values


def value(pixels: np.ndarray, u: Fraction, v: Fraction, padding: str) -> Fraction:
    """Interpolate the padded image bilinearly, exactly."""

    def pixel(i: int, j: int) -> Fraction:
        inside = min(max(i, 0), height - 1), min(max(j, 0), width - 1)
        return Fraction(0) if padding == "zeros" and inside != (i, j) else Fraction(float(pixels[inside]))

    (height, width), j, i = pixels.shape, u.__floor__(), v.__floor__()
    t, s = u - j, v - i
    return (pixel(i, j) * (1 - t) + pixel(i, j + 1) * t) * (1 - s) + (
        pixel(i + 1, j) * (1 - t) + pixel(i + 1, j + 1) * t
    ) * s


def position(
    form: AffineForm, box: Interval, at: tuple[int, int], e: list[Fraction], rest: Fraction
) -> Fraction | None:
    """Return the form's value at these symbols, moved by this much of its radius and clipped to its box; None where impossible."""
    center, *slopes = (Fraction(float(number)) for number in form.stack[:, 0, *at])
    radius = Fraction(float(form.radius[0, *at]))
    low, high = (Fraction(float(end[0, *at])) for end in (box.lower, box.upper))
    middle = center + sum((slope * each for slope, each in zip(slopes, e, strict=True)), Fraction(0))
    place = min(max(middle + rest * radius, low), high)
    return place if abs(place - middle) <= radius else None


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("symbols", [1, 2])
def test_forms_hold_the_exact_image(padding, symbols, monkeypatch):
    monkeypatch.setattr(single_cell, "MOST_LEFT", 1.0)
    generator = np.random.default_rng(symbols + 10 * len(padding))
    seen = 0
    for number in range(36):
        (column, columns), (row, rows) = forms(generator, symbols), forms(generator, symbols)
        pixels = image(generator, number % 4)
        place, dtype = Coordinates(column, row, columns, rows), (torch.float64, torch.float32)[number % 3 == 2]
        images = torch.tensor(pixels)[None]
        assert single_cell.applies(images, place, padding)
        found = resample.affine_of_exact(images, torch.tensor([0]), place, padding, None, dtype)
        assert found.stack.dtype == dtype
        assert bool((found.radius >= 0).all())
        ends = [torch.stack([box.lower, box.upper]).clamp(-2, 7) for box in (columns, rows)]
        seen += int(torch.stack([end[1] <= end[0].floor() + 1 for end in ends]).all(0).sum())
        for at in product(range(HEIGHT), range(WIDTH)):
            for _ in range(5):
                e = [Fraction(int(each), 8) for each in generator.integers(-8, 9, symbols)]
                rest = Fraction(int(generator.choice([-1, 0, 1])))
                u, v = position(column, columns, at, e, rest), position(row, rows, at, e, -rest)
                if u is None or v is None:
                    continue
                for channel in range(2):
                    center, *slopes = (Fraction(float(each)) for each in found.stack[:, 0, channel, *at])
                    middle = center + sum((slope * each for slope, each in zip(slopes, e, strict=True)), Fraction(0))
                    apart = abs(value(pixels[channel], u, v, padding) - middle)
                    assert apart <= Fraction(float(found.radius[0, channel, *at])), (number, at, channel, e, rest)
    assert seen > 100, "boxes in one cell"


@pytest.mark.parametrize("scale", [1.0, 2.0**-1070], ids=["plain", "tiny"])
def test_boxes_that_begin_and_end_next_to_a_grid_line(scale):
    """Shifts by less than a pixel, of every order of magnitude: a box that crosses a line by 2^-40 is in two cells."""
    pixels = [0.0, 1.0, 0.0, 3.0, 0.0, 1.0]
    image, transform = torch.tensor(pixels, dtype=torch.float64).view(1, 1, 1, 6) * scale, parse("Tu(1)")
    known = dict(enumerate(Fraction(x) for x in image.flatten().tolist()))
    for center, power in product((0.0, 0.25, 0.5), range(2, 53)):
        low, high = (torch.tensor([[center + sign * 2.0**-power]], dtype=torch.float64) for sign in (-1, 1))
        form = pair_bounds(image, torch.tensor([0]), transform, "affine", low, high)
        middle, half = (Fraction(high.item()) + sign * Fraction(low.item()) for sign in (1, -1))
        for e, k in product((Fraction(-1), Fraction(-1, 2), Fraction(0), Fraction(1, 3), Fraction(1)), range(6)):
            place = k - (middle + half * e) / 2
            line = place.__floor__()
            left, right = (known.get(each, Fraction(0)) for each in (line, line + 1))
            exact = left + (right - left) * (place - line)
            c, g, r = (Fraction(each[0, 0, 0, k].item()) for each in (*form.stack, form.radius))
            assert abs(exact - c - g * e) <= r, (center, power, float(e), k)


@pytest.mark.parametrize("bright", [6, 9])
def test_a_flat_part_ends_somewhere(bright):
    """Boxes that reach beyond the examined cells, over an image that is dark up to a column."""
    image = torch.zeros(1, 1, 1, 12, dtype=torch.float64)
    image[..., bright:] = 1.0
    low, high = torch.tensor([[-8.0], [-1.25]]).double(), torch.tensor([[-1.5], [-0.5]]).double()
    form = pair_bounds(image, torch.tensor([0, 0]), parse("Tu(9)"), "affine", low, high)
    # shifted to the left by 1.5 to 8 pixels, column 0 shows columns 1.5 to 8
    assert float(form.upper[0, 0, 0, 0]) >= (1.0 if bright == 6 else 0.0)
    for shift in (-8.0, -6.3, -1.5):
        places = [value(image[0, 0].numpy(), Fraction(k - shift), Fraction(0), "zeros") for k in range(12)]
        seen = torch.tensor([*map(float, places)], dtype=torch.float64)
        assert bool((form.lower[0, 0, 0] <= seen).all())
        assert bool((seen <= form.upper[0, 0, 0]).all())


@pytest.mark.parametrize("cells", [2, 3, 4])
def test_the_far_corner_of_cells_is_not_taken_for_flat(cells):
    """All pixels that a box sees are dark but the one in the corner of its last cell."""
    image = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    image[..., cells, cells] = 1.0
    low, high = torch.tensor([[-(cells - 0.125), 0.125]]).double(), torch.tensor([[-0.125, cells - 0.125]]).double()
    form = pair_bounds(image, torch.tensor([0]), parse("Tu(9), Tv(9)"), "affine", low, high)
    # pixel (0, 0) shows the place (cells - 1/8, cells - 1/8)
    assert float(form.upper[0, 0, 0, 0]) >= 0.875**2


TEXTS = [
    "R(30)",
    "R(2), Sh(2)",
    "Tu(40), Tv(3)",
    "Sc(9), R(9); padding=border",
    "R(9); padding=border",
    "Yaw(5@30), R(3)",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_wider_than_a_look_at_all_points(text, dtype, monkeypatch):
    """Nor much narrower, except for thin boxes, which get no slopes there, and boxes next to one that is too wide for slopes."""
    transform, generator = parse(text), torch.Generator().manual_seed(len(text))
    ends = [torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high)]
    images = torch.rand(3, 2, 9, 8, dtype=torch.float64, generator=generator)
    images[1, :, 2:7] = 0.5
    images[2] = images[2].round()
    half = torch.tensor([1e-6, 1e-3, 0.01, 0.02, 0.03, 0.05]).repeat(4).unsqueeze(1)
    middle = 0.1 + 0.8 * torch.rand(len(half), len(ends[0]), dtype=torch.float64, generator=generator)
    low, high = (ends[0] + (ends[1] - ends[0]) * (middle + side * half) for side in (-1, 1))
    if len(text) % 2:
        low, high = low[:6].repeat(4, 1), high[:6].repeat(4, 1)
        assert distinct(low, high)[1] is not None
    arguments = images, torch.arange(len(low)) % 3, transform, "affine", low, high
    found = pair_bounds(*arguments, dtype=dtype)
    monkeypatch.setattr(single_cell, "applies", lambda *_: False)
    wanted = pair_bounds(*arguments, dtype=dtype)
    slack = 1e-12 if dtype == torch.float64 else 1e-6
    assert bool((found.deviation() <= wanted.deviation() + slack).all())
    assert bool((found.radius <= wanted.radius + slack).all())
    same = (found.stack - wanted.stack).abs().amax(0) <= slack
    assert float(same.float().mean()) > 0.9
    torch.testing.assert_close(found.radius[same], wanted.radius[same], rtol=0, atol=slack)


def test_few_pixels_at_a_time_change_nothing(monkeypatch):
    transform = parse("R(20)")
    images = torch.rand(2, 1, 6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low = torch.linspace(-20, 19, 11, dtype=torch.float64).unsqueeze(1)
    arguments = images, torch.arange(11) % 2, transform, "affine", low, low + 1
    whole = pair_bounds(*arguments)
    monkeypatch.setattr(single_cell, "CACHED_PIXELS", 50)
    monkeypatch.setattr(resample, "CACHED_ENTRIES", 1)
    parts = pair_bounds(*arguments)
    assert torch.equal(whole.stack, parts.stack)
    assert torch.equal(whole.radius, parts.radius)


@pytest.mark.parametrize(("text", "quadratic"), [("R(5); padding=reflect", False), ("R(5)", True), ("R(40)", False)])
def test_images_that_are_larger_than_a_chunk(text, quadratic, monkeypatch):
    """Even a single image exceeds the chunk, from all points."""
    monkeypatch.setattr(resample, "CACHED_ENTRIES", 1)
    images = torch.rand(1, 2, 5, 6, dtype=torch.float64)
    transform = parse(text)
    low, high = (torch.tensor([end], dtype=torch.float64) * 0.9 for end in (transform.low, transform.high))
    form = pair_bounds(images, torch.tensor([0]), transform, "affine", low, high, quadratic=quadratic)
    seen = transform.apply(images, (low + high) / 2)
    assert bool(((form.lower <= seen) & (seen <= form.upper)).all())


def test_many_pixels_left_over_are_looked_at_together(monkeypatch):
    """If nearly all are left over, all are bounded together; the same bounds result if they are picked out one by one."""
    transform, images = parse("Tu(1)"), torch.rand(1, 1, 4, 4, dtype=torch.float64)
    arguments = images, torch.tensor([0]), transform, "affine", *torch.tensor([[[-0.25]], [[0.5]]]).double()
    asked = []
    whole = single_cell.single_cell_form
    monkeypatch.setattr(single_cell, "single_cell_form", lambda *given: asked.append(whole(*given)) or asked[-1])
    found = pair_bounds(*arguments)
    assert asked == [None]
    monkeypatch.setattr(single_cell, "MOST_LEFT", 1.0)
    torch.testing.assert_close(pair_bounds(*arguments).upper, found.upper, rtol=0, atol=1e-14)
    assert asked[1] is not None


@pytest.mark.parametrize("text", ["R(5)", "Tu(2)", "Tv(2)"])
@pytest.mark.parametrize("number", [0, 1])
def test_gradients_flow_through_pixel_bounds(text, number):
    """To the images, and to the boxes."""
    given = [torch.rand(1, 1, 4, 4, dtype=torch.float64), torch.full((1, 1), 0.9, dtype=torch.float64)]
    asked = given[number].requires_grad_()
    form = pair_bounds(given[0], torch.tensor([0]), parse(text), "affine", given[1], torch.ones(1, 1).double())
    form.upper.sum().backward()
    assert asked.grad is not None
    assert bool((asked.grad != 0).any())


def test_only_float64_on_a_cpu_and_few_channels():
    place = coordinates(parse("R(5)"), [0], *places())
    images = torch.rand(1, 1, 4, 4, dtype=torch.float64)
    assert single_cell.applies(images, place, "zeros")
    assert not single_cell.applies(images, place, "reflect")
    assert not single_cell.applies(images.float(), place, "zeros")
    assert not single_cell.applies(images.expand(1, 17, 4, 4), place, "zeros")


def places():
    low, high = torch.tensor([[[-1.0]], [[1.0]]]).double()
    return symbols_of(low, high), low, high, 4, 4
