"""The largest proved range: both of its ends against exact ones, in any number of parameters, resumed, and checked again."""

import dataclasses
import itertools
import json
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.digits import problem
from tests.support.run_folder import write_run
from tiltproof import (
    AffineBounds,
    Attack,
    BranchAndBound,
    CheckFailed,
    Execution,
    InputError,
    KeepOwn,
    RunFolder,
    UniformGrid,
    Verdict,
    certified_radius,
    certify,
    check,
    parse,
)
from tiltproof.checker.tiling import boxes, read_transform, within
from tiltproof.runs.reader import read_finished
from tiltproof.verify.radius_results import RadiusResult, radius_curve
from tiltproof.verify.radius_search import RadiusSearch, RadiusSpec
from tiltproof.verify.shares import Shares, nested, scaled, upper_share
from tiltproof.verify.state import Boxes, Tiling

GREYS = (0.9, 0.65, 0.5625, 0.505, 0.4)
ENDS = st.floats(1e-3, 1e3)
shares = st.floats(1e-6, 1)
exactly = settings(derandomize=True, deadline=None, database=None, max_examples=60)


def brightness_network():
    """Build a network in double precision that predicts class 1 if the mean is above one half."""
    layer = nn.Linear(16, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [1.0]]).expand(2, 16) / 16)
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    return nn.Sequential(nn.Flatten(), layer).eval()


def greys(*values):
    images = torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    return brightness_network(), images, torch.ones(len(values), dtype=torch.int64)


def run(text="B(0.3)", values=GREYS, **options):
    return certified_radius(*greys(*values), text, **options)


def test_both_ends_of_the_radius_enclose_the_exact_one():
    certificate = run(gap=0.001)
    assert certificate.verdicts == ["certified", "falsified", "falsified", "falsified", "misclassified"]
    assert certificate.radii[0] == (0.3, None)
    for (lower, upper), grey in zip(certificate.radii[1:4], GREYS[1:4], strict=True):
        exact = Fraction(grey) - Fraction(1, 2)
        assert Fraction(lower) <= exact < Fraction(upper), grey
        assert upper - lower <= 0.001
    assert certificate.radii[4][0] == 0


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("B(-0.2:0.4)", Fraction(0.0625) / Fraction(0.2)),  # darker breaks it, at this share of the lower end
        ("B(-0.8:0.1)", Fraction(0.0625) / Fraction(0.8)),
        ("B(-0.1:0)", Fraction(0.0625) / Fraction(0.1)),
        ("B(0:0.4)", Fraction(1)),  # brighter never does
    ],
)
def test_each_end_shrinks_towards_the_identity(text, exact):
    """0 need not be in the middle of the range, and may be an end of it."""
    certificate = run(text, values=(0.5625,))
    result = certificate.results[0]
    assert Fraction(result.share) <= exact
    assert exact - Fraction(result.share) < Fraction(1, 500)
    if exact < 1:
        assert exact < upper_share(result.counterexample, parse(text)) < exact + Fraction(1, 500)


def test_all_parameters_share_one_radius():
    """Brightness b and contrast c move a grey of g to (1 + c) g + b: at share t the darkest is (1 - 0.2 t) g - 0.1 t."""
    certificate = run("C(20), B(0.1)", values=(0.5625, 0.9))
    first, second = certificate.results
    grey = Fraction(0.5625)
    darkest = (grey - Fraction(1, 2)) / (grey / 5 + Fraction(0.1))
    assert Fraction(first.share) <= darkest < upper_share(first.counterexample, parse("C(20), B(0.1)"))
    assert darkest - Fraction(first.share) < Fraction(1, 200)
    assert second.share == 1
    assert certificate.records()[0]["proved"][1] == [-scaled(first.share, 0.1), scaled(first.share, 0.1)]


def test_no_range_may_leave_the_identity_out():
    with pytest.raises(InputError, match=r"measured from the image as it is.*B\(0:0.2\)"):
        run("B(0.1:0.2)")


def test_noise_alone_is_refused():
    with pytest.raises(InputError, match="noise has none"):
        run("Linf(0.01)")


