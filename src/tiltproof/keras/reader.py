"""`load_keras`: from the description's layers to the list of steps, or a message that names every layer without a rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

import tiltproof.keras.layers  # noqa: F401  (it fills the table)
from tiltproof.errors import InputError, UnsupportedOperation, shown
from tiltproof.keras.activations import softmax
from tiltproof.keras.archive import SAVE_AGAIN, Weights, counted, read_archive
from tiltproof.keras.module import Draft, KerasModule, Value
from tiltproof.keras.settings import LAYERS, Build, Settings
from tiltproof.refusals import Refusal, all_refused, refusals_of

Shape = Sequence[int] | Callable[[], Sequence[int]] | None
MODELS = ("Functional", "Model", "Sequential")
DEEPEST = 8
MOST_NUMBERS = 2**26
"""In one image."""


@dataclass
class Layer:
    """A layer of the description: its reader, or the model that it is, and which layers' outputs each of its calls reads."""

    name: str
    kind: str
    build: Build | None
    inner: Graph | None
    calls: list[list[tuple[str, int, int]]]


@dataclass
class Graph:
    """A model: its layers in order, and which are its input and its output."""

    layers: list[Layer]
    shape: list[int | None] | None
    inputs: list[str]
    outputs: list[tuple[str, int, int]]


def load_keras(path: str | Path, shape: Shape = None) -> nn.Module:
    """Read the network of a ``.keras`` or ``.h5`` file.

    A softmax at its end is taken off, with a warning that says so: it does not change which output is the largest. Needs
    ``tiltproof[keras]``.

    Parameters
    ----------
    path : str or Path
        A file that ``model.save`` of Keras 3 or 2 wrote: a sequential or functional network of one image and one output.
    shape : (int, int, int), optional
        Channels, height and width of the images, for a network that takes images of any size. A function that returns them is called
        only for such a network.

    Returns
    -------
    torch.nn.Module
        The network in eval mode, on the CPU. It takes images [N, C, H, W] with the pixel range that the file's network takes.

    Raises
    ------
    UnsupportedOperation
        If a layer has no rule; the message names all such layers.
    InputError
        If the file is damaged, or the network takes or gives something else.
    """
    content, description, weights = read_archive(Path(path))
    try:
        problems: list[Refusal] = []
        graph = _graph(description, problems, 0)
        if problems:
            what = UnsupportedOperation(
                "the Keras network has layers that have no bound rule", refusals=tuple(problems)
            )
            raise all_refused([what], ", ".join(sorted(LAYERS)))
        draft = Draft(_shape(graph, shape))
        result = _run(graph, draft, [draft.input], weights, "")
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, RuntimeError) as error:
        raise InputError(
            f"the description in the Keras file is not understood: {shown(path)}",
            got=shown(f"{type(error).__name__}: {error}"),
            why="a damaged file, or one written by a version of Keras that is not known here",
            do=SAVE_AGAIN,
        ) from None
    if weights.groups:
        raise InputError("the Keras file has weights that no layer uses", got=shown(sorted(weights.groups)))
    notes: list[str] = []
    labels = list(draft.steps)
    if result.place == len(labels) and draft.steps[labels[-1]].function is softmax and len(result.shape) == 1:
        last = draft.steps.pop(labels[-1])
        result = Value(last.reads[0], result.shape)
        notes.append("the softmax at the network's end was taken off: its outputs are the numbers before it")
        warnings.warn(f"{shown(path)}: {notes[0]}", stacklevel=3)
    if result.place == 0:
        raise InputError("the network of a Keras file must compute something from the image")
    return KerasModule(draft.steps, result.place, draft.input.shape, content, tuple(notes)).eval()


