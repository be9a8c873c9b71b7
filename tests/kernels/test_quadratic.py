"""The kernels of quadratic forms: in Triton's interpreter against the reference and the exact image, compiled for a GPU, and on one."""

import pytest
import torch

from tests.kernels.child import COMPILE, needs_triton, run
from tests.kernels.coordinate_boxes import agree, coordinates_of, padded
from tiltproof.pixels.api import pair_bounds
from tiltproof.transforms.base import parse

pytest.importorskip("triton")
from tiltproof.kernels import pixels as fused
from tiltproof.kernels.selfcheck import contains


@needs_triton
@pytest.mark.parametrize("what", ["same", "odd", "sound", "damaged"])
def test_in_the_interpreter(what):
    run(["-m", "tests.kernels.interpreted_quadratic", what], TRITON_INTERPRET="1")


@needs_triton
def test_compiles_for_a_gpu(tmp_path):
    """The interpreter accepts more than the compiler does."""
    run(["-c", COMPILE, "R(10)", "3", "quadratic"], TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")


def test_samples_notice_a_hinge_that_is_not_shared():
    """Alone a pixel may have any hinge; all pixels together share one."""
    image, transform = torch.rand(1, 1, 6, 7, dtype=torch.float64), parse("Tu(3)")
    low = torch.tensor([[-0.2]], dtype=torch.float64)
    form = pair_bounds(image, torch.tensor([0]), transform, "affine", low, low + 0.5, quadratic=True)
    places = torch.linspace(-1, 1, 9, dtype=torch.float64).unsqueeze(1)

    def holds() -> bool:
        return bool(contains(form, image, transform, [0], low, low + 0.5, places).all())

    assert form.stack[3].all()
    assert holds()
    form.stack[3, ..., ::2, :] *= -1  # each of these pixels fits minus the hinge, the others the hinge
    assert not holds()
    form.stack[3, ..., 1::2, :] *= -1
    assert holds()


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("text", ["R(30)", "Sc(20); padding=border", "Sh(20); padding=reflect", "Tu(3)"])
def test_on_a_gpu(text, monkeypatch):
    """The reference's results on the same GPU, pair by pair, in four launches and the few that choose the hinges."""
    transform = parse(text)
    images = torch.rand(3, 3, 28, 30, dtype=torch.float64, device="cuda")
    half = transform.high[0] * 3.0 ** -torch.arange(24, device="cuda").remainder(12).double().unsqueeze(1)
    middle = (2 * torch.rand(24, 1, dtype=torch.float64, device="cuda") - 1) * (transform.high[0] - half)
    low, high, rows_of = middle - half, middle + half, torch.arange(24, device="cuda") % 3
    used, launch = [], fused._launch
    monkeypatch.setattr(fused, "_launch", lambda *arguments: used.append(1) or launch(*arguments))
    found = pair_bounds(images, rows_of, transform, "affine", low, high, quadratic=True)
    assert used
    monkeypatch.setattr(fused.spatial, "disabled", True)
    for k in range(24):
        box = low[k : k + 1], high[k : k + 1]
        wanted = pair_bounds(images, rows_of[k : k + 1], transform, "affine", *box, quadratic=True)
        place = coordinates_of(transform, *box, *images.shape[-2:])
        assert agree(found[k : k + 1], padded(wanted, 4), place, transform.padding).all()
