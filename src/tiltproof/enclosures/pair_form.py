"""Affine forms whose first columns have more bits than a float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm, absolute_sum, added_lengths, row_length
from tiltproof.enclosures.pairs import Pair, U


@dataclass
class PairForm:
    """The set of head + tail: columns of center and first symbols [k, P, ...], and a form without center over other symbols."""

    head: Pair
    tail: AffineForm

    def whole(self) -> AffineForm:
        """The same set or a little more as a form: head first, low parts in the radii."""
        lows = absolute_sum(self.head.low) + self.tail.center.abs()  # which is zero
        stack = torch.cat([self.head.high, self.tail.slopes])
        form = with_errors(self.tail, lows * (1 + 64 * U))
        return AffineForm(stack, form.radius, form.unit).with_ball(form.ball)

    @classmethod
    def of(cls, form: AffineForm, columns: int) -> PairForm:
        """Split a form's stack."""
        stack = torch.cat([torch.zeros_like(form.stack[:1]), form.stack[columns:]])
        return cls(Pair.of(form.stack[:columns]), AffineForm(stack, form.radius, form.unit).with_ball(form.ball))


def with_errors(form: AffineForm, errors: Tensor) -> AffineForm:
    """The form with errors of at most these sizes [P, ...], or sizes for each channel, in what is left over."""
    errors = errors.expand(form.shape)
    ball = None if form.ball is None else added_lengths(form.ball, row_length(errors), form.unit)
    return AffineForm(form.stack, (form.radius + errors) * (1 + 4 * form.unit), form.unit).with_ball(ball)
