"""Resampled pixels over a box of one parameter e, to second order, with one kink: c + s e + b (2 e^2 - 1) + k h(e) + [-r, r].

A pixel's path through the image crosses grid lines. Between two of them its value is smooth, and quadratic forms follow it up to third
order. On a line its slope jumps. Many pixels may do so at the same e (the four that a quarter turn takes into each other, in a
rotation), so each box has one symbol more, its hinge h, for the e of its worst kink; other kinks go into radii.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import UNIT, widen
from tiltproof.pixels.bilinear import PatchExtrema


def quadratic_pixels(
    walk: PatchExtrema, u: AffineForm, v: AffineForm, plain: AffineForm, largest: Tensor
) -> AffineForm:
    """The tightest of what is known of each pixel, at positions ``u`` and ``v`` [P, H, W, 1]; ``plain`` [P, H, W, C] holds anywhere and has
    no hinge yet."""
    smooth, magnitude = _first_cell(walk, u, v, largest)
    here = (walk.x.meets(1) & walk.y.meets(1)).unsqueeze(-1)
    stack, radius = torch.where(here, smooth.stack, plain.stack), torch.where(here, smooth.radius, plain.radius)
    kinks = [
        _Kink.of(walk, u, v, sideways) for sideways in (True, False) if len((walk.x, walk.y)[not sideways].inside) > 1
    ]
    if not kinks:
        return AffineForm(stack, radius)
    loss = torch.stack([torch.where(kink.here, radius, 0.0).flatten(1) for kink in kinks], 1).flatten(1)
    at = torch.stack([kink.at.expand_as(radius).flatten(1) for kink in kinks], 1).flatten(1)
    hinge = hinges(loss, at).view(-1, 1, 1, 1)
    stack = torch.cat([stack, torch.zeros_like(stack[:1])])
    for kink in kinks:
        form = kink.added(smooth, magnitude, hinge, largest)
        better = kink.here & (form.radius < radius)  # false for a NaN
        stack, radius = torch.where(better, form.stack, stack), torch.where(better, form.radius, radius)
    return AffineForm(stack, radius)


def hinges(loss: Tensor, at: Tensor) -> Tensor:
    """The hinge of each box: where the pixel that loses most has its kink; any number of [-1, 1] would be sound. Both [P, kinks]."""
    return at.gather(1, loss.argmax(1, keepdim=True)).nan_to_num(0.0).clamp(-1, 1)


def _first_cell(walk: PatchExtrema, u: AffineForm, v: AffineForm, largest: Tensor) -> tuple[AffineForm, Tensor]:
    """The bilinear function of each box's first cell along the path, inside that cell or not; and a magnitude for its roundings.

    p = p_c + g_u U + g_v V + d U V is a plain identity, with U = u - u_c and V = v - v_c as quadratic forms. p_c, g_u, g_v: the
    function and
    its derivatives at (u_c, v_c), wherever that is; d: its mixed derivative. U V is quadratic but for a remainder of third order.
    """
    here, right, below, across = walk.pixel(0, 0), walk.pixel(1, 0), walk.pixel(0, 1), walk.pixel(1, 1)
    x, y = u.center - walk.x.base.unsqueeze(-1), v.center - walk.y.base.unsqueeze(-1)
    mixed = (across - below) - (right - here)
    slope_u, slope_v = right - here + y * mixed, below - here + x * mixed
    square, rest = u.product_of_deviations(v)
    bend = mixed * square / 2
    center = here + x * (right - here) + y * slope_v + bend
    slopes = slope_u * u.slopes + slope_v * v.slopes
    slopes[1] += bend
    radius = slope_u.abs() * u.radius + slope_v.abs() * v.radius + mixed.abs() * rest
    # Every coefficient is at most 4 max|p| (1 + |x|) (1 + |y|), and takes part after fewer than 16 roundings.
    moved = 1 + u.deviation() + v.deviation()
    magnitude = largest * 4 * (1 + x.abs()) * (1 + y.abs()) * moved * moved
    return AffineForm(torch.cat([center[None], slopes]), widen(radius, magnitude, 32, u.unit)), magnitude


@dataclass
class _Kink:
    """Paths that cross one grid line: beyond it, the first cell's function gains J(w) max(0, X).

    X = c + s e + b (2 e^2 - 1) + [-r, r]: how far the position is beyond the line; w: the position along the line. J, the jump of
    the slope, is linear in w: jump + tilt (w - w_c).
    """

    here: Tensor  # where this is so, [P, H, W, 1]
    beyond: AffineForm  # X
    jump: Tensor  # [P, H, W, C]
    tilt: Tensor
    along: Tensor  # at least |w - w_c|
    over: (
        Tensor  # how far the path may lie beyond a line of the other kind; more than roundings where it turns a corner
    )
    at: Tensor  # the e of the kink, as if X were linear

    @classmethod
    def of(cls, walk: PatchExtrema, u: AffineForm, v: AffineForm, sideways: bool) -> _Kink:
        """``sideways``: the line that is crossed is a column of the image."""
        across, along, line, other = (u, v, walk.x, walk.y) if sideways else (v, u, walk.y, walk.x)
        pixels = [[walk.pixel(i, j) if sideways else walk.pixel(j, i) for i in (0, 1, 2)] for j in (0, 1)]
        first, second = ((row[2] - row[1]) - (row[1] - row[0]) for row in pixels)
        tilt = second - first
        stack = torch.cat([(across.center - (line.base + 1).unsqueeze(-1))[None], across.slopes])
        beyond = AffineForm(stack, across.radius, across.unit, quadratic=True)
        here = ((line.meets(2) & ~line.meets(1)) & other.meets(2)).unsqueeze(-1)
        over = (along.upper - (other.base + 1).unsqueeze(-1)).clamp(min=0)
        jump = first + (along.center - other.base.unsqueeze(-1)) * tilt
        return cls(here, beyond, jump, tilt, along.deviation() + over, over, -beyond.center / beyond.slopes[0])

    def added(self, smooth: AffineForm, magnitude: Tensor, hinge: Tensor, largest: Tensor) -> AffineForm:
        """The first cell's form with this kink, over the symbols e, 2 e^2 - 1 and h.

        With e_p = -c / s: |max(0, X) - max(0, c + s e)| <= |b| + r, and max(0, c + s e) = |s| max(0, e - e_p), plus c + s e itself
        where s < 0. For the hinge e_0: |max(0, e - e_p) - max(0, e - e_0)| <= |e_p - e_0|, and on [-1, 1], with m = (1 - e_0) / 2 and
        g = (1 - e_0^2) / 2, max(0, e - e_0) = m (e + 1) - g / 2 + g / 2 h(e) for an h(e) in [-1, 1]: below its chord by at most g.
        Then |tilt (w - w_c) max(0, X)| <= |tilt| |w - w_c| max(0, max X). Last, a path that lies ``over`` the next line along w: on the
        line itself all this holds; from there to the path the image changes by at most 2 max|p| a pixel, and the first cell's
        function, at x cells from its start, by at most (2 + 4 |x|) max|p|, where |x| <= 1 + |X|.
        """
        center, slope, bend = self.beyond.stack
        rising = slope.abs() * self.jump
        falling = torch.where(slope < 0, self.jump, 0.0)
        mean, gap = (1 - hinge) / 2, (1 - hinge * hinge) / 2
        stack = torch.cat([smooth.stack, (rising * gap / 2)[None]])
        stack[0] += rising * (mean - gap / 2) + falling * center
        stack[1] += rising * mean + falling * slope
        highest = (center + self.beyond.deviation()).clamp(min=0)
        unit = UNIT[center.dtype]
        apart = (self.at - hinge).abs() + (self.at.abs() + 1) * (8 * unit)
        radius = smooth.radius + rising.abs() * apart + self.jump.abs() * (bend.abs() + self.beyond.radius)
        radius = radius + self.tilt.abs() * self.along * highest
        radius = radius + largest * (8 + 4 * (center.abs() + self.beyond.deviation())) * self.over
        # J is at most 8 max|p| (1 + |w - base|), and |c| + |s| at most (1 + |x|) + deviation
        return AffineForm(stack, widen(radius, magnitude * 16, 32, unit))
