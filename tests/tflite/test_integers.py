"""Networks of int8 give, bit by bit, what TFLite's reference kernels give: compared with whole numbers of any size."""

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tflite import tflite_files as reference
from tests.tflite.tflite_files import Op, T, write
from tiltproof.errors import UnsupportedOperation
from tiltproof.models import load_tflite

pytest.importorskip("flatbuffers")

RANDOM = np.random.default_rng(0)
SHARED = Path(__file__).parents[3] / "shared" / "networks"
MLPERF = next((p for p in (SHARED, Path("/work/shared/networks")) if p.is_dir()), SHARED) / "mlperf_resnet8_int8.tflite"
IMAGE = T([1, 6, 5, 3], "int8", scale=0.031, zero=-9)


def whole(*shape: int, least: int = -127, most: int = 127) -> np.ndarray:
    return RANDOM.integers(least, most + 1, size=shape)


def answers(model: torch.nn.Module, image: np.ndarray, given: T, out: T) -> np.ndarray:
    """The whole numbers that the module gives for the image of these whole numbers, in the file's order."""
    real = torch.from_numpy((image.astype(np.float64) - given.zero) * float(np.float32(given.scale)))
    with torch.no_grad():
        found: Tensor = model.double()(real.permute(2, 0, 1)[None])[0]
    found = found.permute(1, 2, 0) if found.ndim == 3 else found
    units = found / float(np.float32(out.scale)) + out.zero
    assert float((units - units.round()).abs().max()) < 1e-6
    return units.round().long().numpy()


def read(path: Path, tensors: list[T], operators: list[Op], **more: int) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_tflite(write(path / "net.tflite", tensors, operators, **more))


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize(
    ("same", "stride", "dilation"), [(1, (1, 1), (1, 1)), (0, (2, 1), (1, 1)), (1, (2, 2), (1, 1)), (0, (1, 1), (2, 1))]
)
@pytest.mark.parametrize("activation", [0, 1, 3])
def test_convolutions(tmp_path, depthwise, same, stride, dilation, activation):
    outputs, kernel = 6, (3, 2)
    shape = [1, *kernel, outputs] if depthwise else [outputs, *kernel, 3]
    scales = RANDOM.uniform(0.001, 0.02, outputs)
    weights = T(shape, "int8", whole(*shape).astype("i1"), list(scales), [0] * outputs, 3 if depthwise else 0)
    scale = list(np.float32(IMAGE.scale) * np.float32(scales))
    bias = T([outputs], "int32", whole(outputs, least=-4000, most=4000).astype("<i4"), scale, [0] * outputs)
    sizes = [reference.sides((6, 5)[k], kernel[k], stride[k], dilation[k], bool(same))[0] for k in (0, 1)]
    out = T([1, *sizes, outputs], "int8", scale=0.043, zero=5)
    name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    tail = {3: ("i", 2), 4: ("b", activation), 5: ("i", dilation[1]), 6: ("i", dilation[0])}
    tail = tail if depthwise else {3: ("b", activation), 4: ("i", dilation[1]), 5: ("i", dilation[0])}
    options = {0: ("b", 1 - same), 1: ("i", stride[1]), 2: ("i", stride[0]), **tail}
    model = read(tmp_path, [IMAGE, weights, bias, out], [Op(name, [0, 1, 2], 3, options)])
    factors = [float(np.float32(IMAGE.scale)) * float(np.float32(s)) / float(np.float32(out.scale)) for s in scales]
    ends = reference.clipping(activation, out.scale, out.zero)
    for _ in range(3):
        image = whole(6, 5, 3, least=-128)
        expected = reference.convolution(
            image, weights.data, bias.data, IMAGE.zero, factors, out.zero, ends, stride, dilation, bool(same), depthwise
        )  # fmt: skip
        np.testing.assert_array_equal(answers(model, image, IMAGE, out), expected)


