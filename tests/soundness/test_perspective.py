"""Turning cameras: positions against independent formulas in fifty digits, camera depths near zero, and claims beyond it."""

from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.cases import PLANE, in_view, make_image, make_part, make_transform
from tests.support.oracle import transformed
from tiltproof import InputError, bound_pixels, parse
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.coordinates import check_limits, coordinates, interval_coordinates, symbols
from tiltproof.transforms import Compose, Pitch, Roll, Rotation, Yaw

SIZE = (5, 7)


def numbers(*values):
    return torch.tensor([values], dtype=torch.float64)


def over_a_plane(axis, constants, value, u, v):
    """Return the pixel at which the camera sees, before the move, the point of the plane it sees at (u, v) after it."""
    focal, _, plane = constants.partition("@")
    f, n = mpmath.mpf(focal), mpmath.matrix([mpmath.mpf(x) for x in (plane or "0:-1:0").split(":")])
    at = mpmath.matrix([mpmath.mpf(value) if k == axis[1] else 0 for k in "xyz"])
    ray = mpmath.matrix([u, v, f])
    meets = (n.T * ray)[0]
    if meets == 0:  # the horizon is infinitely far away, and stays where it is
        return u, v
    point = at + ray * ((1 - (n.T * at)[0]) / meets)
    assert mpmath.almosteq((n.T * point)[0], 1)
    return f * point[0] / point[2], f * point[1] / point[2]


def position(letters, theta, u, v):
    """Return where pixel (u, v) of the turned camera looks, by angles: u' = f tan(atan(u / f) + yaw) and so on."""
    u, v = mpmath.mpf(u), mpmath.mpf(v)
    for letter, value in reversed(list(zip(letters, theta, strict=True))):
        axis, _, focal = letter.partition("@")
        if axis[0] == "T":
            u, v = over_a_plane(axis, focal, value, u, v)
            continue
        angle = mpmath.radians(mpmath.mpf(value))
        if axis == "Roll":
            radius, at = mpmath.hypot(u, v), mpmath.atan2(v, u) - angle
            u, v = radius * mpmath.cos(at), radius * mpmath.sin(at)
            continue
        f = mpmath.mpf(focal)
        along, across = (u, v) if axis == "Yaw" else (v, u)
        before = mpmath.atan(along / f)
        along, across = f * mpmath.tan(before + angle), across * mpmath.cos(before) / mpmath.cos(before + angle)
        u, v = (along, across) if axis == "Yaw" else (across, along)
    return u, v


CAMERAS = [["Yaw@9"], ["Pitch@5.5"], ["Yaw@2.5"], ["Yaw@1000"], ["Yaw@6", "Pitch@6", "Roll"], ["Pitch@20", "Yaw@3"]]
OVER_A_PLANE = [
    *(["Tx@9"], ["Ty@9"], ["Tz@9"], ["Tz@300"]),
    *([f"T{axis}@9@0.3:-0.75:0.4"] for axis in "xyz"),
    *(["Tx@6", "Ty@6", "Tz@6", "Yaw@6", "Pitch@6", "Roll"], ["Yaw@9", "Tz@9@0.3:-0.75:0.4"], ["Tz@9", "Roll"]),
]


