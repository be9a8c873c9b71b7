"""A classifier's final softmax, sigmoid or argmax is taken off; whatever is not such a head stays."""

import json
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tiltproof
from tiltproof import CheckFailed, InputError
from tiltproof.network import WithoutHead, without_head
from tiltproof.runs.manifest import weights_digest

SHAPE = (1, 5, 5)


class Classifier(nn.Module):
    """Scores of three classes, and what is made of them."""

    def __init__(self, end=None):
        super().__init__()
        torch.manual_seed(0)
        self.scores, self.end = nn.Sequential(nn.Flatten(), nn.Linear(25, 3)), end
        self.eval()

    def forward(self, images):
        values = self.scores(images)
        return values if self.end is None else self.end(values)


def view(end):
    return lambda s: end(s.unsqueeze(2).unsqueeze(2)).flatten(1)


def written_to(s):
    p = torch.softmax(s, 1)
    p[:, 0] = 0
    return p


def scores_written_to(s):
    p = torch.softmax(s, 1)
    s += torch.tensor([5.0, 0.0, 0.0])
    return p


HEADS = {
    "nn.Softmax": (nn.Softmax(1), ("Softmax",)),
    "nn.LogSoftmax": (nn.LogSoftmax(-1), ("LogSoftmax",)),
    "nn.Sigmoid": (nn.Sigmoid(), ("Sigmoid",)),
    "nn.LogSigmoid": (nn.LogSigmoid(), ("LogSigmoid",)),
    "no dimension": (F.softmax, ("Softmax",)),
    "method": (lambda s: s.log_softmax(dim=1), ("LogSoftmax",)),
    "argmax": (lambda s: s.argmax(1), ("ArgMax",)),
    "kept dimension": (lambda s: torch.argmax(s, dim=1, keepdim=True), ("ArgMax",)),
    "argmax of a softmax": (lambda s: s.softmax(1).argmax(1), ("ArgMax", "Softmax")),
    "softmax of a sigmoid": (lambda s: s.sigmoid().softmax(1), ("Softmax", "Sigmoid")),
    "before a reshape": (view(lambda s: F.softmax(s, 1)), ("Softmax",)),
}
NONE = {
    "nothing": None,
    "reshape": lambda s: s.view(-1, 3, 1).flatten(1),
    "relu": F.relu,
    "over the batch": lambda s: F.softmax(s, 0),
    "over a part": lambda s: F.softmax(torch.cat([s, s], 1).view(-1, 2, 3), 1).flatten(1),
    "scaled": lambda s: torch.softmax(s, 1) * torch.tensor([1.0, 2.0, 3.0]),
    "written to": written_to,
    "scores written to": scores_written_to,
    "permuted": lambda s: torch.softmax(s, 1)[:, [1, 0, 2]],
    "softmax of an argmax": lambda s: s.argmax(1, keepdim=True).float().softmax(1),
    "sigmoid of an argmax": lambda s: s.argmax(1, keepdim=True).sigmoid(),
    "one class": lambda s: s[:, :1].sigmoid(),
}


def images(count=3):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_a_head_is_taken_off(name):
    end, expected = HEADS[name]
    model, batch = Classifier(end), images()
    scores, head = without_head(model, batch)
    assert head == expected
    assert torch.equal(scores(batch), Classifier()(batch))
    outputs = model(batch)
    same = outputs.flatten() if head[0] == "ArgMax" else outputs.argmax(1)
    assert torch.equal(scores(batch).argmax(1), same)
    assert weights_digest(scores) == weights_digest(model)


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_head_stays(name):
    model = Classifier(NONE[name])
    assert without_head(model, images()) == (model, ())


@pytest.mark.parametrize("name", ["nn.Softmax", "nn.Sigmoid", "argmax of a softmax", "before a reshape"])
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_certified_checked_and_in_the_manifest(name, semantics, tmp_path):
    end, head = HEADS[name]
    bare, model, batch = Classifier(), Classifier(end), images()
    labels = bare(batch).argmax(1)
    one, other = (
        tiltproof.certify(
            each, batch, labels, "R(2), B(0.02)", semantics=semantics, run=tiltproof.RunFolder(tmp_path / folder)
        )
        for each, folder in ((bare, "bare"), (model, "headed"))
    )
    assert one.verdicts == other.verdicts
    assert (
        one.margins == other.margins or name == "before a reshape"
    )  # whose scores are not the last layer's own output
    claims = [json.loads((tmp_path / folder / "manifest.json").read_text())["claim"] for folder in ("bare", "headed")]
    assert "head" not in claims[0]
    assert claims[1]["head"] == list(head)
    assert claims[0]["images_sha256"] == claims[1]["images_sha256"]
    report = tiltproof.check(tmp_path / "headed", model, batch, labels)
    assert report.certified == other.verdicts.count("certified") > 0
    with pytest.raises(CheckFailed, match="does not end in"):
        tiltproof.check(tmp_path / "headed", bare, batch, labels)
    if name != "nn.Sigmoid":
        with pytest.raises((InputError, CheckFailed)):
            tiltproof.check(tmp_path / "bare", model, batch, labels)


def test_saturated_outputs_are_no_ties():
    """In float32 every sigmoid here is exactly 1; the scores differ."""
    model = Classifier(nn.Sigmoid())
    with torch.no_grad():
        model.scores[1].weight.zero_()
        model.scores[1].bias.copy_(torch.tensor([100.0, 200.0, 150.0]))
    assert model(images()).eq(1).all()
    certificate = tiltproof.certify(model, images(), torch.tensor([1, 1, 0]), "R(5)")
    assert certificate.verdicts == ["certified", "certified", "misclassified"]


def test_other_processes_get_it_too():
    scores, _ = without_head(Classifier(nn.Softmax(1)), images())
    assert torch.equal(pickle.loads(pickle.dumps(scores))(images()), scores(images()))


def test_ranges_keep_their_head():
    sigmoid = tiltproof.certify_range(Classifier(nn.Sigmoid()), images(1), None, "B(0.01)")
    assert 0 < sigmoid.results[0].lower[0] < sigmoid.results[0].upper[0] < 1
    softmax = tiltproof.certify_range(Classifier(nn.Softmax(1)), images(1), None, "B(0.01)")
    assert 0 < softmax.results[0].lower[0] < softmax.results[0].upper[0] < 1
    logarithm = tiltproof.certify_range(Classifier(nn.LogSoftmax(1)), images(1), None, "B(0.01)")
    assert logarithm.results[0].lower[0] < logarithm.results[0].upper[0] < 0


def test_attack_sees_the_scores():
    model = Classifier(nn.Softmax(1))
    labels = model(images()).argmax(1)
    one, other = (tiltproof.attack(each, images(), labels, "B(0.5)") for each in (model, Classifier()))
    assert one.margins == other.margins
    assert one.parameters == other.parameters


def test_a_head_that_changes_with_the_images_is_refused():
    scores, head = without_head(Classifier(lambda s: s.softmax(1) if len(s) > 2 else s.sigmoid()), images())
    assert head == ("Softmax",)
    assert isinstance(scores, WithoutHead)
    with pytest.raises(InputError, match="another head than before"):
        scores(images(1))


def test_a_model_that_fails_is_read_by_whoever_says_why():
    with warnings.catch_warnings(), pytest.raises(InputError, match="the model cannot run on images"):
        tiltproof.certify(Classifier(nn.Softmax(1)), torch.rand(1, 1, 6, 6), torch.tensor([0]), "R(1)")
