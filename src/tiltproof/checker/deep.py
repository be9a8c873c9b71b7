"""Margins of deep networks over small boxes of one parameter: a bound of the length of the remainders, and a symbol for every kink.

A `DeepForm` is a form of one (image, box) pair whose remainder vector rho also has Euclidean length at most ``ball``; its symbols are
numbered, because each ReLU adds some. Through y = W x + b, |W rho|_2 <= sigma(W) |rho|_2, and |(W rho)_i| <= |w_i|_2 |rho|_2, however large
|W| r is. Roundings and the errors of ReLUs have a length too, and lengths add up. A ReLU's error t / 2 where the sign changes is t / 2
times a number in [-1, 1], which is a symbol of its own.

Only what ResNets are made of has a rule here; for anything else `margins` says that nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltproof.checker.form import RULES, TINY, UNIT, Form, gamma, no_rule
from tiltproof.checker.network import outputs
from tiltproof.checker.operations import exact, pair
from tiltproof.checker.spectral import conv2d_sigma
from tiltproof.errors import InputError, UnsupportedOperation

MOST_SYMBOLS = 1500
MOST_BYTES = 2**29
"""Of one form; a box that needs more is not proved."""
UP = 1 + 2.0**-40  # covers a dozen roundings of numbers >= 0
DEEP: dict[Any, Callable[..., Any]] = {}
"""A torch function -> its rule for deep forms."""
SIGMA: dict[tuple[Any, ...], tuple[Tensor, float]] = {}
"""Largest singular values found so far, with copies of the weights they belong to."""
MOST_SIGMAS, MOST_ROWS = 256, 512
LEAST = 1e-150  # squares of smaller numbers underflow


def deep(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the rule for these torch functions."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DEEP.update(dict.fromkeys(functions, function))
        return function

    return register


def length(x: Tensor) -> float:
    """At least the Euclidean length of all numbers."""
    return float(x.square().sum().sqrt()) * (1 + gamma(2 * x.numel() + 16, UNIT)) + x.numel() * LEAST


def lengths(rows: Tensor) -> Tensor:
    """At least the Euclidean length of each row [n, ...]."""
    flat = rows.flatten(1)
    count = flat.shape[1]
    return flat.square().sum(1).sqrt() * (1 + gamma(2 * count + 16, UNIT)) + count * LEAST


class Made(NamedTuple):
    """How a convolution W made a form: of x with |rho|_2 <= ball it left |W rho| <= moved, and errors of its own."""

    ball: float
    moved: Tensor
    errors: Tensor
    sigma: Callable[[Tensor], float]  # of D W, for a diagonal D


class DeepForm(Form):
    """``rows`` as in `Form`, for one pair; ``numbers`` of its symbols, ascending; ``made`` and ``last``: how a convolution, or a linear
    layer, made it; ``viewed``: whether another tensor may share its memory."""

    def __init__(self, data: Tensor, ball: float, numbers: Tensor, counter: list[int]) -> None:
        super().__init__(data)
        if data.shape[1] != 1 or len(data) != len(numbers) + 2:
            raise no_rule("batches", "in deep networks")
        if data.numel() * data.element_size() > MOST_BYTES:
            raise no_rule("forward", "with forms this large, in deep networks")
        self.ball = min(ball * UP, length(data[-1])) if bool(data.isfinite().all()) else math.inf
        self.numbers, self.counter, self.viewed = numbers, counter, False
        self.made: Made | None = None
        self.last: tuple[DeepForm, Tensor, Tensor] | None = None

    def become(self, other: Form, name: str) -> DeepForm:
        """In-place operations replace what this form is, unless another one may share its memory."""
        if self.viewed or self.shape != other.shape:
            raise no_rule(name, "in place on a tensor that is a view or has one, or with another shape")
        self.__dict__.update(other.__dict__)
        return self

    def kept(self) -> DeepForm:
        """What this form is now."""
        return DeepForm(self.rows, self.ball, self.numbers, self.counter)

    def whole(self) -> DeepForm:
        """This form with all its columns in its rows; others keep some elsewhere (`long_forms`)."""
        return self

    def rearranged(self, rows: Tensor) -> DeepForm:
        """The same numbers in the same order."""
        result = DeepForm(rows, self.ball, self.numbers, self.counter)
        self.viewed = result.viewed = True
        return result

    @property
    def reach(self) -> Tensor:
        """As that of a `Form`; there may be hundreds of symbols."""
        return self.rows[1:].abs().sum(0) * UP

    @property
    def magnitude(self) -> Tensor:
        return self.rows.abs().sum(0) * UP

    @classmethod
    def of(cls, form: Form) -> DeepForm:
        count = len(form.rows) - 2
        return cls(
            form.rows,
            math.inf if not bool(form.rows.isfinite().all()) else length(form.radius),
            torch.arange(count, device=form.device),
            [count],
        )

    def fresh(self, count: int) -> Tensor:
        self.counter[0] += count
        return torch.arange(self.counter[0] - count, self.counter[0], device=self.device)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = DEEP.get(function)
        if found is None:
            raise no_rule(getattr(function, "__name__", str(function)), "in deep networks")
        return found(*args, **(kwargs or {}))

    def __add__(self, other: Any) -> DeepForm:
        return plus(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> DeepForm:
        if isinstance(other, Form):
            raise no_rule("sub", "in deep networks")
        return one_by_one(self, lambda form: form - other)

    def __mul__(self, other: Any) -> DeepForm:
        return scaled(self, lambda form: form * other, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> DeepForm:
        return scaled(self, lambda form: form / other, other, over=True)

    def __iadd__(self, other: Any) -> DeepForm:
        return self.become(plus(self, other), "+=")

    def __getitem__(self, index: Any) -> DeepForm:
        """Slices alone: no number is taken twice."""
        index = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(each, slice) for each in index) or index[0] != slice(None):
            raise no_rule("getitem", "in deep networks")
        result = through(self, lambda form: form[index], 1.0)
        self.viewed = result.viewed = True
        return result

    @property
    def mT(self) -> Any:  # noqa: N802 (torch's name)
        return self._refused()

    def _refused(self, *_: Any) -> Any:
        raise no_rule("arithmetic", "in deep networks")

    __rsub__ = __neg__ = __rtruediv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __abs__ = _refused
    __isub__ = __imul__ = __itruediv__ = __gt__ = __lt__ = __ge__ = __le__ = _refused

    def __getattr__(self, name: str) -> Any:
        """Where a `Form` has a rule and this has none, that is a refusal: a forward pass must not take another way then."""
        method = getattr(torch.Tensor, name, None)
        found = DEEP.get(method)
        if found is None and method in RULES:
            raise no_rule(f"Tensor.{name}", "in deep networks")
        if found is None:
            raise AttributeError(f"the checker has no rule for torch function Tensor.{name}")
        return lambda *args, **kwargs: found(self, *args, **kwargs)


def split(x: DeepForm, apply: Callable[[Form], Form]) -> tuple[Tensor, Tensor, Tensor]:
    """An affine map W x + b: rows but the radius, what it rounds, and a bound of |W rho| for |rho| <= r, entry by entry.

    The last is the radius of the map's values for [-r, r] alone: they are b + W rho, symmetric around b, and lie in a form, so none is
    further from b than the form's radius. UP makes up for a form's sums of magnitudes, which allow for 64 roundings.
    """
    clean = x.rows.clone()
    clean[-1] = 0.0
    whole = apply(Form(clean))
    rest = apply(Form(torch.stack([torch.zeros_like(x.radius), x.radius])))
    return whole.rows[:-1], whole.radius * UP, rest.radius * UP


def through(x: DeepForm, apply: Callable[[Form], Form], sigma: float, local: Tensor | None = None) -> DeepForm:
    """The form behind an affine map whose linear part has no singular value above ``sigma``; ``local``: more bounds of |(W rho)_i|."""
    rows, errors, moved = split(x, apply)
    moved = moved if local is None else torch.minimum(moved, local)
    ball = min(sigma * x.ball, length(moved)) * UP + length(errors)
    return DeepForm(torch.cat([rows, ((moved + errors) * UP)[None]]), ball, x.numbers, x.counter)


def one_by_one(x: DeepForm, apply: Callable[[Form], Form], most: float = 1.0) -> DeepForm:
    """Each number becomes one, times at most ``most`` in size; where a number becomes several, the length grows more."""
    result = through(x, apply, most)
    if result.shape != x.shape:
        raise no_rule("arithmetic", "that repeats numbers, in deep networks")
    return result


def scaled(x: DeepForm, apply: Callable[[Form], Form], factor: Any, over: bool = False) -> DeepForm:
    """Times numbers that do not depend on the image, or divided by them."""
    if isinstance(factor, Form):
        raise no_rule("mul", "in deep networks")
    number = factor.detach().double() if isinstance(factor, Tensor) else torch.tensor(float(factor)).double()
    return one_by_one(x, apply, float((1 / number if over else number).abs().max()) * UP)


@deep(torch.add, torch.Tensor.add)
def plus(a: Any, b: Any) -> DeepForm:
    """Radii and lengths add; each branch has zeros where the other one has symbols of its own."""
    a, b = (a, b) if isinstance(a, DeepForm) else (b, a)
    if not isinstance(b, Form):
        return one_by_one(a, lambda form: form + b)
    if a.shape != b.shape or not isinstance(b, DeepForm) or a.counter is not b.counter:
        raise no_rule("add", "of other shapes, in deep networks")
    a, b = a.whole(), b.whole()
    every = torch.cat([a.numbers, b.numbers]).unique()
    clean = []
    for each in (a, b):
        rows = each.rows.new_zeros(len(every) + 2, *each.shape)
        rows[0] = each.center
        rows[1 + torch.searchsorted(every, each.numbers)] = each.slopes
        clean.append(Form(rows))
    total = clean[0] + clean[1]
    errors = total.radius * UP  # as in `split`
    ball = (a.ball + b.ball) * UP + length(errors)
    radius = (a.radius + b.radius + errors) * UP
    return DeepForm(torch.cat([total.rows[:-1], radius[None]]), ball, every, a.counter)


@deep(torch.relu, F.relu, torch.Tensor.relu)
def relu(input: DeepForm, inplace: bool = False) -> DeepForm:
    result = with_kinks(input)
    return input.become(result, "relu") if inplace else result


@deep(torch.relu_, F.relu_, torch.Tensor.relu_)
def relu_(input: DeepForm) -> DeepForm:
    return relu(input, inplace=True)


def with_kinks(x: DeepForm) -> DeepForm:
    """On [l, h] with l < 0 < h: relu(x) = s x + t / 2 + [-t / 2, t / 2] for any s in [0, 1], with t = max(-s l, (1 - s) h).

    The last part becomes a symbol where it exceeds the remainder. A few roundings of numbers up to |x| + t. What is left over becomes
    s rho, which is no longer than rho, and the errors.
    """
    low, high = x.lower(), x.upper()
    s = (high / (high - low)).clamp(0, 1)
    s = torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, s))
    half = torch.maximum(-s * low, (1 - s) * high).clamp(min=0) / 2 * UP
    half = torch.where((low >= 0) | (high <= 0), 0.0, half)
    chosen = (half > x.radius).flatten()
    count = int(chosen.sum())
    if len(x.rows) - 2 + count > MOST_SYMBOLS:
        raise no_rule("relu", "with this many kinks in a box")
    rows = torch.cat([x.rows[:-1] * s, x.rows.new_zeros(count, *x.shape)])
    rows[0] += half
    where = chosen.nonzero().flatten()
    rows[-count or len(rows) :].flatten(1)[torch.arange(count), where] = half.flatten()[where]
    errors = torch.where(chosen.view_as(half), 0.0, half) + gamma(16, UNIT) * (x.magnitude + 2 * half) + TINY
    ball = x.ball * UP + length(errors)
    radius = (x.radius * s + errors) * UP
    numbers = torch.cat([x.numbers, x.fresh(count)])
    return DeepForm(torch.cat([rows, radius[None]]), ball, numbers, x.counter)


@deep(torch.Tensor.dim)
def dim(x: DeepForm) -> int:
    return x.ndim


def known_sigma(weight: Tensor, *layer: Any) -> float:
    """`conv2d_sigma`, computed once; weights are compared number by number, because they may be written to in ways that leave no trace."""
    key = (float(weight.sum()), tuple(weight.shape), str(layer))
    found = SIGMA.get(key)
    if found is None or not torch.equal(found[0], weight):
        if len(SIGMA) >= MOST_SIGMAS:
            SIGMA.clear()
        found = SIGMA[key] = weight.clone(), conv2d_sigma(weight, *layer)
    return found[1]


@deep(torch.conv2d, F.conv2d)
def conv2d(
    input: DeepForm,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> DeepForm:
    """|(W rho)_i| <= |w_i|_2 |rho|_2 with rho where i reads: also the root of the sum of r^2 there."""
    x, wide = input, exact(weight, input)
    if isinstance(padding, str) or groups != 1:
        raise no_rule("conv2d", "with groups or with padding by name, in deep networks")
    where = (stride, padding, dilation)
    squares = x.radius.square().sum(1, keepdim=True)
    field = F.unfold(squares, tuple(weight.shape[2:]), dilation, padding, stride).sum(1).sqrt()
    slack = 1 + gamma(2 * weight[0].numel() + 64, UNIT)
    field = field.clamp(max=x.ball) * slack + weight[0].numel() * LEAST

    def run(form: Form) -> Form:
        result: Form = RULES[F.conv2d](form, weight, bias, *where)
        return result

    rows, errors, moved = split(x, run)
    size, shape = x.shape[2:], errors.shape[2:]
    moved = torch.minimum(moved, lengths(wide).view(1, -1, 1, 1) * field.view(1, 1, *shape) * UP)

    def sigma(factor: Tensor) -> float:
        return known_sigma(wide * factor.view(-1, 1, 1, 1), *where, size, shape)

    ball = min(sigma(torch.ones_like(wide[:, 0, 0, 0])) * x.ball, length(moved)) * UP + length(errors)
    result = DeepForm(torch.cat([rows, ((moved + errors) * UP)[None]]), ball, x.numbers, x.counter)
    result.made = Made(x.ball, moved, errors, sigma)
    return result


@deep(F.batch_norm, torch.batch_norm)
def batch_norm(
    input: DeepForm, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,  # noqa: ARG001 (torch passes it)
) -> DeepForm:  # fmt: skip
    """Behind a convolution, what is left over of its input goes through both at once: sigma of D W, not of D times that of W.

    The convolution's own errors go through D alone. ``size``: the scale's four roundings, relatively.
    """
    x, made = input, input.made
    scale = (exact(running_var, x) + eps).rsqrt() * (1 if weight is None else exact(weight, x))
    size = scale.abs() * (1 + gamma(16, UNIT))

    def apply(form: Form) -> Form:
        result: Form = RULES[F.batch_norm](form, running_mean, running_var, weight, bias, training, momentum, eps)
        return result

    rows, errors, moved = split(x, apply)
    if errors.shape != x.shape:
        raise no_rule("batch_norm", "that repeats numbers, in deep networks")
    ball = min(float(size.max()) * x.ball, length(moved)) * UP + length(errors)
    if made is not None:
        column = size.view(1, -1, 1, 1)
        both = min(made.sigma(size) * made.ball, length(made.moved * column)) * UP
        ball = min(ball, (both + length(made.errors * column) + length(errors)) * UP)
    return DeepForm(torch.cat([rows, ((moved + errors) * UP)[None]]), ball, x.numbers, x.counter)


@deep(torch.mean, torch.Tensor.mean)
def mean(x: DeepForm, dim: Any = None, keepdim: bool = False) -> DeepForm:
    """Each number is read once: sigma = 1 / sqrt(n)."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    if not dims or any(d < 1 for d in dims):
        raise no_rule("mean", "over these dimensions, in deep networks")
    n = math.prod(x.shape[d] for d in dims)
    return through(x, lambda form: RULES[torch.mean](form, dims, keepdim), 1 / math.sqrt(n) * UP)


