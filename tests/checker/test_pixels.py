"""The transformed image never leaves its form: exact rational truth, all letters, paddings and kinds of box."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import torch

from tests.support.exactly import violations
from tests.support.oracle import transformed as truth_of
from tiltproof.checker.pixels import parameters, transformed
from tiltproof.checker.tiling import Transform

LIMITS = {
    "R": (-180, 180),
    "Tu": (-4, 4),
    "Tv": (-4, 4),
    "Sc": (-60, 80),
    "Sh": (-80, 80),
    "C": (-60, 60),
    "B": (-0.6, 0.6),
    "Scu": (-60, 80),
    "Scv": (-60, 80),
    "Shv": (-80, 80),
    "Yaw@9": (-10, 10),
    "Pitch@6.5": (-10, 10),
    "Roll": (-180, 180),
    "Tx@8": (-0.6, 0.6),
    "Ty@8": (-0.5, 0.8),
    "Tz@8": (-0.4, 0.4),
    "Tx@9@0.3:-0.75:0.4": (-0.6, 0.6),
    "Ty@9@0.3:-0.75:0.4": (-0.6, 0.6),
    "Tz@9@0.3:-0.75:0.4": (-0.4, 0.4),
    "Ld": (-40, 80),
    "Ld@2.5": (-15, 30),
    "G": (-80, 200),
    "S": (-150, 150),
    "H": (-180, 180),
    "Bl@4": (0, 2),
    "Mb@0": (0, 6),
    "Mb@30": (0, 6),
}
FIXED = [
    ("R",), ("Tu",), ("Tv",), ("Sc",), ("Sh",), ("C",), ("B",), ("C", "B"), ("B", "C"), ("Sc", "R"), ("R", "Sc", "Tu"),
    ("B", "R"), ("C", "Sc", "B"), ("R", "C", "Tv"), ("Tu", "R", "Sh", "C", "B"),
    ("Scu",), ("Scv",), ("Shv",), ("Yaw@9",), ("Pitch@6.5",), ("Roll",), ("Scu", "Scv"), ("Sh", "Shv"),
    ("Yaw@9", "Pitch@6.5", "Roll"), ("C", "Pitch@6.5", "B"), ("Tu", "Yaw@9", "Tv"), ("R", "Yaw@9", "Scu", "Shv"),
    ("G",), ("S",), ("H",), ("Bl@4",), ("Mb@0",), ("Mb@30",), ("G", "R"), ("R", "G"), ("Bl@4", "Mb@30"), ("C", "Bl@4", "B"),
    ("S", "H"), ("H", "Tu"), ("C", "G", "G"), ("Mb@30", "Sc"), ("G", "Bl@4", "S"),
    ("Tx@8",), ("Ty@8",), ("Tz@8",), ("Tx@9@0.3:-0.75:0.4",), ("Ty@9@0.3:-0.75:0.4",), ("Tz@9@0.3:-0.75:0.4",),
    ("Tx@8", "Ty@8", "Tz@8", "Yaw@9", "Pitch@6.5", "Roll"), ("Yaw@9", "Tz@9@0.3:-0.75:0.4"), ("Tz@8", "B", "Tx@8"),
    ("Ld",), ("Ld@2.5",), ("R", "Ld"), ("Ld", "R"), ("Ld", "Yaw@9"), ("Yaw@9", "Ld"), ("Tu", "Ld", "Sc"), ("Ld", "C", "Ld"),
    ("Pitch@6.5", "Ld", "Tx@8"),
]  # fmt: skip


def draw_image(rng: random.Random, letters: tuple[str, ...]) -> torch.Tensor:
    channels, height, width = rng.choice([(1, 4, 4), (1, 3, 5), (2, 3, 3), (1, 1, 4), (1, 5, 1), (1, 1, 1)])
    channels = 3 if {*letters} & {"S", "H"} else channels
    kind = rng.randrange(5)
    pixels = torch.rand(channels, height, width, generator=torch.Generator().manual_seed(rng.randrange(2**30)))
    if kind == 0:
        pixels = torch.full_like(pixels, rng.random())
    elif kind == 1:
        pixels = ((torch.arange(height)[:, None] + torch.arange(width)) % 2).float().expand_as(pixels).clone()
    elif kind == 2:
        pixels[:, 1:-1, 1:-1] = 0
    return pixels


def one_case(seed: int) -> None:
    rng = random.Random(seed)
    letters = FIXED[seed] if seed < len(FIXED) else tuple(rng.choice(list(LIMITS)) for _ in range(rng.randint(1, 3)))
    if seed >= len(FIXED) and any(
        x[0] in "YP" or x[:2] in ("Tx", "Ty", "Tz") for x in letters
    ):  # a lens may push pixels behind a camera
        letters = tuple(letter for letter in letters if letter[0] != "L") or ("Ld",)
    padding, pixels = rng.choice(["zeros", "border", "reflect"]), draw_image(rng, letters)
    width = rng.choice([0.0, 1e-9, 1e-3, 0.01, 0.05, 0.05, 0.3, 1.0])
    low, high = [], []
    for letter in letters:
        a, b = LIMITS[letter]
        start = rng.choice(
            [0.0, a + (b - a) * rng.random() * (1 - width), float(round(rng.uniform(a, b) * (1 - width)))]
        )
        start = max(start, a)
        low.append(start)
        high.append(start + (b - a) * width if letter[:2] != "Sc" else start + (b - a) * min(width, 0.4))
    names, fixed, planes = zip(*((*x.split("@"), "", "")[:3] for x in letters), strict=True)
    fixed = tuple(float(text or 0) for text in fixed)
    normals = tuple(tuple(float(x) for x in (text or "0:-1:0").split(":")) for text in planes)
    transform = Transform(names, tuple(low), tuple(high), padding, fixed, normals)
    boxes = torch.tensor([[low], [high]], dtype=torch.float64)
    form = transformed(pixels[None].double(), transform, boxes[0], boxes[1])
    middles = [(one.center.item(), one.slopes[k].item()) for k, one in enumerate(parameters(boxes[0], boxes[1]))]
    for k in range(4):
        shares = [
            Fraction(rng.choice([0, 1]) if k == 0 else rng.randrange(2**20 + 1), 1 if k == 0 else 2**20)
            for _ in letters
        ]
        theta = [Fraction(a) + t * (Fraction(b) - Fraction(a)) for a, b, t in zip(low, high, shares, strict=True)]
        e = [(x - Fraction(m)) / Fraction(h) if h else Fraction(0) for x, (m, h) in zip(theta, middles, strict=True)]
        assert all(abs(value) <= 1 for value in e)
        truth = truth_of(pixels.double().numpy(), letters, theta, padding)
        parts = (form.center, form.slopes, form.radius, form.lower(), form.upper())
        found = violations(truth, parts[0][0], parts[1][:, 0], *(part[0] for part in parts[2:]), e)
        assert not found, (seed, letters, padding, low, high, [float(x) for x in theta], found[:3])


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_exact_truth_is_inside(first):
    for seed in range(first, first + 50):
        one_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 13000, 500))
def test_exact_truth_is_inside_at_length(first):
    for seed in range(first, first + 500):
        one_case(seed)


@pytest.mark.parametrize(
    "letters",
    [
        *[("R",), ("Sc", "R"), ("Sc", "Tv"), ("Yaw",), ("Tu", "Pitch", "Yaw", "Scv")],
        *[("G",), ("H",), ("Bl",), ("Mb",), ("G", "Bl"), ("Yaw", "H")],
    ],
)
def test_remainder_is_of_second_order(letters):
    """Half the width gives a quarter of the radius (away from grid lines), which is the point of affine forms."""
    pixels = torch.rand(1, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    middle = torch.tensor([[{"Bl": 1.2, "Mb": 3.3, "G": 9.0}.get(x, 0.37) for x in letters]], dtype=torch.float64)

    def radius(half: float) -> float:
        fixed = tuple({"Bl": 4.0, "Yaw": 8.0, "Pitch": 8.0}.get(x, 0.0) for x in letters)
        transform = Transform(letters, (0.0,) * len(letters), (1.0,) * len(letters), "zeros", fixed)
        return transformed(pixels, transform, middle - half, middle + half).radius.median().item()

    assert radius(0.01) < 0.3 * radius(0.02)


def test_nothing_is_known_of_an_image_shrunk_to_a_point():
    transform = Transform(("Sc",), (-100.0,), (0.0,), "zeros")
    ends = [torch.tensor([[value]], dtype=torch.float64) for value in (-100.0, 0.0)]
    form = transformed(torch.full((1, 1, 3, 3), 0.5, dtype=torch.float64), transform, *ends)
    assert (form.lower() <= 0).all()
    assert (form.upper() >= 0.5).all()
