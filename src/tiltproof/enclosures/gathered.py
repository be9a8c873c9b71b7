"""Lazy row-gather view of a form: rows are copied when they are read, because a backward pass may exit before most layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from tiltproof.device import launch_bound
from tiltproof.enclosures.affine_form import AffineForm


class GatheredForm(AffineForm):
    """Rows ``rows`` (with repetitions, perhaps) of a form."""

    def __init__(self, form: AffineForm, rows: Tensor) -> None:
        self.form, self.rows = form, rows
        self.unit, self.quadratic = form.unit, form.quadratic
        self.lengths = self.norms = self._magnitude = self._reach = None

    @property
    def symbols(self) -> int:
        return self.form.symbols

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), *self.form.shape[1:]))

    @property
    def like(self) -> Tensor:
        return self.form.like

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def stack(self) -> Tensor:  # type: ignore[override]
        return _rows(self.form.stack, self.rows, 1)

    @cached_property
    def radius(self) -> Tensor:  # type: ignore[override]
        return _rows(self.form.radius, self.rows)

    @cached_property
    def center(self) -> Tensor:
        return self.stack[0] if "stack" in self.__dict__ else _rows(self.form.center, self.rows)

    def reach(self) -> Tensor:
        if self._reach is None and self.form._reach is not None:
            self._reach = _rows(self.form._reach, self.rows)
        return super().reach()

    def magnitude(self) -> Tensor:
        if self._magnitude is None and self.form._magnitude is not None:
            self._magnitude = _rows(self.form._magnitude, self.rows)
        return super().magnitude()

    def extent(self) -> Tensor:
        if self.form._reach is not None:
            self.reach()
        return super().extent()


def _rows(values: Tensor, rows: Tensor, dim: int = 0) -> Tensor:
    """Gather rows: by index_select, which is fast on a CPU; by brackets where they have to keep channels last in memory."""
    if launch_bound(values) or not values.is_contiguous():
        return values[(slice(None),) * dim + (rows,)]
    return values.index_select(dim, rows)


class GatheredForms:
    """The forms of a network's operations, by name, for chosen rows."""

    def __init__(self, forms: Mapping[str, AffineForm], rows: Tensor) -> None:
        self.forms, self.rows = forms, rows
        self._chosen: dict[str, AffineForm] = {}

    def __getitem__(self, name: str) -> AffineForm:
        if name not in self._chosen:
            self._chosen[name] = GatheredForm(self.forms[name], self.rows)
        return self._chosen[name]

    def rest(self, rows: Tensor) -> GatheredForms:
        """Only these of the chosen ones."""
        return GatheredForms(self.forms, self.rows[rows])
