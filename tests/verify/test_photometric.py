"""Gamma, colors and blurs from end to end: certify, check, curve, report, attack, training, tune."""

import pytest
import torch
from torch import nn

from tiltproof import BranchAndBound, InputError, RunFolder, attack, bound_pixels, certify, certify_range, check, parse
from tiltproof.checker import CheckFailed
from tiltproof.checker.tiling import read_transform
from tiltproof.losses import Certified, WorstOf
from tiltproof.reports import report
from tiltproof.reports.sentences import in_words
from tiltproof.runs.curve import certified_curve, nested
from tiltproof.training import pixel_widths, tune
from tiltproof.training.box_sizes import sample_parameters
from tiltproof.verify.options import BOUNDS

TEXTS = [
    "G(20)",
    "S(30)",
    "H(20)",
    "Bl(1)",
    "Mb(3@30)",
    "R(3), G(10), Bl(0.5)",
    "Mb(2), S(20), B(0.02); padding=border",
]


def problem(channels=3, outputs=3):
    torch.manual_seed(0)
    images = torch.rand(4, channels, 6, 6)
    model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, outputs)).eval()
    with torch.no_grad():
        return model, images, model(images).argmax(1)


@pytest.mark.parametrize(
    ("text", "method"), [*((text, "affine") for text in TEXTS), ("G(20)", "hull"), ("H(20)", "hull"), ("Bl(1)", "hull")]
)
def test_runs_are_proved_and_proved_again(text, method, tmp_path):
    model, images, labels = problem()
    certificate = certify(
        model,
        images,
        labels,
        text,
        bounds=BOUNDS[method],
        search=BranchAndBound(max_boxes=4000),
        run=RunFolder(tmp_path / "run"),
    )
    assert [str(verdict) for verdict in certificate.verdicts] == ["certified"] * 4
    assert sum(result.boxes for result in certificate.results) < 2000
    report = check(tmp_path / "run", model, images, labels)
    assert report.certified == 4


