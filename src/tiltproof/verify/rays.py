"""Counterexamples near the identity: along rays from it, bisected to where the answer changes, then downhill.

Nothing here proves anything. Every counterexample that is kept was confirmed with error bounds (`Attacker`).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from tiltproof.transforms.noise import as_text
from tiltproof.verify.attack import Attacker, Counterexamples, candidates
from tiltproof.verify.shares import Shares

FEWEST_STEPS, STEPS = 8, 32
"""Shares evaluated along each ray: of several parameters, and of one."""
DESCENTS = 6
"""Gradient steps from the counterexample of least share, of several parameters."""
INSIDE = 0.97
"""Share, relative to the least one known, at which the descent looks for another counterexample."""
FINER = 8
"""A crossing on a ray is found to the gap that is asked for, divided by this."""
CLEAR = -1e-9
"""Margin below which a counterexample is kept: one nearer to zero could fail a checker with other roundings."""


class Rays:
    """Looks for counterexamples of small share and keeps the least of each image in ``known`` and ``cap``."""

    def __init__(self, attacker: Attacker, shares: Shares, gap: float) -> None:
        """``gap``: the difference of shares that is asked for."""
        self.attacker, self.shares, self.gap = attacker, shares, gap
        self.axes = len(shares.low)

    def begin(self, known: Counterexamples, cap: Tensor, samples: int) -> None:
        """Evaluate rays to the outside of the range, ``samples`` of them, or both of a single parameter."""
        rows = known.alive()
        if not len(rows):
            return
        directions = self._outside(samples)
        noisy = bool(self.attacker.epsilon)
        steps = max(STEPS, samples) if self.axes == 1 and not noisy else FEWEST_STEPS
        along = torch.arange(1, steps + 1, dtype=torch.float64) / steps
        points = (directions.unsqueeze(1) * along.view(1, -1, 1)).flatten(0, 1)
        if noisy:  # the worst noise is looked for at each point
            each, all_points = rows.repeat_interleave(len(points)), points.repeat(len(rows), 1)
            margin = self.attacker.margins_at(each, all_points)
        else:
            margin = self.attacker.margins_of_each(rows, points)
        wrong = margin.view(len(rows), len(directions), steps) < 0
        first = torch.where(wrong, torch.arange(steps), steps).amin(2)  # along each ray
        ray = first.argmin(1)
        first = first.gather(1, ray.unsqueeze(1)).squeeze(1)
        found = (first < steps).nonzero().flatten()
        ends = directions[ray[found]] * along[first[found]].unsqueeze(1)
        self.keep(known, cap, rows[found], ends, first[found].double() / steps)
        if self.axes > 1:
            self._descend(known, cap, rows)

    def keep(self, known: Counterexamples, cap: Tensor, rows: Tensor, points: Tensor, lower: Tensor) -> None:
        """Move likely counterexamples [Q, d] of different images ``rows`` towards the identity as far as the answer stays
        wrong, and keep those that are confirmed. ``lower``: a share for each, below which there is probably none."""
        if not len(rows):
            return
        share = self.shares.of_points(points)
        # with noise, the identity may itself be a counterexample
        near, far = torch.where(share > 0, lower / share, 0.0).clamp(0, 1), torch.ones_like(share)
        rounds = math.log2(max(2.0, float(((far - near) * share).max()) * FINER / self.gap))
        for _ in range(math.ceil(rounds)):
            middle = (near + far) / 2
            wrong = self.attacker.margins_at(rows, points * middle.unsqueeze(1)) < 0
            near, far = torch.where(wrong, near, middle), torch.where(wrong, middle, far)
        for part in (0.0, 0.05, 1.0):  # further out, where rounding hides the nearest one
            there = points * (far + (1 - far) * part).unsqueeze(1)
            margin, up = self.attacker.worst_margins(rows, there)
            share = self.shares.of_points(there)
            better = margin < CLEAR  # false for NaN
            for k in (better & (share < cap[rows])).nonzero().flatten().tolist():
                row = int(rows[k])
                known.found[row] = tuple(there[k].tolist())
                known.falsified[row], known.margin[row], cap[row] = True, margin[k], share[k]
                if up is not None:
                    known.perturbation[row] = as_text(up[k])
            left = (~better).nonzero().flatten()
            if not len(left):
                return
            rows, points, far = rows[left], points[left], far[left]

    def _outside(self, samples: int) -> Tensor:
        """Return parameters of share 1, in different directions, [S, d]."""
        units = candidates(max(samples, 2 * self.axes), self.axes, self.attacker.generator)
        axes = torch.eye(self.axes, dtype=torch.float64)
        units = torch.cat([axes, -axes, units[(units != 0).any(1)]])
        units = units / units.abs().amax(1, keepdim=True)
        units = torch.tensor([*dict.fromkeys(map(tuple, units.tolist()))], dtype=torch.float64)
        points = torch.where(units < 0, -units * self.shares.low, units * self.shares.high)
        return points[(self.shares.of_points(points) > 0.999)]  # an end at 0 leaves a direction out

    def _descend(self, known: Counterexamples, cap: Tensor, rows: Tensor) -> None:
        """Take signed gradient steps on the surface of slightly smaller ranges."""
        for number in range(DESCENTS):
            rows = rows[known.falsified[rows]]
            if not len(rows):
                return
            points = torch.tensor([known.found[row] for row in rows.tolist()], dtype=torch.float64)
            size = (INSIDE * cap[rows]).unsqueeze(1)
            low, high = size * self.shares.low, size * self.shares.high
            step = 0.4 * 0.5 ** (number // 2) * (high - low)
            slopes = self.attacker.gradients.run(functools.partial(self._slopes, rows, points))
            moved = (points - step * slopes.sign()).clamp(low, high)
            wrong = (self.attacker.margins_at(rows, moved) < 0).nonzero().flatten()
            self.keep(known, cap, rows[wrong], moved[wrong], torch.zeros(len(wrong), dtype=torch.float64))

    def _slopes(self, rows: Tensor, points: Tensor, size: int) -> Tensor:
        """Return the gradients of the margins [Q, d], ``size`` images at a time; float64 on the CPU."""
        attacker, pieces = self.attacker, []
        for chunk in torch.arange(len(rows)).split(size):
            index = rows[chunk].to(attacker.images.device)
            values = points[chunk].to(attacker.images).requires_grad_()
            with torch.enable_grad():  # whatever the caller's setting is
                margin = attacker.margin_at_each(index, values)
                pieces.append(torch.autograd.grad(margin.sum(), values)[0].cpu().double())
        return torch.cat(pieces)
