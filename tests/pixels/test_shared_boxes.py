"""Pairs that share a box share its grid lines, and pixels are bounded a few rows at a time: neither changes a bound."""

from __future__ import annotations

import pytest
import torch

from tiltproof.pixels import api as resample
from tiltproof.pixels import single_cell
from tiltproof.pixels.api import distinct, pair_bounds
from tiltproof.transforms.base import parse

TRANSFORMS = [
    ("R(30)", False), ("R(30)", True), ("R(20), Sh(10)", False), ("Sc(5), R(5), C(5), B(0.01)", False), ("Tu(2)", True),
    ("R(9); padding=reflect", False), ("R(170)", False), ("Yaw(5@30), R(3)", False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "quadratic"), TRANSFORMS)
@pytest.mark.parametrize("channels", [1, 3])
def test_pairs_are_bounded_as_each_would_be_alone(text, quadratic, channels, monkeypatch):
    transform = parse(text)
    random = torch.Generator().manual_seed(len(text) + channels)
    images = torch.rand(3, channels, 9, 7, dtype=torch.float64, generator=random)
    ends = [torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high)]
    cuts = torch.rand(4, len(ends[0]), 2, dtype=torch.float64, generator=random) * 0.1 + 0.4
    low, high = (ends[0] + (ends[1] - ends[0]) * cut for cut in (cuts.amin(2), cuts.amax(2)))
    if text == "R(170)":
        low, high = ends[0].expand_as(low), ends[1].expand_as(high)  # too wide for slopes
    rows, boxes = torch.tensor([0, 2, 2, 1, 0, 2, 1, 0]), torch.tensor([3, 1, 0, 1, 2, 3, 3, 1])
    monkeypatch.setattr(resample, "CACHED_ENTRIES", 3 * images[0].numel())
    monkeypatch.setattr(single_cell, "CACHED_PIXELS", 3 * images[0, 0].numel())
    together = pair_bounds(images, rows, transform, "affine", low[boxes], high[boxes], quadratic=quadratic)
    # one call may examine more points for all pairs than a single pair needs, at the same positions
    for p, (row, box) in enumerate(zip(rows.tolist(), boxes.tolist(), strict=True)):
        one = pair_bounds(
            images, torch.tensor([row]), transform, "affine", low[[box]], high[[box]], quadratic=quadratic
        )
        same = one.symbols == together.symbols
        for found, wanted in ((together.lower[p], one.lower[0]), (together.upper[p], one.upper[0])):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12 if same else 0.2)


def test_boxes_that_occur_once_or_more():
    low = torch.tensor([[0.0, 1.0], [0.5, 1.0], [0.0, 1.0], [0.0, 1.5]]).double()
    high = low + 1
    rows, box_of = distinct(low, high)
    assert len(rows) == 3
    assert torch.equal(low[rows][box_of], low)
    high[2, 1] += 0.25  # the same lower ends alone are not the same box
    assert distinct(low, high)[1] is None


def test_boxes_that_are_told_apart_by_more_than_one_number():
    """Boxes are sorted by a sum of their ends, which may coincide for different boxes."""
    sines = torch.arange(1, 3, dtype=torch.float64).sin()
    low, high = sines.new_zeros(2, 3, 1)
    low[1], high[0], high[2] = sines[1], sines[0], sines[0]
    assert len((low * sines[0] + high * sines[1]).unique()) == 1
    assert distinct(low, high) == (slice(None), None)
