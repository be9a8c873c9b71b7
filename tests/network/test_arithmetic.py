"""Convolutions as sums of products, and the precision that proofs require."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import tiltproof
from tiltproof.errors import InputError
from tiltproof.network import arithmetic
from tiltproof.network.arithmetic import (
    Reach,
    Window,
    _refuse_other_arithmetic,
    _switches,
    conv2d_as_product,
    conv2d_by_lines,
    conv2d_transposed,
    conv2d_transposed_as_product,
    convolutions_by_lines,
    proof_arithmetic,
    unfold_at_most,
)

GEOMETRIES = [  # channels in, out, kernel, stride, padding, dilation, groups, height, width
    (3, 8, (3, 3), (1, 1), (1, 1), (1, 1), 1, 8, 9),
    (4, 8, (4, 4), (2, 2), (1, 1), (1, 1), 1, 9, 11),
    (4, 6, (3, 3), (2, 2), (0, 0), (2, 2), 2, 11, 12),
    (6, 6, (1, 3), (2, 1), (0, 2), (1, 1), 3, 7, 8),
    (2, 2, (5, 5), (3, 3), (2, 2), (1, 1), 1, 10, 10),
    (2, 3, (5, 3), (1, 2), (2, 0), (1, 1), 1, 7, 8),
    (2, 3, (2, 2), (1, 1), (3, 1), (1, 2), 1, 6, 5),
    (3, 2, (4, 2), (1, 1), (0, 1), (1, 1), 1, 6, 5),
    (1, 2, (2, 3), (1, 1), (0, 0), (1, 2), 1, 6, 5),
    (3, 2, (3, 2), (1, 1), (1, 1), (2, 1), 1, 6, 5),
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("most", [1, 5000, 2**21])
def test_lines_equal_torch(geometry, most, monkeypatch):
    """Matrix products for each line of the kernel, some images at a time."""
    inputs, outputs, kernel, stride, padding, _, _, height, width = geometry
    x, weight = torch.randn(5, inputs, height, width).double(), torch.randn(outputs, inputs, *kernel).double()
    monkeypatch.setattr(arithmetic, "LINES_BYTES", most)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, *shape: like.new_full(shape, torch.nan))
    expected = F.conv2d(x, weight, None, stride, padding)
    assert torch.allclose(conv2d_by_lines(x, weight, Window(stride, padding, (1, 1), 1)), expected, atol=1e-12)
    window = Window(stride, padding, (1, 1), 1)
    with convolutions_by_lines():
        assert torch.equal(arithmetic.conv2d(x, weight, window), conv2d_by_lines(x, weight, window))
        assert torch.equal(
            arithmetic.conv2d(x.float(), weight.float(), window),
            F.conv2d(x.float(), weight.float(), None, stride, padding),
        )
    assert torch.equal(arithmetic.conv2d(x, weight, window), expected)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_products_equal_torch(geometry, monkeypatch):
    """The GPU's code path is the same linear map, and so is its transpose."""
    inputs, outputs, kernel, stride, padding, dilation, groups, height, width = geometry
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, inputs, height, width, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(outputs, inputs // groups, *kernel, dtype=torch.float64, generator=generator)
    window = Window(stride, padding, dilation, groups)
    expected = F.conv2d(x, weight, None, stride, padding, dilation, groups)
    # uninitialized memory may hold anything
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, *shape: like.new_full(shape, torch.nan))
    for least in (1, 10**6):  # by the rows of windows where possible, and by whole windows
        monkeypatch.setattr(arithmetic, "LEAST_OUTPUTS", least)
        monkeypatch.setattr(arithmetic, "LEAST_TERMS", least)
        for at_most in (1, 2**31):  # image by image, and all at once
            with unfold_at_most(at_most):
                assert torch.allclose(conv2d_as_product(x.detach(), weight, window), expected, atol=1e-12)
        assert conv2d_as_product(x.detach()[:0], weight, window).shape == (0, *expected.shape[1:])
    a = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    (transpose,) = torch.autograd.grad((expected * a).sum(), x)
    for function in (conv2d_transposed_as_product, conv2d_transposed):
        assert torch.allclose(function(a, weight, window, (height, width)), transpose, atol=1e-12)


