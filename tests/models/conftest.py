"""A folder of models with one untrained model in it."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import save

from tiltproof.models import mnist_cnn


@pytest.fixture
def models_folder(tmp_path):
    torch.manual_seed(0)
    content = save(mnist_cnn().state_dict())
    (tmp_path / "tiny.safetensors").write_bytes(content)
    card = {
        "name": "tiny",
        "architecture": "mnist_cnn",
        "dataset": "mnist",
        "transform": "R(30)",
        "trained": "not at all",
        "clean_percent": 10.0,
        "certified_percent": 0.0,
        "unfalsified_percent": 0.0,
        "boxes_per_image": 1.5,
        "measured": "never",
        "sha256": hashlib.sha256(content).hexdigest(),
        "recipe": {"name": "none"},
    }
    (tmp_path / "tiny.json").write_text(json.dumps(card))
    return tmp_path
