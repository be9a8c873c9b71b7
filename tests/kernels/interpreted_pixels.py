"""The kernels of pixel bounds in Triton's interpreter, on the CPU; test_pixels.py runs it in a child process.

The interpreter's fused multiply-add rounds twice, and its sine is numpy's. With the machine's own multiply-add and torch's
sine, kernel positions equal the reference's, bit for bit where torch's loops on this machine use fused multiply-adds too, and
the kernels' forms must contain the reference's, from which they differ only by roundings.
"""

import ctypes
import sys
import warnings
from fractions import Fraction

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.kernels.coordinate_boxes import agree, coordinates_of, padded
from tiltproof import device as registry
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.kernels import pixels as fused
from tiltproof.kernels.matrix_program import trace
from tiltproof.pixels import coordinates, single_cell
from tiltproof.pixels.api import pair_bounds
from tiltproof.transforms import Compose, Spatial
from tiltproof.transforms.base import parse

EXACT = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
TRANSFORMS = (
    "R(10)",
    "R(2), Sh(2); padding=border",
    "Tu(30), Tv(2)",
    "Sc(5), R(5); padding=reflect",
    "Sh(2), Scu(2), C(2), B(0.01)",
    "Tv(9), Sc(9); padding=reflect",
    "R(20), Scv(9), Tu(1), Sh(4), Tv(1)",
)
CHECK = fused.spatial.check
used = 0


def prepare() -> None:
    library = ctypes.CDLL("libm.so.6")
    rounded_once = {}
    for function, kind, dtype in (
        (library.fma, ctypes.c_double, np.float64),
        (library.fmaf, ctypes.c_float, np.float32),
    ):
        function.restype, function.argtypes = kind, [kind] * 3
        rounded_once[np.dtype(dtype)] = np.vectorize(function, otypes=[dtype])

    def waves(function):
        return lambda _, x: TensorHandle(function(torch.from_numpy(np.array(x.data))).numpy(), x.dtype.scalar)

    InterpreterBuilder.create_fma = lambda _, x, y, z: TensorHandle(
        rounded_once[z.data.dtype](x.data, y.data, z.data), z.dtype.scalar
    )
    InterpreterBuilder.create_sin, InterpreterBuilder.create_cos = waves(torch.sin), waves(torch.cos)
    fused.BLOCK, fused.PROGRAMS, fused.LAUNCHED = 64, 3, 3
    launch = fused._launch

    def counted(*arguments):
        global used
        used += 1
        return launch(*arguments)

    fused._launch = counted


def reference(*arguments, own=False, **named) -> AffineForm:
    """Bound from all points, as on a GPU; ``own``: with the boxes of the positions' forms alone."""
    registry.INTERPRETED.clear()
    meet = coordinates._meet
    single_cell.applies = lambda *_: False
    if own:
        coordinates._meet = lambda form, _: Interval(form.lower, form.upper)
    form = pair_bounds(*arguments, **named)
    coordinates._meet = meet
    return form


def kernel(*arguments, **named) -> AffineForm:
    before = used
    registry.INTERPRETED.add("pixels:spatial")
    form = pair_bounds(*arguments, **named)
    assert used > before, "the kernel was not used"
    return form


def holds(form, other) -> torch.Tensor:
    """Return where a form equals the other one, or contains it."""
    apart = (form.stack.double() - other.stack.double()).abs().sum(0)
    return (apart == 0) & (form.radius == other.radius) | (apart + other.radius.double() <= form.radius.double())


def alike(form, wanted, place, padding, exact) -> bool:
    """Return whether a form differs from the reference's only by roundings, and contains it if these are known exactly."""
    no_slopes = (wanted.slopes == 0).all()  # because of one pixel's box
    near = agree(form, wanted, place, padding).all()
    return bool(near) and (not exact or bool(no_slopes) or bool(holds(form, wanted).all()))


