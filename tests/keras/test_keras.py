"""Keras files are read as Keras defines their layers, or refused with the names of what has no rule."""

import json
import zipfile

import numpy as np
import pytest
import torch

import tiltproof
from tests.keras.keras_files import SHAPE, answer, branched, description, write
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.models import load, load_keras

pytest.importorskip("h5py")

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f") * 0.5


def norm(channels: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {**more, "moving_mean": numbers(channels), "moving_variance": numbers(channels) ** 2 + 0.1}


def conv(inputs: int, outputs: int, height: int = 3, width: int = 3, bias: bool = True) -> dict[str, np.ndarray]:
    return {"kernel": numbers(height, width, inputs, outputs)} | ({"bias": numbers(outputs)} if bias else {})


SAME = {"padding": "same"}
CASES = {
    "conv": [("Conv2D", {"filters": 4, "kernel_size": [3, 2], "strides": [2, 1]}, conv(3, 4, 3, 2))],
    "conv same": [("Conv2D", {"filters": 4, "kernel_size": [3, 3], **SAME, "activation": "relu"}, conv(3, 4))],
    "conv same uneven": [("Conv2D", {"filters": 4, "kernel_size": 3, "strides": 2, **SAME}, conv(3, 4))],
    "conv even kernel": [
        ("Conv2D", {"filters": 2, "kernel_size": 4, **SAME, "use_bias": False}, conv(3, 2, 4, 4, bias=False))
    ],
    "conv dilation": [("Conv2D", {"filters": 2, "kernel_size": 2, "dilation_rate": [2, 1], **SAME}, conv(3, 2, 2, 2))],
    "conv groups": [("Conv2D", {"filters": 6, "kernel_size": 2, "groups": 3}, conv(1, 6, 2, 2))],
    "depthwise": [
        (
            "DepthwiseConv2D",
            {"kernel_size": 3, "strides": 2, "depth_multiplier": 2, **SAME},
            {"depthwise_kernel": numbers(3, 3, 3, 2), "bias": numbers(6)},
        ),
    ],
    "separable": [
        (
            "SeparableConv2D",
            {"filters": 5, "kernel_size": 3, "depth_multiplier": 2, "activation": "tanh"},
            {"depthwise_kernel": numbers(3, 3, 3, 2), "pointwise_kernel": numbers(1, 1, 6, 5), "bias": numbers(5)},
        ),
    ],
    "max pool": [("MaxPooling2D", {"pool_size": [2, 3], "strides": None}, {})],
    "max pool same": [("MaxPooling2D", {"pool_size": 3, "strides": 1, **SAME}, {})],
    "max pool same uneven": [("MaxPooling2D", {"pool_size": 3, "strides": 2, **SAME}, {})],
    "max pool of even": [("MaxPooling2D", {"pool_size": [2, 3], "strides": [2, 2], **SAME}, {})],
    "average pool": [("AveragePooling2D", {"pool_size": 2}, {})],
    "average pool same": [("AveragePooling2D", {"pool_size": 3, "strides": 2, **SAME}, {})],
    "global average": [("GlobalAveragePooling2D", {}, {})],
    "global average kept": [
        ("GlobalAveragePooling2D", {"keepdims": True}, {}),
        ("Conv2D", {"filters": 2, "kernel_size": 1}, conv(3, 2, 1, 1)),
    ],
    "global max": [("GlobalMaxPooling2D", {}, {})],
    "flatten": [
        ("Flatten", {}, {}),
        ("Dense", {"units": 4, "activation": "relu"}, {"kernel": numbers(126, 4), "bias": numbers(4)}),
    ],
    "dense on an image": [("Dense", {"units": 2, "use_bias": False}, {"kernel": numbers(3, 2)})],
    "reshape": [
        ("Reshape", {"target_shape": [9, 14, 1]}, {}),
        ("Reshape", {"target_shape": [3, 6, 7]}, {}),
        ("Reshape", {"target_shape": [126]}, {}),
    ],
    "batch norm": [
        (
            "BatchNormalization",
            {"axis": [3], "epsilon": 0.01, "momentum": 0.9},
            norm(3, gamma=numbers(3), beta=numbers(3)),
        )
    ],
    "batch norm without": [("BatchNormalization", {"axis": -1, "scale": False, "center": False}, norm(3))],
    "relu6": [("ReLU", {"max_value": 0.5, "negative_slope": 0.0, "threshold": 0.0}, {})],
    "leaky": [
        ("ReLU", {"max_value": None, "negative_slope": 0.25}, {}),
        ("LeakyReLU", {"alpha": 0.5}, {}),
        ("LeakyReLU", {"negative_slope": 0.125}, {}),
    ],
    "prelu": [("PReLU", {"shared_axes": [1, 2]}, {"alpha": numbers(1, 1, 3)})],
    "piecewise linear and others": [
        ("Activation", {"activation": name}, {})
        for name in ("soft_shrink", "softsign", "tanh_shrink", "celu", "log_sigmoid", "hard_shrink")
    ],
    "activations": [
        ("Activation", {"activation": name}, {})
        for name in ("leaky_relu", "silu", "gelu", "relu6", "sigmoid", "linear")
    ],
    "padding": [
        ("ZeroPadding2D", {"padding": [[0, 1], [2, 0]], "data_format": "channels_last"}, {}),
        ("ZeroPadding2D", {"padding": [1, 2]}, {}),
    ],
    "rescaling": [
        ("Rescaling", {"scale": 2.0, "offset": -1.0}, {}),
        ("Rescaling", {"scale": [1.0, 2.0, 3.0], "offset": [0.5, 0.0, -0.5]}, {}),
    ],
    "normalization": [
        ("Normalization", {"axis": [-1], "mean": [0.1, 0.2, 0.3], "variance": [1.0, 2.0, 0.0], "invert": False}, {})
    ],
    "normalization by data": [
        (
            "Normalization",
            {"axis": [-1], "mean": None, "variance": None},
            {"mean": numbers(3), "variance": numbers(3) ** 2, "count": np.array(5)},
        ),
    ],
    "training alone": [
        ("Dropout", {"rate": 0.5, "seed": 1, "noise_shape": None}, {}),
        ("RandomFlip", {"mode": "horizontal"}, {}),
        ("Flatten", {}, {}),
    ],
}


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("name", CASES)
def test_a_layer_computes_what_keras_defines(tmp_path, name, suffix):
    layers = CASES[name]
    model = load_keras(write(tmp_path / f"net.{suffix}", description(layers), layers))
    images = RANDOM.normal(size=(2, *SHAPE))
    with torch.no_grad():
        ours = model.double()(torch.from_numpy(images).permute(0, 3, 1, 2))
    for image, own in zip(images, ours, strict=True):
        value = image
        for kind, settings, weights in layers:
            value = answer(value, kind, settings, {key: array.astype(np.float64) for key, array in weights.items()})
        own = own.permute(1, 2, 0) if own.ndim == 3 else own
        assert own.shape == value.shape
        np.testing.assert_allclose(own.numpy(), value, atol=2e-6)


BRANCHES = [
    ("Conv2D", {"filters": 3, "kernel_size": 3, **SAME}, conv(3, 3)),
    ("Add", {}, {}),
    ("Concatenate", {"axis": -1}, {}),
    ("Concatenate", {"axis": 1}, {}),
    ("Subtract", {}, {}),
    ("Flatten", {}, {}),
    ("Dense", {"units": 3}, {"kernel": numbers(2 * 7 * 6 * 6, 3), "bias": numbers(3)}),
    ("Softmax", {"axis": -1}, {}),
]
CALLS = [("conv", ["in"]), ("add", ["in", "conv"]), ("cat", ["add", "conv"]), ("rows", ["cat", "cat"]), ("less", ["rows", "rows"]),
         ("flat", ["less"]), ("dense", ["flat"]), ("last", ["dense"])]  # fmt: skip
CALLS[5] = ("flat", ["rows"])


@pytest.fixture
def network(tmp_path):
    return write(tmp_path / "net.keras", branched(CALLS, BRANCHES), BRANCHES)


def test_branches_and_the_softmax_at_the_end(network):
    with pytest.warns(UserWarning, match="softmax at the network's end was taken off"):
        model = load(str(network))
    image = RANDOM.normal(size=SHAPE)
    first = answer(image, *BRANCHES[0])
    joined = np.concatenate([image + first, first], 2)
    expected = np.concatenate([joined, joined], 0).reshape(-1) @ BRANCHES[6][2]["kernel"] + BRANCHES[6][2]["bias"]
    with torch.no_grad():
        ours = model.double()(torch.from_numpy(image).permute(2, 0, 1)[None])[0]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)
    assert "softmax" in model.notes[0]


