"""The exact network fuzz: it refutes no claim of the package, refutes gross defects, and its truth agrees with torch."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.soundness import mechanical, network_fuzz
from tests.soundness.exact_networks import Rational, evaluate

SOURCE = Path(mechanical.SOURCE) / mechanical.PACKAGE


def refuted(cases):
    return [
        f"{case}: {found}"
        for case in cases
        if (found := network_fuzz.violations(case, network_fuzz.run(case))) is not None
    ]


@pytest.fixture(scope="module")
def cases():
    return network_fuzz.inputs(0)


@pytest.mark.usefixtures("in_proof")
def test_no_claim_is_refuted(cases):
    assert refuted(cases) == []
    assert sum(map(network_fuzz.size, cases)) > 500_000


@pytest.mark.slow
@pytest.mark.usefixtures("in_proof")
@pytest.mark.parametrize("seed", range(1, 21))
def test_no_claim_is_refuted_with_other_numbers(seed):
    assert refuted(network_fuzz.inputs(seed)) == []


def test_the_same_seed_gives_the_same_cases():
    first, second = (network_fuzz.inputs(3, ["linears"]) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one.stack, two.stack)
        for name, values in one.values.items():
            np.testing.assert_array_equal(values, two.values[name])


def test_truth_is_what_torch_computes(cases):
    """Compare to float64's precision, at the centers of forms of ordinary magnitude."""
    compared = 0
    for case in cases:
        if case.evaluation or not 1e-3 < case.stack[0].abs().max() < 1e3:
            continue
        true = evaluate(case.layers, Rational.of(case.stack[0]))
        values = {"x": case.stack[0].double()}
        for layer in case.layers:
            values[layer.name] = layer.apply(values)
            if "quantize" in layer.call or not values[layer.name].isfinite().all():
                break  # ties go either way; or beyond where a function is defined
            size = max(float(each.abs().max()) for each in values.values())
            if size < 1e6:
                found = np.asarray(true[layer.name].nearest(), dtype=float)
                np.testing.assert_allclose(found, values[layer.name].numpy(), rtol=1e-9, atol=1e-9 * (1 + size) ** 2)
                compared += 1
    assert compared > 200


def test_numbers_are_exact():
    numbers = np.array([0.0, 1.5, -3.0, 5e-324, 1e-44, 1.7e308, -0.1])
    exact = Rational.of(numbers)
    assert [exact.fraction(k) for k in range(len(numbers))] == [Fraction(x) for x in numbers.tolist()]
    assert (exact.nearest() == numbers).all()
    third = exact * Rational.fractions([Fraction(1, 3)] * len(numbers), numbers.shape)
    assert abs(float(third.nearest()[1]) - 0.5) == 0


GROSS = [
    ("enclosures/relu.py", "return torch.maximum(slope * below, (1 - slope) * above)", "return slope * below"),
    ("enclosures/relu.py", "above, value=-1).mul_(0.5)", "above, value=-1).mul_(0.49)"),
    ("enclosures/relu.py", "(highest + lowest) / 2, tilt", "highest / 2, tilt"),
    ("enclosures/relu.py", "rest + t / 2 + slack", "rest + slack"),
    ("network/ops/base.py", "radius = self.absolute(operation, radius)", "radius = self.signed(operation, radius)"),
    ("network/ops/base.py", "radius = torch.add(radius, form.magnitude(), alpha=own)", "pass"),
    ("network/ops/base.py", "radius = torch.add(radius, farthest(form) + UNDERFLOW, alpha=theirs)", "pass"),
    ("network/ops/arithmetic.py", 'return a * self._scale(operation, a)', 'return a / self._scale(operation, a)'),
    ("network/ops/activations.py", "torch.where(a > 0, lower, chord)", "torch.where(a > 0, chord, lower)"),
    ("network/ops/activations.py", "offset = torch.where(a > 0, low, high)", "offset = torch.where(a > 0, high, low)"),
    ("network/ops/products.py", "sides.append(side * (side / s) / 4)", "sides.append(side * (side / s) / 5)"),
    ("network/ops/attention.py", "+ lengths(size) * (theirs", "+ lengths(size) * (0 * theirs"),
    ("network/ops/norms.py", "dot(a.clamp(max=0), most)", "dot(a.clamp(max=0), 0.99 * most)"),
    ("network/ops/quantize.py", "room = 0.5 + slack + torch", "room = 0.49 + slack + torch"),
    ("network/ops/smooth.py", "return low - slack, high + slack", "return low + 0.01, high"),
    ("network/ops/pooling.py", "stack[0] += excess / 2", "stack[0] += 0 * excess"),
    ("network/ops/pooling.py", "constant=dot(a.clamp(max=0), excess)", "constant=dot(a.clamp(min=0), excess)"),
    ("network/ops/arithmetic.py", "reduced(self.sign * a, second.shape)", "reduced(a, second.shape)"),
    ("network/graph.py", "shift, size = shift + own, size", "shift, size = shift - own, size"),
    ("network/forward.py", "form.radius.gather(1, own) + form.radius", "form.radius.gather(1, own)"),
    ("network/forward.py", "widen(form.radius + extra,", "widen(form.radius,"),
    ("network/backward.py", "torch.stack([row_norm(a.detach()), first - second,", "torch.stack([row_norm(a.detach()), first + second,"),
    ("network/backward.py", "bound = bound - by_symbol.sum(0)", "pass"),
    ("network/backward.py", "self.constant + planes[0] - spread, self.error", "self.constant + planes[0], self.error"),
]  # fmt: skip


def test_gross_defects_are_refuted(cases):
    parts = {name: getattr(network_fuzz, name) for name in ("run", "violations", "compare")}
    trial = mechanical.Trial(SimpleNamespace(inputs=lambda _: cases[::2], **parts))
    mutants = []
    for file, old, new in GROSS:
        text = (SOURCE / file).read_text()
        assert text.count(old) == 1, f"{file}: {old}"
        code = compile(text.replace(old, new), str(SOURCE / file), "exec")
        mutants.append(mechanical.Mutant(file, 0, old, new, code))
    wrong = [
        f"{result.mutant.file}: {result.mutant.change}: {result.outcome} {result.detail}"
        for result in trial.results(mutants, 60)
        if result.outcome != "killed" or result.detail.startswith("error")
    ]
    assert not wrong, "\n".join(wrong)
