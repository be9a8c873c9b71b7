"""On a real GPU: whatever torch settings the user has, verdicts and bounds are the same to the last bit."""

import pytest
import torch

from tiltproof import bound_network, bound_pixels, certify
from tiltproof.data import load as load_data
from tiltproof.models import load as load_model

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def settings():
    """Yield ways to ask torch for fewer bits, each as (apply, undo)."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(torch.backends, "fp32_precision"):
        everywhere = [
            (torch.backends, "fp32_precision", "tf32"),
            (matmul, "fp32_precision", "tf32"),
            (conv.conv, "fp32_precision", "tf32"),
        ]
    else:
        everywhere = [(matmul, "allow_tf32", True), (conv, "allow_tf32", True)]
    return [*everywhere, (conv, "benchmark", True)]


@pytest.mark.parametrize("model", ["mnist-r30"])
def test_tf32_autocast_and_cudnn_tuning_change_nothing(model, monkeypatch):
    network = load_model(model).cuda()
    images, labels = (tensor.cuda() for tensor in load_data("mnist-sample"))
    before = certify(network, images, labels, "R(30)")
    form = bound_network(network, bound_pixels(images, "R(0.5)"), labels)
    left = torch.randn(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    exact = left @ left
    for owner, name, value in settings():
        monkeypatch.setattr(owner, name, value)
    assert not torch.equal(left @ left, exact), "the setting has no effect here, so this test shows nothing"
    with torch.autocast("cuda", dtype=torch.bfloat16):
        after = certify(network, images, labels, "R(30)")
        again = bound_network(network, bound_pixels(images, "R(0.5)"), labels)
    assert after.verdicts == before.verdicts
    assert after.margins == before.margins
    assert torch.equal(again.stack, form.stack)
    assert torch.equal(again.radius, form.radius)


def test_float32_semantics_hold_for_the_networks_own_evaluation():
    """The GPU's own float32 answers, plain and with whatever algorithm cuDNN picks, never contradict a certificate."""
    network = load_model("mnist-r30").cuda()
    images, labels = (tensor.cuda() for tensor in load_data("mnist-sample"))
    certificate = certify(network, images, labels, "R(30)", semantics="float32")
    from tiltproof import parse

    angles = torch.linspace(-30, 30, 601, dtype=torch.float64, device="cuda")[:, None]
    for k, verdict in enumerate(certificate.verdicts):
        if verdict == "certified":
            transformed = parse("R(30)").apply(images[k : k + 1].double().expand(601, -1, -1, -1), angles).float()
            with torch.no_grad():
                outputs = network(transformed).double()
            own = outputs[:, labels[k]].clone()
            outputs[:, labels[k]] = -torch.inf
            assert float((own - outputs.amax(1)).min()) >= certificate.margins[k]
