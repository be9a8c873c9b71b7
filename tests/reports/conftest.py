"""A run of ten thousand images with made-up verdicts, for the size and the speed of a page."""

import pytest
import torch
from torch import nn

from tests.support.run_folder import manifest_of, record, write_run


@pytest.fixture(scope="session")
def large_run(tmp_path_factory):
    """Return folder, model and images of ten thousand color images with made-up verdicts."""
    folder = tmp_path_factory.mktemp("large") / "run"
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).eval()
    smooth = torch.rand(10_000, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = nn.functional.interpolate(smooth, 32, mode="bilinear")
    labels = torch.arange(10_000) % 10
    words = ("certified",) * 7 + ("falsified", "unknown", "misclassified")
    more = {
        "certified": {"margin": 1.5, "grid": [16], "tree": "3.a14."},
        "falsified": {"margin": -0.123456, "counterexample": [-12.3456789]},
        "unknown": {"margin": -2.5, "open_box": [[-1.0], [1.5]], "reason": "open"},
        "misclassified": {"margin": -1.0},
    }
    records = [record(k, k % 10, word := words[k % 10], **more[word]) for k in range(10_000)]
    write_run(folder, manifest_of(model, images, labels, "R(30)"), records, batch=1000)
    return folder, model, images
