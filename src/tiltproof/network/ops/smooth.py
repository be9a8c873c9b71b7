"""The one rule that bounds smooth functions of one variable; `curves` has the functions.

A function joins with its value, its derivative, and the points between which it is convex or concave (`Smooth`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.device import batch_entries
from tiltproof.enclosures.affine_form import AffineForm, GatheredForm
from tiltproof.network.graph import Operation
from tiltproof.network.ops.activations import Banded, Line
from tiltproof.network.ops.base import OVERFLOW, UNDERFLOW, farthest

PIECES = 6
"""Pieces that each convex or concave part of a graph is cut into."""
ROUNDS = 4
"""Cutting planes on the way to the best slope."""
PRECISION = 2.0**-44
"""Far exceeds the error of float64 library functions and of the few float64 operations around them."""
LEAST_SLOPE = 2.0**-100
"""Smaller slopes are replaced by 0, so that none is flushed to zero elsewhere."""
NARROW = 2.0**-16
"""In forms without symbols, one piece serves intervals that are no wider than this, relative to their size."""
ENTRIES_CPU = 2**12
"""Entries of a form that are bounded at a time: their points fit into the caches."""
ENTRIES_GPU = 2**20


@dataclass
class Outline:
    """Points [n, M] of the graphs of M functions over [l, h], and corners [k, M]: each graph lies in the convex hull of its column."""

    x: Tensor
    y: Tensor
    corner_x: Tensor
    corner_y: Tensor
    least: Tensor
    most: Tensor
    """Range of the derivative at the points."""
    slack: Tensor

    def offsets(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers with low <= f(x) - slope x <= high on [l, h]: a linear function is extreme over a hull at one of its points."""
        graph, corners = self.y - slope * self.x, self.corner_y - slope * self.corner_x
        low = torch.minimum(graph.amin(0), corners.amin(0))
        high = torch.maximum(graph.amax(0), corners.amax(0))
        slack = self.slack + PRECISION * slope.abs() * torch.maximum(self.x[0].abs(), self.x[-1].abs())
        return low - slack, high + slack

    def band_slope(self, radius: Tensor) -> Tensor:
        """The slope s with the least |s| radius + (high - low) / 2, which is convex in s; found on the points alone."""

        def cost(slope: Tensor) -> tuple[Tensor, Tensor]:
            graph = self.y - slope * self.x
            low, high = graph.amin(0), graph.amax(0)
            lean = (self._x(graph == low) - self._x(graph == high)) / 2 + radius * slope.sign()
            return (high - low) / 2 + radius * slope.abs(), lean

        return _cheapest(self.least.clamp(max=0), self.most.clamp(min=0), cost)

    def line_slope(self, above: bool) -> Tensor:
        """The slope of the line above (below) all points that is lowest (highest) in the middle of [l, h], and so on average."""
        middle, sign = (self.x[0] + self.x[-1]) / 2, 1 if above else -1

        def cost(slope: Tensor) -> tuple[Tensor, Tensor]:
            graph = sign * (self.y - slope * self.x)
            offset = graph.amax(0)
            return offset + sign * slope * middle, sign * (middle - self._x(graph == offset))

        return _cheapest(self.least, self.most, cost)

    def _x(self, chosen: Tensor) -> Tensor:
        """One of the points that are chosen in each column."""
        return torch.where(chosen, self.x, -torch.inf).amax(0)


