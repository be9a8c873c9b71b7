"""In-place operations on something that has another name.

torch.export rewrites in-place operations as ordinary ones and follows views while it does so. It does not know that dropout in eval mode
returns its very input: to it that is a copy. A write through one of the two names would then be missed under the other, so such a
module is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from tiltproof.errors import UnsupportedOperation

MAYBE_THE_SAME = ("dropout", "contiguous", "reshape", "flatten", "to", "type_as", "alias", "detach", "clone")
"""Operations whose result may be their input although their schema does not say so (clone: so that nothing is missed)."""


def refuse_hidden_writes(graph: Graph) -> None:
    """Look for a write after a dropout, into storage that is read later under a name the write did not go through."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    root: dict[Node, Node] = {}
    for node in graph.nodes:
        source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        root[node] = root[source] if source is not None and _same_storage(node.target) else node
    for write in graph.nodes:
        target = write.args[0] if write.args else None
        if not (isinstance(target, Node) and writes(write.target)):
            continue
        names = [node for node in graph.nodes if root[node] is root[target] and order[node] < order[write]]
        if not any("dropout" in str(node.target) for node in names):
            continue
        for name in names:
            if name is not target and any(order[user] > order[write] for user in name.users):
                raise UnsupportedOperation(
                    f"operation {str(write.target).removeprefix('aten.')!r} at node {write.name!r} writes in place into a tensor that"
                    f" is also read as {name.name!r}; in eval mode dropout returns its input itself",
                    do="use the operation that is not in place, e.g. nn.ReLU(inplace=False)",
                )


def _schema(target: Any) -> Any:
    return target._schema if isinstance(target, torch._ops.OpOverload) else None


def writes(target: Any) -> bool:
    """Whether the operation writes into one of its arguments."""
    schema = _schema(target)
    return schema is not None and schema.is_mutable


def _same_storage(target: Any) -> bool:
    schema = _schema(target)
    if schema is None:
        return False
    listed = any(result.alias_info is not None for result in schema.returns)
    return listed or any(name in schema.name.removeprefix("aten::") for name in MAYBE_THE_SAME)
