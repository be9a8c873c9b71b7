"""Every command at terminals of 60, 80 and 120 columns, and every live display: output, ending, and Ctrl-C and SIGTERM midway.

A command missing from the table fails a test, and so does a call of a live display that no row reaches.
"""

import re
import signal
from dataclasses import dataclass, field

import pytest
import typer

from tests.cli.display_calls import called, display_calls
from tests.cli.terminal import COLUMNS, CTRL_C, HIDE_CURSOR, SHOW_CURSOR, Terminals
from tiltproof.cli import app

NETWORK = ("--model", "photo_networks:brightness", "--data", "photos")
RANGES = ("--model", "photo_networks:one_class", "--data", "photos")
TRANSFORM = ("--transform", "B(0.2)")
TRAIN = ("train", "tiny.toml", "--data-root", ".", "--device", "cpu", "--certify-images", "3")
LINE = {"display.live_line LiveDisplay"}
RUN = LINE | {"display.live_progress live_line"}
PROVE = RUN | {"certify.command _prove", "certify._prove live_progress"}
COUNT = LINE | {"display.live_count live_line"}
THREE_DIGITS = """
from tiltproof import data
from tiltproof.cli import demo
whole = data.load
data.load = lambda name: tuple(each[:3] for each in whole(name))
demo.DETAILS = 2
"""
ONE_FRAME = """
from tiltproof import data, transforms
whole, rotation = data.load, transforms.Rotation
data.load = lambda name: tuple(each[:1] for each in whole(name))
transforms.Rotation = lambda _: rotation(0.1)
"""


OTHER_WIDTHS = (60, 120)
LONG_WORDS = re.compile(r"tiltproof \w+ |^\s*\S+$|^[\[{\"]|\"[:,]")
"""Lines that the terminal wraps: commands to be copied, a word alone, JSON."""


@dataclass(frozen=True)
class Row:
    """A call's arguments; what it shows while it runs and at the end; the calls of live displays that it reaches."""

    arguments: tuple[str, ...]
    seen: tuple[str, ...]
    displays: set[str] = field(default_factory=set)
    needs: tuple[str, ...] = ()
    before: str = ""

    @property
    def name(self):
        return " ".join(self.arguments).replace(" ".join(NETWORK), "").replace(" ".join(RANGES), "")