@pytest.mark.parametrize("scales", [(0.05, 0.031, 0.06), (0.4, 0.002, 0.21), (0.001, 0.001, 0.0011)])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("constant", [False, True])
def test_arithmetic(tmp_path, name, scales, constant):
    """Of two branches (the image in other units is the second one), and with a constant for each channel."""
    given = T([1, 6, 5, 3], "int8", scale=scales[0], zero=-9)
    number = whole(3).astype("i1") if constant else None
    second = T([3] if constant else [1, 6, 5, 3], "int8", number, scale=scales[1], zero=17)
    scale = scales[0] * scales[1] * 64 if name == "MUL" else scales[2]
    out = T([1, 6, 5, 3], "int8", scale=scale, zero=-31)
    operators = [] if constant else [Op("QUANTIZE", [0], 1)]
    options = {0: ("b", 1)}
    model = read(tmp_path, [given, second, out], [*operators, Op(name, [0, 1], 2, options)])
    ends = reference.clipping(1, out.scale, out.zero)
    for _ in range(3):
        image = whole(6, 5, 3, least=-128)
        other = number if constant else reference.rescaled(image, given, second, (-128, 127))
        if name == "MUL":
            expected = reference.multiplied(image, other, given, second, out, ends)
        else:
            expected = reference.added(image, other, given, second, out, ends, name == "SUB")
        np.testing.assert_array_equal(answers(model, image, given, out), expected)


@pytest.mark.parametrize(
    ("same", "kernel", "stride"), [(0, (2, 2), (2, 2)), (1, (3, 3), (2, 2)), (0, (6, 5), (6, 5)), (1, (3, 2), (1, 1))]
)
@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_pooling(tmp_path, name, same, kernel, stride):
    sizes = [reference.sides((6, 5)[k], kernel[k], stride[k], 1, bool(same))[0] for k in (0, 1)]
    out = T([1, *sizes, 3], "int8", scale=IMAGE.scale, zero=IMAGE.zero)
    options = {
        0: ("b", 1 - same),
        1: ("i", stride[1]),
        2: ("i", stride[0]),
        3: ("i", kernel[1]),
        4: ("i", kernel[0]),
        5: ("b", 1),
    }
    model = read(tmp_path, [IMAGE, out], [Op(name, [0], 1, options)])
    ends = reference.clipping(1, out.scale, out.zero)
    function = reference.average if name == "AVERAGE_POOL_2D" else reference.largest
    for spread in (128, 3, 1):  # small numbers make many ties
        image = np.clip(whole(6, 5, 3, least=-spread, most=spread), -128, 127)
        np.testing.assert_array_equal(
            answers(model, image, IMAGE, out), function(image, kernel, stride, bool(same), ends)
        )


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("scale", [0.031, 0.017])
def test_mean_and_dense(tmp_path, keep, scale):
    middle = T([1, 1, 1, 3] if keep else [1, 3], "int8", scale=scale, zero=-9)
    weights, out = T([4, 3], "int8", whole(4, 3).astype("i1"), 0.01, 0), T([1, 4], "int8", scale=0.007, zero=3)
    bias, axes = (
        T([4], "int32", whole(4, least=-900, most=900).astype("<i4"), scale * 0.01),
        T([2], "int32", np.array([1, 2], "<i4")),
    )
    operators = [Op("MEAN", [0, 1], 2, {0: ("b", int(keep))}), Op("FULLY_CONNECTED", [2, 3, 4], 5, {0: ("b", 0)})]
    model = read(tmp_path, [IMAGE, axes, middle, weights, bias, out], operators)
    for _ in range(4):
        image = whole(6, 5, 3, least=-128)
        between = reference.mean(image, IMAGE, middle)
        expected = reference.dense(between, weights.data, bias.data, middle, weights, out, (-128, 127))
        np.testing.assert_array_equal(answers(model, image, IMAGE, out), expected)