def _cheapest(left: Tensor, right: Tensor, cost: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """About the least point in [left, right] of a convex function, by cutting planes; ``cost`` gives its value and a subgradient."""
    (at_left, down), (at_right, up) = cost(left), cost(right)
    best, least = torch.where(at_left < at_right, left, right), torch.minimum(at_left, at_right)
    for _ in range(ROUNDS):
        slope = (at_right - at_left + down * left - up * right) / (down - up)
        slope = torch.where((slope >= left) & (slope <= right), slope, (left + right) / 2)
        here, lean = cost(slope)
        best, least = torch.where(here < least, slope, best), torch.minimum(here, least)
        falls = lean < 0
        left, at_left, down = (torch.where(falls, a, b) for a, b in ((slope, left), (here, at_left), (lean, down)))
        right, at_right, up = (torch.where(falls, b, a) for a, b in ((slope, right), (here, at_right), (lean, up)))
    return best


class Smooth(Banded):
    """An f that is convex or concave on each of a few parts of the real line.

    [l, h] is cut at the ends of these parts, and each part into pieces. On a piece [a, b] where f is convex, for any t in [a, b]:
    f is below the chord, above its tangent in a on [a, t] and above its tangent in b on [t, b]. The graph over [a, b] therefore lies in
    the convex hull of (a, f(a)), (b, f(b)) and both tangents' points at t; likewise where f is concave. So f(x) - s x is extreme over
    these points for every s. t is where the tangents meet, or nearly.

    An end of a part is known to 2^-52 of its size; where f'' changes sign there, f'' is off by as little in between, and f by its square.
    """

    def parts(self, operation: Operation, lower: Tensor, upper: Tensor) -> list[Tensor | float]:
        """The ends of the parts, in ascending order: inflection points and kinks."""
        return []

    def value(self, operation: Operation, x: Tensor) -> Tensor:
        raise NotImplementedError

    def derivative(self, operation: Operation, x: Tensor, inside: Tensor) -> Tensor:
        """f'(x); at a kink, that of the side on which the point ``inside`` is."""
        raise NotImplementedError

    def domain(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor | None:
        """Whether f is defined, and can be worked out in float64, on all of [l, h]; elsewhere the radius is infinite."""
        return None

    def somewhere(self) -> float:
        """A number of the domain."""
        return 1.0

    def between(self, operation: Operation, a: Tensor, b: Tensor, share: Tensor) -> Tensor:
        """Points at these shares of the way from a to b; best where each piece has as much of the integral of |f''|^(1/2)."""
        return a + (b - a) * share

    def units(self, operation: Operation, lower: Tensor, upper: Tensor) -> Tensor:
        """How many units roundoff a floating-point evaluation may be off on [l, h]; infinite where it may overflow on the way."""
        raise NotImplementedError

    # from here on: the same for all

    def outline(self, operation: Operation, lower: Tensor, upper: Tensor, pieces: int = PIECES) -> Outline:
        cuts = [(lower * 0 + end).maximum(lower).minimum(upper) for end in self.parts(operation, lower, upper)]
        starts, ends = torch.stack([lower, *cuts]), torch.stack([*cuts, upper])
        with torch.no_grad():
            share = torch.arange(1, pieces, dtype=lower.dtype, device=lower.device).view(-1, 1, 1) / pieces
            inner = self.between(operation, starts, ends, share)
            inner = torch.where(inner.isnan(), starts, inner).maximum(starts).minimum(ends)
        x = torch.cat([starts[None], inner, ends[None]])
        inside = (starts + ends) / 2
        y, steep = self.value(operation, x), self.derivative(operation, x, inside)
        width, rise = x[1:] - x[:-1], y[1:] - y[:-1]
        with torch.no_grad():
            meet = (rise / width - steep[1:]) / (steep[:-1] - steep[1:])
            meet = torch.where((meet >= 0) & (meet <= 1), meet, 0.5)
            meet = torch.maximum(torch.minimum(x[:-1] + meet * width, x[1:]), x[:-1])
        first = y[:-1] + steep[:-1] * (meet - x[:-1])
        second = y[1:] - steep[1:] * (x[1:] - meet)
        turn = (steep[:-1].abs() + steep[1:].abs()) * width.abs()
        size = 1 + lower.abs() + upper.abs() + y.abs().amax((0, 1)) + turn.amax((0, 1))
        corners = torch.stack([first, second])
        size = size + corners.abs().amax((0, 1, 2))
        x, y = (each.transpose(0, 1).flatten(0, 1) for each in (x, y))
        return Outline(
            x, y, torch.stack([meet, meet]).flatten(0, 2), corners.flatten(0, 2),
            steep.detach().amin((0, 1)), steep.detach().amax((0, 1)), (PRECISION * size).detach(),
        )  # fmt: skip

    def _outlined(
        self, operation: Operation, form: AffineForm, use: Callable[[Outline, Tensor, Tensor], list[Tensor]]
    ) -> list[Tensor]:
        """Apply ``use`` (to an outline, the radii and where f is defined) part by part; its results are shaped like the form."""
        lower, upper, radius = (each.double().flatten() for each in (form.lower, form.upper, form.radius))
        most = batch_entries(lower, ENTRIES_CPU, ENTRIES_GPU)
        results = []
        for low, high, rest in zip(lower.split(most), upper.split(most), radius.split(most), strict=True):
            inside = (low > -torch.inf) & (high < torch.inf)  # false for a NaN
            domain = self.domain(operation, low, high)
            inside = inside if domain is None else inside & domain
            low, high = (torch.where(inside, end, self.somewhere()) for end in (low, high))
            single = not form.symbols and bool((high - low <= NARROW * (1 + low.abs())).all())
            results.append(use(self.outline(operation, low, high, 1 if single else PIECES), rest, inside))
        return [torch.cat(parts).view(form.shape) for parts in zip(*results, strict=True)]

    def _line(self, outline: Outline, slope: Tensor, inside: Tensor, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """The slope as the form's dtype has it, and both offsets; infinite ones outside of the domain."""
        slope = slope.to(form.radius.dtype).double()
        slope = torch.where(slope.abs() >= LEAST_SLOPE, slope, 0.0)
        low, high = outline.offsets(slope)
        inside = inside & low.isfinite() & high.isfinite() & slope.isfinite()
        beyond = ((slope, 0.0), (low, -torch.inf), (high, torch.inf))
        slope, low, high = (torch.where(inside, each, other) for each, other in beyond)
        return slope, low, high

    def band(self, operation: Operation, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """Without symbols no slope gives less than the range of f, which slope 0 gives; of a narrow interval, the slope there."""

        def use(outline: Outline, radius: Tensor, inside: Tensor) -> list[Tensor]:
            with torch.no_grad():
                if form.symbols:
                    slope = outline.band_slope(radius)
                else:
                    narrow = outline.x[-1] - outline.x[0] <= NARROW * (1 + outline.x[0].abs())
                    slope = torch.where(narrow, (outline.least + outline.most) / 2, 0.0)
            return list(self._line(outline, slope, inside, form))

        slope, low, high = self._outlined(operation, form, use)
        return slope, low, high

    def lines(self, operation: Operation, form: AffineForm) -> tuple[Line, Line]:
        if isinstance(form, GatheredForm) and len(form) > len(form.form):  # each row is selected for several margins
            one, other = self.lines(operation, form.form)
            rows = form.rows
            return (one[0][rows], one[1][rows]), (other[0][rows], other[1][rows])

        def use(outline: Outline, radius: Tensor, inside: Tensor) -> list[Tensor]:
            with torch.no_grad():
                slopes = [outline.line_slope(above) for above in (False, True)]
            (below, low, _), (above, _, high) = (self._line(outline, slope, inside, form) for slope in slopes)
            return [below, low, above, high]

        below, low, above, high = self._outlined(operation, form, use)
        return (below, low), (above, high)

    def evaluation_error(self, operation: Operation, form: AffineForm) -> Tensor | float:
        if not operation.evaluation:
            return 0.0
        units = self.units(operation, form.lower.double(), form.upper.double())
        error = operation.evaluation * (1 + 2.0**-10) * (units + UNDERFLOW)
        sizes = torch.maximum(units, farthest(form).double())
        # an evaluation may overflow beyond this size
        return torch.where(sizes < OVERFLOW, error, torch.inf).to(form.radius.dtype) * (1 + 2.0**-20)
