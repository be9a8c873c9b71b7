"""One statement about all frames of a drive, and its strip."""

import dataclasses
import json
import math
from fractions import Fraction
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tiltproof import certify_range, parse
from tiltproof.cli import app
from tiltproof.reports.strip import NARROW, sequence_section, sequence_strip
from tiltproof.runs.reader import read_finished
from tiltproof.verify.results import RangeResult
from tiltproof.verify.sequence import deviations, sequence_statement


@pytest.fixture(scope="module")
def drive():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)).eval()
    images = torch.rand(5, 1, 6, 6)
    return model, images, certify_range(model, images, None, "B(0.1), C(5)").results


def test_no_sampled_frame_moves_further(drive):
    model, images, results = drive
    statement = sequence_statement(results)
    assert statement.proved
    assert statement.frames == 5
    transform = parse("B(0.1), C(5)")
    low, high = torch.tensor(transform.low), torch.tensor(transform.high)
    worst = 0.0
    with torch.no_grad():
        clean = model(images)
        for _ in range(100):
            moved = model(transform.apply(images, low + torch.rand(5, 2).round() * (high - low)))
            worst = max(worst, float((moved - clean).abs().max()))
    assert worst <= statement.largest_deviation + 1e-6
    assert statement.reached <= statement.largest_deviation
    assert worst >= 0.5 * statement.reached


def test_deviations_are_rounded_up(drive):
    for result in drive[2]:
        for low, middle, high, found in zip(
            result.lower, result.prediction, result.upper, deviations(result), strict=True
        ):
            assert Fraction(found) >= max(Fraction(high) - Fraction(middle), Fraction(middle) - Fraction(low))
    worst = sequence_statement(drive[2])
    assert worst.largest_deviation == deviations(drive[2][worst.worst_frame])[worst.worst_output]


@pytest.mark.parametrize("side", ["lower", "upper"])
@pytest.mark.parametrize("size", [math.inf, math.nan])
def test_a_frame_without_a_bound_is_named(drive, side, size):
    results = list(drive[2])
    end = -size if side == "lower" else size
    results[3] = dataclasses.replace(results[3], **{side: (getattr(results[3], side)[0], end)})
    statement = sequence_statement(results)
    assert (statement.proved, statement.largest_deviation) == (False, None)
    assert (statement.worst_frame, statement.worst_output) == (3, 1)
    assert "not proved" in statement.sentence
    assert "no bound" in sequence_strip(results)


def test_the_strip_has_a_bar_for_each_frame(drive):
    picture = ElementTree.fromstring(sequence_strip(drive[2]))
    titles = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 5
    assert titles[0].startswith("frame 0: at most ")
    long = [dataclasses.replace(drive[2][k % 5], image=k) for k in range(1801)]
    for width, first in ((1100, "frame 0 to 1: "), (NARROW, "frame 0 to 6: ")):
        picture = ElementTree.fromstring(sequence_strip(long, width))
        titles = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}title")]
        assert width / 2 < len(titles) <= width
        assert titles[0].startswith(first)


def test_the_section_marks_the_worst_frame(drive):
    section = sequence_section(drive[2])
    worst = sequence_statement(drive[2])
    assert f"Open frame {worst.worst_frame}, the worst" in section
    assert section.count("strip-worst") == 2, "once on large screens, once on phones"
    assert f"frame {worst.worst_frame}: {worst.largest_deviation:.4g}</text>" in section
    later = [dataclasses.replace(result, image=result.image + 100) for result in drive[2]]
    assert f'data-row="{worst.worst_frame}" hidden>Open frame {worst.worst_frame + 100},' in sequence_section(later)


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_the_command_states_it_and_keeps_it(tmp_path, monkeypatch):
    (tmp_path / "drives.py").write_text(
        "import torch\nfrom torch import nn\n\ndef angle():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1)).eval()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = ("certify", "--model", "drives:angle", "--data", "mnist-sample", "--transform", "B(0.01)", "--limit", 3)
    done = run(*asked, "--task", "regression", "--sequence", "--out", "run", "--json", "all.json")
    assert done.exit_code == 0, done.output
    assert "sequence: in all 3 frames no output moves by more than" in done.output
    found = json.loads((tmp_path / "all.json").read_text())
    results = [RangeResult.of_record(record) for record in found["records"]]
    assert found["sequence"] == sequence_statement(results).record()
    kept = read_finished(tmp_path / "run")
    assert kept.notes["sequence"] is True
    assert sequence_statement(kept.results) == sequence_statement(results)
    refused = run(*asked, "--sequence")
    assert refused.exit_code == 2
    assert "--sequence" in refused.output
