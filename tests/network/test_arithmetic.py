"""Convolutions as sums of products, and the arithmetic that proofs are allowed to use."""

import pytest
import torch
import torch.nn.functional as F

from tiltproof.network.arithmetic import (
    Window,
    _switches,
    conv2d_as_product,
    conv2d_transposed,
    conv2d_transposed_as_product,
    proof_arithmetic,
)

GEOMETRIES = [  # channels in, out, kernel, stride, padding, dilation, groups, height, width
    (3, 8, (3, 3), (1, 1), (1, 1), (1, 1), 1, 8, 9),
    (4, 8, (4, 4), (2, 2), (1, 1), (1, 1), 1, 9, 11),
    (4, 6, (3, 3), (2, 2), (0, 0), (2, 2), 2, 11, 12),
    (6, 6, (1, 3), (2, 1), (0, 2), (1, 1), 3, 7, 8),
    (2, 2, (5, 5), (3, 3), (2, 2), (1, 1), 1, 10, 10),
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_products_equal_torch(geometry):
    """What runs on a GPU is the same linear map, and so is its transpose."""
    inputs, outputs, kernel, stride, padding, dilation, groups, height, width = geometry
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, inputs, height, width, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(outputs, inputs // groups, *kernel, dtype=torch.float64, generator=generator)
    window = Window(stride, padding, dilation, groups)
    expected = F.conv2d(x, weight, None, stride, padding, dilation, groups)
    assert torch.allclose(conv2d_as_product(x, weight, window), expected, atol=1e-12)
    a = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    (transpose,) = torch.autograd.grad((expected * a).sum(), x)
    for function in (conv2d_transposed_as_product, conv2d_transposed):
        assert torch.allclose(function(a, weight, window, (height, width)), transpose, atol=1e-12)


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