@pytest.mark.filterwarnings("ignore:.*softmax")
def test_a_keras_network_is_certified_and_checked(network, tmp_path):
    model = load_keras(network)
    images = torch.rand(2, 3, *SHAPE[:2])
    labels = model(images).argmax(1)
    result = tiltproof.certify(model, images, labels, "B(0.0001)", run=tiltproof.RunFolder(tmp_path / "run"))
    assert list(result.verdicts) == [tiltproof.Verdict.CERTIFIED] * 2
    tiltproof.check(tmp_path / "run", load_keras(network), images, labels)


def test_groups_are_found_by_order_where_names_are_not_told(tmp_path):
    layers = [BRANCHES[0], BRANCHES[0], ("Conv2D", {"filters": 3, "kernel_size": 3, **SAME}, conv(3, 3))]
    config = description(layers)
    config["config"]["layers"][1]["config"]["name"] = "conv2d_1"  # as the second one's group is called
    told, untold = (load_keras(write(tmp_path / f"{t}.keras", config, layers, told=t)) for t in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(told.parameters(), untold.parameters(), strict=True))
    np.testing.assert_array_equal(
        list(told.parameters())[4].detach().permute(2, 3, 1, 0).numpy(), layers[2][2]["kernel"]
    )


def test_weights_in_another_order_than_the_layers_are_refused(tmp_path):
    layers = [BRANCHES[0], ("Conv2D", {"filters": 3, "kernel_size": 3, **SAME}, conv(3, 3))]
    path, config = tmp_path / "net.keras", description(layers)
    write(path, config, layers)
    entries = config["config"]["layers"]
    entries[1], entries[2] = entries[2], entries[1]
    with zipfile.ZipFile(path) as archive:
        weights = archive.read("model.weights.h5")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", weights)
    with pytest.raises(InputError, match="another order"):
        load_keras(path)


