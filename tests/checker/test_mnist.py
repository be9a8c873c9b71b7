"""The bundled network under R(30): a true run of a few digits, checked with the default settings."""

from __future__ import annotations

import pytest

from tests.support.run_folder import manifest_of, record, write_run
from tiltproof.checker import CheckFailed, check
from tiltproof.data import load as load_data
from tiltproof.models import load as load_model


@pytest.fixture(scope="module")
def digits():
    images, labels = load_data("mnist-sample")
    return load_model("mnist-r30"), images[:3], labels[:3]


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("grid", [4, 16])
def test_boxes_that_need_halving_are_halved(digits, tmp_path, semantics, grid):
    model, images, labels = digits
    records = [record(k, int(labels[k]), "certified", margin=0.01, grid=[grid], tree=f"{grid}.") for k in range(3)]
    write_run(tmp_path, manifest_of(model, images, labels, "R(30)", semantics), records)
    report = check(tmp_path, model, images, labels)
    assert (report.boxes, report.certified) == (3 * grid, 3)
    assert report.sub_boxes > report.boxes


def test_a_false_claim_about_a_digit(digits, tmp_path):
    model, images, labels = digits
    records = [record(k, int(labels[k]), "certified", margin=0.01, grid=[64], tree="64.") for k in range(3)]
    write_run(tmp_path, manifest_of(model, images, labels, "R(90)"), records)
    with pytest.raises(CheckFailed):
        check(tmp_path, model, images, labels)


def test_several_parameters(digits, tmp_path):
    model, images, labels = digits
    records = [record(0, int(labels[0]), "certified", margin=0.01, grid=[1, 2, 1, 1], tree="b3.")]
    write_run(tmp_path, manifest_of(model, images[:1], labels[:1], "Sc(2), R(3), C(5), B(0.01)"), records)
    assert check(tmp_path, model, images[:1], labels[:1]).boxes == 3
