"""Small Keras files, written with h5py alone as ``model.save`` writes them, and Keras's layers in numpy, written from their definitions."""

from __future__ import annotations

import io
import itertools
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tiltproof.keras.archive import snake_case

SHAPE = (7, 6, 3)
Entry = tuple[str, dict[str, Any], dict[str, np.ndarray]]
"""Class, settings, and weights by name in Keras's order."""


def description(layers: list[Entry], shape: tuple[int | None, ...] = SHAPE) -> dict[str, Any]:
    entries = [
        {"module": "keras.layers", "class_name": "InputLayer", "config": {"name": "in", "batch_shape": [None, *shape]}}
    ]
    for number, (kind, settings, _) in enumerate(layers):
        config = {"name": f"own_{number}", "trainable": True, "dtype": "float32", **settings}
        entries.append({"module": "keras.layers", "class_name": kind, "config": config, "registered_name": None})
    return {"class_name": "Sequential", "config": {"name": "net", "layers": entries}}


def branched(calls: list[tuple[str, list[str]]], layers: list[Entry], shape: tuple[int, ...] = SHAPE) -> dict[str, Any]:
    """A functional network: each layer's name and what it reads."""
    found = description(layers, shape)
    entries = found["config"]["layers"]
    entries[0]["inbound_nodes"] = []
    for entry, (name, reads) in zip(entries[1:], calls, strict=True):
        entry["config"]["name"] = name
        tensors = [{"class_name": "__keras_tensor__", "config": {"keras_history": [read, 0, 0]}} for read in reads]
        entry["inbound_nodes"] = [{"args": [tensors if len(tensors) > 1 else tensors[0]], "kwargs": {"mask": None}}]
    config = found["config"] | {"input_layers": [["in", 0, 0]], "output_layers": [[calls[-1][0], 0, 0]]}
    return {"class_name": "Functional", "config": config}


def write(path: Path, config: dict[str, Any], layers: list[Entry], told: bool = True) -> Path:
    """``told``: with the layers' names beside their weights, as Keras writes them since 3.3."""
    import h5py

    names = [entry["config"]["name"] for entry in config["config"]["layers"][1:]]
    buffer = io.BytesIO()
    with h5py.File(path if path.suffix == ".h5" else buffer, "w") as file:
        if path.suffix == ".h5":
            file.attrs["model_config"] = json.dumps(config)
        counts: dict[str, int] = {}
        for name, (kind, _, weights) in zip(names, layers, strict=True):
            if path.suffix == ".h5":
                group = file.create_group(f"model_weights/{name}")
                group.attrs["weight_names"] = [f"{name}/{key}:0".encode() for key in weights]
                for key, array in weights.items():
                    group[f"{name}/{key}:0"] = array
                continue
            short = snake_case(kind)
            count = counts[short] = counts.get(short, -1) + 1
            group = file.create_group(f"layers/{short}" + (f"_{count}" if count else "") + "/vars")
            if told:
                group.attrs["name"] = name
            for number, array in enumerate(weights.values()):
                group[str(number)] = array
    if path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", json.dumps(config))
            archive.writestr("model.weights.h5", buffer.getvalue())
    return path


# Keras's layers on one image [H, W, C], entry by entry


def padded(
    x: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: str,
    value: float,
):
    if padding == "valid":
        return x
    pads = []
    for size, k, s, d in zip(x.shape, kernel, stride, dilation, strict=False):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [*pads, (0, 0)], constant_values=value)


