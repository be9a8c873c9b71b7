"""The site builds without a warning, its generated parts are complete and current, and its plots and tables match the code."""

import os
import re
import subprocess
import sys
from types import ModuleType

import docs_pages
import docs_pictures
import pytest

import tiltproof
from tests.docs.blocks import PAGES, ROOT
from tiltproof.cli.app import COMMANDS
from tiltproof.models import Card, models
from tiltproof.transforms import LETTERS

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="not in a source checkout")
DATED = {"tiling", "radius-curve"}
"""Plots of what the search happened to do, which need not change with it."""


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="make docs installs it")
    pytest.importorskip("latex2mathml")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for path in PAGES[1:]:
        html = (tmp_path / f"{path.stem}.html").read_text(encoding="utf-8")
        assert "|---" not in html, f"{path.name} has a table that is none"
        assert 'src="http' not in html, "the site asks nobody else's server"
        assert "fonts.googleapis" not in html
        assert "$$" not in re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.DOTALL), "a formula that is not typeset"
        assert 'src="assets/iframe-worker.js"' in html, "the search needs it in a folder, without a server"
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 100_000
    assert "<math" in (tmp_path / "proofs.html").read_text(encoding="utf-8")
    reference = (tmp_path / "python.html").read_text(encoding="utf-8")
    for name in tiltproof.__all__:
        if isinstance(getattr(tiltproof, name), ModuleType):
            continue  # shown by what it holds
        assert re.search(rf'id="[\w.]*\b{name}"', reference), name


def test_the_generated_parts_are_complete():
    for name in COMMANDS:
        assert f"\n## tiltproof {name}\n" in "\n" + docs_pages.commands()
    for letter, part in LETTERS.items():
        assert f"| `{letter}` |" in docs_pages.transformations()
        assert f"### {part.__name__}\n" in docs_pages.transformations()
        assert f"`{letter}`" in docs_pages.letters()
    assert "`conv2d`" in docs_pages.operations()
    used = {mark[0] for path in PAGES for mark in docs_pages.MARK.findall(path.read_text(encoding="utf-8"))}
    assert used == set(docs_pages.GENERATED)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_generated_parts_are_current(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("<!-- generated: ") == text.count("<!-- end -->") == len(docs_pages.MARK.findall(text))
    assert docs_pages.filled(text) == text, "run python scripts/docs_pages.py"


def test_every_page_and_image_is_used():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in PAGES[1:]:
        assert f": {path.name}\n" in navigation, f"{path.name} needs a line under nav in mkdocs.yml"
    texts = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    drawn = {path.stem for path in (ROOT / "docs" / "pictures").iterdir()}
    assert drawn == set(docs_pictures.PICTURES)
    assert all(f"](pictures/{name}.svg)" in texts for name in drawn)


def test_links_to_files_lead_somewhere():
    """The site's build looks at Markdown links of the pages below docs/; these are the others."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES[1:]):
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
        links += re.findall(r"\]\(([^)\s]+)\)", text) if path.parent == ROOT else []
        for link in links:
            if not link.startswith("https://"):
                assert (path.parent / link.partition("#")[0]).exists(), (path.name, link)


def test_every_example_is_shown():
    shown = [mark[1] for mark in docs_pages.MARK.findall(page("examples"))]
    assert sorted(shown) == sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py"))


def test_files_that_are_named_exist():
    for path in PAGES:
        for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|toml))`", path.read_text(encoding="utf-8")):
            assert any((base / name).exists() for base in (ROOT, ROOT / "src" / "tiltproof")), (path.name, name)


@pytest.mark.parametrize("name", sorted(set(docs_pictures.PICTURES) - DATED))
def test_images_are_up_to_date(name):
    """Compare up to the last digit of a coordinate, which rounding may change, and up to bitmap compression."""
    stored = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    texts, numbers = zip(*map(taken_apart, (stored, str(docs_pictures.PICTURES[name]()))), strict=True)
    assert texts[0] == texts[1], "run python scripts/docs_pictures.py"
    assert numbers[0] == pytest.approx(numbers[1], abs=0.21), "run python scripts/docs_pictures.py"


def taken_apart(svg):
    svg = re.sub(r"base64,[^\"]*", "", svg)
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", svg)]
    return re.sub(r"-?\d+\.\d+", "#", svg), numbers


@pytest.mark.parametrize("path", ["README.md", "docs/benchmarks.md"])
def test_the_tables_of_trained_networks_agree_with_their_cards(path):
    cards = {card.name: card for card in models() if isinstance(card, Card)}
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    named = [row for row in rows if row[0] in cards and row[1] == cards[row[0]].transform]
    assert {row[0] for row in named} == set(cards)
    for name, _, clean, certified, *_ in named:
        assert (float(clean), float(certified)) == (cards[name].clean_percent, cards[name].certified_percent)


def test_the_code_that_is_quoted_is_there():
    source = (ROOT / "src" / "tiltproof" / "network" / "ops" / "activations.py").read_text(encoding="utf-8")
    quoted = re.findall(r"```text\n(@.*?)```", page("add-an-operation"), re.DOTALL)
    assert len(quoted) == 2
    assert all(block.strip() in source for block in quoted)