def test_counterexamples_are_found_and_run_again(tmp_path):
    """The network compares one pixel with its neighbors: a blur removes that contrast."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 2)).eval()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].weight[0, 12] = 1
        model[1].bias.copy_(torch.tensor([0.0, 0.5]))
    image = torch.zeros(1, 1, 5, 5)
    image[..., 2, 2] = 1
    for text in ("Bl(2)", "Mb(6@45)", "Bl(0.1:2), C(5)"):
        found = attack(model, image, torch.tensor([0]), text)
        assert found.parameters[0] is not None
        certificate = certify(model, image, torch.tensor([0]), text, run=RunFolder(tmp_path / "run", overwrite=True))
        assert str(certificate.verdicts[0]) == "falsified"
        assert check(tmp_path / "run", model, image, torch.tensor([0])).counterexamples == 1
    certificate = certify(model, image, torch.tensor([0]), "Bl(0.4)", run=RunFolder(tmp_path / "run", overwrite=True))
    assert str(certificate.verdicts[0]) == "certified"


def test_ranges_of_outputs(tmp_path):
    model, images, _ = problem(outputs=1)
    ranges = certify_range(model, images, None, "Mb(2@30), G(10)", run=RunFolder(tmp_path / "run"))
    transform = parse("Mb(2@30), G(10)")
    theta = torch.rand(200, 2) * torch.tensor([2.0, 20.0]) - torch.tensor([0.0, 10.0])
    for image, result in zip(images, ranges.results, strict=True):
        with torch.no_grad():
            outputs = model(transform.apply(image.expand(200, -1, -1, -1), theta))
        assert result.lower[0] <= outputs.min() + 1e-5
        assert outputs.max() - 1e-5 <= result.upper[0]
    assert check(tmp_path / "run", model, images, None).task == "regression"


def test_the_curve_is_about_one_blur():
    """A Gaussian over a part of its range keeps its radius: it is the same function of the deviation."""
    assert str(nested(parse("Bl(2), Mb(4@30), G(10)"), 0.5)) == "Bl(1@6), Mb(2@30), G(5)"
    model, images, labels = problem()
    certificate = certify(model, images, labels, "Bl(4)", search=BranchAndBound(max_boxes=50))
    points = certified_curve(
        model, images, labels, "Bl(4)", certificate, shares=(0.1, 1.0), search=BranchAndBound(max_boxes=50)
    )
    assert [point.transform for point in points] == ["Bl(0.4@12)", "Bl(4)"]


def test_the_report_shows_them(tmp_path):
    model, images, labels = problem()
    certify(model, images, labels, "Mb(3@30), H(20)", run=RunFolder(tmp_path / "run"))
    page = report(tmp_path / "run", model, images).read_text()
    assert (
        "motion blur between 0 and 3 pixels (angle 30 degrees) and a turn of the hue between -20 and 20 degrees" in page
    )
    assert "length of the motion (pixels)" in page
    for text in ("G(5)", "S(5)", "Bl(2)"):
        assert " between " in in_words(parse(text))


@pytest.mark.parametrize("text", ["G(20), S(10)", "H(20), Bl(1)", "Mb(3@30), R(5)"])
def test_losses_draw_from_the_range_and_bound_around_it(text):
    model, images, labels = problem()
    transform = parse(text)
    for loss in (
        WorstOf(text, 3),
        Certified(text, [(b - a) / 20 for a, b in zip(transform.low, transform.high, strict=True)], kappa=(0.5, 0.5)),
        Certified(text, (0.01, 0.01), kappa=(0.5, 0.5), bounds="affine", propagation="affine"),
    ):
        value = loss(model, images, labels, 0)
        value.total.backward()
        assert value.total.isfinite()
        if value.certified is not None:
            assert value.certified >= value.clean - 0.2
    low, high = loss.sampler.boxes(loss.sampler.parameters(0, 4, images), torch.tensor([0.5, 0.5]))
    assert (low >= torch.tensor(transform.low)).all()
    assert (high <= torch.tensor(transform.high)).all()
    with pytest.raises(InputError, match="affine or hull"):
        Certified(text, 0.01, bounds="fgv")


@pytest.mark.parametrize("method", ["hull", "affine"])
@pytest.mark.parametrize("text", ["S(20), G(10)", "Bl(1), H(10)", "Mb(2@30)"])
def test_tune_measures_their_widths(text, method):
    images, transform = problem()[1].double(), parse(text)
    nu = [(high - low) / 30 for low, high in zip(transform.low, transform.high, strict=True)]
    found = pixel_widths(images, transform, nu, method, samples=3, seed=4)
    half, sizes = torch.tensor(nu, dtype=torch.float64), []
    least = torch.tensor(
        [-1e9 if part.minimum is None else part.minimum for part in transform.parts], dtype=torch.float64
    )
    for theta in sample_parameters(transform, 3, 4):
        form = bound_pixels(images, transform, method, torch.maximum(theta - half, least), theta + half)
        sizes.append(form.width.flatten(1))
    assert found.maximum == pytest.approx(torch.stack(sizes).amax(2).mean().item(), rel=1e-9)
    best = tune(images, transform, 0.02, method=method, samples=3)
    assert pixel_widths(images, transform, best, method, samples=3).maximum == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ("text", "low", "high", "fixed"),
    [
        ("Bl(2)", (0.0,), (2.0,), (6.0,)), ("Bl(0.5:0.7)", (0.5,), (0.7,), (3.0,)), ("Bl(1@6)", (0.0,), (1.0,), (6.0,)),
        ("Mb(1:5 @ -30.5), R(3)", (1.0, -3.0), (5.0, 3.0), (-30.5, 0.0)),
        ("G(5),S(6),H(7)", (-5.0, -6.0, -7.0), (5.0, 6.0, 7.0), (0.0,) * 3),
    ],
)  # fmt: skip
def test_the_checker_reads_the_notation_by_itself(text, low, high, fixed):
    ours, theirs = parse(text), read_transform(text)
    assert (theirs.low, theirs.high, theirs.fixed) == (low, high, fixed)
    assert (ours.low, ours.high) == (low, high)
    assert tuple(part.fixed or 0.0 for part in ours.parts) == fixed


@pytest.mark.parametrize(
    "text", ["Bl(-1:2)", "Bl(33)", "Bl(2@0)", "Bl(2@1.5)", "Mb(129)", "Mb(2@361)", "R(2@3)", "G(-100:0)", "G(5@1)"]
)
def test_the_checker_refuses_what_means_nothing(text):
    with pytest.raises(CheckFailed):
        read_transform(text)


def test_a_run_about_colours_of_grey_images_is_refused(tmp_path):
    from tests.support.run_folder import manifest_of, record, write_run

    model, images, labels = problem(channels=1)
    records = [record(k, int(labels[k]), "unknown", margin=-1.0, open_box=[[-5.0], [5.0]]) for k in range(4)]
    write_run(tmp_path / "run", manifest_of(model, images, labels, "S(5)"), records)
    with pytest.raises(CheckFailed, match="colors"):
        check(tmp_path / "run", model, images, labels)
