"""Trace a torch module to a `Network` with torch.export.

torch.export rather than torch.fx: it runs the module's real forward (Python control flow, ``len(x)``, shape checks, any mix of modules,
functions and methods) and returns a single vocabulary, ATen, in functional form. No in-place operation is left whose hidden writes a
bound could miss. Parameters stay the module's own tensors, so training can bound the network while it changes.
"""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from tiltproof.errors import InputError, UnsupportedOperation, raised
from tiltproof.network.arithmetic import tracing_settings
from tiltproof.network.graph import Network, Operation, Reference
from tiltproof.network.moved_batch import REARRANGING, Moved, along_last, rearranged, standing
from tiltproof.network.ops.base import (
    CONDITIONS,
    CONVERTERS,
    READS_CONDITIONS,
    READS_MASKED,
    Built,
    Input,
    Masked,
    Refused,
    supported,
)
from tiltproof.network.ops.gather import PARTS, part
from tiltproof.process_lock import exclusive
from tiltproof.refusals import Refusal, advice, all_refused


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    with exclusive():  # a module's mode is shared by all threads
        before = {module: module.training for module in model.modules()}
        try:
            model.eval()
            yield
        finally:
            for module, training in before.items():
                module.training = training


# Aliases: torch.export rewrites in-place operations functionally and follows views. It takes dropout for a copy, but in eval mode dropout
# returns its input itself. A write through one of the two names would be missed under the other, so such a module is refused.


MAYBE_THE_SAME = ("dropout", "contiguous", "reshape", "flatten", "to", "type_as", "alias", "detach", "clone")
"""Operations whose result may alias their input although the schema does not say so (clone: to be safe)."""


def refuse_hidden_writes(graph: Graph) -> None:
    """Refuse an in-place write after a dropout to storage that is read later under another name."""
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


TRACE_BATCH = 2
"""Batch size while tracing; the operations then hold for any batch size."""


