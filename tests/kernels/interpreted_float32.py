"""`triton/pixels_float32.py` in Triton's interpreter, on exact numbers; test_pixels_float32.py runs it in a child process."""

import sys
import warnings
from fractions import Fraction
from itertools import product

import numpy as np
import torch
import triton
import triton.language as tl

from tests.kernels.interpreted_pixels import kernel, prepare
from tests.support.exactly import symbols, violations
from tests.support.oracle import composed_inverse, source_positions, transformed
from tiltproof.kernels import pixels as fused
from tiltproof.kernels.matrix_program import trace
from tiltproof.kernels.triton import pixels as pixel_kernel
from tiltproof.kernels.triton.pixels_float32 import cells_met, numbers_of, places
from tiltproof.transforms.base import parse

PADDINGS = "zeros", "border", "reflect"
SHIFTS = [
    (2.0, 2.0),  # points, on and near grid lines
    (0.25, 0.25),
    (1 - 2.0**-53, 1 + 2.0**-52),  # across a line by a rounding
    (-1e-20, 0.5),
    (-(2.0**-26), 2.0**-27),
    (0.25, 0.25 + 2.0**-31),  # thin
    (1.0, 1 + 2.0**-29),
    (0.0, 1 - 2.0**-24),  # a whole cell, and almost one
    (-0.5, 0.5),
    (0.49, 0.51),
    (-0.96, 0.97),
    (0.001, 0.9999),
    (-2.1, -0.3),
    (1.2, 1.9),
    (-50.3, -49.9),  # outside the image
    (39.8, 40.3),
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
    """Scales and shears have the same numbers as the shifts, in percent."""
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
    """Return parameters of a box: both corners, another corner, and two random points."""
    low, high = [*map(Fraction, low)], [*map(Fraction, high)]
    shares = [[0] * len(low), [8] * len(low), rng.integers(2, size=len(low)) * 8, *rng.integers(9, size=(2, len(low)))]
    return [[a + (b - a) * Fraction(int(s), 8) for a, b, s in zip(low, high, share, strict=True)] for share in shares]


@triton.jit
def look(table, small, lines, floats, entries: tl.constexpr, few: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
         composed: tl.constexpr, count: tl.constexpr, block: tl.constexpr, begin: tl.constexpr):  # fmt: skip
    """Store what `places` finds: cell and position in it, remainder, reach and slopes, on both axes; and each block's maximum."""
    pair, here = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    numbers = numbers_of(table + pair * entries, small + pair * few, height, width, composed, count)
    x, y = places(numbers, begin + here, height, width, composed, count)
    axes, plane = (x, y), tl.num_programs(1) * block
    lines, floats = lines + pair * 3 * plane + here, floats + pair * 2 * (3 + count) * plane + here
    tl.store(lines + 2 * plane, here * 0 + cells_met(x, y))
    for k in tl.static_range(2):
        tl.store(lines + k * plane, axes[k][0])
        tl.store(floats, axes[k][1])
        tl.store(floats + plane, axes[k][3])
        tl.store(floats + 2 * plane, axes[k][4])
        for symbol in tl.static_range(count):
            tl.store(floats + (3 + symbol) * plane, axes[k][2][symbol])
        floats += (3 + count) * plane


def cells_of(place, reach) -> int:
    """Return how many cells a box touches: one, two (the center's and a neighbor), or 3 for any others."""
    low, high = place - reach, place + reach
    if low >= 0 and high <= 1:
        return 1
    return 2 if max(-low, high) <= 1 or (low >= 0 and high <= 2) else 3


def positions() -> None:
    """cell + position + sum_k slope_k e_k +- remainder contains the true position, and the reach covers it exactly."""
    rng, seen = np.random.default_rng(8), {1: 0, 2: 0, 3: 0, 4: 0}
    cases = (  # far away; too far; where steps add up; and finally not much too far, the other steps, and 0 times infinity
        (("Tu", "Tv"), ([-4000.0, 3000.1], [4100.3, 3000.7]), (4, 8)),
        (("Scu",), ([-99.9], [-99.9 + 1e-5]), (1, 4000)),
        (("Scu",), ([3.0], [3.0 + 2.0**-40]), (1, 4000)),
        *((letters,) for letters in LETTERS * 2),
        (("Scu",), ([-99.7], [-99.7 + 1e-9]), (1, 4000)),
        (("Scv",), ([3.0], [3.0 + 2.0**-40]), (4000, 1)),
        (("Sc",), ([-101.0], [-99.5]), (1, 1)),
    )
    for number, (letters, *special) in enumerate(cases):
        transform, (height, width) = transform_of(letters), ((4, 8), (8, 16), (16, 1))[number % 3]
        entries, (low, high) = trace(transform, list(range(len(letters)))), boxes_of(letters, 6, rng)
        if special:
            low, high = (torch.tensor([end], dtype=torch.float64) for end in special[0])
            height, width = special[1]
        plane, count = min(height * width, 128), entries.symbols
        block = min(plane, 2 if number % 2 else 4)
        few = torch.empty(len(low), entries.float32_rows)
        table, _ = entries.table(fused.entries_kernel, low, high, few)
        lines = torch.zeros(len(low), 3, plane, dtype=torch.int32)
        floats = torch.zeros(len(low), 2, 3 + count, plane)
        look[(len(low), plane // block)](
            table,
            few,
            lines,
            floats,
            entries.rows,
            entries.float32_rows,
            height,
            width,
            entries.codes[0],
            count,
            block,
            height * width - plane,
        )
        for p in range(len(low)):
            cells = lines[p, 2].tolist()
            most = np.zeros((2, plane), dtype=int)
            for axis in range(2):
                for k in range(plane):
                    seen[cells[k]] += axis
                    place, rest, reach, *slopes = map(float, floats[p, axis, :, k])
                    if not np.isfinite(reach):
                        assert cells[k] == 4
                        most[axis, k] = 3
                        continue
                    place, rest, reach, *slopes = map(Fraction, (place, rest, reach, *slopes))
                    assert 0 <= place <= 1
                    assert rest * (1 - Fraction(1, 2**22)) + sum(map(abs, slopes)) <= reach, (letters, low[p], high[p])
                    most[axis, k] = cells_of(place, reach - Fraction(1, 2**26))
            for first in range(0, plane, block):
                across, down = most[:, first : first + block].max(1)
                least = 4 if max(across, down) == 3 else 3 if across == 2 else down
                assert cells[first] >= least, (letters, low[p], high[p])
            for theta in inside(low[p].tolist(), high[p].tolist(), rng):
                e = symbols(theta, low[p].tolist(), high[p].tolist())
                *axes, unit = source_positions(composed_inverse(letters, theta), height, width)
                for axis, line, numbers in zip(axes, lines[p], floats[p], strict=False):
                    for k, true in enumerate(axis.ravel()[-plane:]):
                        place, rest, reach, *slopes = map(float, numbers[:, k])
                        if np.isfinite(reach):
                            place, rest, *slopes = map(Fraction, (place, rest, *slopes))
                            at = place + sum(s * each for s, each in zip(slopes, e, strict=True))
                            apart = abs(Fraction(int(true), int(unit)) - int(line[k]) - at)
                            assert apart <= rest - Fraction(1, 2**26), (letters, low[p], high[p], theta)
    assert min(seen.values()) > 100, seen


def counted(ways, name, function):
    """Run the same in the interpreter, and count the calls."""

    def called(*arguments):
        ways[name] += 1
        return function(*arguments)

    return called


def pixels() -> None:
    """Against the exact image: pixels of either sign and any magnitude, boxes of all kinds, all paddings."""
    rng, generator = np.random.default_rng(9), torch.Generator().manual_seed(9)
    ways = dict.fromkeys(("one_cell", "across", "beside"), 0)
    for name in ways:
        setattr(pixel_kernel, name, counted(ways, name, getattr(pixel_kernel, name)))
    for number in range(36):
        fused.SMALL_BLOCK = 4 if number % 3 else 64
        letters, padding, size = LETTERS[number % 6], PADDINGS[number // 6 % 3], SIZES[(number + number // 6) % 6]
        transform = transform_of(letters, padding)
        image = torch.rand(2, 1 + number % 2, *size, dtype=torch.float64, generator=generator)
        if number % 4 == 1:
            image = (image - 0.5).sign() * (1 - image**9)
        elif number % 4 == 2:
            image = image.round()
        scale = (1.0, 1.0, 1e29, 1.0, 2.0**-140, 1.0, 1e-30)[number % 7]
        image = image * scale
        low, high = boxes_of(letters, 5, rng)
        rows_of = torch.arange(len(low)) % 2
        form = kernel(image, rows_of, transform, "affine", low, high, dtype=torch.float32)
        for p, row in enumerate(rows_of.tolist()):
            for theta in inside(low[p].tolist(), high[p].tolist(), rng):
                truth = transformed(image[row].numpy(), letters, theta, padding)
                e = symbols(theta, low[p].tolist(), high[p].tolist())
                planes = form.center[p], form.slopes[:, p], form.radius[p], form.lower[p], form.upper[p]
                assert not violations(truth, *planes, e), (letters, padding, size, scale, low[p], high[p], theta)
    assert min(ways.values()) > 20, ways
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


def edges() -> None:
    """What random points seldom meet: grid lines, roundings with an allowance, and magnitudes that float32 cannot hold."""
    lines()
    room()
    limits()


def lines() -> None:
    """Parameters at their ends, with pixels at grid lines, the only points where such an image is farthest from a plane."""
    generator, ways = torch.Generator().manual_seed(10), dict.fromkeys(("across", "beside"), 0)
    for name in ways:
        setattr(pixel_kernel, name, counted(ways, name, getattr(pixel_kernel, name)))
    image = torch.rand(1, 1, 5, 6, dtype=torch.float64, generator=generator)
    for box in ([(-0.3, 0.45), (-0.4, 0.35)], [(0.6, 1.5), (-1.2, -0.7)], [(0.2, 0.6), (-0.4, 0.35)]):
        low, high = torch.tensor([box], dtype=torch.float64).unbind(2)
        form = kernel(image, torch.tensor([0]), transform_of(("Tu", "Tv")), "affine", low, high, dtype=torch.float32)
        ends = [(Fraction(a), Fraction(b), Fraction(round((a + b) / 2))) for a, b in box]
        for theta in product(*ends):
            if all(a <= each <= b for each, (a, b, _) in zip(theta, ends, strict=True)):
                truth, e = transformed(image[0].numpy(), ("Tu", "Tv"), theta), symbols(theta, *zip(*box, strict=True))
                planes = form.center[0], form.slopes[:, 0], form.radius[0], form.lower[0], form.upper[0]
                assert not violations(truth, *planes, e), (box, theta)
    assert min(ways.values()) > 0, ways


def room() -> None:
    """Radii of boxes that are hardly more than points contain what `triton/pixels_float32.py` counts for the largest pixel nearby."""
    generator = torch.Generator().manual_seed(11)
    image = torch.rand(2, 1, 5, 6, dtype=torch.float64, generator=generator)
    image[0], image[1] = 1 - image[0] / 10, image[1] ** 9
    beside, around = torch.nn.functional.pad(image, [1] * 4, "replicate"), (-(2.0**-26), 2.0**-27)
    for box, rows, roundings in (
        ([(0.25, 0.25), (0.25, 0.25)], (1, 2), 11.5),
        ([(0.25, 0.25), around], (0, 1, 2), 20.1),
        ([around, around], (0, 1, 2), 20.1),
    ):
        low, high = torch.tensor([box] * 2, dtype=torch.float64).unbind(2)
        transform = transform_of(("Tu", "Tv"), "border")
        form = kernel(image, torch.tensor([0, 1]), transform, "affine", low, high, dtype=torch.float32)
        columns = (0, 1, 2) if box[0] == around else (0, 1)
        near = torch.stack([beside[..., i : i + 5, j : j + 6] for i in rows for j in columns]).amax(0)
        assert (form.radius >= roundings * 2.0**-24 * near).all(), box


def limits() -> None:
    """In larger images a position may need more than 19 bits: float64 handles those."""
    generator, size, low, high = torch.Generator().manual_seed(12), 2**14, -99.21, -99.21 + 1e-9
    fused.BLOCK = fused.SMALL_BLOCK = size // 4
    image = torch.rand(1, 1, size, 1, dtype=torch.float64, generator=generator)
    box = torch.tensor([[[low]], [[high]]], dtype=torch.float64)
    transform = parse("Scv(99.5); padding=reflect")
    form = kernel(image, torch.tensor([0]), transform, "affine", *box, dtype=torch.float32)
    truth = transformed(image[0].numpy(), ("Scv",), [Fraction(high)], "reflect")
    planes = form.center[0], form.slopes[:, 0], form.radius[0], form.lower[0], form.upper[0]
    assert not violations(truth, *planes, [Fraction(1)])


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    torch.set_num_threads(1)
    prepare()
    fused.spatial.check = lambda *_: True
    globals()[sys.argv[1]]()
    sys.stdout.write("ok")
