"""Node by node: every supported use is read as onnxruntime reads it, and every other use is refused by op and name."""

import re

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tests.onnx.nodes_of_choices import CHOICES, REFUSED_CHOICES
from tests.onnx.onnx_files import DOUBLE, SHAPE, answers, message, node, random, with_head
from tests.support.processes import ROOT
from tiltproof import InputError, UnsupportedOperation, bound_network
from tiltproof.checker.form import Form
from tiltproof.checker.network import evaluation
from tiltproof.checker.verdicts import bound_margins
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.models import load_onnx
from tiltproof.onnx.registry import READERS

I64 = np.int64
CONV = {"k": random(4, 2, 3, 3), "kb": random(4, seed=3)}
NORM = {"g": random(2) + 1, "h": random(2, seed=5), "m": random(2, seed=6), "v": np.abs(random(2, seed=7)) + 0.1}


def conv(to="conv", **attributes):
    return node("Conv", "images", "k", "kb", to=to, **attributes)


def ints(*values):
    return np.array(values, I64)


def qdq(given, to):
    return [
        node("QuantizeLinear", given, "s", "z", to=f"{to}8", name=f"quantize_{to}"),
        node("DequantizeLinear", f"{to}8", "s", "z", to=to, name=f"dequantize_{to}"),
    ]


RANDOM = np.random.default_rng(0)
QUANTIZED = {
    "s": np.float32(2.0**-6), "z": np.int8(5), "us": np.float32(2.0**-5), "uz": np.uint8(3),
    "k8": RANDOM.integers(-128, 128, (4, 2, 3, 3)).astype("b"), "ks": np.float32([2**-9, 2**-10, 2**-8, 2**-9]),
    "kz": np.zeros(4, "b"), "b32": RANDOM.integers(-900, 900, 4).astype("i"), "bs": np.float32(2.0**-11),
}  # fmt: skip

INTEGERS = QUANTIZED | {
    "w8": RANDOM.integers(-128, 128, (5, 40)).astype("b"),
    "one8": np.int8(1), "vs": np.float32(2.0**-4), "vz": np.int8(-7), "five32": RANDOM.integers(-900, 900, 5).astype("i"),
}  # fmt: skip


def integers(*inner, output="last"):
    """From an image to whole numbers and back."""
    return [node("QuantizeLinear", "images", "s", "z", to="in"), *inner, node("DequantizeLinear", output, "vs", "vz")]


def with_runtime(nodes, features, constants):
    proto = with_head(nodes, features, constants)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def own(op, *inputs, **more):
    """An operation of onnxruntime's own."""
    return node(op, *inputs, domain="com.microsoft", **more)


def conv8(to="conv", scale="s", zero="z"):
    return node("QLinearConv", "in", "s", "z", "k8", "ks", "kz", scale, zero, "b32", to=to)


