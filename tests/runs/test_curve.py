"""The curve over nested ranges: shrinking, monotone, in agreement with direct runs, and tied to its run."""

import json
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tiltproof import FGV, RunFolder, UniformGrid
from tiltproof.errors import InputError
from tiltproof.runs import curve
from tiltproof.runs.curve import CURVE, certified_curve, nested, read_curve, write_curve
from tiltproof.transforms import TranslationU as Translation
from tiltproof.transforms import parse
from tiltproof.verify.api import certify
from tiltproof.verify.state import leaves

SHARES = (0.1, 0.5, 1.0)


def brightness_network():
    """Build a network that predicts class 1 if the mean is above one half."""
    layer = nn.Linear(16, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [1.0]]).expand(2, 16) / 16)
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    return nn.Sequential(nn.Flatten(), layer).eval()


@pytest.fixture
def case():
    greys = torch.tensor([0.9, 0.65, 0.55, 0.505, 0.4])
    images, labels = greys.view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous(), torch.ones(5, dtype=torch.int64)
    return brightness_network(), images, labels


def test_ranges_shrink_towards_no_change():
    assert str(nested(parse("R(-10:30), B(0.2); padding=border"), 0.5)) == "R(-5:15), B(0.1); padding=border"
    assert str(nested(parse("R(10:30)"), 0.1)) == "R(10:12)", "0 is outside: towards the end that changes least"
    assert str(nested(parse("Yaw(-4:8@300)"), 0.5)) == "Yaw(-2:4@300)"
    assert str(nested(parse("R(8); interpolation=nearest"), 0.5)) == "R(4); interpolation=nearest"
    assert nested(parse("R(30)"), 1.0) == parse("R(30)")


@settings(derandomize=True, deadline=None, database=None)
@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e6), st.lists(st.floats(1e-3, 1), min_size=1, max_size=6))
def test_no_smaller_range_leaves_a_larger_one(low, width, shares):
    """Digits are cut off towards zero change: a proof for a range then covers every smaller share of it."""
    outer = Translation(low, low + width)
    for share in sorted(shares, reverse=True):
        inner = nested(outer, share)
        larger = nested(outer, min(1.0, share * (1 + 1e-7)))
        for whole in (outer, larger):
            assert whole.low[0] <= inner.low[0] <= inner.high[0] <= whole.high[0], (share, str(outer))


def test_a_share_of_almost_one_claims_no_more_than_was_proved():
    """A ramp's pixel answers right up to a shift of 1.2345685; six digits of the range's end, rounded to the nearest, lie beyond."""
    ramp, model = (torch.arange(8) / 8).view(1, 1, 1, 8).double(), nn.Sequential(nn.Flatten(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].weight[0, 4] = 8.0
        model[1].bias.copy_(torch.tensor([0, 4 - 1.2345685]))
    labels, text = torch.tensor([0]), "Tu(0:1.2345671)"
    certificate = certify(model.eval(), ramp, labels, text)
    (point,) = certified_curve(model, ramp, labels, text, certificate, shares=(0.9999999,))
    assert point.certified == 1
    assert parse(point.transform).high[0] < 1.2345671


def test_a_range_that_leaves_a_larger_one_is_never_used(case, monkeypatch):
    monkeypatch.setattr(curve, "nested", lambda *_: parse("B(0.21)"))
    with pytest.raises(RuntimeError, match="is not inside of"):
        certified_curve(*case, "B(0.2)", certify(*case, "B(0.2)"), shares=SHARES)


def test_a_certificate_of_something_else_has_no_curve(case):
    certificate = certify(*case, "B(0.2)")
    for images, text in ((case[1], "B(0.3)"), (case[1][:2], "B(0.2)")):
        with pytest.raises(InputError, match="not one of these images over this range"):
            certified_curve(case[0], images, case[2], text, certificate)


def test_every_point_is_what_a_run_of_its_own_says(case):
    certificate = certify(*case, "B(0.2)")
    points = certified_curve(*case, "B(0.2)", certificate, shares=SHARES)
    assert [point.share for point in points] == list(SHARES)
    for point in points:
        direct = certify(*case, point.transform)
        counts = [sum(v == word for v in direct.verdicts) for word in ("certified", "falsified", "misclassified")]
        assert [point.certified, point.falsified, point.misclassified] == counts
    assert [point.certified for point in points] == [3, 2, 1]


def test_unknown_at_a_large_range_may_be_proved_at_a_small_one(case):
    certificate = certify(*case, "R(40)", bounds=FGV(), search=UniformGrid(1, max_boxes=1))
    points = certified_curve(*case, "R(40)", certificate, shares=SHARES, bounds=FGV(), search=UniformGrid(1))
    certified = [point.certified for point in points]
    assert certified == sorted(certified, reverse=True)
    assert all(point.certified + point.falsified + point.unknown + point.misclassified == 5 for point in points)


def test_shares_are_shares(case):
    with pytest.raises(InputError, match="shares"):
        certified_curve(*case, "B(0.2)", certify(*case, "B(0.2)"), shares=(0.5, 2.0))


def test_on_disk_it_belongs_to_one_run(case, tmp_path):
    certificate = certify(*case, "B(0.2)", run=RunFolder(tmp_path / "run"))
    points = certified_curve(*case, "B(0.2)", certificate, shares=SHARES)
    write_curve(tmp_path / "run", points, time.perf_counter())
    content = json.loads((tmp_path / "run" / CURVE).read_text())
    assert read_curve(tmp_path / "run", content["verdicts_sha256"], 5) == points
    assert read_curve(tmp_path / "run", "0" * 64, 5) is None, "of another run"
    assert read_curve(tmp_path, "0" * 64, 5) is None, "there is none"
    content["points"][0]["certified"] += 1
    (tmp_path / "run" / CURVE).write_text(json.dumps(content))
    with pytest.raises(InputError, match="damaged"):
        read_curve(tmp_path / "run", content["verdicts_sha256"], 5)


def test_leaves_are_read_as_they_were_written():
    text = ".b.a4."  # cell (0, 1) bisected along b, its upper half along a
    found = leaves((2, 2), text, most=99)
    assert len(found) == 4 + 2
    assert sum(0.5 ** (node[2] + node[3]) for node in found) == 4, "they fill the four cells"
    assert leaves((2, 2), text, most=5) is None
    for broken in ("3.", "5.", "a.", "z4.", "99999999999999."):
        assert broken.startswith("9") or not _readable(broken)


def _readable(text):
    try:
        return leaves((2, 2), text, most=99) is not None
    except InputError:
        return False


def test_the_default_curve_has_a_point_where_an_image_is_no_longer_proved(case):
    """Greys of 0.65 and 0.55 are right up to 0.15 and 0.05: three quarters and a quarter of the range."""
    points = certified_curve(*case, "B(0.2)", certify(*case, "B(0.2)"))
    falls = {}
    for point in points:
        falls[point.certified] = point.share  # the last point with this count
    assert falls[1] == 1.0
    assert falls[2] == pytest.approx(0.75, abs=0.002)
    assert falls[3] == pytest.approx(0.25, abs=0.002)
    assert all(point.unknown == 0 for point in points if min(abs(point.share - s) for s in (0.75, 0.25, 0.025)) > 0.002)
