"""The checker evaluates every picture of uint8 semantics again, and finds forged records."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tests.support.eight_bit_oracle import pictures_at
from tests.support.run_folder import manifest_of, record, write_run
from tiltproof.checker import CheckFailed, check
from tiltproof.checker.pictures import PictureProver, Piece, as_module, look
from tiltproof.checker.records import VerdictRecord
from tiltproof.checker.single_pixels import Units
from tiltproof.checker.tiling import read_transform

CASES = [
    ("R(3)", "R", 1), ("Tu(0.7)", "Tu", 1), ("Tv(-0.2:1.2); padding=border", "Tv", 1), ("Sc(9)", "Sc", 1),
    ("Shv(9); padding=reflect", "Shv", 1), ("Yaw(4@9)", "Yaw@9", 1), ("C(9)", "C", 1), ("B(0.05)", "B", 1),
    ("G(12)", "G", 1), ("S(9)", "S", 3), ("H(9)", "H", 3), ("Bl(0.8)", "Bl@3", 1),
]  # fmt: skip


def image_of(channels: int = 1, height: int = 3, width: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(channels)
    return torch.randint(0, 256, (channels, height, width), generator=generator).float() / 255


@pytest.mark.parametrize(("text", "letter", "channels"), CASES)
def test_rounded_pixels_are_among_those_of_their_box(text, letter, channels):
    image, transform = image_of(channels), read_transform(text)
    units, random = Units(image.double(), transform), np.random.default_rng(0)
    (low,), (high,) = transform.low, transform.high
    every = torch.arange(units.count)
    for width in (0.0, 1e-6, 1e-3, 0.05):
        for value in random.uniform(low, high, 4).tolist():
            ends = [max(low, value - width * (high - low) * random.uniform()), min(high, value + width * (high - low))]
            box = (torch.tensor([end], dtype=torch.float64) for end in ends)
            least, greatest = units.rounded(*box, torch.zeros_like(every), every)
            least, greatest = (units.pictures(end.T.reshape(1, -1))[0].numpy() for end in (least, greatest))
            for picture in pictures_at(image.double().numpy(), letter, value, transform.padding):
                assert (least <= picture).all()
                assert (picture <= greatest).all()
            if width <= 1e-6:
                assert (greatest - least).max() <= 1


def test_ties_go_both_ways_and_unknown_pixels_anywhere():
    units = Units(torch.full((1, 1, 2), 0.5, dtype=torch.float64), read_transform("B(0.1)"))
    zero = torch.zeros(1, dtype=torch.int64)
    least, greatest = units.rounded(zero.double(), zero.double(), zero, zero)
    assert (int(least), int(greatest)) == (127, 128)
    units.between = lambda *_: (torch.tensor([[torch.nan]]), torch.tensor([[torch.nan]]))
    least, greatest = units.rounded(zero.double(), zero.double(), zero, zero)
    assert (int(least), int(greatest)) == (0, 255)


def test_a_number_of_three_values_is_not_ready():
    units = Units(torch.full((1, 1, 1), 0.3, dtype=torch.float64), read_transform("B(0.1)"))
    zero, one = torch.zeros(1, dtype=torch.int64), torch.full((1,), 0.01, dtype=torch.float64)
    piece = Piece(-one, one, torch.zeros(1, 1, dtype=torch.uint8), zero + 9, zero, zero, zero, 0)
    assert look(units, piece)[1].ready(zero + 12).tolist() == [False]


def scores(images: torch.Tensor, marked: torch.Tensor | None = None, noise: float = 0.0) -> torch.Tensor:
    """The first score is larger by 1, and smaller by 1 for the marked picture; in single images by the noise less."""
    ahead = torch.ones(len(images)) - (noise if len(images) == 1 else 0.0)
    if marked is not None:
        ahead = torch.where((images == marked).flatten(1).all(1), -1.0, ahead)
    return torch.stack([ahead, torch.zeros(len(images))], 1)


TEXT, LABELS = "R(2)", torch.tensor([0])


def folder_of(path, model, changes=(), text=TEXT, image=None, **settings):
    image = image_of(1, 5, 5) if image is None else image
    one = {"margin": 1.0, "grid": [4], "tree": "4.", "pictures": 9, "tolerance": 1e-5} | dict(changes)
    verdict = one.pop("verdict", "certified")
    manifest = manifest_of(as_module(model), image[None], LABELS, text, semantics="uint8")
    manifest["settings"] |= settings
    write_run(path, manifest, [record(0, 0, verdict, **one)])
    return path, model, image[None], LABELS


def test_a_true_run_holds(tmp_path):
    steps = []
    report = check(*folder_of(tmp_path / "run", scores), progress=lambda done, total: steps.append((done, total)))
    assert (report.certified, report.counterexamples) == (1, 0)
    assert report.sub_boxes >= 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"margin": 1.5}, "could not be proved"),
        ({"margin": 1e-6}, "does not exceed its tolerance"),
        (
            {"margin": 1.3, "tolerance": 0.5},
            "could not be proved",
        ),  # as much above the truth as the tolerance would excuse
        ({"margin": 1.3, "tolerance": 1.2}, "could not be proved"),
        ({"tolerance": -1.0}, "tolerance is negative"),
        ({"tolerance": None}, "tolerance"),
        ({"tree": "3."}, "tiling"),
        ({"verdict": "misclassified", "grid": None, "tree": None}, "the program is right"),
        ({"verdict": "misclassified", "grid": None, "tree": None, "tolerance": 2.0}, "the program is right"),
    ],
)
def test_forgeries(tmp_path, changes, words):
    with pytest.raises(CheckFailed, match=words):
        check(*folder_of(tmp_path / "run", scores, changes))


def test_the_tolerance_is_at_least_the_one_asked_for(tmp_path):
    assert check(*folder_of(tmp_path / "true", scores, {"tolerance": 0.5}, tolerance=0.5)).certified == 1
    with pytest.raises(CheckFailed, match="less than the run's settings"):
        check(*folder_of(tmp_path / "forged", scores, tolerance=0.5))


def test_margins_may_differ_by_what_evaluations_do(tmp_path):
    """Not by less, or a true run of another machine is refused."""
    model = partial(scores, noise=0.01)
    assert check(*folder_of(tmp_path / "run", model, {"margin": 1.01, "tolerance": 0.1})).certified == 1


@pytest.mark.parametrize("angle", [-1.9, 0.4321])
def test_one_wrong_picture_is_found(tmp_path, angle):
    image = image_of(1, 5, 5)
    picture = pictures_at(image.double().numpy(), "R", angle)[0]
    model = partial(scores, marked=torch.from_numpy(picture).float() / 255)
    with pytest.raises(CheckFailed, match="could not be proved"):
        check(*folder_of(tmp_path / "run", model))
    broken = {"verdict": "falsified", "margin": -1.0, "counterexample": [angle], "grid": None, "tree": None}
    assert check(*folder_of(tmp_path / "broken", model, broken)).counterexamples == 1
    for change, words in (
        ({"counterexample": [angle + 0.5]}, "does not change the answer"),
        ({"margin": -2.0}, "another margin"),
        ({"margin": -2.0, "tolerance": 1.5}, "has another margin"),
        ({"counterexample": [2.5]}, "outside the range"),
    ):
        with pytest.raises(CheckFailed, match=words):
            check(*folder_of(tmp_path / words.replace(" ", "-"), model, broken | change))


def test_a_counterexample_on_a_threshold_is_not_certain(tmp_path):
    image = torch.full((1, 3, 3), 0.5, dtype=torch.float64)
    broken = {"verdict": "falsified", "margin": -1.0, "counterexample": [0.0], "grid": None, "tree": None}
    with pytest.raises(CheckFailed, match="not certain"):
        check(*folder_of(tmp_path / "run", scores, broken, image=image))


def test_a_tolerance_below_the_noise_is_refused(tmp_path):
    with pytest.raises(CheckFailed, match="from batch to batch"):
        check(*folder_of(tmp_path / "run", partial(scores, noise=0.01)))


def test_answers_that_are_not_finite_prove_nothing(tmp_path):
    image = image_of(1, 5, 5)
    clean = torch.round(255 * image) / 255
    model = lambda images: torch.where((images == clean).flatten(1).all(1, True), scores(images), torch.nan)  # noqa: E731
    with pytest.raises(CheckFailed, match="could not be proved|from batch to batch"):
        check(*folder_of(tmp_path / "run", model, {"margin": 0.9}))


def test_more_than_one_parameter_is_refused(tmp_path):
    with pytest.raises(CheckFailed, match="more than one parameter"):
        check(*folder_of(tmp_path / "run", scores, {"grid": [2, 2]}, text="R(2), B(0.1)"))


def test_margins_are_of_what_the_record_says():
    """The label's score minus the largest other one."""
    run = type("Run", (), {"first": 0, "keep": None, "transform": read_transform(TEXT)})()
    prover = PictureProver(run, as_module(scores), image_of()[None])
    one = VerdictRecord(0, [1], ".", 1, 1, "certified", 1.0, [])
    assert prover.margins(one, torch.zeros(3, 1, 5, 5)).tolist() == pytest.approx([-1.0] * 3)
