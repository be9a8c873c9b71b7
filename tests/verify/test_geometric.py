"""Scaling along one axis, vertical shearing and cameras, from the search to the checker, the attack, the curve and the report."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tiltproof import (
    BranchAndBound,
    InputError,
    RunFolder,
    Verdict,
    attack,
    certify,
    certify_range,
    check,
    parse,
    report,
)
from tiltproof.losses import Certified, WorstOf
from tiltproof.runs.curve import certified_curve
from tiltproof.verify.options import BOUNDS

TEXTS = [
    "Scu(10), Scv(10)",
    "Shv(10), C(5)",
    "Yaw(2@8), Pitch(2@8), Roll(3)",
    "Tx(0.1@8), Tz(0.1@8@0.2:-0.8:0.3), Yaw(2@8)",
    "Scu(4); interpolation=nearest",
    "Scu(8), B(0.02); padding=reflect; interpolation=bicubic",
    "B(0.02), Yaw(-2:8@8), Tu(0.5); padding=border",
]


def problem():
    """Draw six blots of random brightness and use a random network's own answers; some margins are small."""
    generator = torch.Generator().manual_seed(5)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / 3
    images = nn.functional.interpolate(torch.rand(6, 1, 4, 4, generator=generator), 8, mode="bilinear")
    return net.eval(), images, net(images).argmax(1)


def margins_at(net, images, labels, transform, theta):
    outputs = net.double()(transform.apply(images.double(), theta))
    net.float()
    own = outputs.gather(1, labels[:, None])[:, 0]
    return own - outputs.scatter(1, labels[:, None], -torch.inf).amax(1)


@pytest.mark.parametrize("text", TEXTS)
def test_verdicts_hold_and_are_proved_again(text, tmp_path):
    net, images, labels = problem()
    transform = parse(text)
    certificate = certify(
        net, images, labels, transform, search=BranchAndBound(max_boxes=3000), run=RunFolder(tmp_path / "run")
    )
    assert {Verdict.CERTIFIED, Verdict.FALSIFIED} >= set(certificate.verdicts)
    assert certificate.verdicts.count(Verdict.CERTIFIED) >= 3
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    shares = torch.rand(200, len(low), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for share in (*shares, torch.zeros(len(low)), torch.ones(len(low))):
        seen = margins_at(net, images, labels, transform, low + (high - low) * share)
        for k, verdict in enumerate(certificate.verdicts):
            assert verdict is not Verdict.CERTIFIED or certificate.margins[k] <= seen[k]
    for k, verdict in enumerate(certificate.verdicts):
        if verdict is Verdict.FALSIFIED:
            theta = torch.tensor(certificate.counterexamples[k], dtype=torch.float64)
            assert margins_at(net, images, labels, transform, theta)[k] < 0
    checked = check(tmp_path / "run", net, images, labels)
    assert checked.certified == certificate.verdicts.count(Verdict.CERTIFIED)
    page = report(tmp_path / "run", net, images, labels).read_text(encoding="utf-8")
    assert "scaling" in page or "shearing" in page or "camera yaw" in page


def test_a_wider_range_is_found_wanting_and_the_curve_falls():
    net, images, labels = problem()
    certificate = certify(net, images, labels, "Yaw(25@8)")
    assert Verdict.FALSIFIED in certificate.verdicts
    points = certified_curve(net, images, labels, "Yaw(25@8)", certificate, shares=(0.25, 1.0))
    assert points[0].certified > points[1].certified
    assert points[0].transform == "Yaw(6.25@8)"
    found = attack(net, images, labels, "Yaw(25@8)")
    assert [point is not None for point in found.parameters] == [v is Verdict.FALSIFIED for v in certificate.verdicts]


@pytest.mark.parametrize("method", ["hull", "fgv"])
def test_the_other_methods_never_contradict(method):
    net, images, labels = problem()
    images, labels = images[:3], labels[:3]
    usual = certify(net, images, labels, "Yaw(3@8), Scu(3)")
    other = certify(
        net, images, labels, "Yaw(3@8), Scu(3)", bounds=BOUNDS[method], search=BranchAndBound(max_boxes=500)
    )
    assert Verdict.CERTIFIED in other.verdicts
    for a, b in zip(usual.verdicts, other.verdicts, strict=True):
        assert {a, b} != {Verdict.CERTIFIED, Verdict.FALSIFIED}


def test_ranges_of_outputs():
    net, images, _ = problem()
    found = certify_range(net, images[:2], None, "Pitch(4@8), Shv(3)", search=BranchAndBound(max_boxes=200))
    for theta in ([4.0, 3.0], [-4.0, 1.0], [0.3, -3.0]):
        outputs = net(parse("Pitch(4@8), Shv(3)").apply(images[:2], torch.tensor(theta)))
        for result, values in zip(found.results, outputs.tolist(), strict=True):
            assert all(a - 1e-5 <= x <= b + 1e-5 for a, x, b in zip(result.lower, values, result.upper, strict=True))


def test_a_camera_that_turns_its_back_is_refused_everywhere():
    net, images, labels = problem()
    text = "Yaw(60@5)"
    for refuse in (
        lambda: certify(net, images, labels, text),
        lambda: certify_range(net, images, None, text),
        lambda: attack(net, images, labels, text),
        lambda: WorstOf(text)(net, images, labels, 0),
        lambda: Certified(text, half_width=1.0)(net, images, labels, 0),
    ):
        with pytest.raises(InputError, match="depth reaches zero"):
            refuse()
