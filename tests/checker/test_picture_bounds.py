"""The checker's own bounds of rounded pictures, and the numbers that it takes for equal ones."""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch

import tiltproof
from tests.support import oracle
from tests.support.eight_bit_oracle import pictures_at
from tests.support.repeating_images import KINDS, MOVES, PADDINGS, repeating
from tests.verify.test_eight_bit_bounds import Scores, WrongAtOne
from tests.verify.test_eight_bits import LABEL, image_of, program
from tiltproof import RunFolder
from tiltproof.checker import CheckFailed, check
from tiltproof.checker.form import Form
from tiltproof.checker.picture_bounds import PictureBounds, is_plain, rounded_pixels
from tiltproof.checker.pictures import PictureProver
from tiltproof.checker.single_pixels import Units
from tiltproof.checker.tiling import read_transform
from tiltproof.program import Program


def test_rounded_pixels_are_in_their_form_with_ties_either_way():
    steps = torch.arange(511).double() / 510
    for radius in (2.0**-50, 1e-4, 1e-3, 4e-3, 0.1):
        slopes = torch.full_like(steps, radius / 2)
        form = rounded_pixels(
            Form(torch.stack([steps - slopes, slopes, torch.full_like(steps, 2.0**-50)]).view(3, 511, 1, 1, 1))
        )
        center, slope, room = (row.flatten().tolist() for row in form.rows)  # the pixel is at the end of its symbol
        for k, pixel in enumerate(steps.tolist()):
            exact = Fraction(pixel)
            for number in (math.floor(255 * exact + Fraction(1, 2)), math.ceil(255 * exact - Fraction(1, 2))):
                away = Fraction(number, 255) - Fraction(center[k]) - Fraction(slope[k])
                assert abs(away) <= Fraction(room[k])
        assert radius > 1e-5 or max(abs(each) for each in slope) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("letter", "text"), MOVES)
def test_numbers_that_share_a_choice_are_equal(kind, letter, text):
    random = np.random.default_rng(len(kind))
    for padding in PADDINGS:
        transform = read_transform(f"{text}; padding={padding}")
        image = repeating(kind)
        units = Units(image, transform)
        value = random.uniform(transform.low[0], transform.high[0])
        places = torch.arange(image.numel())
        groups = defaultdict(list)
        found = units.choices(value - 1e-7, value + 1e-7, places, torch.zeros_like(places))
        for place, number in enumerate(found.tolist()):
            groups[number].append(place)
        assert kind != "constant" or len(groups) < image.numel()
        for at in (value - 1e-7, value + 1e-7):
            truth = oracle.transformed(image.numpy(), [letter], [at], padding)
            values = truth.fractions().ravel()
            for members in groups.values():
                assert max(values[members]) - min(values[members]) <= 2 * Fraction(truth.error)


def folder_of(path, model, image, text):
    tiltproof.certify(model, image[None], LABEL, text, semantics="uint8", run=RunFolder(path))
    return path, model, image[None], LABEL


def test_a_network_is_checked_without_evaluations(tmp_path, monkeypatch):
    """All but those for the tolerance, at a few points."""
    image = image_of()
    arguments = folder_of(tmp_path / "run", Scores(image), image, "R(3)")
    counts, margins = [], PictureProver.margins

    def counted(self, record, pictures, size=9):
        counts.append(len(pictures))
        return margins(self, record, pictures, size)

    monkeypatch.setattr(PictureProver, "margins", counted)
    report = check(*arguments)
    assert (report.certified, report.boxes) == (1, 256)
    assert sum(counts) < 100


@pytest.mark.parametrize("angle", [-1.9, 0.4321])
def test_one_wrong_picture_of_a_network_is_found(tmp_path, angle):
    image = image_of(1, 4, 4)
    sure = WrongAtOne(pictures_at(image.double().numpy(), "R", 9.0)[0])
    path, _, images, labels = folder_of(tmp_path / "run", sure, image, "R(2)")
    check(path, sure, images, labels)
    # the same weights by name, about a picture of the range: as if the certificate had been wrong
    wrong = WrongAtOne(pictures_at(image.double().numpy(), "R", angle)[0])
    with pytest.MonkeyPatch.context() as patch:
        whole = importlib.import_module("tiltproof.checker.check")
        digest = whole.weights_digest
        patch.setattr(whole, "weights_digest", lambda _: digest(sure))
        with pytest.raises(CheckFailed, match="could not be proved"):
            check(path, wrong, images, labels)


@pytest.mark.parametrize(
    ("kind", "text"), [("edge", "Tu(1)"), ("point", "R(1)"), ("mirrors", "Sc(2)"), ("gray", "Bl(0.3)")]
)
def test_numbers_that_cross_together_are_checked(tmp_path, kind, text):
    image = repeating(kind, 16 if kind == "edge" else 5, 6).float()
    assert check(*folder_of(tmp_path / "run", program(), image, text)).certified == 1


def test_what_has_no_bounds():
    run = type("Run", (), {"first": 0, "keep": None, "transform": read_transform("R(1)")})()
    image = image_of().double()[None]
    assert PictureBounds(run, Scores(image_of()), image).known
    assert not PictureBounds(run, Scores(image_of()).double(), image).known
    assert not PictureBounds(run, torch.nn.Sequential(Program(program())), image).known
    assert not is_plain(torch.jit.script(torch.nn.ReLU()))
