"""Every operation that only rearranges entries, repeats them or puts constants between them, as one rule.

Where each entry comes from is found once, by applying torch's own operation to the numbers of the entries (`places`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.enclosures.rounding import SMALLEST
from tiltproof.errors import UnsupportedOperation
from tiltproof.network.graph import Operation, Reference
from tiltproof.network.ops.base import (
    CONVERTERS,
    BackwardResult,
    Built,
    Input,
    Refused,
    Rule,
    backward_gamma,
    converter,
    dot,
    lengths,
    row_size,
    rule,
)

TRACED = 2
"""Images in a traced batch; what holds for each of two images holds for any number."""
SUBNORMAL = 2.0**-125
"""Below this a constant may be flushed to zero."""


@rule("gather")
class Gather(Rule):
    """y_j = x_i with i = index[j], or the constant c_j where index[j] = -1.

    Forward: entries are copied; nothing rounds but c_j, to float32: |c_j - fl(c_j)| joins the radius, for bounds and evaluations alike.
    Backward: sum_j a_j y_j = sum_i (sum_(j: index[j] = i) a_j) x_i + sum_(index[j] = -1) a_j c_j. An entry that is copied R times has a
    coefficient of R terms, so its computed value is off by at most gamma_R(u) sum |a_j|, times |x_i|.
    """

    def _move(self, operation: Operation, x: Tensor) -> Tensor:
        index = operation.once("on device", lambda: operation.settings["index"].to(x.device))
        chosen = x.reshape(len(x), math.prod(x.shape[1:])).index_select(1, index.clamp(min=0))
        if self._has_holes(operation):
            chosen = chosen.masked_fill(index < 0, 0.0)
        return chosen.view(len(x), *operation.shape)

    def _has_holes(self, operation: Operation) -> bool:
        return operation.once("holes", lambda: bool((operation.settings["index"] < 0).any()))

    def _copies(self, operation: Operation) -> int:
        """How often an entry is copied at most."""

        def count() -> int:
            index = operation.settings["index"]
            kept = index[index >= 0]
            return int(torch.bincount(kept).max()) if len(kept) else 1

        return operation.once("copies", count)

    def _constants(self, operation: Operation, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """The constants, 0 elsewhere, in float64, and how far what stands for them is off."""

        def make() -> tuple[Tensor, Tensor]:
            fill = operation.settings["fill"].to(like.device).double().view(operation.shape)
            error = (fill - fill.float().double()).abs()
            error = torch.where((fill != 0) & (fill.abs() < SUBNORMAL), SUBNORMAL, error)
            error = torch.where(error > 0, error * (1 + 2.0**-20) + SUBNORMAL, 0.0)
            known = error.isfinite() & (not operation.fragile)
            return torch.where(known, fill, 0.0), torch.where(known | (fill == 0), error, torch.inf)

        if operation.settings.get("fill") is None:
            return None
        made: tuple[Tensor, Tensor] = operation.once("constants", make)
        return made

    def forward(self, operation: Operation, inputs: list[AffineForm]) -> AffineForm:
        (form,) = inputs
        result = form.exactly(lambda x: self._move(operation, x))
        constants = self._constants(operation, form.like)
        if constants is None:
            return result
        fill, error = (each.to(form.like.dtype) for each in constants)
        radius = result.radius + error + SMALLEST[form.like.dtype] if form.unit else result.radius
        return AffineForm(torch.cat([(result.center + fill)[None], result.slopes]), radius, form.unit, form.quadratic)

    def backward(self, operation: Operation, a: Tensor, inputs: list[AffineForm]) -> BackwardResult:
        (form,) = inputs
        index = operation.once("on device", lambda: operation.settings["index"].to(a.device))
        flat = a.reshape(len(a), row_size(a))
        if self._has_holes(operation):
            index, flat = index[index >= 0], flat[:, index >= 0]
        back = a.new_zeros(len(a), math.prod(form.shape[1:])).index_add(1, index, flat)
        result = BackwardResult([back.view(len(a), *form.shape[1:])])
        constants, copies = self._constants(operation, a), self._copies(operation)
        if constants is not None:
            result.constant = dot(a, constants[0])
        if form.unit and (constants is not None or copies > 1):
            size = self._move(operation, form.extent())
            count = backward_gamma(copies + 8, row_size(a), form.unit)
            if constants is None:
                result.rounding_budget = lengths(size) * count
            else:
                fill, error = (each.to(a.dtype).expand_as(size) for each in constants)
                result.rounding_budget = lengths(size + fill.abs()) * count + lengths(error) * (1 + 2.0**-16)
        return result


def places(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """The entries of two images, numbered from 1 on; 0 is left for constants."""
    return torch.arange(1, TRACED * math.prod(shape) + 1, dtype=dtype).view(TRACED, *shape)


def index_of(found: Tensor, entries: int) -> Tensor:
    """Where each entry of one image comes from, flat, -1 for a constant; refused where the two images mix."""
    first, second = found.double().round().long().unbind(0)
    if bool((first > entries).any()) or not torch.equal(second, torch.where(first > 0, first + entries, 0)):
        raise Refused("it mixes the images of a batch")
    return first.reshape(-1) - 1


def filled(value: Any, constants: dict[str, Tensor]) -> Any:
    """The arguments of a call with tensors in place of references, on the CPU."""
    if isinstance(value, (list, tuple)):
        return [filled(entry, constants) for entry in value]
    return constants[value.name].detach().cpu() if isinstance(value, Reference) else value


def refers(value: Any) -> bool:
    return any(map(refers, value)) if isinstance(value, (list, tuple)) else isinstance(value, Reference)


def gathered(
    x: Input | Built, function: Callable[..., Tensor], arguments: tuple[Any, ...] = (), fill: Any = None, **options: Any
) -> Built:
    """The rearrangement that ``function`` makes of a batch, with these further arguments, which may be constants of the network;
    entries that come from nowhere are ``fill``, 0 or a number."""
    shape = x.shape
    assert shape is not None

    def index(constants: dict[str, Tensor]) -> Tensor:
        given = filled(arguments, constants)
        try:
            found = index_of(function(places(shape), *given, **options), math.prod(shape))
        except (RuntimeError, IndexError, NotImplementedError) as error:
            raise Refused(str(error).splitlines()[0][:200]) from None
        return found

    name = x.name if isinstance(x, Input) else x
    settings: dict[str, Any] = {"fill": None}
    if refers(list(arguments)):
        return Built("gather", (name,), settings, {"index": _late(index)})
    known = index({})
    if fill and bool((known < 0).any()):
        settings["fill"] = (known < 0).double() * float(fill)
        settings["constants"] = settings["fill"]
    return Built("gather", (name,), {"index": known, **settings})


def _late(compute: Callable[[dict[str, Tensor]], Tensor]) -> Callable[[dict[str, Tensor]], Tensor]:
    """A refusal while constants are computed is the user's to read."""

    def computed(constants: dict[str, Tensor]) -> Tensor:
        try:
            return compute(constants)
        except Refused as refusal:
            raise UnsupportedOperation("a rearrangement has no bound rule", got=str(refusal)) from None

    return computed


