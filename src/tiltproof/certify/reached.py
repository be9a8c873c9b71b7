"""Outputs that are known to be reached: the inner range beside the certified outer one, found by evaluating and by gradient steps."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor

from tiltproof.bounds import pair_bounds
from tiltproof.certify.attack import candidates
from tiltproof.certify.entry import Inputs
from tiltproof.network import run

CONFIRMED_AT_ONCE = 128


class Reached:
    """For each image and output the lowest and highest value seen so far [N, K], and the parameters that gave them [N, K, d]."""

    STATE: ClassVar[tuple[str, ...]] = ("low", "high", "lowest_at", "highest_at")

    def __init__(self, inputs: Inputs, seed: int) -> None:
        self.inputs = inputs
        self.low_end, self.high_end = (
            torch.tensor(end, dtype=torch.float64) for end in (inputs.transform.low, inputs.transform.high)
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.batch, self.gradients = inputs.evaluations(1024), inputs.evaluations(1024, gradient=True)
        with torch.no_grad():
            self.prediction = self.batch.run(self._predictions)
        count, outputs = self.prediction.shape
        self.low = torch.full((count, outputs), torch.inf, dtype=torch.float64)
        self.high = -self.low
        self.lowest_at = torch.zeros(count, outputs, len(self.low_end), dtype=torch.float64)
        self.highest_at = self.lowest_at.clone()

    def _predictions(self, size: int) -> Tensor:
        return torch.cat([self.inputs.answers(part).double().cpu() for part in self.inputs.images.split(size)])

    def evaluate(self, rows: Tensor, parameters: Tensor) -> None:
        """Outputs of images ``rows`` [Q] at ``parameters`` [Q, d], in the images' dtype."""

        def work(size: int) -> Tensor:
            pieces = []
            for chunk in torch.arange(len(rows)).split(size):
                images = self.inputs.images[rows[chunk].to(self.inputs.images.device)]
                turned = self.inputs.transform.apply(images, parameters[chunk].to(images))
                pieces.append(self.inputs.answers(turned).cpu())
            return torch.cat(pieces)

        with torch.no_grad():
            outputs = self.batch.run(work).double()
        for output in range(outputs.shape[1]):
            for best, at, sign in ((self.low, self.lowest_at, 1), (self.high, self.highest_at, -1)):
                # the first row of each image that is best comes last in this order, and stays
                order = (sign * outputs[:, output]).argsort(descending=True)
                better = order[sign * outputs[order, output] < sign * best[rows[order], output]]
                best[rows[better], output] = outputs[better, output]
                at[rows[better], output] = parameters[better]

    def search(self, samples: int, steps: int) -> None:
        """Corners, a grid and random parameters, then signed gradient steps from each output's lowest and highest."""
        units = candidates(samples, len(self.low_end), self.generator)
        everything = torch.arange(len(self.low))
        for chunk in units.split(32):
            rows, points = everything.repeat_interleave(len(chunk)), chunk.repeat(len(everything), 1)
            self.evaluate(rows, self._at(points))
        for number in range(steps):
            for output in range(self.low.shape[1]):
                for at, sign in ((self.lowest_at, 1), (self.highest_at, -1)):
                    step = 0.2 * 0.5 ** (number // 3) * (self.high_end - self.low_end) / 2
                    slope = self.gradients.run(functools.partial(self._slopes, at[:, output], output))
                    moved = (at[:, output] - sign * step * slope.sign()).clamp(self.low_end, self.high_end)
                    self.evaluate(everything, moved)

    def _at(self, unit: Tensor) -> Tensor:
        t = (unit + 1) / 2
        return (self.low_end * (1 - t) + self.high_end * t).clamp(self.low_end, self.high_end)

    def _slopes(self, parameters: Tensor, output: int, size: int) -> Tensor:
        """Gradient of one output with respect to the parameters, [N, d]; ``size`` images at a time."""
        pieces = []
        for chunk in torch.arange(len(parameters)).split(size):
            images = self.inputs.images[chunk.to(self.inputs.images.device)]
            values = parameters[chunk].to(images).requires_grad_()
            with torch.enable_grad():  # whatever the caller's setting is
                result = self.inputs.answers(self.inputs.transform.apply(images, values))[:, output]
                pieces.append(torch.autograd.grad(result.sum(), values)[0].cpu().double())
        return torch.cat(pieces)

    @torch.no_grad()
    def confirmed(self) -> tuple[Tensor, Tensor]:
        """What is reached for certain, [N, K] each: at the parameters found the exact output lies below the first and above the second
        number, by float64 bounds of single points."""
        low, high = self.low.clone(), self.high.clone()
        points = self.inputs.points(CONFIRMED_AT_ONCE)
        for output in range(low.shape[1]):
            low[:, output] = points.run(functools.partial(self._ends, self.lowest_at[:, output]))[1][:, output]
            high[:, output] = points.run(functools.partial(self._ends, self.highest_at[:, output]))[0][:, output]
        return low, high

    def _ends(self, parameters: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of every image's outputs at its own parameters, ``size`` images at a time."""
        inputs, network, device = self.inputs, self.inputs.live(torch.float64), self.inputs.images.device
        lower, upper = [], []
        for chunk in torch.arange(len(parameters)).split(size):
            point = parameters[chunk].to(device)
            pixels = pair_bounds(inputs.pictures, chunk.to(device), inputs.transform, "affine", point, point)
            form = run(network, pixels)[network.output]
            lower.append(form.lower.cpu())
            upper.append(form.upper.cpu())
        return torch.cat(lower), torch.cat(upper)
