"""Bounds for pairs of images and parameter boxes: pixels, forward, and CROWN back-substitution where forward fails."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, GatheredForms
from tiltproof.enclosures.kinks import with_symbols
from tiltproof.network import (
    BackwardCost,
    Network,
    better,
    forward_shares,
    is_deep,
    margins,
    refine,
    refine_outputs,
    run,
    separate_margins,
    shallow_share,
)
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.eight_bits import rounded_form
from tiltproof.runtime.batch_size import fewest_together, pair_bytes
from tiltproof.verify.deep_prover import DeepProver
from tiltproof.verify.inputs import Inputs

BACKWARD_LOSS = 0.5
"""Share of a margin's remainder that a backward pass does not win back: 0.3 to 0.6 on the way to a bound near zero. Orders classes."""

DEEP_BOXES = 8
"""Boxes of a deep network bounded per step of the search; each takes up to seconds."""

NOISE_BOXES = 8
"""With noise, boxes bounded per step of the search; those that stay open take up to seconds each."""
NOISE_BYTES = 2**30
"""Most memory for the forms of a box whose pixels have symbols of their own."""

MARGINS_PER_PASS = 64
ENTRIES_PER_PASS = 2**22
"""Most entries of the directions of a backward pass from outputs."""
"""Bounds of outputs per backward pass, where there are fewer pairs than that."""


@dataclass
class Outcome:
    """For each pair: lower bounds [P, C] of the objectives, and the branching score of each parameter [P, d]."""

    bound: Tensor
    shares: Tensor


@dataclass
class MarginOutcome:
    """For each pair: a lower bound of the margin [P], the bound of the forward pass alone, the number of backward
    passes in units of whole ones (most margins are proved after a fraction of one), and branching scores [P, d],
    zero where the forward pass was enough."""

    bound: Tensor
    forward: Tensor
    passes: Tensor
    shares: Tensor


