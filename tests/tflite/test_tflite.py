"""TFLite files of floats compute what TFLite defines; what cannot be read is refused; networks are certified and checked."""

import importlib.util

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tiltproof
from tests.tflite.test_integers import MLPERF, RANDOM, read, whole
from tests.tflite.tflite_files import Op, T, built, write
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.models import load, load_tflite, normalized
from tiltproof.tflite import crosscheck

pytest.importorskip("flatbuffers")


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("<f4") * 0.5


def axes(*values: int) -> T:
    return T([len(values)], "int32", np.array(values, "<i4"))


IMAGE = T([1, 6, 5, 3])
PIXELS = {0: ("b", 0), 1: ("i", 1), 2: ("i", 1)}


def nchw(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).double().permute(2, 0, 1)[None]


def last(x: torch.Tensor) -> np.ndarray:
    return x[0].permute(1, 2, 0).numpy()


WEIGHT, BIAS, DEEP = numbers(4, 3, 3, 3), numbers(4), numbers(1, 3, 2, 6)
FIRST = torch.from_numpy(WEIGHT).double().permute(0, 3, 1, 2)
CASES = {
    "conv": (
        [IMAGE, T([4, 3, 3, 3], data=WEIGHT), T([4], data=BIAS), T([1, 6, 5, 4])],
        [Op("CONV_2D", [0, 1, 2], 3, {**PIXELS, 3: ("b", 3)})],
        lambda x: last(F.relu6(F.conv2d(nchw(x), FIRST, torch.from_numpy(BIAS).double(), padding=1))),
    ),
    "depthwise": (
        [IMAGE, T([1, 3, 2, 6], data=DEEP), T([6], data=np.zeros(6, "<f4")), T([1, 4, 4, 6])],
        [Op("DEPTHWISE_CONV_2D", [0, 1, 2], 3, {**PIXELS, 0: ("b", 1), 3: ("i", 2), 4: ("b", 1)})],
        lambda x: last(F.relu(F.conv2d(nchw(x), torch.from_numpy(DEEP).double().permute(3, 0, 1, 2), groups=3))),
    ),
    "dense on a flattened image": (
        [IMAGE, T([4, 90], data=numbers(4, 90)), T([1, 4])],
        [Op("FULLY_CONNECTED", [0, 1], 2, {0: ("b", 0)})],
        None,
    ),
    "constants": (
        [IMAGE, T([3], data=numbers(3)), T([1, 6, 5, 3]), T([1, 1, 1, 3], data=numbers(1, 1, 1, 3)), T([1, 6, 5, 3]), T([1, 6, 5, 3])],
        [Op("MUL", [0, 1], 2), Op("SUB", [3, 2], 4), Op("ADD", [4, 2], 5, {0: ("b", 2)})],
        lambda x: np.clip(CASES["constants"][0][3].data[0] - x * CASES["constants"][0][1].data + x * CASES["constants"][0][1].data, -1, 1),
    ),
    "mean over columns": ([IMAGE, axes(2), T([1, 6, 1, 3])], [Op("MEAN", [0, 1], 2, {0: ("b", 1)})], lambda x: x.mean(1, keepdims=True)),
    "mean of an image": ([IMAGE, axes(1, 2), T([1, 3])], [Op("MEAN", [0, 1], 2, {0: ("b", 0)})], lambda x: x.mean((0, 1))),
    "transpose": ([IMAGE, axes(0, 3, 1, 2), T([1, 3, 6, 5])], [Op("TRANSPOSE", [0, 1], 2)], lambda x: x.transpose(2, 0, 1)),
    "squeeze": (
        [IMAGE, axes(1, 2), T([1, 1, 1, 3]), T([1, 3])],
        [Op("MEAN", [0, 1], 2, {0: ("b", 1)}), Op("SQUEEZE", [2], 3)],
        lambda x: x.mean((0, 1)),
    ),
    "reshape": ([IMAGE, axes(1, 10, 3, 3), T([1, 10, 3, 3])], [Op("RESHAPE", [0, 1], 2)], lambda x: x.reshape(10, 3, 3)),
    "twice as large": (
        [IMAGE, axes(12, 10), T([1, 12, 10, 3])],
        [Op("RESIZE_NEAREST_NEIGHBOR", [0, 1], 2, {0: ("b", 0), 1: ("b", 1)})],
        lambda x: x.repeat(2, 0).repeat(2, 1),
    ),
    "bilinear": (
        [IMAGE, axes(9, 7), T([1, 9, 7, 3])],
        [Op("RESIZE_BILINEAR", [0, 1], 2, {2: ("b", 0), 3: ("b", 1)})],
        lambda x: last(F.interpolate(nchw(x), (9, 7), mode="bilinear")),
    ),
    "leaky": ([IMAGE, T([1, 6, 5, 3])], [Op("LEAKY_RELU", [0], 1, {0: ("f", 0.25)})], lambda x: np.where(x < 0, 0.25 * x, x)),
    "weights of half precision": (
        [IMAGE, T([3], "float16", numbers(3).astype("<f2")), T([3]), T([1, 6, 5, 3])],
        [Op("DEQUANTIZE", [1], 2), Op("MUL", [0, 2], 3)],
        lambda x: x * CASES["weights of half precision"][0][1].data.astype("f8"),
    ),
    "average": (
        [IMAGE, T([1, 3, 3, 3])],
        [Op("AVERAGE_POOL_2D", [0], 1, {0: ("b", 0), 1: ("i", 2), 2: ("i", 2), 3: ("i", 3), 4: ("i", 3)})],
        None,
    ),
}  # fmt: skip
CASES["dense on a flattened image"] = (
    *CASES["dense on a flattened image"][:2],
    lambda x: CASES["dense on a flattened image"][0][1].data.astype("f8") @ x.reshape(-1),
)


