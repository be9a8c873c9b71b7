"""One node of the graph, read strictly: every attribute is taken by a converter, or the node is refused."""

from __future__ import annotations

from typing import Any

from tiltproof.errors import UnsupportedOperation, shown

NUMBER, INTEGER, TEXT, TENSOR, FLOATING, INTEGERS = 1, 2, 3, 4, 6, 7  # onnx.AttributeProto's names for them


class Node:
    """Its op, name, inputs and outputs (absent optional ones at the end are cut off), and attributes to be taken."""

    def __init__(self, proto: Any) -> None:
        self.op, self.domain = str(proto.op_type), str(proto.domain)
        self.inputs, self.outputs = _names(proto.input), _names(proto.output)
        self.name = str(proto.name)
        self.attributes = {attribute.name: attribute for attribute in proto.attribute}
        if len(self.attributes) != len(proto.attribute) or any(a.ref_attr_name for a in proto.attribute):
            raise self.refusal("has an attribute twice, or one of a function")

    def __str__(self) -> str:
        output = f" (unnamed, gives {shown(self.outputs[0], 60)!r})" if self.outputs else ""
        return f"{shown(self.op, 60)} at node {shown(self.name, 80)!r}" + ("" if self.name else output)

    def refusal(self, why: str, do: str = "") -> UnsupportedOperation:
        return UnsupportedOperation(f"ONNX operation {self} {why}", do=do)

    def take(self, name: str, kind: int) -> Any:
        """An attribute's value, or None; it counts as understood from here on."""
        attribute = self.attributes.pop(name, None)
        if attribute is None:
            return None
        if attribute.type != kind:
            raise self.refusal(f"has an attribute {name} of another type than its definition says")
        match kind:
            case 1:
                return float(attribute.f)
            case 2:
                return int(attribute.i)
            case 3:
                return bytes(attribute.s).decode("ascii", "replace")
            case 4:
                return attribute.t
            case 6:
                return [float(value) for value in attribute.floats]
            case _:
                return [int(value) for value in attribute.ints]

    def integer(self, name: str, default: int) -> int:
        value = self.take(name, INTEGER)
        return default if value is None else int(value)

    def number(self, name: str, default: float) -> float:
        """A float32 number, which stands for exactly itself."""
        value = self.take(name, NUMBER)
        return default if value is None else float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.integer(name, int(default))
        if value not in (0, 1):
            raise self.refusal(f"has {name} = {value}")
        return bool(value)

    def only(self, **allowed: Any) -> None:
        """Attributes that may be there, with one value alone: the one that leaves the operation as it is read here."""
        for name, wanted in allowed.items():
            kind = {int: INTEGER, float: NUMBER, str: TEXT}[type(wanted)]
            value = self.take(name, kind)
            if value is not None and value != wanted:
                raise self.refusal(f"has {name} = {shown(value, 40)}; only {wanted} has a rule")

    def finish(self) -> None:
        """Called when a converter is done: what it did not take, it did not understand."""
        if self.attributes:
            raise self.refusal(f"has an attribute that is not understood: {shown(', '.join(self.attributes), 80)}")

    def count(self, least: int, most: int | None = None, outputs: int = 1) -> None:
        most = least if most is None else most
        if not least <= len(self.inputs) <= most or len(self.outputs) != outputs:
            raise self.refusal(f"has {len(self.inputs)} inputs and {len(self.outputs)} outputs")


def _names(names: Any) -> list[str]:
    found = [str(name) for name in names]
    while found and not found[-1]:
        found.pop()
    return found
