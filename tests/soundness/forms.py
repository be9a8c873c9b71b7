"""Random affine forms, their members, and a search for the member that breaks a network bound."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm


def make_form(
    shape: tuple[int, ...],
    symbols: int,
    seed: int,
    rows: int = 3,
    scale: float = 0.3,
    dtype: torch.dtype = torch.float32,
) -> AffineForm:
    """Draw `rows` independent forms around random centers; one in four entries has no remainder."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.rand(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    center = 2 * draw(1, rows, *shape) - 1
    slopes = scale * (2 * draw(symbols, rows, *shape) - 1)
    radius = scale * draw(rows, *shape) * (draw(rows, *shape) > 0.25)
    return AffineForm(torch.cat([center, slopes]).to(dtype), radius.to(dtype))


def points(form: AffineForm, e: Tensor, s: Tensor) -> Tensor:
    """Return the members [S, P, ...] at symbols e [S, P, d] and remainder positions s [S, P, ...], in float64."""
    return form.center.double() + torch.einsum("spd,dp...->sp...", e, form.slopes.double()) + s * form.radius.double()


def in_float64(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def run_rows(model: nn.Module, x: Tensor, one_by_one: bool = False) -> Tensor:
    """Return outputs [S, P, K] of inputs [S, P, ...]; ``one_by_one`` if the rows of a batch may influence each other."""
    if one_by_one:
        return torch.stack([model(batch.clone()) for batch in x])
    return model(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def candidates(form: AffineForm, seed: int, number: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, symbols = form.center.shape[0], form.slopes.shape[0]
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=symbols))[:4], dtype=torch.float64)
    random_e = 2 * torch.rand(number, rows, symbols, generator=generator, dtype=torch.float64) - 1
    e = torch.cat([corners[:, None].expand(-1, rows, -1), random_e, torch.zeros(1, rows, symbols, dtype=torch.float64)])
    s = 2 * torch.rand(len(e), *form.center.shape, generator=generator, dtype=torch.float64) - 1
    s[::2] = s[::2].sign()
    s[-1] = 0
    return e, s


def climb(
    model: nn.Module, form: AffineForm, labels: Tensor | None, seed: int, one_by_one: bool = False
) -> tuple[Tensor, Tensor]:
    """Take three sign steps from a random point for each output and direction, towards corners likely to break the bound."""
    e, s = (tensor[-2:-1] for tensor in candidates(form, seed, 1))
    outputs = run_rows(model, points(form, e, s), one_by_one).shape[-1]
    direction = torch.cat([torch.eye(outputs), -torch.eye(outputs)]).double()[:, None]
    e, s = e.repeat(2 * outputs, 1, 1), s.repeat(2 * outputs, *[1] * (s.ndim - 1))
    for _ in range(3):
        e.requires_grad_(), s.requires_grad_()
        value = (margins(run_rows(model, points(form, e, s), one_by_one), labels) * direction).sum()
        gradients = torch.autograd.grad(value, (e, s), allow_unused=True)
        e, s = (
            torch.zeros_like(old) if grad is None else grad.sign() for old, grad in zip((e, s), gradients, strict=True)
        )
    return e.detach(), s.detach()


def margins(outputs: Tensor, labels: Tensor | None) -> Tensor:
    if labels is None:
        return outputs
    index = labels.view(1, -1, 1).expand(len(outputs), -1, 1)
    return outputs.gather(2, index) - outputs


def assert_inside(
    model: nn.Module,
    form: AffineForm,
    bound: AffineForm,
    labels: Tensor | None = None,
    seed: int = 0,
    one_by_one: bool = False,
) -> None:
    """Assert that no tried member of the input set has an output outside [lower, upper], or outside the form at the same e.

    The network is evaluated in float64; the only allowance is that evaluation's rounding, 1e-12 of the outputs' magnitude.
    """
    exact = in_float64(model)
    e, s = candidates(form, seed)
    try:
        more_e, more_s = climb(exact, form, labels, seed, one_by_one)
        e, s = torch.cat([e, more_e]), torch.cat([s, more_s])
    except RuntimeError:  # a network without gradients is tried at the random points alone
        pass
    with torch.no_grad():
        outputs = margins(run_rows(exact, points(form, e, s), one_by_one), labels)
    assert bound.center.shape == outputs.shape[1:]
    assert bound.slopes.shape[0] == form.slopes.shape[0]
    for tensor in (bound.center, bound.slopes, bound.radius, bound.lower, bound.upper):
        assert not tensor.isnan().any()
    allowed = 1e-12 * (1 + outputs.abs().max())
    low, high = bound.lower.double() - allowed, bound.upper.double() + allowed
    worst = torch.maximum(low - outputs, outputs - high).max().item()
    assert worst <= 0, f"an output leaves [lower, upper] by {worst:.3g}"
    middle = bound.center.double() + torch.einsum("spd,dpk->spk", e, bound.slopes.double())
    worst = ((outputs - middle).abs() - bound.radius.double()).max().item()
    assert worst <= allowed, f"an output leaves the form at its own symbols by {worst:.3g}"
