"""``progress=True``, and what a notebook shows of a certificate."""

import io
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from tiltproof import InputError, attack, certify, certify_range
from tiltproof.verify import progress_bar
from tiltproof.verify.progress_bar import reported
from tiltproof.verify.results import Progress

IMAGES = torch.linspace(0.1, 0.9, 5)[:, None, None, None].expand(5, 1, 4, 4).contiguous()
LABELS = torch.tensor([0, 0, 1, 1, 1])
REPORT = Progress(8, 2, 1, 0, 1, 0, boxes=9, seconds=3.0, phase="prove", seconds_left=9.0)


@pytest.fixture
def model():
    """Class 1 where the mean is above one half."""
    layer = nn.Linear(16, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 16) / 16)
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    return nn.Sequential(nn.Flatten(), layer).eval()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def at_a_terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_bar_at_a_terminal(model, monkeypatch, columns):
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(progress_bar, "DRAW_SECONDS", 0)
    certify(model, IMAGES, LABELS, "B(0.15)", progress=True)
    states = terminal.getvalue().split("\r")
    assert states[0] == states[-1] == ""
    assert not states[-2].strip(), "the bar is gone at the end"
    assert max(map(len, states)) < columns
    assert any(re.match(r"attacking 0/5 \[-+\]", state) for state in states)
    assert any(re.match(r"proving 5/5 \[#+\] certified 4", state) for state in states)
    assert "\n" not in terminal.getvalue()


def test_a_bar_is_closed_after_an_error(monkeypatch):
    terminal = at_a_terminal(monkeypatch)
    bar = reported(True)
    bar.__enter__()(REPORT)
    assert not bar.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert terminal.getvalue().endswith("\r")


def test_lines_in_a_log(monkeypatch, capsys):
    with reported(True) as report:
        report(REPORT)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(progress_bar, "LOG_SECONDS", 0)
        report(REPORT)
    assert (
        capsys.readouterr().err
        == "proving | 2/8 images | certified 1, falsified 0, unknown 1 | 3 boxes/s | 0:09 left\n"
    )


def test_a_bar_in_a_notebook(model, monkeypatch):
    shown = []
    display = ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda first, display_id: SimpleNamespace(update=shown.append)  # noqa: ARG005
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel="a notebook")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    certify_range(model, IMAGES, None, "B(0.15)", progress=True)
    assert shown[-1].startswith('proving <progress value="5" max="5"></progress> 5/5')


def test_other_values_of_progress(model):
    seen = []
    certify(model, IMAGES, LABELS, "B(0.15)", progress=seen.append)
    assert seen[-1].done == 5
    assert certify(model, IMAGES, LABELS, "B(0.15)", progress=False).results
    with pytest.raises(InputError, match="progress is a function, or True for a bar"):
        certify(model, IMAGES, LABELS, "B(0.15)", progress="yes")


def test_an_attack_with_progress_finds_the_same(model, monkeypatch):
    monkeypatch.setattr("tiltproof.verify.attack.IMAGES_AT_ONCE", 2)
    seen = []
    result = attack(model, IMAGES, LABELS, "B(0.25), R(5)", progress=lambda done, count: seen.append((done, count)))
    other = attack(model, IMAGES, LABELS, "B(0.25), R(5)")
    assert (result.parameters, result.correct) == (other.parameters, other.correct)
    assert sum(each is not None for each in result.parameters) >= 2
    assert seen[-1] == (5, 5)
    assert len(seen) == 2


def test_a_certificate_in_a_notebook(model):
    html = certify(model, IMAGES, LABELS, "B(0.25)")._repr_html_()
    assert "<b>B(0.25), method affine, semantics real</b>: 5 images" in html
    assert "<tr><td>certified</td><td>2</td></tr><tr><td>falsified</td>" in html
    assert "<th>counterexample</th>" in html
    html = certify(model, IMAGES, LABELS, "B(0.01)")._repr_html_()
    assert "misclassified" in html
    ranges = certify_range(model, IMAGES, None, "B(0.25)")
    ranges.transform = "<script>"
    assert "&lt;script&gt;" in ranges._repr_html_()