def compare(image, transform, low, high, dtype, exact=EXACT, quadratic=False) -> AffineForm:
    """Bound all pairs at once with the kernel, each alone with the reference."""
    rows_of = torch.arange(len(low)) % len(image)
    found = kernel(image, rows_of, transform, "affine", low, high, dtype=dtype, quadratic=quadratic)
    for k in range(len(low)):
        arguments = rows_of[k : k + 1], transform, "affine", low[k : k + 1], high[k : k + 1]
        place = coordinates_of(transform, low[k : k + 1], high[k : k + 1], *image.shape[-2:])
        wanted = (reference(image, *arguments, own=own, dtype=dtype, quadratic=quadratic) for own in (False, True))
        mine, planes = found[k : k + 1], len(found.stack)
        close = (alike(mine, padded(each, planes), place, transform.padding, exact) for each in wanted)
        assert any(close), (str(transform), low[k], high[k], dtype)
    return found


def same() -> None:
    """Boxes of all sizes, single points, and boxes on grid lines; images of one pixel, and of one row."""
    generator = torch.Generator().manual_seed(1)
    for number, text in enumerate(TRANSFORMS):
        fused.spatial.check = CHECK if number == 0 else lambda *_: True
        transform = parse(text)
        ends = [torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high)]
        size = ((5, 7), (4, 5), (6, 3), (1, 8), (4, 4), (6, 1), (3, 5))[number]
        image = torch.rand(2, 1 + number % 3, *size, dtype=torch.float64, generator=generator)
        half = (
            torch.tensor([0.0, 1e-9, 1e-4, 0.02, 0.2, 1.0], dtype=torch.float64).unsqueeze(1) * (ends[1] - ends[0]) / 2
        )
        middle = ends[0] + (ends[1] - ends[0]) * torch.rand(6, len(ends[0]), dtype=torch.float64, generator=generator)
        low, high = (middle - half).clamp(*ends), (middle + half).clamp(*ends)
        compare(image, transform, low, high, (torch.float64, torch.float32)[number % 2])
    shift = parse("Tu(9), Tv(9)")
    low = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [-2.0, -1.0], [1.0, 0.5], [-9.0, 2.0]], dtype=torch.float64)
    compare(torch.rand(1, 1, 5, 6, dtype=torch.float64), shift, low, low.ceil() + (low < 0), torch.float64)
    turn = torch.tensor([[90.0], [0.0], [180.0]], dtype=torch.float64)
    compare(torch.ones(1, 1, 5, 6, dtype=torch.float64), parse("R(360)"), turn, turn, torch.float64)


def odd() -> None:
    """Non-finite input proves nothing, or what the reference proves; kernels decline what they do not support."""
    image, shift = torch.rand(1, 1, 3, 4, dtype=torch.float64), parse("Tu(2), R(5)")
    for padding, dtype in (("zeros", torch.float64), ("reflect", torch.float64), ("border", torch.float32)):
        transform = Compose(*shift.parts, padding=padding)
        ends = (torch.nan, torch.inf, -torch.inf)
        high = torch.tensor([[0.5, end] for end in ends] + [[end, 0.5] for end in ends], dtype=torch.float64)
        low = torch.stack([high[0], *high[1:].clamp(max=0)])
        found = compare(image, transform, low, high, dtype, exact=False)
        assert not found.slopes[:, found.radius.isfinite()].any(), "a hull, or nothing"
    far = torch.tensor([[0.5, 1e300]], dtype=torch.float64)  # the sine's form is unbounded, but the interval is not
    assert kernel(image, torch.tensor([0]), shift, "affine", far, far).radius.isfinite().all()
    for value in (torch.nan, torch.inf):
        broken = image.clone()
        broken[0, 0, 1, 2] = value
        box = torch.full((1, 2), 0.25, dtype=torch.float64)
        assert not kernel(broken, torch.tensor([0]), shift, "affine", box, box).radius.isfinite().any()

    class Own(Spatial):
        letter, unit = "Own", "pixels"

        def inverse_matrix(self, value):
            return (2.0, value - 1, 1), (0, -1, 0.5 - value)

    class Strange(Own):
        def inverse_matrix(self, value):
            return (value.exp(), 0, 0), (0, 1, 0)

    low = torch.tensor([[-0.5], [0.2]], dtype=torch.float64)
    compare(image, Own(-1, 1), low, low + 0.1, torch.float64)
    assert trace(Strange(-1, 1), [0]) is None
    assert trace(parse("Yaw(5@300)"), [0]) is None
    fused.spatial.check = lambda *_: False
    registry.INTERPRETED.add("pixels:spatial")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = pair_bounds(image, torch.tensor([0, 0]), parse("R(7)"), "affine", low, low)
    assert any("differ" in str(warning.message) for warning in caught)
    assert torch.equal(found.stack, reference(image, torch.tensor([0, 0]), parse("R(7)"), "affine", low, low).stack)


