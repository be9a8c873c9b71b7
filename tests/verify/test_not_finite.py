"""A network with NaN or infinite outputs is reported as such, with the image, and not as misclassifying."""

import json
import sys

import pytest
import torch
from torch import nn

from tiltproof import Execution, InputError, RunFolder, attack, certify, certify_range

IMAGES = torch.zeros(6, 1, 4, 4)
IMAGES[4] = 1.0
LABELS = torch.zeros(6, dtype=torch.int64)


def network(*weights):
    """Build a network whose outputs are a weight times the sum of the 16 pixels each; the first one 1 more."""
    layer = nn.Linear(16, len(weights))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weights)[:, None].expand(-1, 16))
        layer.bias.copy_(torch.eye(len(weights))[0])
    return nn.Sequential(nn.Flatten(), layer).eval()


KINDS = {
    "infinite": network(-3e38, 1.0),
    "infinite, and right": network(3e38, 1.0),
    "another class": network(1.0, -3e38),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_image_is_named(kind):
    for function in (certify, attack):
        with pytest.raises(InputError, match=r"outputs for image 14 are not finite.*inf.*Likely cause.*overflow"):
            function(KINDS[kind], IMAGES, LABELS, "B(0.01)", first=10)


def test_not_a_number():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model[1].weight.fill_(3e38)
        model[2].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
        model[2].bias.copy_(torch.tensor([1.0, 0.0]))
    for function in (certify, attack):
        with pytest.raises(InputError, match=r"outputs for image 4 are not finite.*nan"):
            function(model, IMAGES, LABELS, "B(0.01)")


def test_batches_that_were_done_are_kept(tmp_path):
    """A resumed run continues from them: here to the same image, which cannot be skipped."""
    model, execution = KINDS["infinite"], Execution(batch_images=2)
    for resume in (False, True):
        run = RunFolder(tmp_path / "run", resume=resume)
        with pytest.raises(InputError, match="outputs for image 4 are"):
            certify(model, IMAGES, LABELS, "B(0.01)", execution=execution, run=run)
        records = [json.loads(line) for line in (tmp_path / "run" / "verdicts.jsonl").read_text().splitlines()]
        assert [record["image"] for record in records] == [0, 1, 2, 3]
        assert len((tmp_path / "run" / "batches.jsonl").read_text().splitlines()) == 2
    assert len(certify(model, IMAGES[:4], LABELS[:4], "B(0.01)").results) == 4


def test_a_regression_is_refused_before_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["tiltproof.verify.batch"], "BranchingSearch", None)
    with pytest.raises(InputError, match=r"outputs for image 14 are not finite.*inf"):
        certify_range(network(-3e38), IMAGES[4:], None, "B(0.01)", first=14, run=RunFolder(tmp_path / "run"))
