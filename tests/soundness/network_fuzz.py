"""Fuzz the network rules: forms, single backward steps, margins and refined margins of tiny networks against exact values.

A case is a network of a few layers (`exact_networks`), a batch of affine forms as its input, and members of them: symbols and
remainder positions, with every layer's value there, computed once in rational arithmetic. Float32 networks use a few
adversarial float32 evaluations instead. The package's claims are

    form      a layer's value, at the member's symbols, lies in center + slopes . e +- radius, and in [lower, upper]
    margin    so does the difference of two outputs
    step      after each backward step from a . y:  a . y >= sum_i a_i . x_i + constant + moves - error
    bound     a refined margin, or direction, is at most the least one over the members of its row

Values are compared in 64 bits (x86's extended format): a claim is refuted if it is violated by more than 2^-58 of the
magnitudes that it is composed of. Float64's unit roundoff is 2^-53.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.soundness.exact_compounds import PIECES, WRITTEN
from tests.soundness.exact_functions import NORMS
from tests.soundness.exact_networks import Float32, Layer, Of, Rational, evaluate, shapes

LEAST = np.longdouble(2) ** -58
EVALUATION = 2.0**-24
Rng = np.random.Generator
F32, F64 = torch.float32, torch.float64


@dataclass
class Case:
    name: str
    layers: list[Layer]
    stack: Tensor  # [1 + d, P, ...], in the dtype of the bounds
    radius: Tensor
    quadratic: bool
    evaluation: float
    e: np.ndarray  # [P, S, d], symbols of the members
    values: dict[str, np.ndarray]  # of every layer, [P, S, ...], extended
    labels: np.ndarray  # [P]; of networks whose last layer is linear
    directions: np.ndarray  # [Q, outputs]
    rows: np.ndarray  # [Q]
    reached: np.ndarray  # [Q, S]: directions . outputs, exactly
    margins: np.ndarray  # [P, S, outputs]
    lasting: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass
class Claims:
    forms: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    bounds: dict[str, np.ndarray] = field(default_factory=dict)


def run(case: Case) -> Claims:
    """Return all claims of the package about a case.

    This enters the proof's precision settings once and, unless a caller is inside already, does not leave them: entering asks torch
    for products with known results each time, which takes longer than most cases. Hence it is for separate processes, and for
    tests inside a proof.
    """
    from tiltproof.network.arithmetic import PROOF, arithmetic_now, proof_arithmetic

    if arithmetic_now() != PROOF:
        ENTERED.append(proof_arithmetic(torch.device("cpu")))
        ENTERED[-1].__enter__()
    with torch.no_grad():
        return _claims(case)


ENTERED: list[Any] = []


def _claims(case: Case) -> Claims:
    from tiltproof.enclosures.affine_form import AffineForm, GatheredForms
    from tiltproof.network.backward import BackwardPass, refine, refine_outputs
    from tiltproof.network.forward import margins, separate_margins
    from tiltproof.network.forward import run as forward
    from tiltproof.network.ops.base import FLOOR, MORE

    claims = Claims()
    network = read(case.layers, tuple(case.radius.shape[1:])).network_as(case.radius.dtype, case.evaluation)
    forms = forward(
        network, AffineForm(case.stack.clone(), case.radius.clone(), quadratic=case.quadratic), case.lasting
    )
    directions, rows = torch.from_numpy(case.directions), torch.from_numpy(case.rows)
    a = directions.to(case.radius.dtype).view(len(directions), *forms[network.output].shape[1:])
    zeros = torch.zeros(len(a), dtype=torch.float64)
    backward = BackwardPass(network, GatheredForms(forms, rows), {network.output: a}, zeros, zeros, None, False)
    backward.account_underflow(a, [network.output])
    for step in reversed(network.operations):
        if step.name in backward.coefficients:
            backward.step(step)
            error = (backward.error + backward.steps * FLOOR[a.dtype]) * (
                backward._largest() * (MORE / backward.largest_sum)
            ).clamp(min=MORE)
            claims.steps.append(
                {
                    "constant": backward.constant.numpy(),
                    "error": error.numpy(),
                    "moves": backward.quadratic_terms.numpy(),
                }
                | {name: coefficient.double().numpy() for name, coefficient in backward.coefficients.items()}
            )
    claims.bounds["directions"] = refine_outputs(network, forms, rows, a)[0].numpy()
    # not earlier: backward passes have to work out what forms keep once they were asked for it
    claims.forms = {name: described(form) for name, form in forms.items()}
    if forms[network.output].radius.ndim != 2 or forms[network.output].shape[1] < 2:
        return claims
    labels = torch.from_numpy(case.labels)
    margin = margins(network, forms, labels)
    claims.forms["margins"] = described(margin)
    claims.bounds["separate"] = separate_margins(forms[network.output], labels).double().numpy()
    pairs, classes = (torch.arange(margin.shape[1]) != labels[:, None]).nonzero(as_tuple=True)
    whole = refine(network, forms, labels, pairs, classes)[0]
    claims.bounds["margins"] = whole.numpy()
    finite = whole[whole.isfinite()]
    level = float(finite.median()) if len(finite) else 0.0
    claims.bounds["margins, some good enough"] = refine(network, forms, labels, pairs, classes, level)[0].numpy()
    some = refine(network, forms, labels, pairs, classes, level, True, None, True)[0]
    claims.bounds["margins, shallow"] = some.numpy()
    return claims


def described(form: Any) -> dict[str, np.ndarray]:
    parts = {
        "center": form.center,
        "slopes": form.slopes,
        "radius": form.radius,
        "lower": form.lower,
        "upper": form.upper,
    }
    return {name: each.double().numpy().copy() for name, each in parts.items()}


def read(layers: Sequence[Layer], shape: tuple[int, ...]) -> Any:
    """Build the package's network from these calls, with its own table of ATen operations."""
    import tiltproof.network.ops  # noqa: F401 - fills the table
    from tiltproof.network.graph import Network, Reference
    from tiltproof.network.ops.base import CONVERTERS, Built, Input

    known = shapes(layers, shape)
    network = Network("x", layers[-1].name, shape, [])
    for layer in layers:

        def given(arg: Any, place: str) -> Any:
            if isinstance(arg, list):
                return [given(each, f"{place}.{k}") for k, each in enumerate(arg)]
            if isinstance(arg, Of):
                return Input(arg.name, known[arg.name])
            if isinstance(arg, Tensor):
                network.leaves[place] = lambda: arg
                return Reference(place, tuple(arg.shape))
            return arg

        args = [given(arg, f"{layer.name}.{k}") for k, arg in enumerate(layer.args)]
        if layer.call.startswith("rule."):
            built = Built(layer.call.removeprefix("rule."), tuple(layer.inputs()), rule_settings(layer))
        elif layer.call == "masked_softmax.int":  # what a mask leaves is read by a softmax alone
            left = CONVERTERS["masked_fill.Scalar"](known[layer.name], args[0], args[2], -math.inf)
            built = CONVERTERS["softmax.int"](known[layer.name], left, args[1])
        else:
            built = CONVERTERS[layer.call](known[layer.name], *args, **layer.options)
        append(network, built, layer.name, known[layer.name], {})
    return network