SUPPORTED = {
    "QLinearConv": lambda: with_head(integers(conv8("last", "vs", "vz")), 48, INTEGERS),
    "QLinearConv, QGemm": lambda: with_runtime(
        integers(
            conv8(), node("MaxPool", "conv", kernel_shape=[2, 2]), node("Flatten", "my_maxpool"),
            node("Slice", "my_flatten", "zero64", "end64", "axis64"),
            own("QGemm", "my_slice", "s", "z", "w8", "ks2", "one8", "five32", "vs", "vz", transB=1, to="last"),
        ), 5,
        INTEGERS | {"zero64": ints(0), "end64": ints(24), "axis64": ints(1), "w8": INTEGERS["w8"][:, :24], "ks2": np.float32(2.0**-9)},
    ),
    "QLinearMatMul": lambda: with_runtime(
        [*integers()[:1], node("Flatten", "in", to="row8"),
         node("QLinearMatMul", "row8", "s", "z", "m60", "ks2", "one8", "vs", "vz", to="last"),
         node("DequantizeLinear", "last", "vs", "vz")],
        3, INTEGERS | {"m60": RANDOM.integers(-128, 128, (60, 3)).astype("b"), "ks2": np.float32(2.0**-9)},
    ),
    "QLinearAdd, QLinearMul": lambda: with_runtime(
        integers(
            own("QLinearAdd", "in", "s", "z", "in", "s", "z", "s", "z", to="sum"),
            own("QLinearMul", "sum", "s", "z", "in", "s", "z", "vs", "vz", to="last"),
        ), 60, INTEGERS,
    ),
    "QLinearGlobalAveragePool": lambda: with_runtime(
        integers(own("QLinearGlobalAveragePool", "in", "s", "z", "vs", "vz", to="last")), 2, INTEGERS
    ),
    "QLinearSigmoid": lambda: with_runtime(integers(own("QLinearSigmoid", "in", "s", "z", "vs", "vz", to="last")), 60, INTEGERS),
    "Conv": lambda: with_head([conv()], 48, CONV),
    "Conv without bias": lambda: with_head([node("Conv", "images", "k", kernel_shape=[3, 3])], 48, CONV),
    "Conv pads, strides": lambda: with_head([conv(pads=[1, 1, 1, 1], strides=[2, 1])], 60, CONV),
    "Conv uneven pads": lambda: with_head([conv(pads=[0, 1, 2, 0])], 96, CONV),
    "Conv dilations": lambda: with_head([conv(dilations=[2, 2])], 8, CONV),
    "Conv group": lambda: with_head([node("Conv", "images", "k", group=2)], 48, {"k": random(4, 1, 3, 3)}),
    "Conv SAME_UPPER": lambda: with_head([conv(auto_pad="SAME_UPPER", strides=[2, 2])], 36, CONV),
    "Conv SAME_LOWER": lambda: with_head([conv(auto_pad="SAME_LOWER", strides=[2, 2])], 36, CONV),
    "Conv VALID": lambda: with_head([conv(auto_pad="VALID")], 48, CONV),
    "Gemm": lambda: message(
        [node("Flatten", "images"), node("Gemm", "my_flatten", "w", "b")], {"w": random(60, 3), "b": random(1, 3)}
    ),
    "Gemm, one bias for all": lambda: message(
        [node("Flatten", "images"), node("Gemm", "my_flatten", "w", "b")], {"w": random(60, 3), "b": random(1)}
    ),
    "MatMul, Add": lambda: message(
        [node("Flatten", "images"), node("MatMul", "my_flatten", "w"), node("Add", "b", "my_matmul")],
        {"w": random(60, 3), "b": random(3)},
    ),
    "MatMul used twice": lambda: message(
        [node("Flatten", "images"), node("MatMul", "my_flatten", "w"), node("Add", "my_matmul", "b"), node("Sub", "my_add", "my_matmul"),
         node("Add", "my_sub", "my_add", name="end")],
        {"w": random(60, 3), "b": random(3)},
    ),
    "constant arithmetic": lambda: with_head(
        [node("Sub", "c", "images"), node("Mul", "my_sub", "d"), node("Div", "my_mul", "e"), node("Add", "my_div", "c"),
         node("Neg", "my_add")],
        60, {"c": random(2, 1, 1), "d": random(1, 2, 6, 5), "e": np.float32(0.3)},
    ),
    "quantized": lambda: with_head(
        [*qdq("images", "in"), node("DequantizeLinear", "k8", "ks", "kz", to="kd", name="weights", axis=0),
         node("DequantizeLinear", "b32", "bs", to="bd", name="bias"), node("Conv", "in", "kd", "bd", to="conv"), *qdq("conv", "a"),
         node("Relu", "a", to="r"), node("QuantizeLinear", "r", "us", "uz", to="u8", name="unsigned"),
         node("DequantizeLinear", "u8", "us", "uz", to="u", name="unsigned_back")],
        48, QUANTIZED,
    ),
    "branches": lambda: with_head(
        [conv(pads=[1, 1, 1, 1]), node("Relu", "conv"), node("Add", "my_relu", "conv"), node("Sub", "my_add", "my_relu")],
        120, CONV,
    ),
    "products of branches": lambda: with_head(
        [node("ReduceMean", "images", axes=[2, 3]), node("Sigmoid", "my_reducemean"), node("Mul", "images", "my_sigmoid"),
         node("Mul", "my_mul", "my_mul", name="again"), node("Sub", "again", "my_reducemean")],
        60,
    ),
    "activations": lambda: with_head(
        [conv(), node("LeakyRelu", "conv", alpha=0.25), node("Sigmoid", "my_leakyrelu"), node("Tanh", "my_sigmoid"),
         node("LeakyRelu", "my_tanh", name="again")],
        48, CONV,
    ),
    "smooth": lambda: with_head(
        [conv(), node("Elu", "conv", alpha=0.5), node("Selu", "my_elu"), node("Celu", "my_selu", alpha=0.25), node("Softplus", "my_celu"),
         node("HardSwish", "my_softplus"), node("Erf", "my_hardswish"), node("Sin", "my_erf"), node("Cos", "my_sin"), node("Exp", "my_cos"),
         node("Log", "my_exp"), node("Sqrt", "my_log"), node("Reciprocal", "my_sqrt"), node("Pow", "my_reciprocal", "p")],
        48, {**CONV, "p": np.float32(-1.5)},
    ),
    "Selu of numbers": lambda: with_head([conv(), node("Selu", "conv", alpha=0.5, gamma=2.0)], 48, CONV),
    "Pow of all numbers": lambda: with_head([conv(), node("Pow", "conv", "p")], 48, {**CONV, "p": np.float32([[3]])}),
    "Mish": lambda: with_head([conv(), node("Mish", "conv")], 48, CONV, opset=18),
    "Gelu": lambda: with_head([conv(), node("Gelu", "conv")], 48, CONV, opset=20),
    "Gelu by tanh": lambda: with_head([conv(), node("Gelu", "conv", approximate="tanh")], 48, CONV, opset=20),
    "SiLU as a product": lambda: with_head([conv(), node("Sigmoid", "conv"), node("Mul", "my_sigmoid", "conv")], 48, CONV),
    "Mish as a product": lambda: with_head(
        [conv(), node("Softplus", "conv"), node("Tanh", "my_softplus"), node("Mul", "conv", "my_tanh")], 48, CONV
    ),
    "Clip": lambda: with_head(
        [conv(), node("Clip", "conv", "low", "high")], 48, {**CONV, "low": np.float32(-0.2), "high": np.float32(0.6)}
    ),
    "Clip on one side": lambda: with_head(
        [conv(), node("Clip", "conv", "low"), node("Clip", "my_clip", "", "high", name="again")], 48,
        {**CONV, "low": np.float32(-0.2), "high": np.float32(0.6)},
    ),
    "Clip on no side": lambda: with_head([conv(), node("Clip", "conv")], 48, CONV),
    "piecewise linear": lambda: with_head(
        [conv(), node("PRelu", "conv", "a"), node("Abs", "my_prelu"), node("HardSigmoid", "my_abs", alpha=0.3),
         node("ThresholdedRelu", "my_hardsigmoid", alpha=0.55), node("Softsign", "my_thresholdedrelu"), node("Sign", "conv"),
         node("Mul", "my_sign", "my_softsign")],
        48, {**CONV, "a": np.float32([0.5, -0.3, 0, 1.5]).reshape(4, 1, 1)},
    ),
    "PRelu, one for all": lambda: with_head([conv(), node("PRelu", "conv", "a")], 48, {**CONV, "a": np.float32([0.25])}),
    "ReduceL2, ReduceLogSumExp": lambda: with_head(
        [conv(), node("Add", "conv", "nine"), node("ReduceL2", "my_add", axes=[1]), node("ReduceLogSumExp", "conv", axes=[1]),
         node("Sub", "my_reducel2", "my_reducelogsumexp")],
        12, {**CONV, "nine": np.float32(9)},
    ),
    "Pow of a number": lambda: with_head([conv(), node("Pow", "two", "conv")], 48, {**CONV, "two": np.float32(2)}),
    "paddings as torch exports them": lambda: with_head(
        [node("ConstantOfShape", "four", name="zeros", value=numpy_helper.from_array(ints(0))), node("Concat", "given", "zeros", axis=0),
         node("Reshape", "my_concat", "pairs"), node("Slice", "my_reshape", "last", "least", "first", "last", name="turned"),
         node("Transpose", "turned", perm=[1, 0]), node("Reshape", "my_transpose", "row", name="flat_pads"),
         node("Pad", "images", "flat_pads")],
        126, {"four": ints(4), "given": ints(1, 1, 2, 1), "pairs": ints(-1, 2), "last": ints(-1), "least": ints(-(2**63) + 1),
              "first": ints(0), "row": ints(-1)},
    ),
    "roots of sizes": lambda: with_head(
        [node("Shape", "images"), node("Gather", "my_shape", "two"), helper.make_node("Cast", ["my_gather"], ["size"], name="cast", to=1),
         node("Sqrt", "size"), node("Div", "images", "my_sqrt")], 60, {"two": np.array(2, I64)},
    ),
    "remainders of sizes": lambda: with_head(
        [node("Mod", "eight", "five"), node("Unsqueeze", "my_mod", "axis", name="three"), node("Concat", "whole", "three", "rest", axis=0),
         node("Reshape", "images", "my_concat")],
        60, {"eight": np.array(-7, I64), "five": np.array(5, I64), "axis": ints(0), "whole": ints(0), "rest": ints(-1)}, opset=13,
    ),
    "Shrink": lambda: with_head(
        [conv(), node("Shrink", "conv", lambd=0.1, bias=0.1), node("Shrink", "my_shrink", lambd=0.2, name="again")], 48, CONV
    ),
    "ThresholdedRelu at 0": lambda: with_head([conv(), node("ThresholdedRelu", "conv", alpha=0.0)], 48, CONV),
    "Max, Min": lambda: with_head(
        [conv(), node("Relu", "conv"), node("Neg", "conv"), node("Max", "my_relu", "low", "my_neg"),
         node("Min", "my_max", "high", "my_relu")],
        48, {**CONV, "low": np.float32([0.2, 0.1, 0, 0.3]).reshape(1, 4, 1, 1), "high": np.float32(0.7)},
    ),
    "Div of branches": lambda: with_head(
        [conv(), node("Abs", "conv"), node("Add", "my_abs", "one"), node("Div", "conv", "my_add"), node("Div", "one", "my_add", name="two"),
         node("Add", "my_div", "two", name="end")],
        48, {**CONV, "one": np.float32(1)},
    ),
    "Atan": lambda: with_head([conv(), node("Atan", "conv")], 48, CONV),
    "LogSoftmax": lambda: with_head([conv(), node("LogSoftmax", "conv", axis=1)], 48, CONV, opset=13),
    "BatchNormalization": lambda: with_head(
        [node("BatchNormalization", "images", "g", "h", "m", "v", epsilon=0.01)], 60, NORM
    ),
    "BatchNormalization, opset 11": lambda: with_head(
        [node("BatchNormalization", "images", "g", "h", "m", "v", momentum=0.5)], 60, NORM, opset=11
    ),
    "Softmax": lambda: with_head([conv(), node("Softmax", "conv", axis=-1)], 48, CONV, opset=13),
    "Softmax by the default": lambda: with_head([conv(), node("Softmax", "conv")], 48, CONV, opset=17),
    "MatMul of two branches": lambda: with_head(
        [node("Transpose", "images", perm=[0, 1, 3, 2]), node("Softmax", "images", axis=3), node("MatMul", "my_softmax", "my_transpose")],
        72, opset=13,
    ),
    "LayerNormalization": lambda: with_head(
        [node("LayerNormalization", "images", "g", "h", axis=2, epsilon=0.01), node("Relu", "my_layernormalization")], 60,
        {"g": random(6, 5), "h": random(6, 5, seed=5)}, opset=17,
    ),
    "LayerNormalization without bias": lambda: with_head(
        [node("LayerNormalization", "images", "g", epsilon=0.01)], 60, {"g": random(5)}, opset=17
    ),
    "InstanceNormalization": lambda: with_head(
        [node("InstanceNormalization", "images", "g", "h", epsilon=0.01)], 60, {"g": NORM["g"], "h": NORM["h"]}
    ),
    "GroupNormalization": lambda: with_head(
        [conv(), node("GroupNormalization", "conv", "g", "h", num_groups=2, epsilon=0.01)], 48,
        {**CONV, "g": random(4), "h": random(4, seed=5)}, opset=21,
    ),
    "Sum": lambda: with_head([conv(), node("Relu", "conv"), node("Sum", "conv", "my_relu", "conv")], 48, CONV),
    "MaxPool": lambda: with_head([node("MaxPool", "images", kernel_shape=[2, 2])], 40),
    "MaxPool pads": lambda: with_head(
        [node("MaxPool", "images", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])], 18
    ),
    "MaxPool uneven": lambda: with_head(
        [node("MaxPool", "images", kernel_shape=[3, 2], strides=[2, 1], pads=[0, 1, 1, 0])], 30
    ),
    "MaxPool same": lambda: with_head(
        [node("MaxPool", "images", kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_LOWER")], 18
    ),
    "MaxPool uneven in ceil_mode": lambda: with_head(
        [node("MaxPool", "images", kernel_shape=[2, 2], strides=[1, 3], pads=[0, 0, 1, 0], ceil_mode=1)], 24
    ),
    "AveragePool uneven": lambda: with_head(
        [node("AveragePool", "images", kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")], 18
    ),
    "AveragePool uneven with zeros": lambda: with_head(
        [node("AveragePool", "images", kernel_shape=[2, 2], pads=[0, 0, 1, 0], count_include_pad=1)], 48
    ),
    "AveragePool": lambda: with_head([node("AveragePool", "images", kernel_shape=[2, 3], strides=[2, 1])], 18),
    "AveragePool pads": lambda: with_head(
        [node("AveragePool", "images", kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1)], 84
    ),
    "AveragePool pads left out": lambda: with_head(
        [node("AveragePool", "images", kernel_shape=[2, 2], pads=[1, 1, 1, 1])], 84
    ),
    "GlobalAveragePool": lambda: with_head([node("GlobalAveragePool", "images")], 2),
    "ReduceMean": lambda: with_head([node("ReduceMean", "images", axes=[2, -1])], 2),
    "ReduceMean, opset 18": lambda: with_head(
        [node("ReduceMean", "images", "a", keepdims=0)], 12, {"a": ints(3)}, opset=18
    ),
    "Reshape": lambda: with_head([node("Reshape", "images", "s")], 60, {"s": ints(0, -1, 4, 5)}),
    "Reshape -1": lambda: with_head([node("Reshape", "images", "s")], 60, {"s": ints(-1, 60)}),
    "Reshape of one image": lambda: with_head([node("Reshape", "images", "s")], 60, {"s": ints(1, -1)}, batch=1),
    "Reshape by Shape": lambda: with_head(
        [node("Shape", "images"), node("Gather", "my_shape", "zero"), node("Unsqueeze", "my_gather", "axis"),
         helper.make_node("Cast", ["my_unsqueeze"], ["n"], to=7), node("Concat", "n", "rest", axis=0),
         node("Reshape", "images", "my_concat")],
        60, {"zero": np.array(0, I64), "axis": ints(0), "rest": ints(-1)},
    ),
    "Reshape by Slice of Shape": lambda: with_head(
        [node("Shape", "images"), node("Slice", "my_shape", "zero", "one"), node("Concat", "my_slice", "rest", axis=0),
         node("Reshape", "images", "my_concat")],
        60, {"zero": ints(0), "one": ints(1), "rest": ints(12, 5)},
    ),
    "Transpose": lambda: with_head([node("Transpose", "images", perm=[0, 2, 3, 1])], 60),
    "Squeeze, Unsqueeze": lambda: with_head(
        [node("Unsqueeze", "images", "a"), node("Squeeze", "my_unsqueeze", "a")], 60, {"a": ints(2)}
    ),
    "Squeeze, Unsqueeze, opset 11": lambda: with_head(
        [node("Unsqueeze", "images", axes=[-1]), node("Squeeze", "my_unsqueeze", axes=[4])], 60, opset=11
    ),
    "Concat": lambda: with_head([node("Relu", "images"), node("Concat", "images", "my_relu", axis=-3)], 120),
    "Slice": lambda: with_head(
        [node("Slice", "images", "s", "e", "a", "t")], 2 * 3 * 4,
        {"s": ints(1, -4), "e": ints(2**62, 100), "a": ints(2, -1), "t": ints(2, 1)},
    ),
    "Pad": lambda: with_head([node("Pad", "images", "p")], 2 * 7 * 8, {"p": ints(0, 0, 1, 0, 0, 0, 0, 3)}),
    "Gather": lambda: with_head([node("Gather", "images", "i", axis=-1)], 36, {"i": ints(4, -5, 4)}),
    "Gather of one entry, of a table": lambda: with_head(
        [node("Gather", "images", "one", axis=1), node("Gather", "my_gather", "table", axis=2, name="again")], 24,
        {"one": np.array(1, I64), "table": ints([0, 2], [4, 1])},
    ),
    "Split": lambda: with_head(
        [helper.make_node("Split", ["images", "s"], ["p", "q", "r"], name="my_split", axis=2), node("Concat", "r", "p", axis=2)], 40,
        {"s": ints(1, 2, 3)},
    ),
    "Split evenly": lambda: with_head(
        [helper.make_node("Split", ["images"], ["p", "q"], name="my_split", axis=1), node("Sub", "p", "q")], 30, opset=12
    ),
    "Slice backwards": lambda: with_head(
        [node("Slice", "images", "s", "e", "a", "t")], 2 * 6 * 3, {"s": ints(-1), "e": ints(-100), "a": ints(3), "t": ints(-2)}
    ),
    "Tile": lambda: with_head([node("Tile", "images", "r")], 240, {"r": ints(1, 2, 1, 2)}),
    "Expand": lambda: with_head(
        [node("ReduceMax", "images", axes=[2]), node("Expand", "my_reducemax", "s")], 30, {"s": ints(1, 1, 3, 1)}
    ),
    "class token": lambda: with_head(
        [node("Shape", "images"), node("Slice", "my_shape", "zero", "one", to="n"),
         node("Concat", "n", "rest", axis=0, to="s", name="sizes"),
         node("Expand", "token", "s"), node("Concat", "my_expand", "images", axis=2)],
        70, {"zero": ints(0), "one": ints(1), "rest": ints(2, 1, 5), "token": random(1, 2, 1, 5)},
    ),
    "Concat with a constant": lambda: with_head(
        [node("Concat", "c", "images", "c", axis=1)], 120, {"c": random(1, 1, 6, 5)}, batch=1
    ),
    "Pad reflect": lambda: with_head([node("Pad", "images", "p", mode="reflect")], 2 * 9 * 6, {"p": ints(0, 0, 2, 0, 0, 0, 1, 1)}),
    "Pad edge": lambda: with_head([node("Pad", "images", "p", mode="edge")], 2 * 6 * 8, {"p": ints(0, 0, 0, 2, 0, 0, 0, 1)}),
    "Pad with a number": lambda: with_head(
        [node("Pad", "images", "p", "v")], 2 * 7 * 4, {"p": ints(0, 0, 1, -1, 0, 0, 0, 0), "v": np.float32(0.3)}
    ),
    "Pad less": lambda: with_head([node("Pad", "images", "p")], 2 * 5 * 4, {"p": ints(0, 0, 0, -1, 0, 0, -1, 0)}),
    "DepthToSpace": lambda: with_head(
        [node("Concat", "images", "images", "images", "images", axis=1), node("DepthToSpace", "my_concat", blocksize=2)], 240
    ),
    "DepthToSpace CRD": lambda: with_head(
        [conv(pads=[1, 1, 1, 1]), node("DepthToSpace", "conv", blocksize=2, mode="CRD")], 120, CONV
    ),
    "SpaceToDepth": lambda: with_head(
        [node("Pad", "images", "p"), node("SpaceToDepth", "my_pad", blocksize=2)], 72, {"p": ints(0, 0, 0, 0, 0, 0, 0, 1)}
    ),
    "Resize nearest": lambda: with_head(
        [node("Resize", "images", "", "f", coordinate_transformation_mode="asymmetric", nearest_mode="floor")], 240,
        {"f": np.float32([1, 1, 2, 2])},
    ),
    "Resize nearest by half pixels": lambda: with_head(
        [node("Resize", "images", "", "", "s")], 56, {"s": ints(1, 2, 4, 7)}, batch=1
    ),
    "Resize linear": lambda: with_head(
        [node("Resize", "images", "", "f", mode="linear", coordinate_transformation_mode="half_pixel")], 2 * 9 * 7,
        {"f": np.float32([1, 1, 1.5, 1.5])},
    ),
    "Resize linear, aligned": lambda: with_head(
        [node("Resize", "images", "", "", "s", mode="linear", coordinate_transformation_mode="align_corners")], 2 * 4 * 9,
        {"s": ints(1, 2, 4, 9)}, batch=1,
    ),
    "Upsample": lambda: with_head([node("Upsample", "images", "f", mode="linear")], 240, {"f": np.float32([1, 1, 2, 2])}, opset=9),
    "ConvTranspose": lambda: with_head(
        [node("ConvTranspose", "images", "t", "tb", strides=[2, 2], pads=[1, 0, 0, 1], output_padding=[0, 1])], 3 * 12 * 11,
        {"t": random(2, 3, 3, 3), "tb": random(3)},
    ),
    "ConvTranspose SAME_LOWER": lambda: with_head(
        [node("ConvTranspose", "images", "t", strides=[2, 1], auto_pad="SAME_LOWER", group=2)], 2 * 12 * 5, {"t": random(2, 1, 3, 2)}
    ),
    "ConvTranspose of a shape": lambda: with_head(
        [node("ConvTranspose", "images", "t", strides=[2, 2], output_shape=[12, 10], dilations=[1, 2])], 3 * 12 * 10,
        {"t": random(2, 3, 3, 2)},
    ),
    "MatMul with constants": lambda: with_head(
        [node("MatMul", "images", "t"), node("MatMul", "v", "my_matmul", name="before"), node("MatMul", "before", "u", name="each")], 24,
        {"t": random(5, 4), "v": random(3, 6), "u": random(1, 2, 4, 4)},
    ),
    "Einsum": lambda: with_head([node("Einsum", "t", "images", equation="oc,nchw->nohw")], 90, {"t": random(3, 2)}),
    "sums and extremes": lambda: with_head(
        [node("ReduceSum", "images", "a", to="s"), node("ReduceMax", "images", axes=[1, 2], keepdims=0, to="h"),
         node("ReduceMin", "images", axes=[-1], to="l"), node("GlobalMaxPool", "images", to="g"), node("Flatten", "s", name="f1"),
         node("Flatten", "l", name="f2"), node("Flatten", "g", name="f3"), node("Concat", "f1", "f2", "f3", "h", axis=1)],
        12 + 12 + 2 + 5, {"a": ints(3)},
    ),
    "MaxPool over the edge": lambda: with_head(
        [node("MaxPool", "images", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], 12
    ),
    "AveragePool over the edge": lambda: with_head(
        [node("AveragePool", "images", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)], 18
    ),
    "Pad, opset 18": lambda: with_head(
        [node("Pad", "images", "p", "z", "a")], 2 * 6 * 8, {"p": ints(1, 2), "z": np.float32(0), "a": ints(-1)}, opset=18
    ),
    "ImageScaler": lambda: with_head([node("ImageScaler", "images", scale=0.5, bias=[0.25, -1.0])], 60, opset=9),
    "ConstantOfShape": lambda: with_head(
        [node("Shape", "images"), node("Slice", "my_shape", "zero", "one"), node("Concat", "my_slice", "rest", axis=0),
         node("ConstantOfShape", "my_concat", value=numpy_helper.from_array(np.float32([0.5]), "v")),
         node("Add", "my_constantofshape", "k"), node("Mul", "images", "my_add")],
        60, {"zero": ints(0), "one": ints(1), "rest": ints(1, 6, 5), "k": random(1, 2, 1, 1)},
    ),
    "arithmetic with sizes": lambda: with_head(
        [node("Shape", "images"), node("Gather", "my_shape", "two"), node("Div", "my_gather", "half"), node("Unsqueeze", "my_div", "axis"),
         node("Mul", "my_unsqueeze", "half", name="product"), node("Sub", "product", "axis", name="less"),
         node("Add", "less", "axis", name="more"), node("Concat", "n", "more", "rest", axis=0), node("Reshape", "images", "my_concat")],
        60, {"two": np.array(2, I64), "half": np.array(-4, I64), "axis": ints(0), "n": ints(0), "rest": ints(-1)},
    ),
    "Dropout": lambda: with_head([node("Dropout", "images", "r")], 60, {"r": np.float32(0.7)}),
    "Dropout, opset 11": lambda: with_head([node("Dropout", "images", ratio=0.7)], 60, opset=11),
    "Identity, Cast": lambda: with_head(
        [node("Identity", "images"), helper.make_node("Cast", ["my_identity"], ["cast"], name="my_cast", to=1)], 60
    ),
    "Constant": lambda: with_head(
        [node("Constant", value_float=0.5), node("Mul", "images", "my_constant"), node("Constant", name="ints", value_ints=[0, 60]),
         node("Reshape", "my_mul", "ints")], 60,
    ),
    "constants moved": lambda: message(
        [node("Flatten", "images"), node("Transpose", "w"), node("Identity", "my_transpose"), node("MatMul", "my_flatten", "my_identity"),
         node("Unsqueeze", "b", "a"), node("Add", "my_matmul", "my_unsqueeze")],
        {"w": random(3, 60), "b": random(3), "a": ints(0)},
    ),
    **CHOICES,
    "opset 21": lambda: with_head([conv(), node("Relu", "conv")], 48, CONV, opset=21),
}  # fmt: skip


def load(model, tmp_path):
    onnx.save(model, tmp_path / "net.onnx")
    return load_onnx(tmp_path / "net.onnx")


@pytest.mark.parametrize("name", SUPPORTED)
def test_bounds_contain_what_onnxruntime_computes(name, tmp_path):
    """Prover and checker both follow the converted network, for boxes of images."""
    proto = SUPPORTED[name]()
    model = load(proto, tmp_path)
    torch.manual_seed(len(name))
    center, slopes, radius = torch.rand(2, *SHAPE), 0.1 * torch.randn(2, 2, *SHAPE), 0.02 * torch.rand(2, *SHAPE)
    stack = torch.cat([center[None], slopes])
    bounds = bound_network(model, AffineForm(stack, radius))
    labels = torch.tensor([0, 2])
    with evaluation(model, torch.device("cpu")):
        checked = bound_margins(model, Form(torch.cat([stack, radius[None]]).double()), labels)
    inside = []
    for _ in range(30):
        symbols = torch.rand(2, 1, 1, 1, 1).round() * 2 - 1
        inside.append(center + (symbols * slopes).sum(0) + radius * torch.randn_like(radius).sign())
    for outputs in answers(proto.SerializeToString(), torch.cat(inside)).split(len(center)):
        assert bool((outputs >= bounds.lower - 1e-5).all())
        assert bool((outputs <= bounds.upper + 1e-5).all())
        own = outputs.gather(1, labels[:, None])[:, 0]
        margins = own - outputs.scatter(1, labels[:, None], -torch.inf).amax(1)
        assert bool((margins >= checked.lower - 1e-5).all())
        assert bool((margins <= checked.upper + 1e-5).all())


def test_every_operation_is_among_them_and_on_the_page():
    used = {entry.op_type for make in SUPPORTED.values() for entry in make().graph.node}
    heads = {"ArgMax"}  # tests/onnx/test_heads.py
    assert used | heads == set(READERS)
    page = ROOT / "docs" / "onnx.md"
    assert used | heads <= set(re.findall(r"\w+", page.read_text(encoding="utf-8")))


def test_a_bias_after_a_product_is_a_layer(tmp_path):
    names = [name for name, _ in load(SUPPORTED["MatMul, Add"](), tmp_path).named_parameters()]
    assert [name.split(".")[-1] for name in names] == ["weight", "bias"]


REFUSED = {
    "DequantizeLinear with another zero": lambda: with_head(
        [node("QuantizeLinear", "images", "s", "z", to="q"), node("DequantizeLinear", "q", "s", "kz0")], 60,
        QUANTIZED | {"kz0": np.int8(4)},
    ),
    "QLinearConv of another scale": lambda: with_head(
        [node("QuantizeLinear", "images", "s", "z", to="in"),
         node("QLinearConv", "in", "vs", "z", "k8", "ks", "kz", "s", "z", "b32"), node("DequantizeLinear", "my_qlinearconv", "s", "z")],
        48, INTEGERS,
    ),
    "QuantizeLinear by channel": lambda: with_head(
        [node("QuantizeLinear", "images", "ks2", "kz2", to="q"), node("DequantizeLinear", "q", "ks2", "kz2")], 60,
        {"ks2": np.float32([0.5, 0.25]), "kz2": np.zeros(2, "b")},
    ),
    "QuantizeLinear by a negative scale": lambda: with_head(
        [node("QuantizeLinear", "images", "s", "z", to="q"), node("DequantizeLinear", "q", "s", "z")], 60,
        {"s": np.float32(-1), "z": np.int8(0)},
    ),
    "Gelu otherwise": lambda: with_head([node("Gelu", "images", approximate="other")], 60, opset=20),
    "Pow of several": lambda: with_head([node("Pow", "images", "p")], 60, {"p": np.float32([2, 3, 2, 3, 2])}),
    "Pow of 1": lambda: with_head([node("Pow", "images", "p")], 60, {"p": np.float32(1)}),
    "Pow of a branch": lambda: with_head([node("Relu", "images"), node("Pow", "images", "my_relu")], 60),
    "Elu of a negative number": lambda: with_head([node("Elu", "images", alpha=-1.0)], 60),
    "MatMul of uneven branches": lambda: with_head(
        [node("ReduceMean", "images", axes=[1], keepdims=1), node("MatMul", "my_reducemean", "images")], 60
    ),
    "PRelu by pixel": lambda: with_head([node("PRelu", "images", "c")], 60, {"c": random(2, 6, 5)}),
    "HardSigmoid of nothing": lambda: with_head([node("HardSigmoid", "images", alpha=0.0)], 60),
    "Shrink by another number": lambda: with_head([node("Shrink", "images", lambd=0.5, bias=0.25)], 60),
    "ThresholdedRelu below 0": lambda: with_head([node("ThresholdedRelu", "images", alpha=-1.0)], 60),
    "Max of uneven branches": lambda: with_head([node("ReduceMean", "images", axes=[1]), node("Max", "my_reducemean", "images")], 60),
    "Clip by a branch": lambda: with_head(
        [node("Relu", "images"), node("Clip", "images", "my_relu", "c")], 60, {"c": np.float32(1)}
    ),
    "Clip upside down": lambda: with_head([node("Clip", "images", "c", "d")], 60, {"c": np.float32(1), "d": np.float32(0)}),
    "another domain": lambda: with_head([node("Relu", "images", name="my_other", domain="com.example")], 60),
    "MaxPool padded widely": lambda: with_head([node("MaxPool", "images", kernel_shape=[2, 2], pads=[1, 0, 2, 0])], 64),
    "MaxPool behind the padding": lambda: with_head(
        [node("MaxPool", "images", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 1], ceil_mode=1)], 18
    ),
    "AveragePool uneven in ceil_mode": lambda: with_head(
        [node("AveragePool", "images", kernel_shape=[2, 2], pads=[0, 0, 1, 0], ceil_mode=1)], 48
    ),
    "MaxPool indices": lambda: with_head(
        [helper.make_node("MaxPool", ["images"], ["top", "where"], name="my_maxpool", kernel_shape=[2, 2])], 40
    ),
    "AveragePool dilations": lambda: with_head([node("AveragePool", "images", kernel_shape=[2, 2], dilations=[2, 2])], 24, opset=19),
    "Gemm alpha": lambda: message([node("Flatten", "images"), node("Gemm", "my_flatten", "w", alpha=0.5)], {"w": random(60, 3)}),
    "Gemm transA": lambda: message([node("Flatten", "images"), node("Gemm", "my_flatten", "w", transA=1)], {"w": random(60, 3)}),
    "Gemm bias of a batch": lambda: message(
        [node("Flatten", "images"), node("Gemm", "my_flatten", "w", "b")], {"w": random(60, 3), "b": random(4, 3)}
    ),
    "Gemm of two branches": lambda: message(
        [node("Flatten", "images"), node("Gemm", "my_flatten", "my_flatten", transB=1)]
    ),
    "Mul of branches of other ranks": lambda: with_head(
        [node("ReduceMean", "images", axes=[2, 3], keepdims=0), node("Mul", "images", "my_reducemean")], 60
    ),
    "Div of uneven branches": lambda: with_head(
        [node("ReduceMean", "images", axes=[1], keepdims=0), node("Div", "images", "my_reducemean")], 60
    ),
    "Div by zero": lambda: with_head([node("Div", "images", "c")], 60, {"c": np.float32(0)}),
    "Add of a batch": lambda: with_head([node("Add", "images", "c")], 60, {"c": random(3, 2, 6, 5)}),
    "Add that spreads": lambda: with_head(
        [node("ReduceMean", "images", axes=[2, 3]), node("Add", "my_reducemean", "c")], 60, {"c": random(1, 2, 6, 5)}
    ),
    "Add of branches of other ranks": lambda: with_head(
        [node("ReduceMean", "images", axes=[2], keepdims=0), node("Add", "images", "my_reducemean")], 60
    ),
    "BatchNormalization in training": lambda: with_head(
        [helper.make_node(
            "BatchNormalization", ["images", *NORM], ["y", "new_m", "new_v"], name="my_batchnormalization", training_mode=1
        )],
        60, NORM,
    ),
    "BatchNormalization of negative variance": lambda: with_head(
        [node("BatchNormalization", "images", "g", "h", "m", "v")], 60, {**NORM, "v": np.float32([-1, 1])}
    ),
    "LeakyRelu above 1": lambda: with_head([node("LeakyRelu", "images", alpha=2.0)], 60),
    "LayerNormalization of the batch": lambda: with_head(
        [node("LayerNormalization", "images", "g", axis=0)], 60, {"g": random(2, 2, 6, 5)}, opset=17
    ),
    "InstanceNormalization without epsilon": lambda: with_head(
        [node("InstanceNormalization", "images", "g", "h", epsilon=0.0)], 60, {"g": NORM["g"], "h": NORM["h"]}
    ),
    "GroupNormalization of odd groups": lambda: with_head(
        [conv(), node("GroupNormalization", "conv", "g", "h", num_groups=3)], 48, {**CONV, "g": random(4), "h": random(4)}, opset=21
    ),
    "Dropout in training": lambda: with_head(
        [node("Dropout", "images", "r", "t")], 60, {"r": np.float32(0.7), "t": np.array(True)}
    ),
    "Reshape of the batch": lambda: with_head([node("Reshape", "images", "s")], 30, {"s": ints(-1, 30)}),
    "Reshape to a literal batch": lambda: with_head([node("Reshape", "images", "s")], 60, {"s": ints(1, 60)}),
    "Reshape to the batch last": lambda: with_head([node("Reshape", "images", "s")], 60, {"s": ints(60, -1)}),
    "Transpose of the batch": lambda: with_head([node("Transpose", "images")], 60),
    "Concat of the batch": lambda: with_head([node("Concat", "images", "images", axis=0)], 60),
    "Concat with a constant for each image": lambda: with_head([node("Concat", "images", "c", axis=1)], 120, {"c": random(3, 2, 6, 5)}),
    "Concat with whole numbers": lambda: with_head([node("Concat", "images", "c", axis=1)], 120, {"c": ints(1)}),
    "Pad by another mode": lambda: with_head([node("Pad", "images", "p", mode="mirror")], 72, {"p": ints(0, 0, 0, 1, 0, 0, 0, 0)}),
    "Resize cubic": lambda: with_head([node("Resize", "images", "", "f", mode="cubic")], 240, {"f": np.float32([1, 1, 2, 2])}),
    "Resize of the batch": lambda: with_head([node("Resize", "images", "", "f")], 60, {"f": np.float32([2, 1, 1, 1])}),
    "Resize by crops": lambda: with_head(
        [node("Resize", "images", "", "f", coordinate_transformation_mode="tf_crop_and_resize")], 240, {"f": np.float32([1, 1, 2, 2])}
    ),
    "Gather beyond": lambda: with_head([node("Gather", "images", "z", axis=1)], 60, {"z": ints(2)}),
    "Split of the batch": lambda: with_head([node("Split", "images", axis=0)], 60, opset=12),
    "Split of other sizes": lambda: with_head(
        [helper.make_node("Split", ["images"], ["p", "q"], name="my_split", axis=1, split=[1, 2])], 60, opset=12
    ),
    "Tile of the batch": lambda: with_head([node("Tile", "images", "r")], 60, {"r": ints(2, 1, 1, 1)}),
    "Expand to more images": lambda: with_head([node("Expand", "images", "s")], 60, {"s": ints(4, 2, 6, 5)}),
    "DepthToSpace of odd channels": lambda: with_head([node("DepthToSpace", "images", blocksize=2)], 60),
    "SpaceToDepth of odd sizes": lambda: with_head([node("SpaceToDepth", "images", blocksize=2)], 60),
    "Einsum of branches": lambda: with_head([node("Einsum", "images", "images", equation="nchw,nchw->nchw")], 60),
    "Einsum over the batch": lambda: with_head([node("Einsum", "images", "t", equation="nchw,nk->kchw")], 60, {"t": random(1, 3)}),
    "ConvTranspose groups": lambda: with_head([node("ConvTranspose", "images", "t", group=3)], 60, {"t": random(2, 1, 2, 2)}),
    "ReduceSum of the batch": lambda: with_head([node("ReduceSum", "images")], 1),
    "ReduceMax of the batch": lambda: with_head([node("ReduceMax", "images", axes=[0, 1])], 1),
    "Slice of the batch": lambda: with_head([node("Slice", "images", "s", "e")], 60, {"s": ints(0), "e": ints(1)}),
    "Flatten of the batch": lambda: with_head([node("Flatten", "images", axis=0)], 60),
    "ReduceMean of the batch": lambda: with_head([node("ReduceMean", "images")], 1),
    "Pad of the batch": lambda: with_head([node("Pad", "images", "p")], 60, {"p": ints(1, 0, 0, 0, 0, 0, 0, 0)}),
    "Cast": lambda: with_head([helper.make_node("Cast", ["images"], ["my_cast"], name="my_cast", to=DOUBLE)], 60),
    "Gather of images": lambda: with_head([node("Gather", "images", "z")], 60, {"z": np.array(0, I64)}),
    **REFUSED_CHOICES,
    "Constant text": lambda: with_head([node("Constant", value_string="a"), node("Mul", "images", "my_constant")], 60),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_use_without_a_rule_is_refused_by_op_and_name(name, tmp_path):
    op = name.split()[0]
    with pytest.raises(UnsupportedOperation, match=f"my_{'other' if op == 'another' else op.lower()}'") as error:
        load(REFUSED[name](), tmp_path)
    assert ("Relu" if op == "another" else op) in str(error.value)
    assert len(str(error.value)) < 1400


def test_an_unnamed_node_is_named_by_what_it_gives(tmp_path):
    proto = with_head([node("Round", "images", to="rounded")], 60)
    proto.graph.node[0].name = ""
    with pytest.raises(UnsupportedOperation, match="Round at node '' .*gives 'rounded'"):
        load(proto, tmp_path)


def test_an_attribute_that_is_not_understood_is_not_ignored(tmp_path):
    with pytest.raises(InputError, match="approximate"):
        load(with_head([node("Relu", "images", approximate="tanh")], 60), tmp_path)


@pytest.mark.parametrize(("name", "how"), [("Gelu", "none"), ("Gelu by tanh", "tanh")])
def test_a_gelu_keeps_its_definition(name, how, tmp_path):
    """The two differ by less than float32 libraries may, so that the comparison with onnxruntime does not tell them apart."""
    (found,) = (
        step.settings
        for step in load(SUPPORTED[name](), tmp_path).steps.values()
        if step.function is torch.nn.functional.gelu
    )
    assert found["approximate"] == how