ROWS = [
    Row(("certify", *NETWORK, *TRANSFORM), ("proving", "5/5", "misclassified"), PROVE),
    Row(
        ("certify", *NETWORK, *TRANSFORM, "--out", "run", "--curve"),
        ("proving", "5/5", "misclassified"),
        PROVE | {"certify.command _curve", "certify._curve live_progress"},
    ),
    Row(
        ("certify", *RANGES, *TRANSFORM, "--task", "regression"),
        ("proving", "5/5", "proved width"),
        PROVE,
    ),
    Row(
        ("radius", *NETWORK, *TRANSFORM, "--out", "run"),
        ("proving", "5/5", "proved radius, median", "with a counterexample"),
        RUN | {"radius.command live_progress"},
    ),
    Row(
        TRAIN,
        ("training", "epoch 2/2", "certifying", "runs/tiny: 2 epochs"),
        LINE | {"train.command live_training", "train.live_training live_line"},
    ),
    Row(
        ("check", "run", *NETWORK),
        ("re-proving", "3/3 boxes", "the certificate holds"),
        COUNT | {"check.command live_count"},
        needs=("certify", *NETWORK, *TRANSFORM, "--out", "run"),
    ),
    Row(
        ("check", "run", *RANGES),
        ("re-proving", "boxes", "the certificate holds: the output ranges of 5 images"),
        COUNT | {"check.command live_count"},
        needs=("certify", *RANGES, *TRANSFORM, "--task", "regression", "--out", "run"),
    ),
    Row(
        ("report", "run", *NETWORK),
        ("drawing", "5/5 images", "report: run/report.html"),
        COUNT | {"report.command live_count"},
        needs=("certify", *NETWORK, *TRANSFORM, "--out", "run"),
    ),
    Row(
        ("report", "run", *RANGES),
        ("drawing", "5/5 images", "report: run/report.html"),
        COUNT | {"report.command live_count"},
        needs=("certify", *RANGES, *TRANSFORM, "--task", "regression", "--out", "run"),
    ),
    Row(
        ("export", "--vnnlib", *NETWORK, *TRANSFORM, "--images", "0,1", "--splits", "3", "--out", "properties"),
        ("writing", "6/6 properties", "6 properties of 2 images"),
        COUNT | {"export.command live_count"},
    ),
    Row(
        ("export", "run", "--vnnlib", *NETWORK, "--out", "properties"),
        ("writing", "3/3 properties", "3 properties of 3 images"),
        COUNT | {"export.command live_count"},
        needs=("certify", *NETWORK, *TRANSFORM, "--out", "run"),
    ),
    Row(
        ("export", "run", "--csv", "run.csv"),
        ("run.csv: 5 rows",),
        needs=("certify", *NETWORK, *TRANSFORM, "--out", "run"),
    ),
    Row(("export", "run", "--jsonl", "-"), ('"unsafe"',), needs=("certify", *NETWORK, *TRANSFORM, "--out", "run")),
    Row(("certify", *NETWORK, *TRANSFORM, "--json", "-"), ('"certified": 3',)),
    Row(
        ("attack", *NETWORK, *TRANSFORM),
        ("attacking", "5/5 images", "5 images, 4 correct: 1 falsified"),
        COUNT | {"attack.command live_count"},
    ),
    Row(
        ("bound", "--data", "photos", "--transform", "R(2)", "--out", "bounds.png"),
        ("bounding", "bounds.png: widest pixel"),
        COUNT | {"bound.command live_count"},
    ),
    Row(
        ("tune", "--data", "photos", *TRANSFORM, "--nu", "0.1"),
        ("measuring", "30/30 boxes", "widest pixel of an image", "5 images"),
        COUNT | {"tune._counted live_count", "tune.command _counted"},
    ),
    Row(
        ("tune", "--data", "photos", *TRANSFORM, "--epsilon", "0.1"),
        ("finding nu", "measuring", "nu = [0."),
        COUNT | {"tune._counted live_count", "tune.command _counted", "tune.command _counted#2"},
    ),
    Row(
        ("demo", "--out", "demo"),
        ("proving", "3/3", "report, for any browser: demo/report.html"),
        RUN | {"demo.command _certify_digits", "demo._certify_digits live_progress"},
        before=THREE_DIGITS,
    ),
    Row(
        ("demo", "--task", "driving", "--out", "demo"),
        ("proving", "1/1", "as tight as asked for", "report, for any browser: demo/report.html"),
        RUN | {"demo.command _certify_steering", "demo._certify_steering live_progress"},
        before=ONE_FRAME,
    ),
    Row(
        ("inspect", *NETWORK[1:], *TRANSFORM),
        ("row sums", "every operation has a rule", "float64: rounding", "B(0.2): about"),
        COUNT | {"inspect.command live_count"},
    ),
    Row(("models",), ("MNIST, R(30)", "mnist-r30")),
]


@pytest.fixture(scope="module")
def terminals():
    server = Terminals()
    yield server
    server.close()


