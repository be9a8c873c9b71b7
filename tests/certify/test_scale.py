"""benchmarks/scale.py runs, and pictures of 224 x 224 x 3 are certified with a ResNet-18 within a limit on memory."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="not in a source checkout")


def test_the_program_runs_and_says_how_costs_grow(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    file = tmp_path / "scale.json"
    arguments = ["--quick", "--device", "cpu", "--memory", "64GB", "--out", tmp_path, "--json", file]
    monkeypatch.setattr(sys, "argv", ["scale", *map(str, arguments)])
    importlib.import_module("scale").main()
    printed, found = capsys.readouterr().out, json.loads(file.read_text())
    assert found["end_to_end"]["certified"] == 1
    assert "limit 64.00 GB" in printed
    assert [len(curve["rows"]) for curve in found["curves"]] == [2, 5, 2]
    assert all(row["forward seconds"] > 0 for curve in found["curves"] for row in curve["rows"])
    assert (tmp_path / "scale.svg").read_text(encoding="utf-8").startswith("<svg")


def test_exponents(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    exponent = importlib.import_module("scale").exponent
    assert exponent([(x, 3 * x**1.5) for x in (1, 2, 5, 9)]) == pytest.approx(1.5)


@pytest.mark.slow
def test_large_pictures_are_certified_within_the_limit_and_need_more_without():
    """The same run in processes of their own, whose peaks the system reports."""
    code = (
        f"import sys, argparse; sys.path.insert(0, {str(FOLDER)!r}); import scale, resource, json; "
        "found = scale.certified(argparse.Namespace(device='cpu', images=2, size=224, width=64, boxes=16, memory=sys.argv[1])); "
        "print(json.dumps(found | {'rss': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))"
    )
    found = {}
    for limit in ("1.7GB", "64GB"):
        done = subprocess.run(
            [sys.executable, "-c", code, limit], env=os.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found[limit] = json.loads(done.stdout.splitlines()[-1])
        assert found[limit]["certified"] == 2
    assert found["1.7GB"]["rss"] <= 1_700_000_000 < found["64GB"]["rss"]
