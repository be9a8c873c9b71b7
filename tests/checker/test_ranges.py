"""A true regression run passes; overclaims are refused, and so is a network that treats bounds and tensors differently."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tests.support.range_case import TRANSFORM, range_record, read_records, write_ranges
from tests.support.small_regression import network, some_images
from tiltproof import FGV, BranchAndBound, RunFolder, UniformGrid
from tiltproof.checker import CheckFailed, check
from tiltproof.errors import InputError
from tiltproof.verify.api import certify_range

RUNS = {
    "one parameter": ("R(10)", 1, {}),
    "not around zero": ("R(5:10)", 2, {}),
    "two parameters": (TRANSFORM, 2, {}),
    "float32": (TRANSFORM, 2, {"semantics": "float32"}),
    "two resamplings": ("Tu(1), C(5), Tv(1)", 2, {"search": BranchAndBound(max_boxes=100)}),
    "five parameters": ("Sh(2), R(2), Sc(2), C(2), B(0.001)", 1, {"search": BranchAndBound(max_boxes=100)}),
    "padding": ("B(0.1), R(10); padding=reflect", 3, {"search": BranchAndBound(max_boxes=200)}),
    "uniform": ("R(5)", 2, {"search": UniformGrid(8)}),
    "uniform in float32": ("R(5), B(0.1)", 1, {"search": UniformGrid((4, 2)), "semantics": "float32"}),
    "as in the paper": ("R(5)", 1, {"search": UniformGrid(8), "bounds": FGV()}),
    "no budget at all": ("R(20), Sc(10)", 2, {"search": BranchAndBound(max_boxes=4)}),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_certify_range_writes_holds(tmp_path, name):
    transform, outputs, options = RUNS[name]
    model, images = network(outputs, seed=outputs), some_images()
    values = torch.rand(3, outputs, generator=torch.Generator().manual_seed(2))
    certificate = certify_range(model, images, values, transform, run=RunFolder(tmp_path), first=5, **options)
    steps = []
    report = check(tmp_path, model, images, values, progress=lambda *step: steps.append(step))
    assert (report.task, report.images, report.certified, report.counterexamples) == ("regression", 3, 3, 0)
    assert report.sub_boxes >= report.boxes > 0
    assert steps[-1] == (report.boxes, report.boxes)
    if isinstance(options.get("search"), UniformGrid):
        assert report.boxes == sum(result.boxes for result in certificate.results)


def test_outputs_that_do_not_move_have_inner_ranges_of_no_width(tmp_path):
    """The nearest pixels stay the same, and both inner ends are rounded away from the only output."""
    torch.manual_seed(0)
    model, images = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval(), torch.rand(2, 1, 4, 4)
    certificate = certify_range(model, images, None, "Tu(0.2); interpolation=nearest", run=RunFolder(tmp_path))
    assert certificate.summary()["mean_inner_width"] == 0
    assert check(tmp_path, model, images, None).certified == 2


def test_values_are_compared_exactly(tmp_path):
    model, images, values = network(1), some_images(), [0.1, -0.2, 0.3]  # not float32 numbers
    doubles = torch.tensor(values, dtype=torch.float64)
    certify_range(model, images, doubles, "R(2)", run=RunFolder(tmp_path / "with"))
    certify_range(model, images, None, "R(2)", run=RunFolder(tmp_path / "without"))
    for same in (doubles, doubles[:, None], values, [[value] for value in values]):
        check(tmp_path / "with", model, images, same)
    check(tmp_path / "without", model, images, None)
    for other in (None, doubles.float(), doubles + 1e-15, doubles[:2], doubles.expand(3, 3), doubles * torch.nan):
        with pytest.raises(CheckFailed, match="value"):
            check(tmp_path / "with", model, images, other)
    with pytest.raises(CheckFailed, match="the run has none"):
        check(tmp_path / "without", model, images, values)
    for nonsense in ("abc", [[1.0], [2.0, 3.0], [4.0]], torch.tensor(1.0), [None] * 3):
        with pytest.raises(InputError):
            check(tmp_path / "with", model, images, nonsense)


def mean_of_pixels(size=64, weight=1.0):
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, 1)).eval()
    with torch.no_grad():
        model[1].weight.fill_(weight / size)
        model[1].bias.zero_()
    return model


@pytest.mark.parametrize(("step", "holds"), [(1e-9, True), (-1e-9, False), (-1e-4, False)])
@pytest.mark.parametrize("end", ["lower", "upper"])
def test_known_on_paper(tmp_path, end, step, holds):
    """The mean of the pixels under B(0.1) is exactly mean +- 0.1; a range may be that wide, but no narrower."""
    model, images = mean_of_pixels(), some_images(1) * 0.5 + 0.2
    mean = images.double().mean().item()
    record = range_record(0, prediction=mean, lower=mean - 0.11, upper=mean + 0.11, lowest_at=[0.0], highest_at=[0.0])
    sign = -1 if end == "lower" else 1
    record[end] = [mean + sign * (0.1 + step)]
    write_ranges(tmp_path, model, images, "B(0.1)", [record])
    if holds:
        check(tmp_path, model, images, None)
    else:
        with pytest.raises(CheckFailed, match="leaves the range|could not be re-proved"):
            check(tmp_path, model, images, None)


@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_float32_evaluations_need_more_room_than_real_numbers(tmp_path, semantics):
    model, images = mean_of_pixels(), some_images(1) * 0.5 + 0.2
    mean = images.double().mean().item()
    for room, holds in ((1e-10, semantics == "real"), (1e-4, True)):
        record = range_record(0, prediction=mean, lower=mean - 0.1 - room, upper=mean + 0.1 + room)
        write_ranges(tmp_path, model, images, "B(0.1)", [record], semantics)
        if holds:
            check(tmp_path, model, images, None)
        else:
            with pytest.raises(CheckFailed, match="could not be re-proved"):
                check(tmp_path, model, images, None)


def test_an_end_without_a_claim_needs_no_bound(tmp_path):
    """In float32 the sum may overflow, so nothing can be proved: an infinite end passes, a finite one is refused."""
    model, images = mean_of_pixels(weight=1e38), torch.full((1, 1, 8, 8), 0.5)
    reached = {"inner_lower": 5e37, "inner_upper": 4.9e37, "lowest_at": [0.0], "highest_at": [0.0]}
    for upper, holds in ((None, True), (9e37, False)):
        record = range_record(0, prediction=model(images).item(), lower=None, upper=upper, **reached)
        write_ranges(tmp_path, model, images, "B(0.1)", [record], "float32")
        assert json.loads((tmp_path / "summary.json").read_text())["mean_width"] is None
        if holds:
            check(tmp_path, model, images, None)
        else:
            with pytest.raises(CheckFailed, match="could not be re-proved"):
                check(tmp_path, model, images, None)


class TwoFaced(nn.Module):
    """Answers bounds differently from images."""

    def __init__(self, inner, by):
        super().__init__()
        self.inner, self.by = inner, by

    def forward(self, x):
        return self.inner(x) + (self.by if isinstance(x, torch.Tensor) else 0.0)


@pytest.mark.parametrize("by", [1.0, 1e-3, float("nan"), float("inf")])
def test_a_forward_pass_that_treats_bounds_otherwise_than_images(tmp_path, by):
    honest, images = network(1), some_images()
    certify_range(honest, images, None, "R(5)", run=RunFolder(tmp_path))
    model = TwoFaced(honest, 0.0)
    records = read_records(tmp_path)
    write_ranges(tmp_path, model, images, "R(5)", records)
    check(tmp_path, model, images, None)
    model.by = by
    with pytest.raises(CheckFailed, match="outside its bounds"):
        check(tmp_path, model, images, None)


class BatchDependent(nn.Module):
    """Makes an answer depend on the other images of the batch."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * (1.0 if x.shape[0] == 1 else 3.0)


def test_answers_that_depend_on_the_batch(tmp_path):
    honest, images = network(1), some_images()
    certify_range(honest, images, None, "R(5)", run=RunFolder(tmp_path))
    records = read_records(tmp_path)
    model = BatchDependent(honest)
    write_ranges(tmp_path, model, images, "R(5)", records)
    with pytest.raises(CheckFailed):
        check(tmp_path, model, images, None)


def test_other_numbers_of_outputs(tmp_path):
    certify_range(network(2), some_images(), None, "R(5)", run=RunFolder(tmp_path))
    records = read_records(tmp_path)
    for outputs in (1, 3):
        model = network(outputs)
        write_ranges(tmp_path, model, some_images(), "R(5)", records)
        with pytest.raises(CheckFailed, match="2 outputs"):
            check(tmp_path, model, some_images(), None)
    model = nn.Sequential(nn.Conv2d(1, 2, 3))
    write_ranges(tmp_path, model, some_images(), "R(5)", records)
    with pytest.raises(InputError, match="one row of at least one output"):
        check(tmp_path, model, some_images(), None)
