"""Apply all parameters to all images at once: the results of `apply` for each, whatever comes first and lies outside."""

import pytest
import torch

from tiltproof.models.architectures import Normalize
from tiltproof.transforms import parse
from tiltproof.verify.attack import Attacker
from tiltproof.verify.inputs import check_inputs

TEXTS = [
    "R(180)",
    "R(2), Sh(20)",
    "Sc(50), R(45), C(30), B(0.2)",
    "C(30), R(25)",
    "G(20), Tu(3), S(30)",
    "R(30), Bl(2), Tv(2)",
    "Yaw(5@30), R(9); padding=border",
    "R(90), Tu(30); padding=reflect",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_images_as_one_by_one(text):
    transform, generator = parse(text), torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 9, 11, generator=generator, dtype=torch.float64)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    parameters = low + (high - low) * torch.rand(6, len(low), generator=generator, dtype=torch.float64)
    found = transform.apply_each(images, parameters)
    wanted = transform.apply(images.repeat_interleave(6, 0), parameters.repeat(4, 1))
    assert found.shape == wanted.shape
    assert found.is_contiguous()
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("in_proof")
@pytest.mark.parametrize("size", [1, 3, 5, 7, 100])
def test_the_attack_sees_the_same_margins_whatever_fits_into_memory(size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Normalize([0.5], [0.2]), torch.nn.Flatten(), torch.nn.Linear(30, 4)).double().eval()
    images, labels = torch.rand(9, 1, 5, 6, dtype=torch.float64), torch.randint(4, (9,))
    attacker = Attacker(check_inputs(model, images, labels, "R(40), B(0.1)"), seed=0)
    attacker.batch.size = size
    rows, parameters = torch.tensor([7, 0, 3, 8]), torch.rand(5, 2, dtype=torch.float64) * 0.1
    found = attacker.margins_of_each(rows, parameters)
    one_by_one = attacker.margins_at(rows.repeat_interleave(5), parameters.repeat(4, 1))
    assert torch.allclose(found, one_by_one.view(4, 5), rtol=0, atol=1e-12)