@pytest.fixture
def by_strips(monkeypatch):
    """Convolve by rows wherever that copies less, whatever the products cost; record the numbers of products."""
    reach, add, products = arithmetic._strips, arithmetic._add_lines, []

    def counted(target, rows, matrices, reach):
        assert reach.tail * reach.stride[0] <= reach.padding[0], (
            "after the last image an image begins that is not there"
        )
        products.append(len(matrices))
        add(target, rows, matrices, reach)

    monkeypatch.setattr(arithmetic, "LEAST_TERMS", 1)
    monkeypatch.setattr(arithmetic, "_strips", lambda x, whole, _: reach(x, whole, 0))
    monkeypatch.setattr(arithmetic, "_add_lines", counted)
    return products


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_lines_give_what_whole_windows_do(kernel, stride, by_strips, monkeypatch):
    """All sums of integers are exact, so their order does not matter."""
    generator = torch.Generator().manual_seed(0)
    for padding, height, wide, right, images in itertools.product((0, 1, 2, 3), (5, 6, 7), (1, 3), (1, 2), (1, 7)):
        x = torch.randint(-9, 10, (images, 3, height, 5), generator=generator).float()
        weight = torch.randint(-9, 10, (2, 3, kernel, wide), generator=generator).float()
        window = Window((stride, right), (padding, 1), (1, 1), 1)
        expected = F.conv2d(x, weight, None, window.stride, window.padding)
        for least in (1, 7):  # a product for each image, and for each position if those are few
            monkeypatch.setattr(arithmetic, "LEAST_OUTPUTS", least)
            for like in (x, x.contiguous(memory_format=torch.channels_last), x.double()):
                assert torch.equal(conv2d_as_product(like, weight.to(like.dtype), window), expected.to(like.dtype))
    assert set(by_strips) == ({-(-kernel // stride)} if kernel > stride else set())


@pytest.mark.parametrize(
    ("layer", "size", "images", "copied"),
    [
        # of the paper's networks for MNIST and CIFAR-10: channels, filters, kernel, stride; padding 1
        ((1, 32, 4, 2), 28, 1000, None),
        ((32, 64, 4, 2), 14, 1000, 14_336 / 25_088),
        ((3, 32, 3, 1), 32, 1000, None),
        ((32, 32, 4, 2), 32, 1000, 69_632 / 131_072),
        ((32, 64, 4, 2), 16, 1000, 18_432 / 32_768),
        # too few rows for a product; more outputs to add up than copies to save
        ((32, 64, 4, 2), 14, 20, None),
        ((32, 160, 3, 1), 32, 1000, None),
    ],
)
def test_lines_are_copied_where_that_is_less_work(layer, size, images, copied):
    channels, filters, kernel, stride = layer
    out = (size + 2 - kernel) // stride + 1
    whole = Reach((kernel, kernel), (stride, stride), (1, 1), (1, 1), out, out)
    x = torch.empty(images, channels, size, size, device="meta")
    reach = arithmetic._strips(x, whole, filters)
    if copied is None:
        assert reach is whole
    else:
        assert reach.entries(x) / whole.entries(x) == copied
        assert reach.rows(images) * math.prod(reach.kernel) * channels == images * reach.entries(x)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("least", [1, 5, 10**6])
@pytest.mark.parametrize(("stride", "size"), [(1, (6, 5)), (2, (6, 5)), (1, (2, 2))])
def test_products_have_the_gradients_of_torch(stride, size, groups, least, monkeypatch):
    """A model's weights require gradients by default, and `bound_network` accepts it as it is."""
    monkeypatch.setattr(arithmetic, "LEAST_OUTPUTS", least)
    monkeypatch.setattr(arithmetic, "LEAST_TERMS", least)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 4, *size, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(2, 4 // groups, 3, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    window = Window((stride, 1), (1, 1), (1, 1), groups)
    expected = F.conv2d(x, weight, None, window.stride, 1, 1, groups)
    a = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    with unfold_at_most(4 * 9 * 30 * 8 * 2):
        found = conv2d_as_product(x, weight, window)
    gradients = (torch.autograd.grad((result * a).sum(), (x, weight)) for result in (found, expected))
    for mine, wanted in zip(*gradients, strict=True):
        assert torch.allclose(mine, wanted, atol=1e-12)


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_the_users_precision_settings_are_put_aside_and_back(setting):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        values = [getattr(owner, name) for owner, name, _ in _switches()]
        with proof_arithmetic(torch.device("cpu")):
            assert all(getattr(owner, name) == strict for owner, name, strict in _switches())
        assert [getattr(owner, name) for owner, name, _ in _switches()] == values
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(before)


def test_autocast_does_not_reach_a_proof():
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        proof_arithmetic(torch.device("cpu")),
    ):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == torch.float32


@pytest.mark.parametrize("setting", ["medium", "autocast", "no_grad"])
def test_a_users_settings_change_no_verdict(setting):
    """Reduced precision, autocast or disabled gradients around a call: bounds are the same to the last bit."""
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    images = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    before = tiltproof.certify(model.eval(), images, labels, "R(5)")
    precision = torch.get_float32_matmul_precision()
    context = {"autocast": torch.autocast("cpu", dtype=torch.bfloat16), "no_grad": torch.no_grad()}.get(
        setting, nullcontext()
    )
    try:
        torch.set_float32_matmul_precision("medium" if setting == "medium" else precision)
        with context:
            after = tiltproof.certify(model, images, labels, "R(5)")
            tiltproof.attack(model, images, labels, "R(5)", samples=5, steps=2)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert after.margins == before.margins
    assert after.verdicts == before.verdicts


@pytest.mark.parametrize(
    ("name", "value", "device"),
    [
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "cpu"),
        ("DNNL_DEFAULT_FPMATH_MODE", "BF16", "cpu"),
        ("CUBLAS_EMULATE_SINGLE_PRECISION", "1", "cuda"),
        ("CUBLAS_EMULATE_DOUBLE_PRECISION", "1", "cuda"),
    ],
)
def test_libraries_that_the_environment_tells_to_compute_otherwise_are_refused(name, value, device, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{name}={value}"), proof_arithmetic(torch.device(device)):
        pass


def test_emulation_that_is_switched_off_or_elsewhere_is_no_matter(monkeypatch):
    monkeypatch.setenv("CUBLAS_EMULATE_SINGLE_PRECISION", "1")
    with proof_arithmetic(torch.device("cpu")):
        pass
    monkeypatch.setenv("CUBLAS_EMULATE_SINGLE_PRECISION", "0")
    _refuse_other_arithmetic(torch.device("cuda"))