@pytest.mark.parametrize(("name", "kind"), [("RELU", 1), ("RELU6", 3), ("QUANTIZE", 0)])
def test_other_units(tmp_path, name, kind):
    for scale, zero in ((0.031, -9), (0.05, -128), (0.007, 100)):
        out = T(IMAGE.shape, "int8", scale=scale, zero=zero)
        model, image = read(tmp_path, [IMAGE, out], [Op(name, [0], 1)]), whole(6, 5, 3, least=-128)
        expected = reference.rescaled(image, IMAGE, out, reference.clipping(kind, scale, zero), kind > 0)
        np.testing.assert_array_equal(answers(model, image, IMAGE, out), expected)


def test_numbers_that_move(tmp_path):
    """Flattened channels last, transposed, padded with the zero point, joined."""
    pads = np.array([[0, 0], [1, 0], [0, 2], [0, 0]], "<i4")
    alike = {"kind": "int8", "scale": IMAGE.scale, "zero": IMAGE.zero}
    tensors = [
        IMAGE, T([4, 2], "int32", pads), T([1, 7, 7, 3], **alike), T([4], "int32", np.array([0, 2, 3, 1], "<i4")), T([1, 7, 3, 7], **alike),
        T([1, 7, 6, 7], **alike), T([2], "int32", np.array([1, 294], "<i4")), T([1, 294], **alike),
    ]  # fmt: skip
    operators = [
        Op("PAD", [0, 1], 2), Op("TRANSPOSE", [2, 3], 4), Op("CONCATENATION", [4, 4], 5, {0: ("i", 2)}),
        Op("RESHAPE", [5, 6], 7),
    ]  # fmt: skip
    model, image = read(tmp_path, tensors, operators), whole(6, 5, 3, least=-128)
    padded = np.pad(image, pads[1:], constant_values=IMAGE.zero).transpose(1, 2, 0)
    expected = np.concatenate([padded, padded], 1).reshape(-1)
    np.testing.assert_array_equal(answers(model, image, IMAGE, tensors[-1]), expected)


def test_uint8_with_a_zero_point_of_the_weights(tmp_path):
    given, out = T([1, 4, 4, 2], "uint8", scale=0.02, zero=120), T([1, 4, 4, 3], "uint8", scale=0.05, zero=60)
    weights = T([3, 1, 1, 2], "uint8", whole(3, 1, 1, 2, least=0, most=255).astype("u1"), 0.01, 131)
    bias = T([3], "int32", whole(3).astype("<i4"), 0.02 * 0.01)
    options = {0: ("b", 1), 1: ("i", 1), 2: ("i", 1), 3: ("b", 1)}
    model = read(tmp_path, [given, weights, bias, out], [Op("CONV_2D", [0, 1, 2], 3, options)])
    image, ends = whole(4, 4, 2, least=0, most=255), reference.clipping(1, out.scale, out.zero, 0, 255)
    factor = float(np.float32(given.scale) * np.float32(weights.scale)) / float(np.float32(out.scale))
    expected = reference.convolution(
        image, weights.data.astype(np.int64) - 131, bias.data, 120, [factor], 60, ends, (1, 1), (1, 1), False, False
    )  # fmt: skip
    np.testing.assert_array_equal(answers(model, image, given, out), expected)


def test_heads_of_whole_numbers_are_left_out(tmp_path):
    tensors = [
        T([1, 1, 1, 3], "int8", scale=0.1, zero=4), T([1, 3], "int8", scale=0.1, zero=4), T([2], "int32", np.array([1, 3], "<i4")),
        T([1, 3], "int8", scale=1 / 256, zero=-128), T([1, 3]),
    ]  # fmt: skip
    operators = [Op("RESHAPE", [0, 2], 1), Op("SOFTMAX", [1], 3, {0: ("f", 1.0)}), Op("DEQUANTIZE", [3], 4)]
    path = write(tmp_path / "net.tflite", tensors, operators)
    with pytest.warns(UserWarning, match="SOFTMAX of whole numbers at the network's end was left out"):
        model = load_tflite(path)
    np.testing.assert_array_equal(answers(model, np.array([[[3, -9, 100]]]), tensors[0], tensors[1]), [3, -9, 100])
    operators.append(Op("RELU", [4], 5))
    with pytest.raises(UnsupportedOperation, match=r"RELU.*reads what SOFTMAX gives"):
        load_tflite(write(tmp_path / "net.tflite", [*tensors, T([1, 3])], operators))