@pytest.mark.parametrize("letters", CAMERAS + OVER_A_PLANE, ids=",".join)
@pytest.mark.parametrize("half", [0.0, 1e-9, 1e-3, 0.3, 2.0, 6.0])
def test_positions_stay_in_their_forms_and_boxes(letters, half):
    """Corners and interior points of random boxes, in the affine form at its own symbols, its range, and interval arithmetic."""
    rng = np.random.default_rng([len(letters), int(1e6 * half)])
    transform = make_transform(letters)
    height, width = SIZE
    most = 10 if "2.5" in letters[0] else 20
    scale = np.array([0.01 if letter[0] == "T" else 1.0 for letter in letters])  # degrees, or shares of the distance
    for _ in range(4):
        middle = rng.uniform(-most + half, most - half, len(letters))
        low, high = numbers(*(middle - half) * scale), numbers(*(middle + half) * scale)
        run = list(range(len(letters)))
        place = coordinates(transform, run, symbols(low, high), low, high, height, width)
        boxes = interval_coordinates(transform, run, low, high, height, width)
        units = [
            *[*itertools.product((-1, 1), repeat=len(letters))][:: 1 + len(letters) // 4 * 6],
            *rng.uniform(-1, 1, (3, len(letters))),
        ]
        for unit in units:
            theta = [
                min(max(float((m + half * e) * by), float(a)), float(b))
                for m, e, by, a, b in zip(middle, unit, scale, low[0], high[0], strict=True)
            ]
            exact = [  # the position of theta in symbols
                (2 * Fraction(t) - Fraction(float(a)) - Fraction(float(b))) / (Fraction(float(b)) - Fraction(float(a)))
                if b > a
                else Fraction(0)
                for t, a, b in zip(theta, low[0], high[0], strict=True)
            ]
            for i, j in [(0, 0), (4, 6), (0, 6), (2, 3), (1, 5)]:
                with mpmath.workdps(50):
                    rounding = mpmath.mpf("1e-40")  # of the fifty digits themselves
                    u, v = position(letters, theta, j - (width - 1) / 2, (height - 1) / 2 - i)
                    truth = u + (width - 1) / 2, (height - 1) / 2 - v
                    for k, (form, box) in enumerate(((place.column, place.columns), (place.row, place.rows))):
                        for bound in (box, boxes[k]):
                            assert bound.lower[0, i, j].item() - rounding <= truth[k]
                            assert truth[k] <= bound.upper[0, i, j].item() + rounding
                        at = mpmath.mpf(form.center[0, i, j].item()) + sum(
                            mpmath.mpf(g[0, i, j].item()) * e.numerator / e.denominator
                            for g, e in zip(form.slopes, exact, strict=True)
                        )
                        assert abs(truth[k] - at) <= form.radius[0, i, j].item(), (letters, theta, i, j)


@pytest.mark.parametrize("letters", CAMERAS, ids=",".join)
def test_the_remainder_of_a_position_falls_with_the_square_of_the_box(letters):
    transform, run = make_transform(letters), list(range(len(letters)))
    radii = []
    for half in (1.0, 0.5, 0.25, 0.125):
        low, high = numbers(*[5.0 - half] * len(letters)), numbers(*[5.0 + half] * len(letters))
        place = coordinates(transform, run, symbols(low, high), low, high, *SIZE)
        radii.append(torch.stack([place.column.radius, place.row.radius]).flatten(1).amax(1))
    for before, after in itertools.pairwise(radii):
        assert (before > 3.5 * after).all(), radii


@pytest.mark.parametrize(
    ("text", "box", "seen"),
    [("Yaw(5@300)", 0.5, 2.7), ("Pitch(5@28)", 1.0, 0.7), ("Yaw(10@28), Pitch(10@28), Roll(5)", 1.0, 1.8)],
)
def test_positions_are_nearly_as_tight_as_can_be(text, box, seen):
    """A position's box is at most a tenth wider than the range that samples reach."""
    transform = parse(text)
    low, high = ([center + side * box for center in [2.0] * len(transform.parts)] for side in (-1, 1))
    low, high = numbers(*low), numbers(*high)
    run = list(range(len(transform.parts)))
    place = coordinates(transform, run, symbols(low, high), low, high, 28, 28)
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(run))), dtype=torch.float64)
    points = (low + high) / 2 + corners * (high - low) / 2
    inner = coordinates(transform, run, symbols(points, points), points, points, 28, 28)
    reached = torch.stack([f.center.amax(0) - f.center.amin(0) for f in (inner.column, inner.row)])
    proved = torch.stack([place.columns.upper - place.columns.lower, place.rows.upper - place.rows.lower])[:, 0]
    assert (proved <= 1.1 * reached + 0.02).all()
    assert reached.max() > seen  # the camera does move the image


def test_moves_and_turns_are_the_homography_of_the_plane():
    """Moves over one plane, then turns: the inverse of K R^T (I - t n^T) K^-1; after a move t_1 the unit is the new distance."""
    f, n = 30.0, np.array([0.3, -0.75, 0.4])
    values = (0.2, -0.1, 0.15, 12.0, -10.0, 35.0)
    transform = parse(f"Tx(1@30@{PLANE}), Ty(1@30@{PLANE}), Tz(1@30@{PLANE}), Yaw(25@30), Pitch(25@30), Roll(40)")
    matrix = transform.composed_inverse([*range(6)], [torch.tensor(x, dtype=torch.float64) for x in values])
    t = np.zeros(3)
    for k in range(3):
        t = t + (1 - n @ t) * values[k] * np.eye(3)[k]
    (sy, cy), (sp, cp), (sr, cr) = ((np.sin(a), np.cos(a)) for a in np.radians(values[3:]))
    turned = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]]) @ [[1, 0, 0], [0, cp, sp], [0, -sp, cp]]
    turned = turned @ np.array([[cr, sr, 0], [-sr, cr, 0], [0, 0, 1]])
    lens = np.diag([f, f, 1.0])
    forward = lens @ turned.T @ (np.eye(3) - np.outer(t, n)) @ np.linalg.inv(lens)
    found = np.array([[float(x) for x in row] for row in matrix])
    assert np.allclose(found, np.linalg.inv(forward), atol=1e-12)
    ground = parse("Tx(1@30), Tz(1@30)").composed_inverse([0, 1], [torch.tensor(x).double() for x in (0.2, 0.1)])
    swapped = parse("Tz(1@30), Tx(1@30)").composed_inverse([0, 1], [torch.tensor(x).double() for x in (0.1, 0.2)])
    for row, other in zip(ground, swapped, strict=True):
        assert np.allclose(
            [float(x) for x in row], [float(x) for x in other]
        )  # along the ground the order is of no account


