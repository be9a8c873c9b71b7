"""Networks that others published, as they are: read, or refused with the node and what to do. Prints a table (-s)."""

import re
import time

import pytest
import torch

from tests.support.processes import ROOT
from tiltproof import InputError
from tiltproof.models import load_onnx
from tiltproof.network import proof_arithmetic, read_network, without_head

NETWORKS = ROOT.parent / "shared" / "networks"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NETWORKS.is_dir(), reason="no ../shared/networks")]

SMALL = ("v21_cifar_base_kw", "v21_cifar_deep_kw", "v21_cifar_wide_kw", "v21_resnet_2b", "v22_sri_resnet_a")
READ = {
    **{name: {} for name in SMALL},
    "v21_cifar10_medium": {},
    "v21_Convnet_maxpool": {},
    "v21_ffnnSIGMOID__Point_6x200": {},
    "ort_cnn_mnist_pytorch": {},
    "vnn_4cnn_ry_0_0_no_custom_OP": {},
    "vnn_TinyYOLO": {},
    "ort_winml_squeezenet": {},
    "ort_maui_model": {},
    "v22_unet_simp_small": {"output": "out_mask"},
    "v22_unet_upsample_small": {"output": "out_mask"},
    "vnn_ibp_3_3_8": {},
    "ultraface_slim-320_simplified": {"output": "boxes"},
    "pypi_ch_ppocr_mobile_v2.0_cls_infer": {"shape": (3, 48, 192)},
    "vnn_3_30_30_QConv_16_3_QConv_32_2_Dense_43_ep_30": {},
}
"""Names, and how they are read."""
REFUSED = {}
"""Names, and which operations have no rule. A network that is read once they have one belongs into the other table."""
HEADS = {
    "pypi_ch_ppocr_mobile_v2.0_cls_infer": ("Softmax",),
    "vnn_3_30_30_QConv_16_3_QConv_32_2_Dense_43_ep_30": ("Softmax",),
    "ort_cnn_mnist_pytorch": ("LogSoftmax",),
    "ort_winml_squeezenet": ("Sigmoid",),
}


def row(name, outcome, began):
    print(f"{name:50} {outcome} ({time.perf_counter() - began:.1f} s)")  # noqa: T201


@pytest.mark.parametrize("name", READ)
def test_a_public_network_is_read(name):
    began = time.perf_counter()
    model = load_onnx(NETWORKS / f"{name}.onnx", **READ[name])
    images = torch.rand(2, *model.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = model(images)
    assert len(outputs) == 2
    scores, head = without_head(model, images)
    assert head == HEADS.get(name, ())
    if outputs[0].numel() < 100:
        with proof_arithmetic(torch.device("cpu")):
            assert read_network(scores, model.shape, images).output_shape() == tuple(outputs.shape[1:])
    row(name, f"{model.read_as}; outputs {list(outputs.shape[1:])}", began)


@pytest.mark.parametrize("name", REFUSED)
def test_a_public_network_is_refused_by_node(name):
    began = time.perf_counter()
    pattern, options = REFUSED[name]
    try:
        message = f"read by now: {load_onnx(NETWORKS / f'{name}.onnx', **options).read_as}"
    except InputError as error:
        message = f"refused: {error}".partition(" What to do")[0]
    assert message.startswith("read by now") or re.search(pattern, message)
    row(name, message, began)


def test_every_file_is_in_the_table():
    assert {path.stem for path in NETWORKS.glob("*.onnx")} == {*READ, *REFUSED}
