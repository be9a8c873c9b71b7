"""Every answer is as recorded, bit for bit (see `record.py`). The short test takes every third job."""

from __future__ import annotations

import json
import warnings

import pytest

from tests.golden.record import FILE, differences, encoded, jobs, processor, processor_of, written

RECORDED = json.loads(FILE.read_text(encoding="utf-8"))
SHORT = sorted(jobs())[::3]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SHORT else pytest.mark.slow) for n in jobs()])
def test_answers_are_as_recorded(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no TensorBoard")
        made = encoded(jobs()[name]())
    assert differences(RECORDED["rows"][name], made, processor_of(RECORDED, name) == processor()) == []


def test_the_record_is_of_these_jobs():
    assert sorted(RECORDED["rows"]) == sorted(jobs())
    names = {name for name in RECORDED["rows"] if name.startswith(("mnist", "cifar", "verdicts"))}
    answers = {row["exact"][0] for name in names for row in RECORDED["rows"][name]}
    assert answers == {"certified", "unknown", "falsified", "misclassified"}
    assert written(RECORDED) == FILE.read_text(encoding="utf-8")


def test_a_difference_is_seen():
    row = {"exact": ["certified", 3], "bits": [(0.5).hex()]}
    for other in ({"exact": ["certified", 4]}, {"bits": [(0.5 + 2**-50).hex()]}):
        assert differences([row], [row | other], same_processor=True)
    assert not differences([row], [row | {"bits": [(0.5 + 2**-50).hex()]}], same_processor=False)
    assert differences([row], [row | {"bits": [(0.6).hex()]}], same_processor=False)