@deep(F.avg_pool2d, torch._C._nn.avg_pool2d)
def avg_pool2d(
    input: DeepForm, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,  # noqa: ARG001 (there is no padding)
) -> DeepForm:  # fmt: skip
    """Windows that do not overlap, of n numbers each: sigma = 1 / sqrt(n)."""
    kernel, steps = pair(kernel_size, "avg_pool2d"), pair(stride or kernel_size, "avg_pool2d")
    plain = pair(padding, "avg_pool2d") == (0, 0) and not ceil_mode and divisor_override is None
    if not plain or kernel[0] > steps[0] or kernel[1] > steps[1]:
        raise no_rule("avg_pool2d", "with padding or windows that overlap, in deep networks")
    return through(input, lambda form: RULES[F.avg_pool2d](form, kernel, steps), 1 / math.sqrt(math.prod(kernel)) * UP)


@deep(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(input: DeepForm, output_size: Any) -> DeepForm:
    if output_size not in (1, (1, 1), [1, 1]):
        raise no_rule("adaptive_avg_pool2d", "to more than one number, in deep networks")
    return mean(input, (2, 3), keepdim=True)


@deep(torch.Tensor.size)
def size(x: DeepForm, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


@deep(torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
def reshape(x: DeepForm, *sizes: Any, shape: Any = None) -> DeepForm:
    result: Form = RULES[torch.reshape](Form(x.rows), *sizes, shape=shape)
    return x.rearranged(result.rows)


@deep(F.pad)
def pad(x: DeepForm, sizes: Sequence[int], mode: str = "constant", value: Any = None) -> DeepForm:
    if mode != "constant" or value not in (None, 0) or min(sizes) < 0 or len(sizes) > 2 * (x.ndim - 1):
        raise no_rule("pad", "in deep networks")
    return through(x, lambda form: RULES[F.pad](form, sizes), 1.0)


@deep(torch.flatten, torch.Tensor.flatten)
def flatten(x: DeepForm, start_dim: int = 0, end_dim: int = -1) -> DeepForm:
    if start_dim != 1 or end_dim != -1:
        raise no_rule("flatten", "in deep networks")
    return x.rearranged(x.rows.flatten(2))


@deep(F.linear)
def linear(x: DeepForm, weight: Tensor, bias: Tensor | None = None) -> DeepForm:
    if x.ndim != 2:
        raise no_rule("linear", "in deep networks")
    wide = exact(weight, x)
    local = lengths(wide) * (x.ball * UP)
    sigma = length(wide)  # Frobenius's norm
    if min(wide.shape) <= MOST_ROWS:
        sigma = min(sigma, known_sigma(wide[:, :, None, None], 1, 0, 1, (1, 1), (1, 1)))
    result = through(x, lambda form: RULES[F.linear](form, weight, bias), sigma, local[None])
    result.last = x.kept(), wide, torch.zeros_like(wide[:, 0]) if bias is None else exact(bias, x)
    return result


def margins(
    model: nn.Module, image: Form, label: Tensor, differences: Callable[[Form, Tensor], Form]
) -> tuple[float, float]:
    """Bounds of min_j (f_label - f_j) over the box of one pair; infinite where there is no rule, or too many kinks.

    ``differences``: of a form of the outputs, that of the margins. What is left over before the last layer moves that of class j by
    |(w_label - w_j) . rho| <= |w_label - w_j|_2 |rho|_2 at most.
    """
    unknown = -math.inf, math.inf
    try:
        output = outputs(model, image if isinstance(image, DeepForm) else DeepForm.of(image), 2)
    except (UnsupportedOperation, InputError):
        return unknown
    if not isinstance(output, DeepForm) or output.last is None:
        return unknown
    x, weight, bias = output.last
    # a difference rounds once
    apart = lengths(weight[label] - weight) * (x.ball * UP * UP)

    def behind(form: Form) -> Form:
        return differences(Form(form.rows, 0.0, (form, weight, bias)), label)

    rows, errors, moved = split(x, behind)
    beyond = rows[1:].abs().sum(0) + errors + torch.minimum(moved, apart[None])
    beyond = (beyond + rows[0].abs() * (8 * UNIT)) * UP
    others = ~nn.functional.one_hot(label, beyond.shape[1]).bool()
    least, most = (float(side[others].min()) for side in (rows[0] - beyond, rows[0] + beyond))
    return unknown if math.isnan(least) or math.isnan(most) else (least, most)