def shared() -> None:
    """Pairs in any order, many sharing a box, or all spatial parameters but one end, get what each gets alone, bit for bit."""
    generator = torch.Generator().manual_seed(4)
    for text in ("R(10)", "Sc(5), R(5), C(5); padding=border"):
        transform = parse(text)
        ends = [torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high)]
        image = torch.rand(2, 2, 4, 5, dtype=torch.float64, generator=generator)
        share = torch.tensor([[0.3, 0.301], [0.3, 0.5], [0.4, 0.5], [0.0, 0.9]], dtype=torch.float64)
        below, above = (ends[0] + (ends[1] - ends[0]) * each.unsqueeze(1) for each in share.T)
        above[1, : len(ends[0]) // 2] = above[0, : len(ends[0]) // 2]  # all but the end of the rotation
        alone = {
            (row, box): kernel(image, torch.tensor([row]), transform, "affine", below[[box]], above[[box]])
            for row in range(2)
            for box in range(4)
        }
        grid = torch.arange(4).repeat(4)  # as a search begins
        for boxes in (grid, grid[torch.randperm(16, generator=generator)], torch.tensor([0, 3, 0, 3, 1, 1, 2])):
            rows_of = torch.arange(len(boxes)) // 4 % 2
            found = kernel(image, rows_of, transform, "affine", below[boxes], above[boxes])
            for k, pair in enumerate(zip(rows_of.tolist(), boxes.tolist(), strict=True)):
                assert torch.equal(alone[pair].stack, found[k : k + 1].stack), (text, boxes, k)
                assert torch.equal(alone[pair].radius, found[k : k + 1].radius), (text, boxes, k)
    entries, boxes = trace(transform, [0, 1]), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    low, high = below[boxes], above[boxes]
    low[3:, 2] += 0.1  # a contrast moves no pixel
    assert entries.table(fused.entries_kernel, low, high)[1].tolist() == [3]


def sound() -> None:
    """Against the exact image."""
    from tests.support.pixel_check import assert_sound, random_box

    registry.INTERPRETED.add("pixels:spatial")
    rng = np.random.default_rng(3)
    before = used
    for number, letters in enumerate((["R"], ["Sc", "R"], ["Tu", "Tv"], ["Sh", "R"], ["Tv"], ["Sc", "Sh", "R"])):
        kinds = [("tiny", "on grid lines", "medium")[number % 3]] * len(letters)
        low, high = random_box(letters, kinds, rng)
        image = rng.random((1, 5, 6))
        thetas = [list(low), list(high), [(a + b) / 2 for a, b in zip(low, high, strict=True)]]
        padding = ("zeros", "border", "reflect")[number % 3]
        assert_sound(letters, padding, image, low, high, thetas, methods=("affine",))
    assert used >= before + 12


def wild() -> None:
    """Pixels of either sign and any magnitude; boxes on grid lines, points, thin, or outside: against the exact image."""
    from tests.support.exactly import symbols, violations
    from tests.support.oracle import transformed

    generator, rng = torch.Generator().manual_seed(6), np.random.default_rng(6)
    ends = [
        (2.0, 2.0),
        (-1.0, 0.0),
        (-1e-20, 0.5),
        (0.25, 0.25 + 2.0**-31),
        (-0.3, 0.4),
        (1.0, 1 + 2.0**-29),
        (-8.0, -2.5),
        (-4.5, 4),
    ]
    for number, size in enumerate(((3, 4), (1, 5), (4, 1), (1, 1), (2, 3), (5, 2))):
        letters, padding = (("Tu", "Tv"), ("Sh", "Tu"))[number % 2], ("zeros", "border", "reflect")[number % 3]
        transform = parse(("Tu(9), Tv(9)", "Sh(9), Tu(9)")[number % 2] + f"; padding={padding}")
        sign = torch.rand(2, 2, *size, dtype=torch.float64, generator=generator) - 0.5
        image = sign.sign() * (1 - sign.abs() ** 3) * (1e30, 2.0**-1040, 1.0, 1e-300, 1.0, 1e300)[number]
        boxes = torch.tensor(
            [[ends[k] for k in rng.integers(len(ends), size=2)] for _ in range(6)], dtype=torch.float64
        )
        low, high = boxes[[0, 1, 2, 3, 4, 5, 1, 0, 2]].unbind(2)
        rows_of = torch.arange(len(low)) % 2
        form = kernel(image, rows_of, transform, "affine", low, high, dtype=(torch.float64, torch.float32)[number == 2])
        assert number in (1, 3, 5) or (form.radius < image.abs().max() * 4).all(), "it says something"
        for p, row in enumerate(rows_of.tolist()):
            below, above = low[p].tolist(), high[p].tolist()
            share = [Fraction(int(k), 8) for k in rng.integers(9, size=2)]
            inside = [
                Fraction(a) + (Fraction(b) - Fraction(a)) * t for a, b, t in zip(below, above, share, strict=True)
            ]
            for theta in ([*map(Fraction, below)], [*map(Fraction, above)], inside):
                truth, e = transformed(image[row].numpy(), letters, theta, padding), symbols(theta, below, above)
                planes = form.center[p], form.slopes[:, p], form.radius[p], form.lower[p], form.upper[p]
                assert not violations(truth, *planes, e), (padding, size, below, above, theta)


def damaged() -> None:
    """Kernels that are wrong in one respect are refused, correct ones are not: each error is planted in a correct result."""
    transform, run = parse("R(30)"), [0]
    entries, launch, results = trace(transform, run), fused._launch, {}

    def careless(image, rows_of, low, high):
        """Treats boxes with the same lower ends as equal."""
        first = (low == low.T).int().argmax(1)
        return launch(image, rows_of, entries, low[first], high[first], transform.padding, torch.float64)

    assert not fused.is_batch_invariant(careless, torch.rand(2, 1, 3, 4, dtype=torch.float64), transform, run)
    fused.is_batch_invariant = lambda *_: True  # `same` tests correct kernels

    def verdict(dtype, harm) -> bool:
        def harmed(*arguments):
            if dtype not in results:
                results[dtype] = launch(*arguments)
            form = AffineForm(results[dtype].stack.clone(), results[dtype].radius.clone())
            harm(form)
            return form

        fused._launch = harmed
        image = torch.zeros(2, 1, 11, 13, dtype=torch.float64)
        return fused._agrees(image, transform, run, entries, dtype, fused._way(entries, dtype, 11, 13))

    def flat(form):
        return (form.slopes == 0).all(0)

    harms = {
        "no hull": lambda form: form.radius.masked_fill_(flat(form), 0.0),
        "half a hull": lambda form: form.radius.mul_(torch.where(flat(form), 0.5, 1.0)),
        "no residual": lambda form: form.radius.masked_fill_(~flat(form), 1e-12),
        "no roundings": lambda form: form.radius.sub_(torch.where(flat(form), 0.0, 36.0) * 2.0**-53),
        "no roundings of hulls": lambda form: form.radius.sub_(torch.where(flat(form), 12.0, 0.0) * 2.0**-53),
        "last block": lambda form: form.center.flatten(1)[:, 128:].add_(0.01),
        "slopes": lambda form: form.slopes.neg_(),
        "single points": lambda form: form.center[-1].add_(1e-9),
    }
    assert verdict(torch.float64, lambda *_: None)
    for name, harm in harms.items():
        assert not verdict(torch.float64, harm), name
    assert verdict(torch.float32, lambda *_: None)
    unrounded = results[torch.float64].radius.float()
    assert not verdict(torch.float32, lambda form: form.radius.copy_(unrounded))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    torch.set_num_threads(1)
    prepare()
    if sys.argv[1] != "same":
        fused.spatial.check = lambda *_: True  # `same` tests it
    globals()[sys.argv[1]]()
    sys.stdout.write("ok")
