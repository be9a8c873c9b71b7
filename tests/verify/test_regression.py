"""Certified output ranges: no sample leaves them, they are as tight as requested, and the evidence survives."""

import json
import math

import pytest
import torch
from torch import nn

from tests.support.small_regression import network, some_images
from tiltproof import (
    FGV,
    BranchAndBound,
    Execution,
    InputError,
    RunFolder,
    Tolerance,
    UniformGrid,
    certify,
    check,
    parse,
)
from tiltproof.verify import prover
from tiltproof.verify.api import certify_range
from tiltproof.verify.inner_range import InnerRange, OutputSampler
from tiltproof.verify.options import BOUNDS

TRANSFORMS = ["R(10)", "R(5), Sc(5)", "Tu(1), Tv(1)", "C(10), R(4)", "Sh(2), R(2), Sc(2), C(2), B(0.001)"]


def sampled(model, image, transform, count=3000):
    """Return the lowest and the highest output at random parameters and at the corners, in float64."""
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    unit = torch.rand(count, len(low), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    unit[: 2 ** len(low)] = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * len(low)).view(-1, len(low))
    with torch.no_grad():
        outputs = model.double()(transform.apply(image.double().expand(count, -1, -1, -1), low + (high - low) * unit))
    model.float()
    return outputs.amin(0), outputs.amax(0)


@pytest.mark.parametrize("method", ["affine", "hull"])
@pytest.mark.parametrize("text", TRANSFORMS)
def test_no_sampled_output_leaves_the_range(text, method):
    model, images, transform = network(2), some_images(), parse(text)
    certificate = certify_range(
        model,
        images,
        None,
        transform,
        bounds=BOUNDS[method],
        search=BranchAndBound(max_boxes=300),
        tolerance=Tolerance(relative=0.2),
    )
    for image, result in zip(images, certificate.results, strict=True):
        low, high = sampled(model, image, transform)
        assert (low >= torch.tensor(result.lower)).all()
        assert (high <= torch.tensor(result.upper)).all()
        for inner, outer in ((result.inner_lower, result.lower), (result.inner_upper, result.upper)):
            assert all(
                abs(a) < math.inf and (a - b) * (1 if outer is result.lower else -1) >= 0
                for a, b in zip(inner, outer, strict=True)
            )
        if result.complete and method == "affine":
            assert result.width <= 1.3 * result.inner_width + 1e-3


def test_the_inner_range_is_reached_at_its_parameters():
    model, images, transform = network(), some_images(), parse("R(20), B(0.05)")
    for image, result in zip(images, certify_range(model, images, None, transform).results, strict=True):
        ends = torch.tensor([result.lowest_at[0], result.highest_at[0]], dtype=torch.float64)
        with torch.no_grad():
            values = model.double()(transform.apply(image.double().expand(2, -1, -1, -1), ends))[:, 0]
        model.float()
        assert abs(float(values[0]) - result.inner_lower[0]) < 1e-9
        assert abs(float(values[1]) - result.inner_upper[0]) < 1e-9


def test_more_budget_makes_it_tighter_and_the_target_ends_the_work():
    model, images = network(), some_images()
    widths = []
    for boxes in (2, 16, 5000):
        certificate = certify_range(model, images, None, "R(20)", search=BranchAndBound(max_boxes=boxes))
        widths.append(certificate.summary()["mean_width"])
    assert widths[0] > widths[1] > widths[2]
    assert certificate.summary()["complete"] == 3
    assert all(result.boxes < 5000 for result in certificate.results)
    wide = certify_range(model, images, None, "R(20)", tolerance=Tolerance(absolute=1e6))
    assert all(result.complete and result.boxes == 2 for result in wide.results)


@pytest.mark.parametrize("boxes", [3, 4, 6, 9])
def test_boxes_that_wait_when_the_budget_ends_count(boxes):
    """One box at a time, deepest first: most of the range has only been bounded as part of larger boxes, or not at all."""
    model, images, transform = network(2, seed=5), some_images(), parse("R(-40:60)")
    certificate = certify_range(
        model, images, None, transform, search=BranchAndBound(max_boxes=boxes), execution=Execution(batch_size=1)
    )
    for image, result in zip(images, certificate.results, strict=True):
        low, high = sampled(model, image, transform)
        assert not result.complete
        assert (low >= torch.tensor(result.lower)).all()
        assert (high <= torch.tensor(result.upper)).all()


