"""Details of single images for the report: worst parameters, pixel bounds, and margins or outputs over each parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.pixels.api import pair_bounds
from tiltproof.reports.columns import stages
from tiltproof.reports.encoding import digits, digits_above, digits_below, image_data, strip_data, width_data
from tiltproof.runtime.batch_size import AdaptiveBatchSize, pairs_at_a_time
from tiltproof.transforms import Transform
from tiltproof.transforms.noise import from_text, perturbed
from tiltproof.verify.attack import candidates, margin_of
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.program import pictures_dtype, rounded, shades
from tiltproof.verify.prover import BackwardPolicy, Prover, RangeProver
from tiltproof.verify.radius_results import RadiusResult
from tiltproof.verify.results import ImageResult, RangeResult, Verdict
from tiltproof.verify.rule_prover import prover_for
from tiltproof.verify.rules import OwnRule, Rule
from tiltproof.verify.shares import scaled
from tiltproof.verify.state import Boxes, Tiling, leaves

Tiles = tuple[Tensor, Tensor]
"""Lower and upper ends of boxes, each [P, d]."""
LINE_POINTS = 61
"""Samples along the parameter of a one-parameter transformation."""
FEWER_LINE_POINTS = 41
"""Samples along each parameter if there are several."""
MAP_POINTS = 17
"""Samples along either side of the map of two parameters."""
CLOUD_POINTS = 192
"""Samples of a range with three or more parameters."""
MAX_CROSSED = 128
"""A line that crosses more boxes shows the bound of the whole range instead."""
MAX_LEAVES = 65_536
"""A larger partition is not listed."""
MAX_ON_MAP = 400
"""A map does not show the boxes of a larger partition."""
ON_A_SIDE = 12
"""Equal boxes along either side of a map where nothing was proved."""
FRAMES = 25
"""Images along a line that the page cannot transform itself."""
PIECES = 16
"""Equal boxes along a line where nothing was proved."""
HALVINGS = 3
"""How often a box along a line is bisected while it is not proved."""


class ParameterRange:
    """The range of a transformation's parameters, float64 on the CPU."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform
        self.low = torch.tensor(transform.low, dtype=torch.float64)
        self.high = torch.tensor(transform.high, dtype=torch.float64)

    def points(self) -> Tensor:
        """Return sample parameters [Q, d]: a line, a grid (the first parameter slowest) or random points."""
        count = len(self.low)
        if count == 1:
            return self.line(self.low, 0, LINE_POINTS)
        if count == 2:
            return torch.cartesian_prod(*(self._between(axis, MAP_POINTS) for axis in (0, 1)))
        units = candidates(CLOUD_POINTS, count, torch.Generator().manual_seed(0))
        return self.low + (self.high - self.low) * (units + 1) / 2

    def line(self, through: Tensor, axis: int, count: int) -> Tensor:
        """Return points evenly spaced along one parameter, ends included, the others as in ``through``."""
        points = through.repeat(count, 1)
        points[:, axis] = self._between(axis, count)
        return points

    def pieces(self, through: Tensor, axis: int) -> Tiles:
        """Return equal boxes along a line, without extent in the other parameters."""
        line = self.line(through, axis, PIECES + 1)
        return line[:-1], line[1:]

    def mesh(self) -> Tiles:
        """Return equal boxes over two parameters."""
        edges = [self._between(axis, ON_A_SIDE + 1) for axis in (0, 1)]
        low, high = (torch.cartesian_prod(*(each[end] for each in edges)) for end in (slice(-1), slice(1, None)))
        return low, high

    def around(self, point: Tensor) -> Tiles:
        """Return a small box around a point, inside the range."""
        half = (self.high - self.low) / (2 * PIECES)
        return torch.maximum(point - half, self.low), torch.minimum(point + half, self.high)

    def tiles(self, grid: tuple[int, ...], tree: str) -> Tiles | None:
        """Return the boxes of a partition; None if there are too many to list."""
        nodes = leaves(grid, tree, MAX_LEAVES)
        if nodes is None:
            return None
        table = torch.tensor(nodes, dtype=torch.int64)
        low, high = Tiling(self.transform, grid).bounds(Boxes(table[:, : len(self.low)], table[:, len(self.low) :]))
        return torch.maximum(low, self.low), torch.minimum(high, self.high)  # the ends as the user wrote them

    def _between(self, axis: int, count: int) -> Tensor:
        return torch.linspace(float(self.low[axis]), float(self.high[axis]), count, dtype=torch.float64)


