"""The comparison with auto_LiRPA: what it does without a checkout, and its bisection."""

from __future__ import annotations

import sys

import against_auto_lirpa as comparison
import pytest
import torch
from torch import Tensor


def test_says_so_without_a_checkout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["against_auto_lirpa.py"])
    assert comparison.main() == 0
    assert "no clone of auto_LiRPA" in capsys.readouterr().out


def test_rows_are_the_label_less_each_other_class() -> None:
    scores = torch.tensor([[1.0, 5.0, 2.0]])
    assert (comparison.differences(1, 3, scores) @ scores[0]).tolist() == [[4.0, 3.0]]


def test_bisection_covers_the_range() -> None:
    proved = []

    def margins(low: Tensor, high: Tensor) -> Tensor:
        if float(high - low) <= 0.25:
            proved.append((float(low), float(high)))
            return torch.ones(1)
        return -torch.ones(1)

    low, high = torch.zeros(1), torch.ones(1)
    assert comparison.prove(margins, low, high, 100, 1e9) == (True, 7)
    assert sorted(proved) == [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
    assert comparison.prove(margins, low, high, 5, 1e9) == (False, 5)
