"""Bounds of the margins of rules (`rules`) over boxes; the plain rule of labels has a prover of its own, `prover.Prover`."""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, GatheredForms
from tiltproof.network import (
    BackwardCost,
    Network,
    better,
    forward_shares,
    margins,
    refine_between,
    refine_outputs,
    run,
    separate_margins,
)
from tiltproof.verify.inputs import Inputs
from tiltproof.verify.prover import BACKWARD_LOSS, BackwardPolicy, CostModel, MarginOutcome, Prover, proved
from tiltproof.verify.rules import ClassRule, Rivals, RowRule, Rule

Forms = dict[str, AffineForm]


def prover_for(inputs: Inputs, method: str, rule: Rule | None) -> Prover:
    """Return the prover of a rule; None and the network's own answer: that of labels."""
    if isinstance(rule, ClassRule):
        return ClassRuleProver(inputs, method, rule)
    return RowRuleProver(inputs, method, rule) if isinstance(rule, RowRule) else Prover(inputs, method)


def _several(network: Network, forms: Forms, shares: Tensor) -> bool:
    """Whether there are parameters to choose from, and pixels that are known by their slopes; intervals have none."""
    return shares.shape[1] > 1 and forms[network.input].symbols > 1


class Table:
    """Lower bounds of single differences, and what a backward pass may make of them: float64 [P, T, K], for allowed
    class t against class k (of rows of a matrix: [P, 1, R]). NaN counts as minus infinity: never proved."""

    def __init__(self, lower: Tensor, first_order: Tensor, radius: Tensor) -> None:
        self.lower, self.first_order, self.radius = proved(lower), first_order.double(), radius.double()
        self.likely = proved(self.first_order - BACKWARD_LOSS * self.radius)

    @staticmethod
    def of(form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """Return lower bounds, first-order parts and radii of a form; a negative radius can only come from a wrong
        rule, and proves nothing."""
        first_order = form.center - form.slopes.abs().sum(0)
        return torch.where(form.radius >= 0, form.lower.double(), torch.nan), first_order, form.radius


class RuleProver(Prover):
    """Lower bounds of the margin of a rule."""

    def bound(
        self,
        images: Tensor,
        low: Tensor,
        high: Tensor,
        policy: BackwardPolicy,
        dtype: torch.dtype | None = None,
        network: Network | None = None,
    ) -> MarginOutcome:
        """As that of `Prover`."""
        with torch.no_grad():
            dtype = dtype or self.dtype
            network = network or self.networks[dtype]
            pixels = self._pixels(images, low, high, dtype)
            forms = run(network, pixels, lasting=low.shape[1], outputs=self.method == "fgv" or self._needs_outputs())
            return self._margins(network, forms, images, self.allowed(policy), low.shape[1])

    def _needs_outputs(self) -> bool:
        raise NotImplementedError

    def _margins(
        self, network: Network, forms: Forms, images: Tensor, policy: BackwardPolicy, parameters: int
    ) -> MarginOutcome:
        raise NotImplementedError

    def _outcome(
        self, network: Network, forms: Forms, bound: Tensor, forward: Tensor, passes: Tensor, shares: Tensor
    ) -> MarginOutcome:
        """Return the outcome, with branching scores for open boxes that have none."""
        if _several(network, forms, shares) and self.method != "fgv":
            rows = (~(bound > 0) & (shares.sum(1) == 0)).nonzero().flatten()
            if len(rows):
                shares[rows] = forward_shares(network, GatheredForms(forms, rows)).to(shares)
        return MarginOutcome(bound, forward, passes, shares)


class ClassRuleProver(RuleProver):
    """Lower bounds of the margin of a `ClassRule`.

    Only a few allowed classes are tried in each box. For each other class the best of their lower bounds counts, and
    the order statistic of these is a lower bound of the margin, which has the maximum over all allowed classes.
    """

    def __init__(self, inputs: Inputs, method: str, rule: ClassRule) -> None:
        super().__init__(inputs, method)
        self.rule = rule
        self.single = rule.single

    def _needs_outputs(self) -> bool:
        return not self.single

    def _rivals(self, network: Network, forms: Forms, images: Tensor) -> Rivals:
        if not self.single:
            return self.rule.rivals(forms[network.output].center, images)
        return self.rule.rivals(self.rule.allowed.to(images.device)[images].double(), images)

    def _margins(
        self, network: Network, forms: Forms, images: Tensor, policy: BackwardPolicy, parameters: int
    ) -> MarginOutcome:
        rivals = self._rivals(network, forms, images)
        table = self._table(network, forms, rivals)
        forward = self._margin(table.lower, images)
        bound, passes = forward, torch.zeros_like(forward)
        shares = torch.zeros(len(images), parameters, dtype=torch.float64, device=forward.device)
        if self.method == "fgv":  # the paper's verifier knows the forward pass alone
            return MarginOutcome(bound, forward, passes, shares)
        decisive = self._decisive(table, rivals)
        first_order, radius = (each.flatten(1).gather(1, decisive) for each in (table.first_order, table.radius))
        promising = policy.promising(~(forward > 0), first_order.flatten(), radius.flatten())
        rows = promising.chosen
        if len(rows):
            self._refine(network, forms, images, rivals, table, rows, decisive, passes, shares)
            bound = self._margin(table.lower, images)
            policy.learn(promising, bound[rows] > 0)
        return self._outcome(network, forms, bound, forward, passes, shares)

    def _table(self, network: Network, forms: Forms, rivals: Rivals) -> Table:
        columns = []
        for own in rivals.own.unbind(1):
            if self.method == "fgv":
                lower = separate_margins(forms[network.output], own).double()
                columns.append((lower, lower, torch.zeros_like(lower)))
            else:
                columns.append(Table.of(margins(network, forms, own)))
        lower, first_order, radius = (torch.stack(each, 1) for each in zip(*columns, strict=True))
        counts = rivals.counts.unsqueeze(2)  # others fill up rows with fewer; they are not allowed
        return Table(torch.where(counts, lower, -torch.inf), torch.where(counts, first_order, -torch.inf), radius)

    def _margin(self, lower: Tensor, images: Tensor) -> Tensor:
        """Return lower bounds [P] of the margin from those of differences [P, T, K]: the best allowed class for each."""
        return self.rule.ordered(lower.amax(1), images)

    def _ranked(self, table: Table, rivals: Rivals) -> Tensor:
        """Return the classes of each box, those least likely to be beaten first; allowed and beaten ones last."""
        beaten = rivals.allowed | (table.lower > 0).any(1)
        return table.likely.amax(1).masked_fill(beaten, torch.inf).argsort(dim=1, stable=True)

    def _decisive(self, table: Table, rivals: Rivals) -> Tensor:
        """Return the position [P, 1] in [T * K] of the difference that decides a box: the last class that cannot be
        spared, against the allowed class most likely to beat it."""
        other = self._ranked(table, rivals)[:, self.rule.spare, None]
        own = table.likely.gather(2, other.unsqueeze(1).expand(-1, table.likely.shape[1], -1)).argmax(1)
        return own * table.likely.shape[2] + other

    def _refine(
        self,
        network: Network,
        forms: Forms,
        images: Tensor,
        rivals: Rivals,
        table: Table,
        rows: Tensor,
        decisive: Tensor,
        passes: Tensor,
        shares: Tensor,
    ) -> None:
        """Take differences of the boxes ``rows`` through backward passes: the decisive ones; where these are proved, the
        rest with their likeliest allowed classes; then, class by class, with the next ones."""
        classes = table.lower.shape[2]
        several = _several(network, forms, shares)

        def refine(boxes: Tensor, own: Tensor, other: Tensor, shared: bool) -> None:
            most = max(self.cost.least_margins, len(images))
            for part in torch.arange(len(boxes), device=boxes.device).split(most):
                box, a, j, cost = boxes[part], own[part], other[part], BackwardCost()
                found, share = refine_between(network, forms, box, rivals.own[box, a], j, 0.0, shared, cost)
                table.lower[box, a, j] = better(table.lower[box, a, j], proved(found.double()))
                passes.index_add_(0, box, cost.passes.to(passes))
                if shared:
                    shares[box] = share.to(shares)

        place = decisive[rows, 0]
        refine(rows, place // classes, place % classes, several)
        tried = torch.zeros_like(table.lower, dtype=torch.bool)
        tried.flatten(1)[rows, place] = True
        spare = self.rule.spare
        for number in range(rivals.own.shape[1] + bool(spare)):
            left = ~(rivals.allowed | (table.lower > 0).any(1))[rows]
            fresh = ~tried[rows] & (table.first_order[rows] > 0)
            can = left & fresh.any(1)
            # more classes than may be spared are left, but not more that nothing can help with
            worthwhile = (left.sum(1) > spare) & ((left & ~can).sum(1) <= spare)
            wanted = can & worthwhile.unsqueeze(1)
            if spare and not number:  # the least likely ones are spared first
                wanted &= self._ranked(table, rivals)[rows].argsort(1) >= spare
            box, other = wanted.nonzero(as_tuple=True)
            if len(box):
                own = table.likely[rows].masked_fill(~fresh, -torch.inf).argmax(1)[box, other]
                refine(rows[box], own, other, False)
                tried[rows[box], own, other] = True


class RowRuleProver(RuleProver):
    """Lower bounds of the margin of a `RowRule`, in float64, as those of outputs are: rows may cancel.

    The backward pass starts with the rows as coefficients of the outputs: C_r y >= L_r on the box, so that the margin
    is at least min_r L_r - d_r. The difference is rounded once; the comparison with zero is exact.
    """

    def __init__(self, inputs: Inputs, method: str, rule: RowRule) -> None:
        super().__init__(inputs, method)
        self.rule, self.dtype = rule, torch.float64
        self.networks = {torch.float64: self.networks[torch.float64]}
        self.cost = CostModel.of(inputs, self.networks[torch.float64])

    def _needs_outputs(self) -> bool:
        return True

    def _margins(
        self, network: Network, forms: Forms, images: Tensor, policy: BackwardPolicy, parameters: int
    ) -> MarginOutcome:
        form = self.rule.forward(forms[network.output], images)
        lower, first_order, radius = Table.of(form)
        lower = proved(lower)
        forward = lower.amin(1)
        passes = torch.zeros_like(forward)
        shares = torch.zeros(len(images), parameters, dtype=torch.float64, device=forward.device)
        if self.method == "fgv":
            return MarginOutcome(forward, forward, passes, shares)
        likely = proved(first_order - BACKWARD_LOSS * radius)
        worst = likely.masked_fill(lower > 0, torch.inf).argmin(1, keepdim=True)
        ends = first_order.gather(1, worst).flatten(), radius.gather(1, worst).flatten()
        promising = policy.promising(~(forward > 0), *ends)
        if len(promising.chosen):
            self._refine(network, forms, images, promising.chosen, lower, passes, shares)
            policy.learn(promising, lower.amin(1)[promising.chosen] > 0)
        return self._outcome(network, forms, lower.amin(1), forward, passes, shares)

    def _refine(
        self,
        network: Network,
        forms: Forms,
        images: Tensor,
        rows: Tensor,
        lower: Tensor,
        passes: Tensor,
        shares: Tensor,
    ) -> None:
        matrix, bounds = self.rule.of(images)
        box, row = (~(lower[rows] > 0)).nonzero(as_tuple=True)
        box, most, several = rows[box], max(self.cost.least_margins, len(images)), _several(network, forms, shares)
        for part in torch.arange(len(box), device=box.device).split(most):
            b, r, cost = box[part], row[part], BackwardCost()
            found, share = refine_outputs(network, forms, b, matrix[b, r], None, several, cost)
            less = found - bounds[b, r]
            less = less - less.abs() * 2.0**-51  # of the rounding of the difference
            lower[b, r] = better(lower[b, r], proved(less))
            passes.index_add_(0, b, cost.passes.to(passes))
            if several:
                shares.index_add_(0, b, share.to(shares))