def commands(command, path=()):
    """Return the paths of all commands that do something, including sub-commands."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return {path}
    return {each for name, child in inner.items() for each in commands(child, (*path, name))}


def test_the_table_has_every_command():
    every = commands(typer.main.get_command(app))
    assert {row.arguments[: len(path)] for row in ROWS for path in every if row.arguments[: len(path)] == path} == every


def test_the_table_reaches_every_live_display():
    assert set().union(*(row.displays for row in ROWS)) == {call.name for call in display_calls()}


def test_a_live_display_cannot_hide(tmp_path):
    """This holds whatever its import, its name or the way to it."""
    (tmp_path / "one.py").write_text(
        "from rich.live import Live as Shown\n\ndef inner():\n    with Shown() as live:\n        return live\n"
    )
    (tmp_path / "two.py").write_text(
        "from rich import progress\nfrom one import inner\n\ndef command():\n    inner()\n    inner()\n"
        "    progress.track([])\n    print('no display')\n\ndef other(console):\n    console.status('')\n"
    )
    expected = ["one.inner Shown", "two.command inner", "two.command inner#2", "two.command track", "two.other status"]
    assert [call.name for call in display_calls(tmp_path)] == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_at_a_terminal(row, terminals, tiltproof, digits):
    if row.needs:
        assert tiltproof(*row.needs, "--quiet").exit_code == 0
    seen = terminals.run(*row.arguments, folder=digits, before=row.before, also_at=OTHER_WIDTHS)
    for columns, shown in {COLUMNS: seen, **seen.others}.items():
        assert shown.code == 0, shown.text
        assert "Traceback" not in shown.text
        text = " ".join(shown.text.split())
        for words in row.seen:
            assert words in text, (columns, shown.text)
        assert max(map(len, shown.live_lines), default=0) <= columns
        too_long = [line for line in shown.lines_after_display if len(line) > columns and not LONG_WORDS.search(line)]
        assert not too_long, columns
        assert (HIDE_CURSOR in shown.raw) == bool(row.displays), "a display hides the cursor while it is live"
        assert shown.raw.count(HIDE_CURSOR) == shown.raw.count(SHOW_CURSOR)
    assert set(seen.others) == set(OTHER_WIDTHS)
    assert called(seen.calls) == row.displays
    assert seen.lines_after_display or not row.seen


INTERRUPTED = [
    (("certify", *NETWORK, *TRANSFORM), ("proving", 0), "proving", "nothing was kept (--out keeps finished batches)"),
    (
        ("certify", *NETWORK, *TRANSFORM, "--batch-images", "1", "--out", "kept"),
        ("proving", 2),  # a batch is shown before it is on disk, so the first is kept by now
        "2/5",
        "finished batches are kept in kept; repeat the command with --resume to go on",
    ),
    (
        (*TRAIN, "--set", "train.epochs=5000"),
        ("training", 1),
        "epoch 1/5000",
        "no epoch was finished, so nothing was kept",
    ),
    (("check", "run", *NETWORK), ("re-proving", 1), r"\d/\d boxes", "nothing was decided"),
    (("inspect", *NETWORK[1:], *TRANSFORM), ("inspecting", 1), r"\d/\d steps", "nothing was decided"),
    (("attack", *NETWORK, *TRANSFORM), ("attacking", 1), r"\d/\d images", "nothing was kept"),
    (("tune", "--data", "photos", *TRANSFORM, "--nu", "0.1"), ("measuring", 1), r"\d/\d+ boxes", "nothing was kept"),
    (("report", "run", *NETWORK), ("drawing", 1), "1/5 images", "no report was written"),
    (
        ("export", "--vnnlib", *NETWORK, *TRANSFORM, "--images", "0,1", "--splits", "9", "--out", "properties"),
        ("writing", 1),
        "1/18 properties",
        "nothing was kept",
    ),
]
"""Arguments; the activity and its progress at which the run is stopped; what is shown there; the message afterwards."""
ENDINGS = {"interrupted": (130, {"press": CTRL_C}), "terminated": (143, {"send": signal.SIGTERM})}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize(("arguments", "wait_at", "at", "said"), INTERRUPTED, ids=lambda value: value[0])
def test_ended_in_the_middle(terminals, tiltproof, digits, arguments, wait_at, at, said, how):
    if arguments[1] == "run":
        assert tiltproof("certify", *NETWORK, *TRANSFORM, "--out", "run", "--quiet").exit_code == 0
    before = {path for path in digits.rglob("*") if path.name != "__pycache__"}
    code, means = ENDINGS[how]
    seen = terminals.run(*arguments, folder=digits, wait_at=wait_at, at=at, **means)
    assert seen.code == code, seen.text
    assert "Traceback" not in seen.text
    assert " ".join(line.strip() for line in seen.lines_after_display) == f"{how}: {said}"
    assert max(map(len, seen.lines_after_display)) <= COLUMNS
    assert seen.raw.count(HIDE_CURSOR) == seen.raw.count(SHOW_CURSOR) == 1
    if arguments[0] in ("check", "report", "export"):
        assert {path for path in digits.rglob("*") if path.name != "__pycache__"} == before