class Prover:
    """Lower bounds of classification margins, in the model's own precision or in float64.

    The rounding errors that a float32 bound must absorb grow with the length of sums and can reach a few hundredths
    of a margin. A box that is open only because of them is bounded again in float64, where they vanish. Float64 forms
    are quadratic if there is a single parameter: the second order of pixels is the other reason why bounds of deep
    networks are wide.
    """

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.labels, self.transform, self.method = inputs.labels, inputs.transform, method
        self.images64 = inputs.images64
        self.dtype = inputs.images.dtype
        self.networks = {dtype: inputs.network_as(dtype, inputs.semantics) for dtype in {self.dtype, torch.float64}}
        self.quadratic = True  # benchmarks switch it off to compare
        self.eight_bits = False  # whether bounds are those of pixels rounded to 8 bits
        self.cost = CostModel.of(inputs, self.networks[self.dtype])
        self.deep: DeepProver | None = None
        if (
            method == "affine"
            and is_deep(self.networks[torch.float64], perhaps=True)
            and DeepProver.suits(self.transform)
        ):
            self.deep = DeepProver(self.images64, self.labels, self.transform)
            self.cost = replace(self.cost, most_boxes=DEEP_BOXES)
        self.backward = True
        self.pixel_symbols, self.together = 0, 1
        if self.transform.noise:
            self.cost = replace(self.cost, most_boxes=NOISE_BOXES)
            if method == "affine":
                self._choose_pixel_symbols(inputs)

    def _choose_pixel_symbols(self, inputs: Inputs) -> None:
        """Choose how many pixels of a box get symbols of their own, and of how many boxes at once, by their memory."""
        room, parameters = min(NOISE_BYTES, inputs.memory.room() // 2), len(self.transform.parts)
        count = inputs.images[0].numel()
        while count and pair_bytes(inputs.network, parameters + count) > room:
            count //= 2
        self.pixel_symbols = count
        if count:
            self.together = max(1, room // pair_bytes(inputs.network, parameters + count))

    def without_backward(self) -> Prover:
        """Prove by forward passes alone, as the checker does: it can bisect boxes to make up for backward passes, but not noise, and
        a proved radius ends where nothing is left of its margin."""
        self.backward = False
        return self

    def allowed(self, policy: BackwardPolicy) -> BackwardPolicy:
        return policy if self.backward else NoBackward.on(self.images64.device)

    def take_for_shallow(self) -> None:
        """Bound this network as any other, however fast its radii might grow."""
        self.deep, self.cost = None, replace(self.cost, most_boxes=CostModel.most_boxes)

    def _pixels(self, images: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> AffineForm:
        """Bounds of the pixels of pairs, as in `bound`."""
        quadratic = self.quadratic and dtype == torch.float64
        exact = torch.float64 if self.eight_bits else dtype
        form = pair_bounds(
            self.images64, images, self.transform, self.method, low, high, quadratic=quadratic, dtype=exact
        )
        return rounded_form(form).to(dtype) if self.eight_bits else form

    @torch.no_grad()
    def bound(
        self,
        images: Tensor,
        low: Tensor,
        high: Tensor,
        policy: BackwardPolicy,
        dtype: torch.dtype | None = None,
        network: Network | None = None,
    ) -> MarginOutcome:
        """``images`` [P] are indices; ``low`` and ``high`` [P, d] float64, on the prover's device. ``policy`` learns from the outcome.
        ``network``: in ``dtype``; by default that of the certified semantics."""
        if self.deep is not None:
            deep = self.deep.bound(images, low, high, network or self.networks[torch.float64])
            return MarginOutcome(deep.bound, deep.bound, torch.zeros_like(deep.bound), torch.zeros_like(low))
        dtype = dtype or self.dtype
        network = network or self.networks[dtype]
        pixels = self._pixels(images, low, high, dtype)
        outcome = self._of_pixels(network, pixels, images, low.shape[1], self.allowed(policy))
        if self.pixel_symbols:
            self._follow_noise(outcome, network, pixels, images)
        return outcome

    def _follow_noise(self, outcome: MarginOutcome, network: Network, pixels: AffineForm, images: Tensor) -> None:
        """Bound the open boxes again, with a symbol for the noise of each pixel: it then goes through the layers as its own
        linear function, W d instead of |W| |d|, which is worth far more than it costs.

        Without backward passes, which would prove somewhat more: the checker knows none, and it cannot halve noise to make up for
        them."""
        rows = (~(outcome.bound > 0)).nonzero().flatten()
        for some in rows.split(self.together) if len(rows) else ():
            wide = with_symbols(pixels[some], self.pixel_symbols)
            wide.ball = None
            found = self._of_pixels(network, wide, images[some], 0, None)
            outcome.bound[some] = better(outcome.bound[some], found.bound)  # both are proved

    def _of_pixels(
        self, network: Network, pixels: AffineForm, images: Tensor, parameters: int, policy: BackwardPolicy | None
    ) -> MarginOutcome:
        """Bound margins for these pixels, whose first ``parameters`` symbols are the box's parameters. Without ``parameters`` no
        symbol is pruned, and there are no branching scores; without ``policy`` no backward passes."""
        cost = self.cost
        several = parameters > 1 and pixels.symbols > 1  # parameters to choose from, and known by their slopes
        labels = self.labels[images]
        forms = run(network, pixels, lasting=parameters or None, outputs=self.method == "fgv")
        shares = torch.zeros(len(images), parameters, dtype=torch.float64, device=pixels.device)
        if self.method == "fgv":
            bound = _least(separate_margins(forms[network.output], labels).double())
            return MarginOutcome(bound, bound, torch.zeros_like(bound), shares)
        form = margins(network, forms, labels)
        # a negative radius can only come from a wrong rule: such a bound proves nothing
        lower = torch.where(form.radius >= 0, form.lower.double(), torch.nan).scatter(1, labels.unsqueeze(1), torch.inf)
        forward = proved(lower).amin(1, keepdim=True)
        first_order = form.center - form.slopes.abs().sum(0)
        likely = (first_order - BACKWARD_LOSS * form.radius).double()
        worst = torch.where(lower > 0, torch.inf, proved(likely)).argmin(1, keepdim=True)
        forward, first_order, radius = (
            each.flatten() for each in (forward, first_order.gather(1, worst), form.radius.gather(1, worst))
        )
        passes = torch.zeros_like(forward)
        if policy is None:
            return MarginOutcome(_least(lower), forward, passes, shares)
        promising = policy.promising(~(forward > 0), first_order, radius)
        rows = promising.chosen
        if len(rows):
            refinement = ClassRefinement(network, forms, labels, rows, lower[rows], likely[rows])
            # as many margins as pairs take no more memory than the forward pass did
            share = refinement.work(
                max(cost.least_margins, len(pixels)), cost.speculative_margins, cost.first_test_share
            )
            lower[rows], passes[rows] = refinement.best, refinement.passes
            policy.learn(promising, _least(lower[rows]) > 0)
            if several:
                shares[rows] = share
        bound = _least(lower)
        if several:  # boxes without a backward pass, or whose worst class is proved and another is not
            rows = (~(bound > 0) & (shares.sum(1) == 0)).nonzero().flatten()
            if len(rows):
                shares[rows] = forward_shares(network, GatheredForms(forms, rows))
        return MarginOutcome(bound, forward, passes, shares)


class RangeProver:
    """Bounds of a network's outputs, in float64: unlike margins, of which only the sign counts, the rounding errors
    of float32 would widen every range."""

    def __init__(self, inputs: Inputs, method: str) -> None:
        self.transform, self.method, self.images64 = inputs.transform, method, inputs.images64
        self.device = inputs.images.device
        self.network = inputs.network_as(torch.float64, inputs.semantics)
        self.exact = inputs.network_as(torch.float64, "real")

    @torch.no_grad()
    def bound(
        self, images: Tensor, low: Tensor, high: Tensor, until: float | None = None, network: Network | None = None
    ) -> Outcome:
        """Return lower bounds [P, 2 K] of outputs and negated outputs. ``images`` [P] are indices; ``low``, ``high``
        [P, d] float64.

        ``until``: from this time of `time.perf_counter` on, outputs keep the bounds of the forward pass; ``network``:
        instead of that of the semantics.
        """
        network = network or self.network
        pixels = pair_bounds(self.images64, images, self.transform, self.method, low, high, quadratic=True)
        forms = run(network, pixels, lasting=low.shape[1])
        output = forms[network.output]
        lower, upper = output.lower, output.upper
        shares = torch.zeros(len(images), low.shape[1], dtype=torch.float64, device=low.device)
        if self.method != "fgv":  # the paper's verifier knows the forward pass alone
            more, less, shares = self._backward(network, forms, shares, until)
            # the better of two proved bounds; a NaN never replaces a number
            lower = torch.where(more > lower, more, lower)
            upper = torch.where(less < upper, less, upper)
        # a negative radius can only come from a wrong rule: such a bound proves nothing
        sound = output.radius >= 0
        lower = torch.where(sound & ~lower.isnan(), lower, -torch.inf)
        upper = torch.where(sound & ~upper.isnan(), upper, torch.inf)
        return Outcome(torch.cat([lower, -upper], 1), shares)

    def _backward(
        self, network: Network, forms: dict[str, AffineForm], shares: Tensor, until: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return lower and upper bounds of the outputs, several per pass if pairs are few, and branching scores; NaN for
        outputs that it was too late for."""
        count, outputs = forms[network.output].shape
        pairs = torch.arange(count, device=shares.device)
        if shares.shape[1] > 1 and forms[network.input].symbols > 1:
            shares = forward_shares(network, forms)
        ends = torch.full((2, count, outputs), torch.nan, dtype=torch.float64, device=shares.device)
        together = max(1, min(MARGINS_PER_PASS // count, ENTRIES_PER_PASS // (count * outputs)))
        for some in torch.arange(outputs, device=shares.device).split(together):
            if until is not None and time.perf_counter() >= until:
                break
            units = torch.zeros(len(some), outputs, dtype=torch.float64, device=shares.device)
            units.scatter_(1, some.unsqueeze(1), 1.0)
            rows, each = pairs.repeat(len(some)), units.repeat_interleave(count, 0)
            for end, directions in zip(ends, (each, -each), strict=True):
                bound = refine_outputs(network, forms, rows, directions)[0]
                end.index_copy_(1, some, bound.view(len(some), count).mT)
        return ends[0], -ends[1], shares


def _least(lower: Tensor) -> Tensor:
    """Return the minimum of each row; NaN counts as minus infinity: never proved."""
    return proved(lower).amin(1)


def proved(lower: Tensor) -> Tensor:
    """Return lower bounds with NaN as minus infinity: never proved."""
    return lower.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


# Backward policy and cost model: which boxes and classes a backward pass refines. These choices never change a bound.
# A backward pass can win back the remainder r of the margin's form, but not the first-order part f = center - sum
# |slopes|. Where f <= 0 it is therefore skipped. Elsewhere its chance of success depends on r / f, and
# `BackwardPolicy` counts successes by that ratio. The class that counts is the one that is likely to be worst after
# the pass, not before it. The chance and the number of boxes that justify a pass depend on its cost and on how soon
# halves are proved without one (`branch_and_bound.backward_pays`).

STEP_PRODUCTS = 2**36
"""Multiplications that a GPU performs in about the time of one step of the search."""
MOST_SPECULATIVE_BOXES = 16_384
SPECULATIVE_MARGINS = 2048

PASS_COST = 1.0
"""Cost of a backward pass of one margin through the whole network, in bounds of a box: 0.5 to 1.2 on a CPU."""
PASS_STEPS = 12e6
"""GPU: overhead of the host in a backward pass, as multiplications (networks of the paper's authors: 2.7 bounds of 7
million multiplications each, 0.8 of 25 million)."""
PASS_CALL = 2.5e10
"""GPU: fixed cost of a backward pass, as multiplications (5 ms, in which 3,800 boxes are bounded)."""
BUCKETS, TRIES, WORTHWHILE = 24, 32, 0.08
"""Buckets: half powers of two of r / f from 1/4 on; tries before a bucket may close; least success rate that keeps
one open."""


@dataclass(frozen=True)
class CostModel:
    """Cost of operations on a device: tuning numbers that steer the search and enter no bound."""

    least_margins: int
    """Refine at least this many margins per pass, if there are as many."""
    first_test_share: float
    """Share of the network's activations that a backward pass visits before its first early-exit test."""
    speculative_margins: int = 0
    """GPU: refine up to this many open margins per pass, even speculatively, because launches dominate."""
    speculative_boxes: int = 0
    """GPU: bound up to this many boxes per step, halves of halves included, because launches dominate."""
    pass_cost: float = PASS_COST
    """Cost of a backward pass of one margin, in bounds of a box."""
    pass_overhead: float = 0.0
    """Cost of a backward pass however few margins it takes, in bounds of a box."""
    most_boxes: int = 2**30
    """Bound at most this many boxes per step."""

    @classmethod
    def of(cls, inputs: Inputs, network: Network, device: torch.device | None = None) -> CostModel:
        """Return the numbers for ``network`` as it is bounded, by default on the device of the inputs."""
        parameters, device = len(inputs.transform.parts), device or inputs.images.device
        least, share = fewest_together(inputs.network, parameters), shallow_share(network)
        if device.type != "cuda":
            return cls(least, share)
        products = max(1, sum(operation.products for operation in network.operations))
        whole = products * (2 + parameters)
        boxes = min(MOST_SPECULATIVE_BOXES, STEP_PRODUCTS // products)
        return cls(least, share, SPECULATIVE_MARGINS, boxes, PASS_COST + PASS_STEPS / whole, PASS_CALL / whole)


@dataclass
class Promising:
    """The boxes that justify a backward pass, and the bucket of each."""

    chosen: Tensor
    bucket: Tensor


def _tally() -> Tensor:
    return torch.zeros(BUCKETS, dtype=torch.int64)


@dataclass
class BackwardPolicy:
    """Decides when a backward pass is worth its cost, from the success rate so far."""

    tried: Tensor = field(default_factory=_tally)
    won: Tensor = field(default_factory=_tally)
    least_success: float = WORTHWHILE
    """Success rate that keeps a bucket open."""
    least_boxes: int = 0
    """Boxes in open or undecided buckets that justify a pass."""

    @classmethod
    def on(cls, device: torch.device) -> BackwardPolicy:
        return cls(_tally().to(device), _tally().to(device))

    def promising(self, opened: Tensor, first_order: Tensor, remainder: Tensor) -> Promising:
        """Select from the ``opened`` boxes, given by f and r: all boxes of an open bucket, and a few of a bucket with
        few tries."""
        ratio = torch.where(first_order > 0, remainder / first_order, torch.inf).double()
        bucket = (2 * ratio.log2() + 4).nan_to_num(posinf=BUCKETS, neginf=0).clamp(0, BUCKETS).long()
        bucket = torch.where(opened, bucket, BUCKETS)
        order = bucket.argsort(stable=True)
        count = _counts(bucket, BUCKETS + 1)
        place = torch.empty_like(order)  # of each box among those of its bucket
        place[order] = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[bucket[order]]
        worthwhile = (self.won >= self.least_success * self.tried) & (self.tried >= TRIES)
        most = torch.where(worthwhile, len(order), (TRIES - self.tried).clamp(min=0))
        most = most * ((count[:-1] * (most > 0)).sum() >= self.least_boxes)
        most = torch.cat([most, most.new_zeros(1)])  # the last bucket: hopeless, or proved
        where = (place < most[bucket]).nonzero().flatten()
        return Promising(where, bucket[where])

    def learn(self, promising: Promising, proved: Tensor) -> None:
        self.tried += _counts(promising.bucket, BUCKETS)
        self.won.index_add_(0, promising.bucket, proved.long())


class EagerPolicy(BackwardPolicy):
    """Takes every open box through a backward pass that might prove it, and learns nothing."""

    def promising(self, opened: Tensor, first_order: Tensor, remainder: Tensor) -> Promising:
        where = (opened & (first_order > 0)).nonzero().flatten()
        return Promising(where, torch.zeros_like(where))

    def learn(self, promising: Promising, proved: Tensor) -> None:
        """Do nothing."""


class NoBackward(BackwardPolicy):
    """Takes no box through a backward pass."""

    def promising(self, opened: Tensor, first_order: Tensor, remainder: Tensor) -> Promising:
        none = opened.nonzero().flatten()[:0]
        return Promising(none, none)


def _counts(numbers: Tensor, most: int) -> Tensor:
    """Count each number below ``most`` without waiting for a GPU."""
    return numbers.new_zeros(most).index_add_(0, numbers, torch.ones_like(numbers))


# Backward passes for the classes of some boxes, in rounds: one class left open is enough for a box to fail, so that the likeliest come
# first, and the others only where those before them closed. This decides only where work goes, never a bound.

FEW = 10
"""Classes of a box that are refined first, alone."""
SHALLOW_MEMORY = 4
"""Memory per margin up to the first early-exit test, relative to a whole pass, which holds one layer at a time."""


class ClassRefinement:
    """Refine boxes ``rows`` of ``forms``. ``best`` [R, K] holds the best bound of each margin so far; ``likely`` [R,
    K], an estimate of the bound after a backward pass, orders them."""

    def __init__(
        self,
        network: Network,
        forms: Mapping[str, AffineForm],
        labels: Tensor,
        rows: Tensor,
        best: Tensor,
        likely: Tensor,
    ) -> None:
        self.network, self.forms, self.labels, self.rows, self.best = network, forms, labels, rows, best
        self.opened = ~(best > 0)
        likely = likely.nan_to_num(-torch.inf, posinf=torch.inf, neginf=-torch.inf).clamp(
            max=torch.finfo(likely.dtype).max
        )
        self.order = torch.where(self.opened, likely, torch.inf).argsort(dim=1, stable=True)
        self.place = self.order.argsort(1)
        # margins taken through a backward pass, and how many whole ones that came to for each box
        self.refined, self.passes = 0, torch.zeros_like(best[:, 0])

    def work(self, most: int, together: int, shallow: float) -> Tensor:
        """Run all rounds; return the first class's branching scores for each box (see `refine`).

        At most ``most`` margins are refined per pass. The first rounds are merged if they have at most ``together``
        margins. The last round may be large, and nearly all of its margins are proved at the first early-exit test;
        up to there they visit the fraction ``shallow`` of the activations, so more of them fit into a pass.
        """
        first = self._chosen(0, FEW)
        apart = len(first[0]) > min(together, most)
        if apart:
            first = self._chosen(0, 1)
        share = self._refine(*first, shared=True)
        # of each box, by whose first class it is: nothing waits for a GPU to count them
        share = torch.where((self.place[first] == 0).unsqueeze(1), share, 0.0)
        shares = share.new_zeros(len(self.best), share.shape[1]).index_add_(0, first[0], share)
        if apart:
            self._in_chunks(*self._chosen(1, FEW), most)
        else:
            # counted as if they had come one after the other, so that a GPU plans as a CPU does: a first class left open went all the way
            self.passes.masked_fill_(~(self.best.gather(1, self.order[:, :1]).flatten() > 0), 1.0)
        if self.best.shape[1] <= FEW:
            return shares
        boxes, classes = self._chosen(FEW, self.best.shape[1])
        self._in_chunks(boxes, classes, max(most, int(most / (SHALLOW_MEMORY * shallow))), shallow=True)
        still = ~(self.best[boxes, classes] > 0)
        self._in_chunks(boxes[still], classes[still], most)
        return shares

    def _chosen(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return (boxes, classes) of open classes at these positions of the order whose predecessors are all proved."""
        chosen = self.opened & (self.place < end)
        if begin:
            before = self.place < begin
            chosen = chosen & ~before & ~(before & ~(self.best > 0)).any(1, keepdim=True)
        boxes, classes = chosen.nonzero(as_tuple=True)
        return boxes, classes

    def _in_chunks(self, boxes: Tensor, classes: Tensor, most: int, shallow: bool = False) -> None:
        for box, other in zip(boxes.split(most), classes.split(most), strict=True):
            if len(box):
                self._refine(box, other, shallow=shallow)

    def _refine(self, boxes: Tensor, classes: Tensor, shared: bool = False, shallow: bool = False) -> Tensor:
        cost, rows = BackwardCost(), self.rows[boxes]
        bound, share = refine(self.network, self.forms, self.labels, rows, classes, 0.0, shared, cost, shallow)
        self.best[boxes, classes] = better(self.best[boxes, classes], bound)
        self.refined += len(boxes)
        self.passes.index_add_(0, boxes, cost.passes)
        return share