def test_exact_where_the_network_is_linear_in_brightness():
    """f = mean of the pixels under B(0.1): the range is known on paper, and checkers get half a percent of slack."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1)).eval()
    with torch.no_grad():
        model[1].weight.fill_(1 / 64)
        model[1].bias.zero_()
    images = some_images() * 0.5 + 0.2
    for image, result in zip(images, certify_range(model, images, None, "B(0.1)").results, strict=True):
        mean = float(image.double().mean())
        assert result.lower[0] <= mean - 0.1 <= result.lower[0] + 0.0051 * 0.2 + 1e-5
        assert result.upper[0] >= mean + 0.1 >= result.upper[0] - 0.0051 * 0.2 - 1e-5


def test_the_papers_way():
    model, images = network(), some_images()
    uniform = certify_range(model, images, None, "R(5)", bounds=FGV(), search=UniformGrid(8))
    assert all(result.boxes == 8 and result.tree == "8." and result.complete for result in uniform.results)
    better = certify_range(model, images, None, "R(5)", search=UniformGrid(8))
    for a, b in zip(uniform.results, better.results, strict=True):
        assert a.lower[0] < b.lower[0] < b.inner_lower[0] < b.inner_upper[0] < b.upper[0] < a.upper[0]


def test_errors_of_the_prediction_and_of_the_range():
    model, images = network(), some_images()
    with torch.no_grad():
        values = model(images)[:, 0] + torch.tensor([0.5, -0.25, 0.0])
    summary = certify_range(model, images, values, "R(10)").summary()
    assert summary["mean_absolute_error"] == pytest.approx(0.25, abs=1e-6)
    result = certify_range(model, images, values, "R(10)").results[0]
    assert result.certified_error == max(abs(result.lower[0] - result.value[0]), abs(result.upper[0] - result.value[0]))
    assert "mean_absolute_error" not in certify_range(model, images, None, "R(10)").summary()


def test_a_network_without_bounds_has_an_infinite_range(tmp_path):
    """A float32 evaluation may overflow: nothing is proved, and the run folder can express that too."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()
    with torch.no_grad():
        model[1].weight[1] = 1e36
    certificate = certify_range(
        model,
        some_images(),
        torch.zeros(3, 2),
        "R(8)",
        semantics="float32",
        search=BranchAndBound(max_boxes=8),
        run=RunFolder(tmp_path / "run"),
    )
    result = certificate.results[0]
    assert (result.lower[1], result.upper[1], result.complete) == (-math.inf, math.inf, False)
    assert math.isfinite(result.lower[0])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["mean_width"] is None
    assert summary["certified_mean_absolute_error"] is None
    assert json.loads(json.dumps(result.record()))["lower"][1] is None


def test_outputs_that_are_no_numbers_are_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1).double(), nn.Linear(1, 1).double()).eval()
    with torch.no_grad():
        for layer in model[1:]:
            layer.weight.fill_(1e200)
    with pytest.raises(InputError, match="image 0 are not finite"):
        certify_range(model, some_images().double(), None, "R(1)", search=BranchAndBound(max_boxes=8))


def test_an_output_that_does_not_move_leaves_room_for_a_checker(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[1].weight[0], model[1].weight[1] = 0.0, 0.1
        model[1].bias.fill_(1 / 3)
    images = torch.rand(2, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    certificate = certify_range(model, images, None, "B(0.1)", run=RunFolder(tmp_path / "run"))
    assert all(result.inner_width >= 0 for result in certificate.results)
    assert check(tmp_path / "run", model, images, None).images == 2


def test_a_run_folder_is_resumed(tmp_path):
    model, images = network(2), some_images(6)
    values = torch.zeros(6, 2)

    def run(folder, count, resume=False):
        return certify_range(
            model,
            images[:count],
            values[:count],
            "R(8)",
            execution=Execution(batch_size=2),
            run=RunFolder(folder, resume=resume),
        )

    whole = run(tmp_path / "whole", 6)
    with pytest.raises(KeyboardInterrupt):
        certify_range(
            model,
            images,
            values,
            "R(8)",
            execution=Execution(batch_size=2),
            run=RunFolder(tmp_path / "cut"),
            progress=_interrupt_after(tmp_path / "cut", 2),
        )
    assert not (tmp_path / "cut" / "summary.json").exists()
    resumed = run(tmp_path / "cut", 6, resume=True)

    def evidence(certificate):
        return [{k: v for k, v in record.items() if k != "seconds"} for record in certificate.records()]

    assert evidence(resumed) == evidence(whole)
    lines = (tmp_path / "cut" / "verdicts.jsonl").read_text().splitlines()
    assert [json.loads(line)["image"] for line in lines] == list(range(6))
    manifest = json.loads((tmp_path / "cut" / "manifest.json").read_text())
    assert manifest["claim"]["task"] == "regression"
    with pytest.raises(InputError, match="values differs"):
        certify_range(
            model,
            images,
            values + 1,
            "R(8)",
            execution=Execution(batch_size=2),
            run=RunFolder(tmp_path / "cut", resume=True),
        )


def _interrupt_after(folder, batches):
    def progress(_report):
        journal = folder / "batches.jsonl"
        if journal.exists() and journal.read_bytes().count(b"\n") >= batches:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": torch.zeros(2)}, "targets must be finite numbers of shape"),
        ({"targets": torch.tensor([0.0, math.nan, 0.0])}, "targets must be finite"),
        ({"targets": "R(5)"}, "targets must be a tensor, or None"),
        ({"tolerance": 0.05}, r"tolerance must be .*Tolerance\(relative=0.05\)"),
        ({"bounds": "exact"}, "bounds must be"),
        ({"attack": 24}, r"attack must be .*Attack\(samples=24\)"),
        ({"run": "runs/r2"}, "run must be"),
    ],
)
def test_what_cannot_be_meant_is_refused(change, words):
    given = {"model": network(), "images": some_images(), "targets": None, "transform": "R(5)"} | change
    with pytest.raises(InputError, match=words):
        certify_range(**given)


