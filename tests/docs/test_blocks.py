"""Every code block in the documentation and the README runs, or a comment says why not and it is checked anyway."""

import csv
import io
import json
import re
import tomllib

import pytest
import typer
from typer.testing import CliRunner

from tests.docs.blocks import PAGES, ROOT, blocks, commands, written
from tests.docs.workspace import IMAGES, make_workspace
from tiltproof.cli import app

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="not in a source checkout")
LANGUAGES = {"python", "console", "json", "toml", "csv", "text", "bibtex"}
REASONS = {
    "installs packages",
    "needs a Keras file",
    "needs a TFLite file",
    "needs the authors' networks",
    "takes hours, or a GPU",
    "takes minutes, and the full data sets",
    "starts several processes",
    "examples that --help shows",
    "asks the operating system",
}
OTHER_TESTS = {"README.md": "tests/docs/test_readme.py", "training.md": "tests/docs/test_training_guide.py"}
"""Pages whose Python a separate test runs, which also inspects the results."""
SHORT_TRAINING = ["--set", "train.epochs=1", "--set", f"train.batch_size={IMAGES}", "--certify-images", "1"]
WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
LONG = {"training.md"}
"""Pages with many commands; tests/docs/test_training_guide.py checks the options and recipes of this one quickly."""
WITH_COMMANDS = [page for page in PAGES if blocks(page, "console")]


def name(page):
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_only_what_can_be_tested_is_shown(page):
    found = blocks(page)
    assert written(page).count("```") <= 2 * len(found), "a block that is not closed or indented"
    for block in found:
        assert block.language in LANGUAGES, block.code
        assert block.reason in {None, *REASONS}
        assert block.reason is None or block.language == "console", "only commands may be left out"
        if block.language == "text":
            assert not re.search(r"^(import |from \w+ import|tiltproof [a-z]+ --)", block.code, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_data_can_be_read(page):
    for block in blocks(page, "json"):
        try:
            json.loads(block.code)
        except json.JSONDecodeError:
            [json.loads(line) for line in block.code.splitlines()]
    for block in blocks(page, "toml"):
        tomllib.loads(block.code)
    for block in blocks(page, "csv"):
        assert next(csv.reader(io.StringIO(block.code))) == ["filename", "label"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's exporter to ONNX
@pytest.mark.parametrize("page", [page for page in WITH_PYTHON if page.name not in OTHER_TESTS], ids=name)
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block.code, page.name, "exec"), names)
    assert "Traceback" not in capsys.readouterr().out


def test_the_other_pages_python_runs_elsewhere():
    for page, test in OTHER_TESTS.items():
        assert page in {path.name for path in WITH_PYTHON}
        text = (ROOT / test).read_text(encoding="utf-8")
        assert page in text
        assert "exec(" in text


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands_are_spelled_right(page):
    group = typer.main.get_command(app)
    for block in blocks(page, "console"):
        for words in commands(block):
            if "tiltproof" in words:
                command, *arguments = words[words.index("tiltproof") + 1 :]
                assert command in group.commands, words
                options = {option for p in group.commands[command].params for option in p.opts} | {"--help"}
                assert {word for word in arguments if word.startswith("--")} <= options, words
            elif words[:1] == ["make"]:
                assert f"\n{words[1]}: " in (ROOT / "Makefile").read_text(encoding="utf-8"), words
            elif words[:1] == ["python"]:
                path = ROOT / words[1]
                script = path.read_text(encoding="utf-8")
                for shared in path.parent.glob("*.py"):  # options shared by several programs
                    script += shared.read_text(encoding="utf-8") if f"from {shared.stem} import" in script else ""
                assert all(f'"{word}"' in script for word in words if word.startswith("--")), words
            else:
                assert words[0] in ("pip", "source", "ray", "systemd-run", "ulimit"), words


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name in LONG else page for page in WITH_COMMANDS],
    ids=name,
)
def test_commands_run(page, tmp_path, monkeypatch):
    """Run in page order, in one folder, on two images; trainings are cut down to one epoch."""
    root = make_workspace(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TILTPROOF_DATA", str(root))
    monkeypatch.setattr("tiltproof.data.loading.SAMPLE_ROOT", root)
    for block in blocks(page, "console"):
        if block.reason:
            continue
        for words in commands(block):
            assert words[0] == "tiltproof", f"{words}: mark the block with <!-- not run: ... --> and a reason"
            words = words[1 : words.index(">") if ">" in words else None]
            words += SHORT_TRAINING if words[0] == "train" else []
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, (words, result.output)
