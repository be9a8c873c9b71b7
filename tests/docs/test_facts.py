"""Facts that the documents state about the code, compared with the code."""

import re
import runpy
from pathlib import Path

import tiltproof
import tiltproof.checker
from tests.support.processes import ROOT
from tiltproof.names import INTERPOLATIONS
from tiltproof.transforms import LETTERS
from tiltproof.verify.branch_and_bound import PRECISE_FROM

DOCS = ROOT / "docs"
CHECKER = Path(tiltproof.checker.__file__).parent
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def page(name):
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def test_from_which_halving_on_bounds_are_float64():
    found = re.findall(r"boxes (?:that were )?halved (\w+) times", page("what-is-certified.md"))
    assert found == [NUMBERS[PRECISE_FROM]]


def test_the_citation_names_the_version_that_is_cited():
    (version,) = re.findall(r"version = \{(\S+)\}", page("faq.md"))
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_page_of_constructs_is_current():
    script = runpy.run_path(str(ROOT / "scripts" / "docs_constructs.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run python scripts/docs_constructs.py"


def test_the_checkers_size_and_reading_order():
    (said,) = re.findall(r"some ([\d,]+) lines, in the order that its `__init__` gives", page("certificates.md"))
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in CHECKER.glob("*.py"))
    assert abs(int(said.replace(",", "")) - lines) <= 100, lines
    named = re.findall(r"`(\w+)`", tiltproof.checker.__doc__)
    assert sorted(named) == sorted(path.stem for path in CHECKER.glob("*.py") if path.stem != "__init__")


def test_the_comparison_knows_every_transformation():
    """The package's row in the table must contain the word for every letter."""
    words = {
        "R": "rotation", "Tu": "translation", "Tv": "translation", "Sc": "scaling", "Scu": "scaling", "Scv": "scaling", "Sh": "shearing",
        "Shv": "shearing", "Yaw": "yaw", "Pitch": "pitch", "Roll": "roll", "Tx": "moves", "Ty": "moves", "Tz": "moves",
        "Ld": "lens distortion",
        "C": "contrast", "B": "brightness", "G": "gamma",
        "S": "saturation", "H": "hue", "Bl": "Gaussian and motion blur", "Mb": "Gaussian and motion blur",
    }  # fmt: skip
    assert set(words) == set(LETTERS)
    (row,) = re.findall(r"\| tiltproof \| deterministic \|.*?\| yes \| yes \|", page("comparison.md"))
    assert all(word in row for word in words.values())
    missing = page("comparison.md").split("What others have and tiltproof does not")[1]
    for word in ("hue", "saturation", "blur", "perspective", "Perspective", "camera", "noise", "interpolation"):
        assert word not in missing


def test_what_the_comparison_says_is_here_is_here():
    adds = page("comparison.md").split("What tiltproof adds")[1].split("## What others have")[0]
    assert all(name in adds for name in INTERPOLATIONS)
    assert str(tiltproof.parse("R(2), Linf(0.01)")) == "R(2), Linf(0.01)"