def test_the_larger_and_the_smaller_of_branches(tmp_path):
    layers = [BRANCHES[0], ("Maximum", {}, {}), ("Minimum", {}, {})]
    calls = [("conv", ["in"]), ("more", ["in", "conv"]), ("less", ["more", "conv"])]
    model = load_keras(write(tmp_path / "net.keras", branched(calls, layers), layers))
    image = RANDOM.normal(size=SHAPE)
    first = answer(image, *layers[0])
    with torch.no_grad():
        ours = model.double()(torch.from_numpy(image).permute(2, 0, 1)[None])[0].permute(1, 2, 0)
    np.testing.assert_allclose(ours.numpy(), np.minimum(np.maximum(image, first), first), atol=1e-5)


def test_slopes_of_single_pixels_are_refused(tmp_path):
    layers = [("PReLU", {"shared_axes": None}, {"alpha": numbers(*SHAPE)})]
    with pytest.raises(UnsupportedOperation, match="one for each channel"):
        load_keras(write(tmp_path / "net.keras", description(layers), layers))


def test_all_layers_without_a_rule_are_named_at_once(tmp_path):
    layers = [
        ("Lambda", {"function": "x"}, {}), BRANCHES[0], ("LSTM", {}, {}), ("Activation", {"activation": "hard_sigmoid"}, {}),
        ("Conv2D", {"filters": 3, "kernel_size": 3, "data_format": "channels_first"}, conv(3, 3)), ("ReLU", {"threshold": 1.0}, {}),
        ("Dropout", {"dtype": "mixed_float16"}, {}), ("Flatten", {"surprise": 1}, {}),
    ]  # fmt: skip
    with pytest.raises(UnsupportedOperation) as refusal:
        load_keras(write(tmp_path / "net.keras", description(layers), layers))
    for name in ("Lambda", "LSTM", "hard_sigmoid", "channels_first", "threshold = 1.0", "mixed_float16", "surprise"):
        assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["config"]["layers"][1].update(registered_name="my>Conv2D"), "Conv2D at layer 'own_0'"),
        (lambda c: c["config"]["layers"][1].update(module="keras.src.ops.nn"), "Conv2D at layer 'own_0'"),
        (lambda c: c["config"]["layers"][0]["config"].update(batch_shape=[None, None, None, 3]), "shape="),
        (lambda c: c["config"]["layers"][0]["config"].update(batch_shape=[None, 9]), r"\[N, H, W, C\]"),
        (lambda c: c["config"]["layers"][1]["config"].update(filters=5), "kernel of shape"),
        (lambda c: c["config"]["layers"][1]["config"].update(use_bias=False), "other weights"),
        (lambda c: c["config"]["layers"].pop(2), "weights that no layer uses"),
        (lambda c: c.update(class_name="MyModel"), "no sequential or functional"),
        (lambda c: c["config"].update(layers=3), "not understood"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path, change, message):
    layers = [BRANCHES[0], ("BatchNormalization", {}, norm(3, gamma=numbers(3), beta=numbers(3)))]
    path = write(tmp_path / "net.keras", description(layers), layers)
    config = description(layers)
    change(config)
    with zipfile.ZipFile(path) as archive:
        weights = archive.read("model.weights.h5")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", weights)
    with pytest.raises(InputError, match=message):
        load_keras(path)


