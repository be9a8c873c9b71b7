"""The checker takes off exactly the head that a claim names, by rules of its own."""

import pytest
import torch

from tests.network.test_head import HEADS, NONE, SHAPE, Classifier, images
from tests.support.run_folder import manifest_of, record, write_run
from tiltproof.checker import CheckFailed, check
from tiltproof.checker.form import RULES, Form
from tiltproof.checker.head import NAMES
from tiltproof.checker.network import evaluation, outputs, own_answers
from tiltproof.errors import InputError


def form(count=2):
    return Form(torch.stack([images(count), 0.01 * images(count), 0.001 * images(count)]).double())


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_the_scores_are_found_behind_every_head(name):
    end, head = HEADS[name]
    model, batch = Classifier(end), images()
    with evaluation(model, torch.device("cpu")):
        found, bare = outputs(model, form(), 2, head), outputs(Classifier(), form(), 2)
        assert torch.equal(found.rows, bare.rows)
        assert torch.equal(own_answers(model, batch, head), own_answers(Classifier(), batch))
        for other in (["Softmax", "Softmax"], ["LogSoftmax", *head], [*head, "Sigmoid"]):
            with pytest.raises((CheckFailed, InputError)):
                outputs(model, form(), 2, other)
        if {*head} <= {"ArgMax"} and head:  # the others have rules of their own
            with pytest.raises((CheckFailed, InputError)):
                outputs(model, form(), 2, [])


@pytest.mark.parametrize("name", [name for name in NONE if name != "nothing"])
@pytest.mark.parametrize("head", [["Softmax"], ["Sigmoid"], ["ArgMax"], ["Softmax", "ArgMax"]])
def test_no_head_is_found_where_there_is_none(name, head):
    if name == "one class" and head == ["Sigmoid"]:
        head = ["LogSigmoid"]  # the only one that it has
    model = Classifier(NONE[name])
    with evaluation(model, torch.device("cpu")):
        with pytest.raises((CheckFailed, InputError)):
            outputs(model, form(), 1, head)
        if [name.split()[0].title()] != head:  # of a single number
            with pytest.raises((CheckFailed, RuntimeError, IndexError)):
                own_answers(model, images(), head)


def test_rules_that_are_registered_later_are_watched_too(monkeypatch):
    """Another module may bring a rule for a softmax inside a network."""
    monkeypatch.setitem(RULES, torch.nn.functional.softmax, lambda x, *_, **__: Form(x.rows.clone(), x.unit))
    model = Classifier(torch.nn.Softmax(1))
    with evaluation(model, torch.device("cpu")):
        assert torch.equal(outputs(model, form(), 2, ["Softmax"]).rows, outputs(Classifier(), form(), 2).rows)


def test_a_log_softmax_inside_a_network_is_no_head():
    model = Classifier(lambda s: torch.log_softmax(s, 1) + s)
    with evaluation(model, torch.device("cpu")):
        found, exact = outputs(model, form(), 2, []), model(images(2))
        assert (found.lower() - 1e-5 <= exact).all()
        assert (exact <= found.upper() + 1e-5).all()
        with pytest.raises((CheckFailed, InputError), match="does not end in"):
            outputs(model, form(), 2, ["LogSoftmax"])


@pytest.mark.parametrize(
    "wrong", [["Relu"], [], [["Softmax"]], "Softmax", ["Softmax"] * 9, ["Sigmoid"], ["Softmax", "ArgMax"]]
)
def test_a_claim_with_another_head_fails(wrong, tmp_path):
    model, batch = Classifier(HEADS["nn.Softmax"][0]), images(1)
    labels = Classifier()(batch).argmax(1)
    manifest = manifest_of(model, batch, labels, "B(0.001)")
    records = [record(0, int(labels[0]), "certified", margin=1e-6, grid=[1], tree=".")]
    for head in (["Softmax"], wrong):
        manifest["claim"]["head"] = head
        write_run(tmp_path / str(head)[:9], manifest, records)
        if head == ["Softmax"]:
            assert check(tmp_path / str(head)[:9], model, batch, labels).certified == 1
            continue
        with pytest.raises(CheckFailed, match="head|does not end in|an argmax"):
            check(tmp_path / str(head)[:9], model, batch, labels)


def test_the_names_are_those_that_the_prover_writes():
    assert {name for _, head in HEADS.values() for name in head} == {*NAMES}
    assert SHAPE == (1, 5, 5)
