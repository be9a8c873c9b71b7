"""Values whose batch dimension stands elsewhere, or is merged with another one, as inside of torch's multi-head attention.

Such a value is an operation with the batch first and a tensor of the traced shape that names its entries (`places`), so that an operation
which only rearranges is applied to those names. An operation along the last dimensions alone is applied to the value with the batch moved
to the front. Whether a dimension is the batch is read off the names: those of the second image must be those of the first, moved on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tiltproof.network.graph import Reference
from tiltproof.network.ops.base import Built, Input, Masked, Refused
from tiltproof.network.ops.gather import PARTS, TRACED, index_of, places

REARRANGING = frozenset(
    {
        *(
            "permute.default",
            "transpose.int",
            "view.default",
            "reshape.default",
            "_unsafe_view.default",
            "flatten.using_ints",
        ),
        *(
            "unsqueeze.default",
            "squeeze.dim",
            "squeeze.dims",
            "select.int",
            "slice.Tensor",
            "contiguous.default",
            "clone.default",
        ),
        *("expand.default", "unflatten.int", "movedim.int", "alias.default", "detach.default", *PARTS),
    }
)
"""Operations that are applied to the names of entries."""
ALONG_LAST = {
    **dict.fromkeys(("linear.default", "layer_norm.default"), 1),
    **dict.fromkeys(("bmm.default", "baddbmm.default", "matmul.default", "scaled_dot_product_attention.default"), 2),
    **dict.fromkeys(("softmax.int", "_softmax.default", "linalg_vector_norm.default"), 1),
    **dict.fromkeys(("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "add.Tensor", "sub.Tensor"), 1),
    **dict.fromkeys(("relu.default", "gelu.default", "silu.default", "dropout.default", "clamp_min.default"), 0),
}
"""Operations that mix only this many of the last dimensions."""

ENTRY_BY_ENTRY = (
    *("scaled_dot_product_attention.default", "baddbmm.default"),
    *("mul.Tensor", "div.Tensor", "add.Tensor", "sub.Tensor"),
)
"""Operations whose constants meet the entries of the result one by one; they must be the same for all images."""


@dataclass(frozen=True)
class Moved:
    """An operation with the batch first, its shape without the batch, and the names of its entries as they stand in the graph."""

    name: str
    shape: tuple[int, ...]
    place: Tensor

    def batch_first(self) -> Tensor | None:
        """Where each entry of one image comes from, if the batch is first."""
        if self.place.ndim == 0 or self.place.shape[0] != TRACED:
            return None
        try:
            return index_of(self.place, math.prod(self.shape))
        except Refused:
            return None


@dataclass(frozen=True)
class Layout:
    """The traced shape with the batch as a dimension of its own, and where that stands."""

    shape: tuple[int, ...]
    batch: int
    dim: int
    """The dimension of the traced shape that holds the batch."""

    def inner(self) -> tuple[int, ...]:
        return (*self.shape[: self.batch], *self.shape[self.batch + 1 :])


def settled(value: Moved) -> tuple[Layout, Tensor]:
    """The layout of a value, and where the entries of its first image come from when the batch is moved to the front."""
    shape = tuple(value.place.shape)
    for dim, size in enumerate(shape):
        rest = size // TRACED
        for split in ((TRACED, rest), (rest, TRACED)) if size > TRACED and size % TRACED == 0 else ((TRACED,),):
            if math.prod(split) != size:
                continue
            batch = dim + split.index(TRACED) if split[0] == TRACED else dim + 1
            layout = Layout((*shape[:dim], *split, *shape[dim + 1 :]), batch, dim)
            front = Moved(value.name, value.shape, value.place.reshape(layout.shape).movedim(batch, 0))
            index = front.batch_first()
            if index is not None:
                return layout, index
    raise Refused(
        "a batch dimension that is merged with others in a way that is not known; keep the batch dimension first"
    )


def rearranged(
    value: Input | Moved, call: Callable[..., Any], arguments: list[Any], part: int | None, options: dict[str, Any]
) -> Moved:
    """An operation on the names of the entries; ``part``: of several that it gives."""
    if any(isinstance(entry, (Input, Moved, Reference)) for entry in arguments):
        raise Refused("it depends on more than one value")
    given = value if isinstance(value, Moved) else Moved(value.name, value.shape, places(value.shape))
    # contiguous: a view that was possible of the traced value is possible of its names too, whatever their strides
    found = call(given.place.contiguous(), *arguments, **options)
    return Moved(given.name, given.shape, found if part is None else found[part])


def along_last(
    kind: str,
    shape: tuple[int, ...],
    arguments: list[Any],
    convert: Callable[..., Built | Masked],
    options: dict[str, Any],
) -> tuple[Built, Layout]:
    """An operation along the last dimensions, on values with the batch moved to the front; and how its result stands in the graph."""
    if kind not in ALONG_LAST:
        raise Refused("a value whose batch dimension is not the first; move it to the front before")
    last, layouts, held = ALONG_LAST[kind], set(), 0
    given: list[Any] = []
    dimensions = 0
    for entry in arguments:
        if isinstance(entry, Input):
            raise Refused("values whose batch dimensions stand in different places")
        if isinstance(entry, Moved):
            layout, index = settled(entry)
            held = layout.dim
            layouts.add((layout.shape[: len(layout.shape) - last], layout.batch, held))
            inner = layout.inner()
            given.append(Input(Built("gather", (entry.name,), {"index": index, "fill": None}, shape=inner), inner))  # type: ignore[arg-type]
            dimensions = len(layout.shape)
        else:
            given.append(entry)
    first = {lead for lead, _, _ in layouts}
    if len(layouts) != 1 or next(iter(layouts))[1] >= dimensions - last:
        raise Refused("values whose batch dimensions stand in different places, or among the last")
    for entry in given:
        if isinstance(entry, Reference) and entry.shape is not None and kind in ENTRY_BY_ENTRY:
            outer = entry.shape[
                : max(0, len(entry.shape) - (len(shape) - held - 1))
            ]  # up to the dimension of the batch
            different = any(size != 1 for size in outer)
        else:
            different = isinstance(entry, Reference) and entry.shape is not None and math.prod(entry.shape[:-1]) != 1
        if different and kind != "linear.default" and kind != "layer_norm.default":
            raise Refused("a constant that may differ by image")
    if kind == "layer_norm.default" and len(given[1]) != 1:
        raise Refused("a normalization over more than the last dimension")
    if "softmax" in kind and given[1] not in (-1, len(shape) - 1):
        raise Refused("a softmax along another dimension than the last")
    if "norm.default" in kind and kind != "layer_norm.default":
        if given[2] not in ([-1], [len(shape) - 1]) or not given[3:4] == [True]:
            raise Refused("a norm along other dimensions than the last, or that drops it")
        given[2] = [-1]
    given = [-1 if "softmax" in kind and k == 1 else entry for k, entry in enumerate(given)]
    (lead,), batch = first, next(iter(layouts))[1]
    result = Layout((*lead, *shape[len(shape) - last :]) if last else lead, batch, held)
    if math.prod(result.shape) != math.prod(shape):
        raise Refused("a result of another layout")
    built = convert(result.inner(), *given, **options)
    assert isinstance(built, Built)  # of `ALONG_LAST` none gives anything else
    return built, result


def standing(name: str, layout: Layout, shape: tuple[int, ...]) -> Moved:
    """A result with the batch first, as it stands in the graph."""
    inner = layout.inner()
    return Moved(name, inner, places(inner).movedim(0, layout.batch).reshape(shape))
