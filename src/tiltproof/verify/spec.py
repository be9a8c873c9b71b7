"""Specifications: what branch and bound proves of each image, the right class or a range of outputs.

A specification has C objectives that are bounded from below: the margin of the class, or each output and its
negation. It is immutable; the results of a search are in the `SearchState` that its methods receive.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
from torch import Tensor

from tiltproof.device import is_out_of_memory
from tiltproof.network import Network
from tiltproof.verify.attack import Attacker, Counterexamples
from tiltproof.verify.inner_range import InnerRange, OutputSampler, ensure_finite
from tiltproof.verify.options import Tolerance
from tiltproof.verify.prover import CostModel, EagerPolicy, Outcome, Prover, RangeProver
from tiltproof.verify.results import ImageResult, RangeResult, Reason, Verdict
from tiltproof.verify.state import Pairs, SearchState, Tiling, leaf_counts

THOROUGH_SAMPLES, THOROUGH_STEPS = 200, 10
"""The last attack on images that could not be proved."""
ROOM = 0.005
"""Margin by which a published range exceeds the proved one, relative to its width, so that a checker with coarser
bounds succeeds."""
CHAIN = tuple(-float(k) for k in range(0, 44, 4))
"""Sizes of a chain of boxes around one point, as powers of two of the open box that it belongs to."""
LAST_LOOK = 1.0
"""Seconds that an unknown range's reason may take, about, where seconds are limited."""
LEAST_ROOM = 1e-9
"""The same margin for an output that hardly moves, relative to 1 + the output's size."""