@pytest.mark.parametrize("epsilon", [0.05, 0.0625, 0.1, 1e-6])
def test_noise_stays_whole_at_every_share(epsilon, tmp_path):
    """A grey of g, made darker by b and moved by epsilon, is right for b < g - 1/2 - epsilon: exactly."""
    greys_ = (0.95, 0.65, 0.5625, 0.61)
    model, images, labels = greys(*greys_)
    certificate = certified_radius(
        model, images, labels, f"B(0.3), Linf({epsilon})", gap=0.001, run=RunFolder(tmp_path / "run")
    )
    for (lower, upper), grey in zip(certificate.radii, greys_, strict=True):
        exact = Fraction(grey) - Fraction(1, 2) - Fraction(epsilon)
        if exact <= 0:  # the identity is a counterexample with noise
            assert lower == 0
            assert upper is not None
            assert upper < 0.001
        elif exact < Fraction(0.3):
            assert Fraction(lower) <= exact < Fraction(upper), grey
            assert upper - lower <= 0.001
        else:
            assert (lower, upper) == (0.3, None)
    report = check(tmp_path / "run", model, images, labels)
    assert report.task == "radius"
    whole = run(values=greys_, gap=0.001)  # without noise no radius is smaller
    assert all(noisy.share <= plain.share for noisy, plain in zip(certificate.results, whole.results, strict=True))


def test_a_forged_share_of_a_noisy_run_is_detected(tmp_path):
    model, images, labels = greys(0.65)
    certificate = certified_radius(model, images, labels, "B(0.3), Linf(0.05)", run=RunFolder(tmp_path / "run"))
    share = certificate.results[0].share
    assert 0.3 * share == pytest.approx(0.1, abs=0.001)
    plain = certified_radius(model, images, labels, "B(0.3)", run=RunFolder(tmp_path / "plain")).results[0]
    assert plain.share > share
    manifest = json.loads((tmp_path / "plain" / "manifest.json").read_text())
    manifest["claim"]["transform"] = "B(0.3), Linf(0.05)"
    record = json.loads((tmp_path / "plain" / "verdicts.jsonl").read_text())
    write_run(tmp_path / "forged", manifest, [record])
    with pytest.raises(CheckFailed, match="box"):
        check(tmp_path / "forged", model, images, labels)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"gap": 0}, "a positive number"),
        ({"gap": math.nan}, "a positive number"),
        ({"search": UniformGrid(4)}, "halving boxes"),
    ],
)
def test_bad_options_are_explained(options, what):
    with pytest.raises(InputError, match=what):
        run(**options)


def test_whatever_the_budget_both_ends_hold():
    """An image that is given up keeps what was proved outward so far, and says why."""
    for most in (1, 3, 6, 12, 25):
        certificate = run("R(60), B(0.3)", values=(0.65,), search=BranchAndBound(max_boxes=most), gap=1e-6)
        (lower, upper), (result,) = certificate.radii[0], certificate.results
        whole = Fraction(0.65) - Fraction(1, 2)
        assert Fraction(scaled(result.share, 0.3)) <= whole
        assert upper is None or lower < upper
        assert result.verdict is Verdict.FALSIFIED or result.reason == "boxes"


def test_no_sample_within_the_proved_range_breaks_a_digit():
    model, images, labels = problem()
    transform = parse("R(-40:90), Sc(30)")
    certificate = certified_radius(model, images, labels, transform, search=BranchAndBound(max_boxes=300))
    proved = [result for result in certificate.results if result.share > 0]
    assert len(proved) >= 2
    generator = torch.Generator().manual_seed(1)
    for result in proved:
        ends = Shares(transform).ends(torch.tensor([result.share], dtype=torch.float64))
        low, high = (end[0] for end in ends)
        points = low + (high - low) * torch.rand(200, 2, generator=generator, dtype=torch.float64)
        points[:4] = torch.tensor([*itertools.product(*zip(low.tolist(), high.tolist(), strict=True))])
        image = images[result.image].double().expand(len(points), -1, -1, -1)
        with torch.no_grad():
            answers = model.double()(transform.apply(image, points)).argmax(1)
        model.float()
        assert bool((answers == result.label).all()), result.image
        if result.counterexample is not None:
            assert upper_share(result.counterexample, transform) > result.share


def test_certified_for_the_whole_range_is_what_certify_says():
    model, images, labels = problem()
    certificate, whole = (f(model, images, labels, "R(10)") for f in (certified_radius, certify))
    assert certificate.verdicts == whole.verdicts


# The arithmetic of shares: claims inward, what is bounded or found outward.


