"""Heads of ONNX classifiers: compared with onnxruntime as they are, taken off by proofs about classes."""

import json

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import tiltproof
from tests.onnx.onnx_files import SHAPE, answers, load, message, node, random, with_head
from tiltproof import InputError, UnsupportedOperation
from tiltproof.network import without_head
from tiltproof.onnx import heads

IMAGES = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))


def net(*ends, opset=17, **options):
    """Three scores, and the nodes that follow."""
    scores = [node("Flatten", "images", name="flat"), node("Gemm", "flat", "w", "b", name="scores", transB=1)]
    proto = message([*scores, *ends], {"w": random(3, 60), "b": random(3)}, opset=opset, **options)
    if ends[-1].op_type == "ArgMax":
        kept = all(entry.i for entry in ends[-1].attribute if entry.name == "keepdims")
        sizes = [None, 1] if kept else [None]
        proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(ends[-1].output[0], TensorProto.INT64, sizes))
    return proto


def spatial(axis, opset):
    """A softmax over [N, 3, 1, 1], and a reshape."""
    nodes = [
        node("GlobalAveragePool", "conv", name="mean"),
        node("Softmax", "mean", name="p", axis=axis),
        node("Flatten", "p"),
    ]
    return message([node("Conv", "images", "k", name="conv"), *nodes], {"k": random(3, 2, 2, 2) * 9}, opset=opset)


HEADS = {
    "Softmax": (lambda: net(node("Softmax", "scores")), ("Softmax",)),
    "Softmax, opset 9": (lambda: net(node("Softmax", "scores"), opset=9), ("Softmax",)),
    "LogSoftmax": (lambda: net(node("LogSoftmax", "scores", axis=1)), ("LogSoftmax",)),
    "Sigmoid": (lambda: net(node("Sigmoid", "scores")), ("Sigmoid",)),
    "ArgMax": (lambda: net(node("ArgMax", "scores", axis=1, keepdims=0)), ("ArgMax",)),
    "ArgMax that keeps its axis": (lambda: net(node("ArgMax", "scores", axis=-1)), ("ArgMax",)),
    "ArgMax of Softmax": (
        lambda: net(node("Softmax", "scores", name="p"), node("Identity", "p"), node("ArgMax", "my_identity", axis=1)),
        ("ArgMax", "Softmax"),
    ),
    "Softmax before Flatten": (lambda: spatial(1, 17), ("Softmax",)),
    "Softmax of a block": (lambda: spatial(1, 9), ("Softmax",)),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_compared_and_taken_off(name, tmp_path):
    make, expected = HEADS[name]
    proto = make()
    model = load(proto, tmp_path)
    theirs = answers(proto.SerializeToString(), IMAGES)
    torch.testing.assert_close(model(IMAGES).to(theirs.dtype), theirs)
    scores, head = without_head(model, IMAGES)
    assert head == expected
    classes = theirs.flatten() if head[0] == "ArgMax" else theirs.argmax(1)
    assert torch.equal(scores(IMAGES).argmax(1), classes)


def test_certified_and_checked(tmp_path):
    model = load(HEADS["ArgMax of Softmax"][0](), tmp_path)
    labels = model(IMAGES).flatten()
    certificate = tiltproof.certify(model, IMAGES, labels, "B(0.001)", run=tiltproof.RunFolder(tmp_path / "run"))
    assert certificate.verdicts == ["certified"] * 3
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["claim"]["head"] == ["ArgMax", "Softmax"]
    assert tiltproof.check(tmp_path / "run", model, IMAGES, labels).certified == 3
    with pytest.raises(UnsupportedOperation, match="argmax"):
        tiltproof.certify_range(model, IMAGES, None, "B(0.001)")


def test_a_softmax_over_several_axes_of_old_opsets(tmp_path):
    """Before opset 13 the axis is where a block begins; over [3, 2] together, not over 3 alone."""
    ints = {"s": np.array([0, 3, 2], np.int64), "w": random(6, 60), "b": random(6)}
    linear = node("Gemm", "flat", "w", "b", name="six", transB=1)
    nodes = [node("Flatten", "images", name="flat"), linear, node("Reshape", "six", "s", name="parts")]
    for opset, total in ((12, 1.0), (13, 2.0)):
        proto = message([*nodes, node("Softmax", "parts", axis=1)], ints, opset=opset)
        model = load(proto, tmp_path)
        torch.testing.assert_close(model(IMAGES), answers(proto.SerializeToString(), IMAGES))
        torch.testing.assert_close(model(IMAGES).sum((1, 2)), torch.full((3,), total))
        assert without_head(model, IMAGES)[1] == ()


@pytest.mark.parametrize("op", ["ArgMax"])
def test_inside_a_network_it_is_refused_by_name(op, tmp_path):
    more = [node("Cast", "my_argmax", to="float", name="cast")]
    for entry in more:
        entry.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    last = "float"
    with pytest.raises(UnsupportedOperation, match=f"{op} at node 'my_{op.lower()}'|Cast at node 'cast'"):
        load(net(node(op, "scores", axis=1), *more, node("Relu", last)), tmp_path)
    with pytest.raises((UnsupportedOperation, InputError), match=f"{op} at node"):
        load(with_head([node(op, "images", axis=0)], 60), tmp_path)


def test_a_head_read_wrongly_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(heads.softmax, "__code__", heads.log_softmax.__code__)
    with pytest.raises(InputError, match="not read as onnxruntime reads it"):
        load(HEADS["Softmax"][0](), tmp_path)


def test_names_of_classes_are_left_out(tmp_path):
    """A text for the largest class and a dictionary of all: both are made of the same scores."""
    names = helper.make_node(
        "Constant", [], ["names"], value=helper.make_tensor("names", TensorProto.STRING, [3], [b"a", b"b", b"c"])
    )
    ends = [
        node("Sigmoid", "scores", name="p"),
        names,
        node("ArgMax", "p", name="class", axis=1),
        helper.make_node("ArrayFeatureExtractor", ["names", "class"], ["label"], domain="ai.onnx.ml"),
        helper.make_node("ZipMap", ["p"], ["loss"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]
    proto = net(*ends, opset=11)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    mapped = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    kinds = {
        "label": helper.make_tensor_type_proto(TensorProto.STRING, [None, 1]),
        "loss": helper.make_sequence_type_proto(mapped),
    }
    del proto.graph.output[:]
    proto.graph.output.extend([helper.make_value_info(name, kind) for name, kind in kinds.items()])
    model = load(proto, tmp_path)
    assert model(IMAGES).shape == (3, 3)
    assert without_head(model, IMAGES)[1] == ("Sigmoid",)
    onnx.checker.check_model(proto)
