"""One network near the rounding noise: built, tuned, certified, and its verdict compared with exact margins."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import nn

from tests.soundness.noise_networks import Maker, margin_of, tune
from tests.support.cases import make_image, make_thetas
from tests.support.oracle import exact_image, transformed
from tiltproof import Attack, BranchAndBound, Verdict, certify, parse
from tiltproof.verify.options import BOUNDS

TEXTS = (
    *("B(0.1)", "Tu(0.4)", "C(20)", "Sh(15)", "Sc(8)", "Tv(1e-7)", "B(1e-9)"),
    *("Tu(0.2), B(0.05)", "B(0.02), Tv(0.3)", "C(1e-6)"),
)
TARGETS = {
    # the exact margin's least value, relative to the margin's variation and to its magnitude
    "zero": (Fraction(0), Fraction(0)),
    "a hair below": (Fraction(0), Fraction(-1, 10**9)),
    "the last digit of float64 below": (Fraction(0), Fraction(-1, 10**16)),
    "noise below": (Fraction(0), Fraction(-1, 10**7)),
    "dip": (Fraction(-1, 10), Fraction(0)),
    "healthy": (Fraction(1, 2), Fraction(1, 20)),
}
METHODS = ("affine", "hull", "fgv")


@dataclass
class Case:
    model: nn.Sequential
    image: torch.Tensor
    text: str
    thetas: list
    margins: list[Fraction]

    @property
    def unsafe(self) -> bool:
        return min(self.margins) <= 0


@dataclass
class Count:
    networks: int = 0
    unsafe: int = 0
    fooled: int = 0  # unsafe, yet plain evaluation finds no wrong answer at the sampled parameters
    healthy: int = 0
    certified: int = 0  # of the healthy ones


def build(maker: Maker, seed: int, aim: str, dtype: torch.dtype, text: str) -> Case:
    """Return the first of a few draws that fools plain evaluation (if the margin is to be negative), or the last draw."""
    transform = parse(text)
    letters = [part.letter for part in transform.parts]
    for attempt in range(8):
        rng = np.random.default_rng([seed, attempt])
        image = make_image("random", 1, 2, 3, rng).astype(np.float32)
        model = nn.Sequential(nn.Flatten(), *maker(rng, 6))
        model = (model if next(model.parameters()).dtype == torch.float64 else model.to(dtype)).eval()
        dtype = model[-1].bias.dtype
        thetas = make_thetas(transform.low, transform.high, rng, 3)
        exact_images = [
            exact_image(image),
            *(transformed(image, letters, theta, transform.padding) for theta in thetas),
        ]
        margins = [margin_of(model, each) for each in exact_images]
        variation, size = max(margins) - min(margins), max(map(abs, margins))
        share, of_size = TARGETS[aim]
        tune(model, margins[1:], share * variation + of_size * size)
        shift = margin_of(model, exact_images[0]) - margins[0]
        case = Case(model, torch.tensor(image, dtype=dtype), text, thetas, [margin + shift for margin in margins[1:]])
        if aim == "healthy" or fooled(case):
            break
    return case


def fooled(case: Case) -> bool:
    """Return whether torch's evaluation finds nothing wrong although there is a wrong answer."""
    values = torch.tensor([[float(value) for value in theta] for theta in case.thetas], dtype=torch.float64)
    images = case.image.expand(len(values), -1, -1, -1).contiguous()
    with torch.no_grad():
        outputs = case.model(parse(case.text).apply(images, values.to(images.dtype)))
        clean = case.model(case.image[None])[0]
    return case.unsafe and bool((outputs[:, 0] > outputs[:, 1]).all()) and bool(clean[0] > clean[1])


def check(case: Case, method: str, budget: int = 40) -> Verdict:
    """Check that no sampled parameter contradicts the verdict, and that no margin is below the claimed one."""
    certificate = certify(
        case.model,
        case.image[None],
        torch.tensor([0]),
        case.text,
        bounds=BOUNDS[method],
        search=BranchAndBound(max_boxes=budget),
        attack=Attack(samples=2),
    )
    (verdict,), (claimed,) = certificate.verdicts, certificate.margins
    if verdict is Verdict.CERTIFIED:
        assert not case.unsafe, (
            f"certified with margin {claimed:.3g}, but there is one of {float(min(case.margins)):.3g}"
        )
    if verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN):
        assert Fraction(claimed) <= min(case.margins) if np.isfinite(claimed) else verdict is Verdict.UNKNOWN
    if verdict is Verdict.FALSIFIED:
        theta = certificate.counterexamples[0]
        letters = [part.letter for part in parse(case.text).parts]
        assert margin_of(case.model, transformed(case.image.double().numpy(), letters, theta)) < 0
    return verdict


def check_family(maker: Maker, seeds: range, dtype: torch.dtype = torch.float32, thorough: bool = True) -> Count:
    """Check every aim for each seed, with one method after the other or with all of them."""
    count = Count()
    for seed in seeds:
        for k, aim in enumerate(TARGETS):
            case = build(maker, seed * 10 + k, aim, dtype, TEXTS[(seed + 3 * k) % len(TEXTS)])
            count.networks += 1
            count.unsafe += case.unsafe
            count.fooled += fooled(case)
            healthy = aim == "healthy"
            methods = METHODS if thorough else ("affine",) if healthy else (METHODS[(seed + k) % 3],)
            verdicts = [check(case, method) for method in methods]
            count.healthy += healthy
            count.certified += healthy and verdicts[0] is Verdict.CERTIFIED
    return count
