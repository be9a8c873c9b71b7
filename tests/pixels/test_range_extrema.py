"""Boxes that span many cells: bounds hold, they are those of the surrounding rectangle, and other boxes stay exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiltproof
from tiltproof.enclosures.affine_form import Interval
from tiltproof.names import PADDINGS
from tiltproof.pixels import bilinear as wide
from tiltproof.pixels.api import bound_pixels, hull
from tiltproof.pixels.bilinear import PatchExtrema
from tiltproof.pixels.coordinates import Coordinates
from tiltproof.transforms.interpolation import ring_index, sample, with_ring

WIDTHS = torch.tensor(
    [0.0, 0.3, 1.0, 7.5, 11.0, 11.5, 12.0, 12.5, 13.0, 20.0, 31.0, 32.0, 33.0, 80.0, torch.inf]
).double()


def case(seed, height, width):
    """Draw images, boxes [P, 5, 6] of all widths in and around them, and each pair's image."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    images, rows_of = random(3, 2, height, width) * 2 - 1, torch.tensor([2, 0, 2, 1])
    boxes = []
    for size in (width, height):
        low = (random(4, 5, 6) * 3 - 1) * size
        low = torch.where(random(4, 5, 6) < 0.5, low.round(), low)
        length = WIDTHS[torch.randint(len(WIDTHS), (4, 5, 6), generator=generator)]
        boxes.append(Interval(torch.where(length == torch.inf, -torch.inf, low), low + length))
    return images, rows_of, Coordinates(None, None, *boxes), random(20, 2, 4, 5, 6)


@pytest.mark.parametrize("padding", PADDINGS)
@given(seed=st.integers(0, 10**6), height=st.integers(1, 40), width=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_no_value_in_a_box_leaves_its_hull(padding, seed, height, width):
    images, rows_of, place, shares = case(seed, height, width)
    bounds = hull(images, rows_of, place, padding)
    ends = [(box.lower.clamp(min=-500), box.upper.clamp(max=500)) for box in (place.columns, place.rows)]
    corners = torch.stack([shares.new_full(shares.shape[1:], end) for end in (0.0, 1.0)])
    for share in torch.cat([shares, corners]):
        column, row = (low + (high - low) * part for (low, high), part in zip(ends, share, strict=True))
        value = sample(images[rows_of], column, row, padding)
        assert bool((bounds.lower <= value + 1e-12).all())
        assert bool((value <= bounds.upper + 1e-12).all())


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize(("height", "width"), [(40, 33), (1, 60), (17, 5)])
def test_a_wide_box_has_the_extremes_of_its_rectangle_and_a_narrow_one_is_exact(padding, height, width):
    images, rows_of, place, _ = case(1, height, width)
    bounds = hull(images, rows_of, place, padding)
    far = wide.too_wide(place.columns, place.rows, height, width, padding)
    ring = with_ring(images)
    few = Coordinates(None, None, *(Interval(box.lower, box.upper) for box in (place.columns, place.rows)))
    exact = list(PatchExtrema(images, rows_of, few, padding))
    low, high = torch.stack(exact).amin(0), torch.stack(exact).amax(0)
    seen = set()
    for p, i, j in torch.cartesian_prod(*map(torch.arange, far.shape)).tolist():
        mine = bounds.lower[p, :, i, j], bounds.upper[p, :, i, j]
        seen.add(bool(far[p, i, j]))
        if far[p, i, j]:
            (left, right), (top, bottom) = (
                tuple(int(end[p, i, j]) for end in wide.lines(box, size))
                for box, size in ((place.columns, width), (place.rows, height))
            )
            across = ring_index(torch.arange(left, right + 1), width, padding)
            down = ring_index(torch.arange(top, bottom + 1), height, padding)
            part = ring[rows_of[p]][down][:, across]
            wanted = part.amin((0, 1)), part.amax((0, 1))
            assert bool((low[p, i, j] >= wanted[0]).all())  # the exact one lies inside
        else:
            wanted = low[p, i, j], high[p, i, j]
        for one, other in zip(mine, wanted, strict=True):
            assert one.tolist() == pytest.approx(other.tolist(), abs=1e-14)
    assert True in seen


def test_a_turn_of_a_large_image_costs_no_more_than_its_pixels():
    """All cells of all boxes would mean 100 million lookups for each of the four bounds, and gigabytes."""
    image = torch.rand(1, 1, 100, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    form = bound_pixels(image, "R(180)")
    for angle in torch.linspace(-180, 180, 25, dtype=torch.float64):
        value = tiltproof.transforms.Rotation(180).apply(image, angle.view(1, 1))
        assert bool((form.lower <= value + 1e-12).all())
        assert bool((value <= form.upper + 1e-12).all())
