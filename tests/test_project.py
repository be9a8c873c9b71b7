"""The package as distributed: the wheel is complete and works in a clean environment; versions agree."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string

import pytest

import tiltproof
from tests.support.processes import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="not in a source checkout")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
CARRIED = ("data/sample/", "models/weights/", "training/recipes/", "reports/web/", "py.typed")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Build from a copy, because a build leaves files in its source."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(
        ROOT / "src" / "tiltproof", folder / "src" / "tiltproof", ignore=shutil.ignore_patterns("__pycache__")
    )
    done = subprocess.run(
        [sys.executable, "-c", BUILD, folder / "dist"], cwd=folder, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return path


def test_the_wheel_carries_everything(wheel):
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "tiltproof").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == wanted
    for part in CARRIED:
        assert any(name.startswith(f"tiltproof/{part}") for name in found), part


def test_what_the_wheel_says_of_itself(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = f"tiltproof-{tiltproof.__version__}.dist-info"
        said = message_from_string(archive.read(f"{info}/METADATA").decode())
        assert "tiltproof = tiltproof.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("tiltproof", tiltproof.__version__, "MIT")
    needed = {re.split(r"[<>=; ]", text)[0] for text in said.get_all("Requires-Dist") if "extra ==" not in text}
    assert needed == {"torch", "numpy", "safetensors", "typer", "rich", "pooch", "Pillow"}


def test_the_version_is_a_release_or_on_the_way_to_one():
    """CONTRIBUTING.md, "Versions": code between releases is named after the next one."""
    releases = re.findall(
        r"^## \[(\d+)\.(\d+)\.(\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    newest = max(tuple(map(int, release)) for release in releases)
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(\.dev\d+)?", tiltproof.__version__)
    own = tuple(map(int, match.groups()[:3]))
    assert own > newest if match[4] else own == newest
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert cited == ".".join(map(str, newest)), "people cite releases"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_quick_has_some_tests_of_every_package():
    said = subprocess.run(["make", "-n", "quick"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = re.findall(r"\btests/[\w/]+(?:\.py)?", said)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    packages = {path.parent.name for path in (ROOT / "src" / "tiltproof").glob("*/__init__.py")}
    assert packages - {path.split("/")[1] for path in paths} == set()


@pytest.mark.slow
def test_it_works_in_a_clean_environment(wheel, tmp_path):
    """Takes minutes and the network, because torch is large."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "clean")
    binaries = tmp_path / "clean" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[onnx]")
    run(binaries / "python", "-m", "pip", "check")
    program = binaries / "tiltproof"
    assert run(program, "--version") == f"tiltproof {tiltproof.__version__}\n"
    assert "mnist-r30" in run(program, "models")
    for model, data in (("mnist-r30", "mnist-sample"), ("cifar10-r10", "cifar10-sample")):
        common = ("--model", model, "--data", data)
        run(program, "certify", *common, "--transform", "R(2)", "--limit", "5", "--out", data)
        run(program, "check", data, *common)
        run(program, "report", data)
        run(program, "export", data, "--csv", f"{data}.csv", "--vnnlib", *common, "--out", f"{data}-vnnlib")
    where = "import tiltproof; print(tiltproof.__file__, len(tiltproof.training.read_recipe('mnist-r30').name))"
    assert "site-packages" in run(binaries / "python", "-c", where)
