"""benchmarks/scale.py runs, and images of 224 x 224 x 3 are certified with a ResNet-18 within a memory limit."""

import json
import subprocess
import sys

import pytest

from tests.support.processes import ROOT, environment

FOLDER = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="not in a source checkout")


def test_the_program_runs_and_says_how_costs_grow(start, tmp_path):
    printed, found = start("scale", "--quick", "--device", "cpu", "--memory", "64GB", "--out", tmp_path)
    assert found["end_to_end"]["certified"] == 1
    assert "limit 64.00 GB" in printed
    assert [len(curve["rows"]) for curve in found["curves"]] == [2, 5, 2]
    assert all(row["forward seconds"] > 0 for curve in found["curves"] for row in curve["rows"])
    assert (tmp_path / "scale.svg").read_text(encoding="utf-8").startswith("<svg")


def test_exponents(program):
    exponent = program("scale").exponent
    assert exponent([(x, 3 * x**1.5) for x in (1, 2, 5, 9)]) == pytest.approx(1.5)


PROGRAM = """
import json, resource, sys
import scale, tiltproof, torch


model, images = scale.network("cpu", width=64), scale.some_images(2, 224, "cpu")
with torch.no_grad():
    labels = model(images).argmax(1)
memory = json.loads(sys.argv[1])
execution = tiltproof.Execution(batch_size=8, memory=memory)
result = tiltproof.certify(model, images, labels, scale.RANGE, search=tiltproof.UniformGrid(4), execution=execution)
print(json.dumps([result.verdicts, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


@pytest.mark.slow
def test_large_images_are_certified_within_the_limit_and_take_more_without():
    """Eight boxes at once, in separate processes whose peak memory the system reports."""
    found = []
    for memory in (1_400_000_000, None):
        command = [sys.executable, "-c", PROGRAM, json.dumps(memory)]
        done = subprocess.run(command, env=environment(FOLDER), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    (limited, peak), (free, more) = found
    assert limited == free == ["certified"] * 2
    assert peak <= 1_400_000_000 < more - 300_000_000, (peak, more)