def _rearranges(*names: str) -> None:
    """Operations that torch applies to the numbers of the entries as it does to the entries."""
    for name in names:
        operator, overload = name.split(".")
        packet = getattr(torch.ops.aten, operator, None)
        if packet is not None and hasattr(packet, overload):
            CONVERTERS[name] = _by_itself(getattr(packet, overload))


def _by_itself(call: Any) -> Callable[..., Built]:
    def convert(shape: Any, x: Any, *arguments: Any, **options: Any) -> Built:
        if not isinstance(x, Input) or _inputs(arguments) or refers(list(options.values())):
            raise Refused("only the first of its arguments may depend on the image")
        options.pop("memory_format", None)
        return gathered(x, call, arguments, **options)

    return convert


def _inputs(value: Any) -> bool:
    return isinstance(value, Input) or (isinstance(value, (list, tuple)) and any(map(_inputs, value)))


_rearranges(
    "select.int",
    "select_copy.int",
    "narrow.default",
    "index.Tensor",
    "index_select.default",
    "gather.default",
    "take_along_dim.default",
    "flip.default",
    "roll.default",
    "rot90.default",
    "repeat.default",
    "tile.default",
    "repeat_interleave.self_int",
    "expand.default",
    "broadcast_to.default",
    "pixel_shuffle.default",
    "pixel_unshuffle.default",
    "channel_shuffle.default",
    "native_channel_shuffle.default",
    "reflection_pad1d.default",
    "reflection_pad2d.default",
    "replication_pad1d.default",
    "replication_pad2d.default",
    "movedim.int",
    "movedim.intlist",
    "swapaxes.default",
    "swapdims.default",
    "unflatten.int",
    "unfold.default",
    "im2col.default",
    "diagonal.default",
    "tril.default",
    "triu.default",
    "zeros_like.default",
)

PARTS = (
    "split.Tensor",
    "split_with_sizes.default",
    "split.sizes",
    "unbind.int",
    "chunk.default",
    "tensor_split.sections",
)
"""Operations that give several tensors, each a part of their input."""


