"""A network as a list of operations, with references to the module's parameters; scales are folded into what is before them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tiltproof.network.arithmetic import PROOF, arithmetic_now, require_proof


@dataclass(frozen=True)
class Reference:
    """Refers to a tensor that does not depend on the input: a parameter, a buffer, or a value computed from them."""

    name: str
    shape: tuple[int, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Formula:
    """How the constants of a scale follow from others, for bounds that need more bits of them (`network.pair_constants`)."""

    kind: str
    constants: tuple[Any, ...]

    def resolve(self, values: Mapping[str, Tensor]) -> Formula:
        """The same formula with the current tensor in place of every reference."""
        return Formula(
            self.kind, tuple(values[each.name] if isinstance(each, Reference) else each for each in self.constants)
        )


@dataclass(frozen=True)
class Operation:
    """One operation: ``kind`` names its rule, ``inputs`` the operations it reads, ``settings`` everything else."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    settings: dict[str, Any]
    shape: tuple[int, ...]  # of the output, without the batch dimension
    evaluation: float = 0.0
    """Unit roundoff of the certified evaluation: 0 for real numbers; 2^-24 for any float32 evaluation, whose rounding errors the rules must
    then enclose."""
    vanishing: bool = False
    """One of its constants is subnormal in the dtype, or may be flushed to zero."""
    fragile: bool = False
    """An evaluation may overflow, divide by zero or underflow with these constants: nothing is proved."""
    kept: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """Cache of `once`; None if constants may change."""

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Compute a value that depends on the constants alone; in a proof, where they do not change, only once."""
        if self.kept is None:
            return make()
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    @property
    def products(self) -> int:
        """Number of multiplications per image, for convolutions and linear layers."""
        weight = self.settings.get("weight")
        return math.prod(self.shape) * weight[0].numel() if isinstance(weight, Tensor) else 0

    def resolve(self, constants: dict[str, Tensor], evaluation: float, dtype: torch.dtype | None) -> Operation:
        """The same operation with the current tensor in place of every reference."""
        settings = {
            key: constants[value.name] if isinstance(value, Reference) else value
            for key, value in self.settings.items()
        }
        formula = self.settings.get("formula")
        if isinstance(formula, Formula):
            settings["formula"] = formula.resolve(constants)
        raw = settings.pop("constants", None)
        fragile = bool(evaluation) and raw is not None and not tame(raw)
        vanishing = dtype is not None and any(vanishes(value, evaluation, dtype) for value in settings.values())
        kept: dict[str, Any] | None = None if dtype is None else {}
        return Operation(self.name, self.kind, self.inputs, settings, self.shape, evaluation, vanishing, fragile, kept)


@dataclass
class Network:
    """Operations in topological order; ``input`` and ``output`` are names."""

    input: str
    output: str
    shape: tuple[int, ...]  # of one input image
    operations: list[Operation]
    leaves: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    computed: list[tuple[str, Callable[[dict[str, Tensor]], Any]]] = field(default_factory=list)
    evaluation: float = 0.0  # as in `Operation`
    arithmetic: str | None = None  # in which the constants were computed

    def network_as(
        self, dtype: torch.dtype | None = None, evaluation: float = 0.0, instead: Mapping[int, Tensor] | None = None
    ) -> Network:
        """The network with the current parameter values in place of references (gradients flow to them).

        ``dtype``: of the bounds; it must not be narrower than the parameters' own, so that the conversion is exact. Proofs pass it, and get
        copies of all constants, since cached values (`Operation.once`) would not notice a parameter that changes in place. Training omits
        it and skips the inspection of every constant. ``evaluation``: unit roundoff of the certified evaluation, 0 for real numbers.
        ``instead``: for training, tensors that replace parameters or buffers, by the id of what they replace.

        The network records the arithmetic its constants were computed in; a proof refuses constants from outside of it (`forward.run`).
        """
        if dtype is not None:
            require_proof()
        constants: dict[str, Any] = {name: get() for name, get in self.leaves.items()}
        if instead:
            constants = {name: instead.get(id(value), value) for name, value in constants.items()}
        for name, compute in self.computed:  # in the parameters' own precision, so the network is the same in any dtype
            constants[name] = compute(constants)
        if dtype is not None:
            constants = {name: _own(_widened(x, dtype), x) for name, x in constants.items()}
        operations = [operation.resolve(constants, evaluation, dtype) for operation in self.operations]
        if dtype is not None and not evaluation:
            operations = folded(operations, self.output, dtype)
        return Network(
            self.input, self.output, self.shape, operations, evaluation=evaluation, arithmetic=arithmetic_now()
        )

    def require_proof(self) -> None:
        """Raise unless the constants were, and bounds now are, computed in the proof's arithmetic."""
        require_proof()
        if self.arithmetic != PROOF:
            raise RuntimeError("constants were computed outside of the proof's arithmetic; please report this")

    @property
    def last(self) -> Operation:
        return self.operations[-1]

    @property
    def last_linear(self) -> Operation | None:
        """The linear layer that computes the outputs, if there is one: margins use differences of its rows."""
        last = self.operations[-1] if self.operations else None
        return last if last is not None and last.name == self.output and last.kind == "linear" else None

    def output_shape(self) -> tuple[int, ...]:
        """Shape of one image's output."""
        return next((operation.shape for operation in self.operations if operation.name == self.output), self.shape)

    def entries(self) -> int:
        """How many numbers an image and the results of all operations on it have."""
        return math.prod(self.shape) + sum(math.prod(operation.shape) for operation in self.operations)

    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters (float32 without any)."""
        for get in self.leaves.values():
            if get().is_floating_point():
                return get().dtype
        return torch.float32


LARGEST_CONSTANT = 2.0**40


def tame(constants: Tensor) -> bool:
    """Whether every entry is zero or a normal float32 number that is not huge (docs/what-is-certified.md)."""
    size = constants.detach().abs()
    return bool(((size == 0) | ((size >= torch.finfo(torch.float32).tiny) & (size <= LARGEST_CONSTANT))).all())


def vanishes(value: Any, evaluation: float, dtype: torch.dtype) -> bool:
    """Whether a nonzero entry is below the normal numbers of the dtype (of float32, with float32 semantics)."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    least = torch.finfo(torch.float32 if evaluation else dtype).tiny
    size = value.detach().abs()
    return bool(((size > 0) & (size < least)).any())


