"""What `bound_pixels` refuses, and sizes it must accept."""

import pytest
import torch

from tiltproof import InputError, bound_pixels, parse

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
    ],
)
def test_bad_images(images, message):
    with pytest.raises(InputError) as error:
        bound_pixels(images, "R(5)")
    assert message in str(error.value)


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