def windows(x: np.ndarray, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int] = (1, 1)):
    """(row, column, [k, k, C]) of every output."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    for i, j in itertools.product(
        range((x.shape[0] - reach[0]) // stride[0] + 1), range((x.shape[1] - reach[1]) // stride[1] + 1)
    ):
        a, b = i * stride[0], j * stride[1]
        yield i, j, x[a : a + reach[0] : dilation[0], b : b + reach[1] : dilation[1]]


def slide(
    x: np.ndarray, kernel: Any, stride: Any, dilation: Any, padding: str, function: Any, value: float = 0.0
) -> np.ndarray:
    found = {
        (i, j): function(part)
        for i, j, part in windows(padded(x, kernel, stride, dilation, padding, value), kernel, stride, dilation)
    }
    rows, columns = (max(key[k] for key in found) + 1 for k in (0, 1))
    return np.array([[found[i, j] for j in range(columns)] for i in range(rows)])


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "log_sigmoid": lambda x: -np.log1p(np.exp(-x)),
    "hard_shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "tanh_shrink": lambda x: x - np.tanh(x),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x),
}


def answer(x: np.ndarray, kind: str, s: dict[str, Any], w: dict[str, np.ndarray]) -> np.ndarray:
    """One layer's answer to one image."""
    padding, act = s.get("padding", "valid"), ACTIVATIONS[s.get("activation", "linear")]
    if kind in ("Conv2D", "DepthwiseConv2D", "SeparableConv2D"):
        stride, dilation = pair(s.get("strides", 1)), pair(s.get("dilation_rate", 1))
        kernel, bias = next(iter(w.values())), w.get("bias", np.zeros(1))
        groups = s.get("groups", 1)

        def channels(part: np.ndarray) -> np.ndarray:
            if kind != "Conv2D":
                return np.einsum("abc,abcm->cm", part, kernel).reshape(-1)
            inputs, outputs = kernel.shape[2], kernel.shape[3] // groups
            return np.concatenate([
                np.einsum("abc,abco->o", part[:, :, g * inputs : (g + 1) * inputs], kernel[:, :, :, g * outputs : (g + 1) * outputs])
                for g in range(groups)
            ])  # fmt: skip

        y = slide(x, kernel.shape[:2], stride, dilation, padding, channels)
        if kind == "SeparableConv2D":
            y = y @ w["pointwise_kernel"][0, 0]
        return act(y + bias)
    if kind in ("MaxPooling2D", "AveragePooling2D"):
        kernel = pair(s.get("pool_size", 2))
        stride = pair(s.get("strides") or kernel)
        function = (lambda p: p.max((0, 1))) if kind[0] == "M" else (lambda p: np.nanmean(p, (0, 1)))
        return slide(x, kernel, stride, (1, 1), padding, function, -np.inf if kind[0] == "M" else np.nan)
    match kind:
        case "Dense":
            return act(x @ w["kernel"] + w.get("bias", 0))
        case "BatchNormalization":
            scale = w.get("gamma", 1) / np.sqrt(w["moving_variance"] + s.get("epsilon", 1e-3))
            return (x - w["moving_mean"]) * scale + w.get("beta", 0)
        case "Activation":
            return act(x)
        case "ReLU":
            slope, most = s.get("negative_slope", 0.0), s.get("max_value")
            return np.minimum(np.where(x > 0, x, slope * x), math.inf if most is None else most)
        case "LeakyReLU":
            return np.where(x > 0, x, s.get("alpha", s.get("negative_slope", 0.3)) * x)
        case "PReLU":
            return np.where(x > 0, x, w["alpha"] * x)
        case "GlobalAveragePooling2D":
            return x.mean((0, 1), keepdims=s.get("keepdims", False))
        case "GlobalMaxPooling2D":
            return x.max((0, 1), keepdims=s.get("keepdims", False))
        case "Flatten":
            return x.reshape(-1)
        case "Reshape":
            return x.reshape(s["target_shape"])
        case "ZeroPadding2D":
            value = s.get("padding", 1)
            rows = [pair(n) for n in pair(value)]
            return np.pad(x, [*rows, (0, 0)])
        case "Rescaling":
            return x * np.array(s["scale"]) + np.array(s.get("offset", 0.0))
        case "Normalization":
            mean, variance = (w[k] if w else np.array(s[k], dtype="f") for k in ("mean", "variance"))
            return (x - mean.reshape(-1)) / np.maximum(np.sqrt(variance.reshape(-1)), 1e-7)
        case "Dropout" | "RandomFlip":
            return x
    raise NotImplementedError(kind)