def averages(x: np.ndarray) -> np.ndarray:
    """Over 3 x 3 windows with stride 2 and padding "same", of what lies inside: 6 rows pad below alone, 5 columns on both sides."""
    result = np.zeros((3, 3, 3))
    for i in range(3):
        for j in range(3):
            result[i, j] = x[2 * i : 2 * i + 3, max(2 * j - 1, 0) : 2 * j + 2].mean((0, 1))
    return result


@pytest.mark.parametrize("name", CASES)
def test_floats(tmp_path, name):
    tensors, operators, expected = CASES[name]
    model, image = read(tmp_path, tensors, operators), RANDOM.normal(size=(6, 5, 3))
    with torch.no_grad():
        own = model.double()(nchw(image))[0]
    own = own.permute(1, 2, 0) if own.ndim == 3 else own
    wanted = averages(image) if expected is None else expected(image)
    assert own.shape == wanted.shape
    np.testing.assert_allclose(own.numpy(), wanted, atol=2e-6)


def test_a_network_that_begins_with_channels_first(tmp_path):
    tensors = [T([1, 3, 6, 5]), axes(0, 2, 3, 1), T([1, 6, 5, 3]), T([3], data=numbers(3)), T([1, 6, 5, 3])]
    operators = [Op("TRANSPOSE", [0, 1], 2), Op("MUL", [2, 3], 4)]
    model, x = read(tmp_path, tensors, operators), torch.rand(2, 3, 6, 5)
    torch.testing.assert_close(model(x), x * torch.from_numpy(tensors[3].data).view(-1, 1, 1))
    path = write(tmp_path / "net.tflite", tensors, operators)
    assert load(str(path), layout="nchw").shape == model.shape == (3, 6, 5)
    assert load_tflite(path, layout="nhwc").shape == (5, 3, 6)


