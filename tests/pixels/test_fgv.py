"""Algorithm 1 for many pairs at once equals Algorithm 1 box by box, however the pairs are chunked."""

import importlib

import pytest
import torch

from tiltproof import InputError, bound_pixels, parse
from tiltproof.enclosures.affine_form import Interval

fgv = importlib.import_module("tiltproof.pixels.fgv")


@pytest.mark.parametrize("padding", ["zeros", "border", "reflect"])
@pytest.mark.parametrize("text", ["R(30)", "Sc(20), R(170)", "Yaw(60@6)"])
def test_pairs_together_are_pairs_one_by_one(text, padding, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    transform = parse(text, padding=padding)
    run, count = list(range(len(transform.parts))), 24
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    middle, half = (torch.rand(2, count, len(run), dtype=torch.float64, generator=generator)).unbind()
    half = half ** torch.arange(1, count + 1).unsqueeze(1)  # from wide to narrow
    box = [torch.lerp(low, high, end.clamp(0, 1)) for end in (middle - half / 2, middle + half / 2)]
    lower = torch.rand(3, 2, 7, 9, dtype=torch.float64, generator=generator)
    source = Interval(lower, (lower + 0.1).clamp(max=1))
    rows_of, some = (
        torch.arange(60) % 3,
        torch.arange(60) ** 2 % count,
    )  # some boxes with one image, some with more, some with none
    box, count = [end[some] for end in box], 60
    single = [
        fgv.fgv(transform, run, source, rows_of[k : k + 1], box[0][k : k + 1], box[1][k : k + 1]) for k in range(count)
    ]
    for chunk, shared in ((2**24, 0), (2**24, 10**6), (40, 0), (40, 10**6), (5000, 10**6)):
        monkeypatch.setattr(fgv, "CHUNK_ENTRIES", chunk)
        monkeypatch.setattr(fgv, "SHARED", shared)
        found = fgv.fgv(transform, run, source, rows_of, *box)
        # slack depends on the largest number of terms of any pixel in the chunk
        assert torch.allclose(found.lower, torch.cat([each.lower for each in single]), rtol=0, atol=1e-13)
        assert torch.allclose(found.upper, torch.cat([each.upper for each in single]), rtol=0, atol=1e-13)


def test_lines_near_a_position():
    """They include every grid line less than 1 away, and all lines for a NaN position."""
    ends = torch.tensor(
        [[0.0, 0.0], [0.5, 0.6], [-3.0, -1.5], [2.0, 9.0], [-0.5, 0.0], [torch.nan, torch.nan]]
    ).double()
    ends = torch.cat([torch.tensor([[torch.nan, 0.5], [2.5, torch.nan]]).double(), ends])
    ends = torch.cat([ends, torch.tensor([[-torch.inf, torch.inf], [3.0, 3.0], [4.2, 6.0]]).double()])
    position = Interval(ends[:, 0], ends[:, 1])
    first, count = fgv.lines_near(position, 4)
    for line in range(4):
        upper = fgv.hat(position, torch.full_like(position.lower, line)).upper
        there = (first <= line) & (line < first + count)
        assert bool((there | (upper == 0)).all())
    assert count.tolist()[-4:-2] == [4, 4]
    assert count[:2].tolist() == [4, 4]
    assert count[4] == 0


def test_what_is_held_at_a_time(monkeypatch):
    """Chunks keep the order and have fewer than `CHUNK_ENTRIES` entries; a box that has more forms a separate chunk."""
    monkeypatch.setattr(fgv, "CHUNK_ENTRIES", 100)
    generator = torch.Generator().manual_seed(0)
    for largest in (5, 60, 1000):
        entries = torch.randint(0, largest, (200,), generator=generator)
        parts = entries.split(fgv._in_turn(entries))
        assert sum(map(len, parts)) == 200
        assert all(len(part) == 1 or part.sum() < 100 for part in parts)
        assert len(parts) <= 2 + 2 * int(entries.sum()) // 50
    assert fgv._in_turn(torch.tensor([3, 10**6, 3, 3])) == [1, 1, 2]


@pytest.mark.parametrize("padding", ["border", "reflect"])
@pytest.mark.parametrize("text", ["Roll(360), Sc(-99:300), Pitch(60@30)", "Sc(-99.9:0)", "Tu(0:4000), Tv(0:4000)"])
def test_images_are_not_padded_beyond_measure(text, padding):
    """Each side is below its limit, but the area would take gigabytes."""
    images = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="pad the image too far"):
        bound_pixels(images, f"{text}; padding={padding}", method="fgv")


def test_images_that_are_padded_far_are_padded_few_at_a_time(monkeypatch):
    images = torch.rand(12, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    text = "Sc(-90:0), R(20); padding=reflect"
    whole = bound_pixels(images, text, method="fgv")
    padded, numbers = fgv._padded, []
    monkeypatch.setattr(
        fgv, "_padded", lambda source, *rest: numbers.append(len(source.lower)) or padded(source, *rest)
    )
    monkeypatch.setattr(fgv, "PADDED_AT_ONCE", 2**16)
    few = bound_pixels(images, text, method="fgv")
    assert sum(numbers) == 12
    assert max(numbers) < 12
    assert torch.equal(few.stack, whole.stack)
    assert torch.equal(few.radius, whole.radius)
