"""ONNX files that are damaged, hostile, of another kind, or that onnxruntime reads differently: one clear message each."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import tiltproof
from tests.onnx.onnx_files import SHAPE, exported, message, node, random, with_head
from tests.support.processes import environment
from tiltproof import InputError
from tiltproof.models import load_onnx
from tiltproof.onnx import crosscheck as runtime
from tiltproof.onnx import ops
from tiltproof.onnx import protobuf as file


def good(**options):
    return with_head([node("Relu", "images")], 60, **options)


def load(content, tmp_path):
    (tmp_path / "net.onnx").write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return load_onnx(tmp_path / "net.onnx")


def changed(change, **options):
    proto = good(**options)
    change(proto)
    return proto


def claim_more(proto):
    proto.graph.initializer[0].dims[:] = [2**20, 2**20]


def give_less(proto):
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-4]


def not_finite(proto):
    proto.graph.initializer[1].raw_data = np.float32([1, np.nan, 2]).tobytes()


def twice(proto):
    proto.graph.initializer[1].float_data.extend([1, 2, 3])


def negative(proto):
    proto.graph.initializer[0].dims[:] = [-1, 60]


def another_opset(proto):
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 13))


def bfloat16(proto):
    proto.graph.initializer[0].data_type = TensorProto.BFLOAT16


def two_inputs(proto):
    proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))


def two_outputs(proto):
    proto.graph.output.append(helper.make_tensor_value_info("my_relu", TensorProto.FLOAT, [None, *SHAPE]))


def functions(proto):
    proto.functions.append(helper.make_function("d", "f", ["x"], ["y"], [node("Relu", "x", to="y")], []))


def out_of_order(proto):
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))


def wrong_shape(proto):
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(random(3, 59), "w"))


BAD = {
    "empty": (lambda: b"", "not a readable ONNX file.*without a graph"),
    "nonsense": (lambda: b"not a network" * 50, "not a readable ONNX file"),
    "cut short": (lambda: good().SerializeToString()[:-200], "not a readable ONNX file"),
    "cut weights": (lambda: changed(give_less), "tensor 'w'.*716 bytes for 720"),
    "a claim of 4 TiB": (lambda: changed(claim_more), r"tensor 'w'.*\[1048576, 1048576\]"),
    "a negative dimension": (lambda: changed(negative), r"tensor 'w'.*\[-1, 60\]"),
    "NaN": (lambda: changed(not_finite), "tensor 'b'.*NaN"),
    "numbers twice": (lambda: changed(twice), "tensor 'b'.*twice"),
    "bfloat16": (lambda: changed(bfloat16), "tensor 'w'.*type 16"),
    "an old opset": (lambda: good(opset=6), "one opset, 7 or newer.*opset 6"),
    "a new opset": (lambda: good(opset=999), "do not know.*opset 999.*pip install --upgrade onnx onnxruntime"),
    "two opsets": (lambda: changed(another_opset), "one opset, 7 or newer.*opset 13, opset 17"),
    "integer pictures": (lambda: good(kind=TensorProto.UINT8), "float32 or float64.*type 2"),
    "a batch of a thousand": (lambda: good(batch=1000), "batches of 1000, at most 64"),
    "flat pictures": (lambda: good(shape=(784,)), r"\[N, 784\] is a row of numbers.*--shape 1x28x28"),
    "pictures of any size": (
        lambda: good(shape=(2, "height", "width")),
        r"\[N, 2, \?, \?\] leaves the size of images open.*--shape",
    ),
    "giant pictures": (lambda: good(shape=(3, 2**20, 2**20)), "too large"),
    "two inputs": (lambda: changed(two_inputs), "2 inputs.*more"),
    "two outputs": (lambda: changed(two_outputs), "one output"),
    "functions": (lambda: changed(functions), "functions"),
    "nodes out of order": (lambda: changed(out_of_order), "not a readable ONNX file|nothing before it gives"),
    "weights of another shape": (lambda: changed(wrong_shape), "Gemm at node 'out' does not fit"),
    "growing without end": (
        lambda: with_head(
            [node("Concat", *["images" if k == 0 else f"c{k - 1}"] * 60, name=f"c{k}", axis=1) for k in range(6)], 60
        ),
        "Concat at node 'c.' gives a tensor of shape",
    ),
    "giant padding": (
        lambda: with_head([node("Pad", "images", "p")], 60, {"p": np.array([0, 0, 0, 2**40, 0, 0, 0, 0])}),
        "Pad at node 'my_pad'",
    ),
    "nothing but the input": (lambda: message([node("Identity", "images")], shape=SHAPE), "one output"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(name, tmp_path):
    make, text = BAD[name]
    with pytest.raises(InputError, match=text) as error:
        load(make(), tmp_path)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 900


def test_a_file_that_is_not_there_or_not_a_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_onnx(tmp_path / "none.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(InputError, match="not a regular file"):
        load_onnx(tmp_path / "pipe.onnx")


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="too large"):
        load(good(), tmp_path)


def external(tmp_path, **where):
    onnx.save(good(), tmp_path / "net.onnx", save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    proto = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            entry.value = where.get(entry.key, entry.value)
    return proto


def test_numbers_in_a_file_beside_it(tmp_path):
    inside, beside = load(good(), tmp_path), load(external(tmp_path), tmp_path)
    images = torch.rand(3, *SHAPE)
    assert torch.equal(inside(images), beside(images))


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "folder/numbers", "..", "", "a\\b", "C:numbers"])
def test_numbers_elsewhere_are_refused(tmp_path, location):
    with pytest.raises(InputError, match="not a plain file name in the same folder"):
        load(external(tmp_path, location=location), tmp_path)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ({"offset": "99999999"}, "0 bytes for"),
        ({"offset": "-4"}, "no place"),
        ({"length": "4"}, "4 bytes of external data for"),
        ({"location": "missing"}, "cannot be read"),
        ({"location": "pipe"}, "not a regular file"),
        ({"location": "link"}, "leaves the folder"),
    ],
)
def test_numbers_that_are_not_there(tmp_path, where, text):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(sys.executable)
    with pytest.raises(InputError, match=text):
        load(external(tmp_path, **where), tmp_path)


def test_a_network_read_wrongly_is_refused_with_the_difference(tmp_path, monkeypatch):
    monkeypatch.setitem(ops.FUNCTIONS, "Relu", torch.tanh)
    with pytest.raises(
        InputError, match=r"not read as onnxruntime reads it.*output [0-9]+ differs by [0-9.e-]+, where rounding"
    ):
        load(good(), tmp_path)


def test_a_network_that_a_batch_changes_is_refused(tmp_path, monkeypatch):
    """For a single image a mean over the batch is the identity; three images at once expose it."""
    answer = runtime._answer
    monkeypatch.setattr(runtime, "_answer", lambda *given: answer(*given) + 0.01 * (len(given[-1]) > 1))
    with pytest.raises(InputError, match="differs by 0.01"):
        load(good(), tmp_path)
    load(good(batch=1), tmp_path)


def test_rounding_is_no_difference(tmp_path):
    """A deep network of large numbers that nearly cancel."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(12) for layer in (nn.Linear(60, 60), nn.Tanh())]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(60, 3)).eval()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(4)
    load(exported(model, SHAPE), tmp_path)


def test_images_of_another_size_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"takes images of shape \(2, 6, 5\)"):
        tiltproof.certify(load(good(), tmp_path), torch.rand(1, 2, 6, 6), torch.tensor([0]), "R(1)")


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_packages_one_is_told_what_to_install(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=r"pip install 'tiltproof\[onnx\]'"):
        load(good(), tmp_path)


def test_importing_tiltproof_imports_neither():
    code = "import sys, tiltproof; assert not {'onnx', 'onnxruntime', 'google.protobuf'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment()).returncode == 0
