"""What `bound_pixels` refuses, and sizes it must accept."""

import pytest
import torch

from tiltproof import InputError, attack, bound_pixels, certify, certify_range, parse

GOOD = torch.rand(2, 1, 5, 4)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(1, 5, 4), "shape"),
        (torch.rand(0, 1, 5, 4), "no images"),
        ((GOOD * 255).byte(), "float32"),
        (GOOD.half(), "float32"),
        (GOOD * 255, "[0, 1]"),
        (GOOD - 0.5, "[0, 1]"),
        (torch.full_like(GOOD, torch.nan), "NaN"),
        ([[1.0]], "tensor"),
        (torch.rand(2, 32, 30, 3), "channels last: 3 channels of 32 x 30 pixels"),
        (torch.rand(2, 32, 30, 1), "images.permute(0, 3, 1, 2)"),
        (torch.rand(1, 5, 6, 4), "5 channels of 6 x 4 pixels"),
    ],
)
def test_bad_images(images, message):
    with pytest.raises(InputError) as error:
        bound_pixels(images, "R(5)")
    assert message in str(error.value)


@pytest.mark.parametrize("shape", [(4, 5, 3), (3, 5, 3), (1, 1, 1), (5, 3, 2), (16, 16, 16)])
def test_few_channels_or_many_columns_are_no_sign_of_channels_last(shape):
    assert bound_pixels(torch.rand(1, *shape), "B(0.1)").lower.shape == (1, *shape)


@pytest.mark.parametrize("call", [certify, certify_range, attack])
def test_channels_last_is_refused_before_a_proof(call):
    """The plane of columns and colours is none that a camera turns."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 8 * 3, 2))
    images = torch.rand(1, 8, 8, 3)
    with pytest.raises(InputError, match="channels first"):
        call(network, images, torch.tensor([0]), "R(1)")


def test_bad_boxes_and_methods():
    with pytest.raises(InputError, match="method"):
        bound_pixels(GOOD, "R(5)", method="exact")
    with pytest.raises(InputError, match="low above high"):
        bound_pixels(GOOD, "R(5)", low=[2.0], high=[1.0])
    with pytest.raises(InputError, match="finite"):
        bound_pixels(GOOD, "R(5)", low=[0.0, 1.0], high=[1.0, 2.0])
    with pytest.raises(InputError, match="finite"):
        bound_pixels(GOOD, "R(5)", low=[float("nan")], high=[1.0])


@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_large_images(method):
    """224 x 224 and not square: memory stays proportional to the image, also for Algorithm 1."""
    images = torch.rand(1, 3, 224, 160)
    bounds = bound_pixels(images, "R(1), C(5)", method, low=[0.2, -1.0], high=[0.21, 1.0])
    truth = parse("R(1), C(5)").apply(images.double(), torch.tensor([0.204, 0.3]))
    assert bool((bounds.lower <= truth).all())
    assert bool((truth <= bounds.upper).all())