def test_all_operators_without_a_rule_are_named_at_once(tmp_path):
    tensors = [IMAGE, T([1, 6, 5, 3]), T([1, 6, 5, 3]), T([1, 6, 5, 3]), T([1, 6, 5, 3])]
    operators = [
        Op("CUSTOM", [0], 1), Op("RELU", [1], 2), Op("TOPK_V2", [2], 3), Op("ADD", [3, 1], 4, {0: ("b", 5)}),
    ]  # fmt: skip
    with pytest.raises(UnsupportedOperation) as caught:
        read(tmp_path, tensors, operators)
    assert [(r.operation, r.node) for r in caught.value.refusals] == [
        ("CUSTOM Own", "tensor_1"), ("TOPK_V2", "tensor_3"), ("ADD", "tensor_4")
    ]  # fmt: skip
    assert all(r.do for r in caught.value.refusals)
    assert "What to do" in str(caught.value)


Q = {"kind": "int8", "scale": 0.03, "zero": -9}
CONV = {0: ("b", 1), 1: ("i", 1), 2: ("i", 1)}
REFUSED = {
    "settings that are not understood": ([IMAGE, T([1, 6, 5, 3])], [Op("LEAKY_RELU", [0], 1, {0: ("f", 0.1), 3: ("i", 7)})]),
    "activation 5": ([IMAGE, T([1, 6, 5, 3])], [Op("ADD", [0, 0], 1, {0: ("b", 5)})]),
    "dynamic range quantization": (
        [IMAGE, T([4, 1, 1, 3], "int8", whole(4, 1, 1, 3).astype("i1"), 0.1), T([1, 6, 5, 4])], [Op("CONV_2D", [0, 1, -1], 2, CONV)]
    ),
    "is a table of whole numbers": ([T([1, 6, 5, 3], **Q), T([1, 6, 5, 3], **Q)], [Op("TANH", [0], 1)]),
    "another scale or zero point": (
        [T([1, 6, 5, 3], **Q), axes(1, 10, 3, 3), T([1, 10, 3, 3], "int8", scale=0.03, zero=1)], [Op("RESHAPE", [0, 1], 2)]
    ),
    "several scales": (
        [T([1, 6, 5, 3], **Q), T([1, 6, 5, 3], "int8", scale=0.04), T([1, 6, 5, 6], **Q)],
        [Op("QUANTIZE", [0], 1), Op("CONCATENATION", [0, 1], 2, {0: ("i", -1)})],
    ),
    "a zero point for each channel": (
        [T([1, 6, 5, 3], **Q), T([4, 1, 1, 3], "int8", whole(4, 1, 1, 3).astype("i1"), [0.1] * 4, [0, 1, 0, 0]), T([1, 6, 5, 4], **Q)],
        [Op("CONV_2D", [0, 1, -1], 2, CONV)],
    ),
    "the batch has to stay": ([IMAGE, axes(1, 0, 2, 3), T([6, 1, 5, 3])], [Op("TRANSPOSE", [0, 1], 2)]),
    "beta = 2": ([T([1, 1, 1, 3]), T([1, 1, 1, 3])], [Op("SOFTMAX", [0], 1, {0: ("f", 2.0)})]),
    "other whole numbers": ([IMAGE, T([1, 6, 5, 3], "int32", scale=0.1)], [Op("QUANTIZE", [0], 1)]),
}  # fmt: skip
WRONG = {
    "gives another shape": ([IMAGE, T([1, 6, 5, 4])], [Op("RELU", [0], 1)]),
    "images of any size": ([T([1, 6, 5, 3], signature=[1, -1, -1, 3]), T([1, 6, 5, 3])], [Op("RELU", [0], 1)]),
    "several images at once": ([T([2, 6, 5, 3]), T([2, 6, 5, 3])], [Op("RELU", [0], 1)]),
    "must take images": ([T([1, 6]), T([1, 6])], [Op("RELU", [0], 1)]),
    "nothing before it gives": ([IMAGE, T([1, 6, 5, 3]), T([1, 6, 5, 3])], [Op("RELU", [1], 2)]),
    "NaN or infinite": ([IMAGE, T([3], data=np.array([1, np.nan, 2], "<f4")), T([1, 6, 5, 3])], [Op("MUL", [0, 1], 2)]),
    "another size than its shape": ([IMAGE, T([4], data=numbers(3)), T([1, 6, 5, 3])], [Op("MUL", [0, 1], 2)]),
    "one value twice": ([IMAGE, T([1, 6, 5, 3])], [Op("RELU", [0], 1), Op("RELU", [0], 1)]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_rule_is_refused(tmp_path, message):
    with pytest.raises(UnsupportedOperation, match=message):
        read(tmp_path, *REFUSED[message])


@pytest.mark.parametrize("message", WRONG)
def test_files_that_fit_together_badly(tmp_path, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, *WRONG[message])


def small() -> tuple[list[T], list[Op]]:
    """Convolution, addition, average and a dense layer, of int8."""
    weights = T([4, 3, 3, 3], "int8", whole(4, 3, 3, 3).astype("i1"), [0.002, 0.001, 0.003, 0.002], [0] * 4)
    tensors = [
        T([1, 8, 8, 3], "int8", scale=1 / 255, zero=-128), weights, T([4], "int32", whole(4).astype("<i4")),
        T([1, 8, 8, 4], "int8", scale=0.02, zero=-20), T([1, 8, 8, 4], "int8", scale=0.03, zero=5),
        T([1, 2, 2, 4], "int8", scale=0.03, zero=5), T([3, 16], "int8", whole(3, 16).astype("i1"), 0.01),
        T([3], "int32", whole(3).astype("<i4"), 0.03 * 0.01), T([1, 3], "int8", scale=0.02, zero=0),
        T([1, 3], "int8", scale=1 / 256, zero=-128),
    ]  # fmt: skip
    pool = {0: ("b", 1), 1: ("i", 4), 2: ("i", 4), 3: ("i", 4), 4: ("i", 4)}
    operators = [
        Op("CONV_2D", [0, 1, 2], 3, {**PIXELS, 3: ("b", 1)}), Op("ADD", [3, 3], 4), Op("AVERAGE_POOL_2D", [4], 5, pool),
        Op("FULLY_CONNECTED", [5, 6, 7], 8, {0: ("b", 0)}), Op("SOFTMAX", [8], 9, {0: ("f", 1.0)}),
    ]  # fmt: skip
    return tensors, operators


@pytest.mark.filterwarnings("ignore:.*SOFTMAX")
def test_an_integer_network_is_certified_and_checked(tmp_path):
    path = write(tmp_path / "net.tflite", *small())
    model, images = load(str(path)), torch.rand(8, 3, 8, 8)
    labels = model(images).argmax(1)
    run = tiltproof.RunFolder(tmp_path / "run")
    result = tiltproof.certify(model, images, labels, "R(0.5)", run=run)
    assert list(result.verdicts).count(tiltproof.Verdict.CERTIFIED) >= 4
    report = tiltproof.check(tmp_path / "run", load_tflite(path), images, labels)
    assert report.certified == list(result.verdicts).count(tiltproof.Verdict.CERTIFIED)


@pytest.mark.filterwarnings("ignore:.*SOFTMAX")
def test_files_cut_short_or_changed_are_input_errors(tmp_path):
    """Never a traceback, whatever byte is another one."""
    content, path = built(*small(), 0, 9), tmp_path / "net.tflite"
    random = np.random.default_rng(1)
    changed = [content[:n] for n in (0, 3, 8, 60, len(content) // 2, len(content) - 1)]
    for _ in range(300):
        other = bytearray(content)
        for place in random.integers(0, len(content), 3):
            other[place] = random.choice([0, 1, 127, 255, int(random.integers(256))])
        changed.append(bytes(other))
    for each in changed:
        path.write_bytes(each)
        try:
            model = load_tflite(path)
            with torch.no_grad():
                model(torch.rand(1, *model.shape, dtype=next(model.parameters()).dtype))
        except InputError:
            continue


@pytest.mark.skipif(not MLPERF.is_file(), reason="needs ../shared/networks")
@pytest.mark.filterwarnings("ignore:.*SOFTMAX")
def test_the_mlperf_network_is_constant_between_two_changes_of_a_pixel():
    """Nothing is lost while no pixel's whole number changes; within a rotation by 0.1 degrees bounds of single roundings prove nothing."""
    model, (images, _) = load_tflite(MLPERF).double(), tiltproof.data.load("cifar10-sample")
    model = normalized(model, std=1 / 255)
    pixels = tiltproof.bound_pixels(images[:1].double(), "R(1)", low=[0.3], high=[0.3 + 1e-7])
    bounds = tiltproof.bound_network(model, pixels)
    assert float((bounds.upper - bounds.lower).max()) < 1e-9


LITERT = importlib.util.find_spec("ai_edge_litert") is not None


@pytest.mark.skipif(not LITERT, reason="needs ai-edge-litert")
@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_agrees(tmp_path, name):
    assert read(tmp_path, *CASES[name][:2]).file is not None


class Interpreter:
    """In the place of TFLite's: what it gives is taken from a list."""

    def __init__(self, tensors: dict[int, np.ndarray]) -> None:
        self.tensors = tensors

    def get_input_details(self) -> list[dict[str, int]]:
        return [{"index": 0}]

    def set_tensor(self, number: int, array: np.ndarray) -> None:
        self.tensors[number] = array

    def invoke(self) -> None:
        x = self.tensors[0]
        self.tensors[1] = np.maximum(x, 0) if x.dtype.kind == "f" else np.maximum(x, -9) + self.tensors.get(-1, 0)

    def get_tensor(self, number: int) -> np.ndarray:
        return self.tensors[number]


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_file_that_the_interpreter_reads_otherwise_is_refused(tmp_path, monkeypatch, wrong):
    interpreter = Interpreter({-1: np.array(wrong, "i1")})
    monkeypatch.setattr(crosscheck, "interpreter_of", lambda _: interpreter)
    tensors = [T([1, 6, 5, 3], **Q), T([1, 6, 5, 3], **Q)]
    if not wrong:
        model = read(tmp_path, tensors, [Op("RELU", [0], 1)])
        model.compare_with_file(torch.rand(2, 3, 6, 5))
        return
    with pytest.raises(InputError, match="whole numbers are others"):
        read(tmp_path, tensors, [Op("RELU", [0], 1)])


def test_floats_that_the_interpreter_computes_otherwise_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(crosscheck, "interpreter_of", lambda _: Interpreter({}))
    tensors = [IMAGE, T([1, 6, 5, 3])]
    assert read(tmp_path, tensors, [Op("RELU", [0], 1)]).file is not None
    with pytest.raises(InputError, match=r"output \d+ differs"):
        read(tmp_path, tensors, [Op("TANH", [0], 1)])


def test_options_that_do_not_belong_to_tflite_files(tmp_path):
    path = write(tmp_path / "net.tflite", [IMAGE, T([1, 6, 5, 3])], [Op("RELU", [0], 1)])
    with pytest.raises(InputError, match="--shape goes with other files: .onnx, .keras"):
        load(str(path), shape=(3, 6, 5))


def test_one_of_several_outputs(tmp_path):
    """Operators that it does not need are not read: here, one without a rule. Inner values can be named as well."""
    shape = [1, 6, 5, 3]
    operators = [Op("RELU", [0], 1), Op("TANH", [1], 2), Op("TOPK_V2", [1], 3)]
    path = write(tmp_path / "net.tflite", [IMAGE, T(shape), T(shape), T(shape)], operators, last=[2, 3])
    image, found = torch.rand(1, 3, 6, 5) - 0.5, {}
    for name, function in (("tensor_1", torch.relu), ("tensor_2", lambda x: x.relu().tanh())):
        found[name] = load(str(path), output=name)
        torch.testing.assert_close(found[name](image), function(image))
    assert len({bytes(model.file_sha256.tolist()) for model in found.values()}) == 2, "runs about both are told apart"
    with pytest.raises(InputError, match=r"2: tensor_2, tensor_3.*--output NAME"):
        load(str(path))
    with pytest.raises(InputError, match=r"no such output.*tensor_2, tensor_3"):
        load(str(path), output="tensor_0")
    with pytest.raises(UnsupportedOperation, match="TOPK_V2"):
        load(str(path), output="tensor_3")
