"""uint8 semantics: every 8-bit picture of the range is evaluated, and nothing else is certified."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import tiltproof
from tests.support.eight_bit_oracle import missing, pictures_at
from tiltproof import Attack, BranchAndBound, InputError, KeepOwn, RunFolder, UniformGrid
from tiltproof.pixels.chosen import ChosenPixels
from tiltproof.pixels.eight_bits import levels
from tiltproof.verify.eight_bits import Enumeration, distinct


def image_of(channels: int = 1, height: int = 5, width: int = 6, seed: int = 0) -> torch.Tensor:
    """Return an image [C, H, W] of 8 bits, some of whose neighbors and channels are equal."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (channels, height, width), generator=generator).float() / 255
    image[:, 0] = image[:, 0, :1]
    return image


def enumerated(image: torch.Tensor, text: str, low: float | None = None, high: float | None = None) -> set[bytes]:
    """Return every picture that is evaluated over a range, of a program that is always right."""
    transform, seen = tiltproof.parse(text), set()

    def margins(pictures: torch.Tensor) -> torch.Tensor:
        seen.update(picture.numpy().tobytes() for picture in pictures)
        return torch.ones(len(pictures), dtype=torch.float64)

    low, high = transform.low[0] if low is None else low, transform.high[0] if high is None else high
    search = Enumeration(ChosenPixels(image.double(), transform), margins, 0.0, low, high)
    edges = torch.linspace(low, high, 9, dtype=torch.float64)
    found = search.run(edges[:-1], edges[1:])
    assert found.holds, found
    return seen


def test_levels_hold_every_rounding_of_both_rules_for_ties():
    for k in range(256):
        tie = (2 * k + 1) / 510
        near = [tie, math.nextafter(tie, 0), math.nextafter(tie, 1), tie - 1e-12, tie + 1e-12, k / 255]
        for low in near:
            for high in near:
                if low <= high <= 1:
                    ends = torch.tensor([low], dtype=torch.float64), torch.tensor([high], dtype=torch.float64)
                    first, last = (int(end) for end in levels(*ends))
                    down = math.ceil(255 * Fraction(low) - Fraction(1, 2))
                    up = math.floor(255 * Fraction(high) + Fraction(1, 2))
                    assert 0 <= first <= max(0, down)
                    assert min(255, up) <= last <= 255
                    assert last - first <= up - down + 1


def test_both_sides_of_a_threshold_that_is_touched():
    """127.5 / 255 is a float, and so a pixel that is exactly between two numbers."""
    half, above = torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.5001], dtype=torch.float64)
    assert [int(end) for end in levels(half, half)] == [127, 128]
    assert [int(end) for end in levels(half, above)] == [127, 128]
    assert [int(end) for end in levels(half - 1e-4, half)] == [127, 128]


def test_levels_of_unknown_bounds_are_all():
    nothing = torch.tensor([math.nan, -math.inf, -3.0]).double(), torch.tensor([math.nan, math.inf, 3.0]).double()
    first, last = levels(*nothing)
    assert first.tolist() == [0] * 3
    assert last.tolist() == [255] * 3


def test_equal_pictures_are_evaluated_once_and_no_other_is_dropped():
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randint(0, 2, (500, 7), generator=generator).to(torch.uint8)
    chosen, place = distinct(pictures)
    assert torch.equal(pictures[chosen][place], pictures)
    assert len(chosen) == len(pictures.unique(dim=0))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_pictures_of_random_angles_are_evaluated(channels):
    image = image_of(channels)
    pictures = enumerated(image, "R(3)")
    angles = np.random.default_rng(channels).uniform(-3, 3, 10_000)
    assert missing(image.double().numpy(), [*angles.tolist(), -3.0, 0.0, 3.0], pictures) == []


@pytest.mark.slow
def test_the_pictures_of_a_million_angles_are_evaluated():
    image = image_of(3, 7, 6)
    pictures = enumerated(image, "R(10)")
    angles = np.random.default_rng(0).uniform(-10, 10, 1_000_000)
    assert missing(image.double().numpy(), angles.tolist(), pictures) == []


CASES = [
    ("Tu(0.7)", "Tu", 1), ("Tv(-0.2:1.2); padding=border", "Tv", 1), ("Sc(9)", "Sc", 1), ("Shv(9); padding=reflect", "Shv", 1),
    ("Yaw(4@9)", "Yaw@9", 1), ("C(9)", "C", 1), ("B(0.05)", "B", 1), ("G(12)", "G", 1), ("S(9)", "S", 3), ("H(9)", "H", 3),
    ("Bl(0.8)", "Bl@3", 1), ("Mb(1.5@30)", "Mb@30", 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "letter", "channels"), CASES)
