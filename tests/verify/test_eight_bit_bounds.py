"""uint8 semantics of networks: what bounds prove is what an enumeration finds, and only what they cover is proved by them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import tiltproof
from tests.support.eight_bit_oracle import missing, pictures_at
from tests.verify.test_eight_bits import LABEL, enumerated, image_of, verdict
from tiltproof import Attack, KeepOwn, TopK
from tiltproof.network import proof_arithmetic
from tiltproof.pixels.chosen import ChosenPixels
from tiltproof.program import Program
from tiltproof.verify import eight_bit_bounds
from tiltproof.verify.eight_bit_bounds import PictureBounds, Pieces
from tiltproof.verify.eight_bits import Enumeration
from tiltproof.verify.inputs import check_kept
from tiltproof.verify.program import is_plain


class Scores(nn.Module):
    """A small network that is sure of class 0; ``margin`` moves what it is sure by."""

    def __init__(self, image: torch.Tensor, margin: float = 6.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(image.shape[0], 4, 3, padding=1)
        self.last = nn.Linear(4 * image[0].numel(), 3)
        self.eval()
        with torch.no_grad():
            self.last.bias += torch.tensor([margin, 0.0, 0.0])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(images)).flatten(1))


class WrongAtOne(nn.Module):
    """Right about every 8-bit picture by 1 but about one, whose margin is -1: 1 - relu(2 - 510 |x - picture|_1)."""

    def __init__(self, picture: np.ndarray) -> None:
        super().__init__()
        self.eval()
        self.register_buffer("picture", (torch.arange(256) / 255)[torch.from_numpy(picture.astype(np.int64))])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        difference = images - self.picture
        distance = (torch.relu(difference) + torch.relu(-difference)).flatten(1).sum(1, keepdim=True)
        ahead = 1 - torch.relu(2 - 510 * distance)
        return torch.cat([ahead, torch.zeros_like(ahead)], 1)


@pytest.fixture
def bounded(monkeypatch):
    """Count boxes that bounds prove; ``False`` in the list turns them off."""
    proved, lower = [], PictureBounds.lower

    def counted(self, row, low, high):
        found = lower(self, row, low, high)
        proved.append(int((found > 0).sum()))
        return found

    monkeypatch.setattr(PictureBounds, "lower", counted)
    return proved


@pytest.fixture
def willing(monkeypatch):
    """Small images have few pictures: bound them all the same."""
    monkeypatch.setattr(eight_bit_bounds, "COST", -1.0)


@pytest.mark.parametrize("text", ["R(1)", "C(5)", "G(5)", "B(0.01)", "Bl(0.3)"])
@pytest.mark.usefixtures("willing")
def test_bounds_and_enumeration_agree(text, monkeypatch):
    image = image_of(1, 4, 4)
    for margin in (6.0, 0.1):
        network = Scores(image, margin)
        first = verdict(network, image, text)
        monkeypatch.setattr(PictureBounds, "of", classmethod(lambda *_: None))
        every = verdict(network, image, text)
        monkeypatch.undo()
        assert first.verdict == every.verdict
        if first.verdict == "certified":
            assert first.tolerance < first.margin <= every.margin + 1e-6
            assert first.pictures <= every.pictures


@pytest.mark.usefixtures("willing")
def test_boxes_are_proved_without_evaluations(bounded):
    result = verdict(Scores(image_of()), text="R(3)")
    assert (result.verdict, sum(bounded)) == ("certified", 256)
    assert result.pictures < 40


@pytest.mark.usefixtures("willing")
def test_no_picture_of_a_proved_box_has_a_smaller_margin():
    image = image_of(1, 4, 4)
    network = Scores(image, 0.5)
    with proof_arithmetic(torch.device("cpu")):
        inputs, rule = check_kept(network, image[None], LABEL, "R(8)", "uint8", None)
        bounds = PictureBounds.of(inputs, rule)
        edges = torch.linspace(-8, 8, 33, dtype=torch.float64)
        lower = bounds.lower(0, edges[:-1], edges[1:])
    assert bounds.prover.networks[torch.float32].evaluation == 2.0**-24
    for low, high, bound in zip(edges[:-1].tolist(), edges[1:].tolist(), lower.tolist(), strict=True):
        for angle in np.linspace(low, high, 9).tolist():
            for picture in pictures_at(image.double().numpy(), "R", angle):
                scores = network((torch.arange(256) / 255)[torch.from_numpy(picture.astype(np.int64))][None])[0]
                assert float((scores[0] - scores[1:].max()).detach()) >= bound


@pytest.mark.parametrize("angle", [-1.7, 0.3, 1.234567])
@pytest.mark.usefixtures("willing")
def test_one_wrong_picture_of_a_network_is_found(angle, bounded):
    image = image_of(1, 4, 4)
    picture = pictures_at(image.double().numpy(), "R", angle)[0]
    network = WrongAtOne(picture)
    result = verdict(network, image, attack=Attack(samples=3))
    assert (result.verdict, round(result.margin, 3)) == ("falsified", -1.0)
    assert sum(bounded) > 0
    (there,) = result.counterexample
    assert any((each == picture).all() for each in pictures_at(image.double().numpy(), "R", there))
    other = pictures_at(image.double().numpy(), "R", 9.0)[0]
    assert verdict(WrongAtOne(other), image).verdict == "certified"


def test_pictures_too_few_for_bounds_are_enumerated(bounded):
    result = verdict(Scores(image_of()), text="R(0.01)")
    assert (result.verdict, sum(bounded)) == ("certified", 0)


def test_bounds_prove_what_no_halving_separates():
    """More ties at the same parameter than can be combined, none of which are alike."""
    image = ((torch.arange(30) * 13 % 251 + 0.5).double() / 255).view(1, 5, 6)
    network = Scores(image)
    unknown = verdict(lambda images: network(images), image, "R(0.001)")
    assert (unknown.verdict, unknown.reason) == ("unknown", "ties")
    assert verdict(network, image, "R(0.001)").verdict == "certified"


@pytest.mark.parametrize("keep", [KeepOwn(), TopK(2)])
@pytest.mark.usefixtures("willing")
def test_rules_have_bounds_of_their_own(keep, bounded):
    image = image_of()
    labels = None if isinstance(keep, KeepOwn) else LABEL
    certificate = tiltproof.certify(Scores(image), image[None], labels, "R(1)", semantics="uint8", keep=keep)
    assert (certificate.verdicts, sum(bounded)) == (["certified"], 256)


def test_what_has_no_bounds():
    network = Scores(image_of())
    assert is_plain(network)
    assert not is_plain(Scores(image_of()).double())
    assert not is_plain(nn.Sequential(Program(network)))
    assert not is_plain(torch.jit.script(nn.ReLU()))
    network._orig_mod = network.first  # as torch.compile wraps it
    assert not is_plain(network)

    class Sorted(nn.Module):
        def forward(self, images):
            return images.flatten(1).sort().values[:, :2] * torch.tensor([-1.0, 1.0]) + torch.tensor([9.0, 0.0])

    assert verdict(Sorted()).verdict == "certified"  # no rule: enumerated


@pytest.mark.usefixtures("willing")
def test_numbers_that_may_not_be_finite_prove_nothing():
    image = image_of()
    network = Scores(image)
    with torch.no_grad():
        network.last.weight *= 1e38
    assert verdict(network, image).verdict in ("unknown", "misclassified", "falsified")
    assert not math.isnan(verdict(Scores(image), image).margin)


EDGES = [("Tu(1)", "Tu", "edge"), ("Scu(5)", "Scu", "edge"), ("R(2)", "R", "point"), ("Sc(3)", "Sc", "mirrors")]


@pytest.mark.parametrize(("text", "letter", "kind"), EDGES)
def test_pixels_that_cross_together_are_one_event(text, letter, kind):
    """Sixteen pixels of a column, say, which no halving separates; every picture that occurs is evaluated all the same."""
    from tests.support.repeating_images import repeating

    image = repeating(kind, 16, 6).float()
    pictures = enumerated(image, text)
    (high,) = tiltproof.parse(text).high
    for value in np.random.default_rng(0).uniform(-high, high, 12).tolist():
        for picture in pictures_at(image.double().numpy(), letter, value):
            assert picture.tobytes() in pictures
    if letter == "R":
        assert missing(image.double().numpy(), np.random.default_rng(1).uniform(-2, 2, 2000).tolist(), pictures) == []


def test_alike_pixels_share_a_choice():
    """A vertical edge: all sixteen pixels of a column change at once, so that a box has two pictures instead of 2^16."""
    image = torch.zeros(1, 16, 4, dtype=torch.float64)
    image[..., 2:] = 200 / 255
    pixels = ChosenPixels(image, tiltproof.parse("Tu(1)"))
    assert len({*pixels.alike(0.2, 0.21, torch.arange(64), torch.zeros(64, dtype=torch.int64))}) <= 4
    assert len(enumerated(image.float(), "Tu(1)")) < 4 * 255


def test_halves_of_pieces_share_their_end():
    low, high = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 3.0]).double()
    halves = Pieces.open(low, high, torch.arange(2)).halves()
    assert torch.equal(halves.low, torch.tensor([0.0, 1.0, 0.5, 2.0]).double())
    assert torch.equal(halves.high, torch.tensor([0.5, 2.0, 1.0, 3.0]).double())
    assert halves.root.tolist() == [0, 1, 0, 1]
    assert bool((halves.bound == -torch.inf).all())


@pytest.mark.parametrize(
    ("bound", "holds"),
    [
        pytest.param(-1.0, False, marks=pytest.mark.slow),
        (0.1, False),
        pytest.param(math.nan, False, marks=pytest.mark.slow),
        pytest.param(0.3, True, marks=pytest.mark.slow),
    ],
)
def test_a_box_that_cannot_be_halved_needs_a_bound_above_the_tolerance(bound, holds):
    image = ((torch.arange(30) * 13 % 251 + 0.5).double() / 255).view(1, 5, 6)
    pixels = ChosenPixels(image, tiltproof.parse("R(0.001)"))
    ends = torch.tensor([-0.001]).double(), torch.tensor([0.001]).double()
    margins, bounds = (lambda some: torch.ones(len(some)).double()), (lambda low, _: torch.full_like(low, bound))
    found = Enumeration(pixels, margins, 0.2, -0.001, 0.001, bounds).run(*ends)
    assert found.holds is holds
    assert float(found.least[0]) == bound if holds else found.reason == "ties"
