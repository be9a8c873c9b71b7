"""`single_kernel.py` in Triton's interpreter, on exact numbers; run by test_fused_pixels.py in a process of its own."""

import sys
import warnings
from fractions import Fraction

import numpy as np
import torch
import triton
import triton.language as tl
from interpreted_pixels import kernel, prepare

from tiltproof.bounds import fused_pixels
from tiltproof.bounds.fused_entries import written
from tiltproof.bounds.single_kernel import numbers_of, places
from tiltproof.transforms.notation import parse

from exactly import symbols, violations  # isort: skip; beside the other soundness tests, where interpreted_pixels.py looks
from oracle import composed_inverse, source_positions, transformed  # isort: skip

PADDINGS = "zeros", "border", "reflect"
SHIFTS = [
    (2.0, 2.0),  # points, on grid lines and beside them
    (0.25, 0.25),
    (1 - 2.0**-53, 1 + 2.0**-52),  # across a line by a rounding
    (-1e-20, 0.5),
    (-(2.0**-26), 2.0**-27),
    (0.25, 0.25 + 2.0**-31),  # thin
    (1.0, 1 + 2.0**-29),
    (0.0, 1 - 2.0**-24),  # a whole cell, and all but
    (-0.5, 0.5),
    (0.49, 0.51),
    (-0.96, 0.97),
    (0.001, 0.9999),
    (-2.1, -0.3),
    (1.2, 1.9),
    (-5000.3, -4999.9),  # far from the picture
    (3999.8, 4000.3),
]
TURNS = [
    (3.0, 3.02),
    (44.9, 45.1),
    (0.0, 1e-4),
    (89.9999999, 90.0000001),
    (-0.02, 0.02),
    (7.0, 7.0),
    (-31.0, -29.5),
    (180.0, 180.3),
]
LETTERS = ("Tu", "Tv"), ("R",), ("Sh", "Tu"), ("Sc", "R"), ("Scu", "Tv", "R"), ("Shv", "Sh")
SIZES = (4, 5), (5, 4), (1, 5), (6, 3), (4, 1), (1, 1)


