"""Searches in several threads of one process: the evidence of one after the other, and no thread left behind."""

import threading

import pytest
import torch
from digits import TRANSFORM, evidence, problem, run
from small_regression import network, pictures

from tiltproof import InputError, certify, certify_range
from tiltproof.certify.batch import ClassJob
from tiltproof.cluster import ThreadWorkers
from tiltproof.network import arithmetic


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_evidence_is_that_of_one_search_after_the_other(tmp_path, count):
    alone = run(tmp_path / "alone", batch_images=3)
    before = threading.active_count()
    model, images, labels = problem()
    options = {"batch_size": 2 * count, "batch_images": 3, "workers": ThreadWorkers(count)}
    shared = certify(model, images, labels, TRANSFORM, out=tmp_path / "shared", **options)
    assert shared.verdicts == alone.verdicts
    assert evidence(tmp_path / "shared") == evidence(tmp_path / "alone")
    assert threading.active_count() == before


def test_ranges_too():
    model, images = network(), pictures(4)
    alone = certify_range(model, images, "R(5)", batch_images=2, batch_size=4)
    shared = certify_range(model, images, "R(5)", batch_images=2, batch_size=8, workers=ThreadWorkers(2))
    assert [(each.lower, each.upper, each.tree) for each in shared.results] == [
        (each.lower, each.upper, each.tree) for each in alone.results
    ]


def test_two_searches_are_under_way_at_once(monkeypatch):
    """Each waits for the other before it goes on: one after the other they would wait for ever."""
    meet, batch = threading.Barrier(2, timeout=60), ClassJob.batch

    def met(self, inputs, grid, *rest):
        if grid is not None:  # all but the first, which finds the grid
            meet.wait()
        return batch(self, inputs, grid, *rest)

    monkeypatch.setattr(ClassJob, "batch", met)
    model, images, labels = problem()
    found = certify(model, images[:9], labels[:9], TRANSFORM, batch_images=3, workers=ThreadWorkers(2))
    assert len(found.results) == 9


def test_an_error_ends_the_run_and_the_other_search(monkeypatch):
    batch, ended = ClassJob.batch, []

    def broken(self, inputs, grid, pairs, reporter):
        if self.first == 3:
            raise RuntimeError("a wrong rule")
        try:
            while grid is not None:  # all but the first: at work until it is told to stop
                reporter.report()
        finally:
            ended.append(self.first)
        return batch(self, inputs, grid, pairs, reporter)

    monkeypatch.setattr(ClassJob, "batch", broken)
    model, images, labels = problem()
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="a wrong rule"):
        certify(model, images, labels, TRANSFORM, batch_images=3, workers=ThreadWorkers(3))
    assert threading.active_count() == before
    assert ended[0] == 0


def test_the_settings_of_the_proof_hold_in_the_threads(monkeypatch):
    seen, batch = [], ClassJob.batch

    def looked(self, *rest):
        strict = all(getattr(owner, name) == value for owner, name, value in arithmetic._switches())
        seen.append((arithmetic._unfold_bytes.get(), strict, torch.is_autocast_enabled("cpu")))
        return batch(self, *rest)

    monkeypatch.setattr(ClassJob, "batch", looked)
    model, images, labels = problem()
    token = arithmetic._unfold_bytes.set(12_345)
    try:
        with torch.autocast("cpu"):
            certify(model, images[:4], labels[:4], TRANSFORM, batch_images=2, workers=ThreadWorkers(2))
    finally:
        arithmetic._unfold_bytes.reset(token)
    assert seen == [(12_345, True, False)] * 2


def test_refused():
    with pytest.raises(InputError, match="at least one thread"):
        ThreadWorkers(0)
    model, images, labels = problem()
    with pytest.raises(InputError, match="limit of memory"):
        certify(model, images, labels, TRANSFORM, memory="2GB", workers=ThreadWorkers(2))