def _graph(description: dict[str, Any], problems: list[Refusal], depth: int) -> Graph:
    """Read all layers' settings; those that have no rule are noted, so that all are named at once."""
    kind, config = description["class_name"], description["config"]
    if kind not in MODELS or depth > DEEPEST:
        raise UnsupportedOperation(
            "the Keras file holds no sequential or functional network",
            got=shown(f"{kind} of {description.get('module')}", 80),
            why="a class of one's own, whose code is not in the file",
        )
    entries = config["layers"] if isinstance(config, dict) else config
    layers, shape = [], None
    for entry in entries:
        name, layer_kind, settings = entry["config"]["name"], entry["class_name"], entry["config"]
        inner, build = None, None
        if layer_kind == "InputLayer":
            dims = settings.get("batch_shape") or settings.get("batch_input_shape")
            shape = shape or list(dims[1:])
            if settings.get("dtype", "float32") != "float32" or settings.get("sparse") or settings.get("ragged"):
                problems.append(
                    Refusal("InputLayer", name, f"has dtype {shown(settings.get('dtype'), 40)}", part="layer")
                )
        elif layer_kind in MODELS and "layers" in settings:
            inner = _graph(entry, problems, depth + 1)
        else:
            shape = shape or (list(settings["batch_input_shape"][1:]) if settings.get("batch_input_shape") else None)
            build = _settled(entry, problems)
        layers.append(Layer(name, layer_kind, build, inner, _calls(entry, problems)))
    if kind == "Sequential":
        before = None
        for layer in layers:
            layer.calls = [[(before, 0, 0)]] if before else []
            if before is None and layer.kind != "InputLayer":
                layer.calls = [[("", 0, 0)]]
            before = layer.name
        if shape is None and layers and layers[0].inner is not None:
            shape = layers[0].inner.shape
        shape = shape or (
            list(description["build_config"]["input_shape"][1:]) if "build_config" in description else None
        )
        return Graph(
            layers, shape, [layers[0].name if layers[0].kind == "InputLayer" else ""], [(layers[-1].name, 0, 0)]
        )
    inputs, outputs = (_ends(config[key]) for key in ("input_layers", "output_layers"))
    return Graph(layers, shape, [name for name, _, _ in inputs], outputs)


def _ends(value: Any) -> list[tuple[str, int, int]]:
    """[name, node, tensor], or a list of such."""
    entries = [value] if value and isinstance(value[0], str) else value
    return [(str(name), int(node), int(tensor)) for name, node, tensor in entries]


def _settled(entry: dict[str, Any], problems: list[Refusal]) -> Build | None:
    """The layer's reader with its settings; notes why there is none."""
    name, kind, module = entry["config"]["name"], entry["class_name"], entry.get("module")
    own = (
        module is None
        or module == "keras.layers"
        or str(module).startswith(("keras.src.layers.", "tf_keras.layers", "keras.engine"))
    )
    if kind not in LAYERS or not own or entry.get("registered_name") not in (None, kind):
        problems.append(Refusal(kind, name, part="layer"))
        return None
    try:
        settings = Settings(name, kind, entry["config"])
        build = LAYERS[kind](settings)
        settings.finish()
    except UnsupportedOperation as refusal:
        problems += refusals_of(refusal)
        return None
    return build


HARMLESS = {"mask": (None,), "training": (None, False)}
"""Arguments of calls that change nothing, with the values that do not."""


def _calls(entry: dict[str, Any], problems: list[Refusal]) -> list[list[tuple[str, int, int]]]:
    """What each call of a layer reads: Keras 3 lists arguments, Keras 2 lists of [name, node, tensor, arguments]."""
    calls = []
    for node in entry.get("inbound_nodes", []):
        if isinstance(node, dict):
            found: list[tuple[str, int, int]] = []
            _tensors(node["args"], found, entry, problems)
            more = node["kwargs"]
        else:
            tensors = [node] if node and isinstance(node[0], str) else node
            found = [(str(each[0]), int(each[1]), int(each[2])) for each in tensors]
            more = {key: value for each in tensors if len(each) > 3 for key, value in each[3].items()}
        if any(key not in HARMLESS or value not in HARMLESS[key] for key, value in more.items()):
            problems.append(
                Refusal(entry["class_name"], entry["config"]["name"], f"is called with {shown(more, 60)}", part="layer")
            )
        calls.append(found)
    return calls