def test_the_pictures_of_other_transformations_are_evaluated(text, letter, channels):
    image = image_of(channels, 3, 4)
    pictures, part = enumerated(image, text), tiltproof.parse(text)
    padding = part.padding
    for value in np.random.default_rng(3).uniform(part.low[0], part.high[0], 25).tolist():
        for picture in pictures_at(image.double().numpy(), letter, value, padding):
            assert picture.tobytes() in pictures, value


@pytest.mark.parametrize("text", ["R(0.1)", "B(0.002)", "C(1)"])
def test_constant_pixels_on_a_threshold_are_rounded_both_ways(text):
    """Untransformed they are ties, and with R one is so everywhere."""
    image = image_of(1, 5, 5)
    image[0, 1:4, 1:4] = 0.5
    pictures = enumerated(image, text)
    for picture in pictures_at(image.double().numpy(), text.split("(")[0], 0.0):
        assert picture.tobytes() in pictures
    if text[0] == "R":
        assert {np.frombuffer(each, np.uint8)[12] for each in pictures} == {127, 128}


def program(weights: torch.Tensor | None = None, margin: float = 1.0):
    """Return a program with two scores; the first is larger by ``margin``, and by less for brighter images with ``weights``."""

    def scores(images: torch.Tensor) -> torch.Tensor:
        ahead = torch.full((len(images),), margin, dtype=images.dtype)
        if weights is not None:
            ahead = ahead - (images * weights).flatten(1).sum(1)
        return torch.stack([ahead, torch.zeros_like(ahead)], 1)

    return scores


LABEL = torch.tensor([0])


def verdict(model, image=None, text="R(2)", **options):
    image = image_of() if image is None else image
    (result,) = tiltproof.certify(model, image[None], LABEL, text, semantics="uint8", **options).results
    return result


def test_a_program_that_is_always_right_is_certified():
    result = verdict(program())
    assert (result.verdict, result.margin, result.counterexample) == ("certified", 1.0, None)
    assert result.pictures > 10
    assert 0 < result.tolerance < 1e-4


def wrong_at(picture: np.ndarray):
    """Return a program that is wrong about one picture alone."""
    marked = (torch.arange(256, dtype=torch.float32) / 255)[torch.from_numpy(picture.astype(np.int64))]

    def scores(images: torch.Tensor) -> torch.Tensor:
        same = (images == marked).flatten(1).all(1)
        return torch.stack([torch.where(same, -1.0, 1.0), torch.zeros(len(images))], 1)

    return scores


@pytest.mark.parametrize("angle", [-1.7, 0.3, 1.234567])
def test_one_wrong_picture_is_found(angle):
    image = image_of()
    picture = pictures_at(image.double().numpy(), "R", angle)[0]
    result = verdict(wrong_at(picture), image, attack=Attack(samples=3))
    assert (result.verdict, result.margin) == ("falsified", -1.0)
    (there,) = result.counterexample
    assert any((each == picture).all() for each in pictures_at(image.double().numpy(), "R", there))


def test_a_wrong_picture_that_no_parameter_gives_is_no_matter():
    """Of a box with two open pixels, one of the four combinations may not occur."""
    image = image_of()
    seen = enumerated(image, "R(0.2)")
    occur = {
        picture.tobytes()
        for angle in np.linspace(-0.2, 0.2, 4000).tolist()
        for picture in [np.round(255 * rotated_once(image, angle)).astype(np.uint8)]
    }
    never = sorted(seen - occur)
    assert never
    results = [
        verdict(wrong_at(np.frombuffer(each, np.uint8).reshape(image.shape)), image, "R(0.2)") for each in never[:3]
    ]
    assert "certified" in {result.verdict for result in results}
    assert all(result.verdict == "certified" or result.counterexample for result in results)


def rotated_once(image, angle):
    from tests.support.eight_bit_oracle import rotated

    return rotated(image.double().numpy(), np.array([angle]))[0]


def test_a_tie_that_may_be_rounded_either_way_falsifies_nothing():
    """The one pixel in the middle is 127.5 / 255 for every angle, and what it becomes is up to the program's rounding."""
    image = torch.full((1, 3, 3), 0.5, dtype=torch.float64)
    for middle in (127, 128):
        wrong = torch.tensor(float(middle)) / 255

        def scores(images, wrong=wrong):
            return program()(images) - (images[:, :, 1, 1] == wrong) * torch.tensor([2.0, 0.0])

        result = verdict(scores, image, "R(0.001:0.002)")
        assert result.verdict in ("unknown", "misclassified")
        assert result.counterexample is None


def test_a_margin_within_the_measured_tolerance_is_unknown():
    """Scores of the size of 1, whose roundings are larger than the margin."""
    result = verdict(lambda images: torch.tensor([[1.0, 1.0 - 2.0**-20]]).expand(len(images), 2))
    assert (result.verdict, result.reason) == ("unknown", "tolerance")
    assert 2.0**-20 < result.tolerance < 1e-4