def part(kind: str, number: int) -> Callable[..., Built]:
    """The converter for one of the tensors that such an operation gives."""
    operator, overload = kind.split(".")
    call = getattr(getattr(torch.ops.aten, operator), overload)
    return _by_itself(lambda *arguments, **options: call(*arguments, **options)[number])


PAD_MODES = ("constant", "reflect", "replicate", "circular")


def padded(x: Input, sizes: Any, mode: str, value: Any) -> Built:
    """Padding, or cropping, of all dimensions but the batch."""
    if mode not in PAD_MODES or any(not isinstance(n, int) for n in sizes):
        raise Refused(f"padding by {list(sizes)} of mode {mode!r} with {value}")
    if len(sizes) > 2 * len(x.shape):
        raise Refused("padding of the batch")
    if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
        raise Refused(f"padding with {value}")
    arguments = (list(sizes), mode, 0.0 if mode == "constant" else None)
    return gathered(x, torch.nn.functional.pad, arguments, float(value or 0))


def _nearest(name: str) -> None:
    """Found for one channel, since all share it, in float32 and in float64, whose rounding might choose another neighbor."""
    operator, overload = name.split(".")
    call = getattr(getattr(torch.ops.aten, operator), overload)

    def convert(shape: Any, x: Any, *arguments: Any, **options: Any) -> Built:
        if not isinstance(x, Input) or _inputs(arguments):
            raise Refused("sizes that depend on the image")
        plane = (1, *x.shape[1:])
        one, other = (call(places(plane, dtype), *arguments, **options) for dtype in (torch.float32, torch.float64))
        if math.prod(plane) * TRACED > 2**24 or not torch.equal(one.double(), other):
            raise Refused("a size whose nearest neighbors depend on rounding")
        index, size = index_of(other, math.prod(plane)), math.prod(plane)
        channels = torch.arange(x.shape[0]).unsqueeze(1) * size
        return Built("gather", (x.name,), {"index": (channels + index).flatten(), "fill": None})

    CONVERTERS[name] = convert


for _dimensions in ("1d", "2d"):
    for _kind in ("upsample_nearest", "_upsample_nearest_exact"):
        for _overload in ("vec", "default"):
            _nearest(f"{_kind}{_dimensions}.{_overload}")


def with_constants(shape: tuple[int, ...], parts: Any, dim: int) -> Built:
    """A concatenation of branches and constants: of the branches, then with the constants between them."""
    branches = [entry for entry in parts if isinstance(entry, Input)]
    size = sum(entry.shape[dim - 1] for entry in branches)
    inner = (*shape[: dim - 1], size, *shape[dim:])
    name: Any = branches[0]
    if len(branches) > 1:
        name = Built("concat", tuple(entry.name for entry in branches), {"dim": dim}, shape=inner)

    def joined(constants: dict[str, Tensor], images: list[Tensor], known: bool) -> Tensor:
        rest, every = iter(images), []
        for entry in parts:
            value = next(rest) if isinstance(entry, Input) else filled(entry, constants).double()
            if not isinstance(entry, Input) and not torch.equal(value, value[:1].expand_as(value)):
                raise Refused("a constant has a row for each image of a batch; give it one row for all")
            every.append(value if isinstance(entry, Input) or known else torch.zeros_like(value))
        return torch.cat(every, dim)

    def index(constants: dict[str, Tensor]) -> Tensor:
        numbered = places(inner).split([entry.shape[dim - 1] for entry in branches], dim)
        return index_of(joined(constants, list(numbered), False), math.prod(inner))

    def fill(constants: dict[str, Tensor]) -> Tensor:
        nothing = torch.zeros(TRACED, *inner, dtype=torch.float64)
        images = list(nothing.split([entry.shape[dim - 1] for entry in branches], dim))
        return joined(constants, images, True)[0].flatten()

    derived = {"index": _late(index), "fill": _late(fill), "constants": _late(fill)}
    return Built("gather", (name.name if isinstance(name, Input) else name,), derived=derived)


@converter("stack.default")
def stack(shape: Any, parts: Any, dim: int = 0) -> Built:
    if not all(isinstance(entry, Input) for entry in parts):
        raise Refused("a stack with constants; concatenate them with torch.cat")
    dim %= len(shape) + 1
    if dim == 0:
        raise Refused("a stack along the batch")
    one = (*shape[: dim - 1], 1, *shape[dim:])
    return Built("concat", tuple(Built("reshape", (entry.name,), shape=one) for entry in parts), {"dim": dim})
