"""What a classifier keeps: options, their records, and what is refused."""

import json

import pytest
import torch

import tiltproof as tp
from tests.support.kept import KEPT, Mean, case
from tiltproof import InputError
from tiltproof.runs.curve import certified_curve
from tiltproof.verify.keep import keep_of


@pytest.mark.parametrize("name", KEPT)
def test_records_and_reprs_rebuild_it(name):
    keep = KEPT[name]
    assert keep_of(json.loads(json.dumps(keep.record()))) == keep
    assert eval(repr(keep), vars(tp)) == keep
    assert hash(keep) == hash(keep_of(keep.record()))
    assert keep.words


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tp.TopK(0), "at least one"),
        (lambda: tp.TopK(True), "at least one"),
        (lambda: tp.TopK(1.5), "at least one"),
        (lambda: tp.Allow([]), "names no class"),
        (lambda: tp.Allow("stop"), "list of classes"),
        (lambda: tp.Allow(3), "list of classes"),
        (lambda: tp.Allow(["stop"]), "numbers of classes"),
        (lambda: tp.Allow([-1]), "numbers of classes"),
        (lambda: tp.Forbid({}), "names no label"),
        (lambda: tp.Forbid({1: []}), "names no class"),
        (lambda: tp.Forbid({1: [0, 1]}), "its own images"),
        (lambda: tp.Linear([1.0, 2.0]), "C has the wrong shape"),
        (lambda: tp.Linear(torch.zeros(0, 3)), "C has the wrong shape"),
        (lambda: tp.Linear(torch.ones(2, 3, 4)), "each='label' or 'image'"),
        (lambda: tp.Linear(torch.ones(2, 3), each="label"), "C has the wrong shape"),
        (lambda: tp.Linear(torch.ones(2, 3), [1.0, 2.0, 3.0]), "d has the wrong shape"),
        (lambda: tp.Linear(torch.ones(2, 3), each="class"), "unknown kind of rows"),
        (lambda: tp.Linear([[0.0, 0.0]]), "zero"),
        (lambda: tp.Linear([[1e30, 0.0]]), "too large or too small"),
        (lambda: tp.Linear([[1e-30, 1.0]]), "too large or too small"),
        (lambda: tp.Linear([[float("nan"), 1.0]]), "not finite"),
        (lambda: tp.Linear([[1.0, 1.0]], float("inf")), "not finite"),
        (lambda: tp.Linear([[1.0, 1.0]], 1e30), "d is too large"),
        (lambda: tp.Linear("C"), "table of numbers"),
    ],
)
def test_what_cannot_be_meant(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (tp.TopK(5), "among all classes anyway"),
        (tp.Allow([5]), "does not have"),
        (tp.Forbid({5: [1]}), "does not have"),
        (tp.Allow([0, 1, 2, 3, 4]), "nothing to prove"),
        (tp.Forbid([0, 1, 2, 3, 4]), "no answer is left"),
        (tp.Linear(torch.ones(2, 4)), "C must have the shape \\[rows, 5\\]"),
        (tp.Linear(torch.ones(4, 2, 5), each="label"), "C must have the shape \\[5, rows, 5\\]"),
        (tp.Linear(torch.ones(5, 2, 5), each="image"), "C must have the shape \\[6, rows, 5\\]"),
        ("own", "object of its own class"),
        (tp.KeepOwn, "object of its own class"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_network(keep, words):
    model, images, labels = case(0)
    with pytest.raises(InputError, match=words):
        tp.certify(model, images, labels, "R(1)", keep=keep)


def test_labels_are_missing():
    model, images, _ = case(0)
    for keep in (None, tp.TopK(2)):
        with pytest.raises(InputError, match="labels are missing"):
            tp.certify(model, images, None, "R(1)", keep=keep)


def test_rows_of_each_image_stay_with_it(tmp_path):
    """In batches, in nested ranges, and in a run that is read again: only image k has outputs above its bound."""
    model, images = Mean((0.0, 1.0), (0.0, 0.0)).eval(), torch.tensor([0.2, 0.4, 0.6, 0.8]).view(4, 1, 1, 1)
    images, labels = images.expand(4, 1, 2, 2).contiguous(), torch.zeros(4, dtype=torch.int64)
    rows = torch.tensor([[[1.0, 0.0]]] * 4)
    keep = tp.Linear(rows, torch.tensor([[0.1], [0.36], [0.58], [0.7]]), each="image")
    run, execution = tp.RunFolder(tmp_path / "run"), tp.Execution(batch_images=3)
    certificate = tp.certify(model, images, labels, "B(0.05)", keep=keep, run=run, execution=execution)
    assert certificate.verdicts == ["certified", "falsified", "falsified", "certified"]
    assert tp.certify(model, images, labels, "B(0.05)", keep=keep).margins == certificate.margins
    points = certified_curve(model, images, labels, "B(0.05)", certificate, shares=(0.1, 0.6, 1.0), keep=keep)
    assert [point.certified for point in points] == [4, 3, 2]
    assert tp.check(tmp_path / "run", model, images, labels).certified == 2
    assert tp.report(tmp_path / "run", model, images, labels).is_file()


def test_a_certificate_says_what_is_kept():
    model, images, labels = case(0)
    certificate = tp.certify(model, images, labels, "R(1)", keep=tp.TopK(2))
    assert certificate.summary()["keep"] == "has the label among its 2 largest outputs"
    assert "2 largest outputs" in repr(certificate)
    assert "keep" not in tp.certify(model, images, labels, "R(1)").summary()
