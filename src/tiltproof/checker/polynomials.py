"""The transformed image over boxes of one parameter t = m + h e: polynomials of e up to degree 4, and functions of e
with symbols of their own.

The source position of a pixel is a u + b v + c (u to the right, v upwards), and a, b, c are polynomials of e that are
the same for all pixels. They are computed in whole numbers times 2^-160: `Series`. Then, in float64, a pixel's path
p_0 + p_1 e + ... + p_4 e^4 + [-r, r] along each axis begins in a cell of the grid (at e = 0). Inside of a cell the
image is bilinear. Beyond one of the cell's lines it is another bilinear function, and differs by
    (jump + tilt s) max(0, x)
where x is the distance to the line and s the position along it. Beyond two lines, of both kinds, a multiple of max(0,
x) max(0, y) is added. A path that goes further is not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, Form, enclose
from tiltproof.checker.photometric import endless
from tiltproof.checker.tiling import Transform

DEGREE = 4
BITS, COARSE = 160, 30
WHOLE = 1 << BITS
PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
TURNS, SHIFTS = ("R", "Roll"), ("Tu", "Tv")
SUPPORTED = frozenset((*TURNS, *SHIFTS, "Sc", "Scu", "Scv", "Sh", "Shv"))
FARTHEST = 2.0**14  # positions beyond are not supported: a half integer times a multiple of 2^-30 is exact up to there
MOST_PARTS = 8  # so that whole numbers stay within the range of floats
NEAR = 2.0**-40  # a path that leaves its cell by less does not cross a line, but pays for it
UP = 1 + 2.0**-40  # covers the relative error of sums and products of numbers >= 0


class Series(NamedTuple):
    """c_0 + c_1 e + ... + c_4 e^4 + x with |x| <= error, for e in [-1, 1]; all in units of 2^-160."""

    terms: tuple[int, ...]
    error: int

    def size(self) -> int:
        return sum(map(abs, self.terms)) + self.error

    def plus(self, other: Series) -> Series:
        return Series(tuple(a + b for a, b in zip(self.terms, other.terms, strict=True)), self.error + other.error)

    def negative(self) -> Series:
        return Series(tuple(-a for a in self.terms), self.error)

    def over(self, number: int) -> Series:
        """Divide by a positive whole number; each term is rounded down, by less than a unit."""
        return Series(tuple(a // number for a in self.terms), self.error // number + 1 + DEGREE + 1)

    def times(self, other: Series) -> Series:
        """Powers beyond the fourth are at most 1 in size, like all powers of e."""
        low, high = [0] * (DEGREE + 1), 0
        for i, a in enumerate(self.terms):
            for j, b in enumerate(other.terms):
                if i + j <= DEGREE:
                    low[i + j] += a * b
                else:
                    high += abs(a * b)
        high += self.size() * other.error + other.size() * self.error  # counts the product of the errors twice
        return Series(tuple(a >> BITS for a in low), (high >> BITS) + 1 + DEGREE + 1)


def known(value: Fraction | int) -> Series:
    return Series((int(value * WHOLE // 1), *[0] * DEGREE), 1)


def around(series: Series) -> tuple[int, Series]:
    """Split off the middle."""
    return series.terms[0], Series((0, *series.terms[1:]), series.error)


def sine_cosine(angle: Series) -> tuple[Series, Series]:
    """sin(c + d) = sin c cos d + cos c sin d, and so on, with Taylor's polynomials of d.

    The remainders are at most |d|^5 / 120 for the sine and |d|^6 / 720 for the cosine.
    """
    middle, d = around(angle)
    sine, cosine = (Series((number, *[0] * DEGREE), 4) for number in both_of(middle))
    size = Fraction(d.size(), WHOLE)
    square = d.times(d)
    small_sine = d.plus(d.times(square).over(6).negative())
    small_cosine = known(1).plus(square.over(2).negative()).plus(square.times(square).over(24))
    small_sine = small_sine._replace(error=small_sine.error + int(size**5 / 120 * WHOLE) + 1)
    small_cosine = small_cosine._replace(error=small_cosine.error + int(size**6 / 720 * WHOLE) + 1)
    return (
        sine.times(small_cosine).plus(cosine.times(small_sine)),
        cosine.times(small_cosine).plus(sine.times(small_sine).negative()),
    )


def both_of(angle: int) -> tuple[int, int]:
    """Sine and cosine of an angle of at most 8, each off by at most 4 units: Taylor's series at 0, whose terms are at
    most 8^8 / 8!, with 64 more bits, until they vanish."""
    one, x = WHOLE << 64, angle << 64
    sums, term, k = [0, 0], one, 0
    while abs(term) > 1:
        sums[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = term * x // one // k
    return sums[1] >> 64, sums[0] >> 64


def inverse(series: Series) -> Series | None:
    """1 / (c + d) = (1 - q + q^2 - q^3 + q^4 - q^5 / (1 + q)) / c with q = d / c, if c > 1/64 and |q| <= 1/2; the
    remainder is at most 2 |q|^5."""
    c, d = around(series)
    if c <= WHOLE >> 6 or 2 * d.size() > c:
        return None
    middle = Series((WHOLE * WHOLE // c, *[0] * DEGREE), 1)
    q = d.times(middle)
    total = known(1)
    for _ in range(DEGREE):
        total = known(1).plus(q.times(total).negative())
    rest = int(2 * Fraction(q.size(), WHOLE) ** 5 * WHOLE) + 1
    return total._replace(error=total.error + rest).times(middle)


Line = tuple[Series, Series, Series]


def source_lines(transform: Transform, low: Sequence[float], high: Sequence[float]) -> tuple[Line, Line] | None:
    """The source position (u', v') as a u + b v + c for each, applying the last transformation's inverse first."""
    zero, one = known(0), known(1)
    u: Line = (one, zero, zero)
    v: Line = (zero, one, zero)

    def scaled(line: Line, by: Series) -> Line:
        return line[0].times(by), line[1].times(by), line[2].times(by)

    def added(a: Line, b: Line) -> Line:
        return a[0].plus(b[0]), a[1].plus(b[1]), a[2].plus(b[2])

    for k in reversed(range(len(transform.letters))):
        letter, (below, above) = transform.letters[k], (Fraction(low[k]), Fraction(high[k]))
        middle, half = (int(x * WHOLE // 1) for x in ((below + above) / 2, (above - below) / 2))
        value = Series((middle, half, *[0] * (DEGREE - 1)), 2)
        if letter in TURNS:
            radians = known(PI / 180)
            if max(abs(below), abs(above)) > 400:
                return None
            sine, cosine = sine_cosine(value.times(radians))
            u, v = (
                added(scaled(u, cosine), scaled(v, sine)),
                added(scaled(v, cosine), scaled(u, sine.negative())),
            )
        elif letter == "Tu":
            u = (u[0], u[1], u[2].plus(value.negative()))
        elif letter == "Tv":
            v = (v[0], v[1], v[2].plus(value.negative()))
        elif letter == "Sh":
            u = added(u, scaled(v, value.over(100).negative()))
        elif letter == "Shv":
            v = added(v, scaled(u, value.over(100).negative()))
        else:
            factor = inverse(value.over(100).plus(one))
            if factor is None:
                return None
            u, v = (u if letter == "Scv" else scaled(u, factor)), (v if letter == "Scu" else scaled(v, factor))
    return u, v


class Path(NamedTuple):
    """Positions along an axis, [P, H, W], less a grid line."""

    line: Tensor
    powers: Tensor  # of e: [5, P, H, W]; the first is in [0, 1]
    error: Tensor
    side: Tensor  # 1 if the path crosses the next line, -1 if it crosses that line, else 0
    outside: Tensor  # how far it may be outside of the cells that are examined


def path(lines: Sequence[Line], sign: int, height: int, width: int, offset: float, like: Tensor) -> Path | None:
    """sign (a u + b v + c) + offset.

    Each middle is a multiple of 2^-30 and less than 2^-30; products of the former with half integers, and their sums,
    are exact.
    """
    u = (torch.arange(width).to(like) - (width - 1) / 2).view(1, 1, width)
    v = ((height - 1) / 2 - torch.arange(height).to(like)).view(1, height, 1)
    step = 1 << (BITS - COARSE)

    def column(values: Sequence[float]) -> Tensor:
        return like.new_tensor(values).view(-1, 1, 1)

    coarse, fine, error = torch.zeros_like(u + v), torch.zeros_like(u + v), torch.zeros_like(u + v)
    others = [torch.zeros_like(u + v) for _ in range(DEGREE)]
    size = torch.zeros_like(u + v)
    for k, place in enumerate((u, v, torch.ones_like(u))):
        series = [line[k] for line in lines]
        first = column([(s.terms[0] // step) / 2**COARSE for s in series])
        coarse = coarse + place * first * sign
        fine = fine + place * column([(s.terms[0] % step) / WHOLE for s in series]) * sign
        size = size + place.abs() * first.abs()
        error = error + place.abs() * column([(s.error + 1) / WHOLE for s in series])
        for n in range(DEGREE):
            others[n] = others[n] + place * column([s.terms[n + 1] / WHOLE for s in series]) * sign
            error = error + place.abs() * column([abs(s.terms[n + 1]) / WHOLE for s in series]) * (8 * UNIT)
    if not bool((size + abs(offset) < FARTHEST).all()):
        return None
    coarse = coarse + offset
    line = (coarse + fine).floor()
    start = (coarse - line) + fine
    error = (error + (u.abs() + v.abs() + 1) * 2.0**-78 + start.abs() * (2 * UNIT)) * UP
    powers = torch.stack([start, *others])
    # p_1 e + p_2 e^2 + ...: at the ends of the box if p_1 outweighs the others' slopes
    slopes = sum((k * powers[k].abs() for k in range(2, DEGREE + 1)), torch.zeros_like(start))
    odd, even, sizes = powers[1::2].sum(0).abs(), powers[2::2].sum(0), powers[1:].abs().sum(0)
    steady = powers[1].abs() > slopes * UP
    slack = (error + sizes * (16 * UNIT) + start.abs() * (4 * UNIT)) * UP
    least = start + torch.where(steady, even - odd, -sizes) - slack
    most = start + torch.where(steady, even + odd, sizes) + slack
    below, above = (-least).clamp(min=0), (most - 1).clamp(min=0)
    far, near = torch.maximum(below, above), torch.minimum(below, above)
    if not bool(((far < 1) & (near < NEAR)).all()):
        return None
    side = torch.where(far < NEAR, 0.0, torch.where(above > below, 1.0, -1.0))
    return Path(line, powers, error, side, torch.where(far < NEAR, far + near, near))


def product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply polynomials [5, ...] of e; return the powers up to the fourth, and the size of the others, rounded up
    with all roundings."""
    shape = torch.broadcast_shapes(a.shape, b.shape)
    low = a.new_zeros(shape)
    left = a.new_zeros(shape[1:])
    for i in range(DEGREE + 1):
        for j in range(DEGREE + 1):
            if i + j <= DEGREE:
                low[i + j] += a[i] * b[j]
            else:
                left = left + (a[i] * b[j]).abs()
    return low, (left + 8 * UNIT * a.abs().sum(0) * b.abs().sum(0)) * UP


def positive(x: Tensor, error: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """max(0, x) for a path x_0 + ... + x_4 e^4 up to ``error`` that is at most ``most``: a polynomial and the largest
    distance from it.

    max(0, x) is off from max(0, x_0 + x_1 e) by |x_2| + ... at most. The latter is |x_1| max(0, f - k) with f = e, or
    f = -e where x_1 < 0, and k = -x_0 / |x_1|. It is compared with q = start + slope f + g f^2 for g = (1 - k^2) / 2,
    which meets it at -1 and 1. Left and right of k, max(0, f - k) - q is a parabola open below: least at an end of the
    side, and largest there or at its top. Any other k, slope or g would be sound too.
    """
    size = x[1].abs()
    sign = torch.where(x[1] < 0, -1.0, 1.0)
    k = -x[0] / size  # f - k has the sign of x, whatever that of x_1
    bends = (k.abs() < 1) & (size > 0)
    k = torch.where(bends, k, 0.0)
    g = (1 - k * k) / 2
    # q = start + slope f + g f^2
    slope, start = (1 - k) / 2, (1 - k) / 2 - g
    ends = [-torch.ones_like(k), k, torch.ones_like(k)]
    gaps = [(f - k).clamp(min=0) - (start + slope * f + g * f * f) for f in ends]
    tops = []
    for turn, begin, end in ((0.0, ends[0], k), (1.0, k, ends[2])):
        f = ((turn - slope) / (2 * g.clamp(min=1e-12))).clamp(min=-1, max=1)
        f = torch.minimum(torch.maximum(f, begin), end)
        tops.append(turn * (f - k) - (start + slope * f + g * f * f))
    least, greatest = torch.stack(gaps).amin(0), torch.stack(gaps + tops).amax(0)
    middle = (least + greatest) / 2
    parabola = torch.stack([start + middle, slope * sign, g, 0 * g, 0 * g]) * size
    # the top is missed by at most what its rounding moves it, and the parabola is flat there: fewer than 64 roundings
    off = (greatest - least) / 2 * size + (64 * UNIT + 1e-11) * size + x[2:].abs().sum(0) + error
    flat = torch.stack([most / 2, *[0 * most] * DEGREE])
    better = bends & (off < most / 2)
    return torch.where(better, parabola, flat), torch.where(better, off, most / 2) * UP


class Columns(NamedTuple):
    """Multiples of functions in [-1, 1]: of entry i, ``values[i]`` [C] at pixel ``at[i]`` (numbered through all
    pairs); equal ``keys`` of a pair are one function."""

    at: Tensor
    values: Tensor
    keys: Tensor


def polynomial_images(
    images: Tensor, transform: Transform, low: Tensor, high: Tensor, symbols: int = 2**30
) -> Form | None:
    """Enclose image p [P, C, H, W] over its box of one parameter; None where this is not supported.

    Symbols are T_1(e), ..., T_4(e) and up to ``symbols`` functions of e for each pair; those of two pairs have nothing
    in common.
    """
    if (
        transform.noise
        or any(letter not in SUPPORTED for letter in transform.letters)
        or bool(((low < high).sum(1) > 1).any())
    ):
        return None
    if transform.interpolation != "bilinear" or len(transform.letters) > MOST_PARTS:
        return None
    if not bool((torch.cat([low, high]).abs() < FARTHEST).all()):
        return None
    height, width = images.shape[-2:]
    sources = [source_lines(transform, *ends) for ends in zip(low.tolist(), high.tolist(), strict=True)]
    if any(source is None for source in sources):
        return None
    across = path([s[0] for s in sources if s], 1, height, width, (width - 1) / 2, images)
    down = path([s[1] for s in sources if s], -1, height, width, (height - 1) / 2, images)
    if across is None or down is None:
        return None
    pixel = Pixels(images, transform.padding)
    everywhere = torch.arange(across.line.numel(), device=images.device)
    i, j = down.line.flatten(), across.line.flatten()
    q, right, below, both = (pixel.at(everywhere, i + di, j + dj) for di in (0, 1) for dj in (0, 1))
    a, b = right - q, below - q
    d = (both - below) - a
    x, y = (p.powers.flatten(1).unsqueeze(2) for p in (across, down))  # [5, P H W, 1]
    xy, beyond = product(x, y)
    powers = a * x + b * y + d * xy
    powers[0] += q
    size = a.abs() + b.abs() + d.abs()
    error_x, error_y = (p.error.flatten().unsqueeze(1) for p in (across, down))
    outside = (across.outside + down.outside).flatten().unsqueeze(1) * 5 * images.abs().amax()
    # x and y are at most 2 in size: |d (x + error) (y + error) - d x y| <= |d| (2 error + 2 error + error^2)
    error = size * 4 * (error_x + error_y) + d.abs() * (beyond + error_x * error_y) + outside
    # each of a, b, d is off by 4 units of size, and there are up to 10 products and sums
    moved = (1 + x.abs().sum(0)) * (1 + y.abs().sum(0))
    error = (error + UNIT * (4 * q.abs() + 16 * size * moved)) * UP
    columns = crossings(pixel, across, down, powers, error)
    columns += corners(pixel, across, down, powers, error)
    shape = (len(images), height * width, images.shape[1])
    return assembled(powers.view(5, *shape), error.view(shape), columns, images, symbols)


class Pixels:
    """The pixels of the endless images."""

    def __init__(self, images: Tensor, padding: str) -> None:
        self.area, self.padding = images.shape[-1] * images.shape[-2], padding
        self.height, self.width = images.shape[-2:]
        self.values = images.flatten(2).transpose(1, 2).reshape(-1, images.shape[1])

    def at(self, entry: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The pixels [n, C] in these rows and columns of the images of entries (numbered by pair and position)."""
        (i, inside), (j, within) = (
            endless(row.long(), self.height, self.padding),
            endless(column.long(), self.width, self.padding),
        )
        found = self.values[entry // self.area * self.area + i * self.width + j]
        return torch.where((inside & within).unsqueeze(1), found, 0.0)


class Crossed(NamedTuple):
    """Paths that cross a line: one for each pixel [n] and line."""

    at: Tensor
    x: Tensor  # the distance to the line, [5, n]
    x_error: Tensor
    s: Tensor  # the position along the line, less its middle
    s_error: Tensor
    jump: Tensor  # in that middle, [n, C]
    tilt: Tensor


def crossed(pixel: Pixels, over: Path, along: Path, sideways: bool) -> Crossed:
    """The paths that cross a column of the grid (``sideways``) or a row."""
    at = (over.side != 0).flatten().nonzero().squeeze(1)
    side, line, other = (each.flatten()[at] for each in (over.side, over.line, along.line))
    x = over.powers.flatten(1)[:, at] * side
    x[0] -= (side > 0).double()
    x_error = (over.error.flatten()[at] + UNIT) * UP
    s = along.powers.flatten(1)[:, at].clone()
    middle, s[0] = s[0].clone(), 0.0

    def bend(k: int) -> Tensor:
        """Second difference across the line, on grid line k of the other kind; three pixels in the direction of the
        path."""
        first = torch.where(side > 0, line, line + 1)
        three = [(first + n * side, other + k) for n in range(3)]
        p, q, r = (pixel.at(at, *((row, column) if sideways else (column, row))) for column, row in three)
        return (r - q) - (q - p)

    jumps = bend(0), bend(1)
    tilt = jumps[1] - jumps[0]
    return Crossed(at, x, x_error, s, along.error.flatten()[at], jumps[0] + middle.unsqueeze(1) * tilt, tilt)


def crossings(pixel: Pixels, across: Path, down: Path, powers: Tensor, error: Tensor) -> list[Columns]:
    """Add (jump + tilt s) max(0, x) to ``powers`` and ``error``, for paths that cross a line. Symbols: of max(0, x),
    and of s' max(0, x) with s' = s less its middle."""
    both = crossed(pixel, across, down, True), crossed(pixel, down, across, False)
    dims = (0, 1, 0, 1, 0, 0, 0)
    at, x, x_error, s, s_error, jump, tilt = (torch.cat(parts, dim) for *parts, dim in zip(*both, dims, strict=True))
    if not len(at):
        return []
    # Paths that are equal up to 2^-42 share functions: the first one's, and the others pay for the difference.
    slope = torch.where(s[1] != 0, s[1], 1.0)
    grid = torch.cat([(x * 2.0**42).round(), (s / slope * 2.0**30).round()]) + 0.0  # no zeros with signs
    names = torch.cat([(at // pixel.area).double()[None], grid]).T
    keys = torch.unique(names, dim=0, return_inverse=True)[1]
    numbers = torch.arange(len(at), device=at.device)
    first = torch.full_like(keys, len(at))[: int(keys.max()) + 1].scatter_reduce(0, keys, numbers, "amin")
    mine = first[keys]
    factor = torch.where(s[1][mine] != 0, s[1] / s[1][mine], 0.0)
    factor = torch.where(factor.abs() < 2.0**40, factor, 0.0)
    alone = mine == numbers
    factor = torch.where(alone, 1.0, factor)
    apart = ((x - x[:, mine]).abs().sum(0) + x_error + x_error[mine]) * UP
    turned = (s - factor * s[:, mine]).abs().sum(0) + 4 * UNIT * s.abs().sum(0) + s_error + factor.abs() * s_error[mine]
    apart, turned = torch.where(alone, 0.0, apart), torch.where(alone, 0.0, turned * UP)
    most = (x[0] + x[1:].abs().sum(0) + x_error).clamp(min=0) * UP + UNIT
    parabola, off = positive(x, x_error, most)
    parabola, off, most = parabola[:, mine], off[mine], most[mine]
    way, way_off = product(s[:, mine], parabola)
    # s max(0, x) = (s + error) (parabola + off y): what is not s parabola
    reach = (s[:, mine].abs().sum(0) + s_error[mine]) * UP
    way_off = (way_off + reach * off + s_error[mine] * (parabola.abs().sum(0) + off)) * UP
    second = tilt * factor.unsqueeze(1)
    added = jump * parabola.unsqueeze(2) + second * way.unsqueeze(2)
    cost = jump.abs() * apart.unsqueeze(1)
    cost = cost + tilt.abs() * (turned * most + (s.abs().sum(0) + s_error) * apart).unsqueeze(1)
    sizes = (parabola.abs().sum(0) + off).unsqueeze(1) + (way.abs().sum(0) + way_off).unsqueeze(1) * (
        1 + factor.abs().unsqueeze(1)
    )
    # jump and tilt are sums of at most six pixels, of which the largest counts; a pixel may cross two lines
    cost = (
        cost + 256 * UNIT * sizes * pixel.values.abs().amax() + 16 * UNIT * (added.abs() + powers[:, at].abs()).sum(0)
    )
    powers.index_add_(1, at, added)
    error.index_add_(0, at, cost * UP)
    return [
        Columns(at, jump * off.unsqueeze(1), 2 * keys),
        Columns(at, second * way_off.unsqueeze(1), 2 * keys + 1),
    ]


def corners(pixel: Pixels, across: Path, down: Path, powers: Tensor, error: Tensor) -> list[Columns]:
    """M max(0, x) max(0, y), in [0, M most_x most_y] or the reverse; M is the second difference, along one axis, of
    that along the other."""
    at = ((across.side != 0) & (down.side != 0)).flatten().nonzero().squeeze(1)
    if not len(at):
        return []
    most, lines = [], []
    for each in (down, across):
        side, line = each.side.flatten()[at], each.line.flatten()[at]
        x = each.powers.flatten(1)[:, at] * side
        x[0] -= (side > 0).double()
        most.append((x[0] + x[1:].abs().sum(0) + each.error.flatten()[at] + 2 * UNIT).clamp(min=0) * UP)
        lines.append([torch.where(side > 0, line, line + 1) + n * side for n in range(3)])
    weights = (1.0, -2.0, 1.0)
    nine = [weights[m] * weights[n] * pixel.at(at, lines[0][m], lines[1][n]) for m in range(3) for n in range(3)]
    mixed = torch.stack(nine).sum(0)
    half = mixed * (most[0] * most[1] / 2).unsqueeze(1) * UP
    powers[0].index_add_(0, at, half)
    cost = (
        256 * UNIT * ((most[0] * most[1]).unsqueeze(1) * pixel.values.abs().amax() + powers[0][at].abs() + half.abs())
    )
    error.index_add_(0, at, cost * UP)
    return [Columns(at, half, torch.arange(len(at), device=at.device))]


def assembled(powers: Tensor, error: Tensor, columns: list[Columns], images: Tensor, symbols: int) -> Form:
    """Convert powers of e to Chebyshev's polynomials, and lay columns out, the heaviest of each pair first.

    e^2 = (1 + T_2) / 2, e^3 = (3 T_1 + T_3) / 4, e^4 = (3 + 4 T_2 + T_4) / 8.
    """
    p = powers
    chebyshev = [
        p[0] + (p[2] / 2 + p[4] * 0.375),
        p[1] + p[3] * 0.75,
        p[2] / 2 + p[4] / 2,
        p[3] / 4,
        p[4] / 8,
    ]
    pairs, area, channels = error.shape
    functions: list[list[tuple[float, list[tuple[int, Tensor]]]]] = [[] for _ in range(pairs)]
    for each in columns:
        together: dict[int, list[tuple[int, Tensor]]] = {}
        for at, value, key in zip(each.at.tolist(), each.values, each.keys.tolist(), strict=True):
            together.setdefault(key, []).append((at, value))
        for entries in together.values():
            weight = sum(float(value.abs().sum()) for _, value in entries)
            functions[entries[0][0] // area].append((weight, entries))
    planes: list[Tensor] = []
    for p_, found in enumerate(functions):
        found.sort(key=lambda pair: -pair[0])
        for number, (weight, entries) in enumerate(found):
            for at, value in entries:
                if number < symbols and weight > 0:
                    while len(planes) <= number:
                        planes.append(torch.zeros_like(error))
                    planes[number][p_, at % area] += value
                    error[p_, at % area] += 2 * UNIT * value.abs()
                else:
                    error[p_, at % area] += value.abs() * UP
    data = torch.stack([*chebyshev, *planes, error]).transpose(2, 3).reshape(-1, pairs, channels, *images.shape[-2:])
    return enclose(data.contiguous(), data[:-1].abs().sum(0), 4, 0.0, 0)