def test_accumulators_beyond_32_bits_are_refused(tmp_path):
    weights, out = (
        T([1, 1, 1, 3], "int8", whole(1, 1, 1, 3).astype("i1"), 0.5, 0),
        T([1, 6, 5, 1], "int8", scale=0.04, zero=0),
    )
    bias = T([1], "int32", np.array([2**31 - 100], "<i4"))
    options = {0: ("b", 1), 1: ("i", 1), 2: ("i", 1)}
    with pytest.raises(UnsupportedOperation, match="32 bits"):
        read(tmp_path, [IMAGE, weights, bias, out], [Op("CONV_2D", [0, 1, 2], 3, options)])


@pytest.mark.skipif(not MLPERF.is_file(), reason="needs ../shared/networks")
@pytest.mark.filterwarnings("ignore:.*SOFTMAX")
def test_the_mlperf_network_bit_by_bit():
    """All layers of MLPerf Tiny's ResNet-8, from the file's numbers, in whole numbers."""
    from tiltproof.tflite.schema import parse

    file, model = parse(MLPERF.read_bytes(), MLPERF), load_tflite(MLPERF)
    image = RANDOM.integers(-128, 128, size=(32, 32, 3))
    held: dict[int, np.ndarray] = {file.inputs[0]: image}

    def entry(number: int) -> T:
        scales = file.tensors[number].scales
        return T([], "int8", scale=scales.scale.tolist(), zero=int(scales.zero[0]))

    for node in file.nodes[:-1]:
        given, out = (entry(number) for number in (node.inputs[0], node.outputs[0]))
        scale = out.scale[0]
        given.scale, out.scale = given.scale[0], scale
        numbers = [held[n] if n in held else file.constant(n).numpy() for n in node.inputs]
        x = numbers[0]
        if node.op == "CONV_2D":
            factors = [given.scale * s / scale for s in file.tensors[node.inputs[1]].scales.scale]
            made = fast_convolution(x, numbers[1], numbers[2], given.zero, factors, out, node)
        elif node.op == "ADD":
            second = entry(node.inputs[1])
            second.scale = second.scale[0]
            ends = reference.clipping(node.byte(0), scale, out.zero)
            made = reference.added(x, numbers[1], given, second, out, ends)
        elif node.op == "AVERAGE_POOL_2D":
            made = reference.average(x, (8, 8), (8, 8), False, (-128, 127))
        elif node.op == "RESHAPE":
            made = x.reshape(-1)
        else:
            weights = entry(node.inputs[1])
            weights.scale = weights.scale[0]
            made = reference.dense(x, numbers[1], numbers[2], given, weights, out, (-128, 127))
        held[node.outputs[0]] = made
    expected = held[file.nodes[-1].inputs[0]]
    found = answers(model, image, T([], scale=1.0, zero=-128), T([], scale=scale, zero=out.zero))
    np.testing.assert_array_equal(found, expected)


def fast_convolution(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, zero: int, factors: list, out: T, node: object
) -> np.ndarray:
    """Sums of whole numbers by numpy, and each scaled as the kernels do."""
    stride, kernel = node.option(2), weight.shape[1]
    total = max((math.ceil(x.shape[0] / stride) - 1) * stride + kernel - x.shape[0], 0)
    padded = np.pad(x.astype(np.int64) - zero, [(total // 2, total - total // 2)] * 2 + [(0, 0)])
    views = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (0, 1))[::stride, ::stride]
    sums = np.einsum("hwcab,oabc->hwo", views, weight.astype(np.int64)) + bias
    pairs, ends = (
        [reference.quantized_multiplier(f) for f in factors],
        reference.clipping(node.byte(3), out.scale, out.zero),
    )
    result = np.zeros(sums.shape, np.int64)
    for place in np.ndindex(*sums.shape):
        n = reference.by_multiplier(int(sums[place]), *pairs[place[2]]) + out.zero
        result[place] = min(max(n, ends[0]), ends[1])
    return result