def crossed(tiles: Tiles, through: Tensor, axis: int) -> Tiles | None:
    """Return the boxes along a line in one parameter, in order; None if there are more than `MAX_CROSSED`."""
    low, high = tiles
    inside = (low <= through) & (through <= high)
    inside[:, axis] = True
    rows = inside.all(1).nonzero().flatten()
    rows = rows[low[rows, axis].argsort(stable=True)]
    chosen: list[int] = []
    for row in rows.tolist():
        # where the line is a common edge of several boxes, the first of them covers it
        if not chosen or float(high[row, axis]) > float(high[chosen[-1], axis]):
            chosen.append(row)
    return (low[chosen], high[chosen]) if len(chosen) <= MAX_CROSSED else None


def containing(tiles: Tiles, point: Tensor) -> Tiles:
    """Return a box that contains the point."""
    low, high = tiles
    k = int(((low <= point) & (point <= high)).all(1).int().argmax())
    return low[k], high[k]


class Details:
    """Details of single images; used inside the caller's eval mode and proof arithmetic."""

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.inputs, self.method = inputs, method
        self.range = ParameterRange(inputs.transform)
        self.device = inputs.images.device
        symbols = len(inputs.transform.parts) if method == "affine" else 0
        self.pairs = AdaptiveBatchSize(pairs_at_a_time(inputs.network, symbols, self.device))
        self.samples = AdaptiveBatchSize(4096 if inputs.images.is_cuda else 128)

    def of(self, row: int, result: Any, closely: bool = True, mapped: bool = True) -> dict[str, Any]:
        """Return plain values, ready for JSON, for the image in row ``row`` of the inputs.

        ``closely``: with pixel bounds, and bounds box by box; otherwise with samples and the bound of the whole range.
        ``mapped``: of two parameters, with the bound of each box.
        """
        raise NotImplementedError

    def outputs(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inputs.answers(images).double().cpu()

    def sampled(self, row: int, points: Tensor) -> Tensor:
        """Return the network's outputs [Q, K] at parameters [Q, d]."""

        def work(size: int) -> Tensor:
            outputs = []
            for part in points.split(size):
                images = self.inputs.images[row : row + 1].expand(len(part), -1, -1, -1)
                values = part.to(images.device, images.dtype)
                outputs.append(self.outputs(self.inputs.transform.apply(images, values)))
            return torch.cat(outputs)

        return self.samples.run(work)

    def line(self, worst: Tensor, axis: int) -> Tensor:
        """Return sample points along one parameter through the worst parameters."""
        return self.range.line(worst, axis, LINE_POINTS if len(worst) == 1 else FEWER_LINE_POINTS)

    def bounded(self, row: int, boxes: Tiles, bound: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Return ``bound(rows, low, high)`` over all boxes, batch by batch; boxes are the last dimension."""

        def work(size: int) -> Tensor:
            found = []
            for low, high in zip(*(end.split(size) for end in boxes), strict=True):
                rows = torch.full((len(low),), row, device=self.device)
                found.append(bound(rows, low.to(self.device), high.to(self.device)).cpu())
            return torch.cat(found, -1)

        return self.pairs.run(work)

    def add_frames(self, lines: list[dict[str, Any]], row: int, worst: Tensor) -> None:
        """Add the image at a few parameters along each line, where the page cannot transform it itself."""
        if stages(self.inputs.transform) is not None:
            return
        image = self.inputs.images[row : row + 1].double()
        for axis, line in enumerate(lines):
            points = self.range.line(worst, axis, FRAMES).to(self.device)
            frames = self.inputs.transform.apply(image.expand(FRAMES, -1, -1, -1), points)
            line["frames"] = {"source": strip_data(frames.cpu().numpy()), "count": FRAMES}

    def worst_image(self, row: int, worst: Tensor, push: str | None, dtype: torch.dtype) -> Tensor:
        """Return the image transformed with the worst parameters [1, C, H, W]; ``push``: and with its perturbation."""
        image = self.inputs.images[row : row + 1].to(dtype)
        transformed = self.inputs.transform.apply(image, worst.to(self.device))
        if push is None:
            return transformed
        up = from_text(push, tuple(image.shape[1:])).to(self.device)[None]
        return perturbed(transformed, self.inputs.transform.noise, up)

    def images(self, row: int, worst: Tensor, box: Tiles, push: str | None = None) -> dict[str, Any]:
        """Return the image, the worst one (`worst_image`), and its pixel bounds over a box."""
        image = self.inputs.images[row : row + 1].double()
        transformed = self.worst_image(row, worst, push, torch.float64)[0].cpu().numpy()
        low, high = (end.to(self.device)[None] for end in box)
        with torch.no_grad():
            rows = torch.zeros(1, dtype=torch.int64, device=self.device)
            form = pair_bounds(image, rows, self.inputs.transform, self.method, low, high)
        lower, upper = (end[0].clamp(0, 1).cpu().numpy() for end in (form.lower, form.upper))
        width, widest = width_data(lower, upper)
        return {
            "image": image_data(image[0].cpu().numpy()),
            "turned": image_data(transformed),
            "lower": image_data(lower),
            "upper": image_data(upper),
            "width": width,
            "widest": digits(widest, 3),
            "box": [[digits(x, 7) for x in end.tolist()] for end in box],
        }


class ClassDetails(Details):
    """A classifier's worst transformation, pixel bounds, and the margin over each parameter."""

    def __init__(self, inputs: Inputs, method: str, rule: Rule | None = None) -> None:
        super().__init__(inputs, method)
        self.rule = None if isinstance(rule, OwnRule) else rule

    def of(self, row: int, result: ImageResult, closely: bool = True, mapped: bool = True) -> dict[str, Any]:
        """Return plain values, ready for JSON, for the image in row ``row`` of the inputs."""
        prover = self.prover()
        self.policy = BackwardPolicy.on(self.device)  # one per image: what it learns must not depend on their order
        points = self.range.points()
        margins, _ = self.margins(row, points)
        worst = points[margins.argmin()]
        if result.counterexample is not None:
            worst = torch.tensor(result.counterexample, dtype=torch.float64)
        scores = self.outputs(self.worst_image(row, worst, result.perturbation, self.inputs.images.dtype))
        worst_margin, answers = self._margins_of(row, scores)
        clean = self.outputs(self.inputs.images[row : row + 1])[0]
        tiles = None
        certified = result.verdict is Verdict.CERTIFIED
        if closely and certified and result.grid is not None and result.tree is not None:
            tiles = self.range.tiles(result.grid, result.tree)
        detail: dict[str, Any] = {
            "worst": [digits(x, 9) for x in worst.tolist()],
            "worstMargin": digits(float(worst_margin)),
            "answer": int(clean.argmax()),
            "worstAnswer": int(answers[0]),
            "lines": [
                self._line(prover, row, result, tiles, worst, axis)
                if closely and prover is not None
                else self._outline(row, result, worst, axis)
                for axis in range(len(worst))
            ],
        }
        if closely:
            detail |= self.images(row, worst, self._box(result, tiles, worst), result.perturbation)
            self.add_frames(detail["lines"], row, worst)
        if isinstance(result, RadiusResult) and result.share > 0 and len(worst) == 1:
            ends = (self.range.low[0], self.range.high[0])
            detail["lines"][0]["proved"] = [scaled(result.share, float(end)) for end in ends]
        if closely and len(worst) == 2 and prover is not None:
            detail["map"] = {
                "margins": [[digits(x, 4) for x in each] for each in margins.view(MAP_POINTS, MAP_POINTS).T.tolist()],
                "boxes": self._map(prover, row, result, tiles, mapped),
            }
        return detail

    def prover(self) -> Prover | None:
        """Return what bounds margins over boxes, if anything does."""
        return prover_for(self.inputs, self.method, self.rule)

    def margins(self, row: int, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return margins and predicted classes at parameters [Q, d]."""
        return self._margins_of(row, self.sampled(row, points))

    def _margins_of(self, row: int, scores: Tensor) -> tuple[Tensor, Tensor]:
        if self.rule is not None:
            return self.rule.margin(scores, torch.full((len(scores),), row)), scores.argmax(1)
        label = self.inputs.labels[row].cpu()
        return margin_of(scores, label.expand(len(scores))), scores.argmax(1)

    def _line(
        self, prover: Prover, row: int, result: ImageResult, tiles: Tiles | None, worst: Tensor, axis: int
    ) -> dict[str, Any]:
        """Return margins along one parameter and lower bounds over boxes: those of the proof, or of equal pieces."""
        margins, answers = self.margins(row, self.line(worst, axis))
        low, high = self.range.low[None], self.range.high[None]
        bounds = [result.margin]
        if result.verdict is not Verdict.CERTIFIED:
            low, high, bounds = self._refined(prover, row, self.range.pieces(worst, axis))
        elif tiles is not None and (boxes := crossed(tiles, worst, axis)) is not None:
            low, high = boxes
            # the run proved its margin for every box, perhaps with more refinement than is spent here
            bounds = [max(bound, result.margin) for bound in self._bounds(prover, row, boxes).tolist()]
        ends = zip(low[:, axis].tolist(), high[:, axis].tolist(), bounds, strict=True)
        return _line_of(margins, answers, [[digits(a, 7), digits(b, 7), digits_below(bound)] for a, b, bound in ends])

    def _outline(self, row: int, result: ImageResult, worst: Tensor, axis: int) -> dict[str, Any]:
        """Return margins along one parameter, and what the run itself proved of the whole range."""
        margins, answers = self.margins(row, self.line(worst, axis))
        whole = [float(self.range.low[axis]), float(self.range.high[axis]), digits_below(result.margin)]
        return _line_of(margins, answers, [whole] if result.verdict is Verdict.CERTIFIED else [])

    def _map(
        self, prover: Prover, row: int, result: ImageResult, tiles: Tiles | None, mapped: bool
    ) -> list[list[float | None]]:
        """Return boxes over two parameters with their bounds: those of the proof, or equal ones where there is none."""
        certified = result.verdict is Verdict.CERTIFIED
        if not certified:
            tiles = self.range.mesh() if mapped else None
        elif tiles is None or len(tiles[0]) > MAX_ON_MAP:
            tiles, mapped = (self.range.low[None], self.range.high[None]), False  # what is proved of the whole range
        if tiles is None:
            return []
        bounds = self._bounds(prover, row, tiles).tolist() if mapped else [result.margin] * len(tiles[0])
        # the run proved its margin for every box, perhaps with more refinement than is spent here
        bounds = [max(bound, result.margin) for bound in bounds] if certified else bounds
        corners = zip(*(end.tolist() for end in tiles), bounds, strict=True)
        return [[*(digits(x, 6) for x in (*low, *high)), digits_below(bound)] for low, high, bound in corners]

    def _refined(self, prover: Prover, row: int, boxes: Tiles) -> tuple[Tensor, Tensor, list[float]]:
        """Bound boxes along a line; bisect those that are not proved although their middle is classified correctly."""
        low, high = boxes
        bounds = self._bounds(prover, row, boxes)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            split = (bounds <= 0) & (self.margins(row, middle)[0] > 0)
            if not split.any():
                break
            halves = torch.cat([low[split], middle[split]]), torch.cat([middle[split], high[split]])
            new = self._bounds(prover, row, halves)
            low, high = torch.cat([low[~split], halves[0]]), torch.cat([high[~split], halves[1]])
            bounds = torch.cat([bounds[~split], new])
        order = low.sum(1).argsort()  # only one coordinate varies
        return low[order], high[order], bounds[order].tolist()

    def _bounds(self, prover: Prover, row: int, boxes: Tiles) -> Tensor:
        return self.bounded(
            row, boxes, lambda rows, low, high: prover.bound(rows, low, high, self.policy).bound
        ).double()

    def _box(self, result: ImageResult, tiles: Tiles | None, worst: Tensor) -> Tiles:
        """Return the box whose pixel bounds are shown: the one that stayed open, or that contains the worst parameters."""
        if result.open_box is not None:
            low, high = (torch.tensor(end, dtype=torch.float64) for end in result.open_box)
            return low, high
        return self.range.around(worst) if tiles is None else containing(tiles, worst)


def _line_of(margins: Tensor, answers: Tensor, boxes: list[list[float | None]]) -> dict[str, Any]:
    return {"sampled": [digits(margin) for margin in margins.tolist()], "answers": answers.tolist(), "boxes": boxes}


class PictureDetails(ClassDetails):
    """The same of a program that is evaluated on pictures of 8 bits; nothing bounds it between them."""

    def prover(self) -> None:
        """Return nothing."""
        return

    def outputs(self, images: Tensor) -> Tensor:
        pictures = shades(pictures_dtype(self.inputs.model))[rounded(images).long()]
        return super().outputs(pictures.to(images.device))


class RangeDetails(Details):
    """A regression network's extreme transformation, pixel bounds, and its widest output over each parameter."""

    def of(self, row: int, result: RangeResult, closely: bool = True, mapped: bool = True) -> dict[str, Any]:
        """Return plain values, ready for JSON, for the image in row ``row`` of the inputs."""
        prover = RangeProver(self.inputs, self.method)
        widths = [high - low for low, high in zip(result.lower, result.upper, strict=True)]
        output = widths.index(max(widths))
        below = result.prediction[output] - result.inner_lower[output]
        above = result.inner_upper[output] - result.prediction[output]
        farthest = result.lowest_at if below > above else result.highest_at
        worst = torch.tensor(farthest[output], dtype=torch.float64)
        tiles = self.range.tiles(result.grid, result.tree) if closely else None
        detail: dict[str, Any] = {
            "worst": [digits(x, 9) for x in worst.tolist()],
            "output": output,
            "lines": [self._line(prover, row, result, tiles, worst, axis, output) for axis in range(len(worst))],
        }
        if closely:
            detail |= self.images(row, worst, self.range.around(worst) if tiles is None else containing(tiles, worst))
            self.add_frames(detail["lines"], row, worst)
        return detail

    def _line(
        self,
        prover: RangeProver,
        row: int,
        result: RangeResult,
        tiles: Tiles | None,
        worst: Tensor,
        axis: int,
        output: int,
    ) -> dict[str, Any]:
        """Return one output along one parameter, and its certified range over each box that the line crosses."""

        def bound(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
            bound = prover.bound(rows, low, high).bound
            return torch.stack([bound[:, output], -bound[:, bound.shape[1] // 2 + output]])

        values = self.sampled(row, self.line(worst, axis))[:, output]
        low, high = self.range.low[None], self.range.high[None]
        ends = torch.tensor([[result.lower[output]], [result.upper[output]]], dtype=torch.float64)
        boxes = None if tiles is None else crossed(tiles, worst, axis)
        if boxes is not None:
            low, high = boxes
            proved = self.bounded(row, boxes, bound)
            ends = torch.stack([proved[0].clamp(min=ends[0]), proved[1].clamp(max=ends[1])])
        columns = zip(low[:, axis].tolist(), high[:, axis].tolist(), *ends.tolist(), strict=True)
        return {
            "sampled": [digits(value) for value in values.tolist()],
            "boxes": [
                [digits(a, 7), digits(b, 7), digits_below(lower), digits_above(upper)] for a, b, lower, upper in columns
            ],
        }