def rule_settings(layer: Layer) -> dict[str, Any]:
    """Return the settings of a rule that no single call of torch stands for."""
    value = layer.args[1]
    return {"rule.inverse_root": {"epsilon": value}, "rule.quantize": value}.get(layer.call) or {"dim": value}


def append(network: Any, built: Any, name: str, shape: tuple[int, ...], done: dict[Any, str]) -> str:
    """Append an operation after those that it is built on; returns its name."""
    from tiltproof.network.graph import Operation, Reference

    inputs = []
    for k, other in enumerate(built.inputs):
        if not isinstance(other, str) and other not in done:
            done[other] = append(network, other, f"{name}/{k}", other.shape, done)
        inputs.append(other if isinstance(other, str) else done[other])
    settings = dict(built.settings)
    for key, compute in built.derived.items():
        network.computed.append((f"{name}.{key}", compute))
        settings[key] = Reference(f"{name}.{key}")
    network.operations.append(Operation(name, built.kind, tuple(inputs), settings, shape))
    return name


def violations(case: Case, claims: Claims) -> str | None:
    with np.errstate(all="ignore"):
        return next(_violations(case, claims), None)


def _violations(case: Case, claims: Claims) -> Iterator[str]:
    for name, form in claims.forms.items():
        if "/" in name:  # inside of a call that is several operations, of which only the result is known
            continue
        values = case.margins if name == "margins" else case.values[name]
        yield from (f"form of {name}: {text}" for text in _outside(form, values, case.e))
    for number, step in enumerate(claims.steps):
        yield from (f"step {number}: {text}" for text in _overestimates(case, step))
    others = np.arange(case.margins.shape[2]) != case.labels[:, None]
    least = {"directions": case.reached.min(1), "separate": case.margins.min(1)}
    for name, bound in claims.bounds.items():
        true = least[name] if name in least else case.margins.min(1)[others]
        if bound.shape != true.shape:
            yield f"{name}: shape {bound.shape}"
            continue
        if name == "separate":
            bound, true = bound[others], true[others]
        wrong = (bound.astype(np.longdouble) > true + abs(true) * LEAST) | (~np.isfinite(true) & (bound > -np.inf))
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            yield f"{name}: {bound.ravel()[k]!r} > {true.ravel()[k]!r}"


def _outside(form: dict[str, np.ndarray], values: np.ndarray, e: np.ndarray) -> Iterator[str]:
    """Yield values [P, S, ...] at symbols e [P, S, d] that leave a form; its radius must be infinite if they are not finite."""
    c, g, r, low, high = (form[name].astype(np.longdouble) for name in ("center", "slopes", "radius", "lower", "upper"))
    shape = (values.shape[0], *values.shape[2:])
    if c.shape != shape or r.shape != shape:
        yield f"shape {c.shape}"
        return
    nothing = ~np.isfinite(c) | ~(r < np.inf) | ~np.isfinite(g).all(0)
    if (r < 0).any():
        yield "a negative radius"
    middle, size = c[:, None] + 0 * values, abs(c[:, None]) + abs(values)
    for k in range(len(g)):
        each = g[k][:, None] * e[:, :, k].reshape(*e.shape[:2], *[1] * (c.ndim - 1))
        middle, size = middle + each, size + abs(each)
    for what, excess in (
        ("symbols", abs(values - middle) - r[:, None]),
        ("lower", low[:, None] - values),
        ("upper", values - high[:, None]),
    ):
        wrong = ((excess > size * LEAST) | ~np.isfinite(values)) & ~nothing[:, None]
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            yield f"{what} at {at}: {float(values[at])!r} by {float(excess[at]):.3g} (radius {float(r[(at[0], *at[2:])]):.3g})"


def _overestimates(case: Case, step: dict[str, Any]) -> Iterator[str]:
    """Yield where a linear lower bound lies above the exact value of its direction."""
    rows = case.rows
    if any("/" in name for name in step):
        return
    bound = step["constant"].astype(np.longdouble)[:, None] + np.zeros(case.reached.shape, np.longdouble)
    size = abs(bound)
    for name, a in step.items():
        if name not in case.values:
            continue
        x = case.values[name][rows].reshape(*bound.shape, -1)
        terms = x * a.reshape(len(a), 1, -1).astype(np.longdouble)
        terms[:, :, :] = np.where(a.reshape(len(a), 1, -1) == 0, 0, terms)
        bound, size = bound + terms.sum(2), size + abs(terms).sum(2)
    if step["moves"].any():
        for k in (0, 1):
            each = step["moves"][k].astype(np.longdouble)[:, None] * case.e[rows][:, :, k]
            bound, size = bound + each, size + abs(each)
    excess = bound - step["error"][:, None] - case.reached
    wrong = excess > (size + abs(case.reached)) * LEAST
    wrong &= np.isfinite(case.reached)
    if wrong.any():
        q, s = (int(k) for k in np.argwhere(wrong)[0])
        names = [name for name in step if name in case.values]
        yield f"direction {q} of {names}, point {s}: {float(bound[q, s])!r} too high by {float(excess[q, s]):.3g}"


RELAXATIONS = ("network/ops/", "enclosures/")
SEVERAL = (
    *NORMS, "scaled_dot_product_attention.default", *(PIECES.keys() - {"abs.default", "sign.default"}), *WRITTEN, "amin.default",
)  # fmt: skip
"""Calls that become several operations."""


def direct(case: Case, file: str) -> bool:
    """Rules and relaxations: cases of a single operation; backward passes: all cases."""
    return not file.startswith(RELAXATIONS) or (len(case.layers) == 1 and case.layers[0].call not in SEVERAL)