@exactly
@given(ENDS, ENDS, st.integers(0, 12), st.data())
def test_a_box_begins_no_later_than_is_said(low, high, level, data):
    """Neither the float edges nor the exact ones of a box reach into the share at which it is said to begin."""
    text = f"B({-low!r}:{high!r})"
    transform = parse(text)
    index = data.draw(st.integers(0, 2**level - 1))
    box = Boxes(torch.tensor([[index]]), torch.tensor([[level]]))
    edges = Tiling(transform, (1,)).bounds(box)
    (begin,) = Shares(transform).of_boxes(*edges).tolist()
    exact = read_transform(text)
    first, last = (
        Fraction(-low) + (Fraction(high) + Fraction(low)) * Fraction(k, 2**level) for k in (index, index + 1)
    )
    for a, b in ((first, last), (Fraction(float(edges[0])), Fraction(float(edges[1])))):
        assert a >= Fraction(begin) * Fraction(high) or b <= -Fraction(begin) * Fraction(low) or begin == 0
    assert begin == 0 or within(((index, 2**level),), exact, begin) is None


@exactly
@given(ENDS, ENDS, st.floats(-1, 1), shares)
def test_points_and_ends_are_rounded_outward(low, high, position, share):
    transform = parse(f"B({-low!r}:{high!r})")
    point = position * (low if position < 0 else high)
    arithmetic = Shares(transform)
    exact = Fraction(point) / Fraction(-low if point < 0 else high)
    assert Fraction(float(arithmetic.of_points(torch.tensor([[point]], dtype=torch.float64)))) >= exact
    assert Fraction(upper_share((point,), transform)) >= exact
    below, above = (float(end) for end in arithmetic.ends(torch.tensor([share], dtype=torch.float64)))
    assert Fraction(below) <= -Fraction(share) * Fraction(low)
    assert Fraction(above) >= Fraction(share) * Fraction(high)
    assert Fraction(scaled(share, high)) <= Fraction(share) * Fraction(high) <= Fraction(scaled(share, high, up=True))
    inner = nested(transform, share)
    assert Fraction(inner.high[0]) <= Fraction(share) * Fraction(high)
    assert Fraction(inner.low[0]) >= -Fraction(share) * Fraction(low)


def test_six_digits_lie_inside_even_where_the_next_float_does_not():
    """0.02 of 5 ends between a tenth and the float next to it: six digits must not name that one."""
    assert Fraction(1, 10) < Fraction(0.02) * 5 < Fraction(0.1)
    assert nested(parse("B(5)"), 0.02).high[0] < 0.1


@exactly
@given(shares, st.integers(1, 4), st.integers(1, 4), st.data())
def test_the_boxes_to_prove_cover_the_share(share, pieces, finer, data):
    """What the checker proves of a tiling covers the claimed share: at corners, at edges of boxes and at random."""
    text, grid = "B(-0.3:0.7), C(-50:10)", [pieces, finer]
    transform = read_transform(text)
    tree = f"{pieces * finer}.".removeprefix("1") if pieces * finer == 1 else f"{pieces * finer}."
    parts = [part for box in boxes(grid, tree) if (part := within(box, transform, share))]
    t = Fraction(share)
    unit = st.fractions(0, 1)
    for position in [(0, 0), (0, 1), (1, 0), (1, 1), data.draw(st.tuples(unit, unit))]:
        point = [
            t * (Fraction(low) + p * (Fraction(high) - Fraction(low)))
            for p, low, high in zip(position, transform.low, transform.high, strict=True)
        ]
        assert any(all(Fraction(a) <= x <= Fraction(b) for a, b, x in zip(*ends, point, strict=True)) for ends in parts)


# On disk: checked, forged, resumed.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("radius") / "run"
    run("B(-0.2:0.3), C(10)", run=RunFolder(path))
    return path


def test_the_checker_proves_every_radius_again(folder):
    model, images, labels = greys(*GREYS)
    report = check(folder, model, images, labels)
    assert (report.task, report.certified, report.counterexamples) == ("radius", 4, 3)
    finished = read_finished(folder)
    assert finished.radii
    assert all(isinstance(result, RadiusResult) for result in finished.results)
    counts = [(point.certified, point.falsified, point.unknown, point.misclassified) for point in finished.curve]
    assert counts[0] == (4, 0, 0, 1)
    assert counts[-1] == (1, 3, 0, 1)
    assert all(sum(each) == 5 for each in counts)
    assert [each[0] for each in counts] == sorted((each[0] for each in counts), reverse=True)


