"""A padding that is added to the table alone is refused by everything that goes outside the image, not taken for a known one."""

import re
from pathlib import Path

import pytest
import torch

import tiltproof
from tiltproof import FGV, AffineBounds, IntervalHull, UnsupportedOperation, parse
from tiltproof.checker import photometric as checker_photometric
from tiltproof.checker import pixels as checker_pixels
from tiltproof.checker.form import Form
from tiltproof.enclosures.affine_form import Interval
from tiltproof.kernels import pixels as kernel_pixels
from tiltproof.pixels import bilinear
from tiltproof.transforms import interpolation
from tiltproof.transforms.base import OPTIONS, PADDINGS

NEW = "wrap"
IMAGES = torch.rand(1, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TEXTS = ("R(40)", "Tu(3)", "Sc(5), R(5)", "Yaw(2@300)", "Bl(0:2)", "Mb(2@30)", "Bl(0:1), R(3)")


@pytest.fixture
def added(monkeypatch):
    """As if somebody had added the name, and nothing else."""
    monkeypatch.setitem(OPTIONS, "padding", (*PADDINGS, NEW))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.usefixtures("added")
def test_transformed_images_and_proofs(text):
    transform = parse(text, padding=NEW)
    with pytest.raises(UnsupportedOperation, match="padding 'wrap'"):
        transform.apply(IMAGES, torch.tensor([transform.high], dtype=torch.float64))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2)).double()
    for bounds in (AffineBounds(), IntervalHull()):
        with pytest.raises(UnsupportedOperation, match="padding 'wrap'"):
            tiltproof.certify(model, IMAGES, model(IMAGES).argmax(1), transform, bounds=bounds, attack=None)
    if "l" not in text and "b" not in text:
        with pytest.raises(UnsupportedOperation, match="padding 'wrap'"):
            tiltproof.certify(model, IMAGES, model(IMAGES).argmax(1), transform, bounds=FGV(), attack=None)


LINE = torch.arange(-3, 9)
BOX = Interval(torch.full((1, 2, 2), -3.0, dtype=torch.float64), torch.full((1, 2, 2), 40.0, dtype=torch.float64))
FORM = Form(torch.zeros(2, 1, 1, 6, 6, dtype=torch.float64))
FUNCTIONS = {
    "ring_index": lambda: interpolation.ring_index(LINE, 6, NEW),
    "positions in reach": lambda: interpolation.in_reach(LINE.double(), 6, NEW),
    "axis": lambda: bilinear.axis(BOX, 6, NEW),
    "wide boxes": lambda: bilinear.too_wide(BOX, BOX, 6, 6, NEW),
    "hulls of wide boxes": lambda: bilinear.wide_hull(IMAGES, torch.zeros(1).long(), BOX, BOX, NEW),
    "copies for kernels": lambda: kernel_pixels._prepare(IMAGES, NEW, True),
    "the checker's index": lambda: checker_photometric.endless(LINE, 6, NEW),
    "the checker's blur": lambda: checker_photometric.shifted(FORM.rows, 1.5, 0.5, NEW),
    "the checker's corners": lambda: checker_pixels.corners(
        IMAGES, LINE.view(-1, 1, 1, 1), LINE.view(-1, 1, 1, 1), NEW
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_go_outside(name):
    with pytest.raises(UnsupportedOperation, match="padding 'wrap'"):
        FUNCTIONS[name]()


def test_nothing_takes_every_other_padding_for_a_known_one():
    """Comparisons with "reflect" or "border" stand where all others are refused; those with "zeros" only choose a shorter way or text."""
    source = Path(tiltproof.__file__).parent
    found = {
        f"{path.relative_to(source).as_posix()}: {match}"
        for path in source.rglob("*.py")
        for match in re.findall(r"padding (?:==|!=) \"(?:reflect|border)\"", path.read_text())
    }
    assert found == {'transforms/interpolation.py: padding == "reflect"', 'checker/photometric.py: padding == "border"'}
