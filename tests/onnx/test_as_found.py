"""ONNX files as people have them: old and new opsets, fixed batches, any layout and size, several outputs, float16."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tiltproof
from tests.onnx.onnx_files import SHAPE, answers, load, message, node, random, with_head
from tiltproof import InputError, UnsupportedOperation
from tiltproof.onnx import crosscheck, entry, protobuf

CONV = {"k": random(4, 2, 3, 3), "kb": random(4, seed=3)}
LAST = {"k": random(4, 3, 3, 3), "w": random(3, 64, seed=1), "b": random(3, seed=2)}


def conv_net(opset):
    return with_head([node("Conv", "images", "k", "kb"), node("Relu", "my_conv")], 48, CONV, opset=opset)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 22, 23, 24])
def test_opsets_old_and_new(opset, tmp_path):
    proto, images = conv_net(opset), torch.rand(3, *SHAPE)
    if opset > min(onnx.defs.onnx_opset_version(), 23):
        pytest.skip("not known to the installed onnx")
    model = load(proto, tmp_path)
    torch.testing.assert_close(model(images), answers(proto.SerializeToString(), images))


OLD = {
    "Clip by attributes": lambda: with_head([node("Clip", "images", min=0.2, max=0.6)], 60, opset=9),
    "Pad by attributes": lambda: with_head([node("Pad", "images", pads=[0, 0, 1, 0, 0, 0, 0, 3])], 112, opset=10),
    "Pad of nothing": lambda: with_head([node("Pad", "images", pads=[0] * 8, value=-3e38)], 60, opset=10),
    "Slice by attributes": lambda: with_head(
        [node("Slice", "images", axes=[2, 3], starts=[1, -4], ends=[4, 100])], 24, opset=9
    ),
    "Slice of leading axes": lambda: with_head(
        [node("Slice", "images", starts=[0, 1], ends=[2**31 - 1, 2])], 30, opset=9
    ),
    "Dropout with a mask": lambda: with_head(
        [helper.make_node("Dropout", ["images"], ["kept", "mask"], name="my_dropout", ratio=0.5), node("Relu", "kept")],
        60,
        opset=9,
    ),
    "BatchNormalization, spatial": lambda: with_head(
        [node("BatchNormalization", "images", "g", "g", "g", "g", spatial=1, momentum=0.8)],
        60,
        {"g": np.float32([0.5, 1.5])},
        opset=7,
    ),
}


def lowest(*before, pads=(0, 0, 0, 0, 0, 0, 1, 1), kernel=(3, 3), features=12):
    """Max pooling of what was padded with the lowest number, as converters of old frameworks write ceil_mode."""
    last = before[-1].output[0] if before else "images"
    pad = node("Pad", last, name="pad", pads=list(pads), value=float(np.finfo(np.float32).min))
    pool = node("MaxPool", "pad", kernel_shape=kernel, strides=[2, 2])
    return with_head([*before, pad, pool], features, opset=7)


RELU = node("Relu", "images")


def test_padding_by_the_lowest_number_before_a_max_pooling(tmp_path):
    proto, images = lowest(RELU), torch.randn(3, *SHAPE)
    model = load(proto, tmp_path)
    torch.testing.assert_close(model(images), answers(proto.SerializeToString(), images))
    branches = [
        RELU,
        node("Concat", "my_relu", "my_relu", axis=1),
        node("Slice", "my_concat", axes=[1], starts=[1], ends=[3]),
    ]
    load(lowest(*branches), tmp_path)


NOT_ZEROS = {
    "numbers that may be negative": lambda: lowest(),
    "numbers of which some may be negative": lambda: lowest(RELU, node("Concat", "my_relu", "images", axis=1), SLICED),
    "a window in the padding": lambda: lowest(RELU, pads=(0, 0, 0, 0, 0, 0, 0, 2), kernel=(2, 2), features=18),
    "another reader": lambda: with_head(
        [
            RELU,
            node("Pad", "my_relu", name="pad", pads=[0, 0, 0, 0, 0, 0, 1, 1], value=-3.5e38),
            node("Relu", "pad", name="y"),
        ],
        84,
        opset=7,
    ),
}
SLICED = node("Slice", "my_concat", axes=[1], starts=[1], ends=[3])


@pytest.mark.parametrize("name", NOT_ZEROS)
def test_padding_that_zeros_cannot_replace_is_refused(name, tmp_path):
    with pytest.raises(
        InputError, match="Pad at node 'pad' pads with something else than zeros|not a readable|NaN or infinity"
    ):
        load(NOT_ZEROS[name](), tmp_path)


@pytest.mark.parametrize("name", OLD)
def test_operations_as_old_opsets_define_them(name, tmp_path):
    if name == "Slice of leading axes":
        with pytest.raises(UnsupportedOperation, match="Slice at node 'my_slice' works along the batch"):
            load(OLD[name](), tmp_path)
        return
    proto, images = OLD[name](), torch.rand(3, *SHAPE)
    torch.testing.assert_close(load(proto, tmp_path)(images), answers(proto.SerializeToString(), images))


def test_a_definition_newer_than_the_readers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tiltproof.onnx.reader.NEWEST", 12)
    with pytest.raises(
        UnsupportedOperation, match="Relu at node 'my_relu' has a definition of opset 1[34].*newer than 12"
    ):
        load(with_head([node("Relu", "images")], 60), tmp_path)
    assert protobuf.defined_by("Relu", 17) == 14
    assert protobuf.defined_by("NoSuchOperation", 17) == 0


def test_entries_for_other_domains_are_not_looked_at(tmp_path):
    proto = conv_net(13)
    proto.opset_import.extend([helper.make_opsetid("ai.onnx.ml", 2), helper.make_opsetid("ai.onnx", 13)])
    load(proto, tmp_path)


def test_an_output_without_a_shape(tmp_path):
    proto = conv_net(13)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    load(proto, tmp_path)


def test_weights_that_are_inputs_too(tmp_path):
    proto = conv_net(9)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    proto.ir_version = 3
    images = torch.rand(2, *SHAPE)
    assert load(proto, tmp_path)(images).shape == (2, 3)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_file_for_one_batch_size_serves_any(batch, tmp_path):
    ints = {"s": np.array([batch, -1], np.int64)}
    nodes = [
        node("Relu", "images"),
        node("Reshape", "my_relu", "s", name="flat"),
        node("Gemm", "flat", "w", "b", transB=1),
    ]
    proto = message(nodes, {**ints, "w": random(3, 60), "b": random(3)}, batch=batch)
    model, images = load(proto, tmp_path), torch.rand(batch * 2, *SHAPE)
    whole = torch.cat([model(part) for part in images.split(batch)])
    for size in (1, 3, batch * 2):
        torch.testing.assert_close(torch.cat([model(part) for part in images.split(size)]), whole)
    session = crosscheck._session(proto.SerializeToString())
    (theirs,) = session.run(None, {"images": images[:batch].numpy()})
    torch.testing.assert_close(whole[:batch], torch.from_numpy(theirs))


@pytest.mark.parametrize("target", [[2, 120], [-1, 120], [60, 4]])
def test_what_depends_on_the_batch_is_refused(target, tmp_path):
    proto = message(
        [node("Reshape", "images", "s"), node("Relu", "my_reshape")], {"s": np.array(target, np.int64)}, batch=4
    )
    with pytest.raises(UnsupportedOperation, match="Reshape at node 'my_reshape' reshapes"):
        load(proto, tmp_path)


def open_size(shape, first=()):
    """A network for images of any size: convolution, global average, linear layer."""
    nodes = [
        *first,
        node("Conv", first[-1].output[0] if first else "images", "k"),
        node("GlobalAveragePool", "my_conv"),
    ]
    return with_head(nodes, 4, {"k": LAST["k"]}, shape=shape)


def test_the_size_comes_from_the_caller_or_the_data(tmp_path):
    proto = open_size((3, "height", "width"))
    model = load(proto, tmp_path, shape=(3, 7, 9))
    images = torch.rand(2, 3, 7, 9)
    torch.testing.assert_close(model(images), answers(proto.SerializeToString(), images))
    assert load(proto, tmp_path, shape=lambda: images.shape[1:]).shape == (3, 7, 9)
    with pytest.raises(InputError, match=r"\[N, 3, \?, \?\] does not take images of shape 1x7x9"):
        load(proto, tmp_path, shape=(1, 7, 9))
    with pytest.raises(InputError, match="three whole numbers.*Got: 28"):
        load(proto, tmp_path, shape="28")


def test_the_data_are_not_asked_without_need(tmp_path):
    assert load(conv_net(13), tmp_path, shape=lambda: pytest.fail("asked")).shape == SHAPE


@pytest.mark.parametrize("sizes", [(12,), (1, 12), (1, 1, 12), (12, 1, 1), (1, 12, 1, 1)])
def test_rows_of_numbers(sizes, tmp_path):
    proto = with_head([node("Relu", "images")], 12, shape=sizes)
    model, images = load(proto, tmp_path, shape=(1, 3, 4)), torch.rand(2, 1, 3, 4)
    theirs = answers(proto.SerializeToString(), images.reshape(2, *sizes))
    torch.testing.assert_close(model(images), theirs)
    tiltproof.certify(model, images, model(images).argmax(1), "B(0.001)")


def test_the_order_of_a_row_of_colours_is_stated(tmp_path):
    proto, images = with_head([node("Relu", "images")], 12, shape=(12,)), torch.rand(2, 3, 2, 2)
    with pytest.raises(InputError, match="order that the file does not tell.*--layout nchw.*--layout nhwc"):
        load(proto, tmp_path, shape=(3, 2, 2))
    for layout, row in (("nchw", images.flatten(1)), ("nhwc", images.permute(0, 2, 3, 1).flatten(1))):
        theirs = answers(proto.SerializeToString(), row.contiguous())
        torch.testing.assert_close(load(proto, tmp_path, shape=(3, 2, 2), layout=layout)(images), theirs)
    with pytest.raises(InputError, match=r"\[N, 12\] does not take images of shape 1x28x28"):
        load(proto, tmp_path, shape=(1, 28, 28))


def test_gray_images_without_a_channel(tmp_path):
    proto, images = with_head([node("Relu", "images")], 42, shape=(6, 7)), torch.rand(2, 1, 6, 7)
    torch.testing.assert_close(load(proto, tmp_path)(images), answers(proto.SerializeToString(), images[:, 0]))


def last_net(shape=(6, 5, 3)):
    nodes = [
        node("Transpose", "images", perm=[0, 3, 1, 2]),
        node("Conv", "my_transpose", "k"),
        node("Flatten", "my_conv"),
    ]
    return message([*nodes, node("Gemm", "my_flatten", "w", "b", transB=1)], LAST | {"w": random(3, 48)}, shape=shape)


def test_channels_last_is_recognised(tmp_path):
    proto, images = last_net(), torch.rand(3, 3, 6, 5)
    for options in ({}, {"layout": "nhwc"}, {"shape": (3, 6, 5)}, {"shape": (3, 6, 5), "layout": "nhwc"}):
        model = load(proto, tmp_path, **options)
        assert model.shape == (3, 6, 5)
        assert "[N, 6, 5, 3] as images 3x6x5, channels last" in model.read_as
        theirs = answers(proto.SerializeToString(), images.permute(0, 2, 3, 1).contiguous())
        torch.testing.assert_close(model(images), theirs)
    assert tiltproof.certify(model, images, model(images).argmax(1), "R(0.01)").verdicts == ["certified"] * 3
    with pytest.raises(InputError, match=r"images of shape \(3, 6, 5\), not \(3, 5, 6\).*channels last.*--layout"):
        tiltproof.certify(model, torch.rand(1, 3, 5, 6), torch.tensor([0]), "R(1)")


def test_channels_last_of_any_size(tmp_path):
    proto = open_size(("h", "w", 3), first=[node("Transpose", "images", perm=[0, 3, 1, 2])])
    assert load(proto, tmp_path, shape=lambda: (3, 6, 8)).shape == (3, 6, 8)
    proto = open_size((None, None, None), first=[node("Transpose", "images", perm=[0, 3, 1, 2])])
    assert load(proto, tmp_path, shape=(3, 6, 8)).shape == (3, 6, 8)


def test_ambiguous_axes_are_refused_until_they_are_stated(tmp_path):
    proto = with_head([node("Relu", "images")], 45, shape=(3, 5, 3))
    with pytest.raises(InputError, match=r"\[N, 3, 5, 3\] can be read with channels first and.*--layout nchw or"):
        load(proto, tmp_path)
    assert load(proto, tmp_path, layout="nchw").shape == (3, 5, 3)
    model, images = load(proto, tmp_path, layout="nhwc"), torch.rand(2, 3, 3, 5)
    theirs = answers(proto.SerializeToString(), images.permute(0, 2, 3, 1).contiguous())
    torch.testing.assert_close(model(images), theirs)
    with pytest.raises(InputError, match="unknown layout.*nwhc"):
        load(proto, tmp_path, layout="nwhc")
    assert load(with_head([node("Relu", "images"), node("Conv", "images", "k")], 12, {"k": random(4, 3, 3, 3)}, shape=(3, 5, 3)),
                tmp_path).shape == (3, 5, 3)  # fmt: skip


def test_a_convolution_of_thirty_channels_is_no_picture(tmp_path):
    proto = with_head([node("Conv", "images", "k")], 16, {"k": random(4, 30, 3, 1)}, shape=(30, 4, 3))
    with pytest.raises(
        InputError, match=r"\[N, 30, 4, 3\] has the sizes of images with channels last, but its first layer"
    ):
        load(proto, tmp_path)
    with pytest.raises(InputError, match="gives a tensor|does not fit|reads"):
        load(proto, tmp_path, layout="nhwc")


def test_a_transposition_of_channels_first_is_no_picture_either(tmp_path):
    proto = with_head([node("Transpose", "images", perm=[0, 3, 1, 2])], 60, shape=(3, 4, 5))
    with pytest.raises(
        InputError, match="the sizes of images with channels first, but its first layer takes channels last"
    ):
        load(proto, tmp_path)
    assert load(proto, tmp_path, layout="nchw").shape == (3, 4, 5)
    assert load(proto, tmp_path, layout="nhwc").shape == (5, 3, 4)


def test_a_digest_tells_layouts_and_outputs_apart(tmp_path):
    proto = with_head([node("Relu", "images")], 45, shape=(3, 5, 3))
    one, other = (load(proto, tmp_path, layout=layout).file_sha256 for layout in entry.LAYOUTS)
    assert not torch.equal(one, other)


def two_outputs():
    proto = with_head([node("Hardmax", "images", name="odd"), node("Relu", "images")], 60)
    proto.graph.output.append(helper.make_tensor_value_info("odd", TensorProto.FLOAT, [None, None]))
    return proto


def test_one_of_several_outputs(tmp_path):
    """What the other outputs are computed by needs no rule."""
    proto, images = two_outputs(), torch.rand(2, *SHAPE)
    with pytest.raises(InputError, match="one output. Got: 2: out, odd.*--output NAME"):
        load(proto, tmp_path)
    model = load(proto, tmp_path, output="out")
    assert model(images).shape == (2, 3)
    inner = load(proto, tmp_path, output="flat")
    torch.testing.assert_close(inner(images), images.relu().flatten(1))
    with pytest.raises(InputError, match="no such output. Got: images.*out, odd"):
        load(proto, tmp_path, output="images")
    with pytest.raises(UnsupportedOperation, match="Hardmax at node 'odd'"):
        load(proto, tmp_path, output="odd")


@pytest.mark.parametrize("rules", [True, False])
def test_each_output_is_compared_by_its_own_size(rules, tmp_path, monkeypatch):
    """Beside an output of a million, one that is wrong by a ten-thousandth is found, by a hundredth without rules of rounding."""
    if not rules:
        monkeypatch.setattr(crosscheck, "ERRORS", {})
    scale = {"w": random(3, 60) * np.float32([[1e7], [1], [1]]), "b": random(3)}
    nodes = [node("Flatten", "images"), node("Gemm", "my_flatten", "w", "b", transB=1)]
    model = load(message(nodes, scale), tmp_path)
    images = torch.rand(1, *SHAPE)
    model.file.compare(model, images)
    answer = model.file.answer
    for output, found in ((0, False), (1, True)):
        change = (1e-4 if rules else 1e-2) * torch.eye(3, dtype=torch.float64)[output]
        model.file.answer = lambda batch, change=change: answer(batch) + change
        if found:
            with pytest.raises(InputError, match=r"output 1 differs by (0.0001|0.01|9\.9\d?e-05|0.00999)"):
                model.file.compare(model, images)
        else:
            model.file.compare(model, images)


def half(array):
    return numpy_helper.from_array(np.asarray(array, np.float16))


@pytest.mark.parametrize("typed", [False, True])
def test_weights_in_float16(typed, tmp_path):
    """The real-valued network of these weights; onnxruntime rounds to float16 after each step."""
    nodes = [node("Flatten", "images"), node("Gemm", "my_flatten", "w", "b", transB=1), node("Relu", "my_gemm")]
    tensors = {"w": half(random(3, 60)), "b": half(random(3))}
    if typed:
        bits = random(3).astype(np.float16).view(np.uint16).tolist()
        tensors["b"] = TensorProto(data_type=TensorProto.FLOAT16, dims=[3], int32_data=bits)
    for name, tensor in tensors.items():
        tensor.name = name
    model = load(message(nodes, tensors, kind=TensorProto.FLOAT16), tmp_path)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    images = torch.rand(2, *SHAPE)
    theirs = crosscheck._session((tmp_path / "net.onnx").read_bytes())
    (result,) = theirs.run(None, {"images": images.half().numpy()})
    torch.testing.assert_close(model(images), torch.from_numpy(result).float(), rtol=0.02, atol=0.01)


def test_weights_kept_in_float16_for_a_float32_network(tmp_path):
    nodes = [
        helper.make_node("Cast", ["half"], ["w"], name="wide", to=TensorProto.FLOAT),
        node("Flatten", "images"),
        node("Gemm", "my_flatten", "w", "b", transB=1),
    ]
    weight = half(random(3, 60))
    weight.name = "half"
    model = load(message(nodes, {"half": weight, "b": random(3)}), tmp_path)
    assert not model.file.entry.half
    weights = torch.tensor(numpy_helper.to_array(weight), dtype=torch.float32)
    assert torch.equal(next(model.parameters()), weights)


def test_float16_numbers_of_17_bits_are_refused(tmp_path):
    tensor = TensorProto(name="b", data_type=TensorProto.FLOAT16, dims=[3], int32_data=[1, 2, 2**16])
    nodes = [node("Flatten", "images"), node("Gemm", "my_flatten", "w", "b", transB=1)]
    with pytest.raises(InputError, match="tensor 'b'.*no float16 numbers"):
        load(message(nodes, {"w": random(3, 60), "b": tensor}), tmp_path)


BAD_SIZES = {
    "of a batch": (["my_shape", "one"], "Mul at node 'sizes' computes with the batch size"),
    "of images": (["images", "one"], "Mul at node 'sizes' computes with an image and sizes|Mul at node 'sizes'"),
    "of different lengths": (["three", "pair"], "Mul at node 'sizes' combines sizes that do not fit"),
}


@pytest.mark.parametrize("name", BAD_SIZES)
def test_arithmetic_with_sizes_that_has_no_meaning(name, tmp_path):
    read, text = BAD_SIZES[name]
    ints = {"one": np.array([1], np.int64), "pair": np.array([1, 2], np.int64), "three": np.array([1, 2, 3], np.int64)}
    nodes = [node("Shape", "images"), node("Mul", *read, name="sizes"), node("Reshape", "images", "sizes")]
    with pytest.raises(UnsupportedOperation, match=text):
        load(with_head(nodes, 60, ints), tmp_path)


def test_every_operation_without_a_reader_is_named_at_once(tmp_path):
    nodes = [node("Hardmax", "images"), node("Det", "my_hardmax"), node("Hardmax", "my_det", name="again")]
    with pytest.raises(
        UnsupportedOperation,
        match=r"Hardmax at node 'my_hardmax'.*in all 3 unsupported operations: .*\(2\) Det at node 'my_det'.*\(3\) Hardmax at node 'again'",
    ):
        load(with_head(nodes, 60), tmp_path)
