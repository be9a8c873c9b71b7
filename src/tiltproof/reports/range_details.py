"""What is shown of one image of a regression: its extreme transformations, pixel bounds, and the output over each parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.reports.details import (
    FEWER_LINE_POINTS,
    LINE_POINTS,
    MOST_CROSSED,
    Details,
    containing,
    crossed,
    pictures,
)
from tiltproof.reports.picture_data import digits, digits_above, digits_below
from tiltproof.verify.range_prover import RangeProver
from tiltproof.verify.results import RangeResult


def widest_output(result: RangeResult) -> int:
    """Which output has the widest proved range: the one that is drawn."""
    widths = [high - low for low, high in zip(result.lower, result.upper, strict=True)]
    return widths.index(max(widths))


class RangeDetails(Details):
    """Looks at single images of a regression run."""

    def of_range(self, row: int, result: RangeResult) -> dict[str, Any]:
        """Plain values, ready for JSON, for image number ``row`` of the inputs."""
        prover = RangeProver(self.inputs, self.method)
        output = widest_output(result)
        ends = (
            result.prediction[output] - result.inner_lower[output],
            result.inner_upper[output] - result.prediction[output],
        )
        farthest = result.lowest_at if ends[0] > ends[1] else result.highest_at
        worst = torch.tensor(farthest[output], dtype=torch.float64)
        tiles = self.range.tiles(result.grid, result.tree)
        box = self.range.around(worst)
        if tiles is not None:
            k = containing(tiles, worst)
            box = tiles[0][k], tiles[1][k]
        return {
            "worst": [digits(x, 9) for x in worst.tolist()],
            "output": output,
            "lines": [self._output_line(prover, row, result, tiles, worst, axis, output) for axis in range(len(worst))],
            **pictures(self.inputs, self.method, row, worst, box),
        }

    def _output_line(
        self,
        prover: RangeProver,
        row: int,
        result: RangeResult,
        tiles: tuple[Tensor, Tensor] | None,
        worst: Tensor,
        axis: int,
        output: int,
    ) -> dict[str, Any]:
        """Sampled values of one output along one parameter, and its proved range over each box that the line crosses."""
        points = self.range.line(worst, axis, LINE_POINTS if len(worst) == 1 else FEWER_LINE_POINTS)
        values = self.sampled(row, points)[:, output]
        low, high = self.range.low[None], self.range.high[None]
        ends = torch.tensor([[result.lower[output]], [result.upper[output]]], dtype=torch.float64)
        mine = None if tiles is None else crossed(tiles, worst, axis)
        if tiles is not None and mine is not None and len(mine) <= MOST_CROSSED:
            low, high = tiles[0][mine], tiles[1][mine]
            proved = self._ranges(prover, row, low, high, output)
            ends = torch.stack([proved[0].clamp(min=ends[0]), proved[1].clamp(max=ends[1])])
        boxes = zip(low[:, axis].tolist(), high[:, axis].tolist(), *ends.tolist(), strict=True)
        return {
            "sampled": [digits(value) for value in values.tolist()],
            "boxes": [
                [digits(a, 7), digits(b, 7), digits_below(least), digits_above(most)] for a, b, least, most in boxes
            ],
        }

    def _ranges(self, prover: RangeProver, row: int, low: Tensor, high: Tensor, output: int) -> Tensor:
        """Lower and upper bounds [2, P] of one output over boxes."""

        def work(size: int) -> Tensor:
            pieces = []
            for a, b in zip(low.split(size), high.split(size), strict=True):
                images = torch.full((len(a),), row, device=self.device)
                outcome = prover.bound(images, a.to(self.device), b.to(self.device)).cpu()
                pieces.append(torch.stack([outcome.lower[:, output], outcome.upper[:, output]]))
            return torch.cat(pieces, 1)

        return self.pairs.run(work)
