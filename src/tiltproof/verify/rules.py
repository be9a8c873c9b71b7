"""Rules: what the outputs of each image must satisfy, as tensors, for the prover and the attack.

A rule turns outputs into one number per image, the margin, which is positive exactly if the rule holds strictly. Every
margin here is built from differences of outputs (or rows C y - d) by minima, maxima and order statistics, all of which
are monotone: put lower bounds of the differences in, and a lower bound of the margin comes out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import Network, Operation, margins, over_rows, run

RIVALS = 4
"""Allowed classes that are tried against the others in a box: those with the largest outputs at its center."""


@dataclass(frozen=True)
class OwnRule:
    """The label is the network's own answer to the untransformed image, and the rule that of labels."""

    def part(self, rows: slice) -> OwnRule:
        """Return the rule for some of the images."""
        return self


class Rivals(NamedTuple):
    """For boxes [P]: allowed classes [P, T] to try, which of them count [P, T], and the allowed classes [P, K]."""

    own: Tensor
    counts: Tensor
    allowed: Tensor


@dataclass(frozen=True)
class ClassRule:
    """Every class outside of the image's ``allowed`` ones [N, K], but at most ``spare``, is beaten by an allowed class.

    The margin is the (1 + spare)-th smallest, over the classes j that are not allowed, of max_a f_a - f_j over the
    allowed classes a.

    - ``spare`` 0: the margin is max_a f_a - max_j f_j. If it is positive, each f_j is strictly below some f_a, so that
      whichever largest output is picked, however ties are broken, an allowed class is picked. It suffices to prove
      f_a > f_j for one a for each j, another a for another j or another box: the maximum over a exceeds each of them.
    - allowed is the label alone: at most ``spare`` other classes are not strictly below the label, so the label is
      among the 1 + spare largest outputs, in whatever way ties are broken. Different boxes may spare different classes:
      the statement is about one parameter at a time.

    A tie, f_a = f_j, proves nothing and refutes nothing.
    """

    allowed: Tensor
    spare: int = 0

    def part(self, rows: slice) -> ClassRule:
        """Return the rule for some of the images."""
        return replace(self, allowed=self.allowed[rows])

    @property
    def single(self) -> bool:
        """Whether each image has a single allowed class."""
        return bool((self.allowed.sum(1) == 1).all())

    def ordered(self, margins: Tensor, rows: Tensor) -> Tensor:
        """Return the margin from those of all classes [P, K]; those of allowed ones do not count."""
        table = margins.masked_fill(self.allowed.to(rows.device)[rows], torch.inf)
        return table.kthvalue(1 + self.spare, dim=1).values if self.spare else table.amin(1)

    def margin(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return the margin of outputs [P, K] of images ``rows``."""
        allowed = self.allowed.to(rows.device)[rows]
        best = outputs.masked_fill(~allowed, -torch.inf).amax(1, keepdim=True)
        return self.ordered(best - outputs, rows)

    def rivals(self, centers: Tensor, rows: Tensor) -> Rivals:
        """Choose allowed classes to try, those with the largest ``centers`` [P, K]."""
        allowed = self.allowed.to(rows.device)[rows]
        most = min(RIVALS, int(allowed.sum(1).max()))
        own = centers.masked_fill(~allowed, -torch.inf).topk(most, dim=1).indices
        return Rivals(own, allowed.gather(1, own), allowed)

    def upper(self, network: Network, pixels: AffineForm, rows: Tensor) -> Tensor:
        """Return an upper bound of the margin over boxes.

        For a single allowed class it is the order statistic of upper bounds. Else, with j the class outside of the
        allowed ones that is largest at the center, the margin is at most max_a f_a - f_j = -min_a (f_j - f_a).
        """
        allowed = self.allowed.to(rows.device)[rows]
        if self.single:
            form = margins(network, run(network, pixels, outputs=False), allowed.int().argmax(1))
            return self.ordered(form.upper.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf), rows)
        forms = run(network, pixels)
        other = forms[network.output].center.masked_fill(allowed, -torch.inf).argmax(1)
        ahead = margins(network, forms, other).lower
        return -ahead.masked_fill(~allowed, torch.inf).amin(1)


@dataclass(frozen=True)
class RowRule:
    """Every row of C y > d holds for the outputs y; ``rows`` [M, R, K], ``bounds`` [M, R], and the image's one of these
    M, ``which`` [N]. The margin is the least C_r y - d_r."""

    rows: Tensor
    bounds: Tensor
    which: Tensor

    def part(self, rows: slice) -> RowRule:
        """Return the rule for some of the images."""
        return replace(self, which=self.which[rows])

    def of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows [P, R, K] and bounds [P, R] of these images, on their device."""
        which = self.which.to(images.device)[images]
        return self.rows.to(images.device)[which], self.bounds.to(images.device)[which]

    def margin(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return the margin of outputs [P, K] of images ``rows``."""
        matrix, bounds = self.of(rows)
        return ((matrix @ outputs.double().unsqueeze(2)).squeeze(2) - bounds).amin(1)

    def forward(self, output: AffineForm, images: Tensor) -> AffineForm:
        """Return the form of C y - d [P, R] from that of y, float64. Nothing of an evaluation is rounded here: the rows
        are applied to its outputs in exact arithmetic."""
        matrix, bounds = self.of(images)
        settings = {"weight": matrix, "bias": -bounds, "roundings": 0}
        return over_rows(Operation("rows", "linear", (), settings, tuple(matrix.shape[1:2])), output)

    def upper(self, network: Network, pixels: AffineForm, rows: Tensor) -> Tensor:
        """Return an upper bound of the margin over boxes."""
        return self.forward(run(network, pixels)[network.output], rows).upper.amin(1)


Rule = OwnRule | ClassRule | RowRule
