"""Outputs that are reached: the inner range within the certified outer one, found by evaluating and by gradient steps."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.network import run
from tiltproof.pixels.api import pair_bounds
from tiltproof.verify.attack import candidates
from tiltproof.verify.inputs import Inputs, not_finite

CONFIRMED_AT_ONCE = 128


@dataclass
class InnerRange:
    """For each image and output the lowest and highest value found [N, K], and its parameters [N, K, d]."""

    prediction: Tensor
    low: Tensor
    high: Tensor
    lowest_at: Tensor
    highest_at: Tensor

    def widen(self, rows: Tensor, parameters: Tensor, outputs: Tensor) -> None:
        """Widen the ranges by outputs [Q, K] of images ``rows`` at ``parameters``."""
        every = rows.unsqueeze(1).expand_as(outputs)
        places = torch.arange(len(rows)).unsqueeze(1).expand_as(outputs)
        for best, at, sign in ((self.low, self.lowest_at, 1), (self.high, self.highest_at, -1)):
            least = (sign * best).scatter_reduce(0, every, sign * outputs, "amin")
            better = (least < sign * best).gather(0, every) & (sign * outputs == least.gather(0, every))
            place = torch.full(best.shape, len(rows)).scatter_reduce(
                0, every, torch.where(better, places, len(rows)), "amin"
            )
            image, output = (place < len(rows)).nonzero(as_tuple=True)
            chosen = place[image, output]
            best[image, output] = outputs[chosen, output]
            at[image, output] = parameters[chosen]


class OutputSampler:
    """Evaluates outputs at concrete parameters; results are kept in an `InnerRange`."""

    def __init__(self, inputs: Inputs, seed: int) -> None:
        self.inputs = inputs
        self.low, self.high = (
            torch.tensor(end, dtype=torch.float64) for end in (inputs.transform.low, inputs.transform.high)
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.batch, self.gradients = inputs.evaluations(1024), inputs.evaluations(1024, gradient=True)

    @torch.no_grad()
    def begin(self, first: int = 0) -> InnerRange:
        """Evaluate the untransformed images; ``first``: the number of the first one, for messages."""
        prediction = self.batch.run(self._predictions)
        ensure_finite(prediction, first)
        low = torch.full_like(prediction, torch.inf)
        at = torch.zeros(*prediction.shape, len(self.low), dtype=torch.float64)
        return InnerRange(prediction, low, -low, at, at.clone())

    def _predictions(self, size: int) -> Tensor:
        return torch.cat([self.inputs.answers(part).double().cpu() for part in self.inputs.images.split(size)])

    def evaluate(self, known: InnerRange, rows: Tensor, parameters: Tensor) -> None:
        """Evaluate images ``rows`` [Q] at ``parameters`` [Q, d], in the images' dtype, and widen the inner range."""

        def work(size: int) -> Tensor:
            pieces = []
            for chunk in torch.arange(len(rows)).split(size):
                images = self.inputs.images[rows[chunk].to(self.inputs.images.device)]
                turned = self.inputs.transform.apply(images, parameters[chunk].to(images))
                pieces.append(self.inputs.answers(turned).cpu())
            return torch.cat(pieces)

        with torch.no_grad():
            known.widen(rows, parameters, self.batch.run(work).double())

    def search(
        self,
        known: InnerRange,
        samples: int,
        steps: int,
        until: float | None = None,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """Try corners, a grid and random parameters, then signed gradient steps from each output's lowest and highest.

        ``until``: from this time of `time.perf_counter` on no more than the first corners; with many outputs gradient
        steps take long. ``report`` is called from time to time.
        """
        units = candidates(samples, len(self.low), self.generator)
        everything = torch.arange(len(known.low))
        for number, chunk in enumerate(units.split(32)):
            if number and until is not None and time.perf_counter() >= until:
                return
            rows, points = everything.repeat_interleave(len(chunk)), chunk.repeat(len(everything), 1)
            self.evaluate(known, rows, self._at(points))
            report()
        for number in range(steps):
            for output in range(known.low.shape[1]):
                if until is not None and time.perf_counter() >= until:
                    return
                report()
                for at, sign in ((known.lowest_at, 1), (known.highest_at, -1)):
                    step = 0.2 * 0.5 ** (number // 3) * (self.high - self.low) / 2
                    slope = self.gradients.run(functools.partial(self._slopes, at[:, output], output))
                    moved = (at[:, output] - sign * step * slope.sign()).clamp(self.low, self.high)
                    self.evaluate(known, everything, moved)

    def _at(self, unit: Tensor) -> Tensor:
        t = (unit + 1) / 2
        return (self.low * (1 - t) + self.high * t).clamp(self.low, self.high)

    def _slopes(self, parameters: Tensor, output: int, size: int) -> Tensor:
        """Return the gradient of one output with respect to the parameters, [N, d]; ``size`` images at a time."""
        pieces = []
        for chunk in torch.arange(len(parameters)).split(size):
            images = self.inputs.images[chunk.to(self.inputs.images.device)]
            values = parameters[chunk].to(images).requires_grad_()
            with torch.enable_grad():  # whatever the caller's setting is
                result = self.inputs.answers(self.inputs.transform.apply(images, values))[:, output]
                pieces.append(torch.autograd.grad(result.sum(), values)[0].cpu().double())
        return torch.cat(pieces)

    @torch.no_grad()
    def confirmed(self, known: InnerRange) -> tuple[Tensor, Tensor]:
        """Return the confirmed inner range, [N, K] each: by float64 bounds of single points, the exact outputs at the
        recorded parameters lie below the first and above the second number."""
        count, outputs = known.low.shape
        images = torch.arange(count).repeat_interleave(2 * outputs).unsqueeze(1)
        parameters = torch.cat([known.lowest_at, known.highest_at], 1).flatten(0, 1)
        # many outputs are lowest or highest at the same parameters
        points, which = torch.cat([images, parameters], 1).unique(dim=0, return_inverse=True)
        ends = which.view(count, 2, outputs)
        confirmed = self.inputs.points(CONFIRMED_AT_ONCE)
        return confirmed.run(functools.partial(self._ends, points[:, 0].long(), points[:, 1:], ends))

    def _ends(self, images: Tensor, parameters: Tensor, ends: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Bound the outputs at points, ``size`` at a time: upper bounds [N, K] at points number ``ends[:, 0]``, and lower
        bounds at points number ``ends[:, 1]``."""
        inputs, network, device = self.inputs, self.inputs.network_as(torch.float64), self.inputs.images.device
        low, high = torch.full((2, *ends[:, 0].shape), torch.nan, dtype=torch.float64)
        for rows in torch.arange(len(images)).split(size):
            point = parameters[rows].to(device)
            pixels = pair_bounds(inputs.images64, images[rows].to(device), inputs.transform, "affine", point, point)
            form = run(network, pixels)[network.output]
            for result, bound, at in ((low, form.upper, ends[:, 0]), (high, form.lower, ends[:, 1])):
                image, output = ((at >= rows[0]) & (at <= rows[-1])).nonzero(as_tuple=True)
                result[image, output] = bound.cpu()[at[image, output] - rows[0], output]
        return low, high


def ensure_finite(outputs: Tensor, first: int) -> None:
    """Raise for an output [N, K] that is not finite; images are numbered from ``first``."""
    wrong = (~outputs.isfinite()).any(1)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise not_finite(first + row, outputs[row])