def test_a_stated_tolerance_counts():
    assert verdict(program(margin=0.5), tolerance=0.4).verdict == "certified"
    result = verdict(program(margin=0.5), tolerance=0.6)
    assert (result.verdict, result.reason) == ("unknown", "tolerance")


def test_a_program_that_depends_on_the_batch_is_unknown():
    noisy = lambda images: program(margin=0.5 + (0.2 if len(images) == 1 else 0.0))(images)  # noqa: E731
    result = verdict(noisy)
    assert (result.verdict, result.reason) == ("unknown", "tolerance")
    assert result.tolerance > 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_answers_that_are_not_finite_prove_nothing(bad):
    """Only the untransformed image has finite ones."""
    clean = image_of()[None]

    def scores(images):
        same = (images == clean).flatten(1).all(1)
        return torch.stack([torch.where(same, 1.0, bad), torch.zeros(len(images))], 1)

    assert verdict(scores).verdict == "unknown"
    with pytest.raises(InputError, match="not finite"):
        verdict(lambda images: torch.full((len(images), 2), bad))


def test_pixels_that_cannot_be_parted_are_a_reason():
    """At 0 all are ties, and no two are alike."""
    image = ((torch.arange(30) * 13 % 251 + 0.5).double() / 255).view(1, 5, 6)
    result = verdict(program(), image, "R(0.001)")
    assert (result.verdict, result.reason) == ("unknown", "ties")
    assert result.open_box is not None


def test_misclassified_and_labels_of_its_own():
    assert verdict(program(margin=-1.0)).verdict == "misclassified"
    certificate = tiltproof.certify(
        program(margin=-1.0), image_of()[None], None, "R(1)", semantics="uint8", keep=KeepOwn()
    )
    assert certificate.verdicts == ["certified"]
    assert certificate.results[0].label == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": "R(2), B(0.1)"}, "more than one parameter"),
        ({"text": "R(2), Linf(0.01)"}, "does not support noise"),
        ({"text": "R(2); interpolation=nearest"}, "for bilinear interpolation"),
        ({"search": UniformGrid(4)}, "choose their boxes themselves"),
        ({"tolerance": -1.0}, "not negative"),
        ({"model": 3}, "a function from images"),
        ({"model": lambda images: images.missing}, "the program failed"),
        ({"model": lambda images: images}, "one row of scores"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(InputError, match=words):
        verdict(**({"model": program()} | options))


def test_refusals_of_other_semantics():
    images = image_of()[None]
    with pytest.raises(InputError, match="uint8"):
        tiltproof.certify(program(), images, LABEL, "R(2)")
    network = nn.Sequential(nn.Flatten(), nn.Linear(30, 2))
    with pytest.raises(InputError, match="belongs to uint8"):
        tiltproof.certify(network, images, LABEL, "R(2)", tolerance=1e-3)
    with pytest.raises(InputError, match="for classes"):
        tiltproof.certify_range(network, images, None, "R(2)", semantics="uint8")


def test_seconds_end_a_search():
    result = verdict(program(), search=BranchAndBound(max_seconds=1e-9))
    assert (result.verdict, result.reason) == ("unknown", "seconds")


def test_a_run_is_kept_checked_and_resumed(tmp_path):
    images, labels, model = torch.stack([image_of(seed=k) for k in range(2)]), torch.tensor([0, 1]), program()
    arguments = model, images, labels, "R(1)"
    run = RunFolder(tmp_path / "run")
    certificate = tiltproof.certify(*arguments, semantics="uint8", run=run)
    assert certificate.verdicts == ["certified", "misclassified"]
    lines = (tmp_path / "run" / "verdicts.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["pictures"] == certificate.results[0].pictures
    assert len((tmp_path / "run" / "batches.jsonl").read_text().splitlines()) == 2
    report = tiltproof.check(tmp_path / "run", model, images, labels)
    assert (report.images, report.certified, report.boxes) == (2, 1, 256)
    (tmp_path / "run" / "batches.jsonl").write_text("")
    again = tiltproof.certify(*arguments, semantics="uint8", run=RunFolder(tmp_path / "run", resume=True))
    assert [r.record() | {"seconds": 0} for r in again.results] == [
        r.record() | {"seconds": 0} for r in certificate.results
    ]
    other = lambda images: model(images)  # noqa: E731
    with pytest.raises(tiltproof.CheckFailed, match="weights"):
        tiltproof.check(tmp_path / "run", other, images, labels)
    page = tiltproof.report(tmp_path / "run", model, images, labels)
    assert "rounded, ties either way" in page.read_text()
