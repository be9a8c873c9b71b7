"""What is shown at terminals of 60, 80 and 120 columns: it fits, and nothing that matters is lost in a narrow one."""

import re

import pytest

from tests.cli.terminal import Terminals
from tiltproof.cli.certify import searches
from tiltproof.cli.kept import KeepChoice
from tiltproof.cli.messages import message_lines
from tiltproof.cli.next_step import next_steps
from tiltproof.cli.options import Files
from tiltproof.errors import InputError
from tiltproof.names import ARCHITECTURE_NAMES
from tiltproof.transforms import parse
from tiltproof.verify.progress_bar import statuses
from tiltproof.verify.results import Certificate, ImageResult, Progress, Reason, Verdict

WIDTHS = (60, 80, 120)
NETWORK = ("--model", "photo_networks:brightness", "--data", "photos")
FOUR_DIGITS = """
from tiltproof.cli import certify
from tiltproof.verify.results import Progress
prove = certify._prove
def slow(problem, task, tolerance, settings, quiet):
    with certify.live_progress(10_000, quiet) as progress:
        for done in (0, 995, 1_995, 9_995):
            counts = {"certified": done, "falsified": 1, "unknown": 3, "misclassified": 1}
            progress(Progress(10_000, done, **counts, boxes=99_999, seconds=9.0, phase="prove", seconds_left=599.0))
    return prove(problem, task, tolerance, settings, quiet)
certify._prove = slow
"""


@pytest.fixture(scope="module")
def terminals():
    server = Terminals()
    yield server
    server.close()


@pytest.mark.parametrize("columns", WIDTHS)
def test_certify(columns, terminals, workspace):
    arguments = ("certify", *NETWORK, "--transform", "B(0.2)", "--boxes", "99", "--out", "run", "--curve")
    seen = terminals.run(*arguments, folder=workspace, before=FOUR_DIGITS, columns=columns)
    assert seen.code == 0, seen.text
    assert max(map(len, seen.live_lines)) <= columns
    live = "\n".join(seen.live_lines)
    for phase in ("attacking", "proving", "curve"):
        assert re.search(f"^{phase} ", live, re.MULTILINE), live
    assert re.search(r"^proving .*9,995/10,000 certified 9,995.* 9:59 left$", live, re.MULTILINE)
    (many,) = {line for line in seen.live_lines if "9,995/10,000" in line}
    assert ("boxes/s" in many) == (columns == 120)
    end = "\n".join(seen.lines_after_display)
    assert max(len(line) for line in seen.lines_after_display if "tiltproof" not in line) <= columns
    table = end.partition("not certified")[2].partition("certified over smaller ranges")[0]
    rows = [line.split() for line in table.splitlines() if re.match(r" +\d", line)]
    assert [row[:2] for row in rows] == [["2", "falsified"], ["3", "misclassified"]]
    assert -0.2 <= float(rows[0][2]) < -0.08  # the mean 150/255 falls below one half
    assert "margin" in rows[0]
    chart = end.partition("certified over smaller ranges")[2]
    bars = {line.split()[0]: line.count("\u2588") for line in chart.splitlines() if line.startswith("B(")}
    assert list(bars) == ["B(0.02)", "B(0.05)", "B(0.1)", "B(0.15)", "B(0.18)", "B(0.2)"]
    assert bars["B(0.02)"] == 24  # four of five images, of 30 characters
    assert bars["B(0.2)"] == 18
    assert f"\nnext: tiltproof check run {' '.join(NETWORK)}\n" in end
    assert f"\n      tiltproof report run {' '.join(NETWORK)}" in end


def test_show(certify):
    assert "1 more: --show 2 lists all" in certify("--show", 1).stdout
    nothing = certify("--show", 0).stdout
    assert "not certified" not in nothing
    assert "next: tiltproof radius" in nothing
    assert "certify with --out FOLDER" in nothing


def test_the_first_unknown_image_can_be_attacked():
    reasons = {"counterexample": None, "open_box": ((1.0,), (1.5,)), "boxes": 9, "seconds": 1.0, "reason": Reason.BOXES}
    results = [
        ImageResult(image, 7, verdict, 0.5, None, None, **reasons)
        for image, verdict in ((30, Verdict.CERTIFIED), (31, Verdict.UNKNOWN), (32, Verdict.UNKNOWN))
    ]
    certificate = Certificate("R(5)", "affine", "real", results)
    asked = searches(certificate, parse("R(5)"), KeepChoice(allow=["1,2"]), {"--limit": 3})
    about = {"--transform": "R(5)", "--allow": ["1,2"]}
    assert asked == {"attack": about | {"--start": 31, "--limit": 1}, "radius": about | {"--limit": 3}}
    steps = next_steps(None, "net.onnx", "photos", Files(mean="0.5", rgb=True), asked)
    assert steps[0].endswith("photos --mean 0.5 --rgb --transform 'R(5)' --allow 1,2 --start 31 --limit 1")
    assert steps[1].startswith("tiltproof radius --model net.onnx --data photos --mean 0.5 --rgb --transform 'R(5)'")
    assert set(searches(certificate, parse("R(1:5)"), KeepChoice(), {})) == {"attack"}
    assert searches(Certificate("R(5)", "affine", "real", results[:1]), parse("R(5)"), KeepChoice(), {}) == {}


@pytest.mark.parametrize("columns", WIDTHS)
def test_an_error(columns, terminals, workspace):
    arguments = ("certify", *NETWORK, "--transform", "B(0.2)", "--arch", "resnet", "--model", "net.safetensors")
    (workspace / "net.safetensors").write_bytes(b"")
    seen = terminals.run(*arguments, folder=workspace, columns=columns)
    assert seen.code == 2
    lines = seen.text.rstrip().splitlines()
    assert lines[:2] == ["error: unknown architecture", "  got: resnet"]
    assert lines[2].startswith("  do:  use one of ")
    assert max(map(len, lines)) <= columns
    assert " ".join(line.strip() for line in lines[2:]) == f"do:  use one of {', '.join(ARCHITECTURE_NAMES)}"


def test_a_message_has_all_its_parts_and_keeps_words_whole():
    path = "/a/path/that-is-longer/than-the-line"
    error = InputError("it cannot be read", got=path, why="no such file", do="give another")
    lines = ["error: it cannot", "  be read", f"  got: {path}", "  why: no such", "       file"]
    assert message_lines(error, 17) == [*lines, "  do:  give", "       another"]


def test_progress_without_verdicts():
    """A regression run, and a run that has just begun."""
    progress = Progress(5, 0, 0, 0, 0, 0, boxes=0, seconds=0.0, phase="attack", ranges=True)
    assert statuses(progress) == [""]