def test_images_of_any_size(tmp_path):
    layers = [BRANCHES[0], ("GlobalAveragePooling2D", {}, {})]
    path = write(tmp_path / "net.keras", description(layers, (None, None, 3)), layers)
    assert load_keras(path, (3, 9, 5))(torch.rand(2, 3, 9, 5)).shape == (2, 3)
    with pytest.raises(InputError, match="another size"):
        load_keras(path, (1, 9, 5))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x89HDF\r\n\x1a\n", b"no such thing"])
def test_damaged_files(tmp_path, content):
    path = tmp_path / "net.keras"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a readable Keras file"):
        load_keras(path)


def test_weights_alone_and_weights_that_are_no_numbers(tmp_path):
    import h5py

    with h5py.File(tmp_path / "net.h5", "w") as file:
        file.create_group("layers")
    with pytest.raises(InputError, match="save the whole model"):
        load_keras(tmp_path / "net.h5")
    layers = [("Dense", {"units": 2, "use_bias": False}, {"kernel": np.full((3, 2), np.nan, "f")})]
    with pytest.raises(InputError, match="NaN or infinite"):
        load_keras(write(tmp_path / "nan.keras", description(layers), layers))


def test_a_link_out_of_the_file_is_refused(tmp_path):
    import h5py

    path = write(tmp_path / "net.h5", description([]), [])
    with h5py.File(path, "a") as file:
        file["model_weights/own"] = h5py.ExternalLink("/etc/other.h5", "/weights")
    with pytest.raises(InputError, match="links to other places"):
        load_keras(path)