def _tensors(value: Any, found: list[tuple[str, int, int]], entry: dict[str, Any], problems: list[Refusal]) -> None:
    if isinstance(value, list):
        for each in value:
            _tensors(each, found, entry, problems)
    elif isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        name, node, tensor = value["config"]["keras_history"]
        found.append((str(name), int(node), int(tensor)))
    else:
        problems.append(
            Refusal(entry["class_name"], entry["config"]["name"], f"is called with {shown(value, 60)}", part="layer")
        )


def _shape(graph: Graph, given: Shape) -> tuple[int, int, int]:
    """Channels, height and width of the images; the file has them in another order."""
    said = graph.shape
    if said is None or len(said) != 3:
        raise InputError("the Keras network must take images [N, H, W, C]", got=shown(said))
    own = (said[2], said[0], said[1])
    if callable(given):
        given = given() if None in own else None
    shape = own if given is None else tuple(given)
    if len(shape) != 3 or any(type(size) is not int or size < 1 for size in shape):
        raise InputError(
            "the Keras network takes images of any size",
            got=f"[N, H, W, C] with {shown(said)}",
            do="say which: load_keras(path, shape=(channels, height, width))",
        )
    if any(size is not None and size != mine for size, mine in zip(own, shape, strict=True)):
        raise InputError("the Keras network takes images of another size", got=f"{list(shape)} instead of {list(own)}")
    channels, height, width = (int(size or 0) for size in shape)
    if channels * height * width > MOST_NUMBERS:
        raise InputError("the Keras network takes images that are too large", got=shown(shape))
    return channels, height, width


def _run(graph: Graph, draft: Draft, given: list[Value], weights: Weights, group: str) -> Value:
    """Add the steps of a model's layers, each as soon as all that it reads is there."""
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or len(given) != 1:
        raise InputError(
            "the Keras network must take one image and give one output",
            got=f"{len(graph.inputs)} inputs and {len(graph.outputs)} outputs",
        )
    known: dict[tuple[str, int, int], Value] = {(graph.inputs[0], 0, 0): given[0]}
    counts = counted([layer.kind for layer in graph.layers])
    for layer in graph.layers:
        if layer.kind == "InputLayer" and layer.name != graph.inputs[0]:
            raise InputError("the Keras network takes more than one input", got=shown(layer.name))
    waiting = [
        (layer, count, k) for layer, count in zip(graph.layers, counts, strict=True) for k in range(len(layer.calls))
    ]
    while waiting:
        later = []
        for layer, count, call in waiting:
            reads = layer.calls[call]
            if not all(read in known for read in reads):
                later.append((layer, count, call))
                continue
            if len(layer.calls) > 1:
                raise UnsupportedOperation(
                    f"layer {shown(layer.name, 80)!r} is called more than once", do="give each call a layer of its own"
                )
            path = weights.folder(group, layer.name, layer.kind, count)
            values = tuple(known[read] for read in reads)
            if layer.inner is not None:
                inner = _run(layer.inner, draft, list(values), weights, path)
                known[layer.name, 0, 0] = known[layer.name, 1, 0] = (
                    inner  # Keras counts the model's own making, or does not
                )
            else:
                assert layer.build is not None
                known[layer.name, call, 0] = layer.build(draft, values, weights, path)
        if len(later) == len(waiting):
            raise InputError("the Keras network reads what no layer gives", got=shown(later[0][0].name))
        waiting = later
    if graph.outputs[0] not in known:
        raise InputError("the Keras network's output is computed by no layer", got=shown(graph.outputs[0]))
    return known[graph.outputs[0]]
