"""Networks of a few nodes: comparisons, choices, masks of a softmax, and constants that are computed while a file is read."""

import numpy as np
from onnx import helper, numpy_helper

from tests.onnx.onnx_files import node, random, with_head

I64 = np.int64
LOW = {"low": np.float32(-np.inf)}
PLACES = np.random.default_rng(0).integers(0, 5, (5, 5))


def ints(*values):
    return np.array(values, I64)


def number(value):
    return np.array(value, I64)


def cast(given, kind, to="my_cast"):
    return helper.make_node("Cast", [given], [to], name="my_cast", to=kind)


def greater_where():
    nodes = [
        node("Greater", "images", "c"),
        node("Relu", "images"),
        node("Where", "my_greater", "my_relu", "images"),
        node("Less", "d", "images"),
        node("Where", "my_less", "my_where", "t", to="last", name="make_last"),
    ]
    return with_head(nodes, 60, {"c": np.float32(0.4), "d": random(6, 1), "t": random(5)})


def greater_of_branches():
    nodes = [
        node("Neg", "images"),
        node("GreaterOrEqual", "images", "my_neg"),
        cast("my_greaterorequal", 1),
        node("Mul", "my_cast", "images"),
    ]
    return with_head(nodes, 60)


def logic():
    nodes = [
        node("LessOrEqual", "images", "c"),
        node("Less", "d", "images"),
        node("And", "my_lessorequal", "my_less"),
        node("Not", "my_and"),
        node("Or", "my_not", "my_less"),
        node("Where", "my_or", "t", "images"),
        node("Where", "my_and", "images", "my_where", to="last", name="make_last"),
    ]
    return with_head(nodes, 60, {"c": np.float32(0.8), "d": np.float32(0.1), "t": random(2, 1, 1)})


def mask():
    nodes = [
        node("Trilu", "ones", upper=0),
        cast("my_trilu", 9, "mask"),
        node("Relu", "images"),
        node("Where", "mask", "images", "my_relu"),
        node("Where", "mask", "t", "my_where", to="last", name="make_last"),
    ]
    return with_head(nodes, 60, {"ones": np.ones((6, 5), I64), "t": random(5)})


def masked_scores():
    """By a choice, and by a sum."""
    nodes = [
        node("Range", "z", "six", "one"),
        node("Range", "z", "five", "one", to="r5", name="make_r5"),
        node("Unsqueeze", "my_range", "axes"),
        node("GreaterOrEqual", "my_unsqueeze", "r5"),
        node("Where", "my_greaterorequal", "images", "low"),
        node("Softmax", "my_where"),
        node("Where", "my_greaterorequal", "half", "low", to="added", name="make_added"),
        node("Add", "images", "added"),
        node("Softmax", "my_add", to="other", name="make_other"),
        node("Sub", "my_softmax", "h"),
        node("Mul", "my_sub", "other"),
    ]
    numbers = {name: number(value) for name, value in (("z", 0), ("six", 6), ("five", 5), ("one", 1))}
    return with_head(nodes, 60, {**numbers, **LOW, "axes": ints(1), "half": random(5, seed=4), "h": random(5)})


def expanded():
    """As torch exports expand(-1, 2, 6, 5) for any batch."""
    nodes = [
        node("ReduceMean", "images", axes=[2], keepdims=1),
        node("Shape", "my_reducemean"),
        node("Slice", "my_shape", "z", "one"),
        node("Concat", "my_slice", "rest", axis=0),
        node("Shape", "my_concat", to="rank", name="make_rank"),
        node("ConstantOfShape", "rank", value=numpy_helper.from_array(ints(1))),
        node("Mul", "my_constantofshape", "less"),
        node("Equal", "my_concat", "my_mul"),
        node("Where", "my_equal", "my_constantofshape", "my_concat"),
        node("Expand", "my_reducemean", "my_where"),
    ]
    return with_head(nodes, 60, {"z": ints(0), "one": ints(1), "rest": ints(-1, 6, 5), "less": ints(-1)})


def constants_computed():
    nodes = [
        node("OneHot", "i", "depth", "values"),
        node("CumSum", "my_onehot", "axis"),
        node("GatherElements", "my_cumsum", "places", axis=1),
        node("GatherND", "my_gatherelements", "rows"),
        node("ScatterND", "t", "rows", "my_gathernd"),
        node("ScatterElements", "my_scatternd", "spot", "value", axis=1),
        node("Floor", "my_scatterelements"),
        node("Ceil", "t"),
        node("Sub", "my_floor", "my_ceil"),
        node("ReduceProd", "two"),
        node("Div", "my_reduceprod", "five"),
        cast("my_div", 1),
        node("Add", "my_sub", "my_cast"),
        node("MatMul", "images", "my_add"),
    ]
    constants = {
        "i": ints(0, 3, 1, 2, 4), "depth": number(5), "values": np.float32([0.25, 1.5]), "axis": number(1),
        "places": PLACES, "rows": ints(3, 0).reshape(2, 1), "t": 3 * random(5, 5), "spot": ints(2).reshape(1, 1),
        "value": np.float32([[0.7]]), "two": ints(5, 5), "five": ints(5),
    }  # fmt: skip
    return with_head(nodes, 60, constants)


CHOICES = {
    "Greater, Where": greater_where,
    "GreaterOrEqual of branches": greater_of_branches,
    "LessOrEqual, And, Or, Not": logic,
    "Where by a mask": mask,
    "Softmax of scores with a mask": masked_scores,
    "Expand as torch exports it": expanded,
    "constants computed": constants_computed,
}


def after(choice, *inner, constants=None):
    """Nodes behind a comparison with 0."""
    nodes = [node("Greater", "images", "c"), *choice, *inner]
    return with_head(nodes, 60, {"c": np.float32(0), **(constants or {})})


def behind_mask(*inner, keep=True):
    return with_head([node("Where", "m", "images", "low"), *inner], 60, {"m": np.array(keep), **LOW})


REFUSED_CHOICES = {
    "Greater of a batch": lambda: with_head(
        [node("Greater", "images", "c"), cast("my_greater", 1)], 60, {"c": random(3, 2, 6, 5)}
    ),
    "And with a constant": lambda: after(
        [node("And", "my_greater", "m"), cast("my_and", 1)], constants={"m": np.array(True)}
    ),
    "Where of infinity by a comparison": lambda: after(
        [node("Where", "my_greater", "images", "low"), node("Softmax", "my_where")], constants=LOW
    ),
    "Relu of truth values": lambda: after([node("Not", "my_greater"), node("Relu", "my_not")]),
    "Relu of a mask": lambda: behind_mask(node("Relu", "my_where")),
    "Reshape of a mask": lambda: with_head(
        [node("Where", "m", "images", "low"), node("Reshape", "my_where", "s"), node("Softmax", "my_reshape")],
        60,
        {"m": np.array(True), "s": ints(0, -1), **LOW},
    ),
    "Softmax of nothing": lambda: behind_mask(node("Softmax", "my_where"), keep=False),
    "LogSoftmax with a mask": lambda: behind_mask(node("LogSoftmax", "my_where")),
    "Mul with infinity": lambda: with_head([node("Mul", "images", "low")], 60, LOW),
    "Range of the image": lambda: with_head(
        [node("ReduceMax", "images", axes=[1, 2, 3], keepdims=0), node("Range", "z", "my_reducemax", "z")],
        60,
        {"z": np.float32(1)},
    ),
    "Range without end": lambda: with_head(
        [node("Range", "z", "end", "z"), node("Add", "images", "my_range")],
        60,
        {"z": np.float32(1), "end": np.float32(3e38)},
    ),
}