class Spec(Protocol):
    """The property to prove of each image."""

    objectives: int
    """Number of objectives."""
    cost: CostModel

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def bound(
        self, state: SearchState, rows: Tensor, low: Tensor, high: Tensor, precise: Tensor | None = None, size: int = 0
    ) -> Outcome:
        """Bound pairs (image ``rows[p]``, box ``low[p]`` to ``high[p]``), on the device of these tensors. The
        ``precise`` ones are bounded in float64, ``size`` / 2 pairs at a time (by default half of all)."""
        ...

    def inherit(self, bound: Tensor, parent: Tensor) -> Tensor:
        """Return the bounds of boxes, improved by those of their parents."""
        ...

    def done(self, state: SearchState, rows: Tensor, bound: Tensor) -> Tensor:
        """Return the pairs whose bounds [P, C] are good enough."""
        ...

    def probe(self, state: SearchState, rows: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate the middles of open boxes; return the images and parameters of likely counterexamples."""
        ...

    def confirm(self, state: SearchState, rows: Tensor, parameters: Tensor) -> None:
        """Confirm likely counterexamples, and record those that hold."""
        ...

    def falsified(self, state: SearchState) -> Tensor:
        """Return the mask of images with a counterexample, on the state's device."""
        ...

    def hopeless(self, state: SearchState, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return which of the images ``rows`` [P] cannot be proved in any part of their box, however small."""
        ...

    def open_images(self, state: SearchState) -> Tensor:
        """Return the numbers of the images to search."""
        ...

    def exhaust(self, state: SearchState, tiling: Tiling, bounded: Pairs, waiting: Pairs) -> None:
        """Settle images whose budget is spent, with their open boxes: just bounded, and waiting."""
        ...

    def tally(self, state: SearchState) -> dict[Verdict, int]:
        """Return the number of settled images by verdict, for progress reports."""
        ...

    def finish(self, state: SearchState) -> None:
        """Finish the search."""
        ...

    def results(self, state: SearchState, tiling: Tiling, first: int, more_seconds: float) -> list[Any]:
        """Return the result of each image; the first one has the number ``first``."""
        ...


class ClassificationSpec:
    """The network predicts the label, or keeps what else it must: the margin is positive in every box."""

    objectives = 1

    def __init__(self, prover: Prover, attacker: Attacker) -> None:
        self.prover, self.attacker, self.cost = prover, attacker, prover.cost

    def __len__(self) -> int:
        return len(self.prover.labels)

    def bound(
        self, state: SearchState, rows: Tensor, low: Tensor, high: Tensor, precise: Tensor | None = None, size: int = 0
    ) -> Outcome:
        device, count = self.prover.labels.device, len(rows)
        images, low, high = (each.to(device) for each in (rows, low, high))
        fine = rows[:0] if precise is None else precise.nonzero().flatten()
        if precise is None or not len(fine):
            outcome = self.prover.bound(images, low, high, state.policy)
            return Outcome(outcome.bound.unsqueeze(1).to(rows.device), outcome.shares.to(rows.device))
        plain = (~precise).nonzero().flatten()
        if len(plain) <= min(len(fine), self.cost.speculative_boxes):
            fine, plain = torch.cat([fine, plain]), plain[:0]
        bound, shares = low.new_empty(count, 1), torch.empty_like(low)
        half = max(1, (size or count) // 2)  # float64 takes twice the memory
        for mine, dtype, most in ((plain, None, count), (fine, torch.float64, half)):
            for part in mine.to(device).split(most) if len(mine) else ():
                outcome = self.prover.bound(images[part], low[part], high[part], state.policy, dtype)
                bound[part, 0], shares[part] = outcome.bound, outcome.shares
        return Outcome(bound.to(rows.device), shares.to(rows.device))

    def inherit(self, bound: Tensor, parent: Tensor) -> Tensor:
        return bound

    def done(self, state: SearchState, rows: Tensor, bound: Tensor) -> Tensor:
        return bound[:, 0] > 0  # false for NaN

    def probe(self, state: SearchState, rows: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
        wrong = (self.attacker.margins_at(rows, middle) < 0).nonzero().flatten()
        return rows[wrong], middle[wrong]

    def confirm(self, state: SearchState, rows: Tensor, parameters: Tensor) -> None:
        self.attacker.confirm(state.witnesses, rows.cpu(), parameters.cpu())

    def falsified(self, state: SearchState) -> Tensor:
        return state.witnesses.falsified.to(state.device)

    def hopeless(self, state: SearchState, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Bounds of smaller and smaller boxes tend to those of a point, where rounding alone is left. An image is given
        up if its box is not proved at its middle alone, nor in any of a chain of boxes around it."""
        network, middle = self.prover.networks[torch.float64], (low + high) / 2
        hopeless = self._unproved(rows, middle, middle, network)
        fails = hopeless.nonzero().flatten()
        if (
            len(fails) and not self.attacker.epsilon
        ):  # of noise, rather than of rounding, a box is no better than its middle
            open_ = self._unproved(rows[fails].repeat(len(CHAIN)), *_chain(low[fails], high[fails]), network)
            hopeless[fails] = open_.view(len(CHAIN), -1).all(0)
        return hopeless

    def _unproved(self, rows: Tensor, low: Tensor, high: Tensor, network: Network) -> Tensor:
        """Bound margins in float64, with a backward pass for all that it may help; NaN is unproved."""
        device = self.prover.labels.device
        if self.prover.method == "fgv":
            return torch.zeros_like(rows, dtype=torch.bool)  # it has no forms to go back through

        def work(size: int) -> Tensor:
            parts = zip(*(each.to(device).split(size) for each in (rows, low, high)), strict=True)
            policy = EagerPolicy.on(device)
            bounds = [self.prover.bound(row, a, b, policy, torch.float64, network).bound for row, a, b in parts]
            return torch.cat(bounds)

        return ~(self.attacker.points.run(work) > 0).to(rows.device)

    def open_images(self, state: SearchState) -> Tensor:
        return state.witnesses.alive().to(state.device)

    def exhaust(self, state: SearchState, tiling: Tiling, bounded: Pairs, waiting: Pairs) -> None:
        """Settle images as unknown, with the worst open box and a bound over all open boxes; waiting ones have that
        of their parents."""
        low, high = tiling.bounds(bounded.boxes)
        for image in bounded.image.unique().tolist():
            mine = (bounded.image == image).nonzero().flatten()
            worst = mine[bounded.bound[mine, 0].argmin()]
            others = waiting.bound[waiting.image == image, 0].tolist()
            least = min([float(bounded.bound[worst, 0]), *others])
            state.settle_unknown(tiling, image, least, low[worst], high[worst])
        state.splits.forget(bounded.image)

    def tally(self, state: SearchState) -> dict[Verdict, int]:
        known: Counterexamples = state.witnesses
        wrong = int((~known.correct).sum())
        return {
            Verdict.CERTIFIED: int((state.certified.cpu() & ~known.falsified).sum()),
            Verdict.UNKNOWN: int((state.exhausted.cpu() & ~known.falsified).sum()) + (wrong if known.own else 0),
            Verdict.FALSIFIED: int(known.falsified.sum()),
            Verdict.MISCLASSIFIED: 0 if known.own else wrong,
        }

    def finish(self, state: SearchState) -> None:
        """Attack once more, thoroughly, what could not be proved."""
        known: Counterexamples = state.witnesses
        rows = (state.exhausted.cpu() & ~known.falsified).nonzero().flatten()
        self.attacker.search(known, rows, THOROUGH_SAMPLES, THOROUGH_STEPS)
        self._explain(state, rows[~known.falsified[rows]])

    def _explain(self, state: SearchState, rows: Tensor) -> None:
        """Say of unknown images whether rounding alone, at the middle of their open box, keeps them open."""
        if not len(rows):
            return
        low, high = _open_boxes(state, rows)
        middle = (low + high) / 2
        fails = self.hopeless(state, rows, low, high)
        real = self._unproved(rows, middle, middle, self.attacker.exact)  # without the roundings of float32
        open_here = Reason.NOISE if self.attacker.epsilon else Reason.OPEN
        for row, fail, deep in zip(rows.tolist(), fails.tolist(), real.tolist(), strict=True):
            if fail:
                state.reasons[row] = open_here if deep else Reason.ROUNDING

    def results(self, state: SearchState, tiling: Tiling, first: int, more_seconds: float) -> list[ImageResult]:
        known: Counterexamples = state.witnesses
        grid, count = tuple(tiling.base.tolist()), len(self)
        trees, halved = state.splits.trees(grid)
        certified = known.correct & state.certified.cpu()
        proved = state.proved[:, 0]
        state.check(tiling, certified, (proved > 0).cpu(), known.falsified, leaf_counts(tiling, halved))
        verdicts = [Verdict.UNKNOWN] * count
        for which, verdict in (
            (certified, Verdict.CERTIFIED),
            (known.falsified, Verdict.FALSIFIED),
            (~known.correct, Verdict.UNKNOWN if known.own else Verdict.MISCLASSIFIED),
        ):
            for image in which.nonzero().flatten().tolist():
                verdicts[image] = verdict
        reasons = self._reasons(state)
        bounded = torch.tensor([verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN) for verdict in verdicts])
        margins = torch.where(bounded, torch.minimum(proved, state.open_bound).cpu(), known.margin)
        if known.own:  # nothing is proved where the own answer is not
            margins = torch.where(known.correct, margins, -torch.inf)
        claimed = [verdict is Verdict.CERTIFIED for verdict in verdicts]
        columns = {
            "image": range(first, first + count),
            "label": self.prover.labels.tolist(),
            "verdict": verdicts,
            "margin": margins.tolist(),
            "grid": [grid if each else None for each in claimed],
            "tree": [tree if each else None for tree, each in zip(trees, claimed, strict=True)],
            "counterexample": [known.found[k] if verdicts[k] is Verdict.FALSIFIED else None for k in range(count)],
            "open_box": [state.open_box.get(k) if verdicts[k] is Verdict.UNKNOWN else None for k in range(count)],
            "boxes": state.boxes.tolist(),
            "seconds": (state.seconds + more_seconds).tolist(),
            "reason": [reasons.get(k) if verdicts[k] is Verdict.UNKNOWN else None for k in range(count)],
            "perturbation": [
                known.perturbation.get(k) if verdicts[k] is Verdict.FALSIFIED else None for k in range(count)
            ],
            "reached": [None] * count,
            "reached_at": [None] * count,
        }
        if state.slack is not None:
            columns["reached"] = [
                x if yes else None for x, yes in zip(state.slack.reached.tolist(), claimed, strict=True)
            ]
            columns["reached_at"] = [
                tuple(at) if yes else None for at, yes in zip(state.slack.at.tolist(), claimed, strict=True)
            ]
        names = [name for name in ImageResult.__dataclass_fields__ if name in columns]  # in the order of its arguments
        return [*map(ImageResult, *(columns[name] for name in names))]

    def _reasons(self, state: SearchState) -> dict[int, Reason]:
        """Return why images are unknown; an own answer that is not proved is a matter of rounding, or a tie."""
        known: Counterexamples = state.witnesses
        if not known.own:
            return state.reasons
        why = Reason.ROUNDING if self.attacker.semantics_network is not self.attacker.exact else Reason.OPEN
        return state.reasons | dict.fromkeys((~known.correct).nonzero().flatten().tolist(), why)


def _chain(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends of boxes [P] and of smaller and smaller ones around their middles, [`CHAIN` P, d]."""
    half = ((high - low) / 2).repeat(len(CHAIN), 1)
    half *= torch.tensor(CHAIN, device=half.device).exp2().repeat_interleave(len(low)).unsqueeze(1)
    middle = ((low + high) / 2).repeat(len(CHAIN), 1)
    return middle - half, middle + half


def _open_boxes(state: SearchState, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends of the recorded open boxes of these images."""
    low, high = torch.tensor([state.open_box[row] for row in rows.tolist()], dtype=torch.float64).unbind(1)
    return low, high


class RangeSpec:
    """No output leaves the certified range: the union of the bounds over all boxes, which holds whenever the search
    stops.

    A box is done when its bounds exceed the inner range by at most the tolerance; without a tolerance, at once. Where
    the bounds of a single point exceed it already, by rounding alone, the search goes on with as much less to reach
    (`SearchState.missing`), and the image is unknown.
    """

    def __init__(
        self,
        prover: RangeProver,
        sampler: OutputSampler,
        tolerance: Tolerance | None,
        shape: tuple[int, ...],
        answers: Tensor | None = None,
        max_seconds: float | None = None,
    ) -> None:
        """``shape``: images and outputs; ``answers``: the target values, if known; ``max_seconds``: what an image may take."""
        self.prover, self.sampler, self.tolerance, self.answers = prover, sampler, tolerance, answers
        self.max_seconds = max_seconds
        self.images, self.objectives, self.cost = shape[0], 2 * shape[1], CostModel(1, 1.0)

    def __len__(self) -> int:
        return self.images

    def bound(
        self, state: SearchState, rows: Tensor, low: Tensor, high: Tensor, precise: Tensor | None = None, size: int = 0
    ) -> Outcome:
        return self.prover.bound(rows, low, high, self._until(state, rows))

    def _until(self, state: SearchState, rows: Tensor) -> float | None:
        """Return the end of what these images have left together."""
        if self.max_seconds is None:
            return None
        left = (self.max_seconds - state.seconds[rows.unique()]).clamp(min=0)
        return time.perf_counter() + float(left.sum())

    def inherit(self, bound: Tensor, parent: Tensor) -> Tensor:
        return torch.maximum(bound, parent)

    def done(self, state: SearchState, rows: Tensor, bound: Tensor) -> Tensor:
        if self.tolerance is None:
            return torch.ones_like(rows, dtype=torch.bool)
        wanted = self._wanted(state.witnesses, self.tolerance).to(rows.device)[rows]
        if state.missing is not None:
            wanted = wanted - state.missing[rows]
        return (bound >= wanted).all(1)

    @staticmethod
    def _wanted(known: InnerRange, tolerance: Tolerance) -> Tensor:
        """Return the bounds [N, C] at which the boxes of each image are done.

        An output that hardly moves needs no range tighter than a quarter of the mean tolerance.
        """
        half, middle = (known.high - known.low) / 2, (known.high + known.low) / 2
        slack = tolerance.relative * torch.maximum(half, half.mean(0) / 4) + 1e-6 * (1 + middle.abs())
        half = (half + slack).clamp(min=tolerance.absolute / 2)
        return torch.cat([middle - half, -(middle + half)], 1)

    def probe(self, state: SearchState, rows: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
        self.sampler.evaluate(state.witnesses, rows.cpu(), middle.cpu())
        return rows[:0], middle[:0]

    def confirm(self, state: SearchState, rows: Tensor, parameters: Tensor) -> None:
        """Do nothing: ranges have no counterexamples."""

    def falsified(self, state: SearchState) -> Tensor:
        return torch.zeros_like(state.certified)

    def hopeless(self, state: SearchState, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """No image is: other boxes still tighten its range. But no more is asked for than what these boxes can reach."""
        short = self._short_of(state, rows, low, high, self._until(state, rows))
        if bool((short > 0).any()):
            if state.missing is None:
                state.missing = torch.zeros_like(state.proved)
            # elsewhere the rounding may be larger; then twice as much is allowed the next time
            state.missing[rows] = torch.maximum(state.missing[rows], 2 * short)
            for k in (short > 0).any(1).nonzero().flatten().tolist():
                state.open_box[int(rows[k])] = (tuple(low[k].tolist()), tuple(high[k].tolist()))
        return torch.zeros_like(rows, dtype=torch.bool)

    def _short_of(
        self,
        state: SearchState,
        rows: Tensor,
        low: Tensor,
        high: Tensor,
        until: float | None,
        network: Network | None = None,
    ) -> Tensor:
        """Return by how much bounds miss the tolerance in every box around the middles of these, and there alone, [P, C];
        0 where one does not, or where it was too late to tell."""
        if self.tolerance is None or self.prover.method == "fgv":  # it has no forms to go back through
            return low.new_zeros(len(rows), self.objectives)
        middle = (low + high) / 2
        wanted = self._wanted(state.witnesses, self.tolerance).to(rows.device)[rows]
        short = wanted - self.prover.bound(rows, middle, middle, until, network).bound
        for first, last in zip(*(ends.split(len(rows)) for ends in _chain(low, high)), strict=True):
            if not bool((short > 0).any()):
                break
            short = torch.minimum(short, wanted - self.prover.bound(rows, first, last, until, network).bound)
        late = until is not None and time.perf_counter() >= until
        return torch.zeros_like(short) if late else short.clamp(min=0)

    def open_images(self, state: SearchState) -> Tensor:
        return torch.arange(self.images, device=state.device)

    def exhaust(self, state: SearchState, tiling: Tiling, bounded: Pairs, waiting: Pairs) -> None:
        """Make leaves of all boxes; waiting ones have the bounds of their parents."""
        for pairs in (bounded, waiting):
            everything = torch.ones_like(pairs.image, dtype=torch.bool)
            state.settle(pairs.image, pairs.bound, everything, *tiling.bounds(pairs.boxes))
        state.exhausted[bounded.image] = True
        if self.tolerance is not None:
            short = (
                self._wanted(state.witnesses, self.tolerance).to(state.device)[bounded.image] - bounded.bound
            ).amax(1)
            low, high = tiling.bounds(bounded.boxes)
            for image in bounded.image.unique().tolist():
                mine = (bounded.image == image).nonzero().flatten()
                worst = mine[short[mine].argmax()]
                state.open_box[image] = (tuple(low[worst].tolist()), tuple(high[worst].tolist()))

    def tally(self, state: SearchState) -> dict[Verdict, int]:
        wide = int((state.certified & self._wide(state)).sum())
        return {
            Verdict.CERTIFIED: int(state.certified.sum()) - wide,
            Verdict.UNKNOWN: int(state.exhausted.sum()) + wide,
        }

    def _wide(self, state: SearchState) -> Tensor:
        """Return the mask of images whose ranges are not as tight as asked for because less was asked for later."""
        if state.missing is None or self.tolerance is None:
            return torch.zeros_like(state.exhausted)
        wanted = self._wanted(state.witnesses, self.tolerance).to(state.device)
        return (state.missing > 0).any(1) & ~(state.proved >= wanted).all(1)

    def finish(self, state: SearchState) -> None:
        """Say of unknown images whether rounding alone, at a single point, keeps their bounds wide."""
        wide = self._wide(state)
        state.exhausted = state.exhausted | wide
        for row in state.exhausted.nonzero().flatten().tolist():
            try:
                if bool(wide[row]) or self._rounds_too_far(state, row, self.prover.network):
                    exact = self.prover.network is self.prover.exact
                    exact = exact or self._rounds_too_far(state, row, self.prover.exact)
                    state.reasons[row] = Reason.OPEN if exact else Reason.ROUNDING
            except (RuntimeError, MemoryError) as error:  # no reason is worth the ranges, which are proved
                if not is_out_of_memory(error):
                    raise

    def _rounds_too_far(self, state: SearchState, row: int, network: Network) -> bool:
        """Return whether bounds of the middle of an image's open box miss the tolerance, by the rounding of ``network``."""
        which = torch.tensor([row], device=state.device)
        low, high = (end.to(state.device) for end in _open_boxes(state, which))
        until = None if self.max_seconds is None else time.perf_counter() + LAST_LOOK
        return bool((self._short_of(state, which, low, high, until, network) > 0).any())

    def results(self, state: SearchState, tiling: Tiling, first: int, more_seconds: float) -> list[RangeResult]:
        known: InnerRange = state.witnesses
        inner_low, inner_high = self.sampler.confirmed(known)
        for numbers in (inner_low, inner_high):
            ensure_finite(numbers, first)
        lower, upper = state.proved.cpu().chunk(2, 1)
        upper = -upper
        outside = ((inner_low < lower) | (inner_high > upper)).any(1)  # of what is proved: the room below would hide it
        width = upper - lower
        least = LEAST_ROOM * (1 + torch.maximum(lower.abs(), upper.abs()))
        room = torch.where(width < torch.inf, torch.maximum(ROOM * width, least), 0.0)
        lower, upper = lower - room, upper + room
        grid = tuple(tiling.base.tolist())
        trees, halved = state.splits.trees(grid)
        every = torch.ones(len(self), dtype=torch.bool)
        state.check(tiling, every, every, outside, leaf_counts(tiling, halved))
        seconds = (state.seconds + more_seconds).tolist()
        return [
            RangeResult(
                image=first + k,
                prediction=tuple(known.prediction[k].tolist()),
                lower=tuple(lower[k].tolist()),
                upper=tuple(upper[k].tolist()),
                inner_lower=tuple(inner_low[k].tolist()),
                inner_upper=tuple(inner_high[k].tolist()),
                lowest_at=tuple(map(tuple, known.lowest_at[k].tolist())),
                highest_at=tuple(map(tuple, known.highest_at[k].tolist())),
                value=None if self.answers is None else tuple(self.answers[k].tolist()),
                complete=not bool(state.exhausted[k]),
                grid=grid,
                tree=trees[k],
                boxes=int(state.boxes[k]),
                seconds=seconds[k],
                reason=state.reasons.get(k) if bool(state.exhausted[k]) else None,
            )
            for k in range(len(self))
        ]