def test_a_pixel_moves_where_a_pinhole_camera_says():
    """A bright point of the road or of a wall, projected by hand before and after the move."""
    image = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    f, u, v = 10.0, 4, -5  # the point (0.8, -1, 2) of the ground
    image[0, 0, 10 - v, 10 + u] = 1
    for text, t in (("Tz", (0, 0, 0.4)), ("Tx", (0.4, 0, 0)), ("Ty", (0, 0.6, 0))):
        value = max(t)
        moved = parse(f"{text}(0.7@10)").apply(image, numbers(value))
        x, y, z = (p - q for p, q in zip((0.8, -1.0, 2.0), t, strict=True))
        brightest = moved[0, 0].argmax().item()
        assert abs(brightest % 21 - 10 - f * x / z) <= 0.75, text
        assert abs(10 - brightest // 21 - f * y / z) <= 0.75, text
    side = torch.rand(1, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for wall, plane, value in (("Tx(0.1@10@0:0:1)", "Tu(1)", -0.7), ("Ty(0.1@10@0:0:1)", "Tv(1)", -0.7)):
        assert torch.allclose(parse(wall).apply(side, numbers(0.07)), parse(plane).apply(side, numbers(value)))
    nearer = parse("Tz(0.5@10@0:0:1)").apply(side, numbers(0.2))  # the wall is at 0.8 of its distance
    assert torch.allclose(nearer, parse("Sc(30)").apply(side, numbers(25.0)))


def test_yaw_pitch_and_roll_are_one_rotation_of_the_camera():
    """The composed matrix is K R K^-1 with R = R_yaw R_pitch R_roll about the camera's own axes."""
    f, degrees = 30.0, (20.0, -10.0, 35.0)
    transform = Compose(Yaw(25, focal_pixels=f), Pitch(25, focal_pixels=f), Roll(40))
    (sy, cy), (sp, cp), (sr, cr) = ((np.sin(a), np.cos(a)) for a in np.radians(degrees))
    yaw = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])  # Z turns towards X, the right
    pitch = np.array([[1, 0, 0], [0, cp, sp], [0, -sp, cp]])  # Z turns towards Y, upwards
    roll = np.array([[cr, sr, 0], [-sr, cr, 0], [0, 0, 1]])  # Y turns towards X, clockwise
    lens = np.diag([f, f, 1.0])
    expected = lens @ yaw @ pitch @ roll @ np.linalg.inv(lens)
    matrix = transform.composed_inverse([0, 1, 2], [torch.tensor(a, dtype=torch.float64) for a in degrees])
    assert np.allclose(np.array([[float(x) for x in row] for row in matrix]), expected, atol=1e-14)
    for part in (yaw, pitch, roll):
        assert np.allclose(part @ part.T, np.eye(3))
        assert np.linalg.det(part) == pytest.approx(1)


def test_signs_seen_with_one_bright_pixel():
    """The camera turns right: content moves left; up: down; clockwise: counter-clockwise."""
    image = torch.zeros(1, 1, 7, 7, dtype=torch.float64)
    image[0, 0, 3, 3] = 1
    one = float(mpmath.degrees(mpmath.atan(1 / mpmath.mpf(50))))  # one pixel at the center
    where = lambda image: tuple(int(k) for k in (image[0, 0] > 0.9).nonzero()[0])  # noqa: E731
    assert where(Yaw(5, focal_pixels=50).apply(image, numbers(one))) == (3, 2)
    assert where(Pitch(5, focal_pixels=50).apply(image, numbers(one))) == (4, 3)
    side = torch.rand(1, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Roll(40).apply(side, numbers(30.0)), Rotation(40).apply(side, numbers(30.0)))