def _grown(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> str:
    """Compare like `compared`, but tolerate a moved form.

    If the radius grows by more than center and slopes move, up to a thousandth of that for rounding, the new form counts as
    containing the old one.
    """
    from tests.soundness.mechanical import compared

    found = compared(old, new)
    if found != "tighter" or old["slopes"].shape != new["slopes"].shape or old["radius"].shape != new["radius"].shape:
        return found
    with np.errstate(all="ignore"):
        growth = new["radius"] - old["radius"]
        moved = abs(new["center"] - old["center"]) + abs(new["slopes"] - old["slopes"]).sum(0)
        same = np.all(
            [(old[name] == new[name]) | (old[name] != old[name]) for name in ("center", "radius", "lower", "upper")], 0
        )
        same &= (old["slopes"] == new["slopes"]).all(0)
        nothing = ~(new["radius"] < np.inf) | ~np.isfinite(new["center"])
        return "looser" if (same | nothing | ((growth > 0) & (moved <= growth * (1 + 2.0**-10)))).all() else "tighter"


def compare(old: Claims, new: Claims) -> str:
    found = {_grown(old.forms[name], new.forms[name]) if name in new.forms else "tighter" for name in old.forms}
    if (
        old.forms.keys() != new.forms.keys()
        or len(old.steps) != len(new.steps)
        or old.bounds.keys() != new.bounds.keys()
    ):
        return "tighter"
    for name, bound in old.bounds.items():
        other = new.bounds[name]
        same = (bound == other) | (np.isnan(bound) & np.isnan(other))
        found.add("identical" if same.all() else "looser" if (same | ~(other > bound)).all() else "tighter")
    for one, two in zip(old.steps, new.steps, strict=True):
        if one.keys() != two.keys():
            return "tighter"
        same = {name: np.array_equal(one[name], two[name], equal_nan=True) for name in one}
        if all(same.values()):
            found.add("identical")
            continue
        alike = all(same[name] for name in one if name not in ("error", "constant"))
        below = not ((two["error"] < one["error"]) | (two["constant"] > one["constant"])).any()
        found.add("looser" if alike and below else "tighter")
    return next(word for word in ("tighter", "looser", "identical") if word in found)


# Cases


def exact(case_inputs: tuple[Tensor, Tensor], e: np.ndarray, s: np.ndarray) -> Rational:
    """Return the members [P S, ...]; e [P, S, d], s [P, S, ...] in [-1, 1]."""
    stack, radius = case_inputs
    view = lambda k: e[:, :, k].reshape(*e.shape[:2], *[1] * (radius.ndim - 1))  # noqa: E731
    wide = lambda x: np.broadcast_to(x.double().numpy()[:, None], s.shape)  # noqa: E731
    point = Rational.of(wide(stack[0])) + Rational.of(wide(radius)) * Rational.of(s)
    for k in range(e.shape[2]):
        point = point + Rational.of(wide(stack[1 + k])) * Rational.of(np.broadcast_to(view(k), s.shape))
    return point.reshape(-1, *radius.shape[1:])


def choose(
    rng: Rng, layers: Sequence[Layer], stack: Tensor, radius: Tensor, quadratic: bool, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose symbols [P, S, d] and remainder positions [P, S, ...]: corners, kinks, random ones, and where outputs are extreme."""
    rows, d = len(radius), len(stack) - 1
    free = min(d, 1) if quadratic else d
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=free)), dtype=float).reshape(2**free, free)[:8]
    drawn = rng.integers(-32, 33, (max(2, points - len(corners)), free)) / 32
    e = np.broadcast_to(np.concatenate([corners, drawn])[None], (rows, len(corners) + len(drawn), free)).copy()
    if free:  # at one entry's kink
        c, g = (stack[k].double().flatten(1).numpy() for k in (0, 1))
        with np.errstate(all="ignore"):
            kinks = np.round(np.nan_to_num(np.clip(-c / g, -1, 1), nan=0.0) * 2**10) / 2**10
        e[:, -2:, 0] = kinks[:, rng.integers(0, kinks.shape[1], 2)]
    e = _symbols(e, d, rng)
    s = rng.choice([-1.0, 1.0], (*e.shape[:2], *radius.shape[1:]))
    middle = _floats(stack, e)
    with np.errstate(all="ignore"):
        kink = np.nan_to_num(np.clip(-middle / radius.double().numpy()[:, None], -1, 1), nan=0.0)
    s[:, -1] = np.round(kink[:, -1] * 2**20) / 2**20
    s[:, -2] = rng.integers(-8, 9, s[:, -2].shape) / 8
    climbed = _climb(rng, layers, stack, radius, e, s, free)
    return tuple(np.concatenate(pair, 1) for pair in zip((e, s), climbed, strict=True))  # type: ignore[return-value]


def _symbols(e: np.ndarray, d: int, rng: Rng) -> np.ndarray:
    """Complete the free symbols: for quadratic forms the second is 2 e^2 - 1, and a third is arbitrary."""
    if e.shape[2] == d:
        return e
    more = [2 * e[:, :, :1] ** 2 - 1] + [rng.integers(-8, 9, (*e.shape[:2], 1)) / 8 for _ in range(d - 2)]
    return np.concatenate([e, *more], 2)


def _floats(stack: Tensor, e: np.ndarray) -> np.ndarray:
    wide = stack.double().numpy()
    middle = np.repeat(wide[0][:, None], e.shape[1], 1)
    for k in range(e.shape[2]):
        middle = middle + wide[1 + k][:, None] * e[:, :, k].reshape(*e.shape[:2], *[1] * (wide.ndim - 2))
    return middle


def _climb(
    rng: Rng, layers: Sequence[Layer], stack: Tensor, radius: Tensor, e: np.ndarray, s: np.ndarray, free: int
) -> tuple[np.ndarray, np.ndarray]:
    """Take two sign steps towards the least and the largest of some outputs and differences of outputs."""
    values = {"x": torch.from_numpy(_floats(stack, e[:, :1])[:, 0])}
    for layer in layers:
        values[layer.name] = layer.apply(values)
    outputs = values[layers[-1].name][0].numel()
    aims = np.zeros((min(6, 2 * outputs), outputs))
    for k, aim in enumerate(aims):
        first, second = rng.integers(0, outputs, 2)
        aim[first] += 1
        if rng.random() < 0.6:
            aim[second] -= 1
        aim *= (-1) ** k
    results = []
    for aim in aims:
        start = rng.integers(e.shape[1])
        symbols, places = torch.from_numpy(e[:, start].copy()), torch.from_numpy(s[:, start].copy())
        for _ in range(2):
            symbols.requires_grad_(), places.requires_grad_()
            x = stack[0].double() + places * radius.double()
            for k in range(e.shape[2]):
                x = x + stack[1 + k].double() * symbols[:, k].view(-1, *[1] * (radius.ndim - 1))
            values = {"x": x}
            for layer in layers:
                values[layer.name] = layer.apply(values)
            total = (
                values[layers[-1].name].flatten(1) * torch.from_numpy(aim)
            ).sum() + 0 * places.sum()  # which some depend on
            grads = torch.autograd.grad(total, (symbols, places), allow_unused=True)
            symbols, places = (
                old.detach() if grad is None else grad.nan_to_num().sign()
                for old, grad in zip((symbols, places), grads, strict=True)
            )
        results.append((symbols.detach().numpy()[:, :free], places.detach().numpy()))
    symbols = _symbols(np.stack([each[0] for each in results], 1), e.shape[2], rng)
    return symbols, np.stack([each[1] for each in results], 1)


@dataclass
class Input:
    """The properties of a case's forms."""

    rows: int = 4
    symbols: int = 2
    dtype: torch.dtype = F32
    size: float = 1.0  # of centers
    spread: float = 0.3  # of slopes, relative to it
    rest: float = 0.1  # of radii
    wide: float = 0.0  # decades by which entries differ
    quadratic: bool = False
    point: bool = False
    evaluation: bool = False
    lasting: int | None = None
    equal: bool = False  # all entries alike
    center: Tensor | None = None
    barely: bool = False  # one end of each entry is zero, up to rounding
    straight: bool = False  # quadratic, but in the first symbol alone: the remainder is only the parabola's own
    uneven: bool = False  # the whole radius in one entry, and all others above zero
    positive: float = 0.0  # all entries above zero, or below it, by more than this share of their width

    def __str__(self) -> str:
        changed = (
            (each.name, getattr(self, each.name)) for each in fields(self) if getattr(self, each.name) != each.default
        )
        return ", ".join(f"{name} {value}" for name, value in changed) or "plain"


def make(rng: Rng, name: str, layers: list[Layer], shape: tuple[int, ...], given: Input, points: int = 14) -> Case:
    full = (given.rows, *shape)

    def numbers(scale: float, *sizes: int) -> np.ndarray:
        values = rng.normal(size=sizes) * scale
        return values * 10.0 ** rng.uniform(-given.wide, given.wide, sizes) if given.wide else values

    c = numbers(given.size, *full)
    if given.equal:
        c = np.full(full, given.size)
    g = numbers(given.size * given.spread, given.symbols, *full)
    r = abs(numbers(given.size * given.rest, *full)) * (rng.random(full) > 0.25)
    levels = np.array([1.0, 1e-3, 0.0, 3.0, 1e-7, 1.0, 0.3, 10.0])[np.arange(given.rows) % 8].reshape(
        -1, *[1] * len(shape)
    )
    g, r = g * levels, r * levels
    if given.quadratic:
        g[1:] *= 0.1
        r *= 0.1
    if given.straight:
        c, g, r = (
            g[0] * np.clip(c, -1.02, 1.02),
            g * np.array([1.0, *[0.0] * (len(g) - 1)]).reshape(-1, *[1] * (c.ndim)),
            0 * r,
        )
    c[rng.random(full) < 0.05] = 0
    if given.center is not None:
        c = np.broadcast_to(given.center.numpy(), full).copy()
    if given.uneven:
        c, r = abs(c) + 3, 0 * r
        r[:, 0] = 2
    if given.positive:
        c = (abs(g).sum(0) + r + abs(c)) * (1 + abs(given.positive)) * np.sign(given.positive)
    if given.point:
        g, r = 0 * g, 0 * r
    stack, radius = torch.from_numpy(np.concatenate([c[None], g])).to(given.dtype), torch.from_numpy(r).to(given.dtype)
    if given.barely:
        end = radius + stack[1:].abs().sum(0)
        near = torch.from_numpy(1 + rng.integers(-1, 2, full) * (2.0**-23 if given.dtype == F32 else 2.0**-52)).to(
            given.dtype
        )
        stack[0] = end * near * torch.from_numpy(rng.choice([-1.0, 1.0], full)).to(given.dtype)
    e, s = choose(rng, layers, stack, radius, given.quadratic, points)
    true = exact((stack, radius), e, s)
    count = e.shape[1]
    if given.evaluation:
        return _evaluated(rng, name, layers, stack, radius, given, e, true)
    values = evaluate(layers, true)
    known = {key: each.nearest().reshape(given.rows, count, *each.shape[1:]) for key, each in values.items()}
    last = values[layers[-1].name]
    return _case(rng, name, layers, stack, radius, given, e, known, last.reshape(given.rows, count, -1))


def _evaluated(
    rng: Rng, name: str, layers: list[Layer], stack: Tensor, radius: Tensor, given: Input, e: np.ndarray, true: Rational
) -> Case:
    """Evaluate each member in float32 three times; the image's pixels are rounded first."""
    x = true.nearest().astype(np.float32)
    found = [Float32(rng, order).run(layers, x) for order in range(Float32.ORDERS)]
    count = e.shape[1]
    known = {
        key: np.concatenate([each[key].reshape(given.rows, count, *each[key].shape[1:]) for each in found], 1).astype(
            np.longdouble
        )
        for key in found[0]
    }
    last = known[layers[-1].name].reshape(given.rows, 3 * count, -1)
    return _case(rng, name, layers, stack, radius, given, np.concatenate([e] * 3, 1), known, last)


def _case(
    rng: Rng, name: str, layers: list[Layer], stack: Tensor, radius: Tensor, given: Input, e: np.ndarray, known: dict[str, np.ndarray],
    last: Any,
) -> Case:  # fmt: skip
    """Build a case; ``last``: the outputs [P, S, K], Rational or extended."""
    rows, _, outputs = last.shape
    some = min(outputs, 6)
    directions = np.zeros((3 * some, outputs))
    for k, direction in enumerate(directions):
        if k < 2 * some:
            direction[rng.permutation(outputs)[0] if outputs > 6 else k % some] = 1 if k < some else -1
        else:
            direction[:] = rng.choice([-1, 0, 0, 1, 3], outputs)
    directions = np.concatenate([directions] * 2)
    places = np.arange(len(directions)) % rows
    labels = rng.integers(0, outputs, rows)
    if isinstance(last, Rational):
        own = np.take_along_axis(last.ints, labels[:, None, None], 2)
        margins = Rational(own - last.ints, last.exp, last.den).nearest()
        whole = directions.astype(np.int64).astype(object)
        reached = Rational((last.ints[places] * whole[:, None]).sum(2), last.exp, last.den).nearest()
    else:
        with np.errstate(all="ignore"):
            margins = np.take_along_axis(last, labels[:, None, None], 2) - last
            np.put_along_axis(margins, labels[:, None, None], 0, 2)  # even of infinities
            reached = np.where(directions[:, None] == 0, 0, last[places] * directions[:, None]).sum(2)
    return Case(
        name, layers, stack, radius, given.quadratic, EVALUATION if given.evaluation else 0.0, e, known, labels, directions,
        places, reached,
        margins, given.lasting,
    )  # fmt: skip


# Networks

X = Of("x")


def weights(rng: Rng, *shape: int, kind: str = "plain", dtype: torch.dtype = F32) -> Tensor:
    """Draw weights, realistic or adversarial."""
    values = rng.normal(size=shape) / np.sqrt(max(1, np.prod(shape[1:])))
    if kind == "wide":
        values *= 10.0 ** rng.uniform(-9, 9, shape)
    elif kind == "huge":
        values *= 1e25
    elif kind == "tiny":
        values *= 10.0 ** rng.uniform(-44, -36, shape) if dtype == F32 else 10.0 ** rng.uniform(-320, -300, shape)
    elif kind == "cancelling":
        flat = values.reshape(len(values), -1)
        half = flat.shape[1] // 2
        flat[:, half : 2 * half] = -flat[:, :half] * (1 + 1e-6 * rng.random(half))
        values = flat.reshape(shape) * 1e4
    elif kind == "absorbed":  # each sum is 1 and many terms that are rounded away
        unit = 2.0**-24 if dtype == F32 else 2.0**-53
        flat = np.full((len(values), values[0].size), unit * 0.97)
        flat[:, 0] = 1
        values = (flat * rng.choice([-1, 1], (len(values), 1))).reshape(shape)
    elif kind == "equal":
        values = np.full(shape, 0.7)
    values = np.where(rng.random(shape) < (0 if kind in ("absorbed", "equal") else 0.08), 0.0, values)
    return torch.from_numpy(values).to(dtype)


def variance(rng: Rng, count: int, dtype: torch.dtype) -> Tensor:
    """Draw variances whose roots have few bits."""
    return torch.from_numpy((rng.integers(1, 300, count) / 2.0 ** rng.integers(0, 9, count)) ** 2).to(dtype)


def batch_norm(rng: Rng, name: str, x: str, channels: int, dtype: torch.dtype = F32, kind: str = "plain") -> Layer:
    affine = rng.random() < 0.8
    weight, bias = (weights(rng, channels, kind=kind, dtype=dtype) if affine else None for _ in range(2))
    mean = weights(rng, channels, dtype=dtype) * 3
    return Layer(
        name, "batch_norm.default", [Of(x), weight, bias, mean, variance(rng, channels, dtype), False, 0.1, 0.0, False]
    )


def linear(
    rng: Rng, name: str, x: str, inputs: int, outputs: int, kind: str = "plain", dtype: torch.dtype = F32
) -> Layer:
    weight = weights(rng, outputs, inputs, kind=kind, dtype=dtype)
    bias = (
        None if rng.random() < 0.2 else weights(rng, outputs, kind="plain" if kind == "absorbed" else kind, dtype=dtype)
    )
    return Layer(name, "linear.default", [Of(x), weight, bias])


def conv(
    rng: Rng, name: str, x: str, shape: tuple[int, int, int, int], stride: Any = (1, 1), padding: Any = (0, 0), dilation: Any = (1, 1),
    groups: int = 1, kind: str = "plain", dtype: torch.dtype = F32, bias: bool = True,
) -> Layer:  # fmt: skip
    outputs, inputs, high, wide = shape
    weight = weights(rng, outputs, inputs // groups, high, wide, kind=kind, dtype=dtype)
    constant = weights(rng, outputs, kind=kind, dtype=dtype) if bias else None
    return Layer(name, "conv2d.default", [Of(x), weight, constant, list(stride), list(padding), list(dilation), groups])


def relu(name: str, x: str) -> Layer:
    return Layer(name, "relu.default", [Of(x)])


def flat(name: str, x: str) -> Layer:
    return Layer(name, "flatten.using_ints", [Of(x), 1])


IMAGE = (2, 4, 3)
KINDS = ("plain", "wide", "tiny", "cancelling", "absorbed", "equal", "huge")


def activations(rng: Rng) -> Iterator[Case]:
    """Yield cases with one activation and many entries: the relaxation itself."""
    calls: dict[str, list[Any]] = {
        "relu.default": [[]], "leaky_relu.default": [[0.1], [-0.3], [0.01], [-3.0]], "sigmoid.default": [[]], "tanh.default": [[]],
    }  # fmt: skip
    for call, settings in calls.items():
        for args in settings:
            inputs = [
                Input(8, 1, F32), Input(8, 3, F64), Input(4, 2, F32, wide=6), Input(4, 0, F64), Input(4, 1, F64, rest=0),
                Input(3, 1, F64, evaluation=True), Input(4, 1, F64, point=True, evaluation=True, size=3.0),
                Input(4, 0, F32, point=True, evaluation=True),
                Input(8, 3, F32, barely=True), Input(8, 2, F64, barely=True), Input(8, 1, F32, barely=True, rest=1e-4),
            ]  # fmt: skip
            if call == "relu.default":
                inputs += [
                    Input(8, 2, F64, quadratic=True, rest=0.01), Input(8, 3, F32, quadratic=True, rest=0), Input(8, 2, F64, wide=5,
                    quadratic=True),
                    Input(8, 2, F64, size=1e-3, spread=1e3, rest=0, quadratic=True), Input(4, 2, F32, size=1e-33, wide=3),
                    Input(8, 2, F64, straight=True, quadratic=True),
                    Input(8, 2, F32, straight=True, quadratic=True, wide=3),
                    Input(8, 2, F64, size=0.5, spread=2, rest=0, quadratic=True), Input(4, 2, F32, size=3e37, rest=0.3),
                ]  # fmt: skip
            for given in inputs if call == "relu.default" or args in ([], [0.1], [-0.3], [0.01]) else inputs[:2]:
                layers = [Layer("y", call, [X, *args])]
                yield make(rng, f"{call} {args} {given}", layers, (7,), given, 20)
        given = Input(4, 1, F64, point=True, evaluation=True)
        yield make(rng, f"{call} of channels", [Layer("y", call, [X, *settings[0]])], (3, 1, 2), given, 6)
    given = Input(4, 3, F32, uneven=True, spread=0.01, lasting=1, quadratic=True)
    yield make(
        rng, "symbols given up, float32", [relu("y", "x"), Layer("z", "neg.default", [Of("y")])], (6,), given, 10
    )
    given = Input(4, 3, F64, uneven=True, spread=0.01, lasting=1, quadratic=True)
    yield make(rng, "symbols given up", [relu("y", "x"), Layer("z", "neg.default", [Of("y")])], (6,), given, 10)


def linears(rng: Rng) -> Iterator[Case]:
    """Yield cases with one linear operation."""
    for k, kind in enumerate(KINDS):
        for dtype in (F32, F64):
            given = Input(3, 1 + k % 2, dtype, point=k % 2 == 0, equal=kind == "absorbed")
            yield make(rng, f"linear {kind} {dtype}", [linear(rng, "y", "x", 6, 3, kind, dtype)], (6,), given, 6)
        given = Input(3, 1, F64, evaluation=True, equal=kind in ("absorbed", "equal"), point=kind == "absorbed")
        if kind != "tiny":
            yield make(rng, f"linear {kind} evaluated", [linear(rng, "y", "x", 9, 3, kind)], (9,), given, 6)
    convolutions: list[dict[str, Any]] = [
        {"shape": (3, 2, 2, 2)}, {"shape": (2, 2, 3, 2), "stride": (2, 1), "padding": (1, 0)}, {"shape": (4, 2, 2, 2), "groups": 2},
        {"shape": (2, 2, 2, 2), "dilation": (2, 1), "padding": (1, 1)}, {"shape": (2, 2, 3, 3), "padding": (2, 1), "stride": (2, 2)},
    ]  # fmt: skip
    for k, geometry in enumerate(convolutions):
        kind = ("plain", "cancelling", "absorbed", "wide", "tiny")[k]
        for dtype in (F32, F64):
            layer = conv(rng, "y", "x", kind=kind, dtype=dtype, bias=k != 3, **geometry)
            given = Input(2, 1, dtype, point=k % 2 == 1, equal=kind == "absorbed")
            yield make(rng, f"conv {geometry} {dtype}", [layer], IMAGE, given, 4)
        if kind != "tiny":
            layer = conv(rng, "y", "x", kind=kind, **geometry)
            yield make(
                rng,
                f"conv {geometry} evaluated",
                [layer],
                IMAGE,
                Input(2, 1, F64, evaluation=True, point=k % 2 == 0),
                4,
            )
    one = np.full((1, 2, 6, 5), 0.97 * 2.0**-24)
    one[:, 0, 0, 0] = 1
    signs = torch.tensor([[1.0], [-1.0], [0.0]]).repeat(1, 60)
    behind = signs * (torch.arange(60) > 0)  # all but the one that is 1
    lost = Input(6, 0, F64, evaluation=True, point=True, center=torch.from_numpy(one))
    sums = {
        "conv": [Layer("y", "conv2d.default", [X, torch.ones(1, 2, 6, 5), None, [1, 1], [0, 0], [1, 1], 1])],
        "conv of groups": [
            Layer("y", "conv2d.default", [X, torch.ones(2, 1, 6, 5), torch.ones(2), [1, 1], [0, 0], [1, 1], 2])
        ],
        "avg": [Layer("y", "avg_pool2d.default", [X, [6, 5], [1, 1], [0, 0], False, True])],
        "mean": [Layer("y", "mean.dim", [X, [2, 3], False])],
        "mean of all": [Layer("y", "mean.dim", [X, [1, 2, 3], True])],
        "linear": [flat("f", "x"), Layer("y", "linear.default", [Of("f"), signs, torch.zeros(3)])],
        "biased linear": [
            flat("f", "x"),
            Layer("y", "linear.default", [Of("f"), behind, torch.tensor([1.0, -1.0, 0.0])]),
        ],
    }
    for name, layers in sums.items():
        yield make(rng, f"{name} of what is rounded away", layers, (2, 6, 5), lost, 1)
    parts = [Layer("a", "slice.Tensor", [X, 1, 0, 2]), Layer("b", "slice.Tensor", [X, 1, 2, 4])]
    for call in ("add.Tensor", "sub.Tensor"):
        given = Input(6, 0, F64, evaluation=True, point=True, wide=4)
        yield make(rng, f"{call} of unequal parts", [*parts, Layer("y", call, [Of("a"), Of("b")])], (4,), given, 2)
    third = [Layer("y", "mul.Tensor", [X, 0.3]), Layer("z", "add.Tensor", [Of("y"), -0.7])]
    image = torch.from_numpy(rng.normal(size=(2, 1, 1))).float()
    pixels, entries = (torch.from_numpy(rng.normal(size=size)).float() for size in ((2, 2), (4, 2, 2)))
    singles: dict[str, tuple[list[Layer], tuple[int, ...]]] = {
        "avg": ([Layer("y", "avg_pool2d.default", [X, [3, 2], [1, 1], [1, 0], False, True])], IMAGE),
        "avg of what is there": ([Layer("y", "avg_pool2d.default", [X, [3, 2], [2, 1], [1, 1], True, False])], IMAGE),
        "avg divided": ([Layer("y", "avg_pool2d.default", [X, [2, 2], [1, 1], [0, 0], False, True, 7])], IMAGE),
        "adaptive": ([Layer("y", "adaptive_avg_pool2d.default", [X, [3, 2]])], IMAGE),
        "mean": ([Layer("y", "mean.dim", [X, [2, 3], False])], IMAGE),
        "mean of lines": ([Layer("y", "mean.dim", [X, [-1], True])], IMAGE),
        "max": ([Layer("y", "max_pool2d.default", [X, [2, 2], [1, 1], [1, 1], [1, 1]])], IMAGE),
        "max dilated": ([Layer("y", "max_pool2d.default", [X, [2, 2], [2, 1], [0, 0], [2, 1]])], IMAGE),
        "max strided": ([Layer("y", "max_pool2d.default", [X, [3, 2], [2, 2], [1, 0], [1, 1]])], IMAGE),
        "batch norm": ([batch_norm(rng, "y", "x", 2)], IMAGE),
        "batch norm, wide": ([batch_norm(rng, "y", "x", 5, kind="wide")], (5,)),
        "two scales": (third, (6,)),
        "normalization": ([Layer("y", "sub.Tensor", [X, image]), Layer("z", "div.Tensor", [Of("y"), abs(image) + 0.2])], IMAGE),
        "from a constant": ([Layer("y", "rsub.Scalar", [X, 0.9]), Layer("z", "neg.default", [Of("y")])], (6,)),
        "moves": (
            [
                Layer("p", "pad.default", [X, [1, 0, 0, 2]]), Layer("t", "transpose.int", [Of("p"), 1, 3]),
                Layer("s", "slice.Tensor", [Of("t"), 2, 1, 5, 2]), Layer("u", "permute.default", [Of("s"), [0, 3, 1, 2]]),
                Layer("y", "reshape.default", [Of("u"), [-1, 2, 8]]), flat("z", "y"),
            ],
            IMAGE,
        ),
        "a scale beside its convolution": (
            [conv(rng, "a", "x", (2, 2, 2, 2)), Layer("b", "mul.Tensor", [Of("a"), -0.6]), Layer("y", "add.Tensor", [Of("b"), Of("a")])],
            IMAGE,
        ),
        "a scale of pixels": ([conv(rng, "a", "x", (4, 2, 3, 2)), Layer("y", "mul.Tensor", [Of("a"), pixels])], IMAGE),
        "a scale of entries": ([conv(rng, "a", "x", (4, 2, 3, 2)), Layer("y", "mul.Tensor", [Of("a"), entries])], IMAGE),
        "a shift alone": (
            [
                Layer("a", "conv2d.default", [X, torch.full((2, 2, 1, 1), 1e-12), torch.tensor([-5.3, 0.7]), [1, 1], [0, 0], [1, 1], 1]),
                Layer("y", "mul.Tensor", [Of("a"), 0.3]),
            ],
            IMAGE,
        ),
        "unequal branches": (
            [Layer("a", "mul.Tensor", [X, 1e4]), Layer("b", "add.Tensor", [X, Of("a")]), Layer("y", "sub.Tensor", [Of("b"), X])],
            (4,),
        ),
        "branches": (
            [
                Layer("a", "mul.Tensor", [X, 1.7]), relu("b", "a"), Layer("c", "sub.Tensor", [Of("b"), X]),
                Layer("d", "add.Tensor", [Of("c"), Of("a")]), Layer("y", "cat.default", [[Of("d"), X, Of("c")], 1]),
            ],
            (4,),
        ),
    }  # fmt: skip
    spread, back = weights(rng, 2, 3, 2, 3), weights(rng, 4, 2, 3, 2)
    lines, narrow = Layer("r", "reshape.default", [X, [-1, 2, 12]]), weights(rng, 3, 2, 4)
    along: list[Any] = [[2], [1], [1]]
    singles |= {
        "a product on the right": ([Layer("y", "mm.default", [X, weights(rng, 6, 4)])], (6,)),
        "a product and a sum": ([Layer("y", "addmm.default", [weights(rng, 4), X, weights(rng, 6, 4)])], (6,)),
        "a sum over two letters": ([Layer("y", "einsum.default", ["zcab,bdc->zda", [X, weights(rng, 3, 4, 2)]])], IMAGE),
        "a sum over one of three": ([Layer("y", "tensordot.default", [X, weights(rng, 5, 4), [2], [1]])], IMAGE),
        "running sums": ([Layer("y", "cumsum.default", [X, 2])], IMAGE),
        "sums": ([Layer("y", "sum.dim_IntList", [X, [1, 3], True])], IMAGE),
        "a convolution along lines": (
            [lines, Layer("y", "conv1d.default", [Of("r"), narrow, weights(rng, 3), *along, 1])],
            IMAGE,
        ),
        "spread": ([Layer("y", "conv_transpose2d.input", [X, spread, weights(rng, 3), [2, 1], [1, 0], [1, 0], 1, [1, 1]])], IMAGE),
        "spread in groups": ([Layer("y", "conv_transpose2d.input", [X, back[:2], None, [1, 2], [0, 1], [0, 0], 2, [2, 1]])], IMAGE),
        "a product of tokens": ([Layer("y", "linear.default", [X, weights(rng, 2, 3), weights(rng, 2)])], IMAGE),
        "a product on the left": ([Layer("y", "matmul.default", [weights(rng, 5, 4), X])], IMAGE),
        "products on the left": ([Layer("y", "matmul.default", [weights(rng, 2, 5, 4), X])], IMAGE),
        "products on the right": ([Layer("y", "matmul.default", [X, weights(rng, 2, 3, 4)])], IMAGE),
        "a convolution as long as the lines": (
            [lines, Layer("y", "conv1d.padding", [Of("r"), narrow, None, [1], "same"])],
            IMAGE,
        ),
        "spread along lines": (
            [lines, Layer("y", "conv_transpose1d.default", [Of("r"), weights(rng, 2, 3, 4), None, *along])],
            IMAGE,
        ),
        "lines interpolated": (
            [lines, Layer("y", "upsample_linear1d.vec", [Of("r"), None, False, [2.0]])],
            IMAGE,
        ),
        "interpolated": ([Layer("y", "upsample_bilinear2d.vec", [X, None, False, [2.0, 4.0]])], IMAGE),
    }  # fmt: skip
    for name, (layers, shape) in singles.items():
        yield make(rng, name, layers, shape, Input(3, 1, F32), 5)
        yield make(rng, f"{name}, float64", layers, shape, Input(3, 2, F64, spread=0.01, rest=0.02), 5)
        yield make(rng, f"{name}, a point", layers, shape, Input(2, 0, F32, point=True, wide=2), 2)
        yield make(
            rng, f"{name}, evaluated", layers, shape, Input(2, 1, F64, evaluation=True, point="max" not in name), 3
        )


Chain = Callable[[Rng, torch.dtype], tuple[list[Layer], tuple[int, ...]]]


def dense(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [
        linear(rng, "a", "x", 3, 5, dtype=dtype),
        relu("b", "a"),
        linear(rng, "c", "b", 5, 4, dtype=dtype),
        relu("d", "c"),
    ]
    return [*layers, linear(rng, "y", "d", 4, 3, dtype=dtype)], (3,)


def lonely(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    return [linear(rng, "a", "x", 1, 3, dtype=dtype), relu("b", "a"), linear(rng, "y", "b", 3, 2, dtype=dtype)], (1,)


def wide_weights(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [
        linear(rng, "a", "x", 4, 4, "cancelling", dtype),
        relu("b", "a"),
        linear(rng, "c", "b", 4, 4, "wide", dtype),
    ]
    return [*layers, Layer("d", "leaky_relu.default", [Of("c"), 0.1]), linear(rng, "y", "d", 4, 3, dtype=dtype)], (4,)


def convolved(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [
        conv(rng, "a", "x", (2, 1, 2, 2), dtype=dtype, bias=rng.random() < 0.5), batch_norm(rng, "b", "a", 2, dtype), relu("c", "b"),
        conv(rng, "d", "c", (3, 2, 2, 2), stride=(2, 1), padding=(1, 0), dtype=dtype), relu("e", "d"), flat("f", "e"),
    ]  # fmt: skip
    return [*layers, linear(rng, "y", "f", 12, 3, dtype=dtype)], (1, 4, 4)


def residual(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [
        conv(rng, "a", "x", (2, 1, 3, 3), padding=(1, 1), dtype=dtype), relu("b", "a"), conv(rng, "c", "b", (2, 2, 1, 1), dtype=dtype),
        Layer("d", "add.Tensor", [Of("a"), Of("c")]), relu("e", "d"), Layer("f", "sub.Tensor", [Of("e"), Of("b")]),
        Layer("g", "avg_pool2d.default", [Of("f"), [2, 2], [1, 1], [0, 0]]), flat("h", "g"),
    ]  # fmt: skip
    return [*layers, linear(rng, "y", "h", 8, 2, dtype=dtype)], (1, 3, 3)


def pooled(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [
        Layer("n", "sub.Tensor", [X, 0.3]), Layer("m", "div.Tensor", [Of("n"), 0.25]), conv(rng, "a", "m", (2, 1, 2, 2), dtype=dtype),
        Layer("b", "max_pool2d.default", [Of("a"), [2, 2], [1, 1], [0, 0], [1, 1]]), Layer("c", "tanh.default", [Of("b")]),
        flat("d", "c"), linear(rng, "e", "d", 8, 3, dtype=dtype), Layer("f", "sigmoid.default", [Of("e")]),
    ]  # fmt: skip
    return [*layers, linear(rng, "y", "f", 3, 3, dtype=dtype)], (1, 4, 4)


def tiny(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [
        linear(rng, "a", "x", 3, 4, "tiny", dtype),
        relu("b", "a"),
        linear(rng, "c", "b", 4, 3, "huge", dtype),
        relu("d", "c"),
    ]
    return [*layers, linear(rng, "y", "d", 3, 2, "huge", dtype)], (3,)


def shallow(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    return [linear(rng, "y", "x", 4, 3, "absorbed", dtype)], (4,)


def many_classes(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [linear(rng, "a", "x", 2, 3, dtype=dtype), relu("b", "a")]
    return [*layers, linear(rng, "y", "b", 3, 35, dtype=dtype)], (2,)


def scales(rng: Rng, dtype: torch.dtype) -> tuple[list[Layer], tuple[int, ...]]:
    layers = [
        Layer("n", "add.Tensor", [X, -0.45]), Layer("m", "mul.Tensor", [Of("n"), 3.3]), batch_norm(rng, "o", "m", 2, dtype),
        conv(rng, "a", "o", (4, 2, 2, 2), groups=2, dtype=dtype), batch_norm(rng, "b", "a", 4, dtype),
        Layer("q", "mul.Tensor", [Of("b"), -0.7]), Layer("r", "add.Tensor", [Of("q"), 0.1]), relu("c", "r"), flat("f", "c"),
    ]  # fmt: skip
    return [*layers, linear(rng, "y", "f", 16, 2, dtype=dtype)], (2, 3, 3)


NETWORKS: dict[str, Chain] = {
    "lonely": lonely, "dense": dense, "shallow": shallow, "convolved": convolved, "residual": residual, "scales": scales, "pooled": pooled,
    "wide": wide_weights, "tiny": tiny, "many classes": many_classes,
}  # fmt: skip


def networks(rng: Rng) -> Iterator[Case]:
    for number, (name, build) in enumerate(NETWORKS.items()):
        inputs = [
            (F32, Input(4, 2, F32)),
            (F64, Input(4, 1, F64)),
            (F32, Input(3, 1, F64, spread=1, rest=0)),
            (F32, Input(2, 0, F32, point=True)),
            (F32, Input(2, 1, F64, evaluation=True, spread=0.01)),
            (F64, Input(6, 2, F64, spread=1, rest=0.03, quadratic=True)),
        ]
        if name in ("dense", "lonely"):
            inputs += [
                (F32, Input(4, 3, F32, lasting=1, spread=0.5, quadratic=True)),
                (F64, Input(8, 3, F64, spread=1, rest=0.001, quadratic=True, lasting=1)),
                (F32, Input(2, 0, F64, evaluation=True, point=True)),
                (F32, Input(4, 3, F32, lasting=1, spread=0.01, uneven=True, quadratic=True)),
            ]
        for k, (dtype, given) in enumerate(inputs):
            if (name in ("tiny", "wide") and given.evaluation) or (
                name not in ("dense", "lonely") and (k + number) % 3 == 0
            ):
                continue
            layers, shape = build(rng, dtype)
            yield make(rng, f"{name} of {dtype}, {given}", layers, shape, given, 8 if given.rows > 2 else 4)


def nonlinear(rng: Rng) -> Iterator[Case]:
    """Yield cases of products, normalizations, softmax, fake quantization and smooth functions."""
    from tests.soundness.network_fuzz_nonlinear import cases

    yield from cases(rng)


def piecewise(rng: Rng) -> Iterator[Case]:
    """Yield cases of piecewise linear functions, rearrangements, maxima, and functions written as others."""
    from tests.soundness.network_fuzz_piecewise import cases

    yield from cases(rng)


FAMILIES: dict[str, Callable[[Rng], Iterator[Case]]] = {
    "activations": activations,
    "linears": linears,
    "networks": networks,
    "nonlinear": nonlinear,
    "piecewise": piecewise,
}


def inputs(seed: int, families: Sequence[str] = tuple(FAMILIES)) -> list[Case]:
    # the lazy imports of these take longer than most cases
    backward = torch.func.vjp(lambda x: F.avg_pool2d(x, 2), torch.zeros(1, 1, 2, 2))[1]
    backward(torch.zeros(1, 1, 1, 1))
    result = []
    for name in families:
        result += FAMILIES[name](np.random.default_rng([seed, zlib.crc32(name.encode())]))
    return result


def size(case: Case) -> int:
    """Return how many exact numbers the package's claims are compared with."""
    return sum(values.size for values in case.values.values()) + case.reached.size + case.margins.size
