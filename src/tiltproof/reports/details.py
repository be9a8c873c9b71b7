"""Where to look at one image: points of the range, lines through the worst of them, and the proved boxes those lines cross."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiltproof.pixels.api import pair_bounds
from tiltproof.reports.picture_data import digits, digits_below, picture_data, width_data
from tiltproof.runtime.batch_size import AdaptiveBatchSize, pairs_at_a_time
from tiltproof.transforms import Transform
from tiltproof.verify.attack import candidates, margin_of
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.partition import Boxes, Tiling, leaves
from tiltproof.verify.prover import Prover
from tiltproof.verify.results import ImageResult, Verdict

LINE_POINTS, MAP_POINTS, CLOUD_POINTS = 61, 17, 192
"""Points along a parameter, along either side of a map of two, and in a space of three or more."""
FEWER_LINE_POINTS = 41
MOST_CROSSED, MOST_LEAVES = 128, 65_536
"""Boxes bounded again for one line; boxes of a tiling that are listed at all."""
PIECES = 16
"""Equal boxes along a line where nothing was proved."""


class Range:
    """The range of a transformation, float64 on the CPU."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform
        self.low = torch.tensor(transform.low, dtype=torch.float64)
        self.high = torch.tensor(transform.high, dtype=torch.float64)

    def points(self) -> Tensor:
        """Parameters [Q, d] that show where margins are small: a line, a grid (the first parameter slowest) or a cloud."""
        count = len(self.low)
        if count == 1:
            return self.line(self.low, 0, LINE_POINTS)
        if count == 2:
            axes = [self._between(axis, MAP_POINTS) for axis in (0, 1)]
            return torch.cartesian_prod(*axes)
        units = candidates(CLOUD_POINTS, count, torch.Generator().manual_seed(0))
        return self.low + (self.high - self.low) * (units + 1) / 2

    def line(self, through: Tensor, axis: int, count: int) -> Tensor:
        """Evenly spaced along one parameter, both ends included, the others as in ``through``."""
        points = through.repeat(count, 1)
        points[:, axis] = self._between(axis, count)
        return points

    def pieces(self, through: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Equal boxes along a line, without extent in the other parameters."""
        line = self.line(through, axis, PIECES + 1)
        return line[:-1], line[1:]

    def around(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """A small box about a point, inside the range."""
        half = (self.high - self.low) / (2 * PIECES)
        return torch.maximum(point - half, self.low), torch.minimum(point + half, self.high)

    def tiles(self, grid: tuple[int, ...], tree: str) -> tuple[Tensor, Tensor] | None:
        """Lows and highs of the boxes of a tiling; None where there are too many to list."""
        nodes = leaves(grid, tree, MOST_LEAVES)
        if nodes is None:
            return None
        table = torch.tensor(nodes, dtype=torch.int64)
        low, high = Tiling(self.transform, grid).bounds(Boxes(*table.split(len(self.low), dim=1)))
        return torch.maximum(low, self.low), torch.minimum(high, self.high)  # as the user wrote the range

    def _between(self, axis: int, count: int) -> Tensor:
        return torch.linspace(float(self.low[axis]), float(self.high[axis]), count, dtype=torch.float64)


def crossed(tiles: tuple[Tensor, Tensor], through: Tensor, axis: int) -> Tensor:
    """Which boxes a line along one parameter runs through, in its order; where it runs along an edge, one of both sides."""
    low, high = tiles
    inside = (low <= through) & (through <= high)
    inside[:, axis] = True
    rows = inside.all(1).nonzero().flatten()
    rows = rows[low[rows, axis].argsort(stable=True)]
    chosen: list[int] = []
    for row in rows.tolist():
        # boxes that share the line as an edge overlap along it; the first of them covers it
        if not chosen or float(high[row, axis]) > float(high[chosen[-1], axis]):
            chosen.append(row)
    return torch.tensor(chosen, dtype=torch.int64)


def containing(tiles: tuple[Tensor, Tensor], point: Tensor) -> int:
    """A box that holds the point."""
    low, high = tiles
    return int(((low <= point) & (point <= high)).all(1).int().argmax())


# What is shown of one image of a classifier: its worst transformation, pixel bounds, and the margin over each parameter.


MOST_ON_MAP, HALVINGS = 400, 3
"""Boxes of a tiling that are drawn on a map of two parameters; how often a box is halved where nothing was proved."""


class Details:
    """Looks at single images; everything runs inside the caller's eval mode and proof arithmetic."""

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.inputs, self.method = inputs, method
        self.range = Range(inputs.transform)
        self.device = inputs.images.device
        symbols = len(inputs.transform.parts) if method == "affine" else 0
        self.pairs = AdaptiveBatchSize(pairs_at_a_time(inputs.network, symbols, self.device))
        self.samples = AdaptiveBatchSize(4096 if inputs.images.is_cuda else 128)

    def of(self, row: int, result: ImageResult) -> dict[str, Any]:
        """Plain values, ready for JSON, for image number ``row`` of the inputs."""
        prover = Prover(self.inputs, self.method)  # its memory of what pays is one image's, so no order matters
        points = self.range.points()
        margins, _ = self.sample(row, points)
        worst = points[margins.argmin()]
        if result.counterexample is not None:
            worst = torch.tensor(result.counterexample, dtype=torch.float64)
        worst_margin, answers = self.sample(row, torch.stack([worst]))
        clean = self.outputs(self.inputs.images[row : row + 1])[0]
        tiles = None
        if result.verdict is Verdict.CERTIFIED and result.grid is not None and result.tree is not None:
            tiles = self.range.tiles(result.grid, result.tree)
        detail = {
            "worst": [digits(x, 9) for x in worst.tolist()],
            "worstMargin": digits(float(worst_margin)),
            "answer": int(clean.argmax()),
            "worstAnswer": int(answers[0]),
            "lines": [self._line(prover, row, result, tiles, worst, axis) for axis in range(len(worst))],
            **self._pictures(row, worst, self._box(result, tiles, worst)),
        }
        if len(worst) == 2:
            detail["map"] = self._map(margins, tiles)
        return detail

    def outputs(self, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inputs.answers(pictures).double().cpu()

    def sample(self, row: int, points: Tensor) -> tuple[Tensor, Tensor]:
        """Margins and answers at parameters [Q, d]."""
        scores = self.sampled(row, points)
        label = self.inputs.labels[row].cpu()
        return margin_of(scores, label.expand(len(scores))), scores.argmax(1)

    def sampled(self, row: int, points: Tensor) -> Tensor:
        """The network's outputs [Q, K] at parameters [Q, d]."""

        def work(size: int) -> Tensor:
            pieces = []
            for part in points.split(size):
                images = self.inputs.images[row : row + 1].expand(len(part), -1, -1, -1)
                values = part.to(images.device, images.dtype)
                pieces.append(self.outputs(self.inputs.transform.apply(images, values)))
            return torch.cat(pieces)

        return self.samples.run(work)

    def _line(
        self,
        prover: Prover,
        row: int,
        result: ImageResult,
        tiles: tuple[Tensor, Tensor] | None,
        worst: Tensor,
        axis: int,
    ) -> dict[str, Any]:
        """Sampled margins along one parameter, and lower bounds over boxes: the proved ones, or pieces where nothing was proved."""
        points = self.range.line(worst, axis, LINE_POINTS if len(worst) == 1 else FEWER_LINE_POINTS)
        margins, _ = self.sample(row, points)
        certified = result.verdict is Verdict.CERTIFIED
        low, high = self.range.low[None], self.range.high[None]
        bounds = [result.margin]
        if not certified:
            low, high, bounds = self._refined(prover, row, *self.range.pieces(worst, axis))
        elif tiles is not None:
            mine = crossed(tiles, worst, axis)
            if len(mine) <= MOST_CROSSED:
                low, high = tiles[0][mine], tiles[1][mine]
                # the run proved its margin for every box, perhaps with more effort than is spent here
                bounds = [max(bound, result.margin) for bound in self._bounds(prover, row, low, high)]
        ends = zip(low[:, axis].tolist(), high[:, axis].tolist(), bounds, strict=True)
        return {
            "sampled": [digits(margin) for margin in margins.tolist()],
            "boxes": [[digits(a, 7), digits(b, 7), digits_below(bound)] for a, b, bound in ends],
        }

    def _refined(self, prover: Prover, row: int, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, list[float]]:
        """Bounds along a line of boxes; those that are not proved although their middle is right are halved a few times."""
        bounds = torch.tensor(self._bounds(prover, row, low, high), dtype=torch.float64)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            rows = ((bounds <= 0) & (self.sample(row, middle)[0] > 0)).nonzero().flatten()
            if not len(rows):
                break
            keep = torch.ones(len(low), dtype=torch.bool)
            keep[rows] = False
            new_low, new_high = torch.cat([low[rows], middle[rows]]), torch.cat([middle[rows], high[rows]])
            new = torch.tensor(self._bounds(prover, row, new_low, new_high), dtype=torch.float64)
            low, high = torch.cat([low[keep], new_low]), torch.cat([high[keep], new_high])
            bounds = torch.cat([bounds[keep], new])
        order = low.sum(1).argsort()  # one coordinate varies
        return low[order], high[order], bounds[order].tolist()

    def _bounds(self, prover: Prover, row: int, low: Tensor, high: Tensor) -> list[float]:
        def work(size: int) -> Tensor:
            pieces = []
            for a, b in zip(low.split(size), high.split(size), strict=True):
                images = torch.full((len(a),), row, device=self.device)
                pieces.append(prover.bound(images, a.to(self.device), b.to(self.device)).bound.cpu())
            return torch.cat(pieces)

        return self.pairs.run(work).tolist()

    def _map(self, margins: Tensor, tiles: tuple[Tensor, Tensor] | None) -> dict[str, Any]:
        """Margins over two parameters, row by row of the second one from low to high, and the tiling's boxes."""
        table = margins.view(MAP_POINTS, MAP_POINTS).T
        boxes: list[list[float | None]] = []
        if tiles is not None and len(tiles[0]) <= MOST_ON_MAP:
            boxes = [
                [digits(x, 6) for x in (*low, *high)] for low, high in zip(*(t.tolist() for t in tiles), strict=True)
            ]
        return {"margins": [[digits(x, 4) for x in row] for row in table.tolist()], "boxes": boxes}

    def _box(self, result: ImageResult, tiles: tuple[Tensor, Tensor] | None, worst: Tensor) -> tuple[Tensor, Tensor]:
        """The box whose pixel bounds are shown: the one that holds the worst parameters, or that stayed open."""
        if result.open_box is not None:
            low, high = (torch.tensor(end, dtype=torch.float64) for end in result.open_box)
            return low, high
        if tiles is not None:
            k = containing(tiles, worst)
            return tiles[0][k], tiles[1][k]
        return self.range.around(worst)

    def _pictures(self, row: int, worst: Tensor, box: tuple[Tensor, Tensor]) -> dict[str, Any]:
        return pictures(self.inputs, self.method, row, worst, box)


def pictures(inputs: Inputs, method: str, row: int, worst: Tensor, box: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """The picture, transformed with the worst parameters, and its pixel bounds over a box."""
    picture = inputs.images[row : row + 1].double()
    device = picture.device
    turned = inputs.transform.apply(picture, worst.to(device))[0].cpu().numpy()
    low, high = (end.to(device)[None] for end in box)
    with torch.no_grad():
        form = pair_bounds(
            picture, torch.zeros(1, dtype=torch.int64, device=device), inputs.transform, method, low, high
        )
    lower, upper = (end[0].clamp(0, 1).cpu().numpy() for end in (form.lower, form.upper))
    width, widest = width_data(lower, upper)
    return {
        "picture": picture_data(picture[0].cpu().numpy()),
        "turned": picture_data(turned),
        "lower": picture_data(lower),
        "upper": picture_data(upper),
        "width": width,
        "widest": digits(widest, 3),
        "box": [[digits(x, 7) for x in end.tolist()] for end in box],
    }