def test_a_long_focal_length_is_a_shift():
    image = torch.rand(1, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    angle = float(mpmath.degrees(mpmath.atan(mpmath.mpf("0.7") / 10**6)))
    for letter, shift in (("Yaw@1e6", "Tu"), ("Pitch@1e6", "Tv")):
        seen = make_part(letter, -1, 1).apply(image, numbers(angle))
        assert torch.allclose(seen, make_transform([shift]).apply(image, numbers(-0.7)), atol=1e-4)


@pytest.mark.parametrize(
    ("text", "size", "good"),
    [
        ("Yaw(80@300)", (9, 9), True),
        ("Yaw(5@300)", (224, 224), True),
        ("Yaw(70@10)", (9, 9), False),
        ("Yaw(40@1)", (9, 9), False),
        ("Pitch(60@10)", (3, 99), True),  # only its 3 rows matter
        ("Pitch(60@10)", (99, 3), False),
        ("Yaw(40@9), Pitch(40@9)", (5, 5), True),
        ("Yaw(50@9), Pitch(50@9)", (9, 9), False),
        ("Yaw(60@9), Yaw(60@9)", (3, 3), False),  # by 120 degrees in total
        ("Scu(-95:5), Yaw(30@20)", (9, 9), True),  # scaled before: the camera's view is unchanged
        ("Yaw(30@20), Scu(-95:5)", (9, 9), False),  # scaled afterwards: twenty times as much comes into view
        ("C(5), Yaw(70@10)", (9, 9), False),
        ("Tx(5@3), Ty(-0.9:5@3)", (99, 99), True),
        ("Tz(0.9@10)", (9, 9), True),
        ("Tz(2@10)", (9, 9), True),  # w = 1 - t v / f
        ("Tz(2.5@10)", (9, 9), False),
        ("Tz(0.9@300@0:0:1)", (224, 224), True),
    ],
)
def test_the_horizon(text, size, good):
    transform, image = parse(text), torch.zeros(1, 1, *size)
    if good:
        check_limits(transform, *size)
        bound_pixels(image, transform)
    else:
        for refuse in (lambda: check_limits(transform, *size), lambda: bound_pixels(image, transform)):
            with pytest.raises(InputError, match="depth reaches zero"):
                refuse()


@settings(max_examples=60, deadline=None)
@given(
    letters=st.lists(st.sampled_from(["Yaw@4", "Pitch@6", "Roll", "Scu", "Shv", "Tu"]), min_size=1, max_size=4),
    ends=st.lists(st.tuples(st.floats(-40, 40), st.floats(0, 50)), min_size=4, max_size=4),
)
def test_what_is_accepted_is_in_front_of_the_camera_and_what_is_refused_is_nearly_not(letters, ends):
    assume(any("@" in letter for letter in letters))
    low = [a for a, _ in ends[: len(letters)]]
    high = [a + b for a, b in ends[: len(letters)]]
    line = np.linspace(0, 1, 13)
    shares = np.stack(np.meshgrid(*[line] * min(len(letters), 3), indexing="ij"), -1).reshape(-1, min(len(letters), 3))
    shares = np.concatenate([shares, np.random.default_rng(0).random((len(shares), 4))], 1)[:, : len(letters)]
    theta = torch.tensor(np.array(low) + shares * (np.array(high) - np.array(low)))
    matrix = make_transform(letters).composed_inverse(list(range(len(letters))), [*theta.T])
    third = [torch.as_tensor(entry, dtype=torch.float64).expand(len(theta)) for entry in matrix[2]]
    least = min(float((third[0] * u + third[1] * v + third[2]).min()) for u in (-3, 3) for v in (-2, 2))
    if in_view(letters, low, high, *SIZE):
        assert least >= 1 / 16
    else:
        assert least < 0.2


@pytest.mark.parametrize("padding", ["zeros", "border", "reflect"])
@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_boxes_past_the_horizon_see_the_whole_image(method, padding):
    """`pair_bounds` does not check the camera depth; where it has no bound, any value at allowed parameters must still be covered."""
    rng = np.random.default_rng(0)
    for size, letters in itertools.product(((4, 5), (1, 1), (2, 3)), (["Yaw@4"], ["Tu", "Pitch@4", "Scu"])):
        image = torch.tensor(make_image("random", 1, *size, rng))
        transform = make_transform(letters, padding)
        low, high = [0.0] * len(letters), [30.0] * len(letters)
        low[-1 if len(letters) == 1 else 1], high[-1 if len(letters) == 1 else 1] = -80.0, 80.0
        form = pair_bounds(
            image[None], torch.zeros(1, dtype=torch.long), transform, method, numbers(*low), numbers(*high)
        )
        assert torch.isfinite(form.stack).all()
        assert torch.isfinite(form.radius).all()
        for _ in range(25):
            theta = [float(rng.uniform(a, b)) for a, b in zip(low, high, strict=True)]
            if in_view(letters, theta, theta, *size):
                truth = torch.tensor(transformed(image.numpy(), letters, theta, padding).floats())
                assert (form.lower[0] <= truth + 1e-12).all()
                assert (truth - 1e-12 <= form.upper[0]).all()


@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_a_box_in_which_the_camera_reaches_the_plane_is_refused(method):
    """Positions are not defined there; bounds that are no numbers would be bounds of nothing."""
    with pytest.raises(InputError, match="in front of the plane"):
        bound_pixels(torch.rand(1, 1, 4, 4), "Tx(0.1@6@1:0:0)", method, low=[-0.5], high=[1.5])