def forged(folder, tmp_path, row, **changes):
    """Copy a run with one record changed, all digests made right again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    records = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    records[row] |= changes
    write_run(tmp_path / "forged", manifest, records)
    return tmp_path / "forged"


def test_a_forged_share_is_refused(folder, tmp_path):
    case = greys(*GREYS)
    records = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert check(forged(folder, tmp_path, 0), *case).certified == 4, "nothing is changed"
    share = records[1]["share"]
    for row, changes, what in (
        (1, {"share": share * 1.02}, "could not be re-proved"),
        (1, {"share": 1.0}, "is proved for a verdict"),
        (1, {"share": 1.5}, "share"),
        (1, {"share": -0.1}, "share"),
        (1, {"share": None}, "share"),
        (1, {"share": 0.0}, "no share of the range"),
        (0, {"share": 0.9}, "is proved for a verdict"),
        (4, {"share": 0.1}, "misclassified|tree"),
        (1, {"tree": records[1]["tree"][:-2]}, "tiling"),
        (
            1,
            {"verdict": "certified", "share": 1.0, "counterexample": None, "margin": 0.1},
            "could not be re-proved|margin",
        ),
    ):
        with pytest.raises(CheckFailed, match=what):
            check(forged(folder, tmp_path, row, **changes), *case)


def test_a_share_has_no_place_in_other_runs(tmp_path):
    case = greys(*GREYS)
    certify(*case, "B(0.1)", run=RunFolder(tmp_path / "run"))
    with pytest.raises(CheckFailed, match="whole one"):
        check(forged(tmp_path / "run", tmp_path, 0, share=0.5), *case)


class Stopped(Exception):
    pass


def test_a_stopped_run_goes_on(tmp_path):
    def stop(progress):
        if progress.done > 2:
            raise Stopped

    settings = {"execution": Execution(batch_images=2), "attack": Attack(samples=4)}
    with pytest.raises(Stopped):
        run(run=RunFolder(tmp_path / "run"), progress=stop, **settings)
    assert (tmp_path / "run" / "batches.jsonl").read_text().count("\n") == 1
    again = run(run=RunFolder(tmp_path / "run", resume=True), **settings)
    whole = run(**settings)
    assert [timeless(each) for each in again.results] == [timeless(each) for each in whole.results]
    with pytest.raises(InputError, match="task differs"):
        certify(*greys(*GREYS), "B(0.3)", run=RunFolder(tmp_path / "run", resume=True))
    check(tmp_path / "run", *greys(*GREYS))


def timeless(result):
    return dataclasses.replace(result, seconds=0.0, margin=round(result.margin, 6))


def test_own_answers_have_radii_too(tmp_path):
    model, images, _ = greys(*GREYS)
    certificate = certified_radius(model, images, None, "B(0.4)", keep=KeepOwn(), run=RunFolder(tmp_path / "run"))
    assert certificate.count(Verdict.MISCLASSIFIED) == 0
    assert certificate.radii[4][0] == pytest.approx(0.1, abs=0.001)
    assert check(tmp_path / "run", model, images, None).certified == 5


# The curve, and what a search must not leave out.


def test_the_curve_falls_in_steps():
    certificate = run(gap=0.001)
    curve = certificate.curve()
    assert [curve[0].radius, curve[-1].radius] == [0.0, 0.3]
    assert (curve[0].certified, curve[0].possible) == (4, 4)
    assert (curve[-1].certified, curve[-1].possible) == (1, 1)
    for point, after in itertools.pairwise(curve):
        assert point.radius < after.radius
        assert point.certified >= after.certified
        assert point.possible >= after.possible
    assert all(point.certified <= point.possible for point in curve)
    assert radius_curve(certificate.results, parse("B(0.3)")) == curve


def test_a_search_that_leaves_boxes_out_says_so(monkeypatch):
    """A shell that is forgotten leaves the sum of all boxes incomplete."""
    nearest = RadiusSearch._nearest

    def forget(self, state, size):
        pairs = nearest(self, state, size)
        return pairs[slice(0, -1)] if len(pairs) > 3 else pairs

    monkeypatch.setattr(RadiusSearch, "_nearest", forget)
    with pytest.raises(RuntimeError, match="leaves out some parameters"):
        run("R(30)", bounds=AffineBounds())


def test_a_proof_at_a_counterexample_is_refused(monkeypatch):
    """Bounds that prove everything contradict the attack."""
    bound = RadiusSpec.bound

    def everything(*args):
        outcome = bound(*args)
        outcome.bound.fill_(1.0)
        return outcome

    monkeypatch.setattr(RadiusSpec, "bound", everything)
    with pytest.raises(RuntimeError, match="contradicts its proof"):
        run()