def boxes_of(letters, count, rng) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and shears are as the shifts, in percent."""
    kinds = {"R": TURNS}
    ends = [
        [(kinds.get(letter, SHIFTS[:-2] if letter[0] == "S" else SHIFTS)) for letter in letters] for _ in range(count)
    ]
    picked = [[each[rng.integers(len(each))] for each in lists] for lists in ends]
    return torch.tensor(picked, dtype=torch.float64).unbind(2)


def transform_of(letters, padding="zeros"):
    ranges = {"R": 360, "Tu": 9000, "Tv": 9000}
    return parse(", ".join(f"{letter}({ranges.get(letter, 50)})" for letter in letters) + f"; padding={padding}")


def inside(low, high, rng):
    """Parameters of a box: both corners, another one, and two points anywhere."""
    low, high = [*map(Fraction, low)], [*map(Fraction, high)]
    shares = [[0] * len(low), [8] * len(low), rng.integers(2, size=len(low)) * 8, *rng.integers(9, size=(2, len(low)))]
    return [[a + (b - a) * Fraction(int(s), 8) for a, b, s in zip(low, high, share, strict=True)] for share in shares]


@triton.jit
def look(table, small, lines, floats, entries: tl.constexpr, few: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
         composed: tl.constexpr, count: tl.constexpr, block: tl.constexpr):  # fmt: skip
    """Writes down what `places` finds: line, and distance, remainder, reach and slopes, of both axes; and its verdict."""
    pair, here = tl.program_id(0), tl.arange(0, block)
    numbers = numbers_of(table + pair * entries, small + pair * few, composed, count)
    x, y, cells = places(numbers, here, height, width, composed, count)
    axes = x, y
    lines, floats = lines + pair * 3 * block + here, floats + pair * 2 * (3 + count) * block + here
    tl.store(lines + 2 * block, cells)
    for k in tl.static_range(2):
        tl.store(lines + k * block, axes[k][0])
        tl.store(floats, axes[k][1])
        tl.store(floats + block, axes[k][3])
        tl.store(floats + 2 * block, axes[k][4])
        for symbol in tl.static_range(count):
            tl.store(floats + (3 + symbol) * block, axes[k][2][symbol])
        floats += (3 + count) * block


def positions() -> None:
    """line + distance + sum_k slope_k e_k +- remainder holds the true position, and the reach all that it can be, with nothing to spare."""
    rng, seen = np.random.default_rng(8), {1: 0, 2: 0, 3: 0}
    wide = torch.tensor([[-4000.0, 3000.1]], dtype=torch.float64), torch.tensor([[4100.3, 3000.7]], dtype=torch.float64)
    for number, letters in enumerate(LETTERS * 2):
        transform, (height, width) = transform_of(letters), ((4, 8), (8, 16), (16, 1))[number % 3]
        entries = written(transform, list(range(len(letters))))
        low, high = wide if number == 0 else boxes_of(letters, 8, rng)
        block, count = height * width, entries.symbols
        small = torch.empty(len(low), entries.few)
        table, _ = entries.table(fused_pixels._kernel("entries"), low, high, small)
        lines = torch.zeros(len(low), 3, block, dtype=torch.int32)
        floats = torch.zeros(len(low), 2, 3 + count, block)
        look[(len(low),)](
            table, small, lines, floats, entries.rows, entries.few, height, width, entries.codes[0], count, block
        )
        for p in range(len(low)):
            cells = lines[p, 2].tolist()
            for each in cells:
                seen[each] += 1
            for theta in inside(low[p].tolist(), high[p].tolist(), rng):
                e = symbols(theta, low[p].tolist(), high[p].tolist())
                *axes, unit = source_positions(composed_inverse(letters, theta), height, width)
                for axis, line, numbers in zip(axes, lines[p], floats[p], strict=False):
                    for k, true in enumerate(axis.ravel()):
                        apart, rest, reach, *slopes = map(float, numbers[:, k])
                        if not np.isfinite(reach):
                            assert cells[k] == 3
                            continue
                        apart, rest, reach, *slopes = map(Fraction, (apart, rest, reach, *slopes))
                        place = Fraction(int(true), int(unit)) - int(line[k])
                        at = apart + sum(s * each for s, each in zip(slopes, e, strict=True))
                        assert abs(place - at) <= rest + Fraction(1, 2**200), (letters, low[p], high[p], theta)
                        assert rest + sum(map(abs, slopes)) <= reach, (letters, low[p], high[p])
                        assert abs(apart) <= Fraction(1, 2)
                        least = min(abs(apart) - reach, 1 - abs(apart) - reach)
                        assert cells[k] == 3 or least >= 0 or (cells[k] == 2 and abs(apart) + reach < 1)
    assert min(seen.values()) > 100, seen


def pixels() -> None:
    """Against the exact picture: pixels of either sign and any size, boxes of all kinds, all paddings."""
    rng, generator = np.random.default_rng(9), torch.Generator().manual_seed(9)
    for number in range(36):
        letters, padding, size = LETTERS[number % 6], PADDINGS[number // 6 % 3], SIZES[(number + number // 6) % 6]
        transform = transform_of(letters, padding)
        picture = torch.rand(2, 1 + number % 2, *size, dtype=torch.float64, generator=generator)
        if number % 4 == 1:
            picture = (picture - 0.5).sign() * (1 - picture**9)
        elif number % 4 == 2:
            picture = picture.round()
        scale = (1.0, 1.0, 1e29, 1.0, 2.0**-140, 1.0, 1e-30)[number % 7]
        picture = picture * scale
        low, high = boxes_of(letters, 5, rng)
        rows_of = torch.arange(len(low)) % 2
        form = kernel(picture, rows_of, transform, "affine", low, high, dtype=torch.float32)
        for p, row in enumerate(rows_of.tolist()):
            for theta in inside(low[p].tolist(), high[p].tolist(), rng):
                truth = transformed(picture[row].numpy(), letters, theta, padding)
                e = symbols(theta, low[p].tolist(), high[p].tolist())
                planes = form.center[p], form.slopes[:, p], form.radius[p], form.lower[p], form.upper[p]
                assert not violations(truth, *planes, e), (letters, padding, size, scale, low[p], high[p], theta)
    shift, far = (
        parse(f"Tu({2**40}), Tv(1)"),
        torch.tensor([[2.0**33, 0.0], [-(2.0**33) - 1, 0.1]], dtype=torch.float64),
    )
    apart = torch.tensor([[0.25, 0.25]], dtype=torch.float64)
    found = kernel(
        torch.ones(1, 1, 4, 4, dtype=torch.float64),
        torch.tensor([0, 0]),
        shift,
        "affine",
        far,
        far + apart,
        dtype=torch.float32,
    )
    assert (found.lower <= 0).all(), "there is nothing so far away"
    assert (found.upper >= 0).all()
    assert (found.upper < 1e-6).all()
    huge = torch.full((1, 1, 4, 4), 2.0**110, dtype=torch.float64)
    box = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([[1.1, 0.5]], dtype=torch.float64)
    for strange in (huge, huge * torch.nan, huge * 2.0**900):
        found = kernel(strange, torch.tensor([0]), transform_of(("Tu", "Tv")), "affine", *box, dtype=torch.float32)
        assert not found.radius.isfinite().any()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    torch.set_num_threads(1)
    prepare()
    fused_pixels._trusted = lambda *_: True
    globals()[sys.argv[1]]()
    sys.stdout.write("ok")