def example_of(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The batch that is traced: the user's own image, so that a layer that initializes its parameters from its first batch is detected,
    but not misled."""
    return like[:1].view(-1, *shape).expand(TRACE_BATCH, *shape).contiguous()


def as_rows(outputs: Tensor) -> Tensor:
    """The outputs of a module as the traced network has them: one value for each image, [N], is taken for [N, 1]."""
    return outputs.unsqueeze(1) if outputs.ndim == 1 else outputs


def export_network(model: nn.Module, shape: tuple[int, ...], like: Tensor) -> Network:
    """Trace a module (in eval mode) on images of ``shape`` [C, H, W] with the device and dtype of ``like``.

    Calls the module once as it is, and then to trace it.
    """
    example = example_of(shape, like)
    runs = False
    try:
        with eval_mode(model), torch.no_grad(), _quiet():
            answer = model(example)
            runs = True
            if not isinstance(answer, Tensor):
                raise InputError(
                    "the model must return one tensor", got=type(answer).__name__, do="wrap it in a module that does"
                )
            program = torch.export.export(model, (example,), strict=False)
            refuse_hidden_writes(program.graph)
            if _plain(program.graph):
                program.graph.eliminate_dead_code()  # as decomposition does; no operation writes, so unused ones have no effect
            else:
                program = program.run_decompositions({})
    except InputError:
        raise
    except Exception as error:
        text = str(error).strip()
        first = text.splitlines()[0][:300] if text else type(error).__name__
        raise InputError(
            "the model's forward cannot be traced" if runs else f"the model cannot run on images of shape {shape}",
            got=first if runs else raised(error),
            why="Python code in forward that depends on the values it computes"
            if runs
            else "images of another size, type or device",
            do="write forward without such branches" if runs else "try model(images[:2]) first",
        ) from error
    return _read(program, shape)


def _plain(graph: torch.fx.Graph) -> bool:
    """Whether no operation writes in place and all have converters, so that the slow decomposition can be skipped."""
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    known = (
        target is operator.getitem or str(target).removeprefix("aten.") in (*PARTS, *CONVERTERS) for target in targets
    )
    return not any(map(writes, targets)) and all(known)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch, which logs whole graphs when tracing fails; the error says what matters."""
    with exclusive():  # process-wide state
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                with tracing_settings():
                    yield
        finally:
            logging.disable(before)


def _read(program: torch.export.ExportedProgram, shape: tuple[int, ...]) -> Network:
    leaves: dict[str, Callable[[], Tensor]] = {}
    start = None
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            start = spec.arg.name
        else:
            store = program.constants if spec.kind == InputKind.CONSTANT_TENSOR else program.state_dict
            source = store.get(spec.target, program.constants.get(spec.target))
            leaves[spec.arg.name] = lambda tensor=source: tensor  # type: ignore[misc]
    assert start is not None
    network = Network(start, start, shape, [], leaves)
    known = {start: shape}  # operations that depend on the input, with their shapes
    names = {start: start}  # graph node -> operation name (a tuple's first element is the operation itself)
    moved: dict[str, Moved] = {}  # those whose batch dimension is not the first
    masked: dict[str, Masked] = {}  # those with minus infinity in some places
    refused = _Refused()
    for node in program.graph.nodes:
        if node.op == "call_function":
            refused.attempt(lambda node=node: _add(network, known, names, moved, masked, node), node, known, names)  # type: ignore[misc]
        elif node.op == "output":
            refused.raise_all()
            (result,) = node.args[0] if isinstance(node.args[0], (tuple, list)) and len(node.args[0]) == 1 else (None,)
            if result is None or result.name not in names or result.name in moved or result.name in masked:
                raise InputError(
                    "the model must return one tensor that depends on its input", got=str(node.args[0])[:200]
                )
            network.output = names[result.name]
    if not network.output_shape():  # a regression network's single value [N], taken for [N, 1]
        network.operations.append(Operation(f"{network.output}.column", "reshape", (network.output,), {}, (1,)))
        network.output = f"{network.output}.column"
    used = _needed(network)
    network.operations = [operation for operation in network.operations if operation.name in used]
    return network


class _Refused:
    """Collects refusals: tracing goes on behind a refused node as if it had a rule, to find the others."""

    def __init__(self) -> None:
        self.errors: list[UnsupportedOperation] = []
        self.unread: set[Node] = set()
        """Nodes that depend on the image, with results that no rule could read, behind a refused one."""

    def attempt(
        self, add: Callable[[], None], node: Node, known: dict[str, tuple[int, ...]], names: dict[str, str]
    ) -> None:
        """Add the node; keep the refusal. Behind unread results only operations without any rule are refused."""
        behind = not self.unread.isdisjoint(node.all_input_nodes)
        try:
            if not behind:
                add()
                return
            kind = str(node.target).removeprefix("aten.")
            if node.target is not operator.getitem and not any(
                kind in each for each in (CONVERTERS, PARTS, REARRANGING)
            ):
                raise _no_rule(kind, node)
        except UnsupportedOperation as error:
            self.errors.append(error)
        except Exception:  # of what stands in for a refused node; without one, a defect
            if not self.errors:
                raise
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == TRACE_BATCH:
            known[node.name], names[node.name] = tuple(value.shape[1:]), node.name
        else:
            self.unread.add(node)

    def raise_all(self) -> None:
        if self.errors:
            raise all_refused(self.errors, supported())


def _no_rule(kind: str, node: Node) -> UnsupportedOperation:
    what = f"no bound rule for operation {kind!r} at node {node.name!r}{_source(node)}"
    do = f"{advice(kind)}; supported operations: {supported()}"
    return UnsupportedOperation(what, do=do, refusals=(Refusal(kind, node.name, module=_module(node)),))


def _batch_elsewhere(kind: str, node: Node, value: Any) -> UnsupportedOperation:
    why = "does not keep the batch dimension first"
    what = f"operation {kind!r} at node {node.name!r}{_source(node)} {why}"
    return UnsupportedOperation(
        what, got=getattr(value, "shape", value), refusals=(Refusal(kind, node.name, why, _module(node)),)
    )


def _add(
    network: Network,
    known: dict[str, tuple[int, ...]],
    names: dict[str, str],
    moved: dict[str, Moved],
    masked: dict[str, Masked],
    node: torch.fx.Node,
) -> None:
    inputs = [other for other in node.all_input_nodes if other.name in names]
    if not inputs:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags or "empty" in str(node.target):
            why = "gives another value every time"
            raise UnsupportedOperation(
                f"operation {node.target} at node {node.name!r} {why}",
                refusals=(Refusal(str(node.target).removeprefix("aten."), node.name, why, _module(node)),),
            )
        network.computed.append((node.name, _constant(node)))
        return
    kind = str(node.target).removeprefix("aten.")
    if kind in FILLED and inputs == [node.args[0]]:
        network.computed.append((node.name, _filled(node)))
        return
    if kind in PARTS:
        names[node.name] = node.name  # each part is an operation of its own
        return
    convert, call, number = CONVERTERS.get(kind), node, None
    if node.target is operator.getitem:
        (call,) = inputs
        kind = str(call.target).removeprefix("aten.")
        if kind in PARTS:
            number = int(node.args[1])  # type: ignore[arg-type]
            convert = part(kind, number)
        elif node.args[1] == 0:
            names[node.name] = names[call.name]
            if call.name in moved:
                moved[node.name] = moved[call.name]
            return
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) else value
    where = f"operation {kind!r} at node {node.name!r}" + _source(node)
    if not isinstance(value, Tensor) or value.ndim == 0:
        raise _batch_elsewhere(kind, node, value)

    _refuse_whole_numbers(kind, where, value, [other.meta.get("val") for other in inputs])

    def argument(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            if value.name in moved:
                return moved[value.name]
            if value.name in masked:
                if kind not in READS_MASKED:
                    raise Refused("it reads minus infinity where a mask is; softmax alone does, right behind the mask")
                return masked[value.name]
            if value.name in names:
                return known_name(value)
            given = value.meta.get("val")
            return Reference(value.name, tuple(given.shape) if isinstance(given, Tensor) else None)
        return [argument(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    def known_name(value: torch.fx.Node) -> Input:
        return Input(names[value.name], known[names[value.name]])

    def append(built: Built, shape: tuple[int, ...]) -> None:
        _append(network, built, node.name, shape, {})
        known[node.name], names[node.name] = shape, node.name

    def stand(result: Moved, shape: tuple[int, ...]) -> None:
        """Go on with the batch first if it is again."""
        index = result.batch_first()
        if index is not None:
            append(Built("gather", (result.name,), {"index": index, "fill": None}), shape[1:])
        else:
            moved[node.name], names[node.name] = result, node.name

    whole = tuple(value.shape)
    try:
        arguments = [argument(entry) for entry in call.args]
        options = {key: argument(entry) for key, entry in call.kwargs.items()}
        elsewhere = any(isinstance(entry, Moved) for entry in [*arguments, *options.values()])
        if kind in REARRANGING and (elsewhere or whole[0] != TRACE_BATCH or _turns(kind, arguments)):
            operation = call.target
            stand(rearranged(arguments[0], operation, arguments[1:], number, options), whole)  # type: ignore[arg-type]
        elif elsewhere and convert is not None:
            built, layout = along_last(kind, whole, arguments, convert, options)
            inner = layout.inner()
            _append(network, built, node.name, inner, {})
            known[node.name], names[node.name] = inner, node.name
            if layout.batch or layout.shape != whole:
                moved[node.name] = standing(node.name, layout, whole)
        elif whole[0] != TRACE_BATCH:
            raise _batch_elsewhere(kind, node, value)
        elif convert is None:
            raise _no_rule(kind, node)
        else:
            converted = convert(whole[1:], *arguments, **options)
            if isinstance(converted, Masked):
                masked[node.name], names[node.name] = converted, node.name
            else:
                append(converted, whole[1:])
    except (Refused, TypeError) as refusal:
        raise UnsupportedOperation(
            f"{where} is used in a way that has no bound rule",
            got=str(refusal),
            do=f"supported operations: {supported()}",
            refusals=(Refusal(kind, node.name, f"is used in a way that has no bound rule: {refusal}", _module(node)),),
        ) from None


def _turns(kind: str, arguments: list[Any]) -> bool:
    """Whether a dimension that happens to be as large as the batch takes its place."""
    rank = len(arguments[0].shape) + 1 if isinstance(arguments[0], Input) else 0
    if kind == "permute.default":
        return arguments[1][0] % rank != 0
    return kind == "transpose.int" and 0 in (arguments[1] % rank, arguments[2] % rank) and rank > 0


def _refuse_whole_numbers(kind: str, where: str, value: Tensor, read: list[Any]) -> None:
    """Refuse whole numbers and truth values, but for comparisons that choose between two branches."""
    given = [x for x in read if isinstance(x, Tensor) and not x.dtype.is_floating_point]
    fine = kind in CONDITIONS if not value.dtype.is_floating_point else not given or kind in READS_CONDITIONS
    if not fine or (given and kind in CONDITIONS):
        raise UnsupportedOperation(
            f"{where} computes with whole numbers or truth values",
            got=f"{[str(x.dtype) for x in given]} to {value.dtype}",
            do="compare with a number, and use the comparison in torch.where or as a factor only",
        )


def _append(network: Network, built: Built, name: str, shape: tuple[int, ...], done: dict[Built, str]) -> str:
    """Append an operation after those that it is built on; returns its name."""
    inputs = []
    for other in built.inputs:
        if isinstance(other, Built) and other not in done:
            assert other.shape is not None
            done[other] = _append(network, other, f"{name}.{len(done)}", other.shape, done)
        inputs.append(done[other] if isinstance(other, Built) else other)
    settings = dict(built.settings)
    for key, compute in built.derived.items():  # constants computed from parameters, e.g. batch norm's scale
        network.computed.append((f"{name}.{key}", compute))
        settings[key] = Reference(f"{name}.{key}")
    network.operations.append(Operation(name, built.kind, tuple(inputs), settings, shape))
    return name


def _constant(node: torch.fx.Node) -> Callable[[dict[str, Any]], Any]:
    """A node that does not depend on the input, computed from the current parameters."""

    def compute(constants: dict[str, Any]) -> Any:
        args = torch.fx.node.map_arg(node.args, lambda other: constants[other.name])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda other: constants[other.name])
        return node.target(*args, **kwargs)  # type: ignore[operator]

    return compute


FILLED = {"new_zeros.default": 0.0, "new_ones.default": 1.0, "new_full.default": None}
"""Calls that read no more of their first argument than its type and device, and what they fill a tensor with."""


def _filled(node: torch.fx.Node) -> Callable[[dict[str, Any]], Tensor]:
    """The same tensor for every image."""
    value, number = node.meta["val"], FILLED[str(node.target).removeprefix("aten.")]
    content = node.args[2] if number is None else number

    def compute(constants: dict[str, Any]) -> Tensor:
        device = next((each.device for each in constants.values() if isinstance(each, Tensor)), None)
        return torch.full(tuple(value.shape), content, dtype=value.dtype, device=device)  # type: ignore[arg-type]

    return compute


def _module(node: torch.fx.Node) -> str:
    """Path of the module that calls the node, or an empty text."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((entry[0] for entry in reversed(stack.values()) if entry[0]), "")


def _source(node: torch.fx.Node) -> str:
    path = _module(node)
    return f" (module {path!r})" if path else ""


def _needed(network: Network) -> set[str]:
    needed = {network.output}
    for operation in reversed(network.operations):
        if operation.name in needed:
            needed.update(operation.inputs)
    return needed