def _own(widened: Any, given: Any) -> Any:
    """A copy, never the caller's tensor itself."""
    return widened.clone() if widened is given and isinstance(given, Tensor) else widened


def _widened(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


# Fold a scale into the convolution or the scale before it: one pass over memory instead of two, and the same
# real-valued function.
# s (W x + b) + t = (s W) x + (s b + t) for each channel: of a batch norm; of a normalization, which subtracts and
# then divides, W is a scale too. Products are computed in float64 and rounded to the bounds' dtype, so each weight
# carries a few roundings, which the rule adds to its own (``roundings``); those of the new shift are relative to |s
# b| plus the size for t (``shift_size``). Only bounds of real-valued networks are folded: a floating-point evaluation
# performs both steps. A normalization is not folded into the convolution after it: x - m would no longer cancel, and
# its roundings would be several times larger.

ROUNDINGS = 8
"""Roundings of a folded weight in its dtype: 4 of the scale, the product, the dtype; the rest is margin."""
OF_SCALES = 6
"""Roundings of the product of two scales, beyond those that the rule allows for one scale: 4 of the other scale, the product, and, for the
shift, the sum."""


def folded(operations: list[Operation], output: str, dtype: torch.dtype) -> list[Operation]:
    """Fold each scale that follows a convolution or a scale with no other reader; the caller reads ``output``."""
    readers = Counter(name for operation in operations for name in operation.inputs)
    readers[output] += 1
    result: dict[str, Operation] = {}
    for operation in operations:
        before = result.get(operation.inputs[0]) if operation.kind == "scale" and len(operation.inputs) == 1 else None
        if before is not None and readers[before.name] == 1:
            if before.kind == "conv2d" and _by_channel(operation):
                operation = _fold(result.pop(before.name), operation, dtype)
            elif before.kind == "scale" and _ordinary(before, operation):
                operation = _of_two(result.pop(before.name), operation, dtype)
        result[operation.name] = operation
    return list(result.values())


def _by_channel(operation: Operation) -> bool:
    """Whether the constants of a scale depend on the channel alone."""
    constants = [operation.settings.get(key) for key in ("scale", "shift", "shift_size")]
    return all(x is None or x.ndim < 3 or tuple(x.shape[-2:]) == (1, 1) for x in constants) and all(
        x is None or x.ndim >= 3 or x.numel() == 1 for x in constants
    )


def _fold(convolution: Operation, scale: Operation, dtype: torch.dtype) -> Operation:
    settings = dict(convolution.settings)
    channels = len(settings["weight"])

    def by_channel(values: Tensor) -> Tensor:
        return values.double().reshape(-1).expand(channels)

    factor = by_channel(scale.settings["scale"])
    weight, each = settings["weight"].double(), factor.view(-1, 1, 1, 1)
    # a nonzero product that is subnormal or zero in the dtype
    vanished = (weight != 0) & (each != 0) & ((weight * each).abs() < torch.finfo(dtype).tiny)
    settings["weight"] = (weight * each).to(dtype)
    shift = size = torch.zeros_like(factor)
    if settings["bias"] is not None:
        shift = settings["bias"].double() * factor
        before = settings.get("shift_size")
        size = shift.abs() if before is None else by_channel(before) * factor.abs()
    if scale.settings["shift"] is not None:
        own = by_channel(scale.settings["shift"])
        given = scale.settings.get("shift_size")
        shift, size = shift + own, size + (own.abs() if given is None else by_channel(given))
    settings["bias"], settings["shift_size"] = shift.to(dtype), size.to(dtype)
    settings["roundings"] = settings.get("roundings", 0) + ROUNDINGS
    settings["folded"] = convolution, scale
    vanishing = (
        convolution.vanishing or scale.vanishing or bool(vanished.any()) or vanishes(settings["bias"], 0.0, dtype)
    )
    return dataclasses.replace(
        convolution, name=scale.name, settings=settings, shape=scale.shape, vanishing=vanishing, kept={}
    )


def _ordinary(first: Operation, second: Operation) -> bool:
    """Whether the factors of two scales and their products are tame: a product of tiny factors may underflow, and with huge ones the
    evaluation that the network is compared with may overflow."""
    weight, factor = first.settings["scale"].double(), second.settings["scale"].double()
    return all(tame(x) for x in (weight, factor, torch.where((weight != 0) & (factor != 0), weight * factor, 1.0)))


def _of_two(first: Operation, second: Operation, dtype: torch.dtype) -> Operation:
    """Multiply two scales, in float64, as a scale's constants always are."""
    weight, factor = first.settings["scale"].double(), second.settings["scale"].double()
    settings: dict[str, Any] = {"scale": weight * factor, "shift": None, "folded": (first, second)}
    settings["roundings"] = OF_SCALES + sum(each.settings.get("roundings", 0) for each in (first, second))
    if first.settings["shift"] is not None or second.settings["shift"] is not None:
        (shift, size), (own, more) = _shift(first, weight), _shift(second, factor)
        settings |= {"shift": shift * factor + own, "shift_size": size * factor.abs() + more}
    vanishing = first.vanishing or second.vanishing or vanishes(settings["shift"], 0.0, dtype)
    return dataclasses.replace(second, inputs=first.inputs, settings=settings, vanishing=vanishing, kept={})


def _shift(scale: Operation, like: Tensor) -> tuple[Tensor, Tensor]:
    """A scale's shift and the size that its roundings are relative to."""
    shift, size = scale.settings["shift"], scale.settings.get("shift_size")
    shift = torch.zeros_like(like) if shift is None else shift.double()
    return shift, shift.abs() if size is None else size.double()


DEEP = 15.0
"""`growth_of_radii` from which on radii alone decide nothing, not even at a point. The bundled networks have 5 to 8, a ResNet-20 has 25."""
PERHAPS_DEEP = 10.0
"""The same from which on `network.deep` may cost less than plain bounds."""


@torch.no_grad()
def growth_of_radii(network: Network) -> float:
    """log10 of how much radii may grow on the way through the network: row sums of |W|, added where branches meet."""
    found = {network.input: 0.0}
    for operation in network.operations:
        sums = [found[name] for name in operation.inputs]
        if not sums:
            found[operation.name] = 0.0
            continue
        largest = max(sums)
        if operation.kind in ("add", "sub"):
            largest += math.log10(sum(10 ** (each - largest) for each in sums))
        found[operation.name] = largest + operation.once("row sums", partial(_row_sums, operation))
    return found[network.output]


def _row_sums(operation: Operation) -> float:
    weight, scale = operation.settings.get("weight"), operation.settings.get("scale")
    if isinstance(weight, Tensor) and operation.kind in ("linear", "conv2d"):
        largest = float(weight.abs().flatten(1).sum(1).max())
    elif isinstance(scale, Tensor) and operation.kind == "scale":
        largest = float(scale.abs().max())
    else:
        return 0.0
    return math.log10(max(largest, 1e-30))


@torch.no_grad()
def is_deep(network: Network, perhaps: bool = False) -> bool:
    """Whether `network.deep` is made for this network: deep, of real numbers, with ReLUs; or whether it may be worth its cost."""
    if network.evaluation or not network.operations or not all(each.inputs for each in network.operations):
        return False
    least = min(DEEP, PERHAPS_DEEP) if perhaps else DEEP
    return any(each.kind == "relu" for each in network.operations) and growth_of_radii(network) >= least