def test_arguments_in_the_wrong_order_are_refused():
    swapped = {"targets": "R(5)", "transform": torch.zeros(3)}
    with pytest.raises(InputError, match="Transform"):
        certify_range(network(), some_images(), **swapped)


def test_a_network_that_returns_images_is_refused():
    with pytest.raises(InputError, match=r"\[N, outputs\]"):
        certify_range(nn.Conv2d(1, 1, 3), some_images(), None, "R(5)")


def test_an_inner_range_is_widened_like_one_row_after_the_other():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 4, (50,), generator=generator)
    parameters = torch.rand(50, 2, dtype=torch.float64, generator=generator)
    outputs = torch.randint(0, 30, (50, 3), generator=generator).double()  # with ties
    prediction = torch.full((4, 3), 15.0, dtype=torch.float64)
    at = torch.zeros(4, 3, 2, dtype=torch.float64)
    known = InnerRange(prediction, prediction.clone(), prediction.clone(), at, at.clone())
    known.widen(rows, parameters, outputs)
    for image in range(4):
        for output in range(3):
            mine = outputs[rows == image, output]
            assert known.low[image, output] == min(15.0, float(mine.min()))
            assert known.high[image, output] == max(15.0, float(mine.max()))
            for best, place in ((known.low, known.lowest_at), (known.high, known.highest_at)):
                value, found = best[image, output], place[image, output]
                here = (rows == image) & (outputs[:, output] == value)
                assert any(torch.equal(found, each) for each in parameters[here]) or (value == 15.0 and not found.any())


def test_many_outputs_cost_passes_in_proportion(monkeypatch):
    """Outputs share backward passes while pairs are few, and no gradient step begins once the attack's time is over."""
    passes, steps = [], []
    refine, slopes = prover.refine_outputs, OutputSampler._slopes
    monkeypatch.setattr(prover, "refine_outputs", lambda *rest: passes.append(1) or refine(*rest))
    monkeypatch.setattr(OutputSampler, "_slopes", lambda *rest: steps.append(1) or slopes(*rest))
    budget = BranchAndBound(max_boxes=1, max_seconds=1e-9)
    result = certify_range(network(40), some_images(1), None, "R(3)", search=budget).results[0]
    assert len(result.lower) == 40
    assert len(passes) <= 4 * result.boxes
    assert not steps
    assert all(low <= inner for low, inner in zip(result.lower, result.inner_lower, strict=True))


def test_bounds_of_many_outputs_are_those_of_each_alone():
    """Outputs that share a pass have the bounds that they have one after the other, but for roundings."""
    model, images = network(5), some_images(2)
    together = certify_range(model, images, None, "R(4)", search=UniformGrid(2)).results
    for output in range(5):
        alone = nn.Sequential(*model[:-1], nn.Linear(12, 1)).eval()
        alone[-1].weight, alone[-1].bias = (
            nn.Parameter(p[output : output + 1].detach()) for p in model[-1].parameters()
        )
        for one, all_of in zip(
            certify_range(alone, images, None, "R(4)", search=UniformGrid(2)).results, together, strict=True
        ):
            assert math.isclose(one.lower[0], all_of.lower[output], abs_tol=1e-9)
            assert math.isclose(one.upper[0], all_of.upper[output], abs_tol=1e-9)


class OneValue(nn.Module):
    """Returns [N], as many regression networks do."""

    def __init__(self, end):
        super().__init__()
        self.body, self.end = network(1), end

    def forward(self, x):
        return self.end(self.body, x)


ONE_VALUE = {
    "squeezed": lambda body, x: body(x).squeeze(1),
    "viewed": lambda body, x: torch.sigmoid(body(x)).view(-1),
    "squeezed, then more": lambda body, x: 3 * torch.sigmoid(body(x).squeeze(-1)),
    "and back": lambda body, x: torch.tanh(body(x).squeeze(1)).unsqueeze(1),
    "mean": lambda body, x: torch.relu(body[0](x)).mean((1, 2, 3)),
}


@pytest.mark.parametrize("end", ONE_VALUE)
def test_one_value_for_each_image(end, tmp_path):
    """Outputs [N] are taken for [N, 1], by the prover and by the checker."""
    model, images, transform = OneValue(ONE_VALUE[end]).eval(), some_images(), parse("R(5)")
    values = torch.tensor([0.1, 0.2, 0.3])
    certificate = certify_range(
        model, images, values, transform, search=BranchAndBound(max_boxes=200), run=RunFolder(tmp_path)
    )
    for image, result in zip(images, certificate.results, strict=True):
        low, high = sampled(model, image, transform, 500)
        assert result.lower[0] <= low.min() <= high.max() <= result.upper[0]
        assert result.inner_width > 0
    assert check(tmp_path, model, images, values).images == 3
    with pytest.raises(InputError, match="at least two classes.*--task regression"):
        certify(model, images, torch.zeros(3, dtype=torch.int64), "R(5)")
