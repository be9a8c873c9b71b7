"""A model as a list of operations on bounds, with live references to its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tiltproof.network.arithmetic import PROOF, arithmetic_now, require_proof


@dataclass(frozen=True)
class Reference:
    """Stands for a tensor that does not depend on the input: a parameter, a buffer, or something computed from them."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One step: ``kind`` names its rule, ``inputs`` the operations it reads, ``settings`` all the rest."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    settings: dict[str, Any]
    shape: tuple[int, ...]  # of the output, without the batch dimension
    evaluation: float = 0.0
    """Unit roundoff of the evaluation that bounds speak of: 0 for real numbers; 2^-24 for any float32 evaluation,
    whose rounding errors then belong to what a rule has to contain."""
    vanishing: bool = False
    """A constant of it is too small for the dtype to hold it to a relative precision, or may be flushed to zero."""
    fragile: bool = False
    """Evaluations are spoken of, and with its constants one may overflow, divide by zero or underflow on the way: nothing is proved."""
    kept: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """See `once`; None where constants may change."""

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What depends on the constants alone; in a proof, where they stay what they are, it is made once."""
        if self.kept is None:
            return make()
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    @property
    def products(self) -> int:
        """How many an image takes, where they are many: those of a convolution or a linear layer."""
        weight = self.settings.get("weight")
        return math.prod(self.shape) * weight[0].numel() if isinstance(weight, Tensor) else 0

    def resolve(self, constants: dict[str, Tensor], evaluation: float, dtype: torch.dtype | None) -> Operation:
        """The same operation with every reference replaced by the tensor it stands for now."""
        settings = {
            key: constants[value.name] if isinstance(value, Reference) else value
            for key, value in self.settings.items()
        }
        raw = settings.pop("constants", None)
        fragile = bool(evaluation) and raw is not None and not tame(raw)
        vanishing = dtype is not None and any(vanishes(value, evaluation, dtype) for value in settings.values())
        kept: dict[str, Any] | None = None if dtype is None else {}
        return Operation(self.name, self.kind, self.inputs, settings, self.shape, evaluation, vanishing, fragile, kept)


@dataclass
class Network:
    """Operations in an order that can be run; ``input`` and ``output`` are names."""

    input: str
    output: str
    shape: tuple[int, ...]  # of one input image
    operations: list[Operation]
    leaves: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    computed: list[tuple[str, Callable[[dict[str, Tensor]], Any]]] = field(default_factory=list)
    evaluation: float = 0.0  # as in `Operation`
    arithmetic: str | None = None  # in which a live network's constants were computed

    def network_as(
        self, dtype: torch.dtype | None = None, evaluation: float = 0.0, instead: Mapping[int, Tensor] | None = None
    ) -> Network:
        """The network with today's parameter values in place of references (gradients flow to them).

        ``dtype`` is that of the bounds; it may only be wider than the parameters' own, so that the conversion is exact. Proofs give it;
        training leaves it out and is spared the look at every constant. With it the network has copies of its own: what is derived from
        constants once (`Operation.once`) would not notice that a parameter is changed in place. ``evaluation`` is the unit
        roundoff of the evaluations that bounds are to speak of, 0 for real numbers. ``instead``: tensors that take the place of
        parameters or buffers, by the id of what they replace; for training alone.

        The network remembers in which arithmetic its constants were computed: those of a proof are, or it is refused (`forward.run`).
        """
        if dtype is not None:
            require_proof()
        constants: dict[str, Any] = {name: get() for name, get in self.leaves.items()}
        if instead:
            constants = {name: instead.get(id(value), value) for name, value in constants.items()}
        for name, compute in self.computed:  # in the parameters' own precision, so that it is the same network in any
            constants[name] = compute(constants)
        if dtype is not None:
            constants = {name: _own(_widened(x, dtype), x) for name, x in constants.items()}
        operations = [operation.resolve(constants, evaluation, dtype) for operation in self.operations]
        if dtype is not None and not evaluation:
            from tiltproof.network.folding import folded

            operations = folded(operations, self.output, dtype)
        return Network(
            self.input, self.output, self.shape, operations, evaluation=evaluation, arithmetic=arithmetic_now()
        )

    def require_proof(self) -> None:
        """Raise unless both this network's constants and what is computed now are a proof's."""
        require_proof()
        if self.arithmetic != PROOF:
            raise RuntimeError("constants were computed outside of the proof's arithmetic; please report this")

    @property
    def last(self) -> Operation:
        return self.operations[-1]

    @property
    def last_linear(self) -> Operation | None:
        """The linear layer that gives the outputs, if one does: margins are made of its rows' differences, not of its outputs."""
        last = self.operations[-1] if self.operations else None
        return last if last is not None and last.name == self.output and last.kind == "linear" else None

    def output_shape(self) -> tuple[int, ...]:
        """Of one image's output."""
        return next((operation.shape for operation in self.operations if operation.name == self.output), self.shape)

    def dtype(self) -> torch.dtype:
        """The parameters' floating-point type (float32 for a network without any)."""
        for get in self.leaves.values():
            if get().is_floating_point():
                return get().dtype
        return torch.float32


LARGEST_CONSTANT = 2.0**40


def tame(constants: Tensor) -> bool:
    """Whether each is zero, or a normal float32 number that is not huge (docs/what-is-certified.md)."""
    size = constants.detach().abs()
    return bool(((size == 0) | ((size >= torch.finfo(torch.float32).tiny) & (size <= LARGEST_CONSTANT))).all())


def vanishes(value: Any, evaluation: float, dtype: torch.dtype) -> bool:
    """Whether a number of this tensor, not zero, lies below the normal numbers of the dtype (or of float32, if evaluations in it count)."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    least = torch.finfo(torch.float32 if evaluation else dtype).tiny
    size = value.detach().abs()
    return bool(((size > 0) & (size < least)).any())


def _own(widened: Any, given: Any) -> Any:
    """Never the caller's tensor itself."""
    return widened.clone() if widened is given and isinstance(given, Tensor) else widened


def _widened(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value
