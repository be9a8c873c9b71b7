"""The bytes of an ONNX file, and the message in them: bounded, never run, and refused where more is in it than a network."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tiltproof.errors import InputError, shown

MOST_BYTES = 2**30
"""Of the file, and of each file with numbers beside it."""
MOST_NODES = 10_000
OPSETS = range(11, 22)
EXPORT_AGAIN = "export the network again, e.g. torch.onnx.export(model.eval(), image, 'net.onnx', opset_version=18)"


def package(name: str) -> Any:
    """``onnx`` or ``onnxruntime``, which only users of ONNX files need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            "ONNX files need the packages onnx and onnxruntime",
            got=shown(error),
            do="pip install 'tiltproof[onnx]'",
        ) from None


def read_file(path: Path, what: str = "the ONNX file", begin: int = 0, count: int | None = None) -> bytes:
    """The content of a regular file, or a part of it; not of a pipe, and nothing far larger than networks are."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe would wait forever, /dev/zero never end
            raise InputError(f"{what} is not a regular file", got=shown(path), do="check --model")
        if size > MOST_BYTES:
            raise InputError(f"{what} is too large", got=f"{shown(path)} of {size:,} bytes, at most {MOST_BYTES:,}")
        with path.open("rb") as stream:
            stream.seek(begin)
            return stream.read(size if count is None else min(count, size))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what} cannot be read", got=f"{shown(path)} ({shown(reason)})", do="check --model") from None


def parse(content: bytes, path: Path) -> Any:
    """The file's ModelProto, if it holds one graph of standard nodes and nothing beside it that could change its meaning."""
    onnx = package("onnx")
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError has had several homes
        raise _unreadable(path, shown(error) or type(error).__name__) from None
    if not model.HasField("graph") or not model.graph.node:
        raise _unreadable(path, "a message without a graph")
    graph = model.graph
    extras = {
        "functions": model.functions,
        "training_info": model.training_info,
        "sparse_initializer": graph.sparse_initializer,
        "quantization_annotation": graph.quantization_annotation,
    }
    for name, content_of in extras.items():
        if len(content_of):
            raise InputError(f"an ONNX file with {name} is not read", got=shown(path), do=EXPORT_AGAIN)
    if len(graph.node) > MOST_NODES:
        raise InputError("the ONNX file has too many nodes", got=f"{len(graph.node):,}, at most {MOST_NODES:,}")
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) != 1 or versions[0] not in OPSETS:
        raise InputError(
            f"the ONNX file must use one opset from {OPSETS[0]} to {OPSETS[-1]}",
            got=shown(", ".join(f"opset {version}" for version in versions) or "none"),
            do=EXPORT_AGAIN,
        )
    return model


def validate(model: Any, path: Path) -> None:
    """ONNX's own checker: attributes and inputs as each node's definition in that opset says, names given once."""
    try:
        package("onnx").checker.check_model(model)
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(path, shown(" ".join(str(error).split())).rstrip(".")) from None


def _unreadable(path: Path, got: str) -> InputError:
    return InputError(
        f"not a readable ONNX file: {shown(path)}",
        got=got,
        why="the file was cut short, is damaged, or is of another format",
        do=EXPORT_AGAIN,
    )
