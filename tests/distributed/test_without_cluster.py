"""What `--ray` says without Ray, or without a cluster."""

import signal
import sys

import pytest
from typer.testing import CliRunner

from tiltproof import Execution, InputError, RayWorkers
from tiltproof.cli import app

COMMAND = ["certify", "--model", "mnist-r30", "--data", "mnist-sample", "--transform", "R(2)", "--limit", "4"]


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(app, [*COMMAND, "--ray", "auto"])
    assert result.exit_code == 2
    assert "tiltproof[ray]" in result.output


@pytest.mark.parametrize("address", ["not-an-address", "127.0.0.1:1", "127.0.0.1:port"])
def test_no_cluster(monkeypatch, address, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = [*COMMAND, "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*command, "--ray", address])
    assert result.exit_code == 2
    assert f"no Ray cluster can be reached at {address!r}" in result.output
    assert not (tmp_path / "run").exists()


def test_ray_does_not_take_over_sigterm(monkeypatch):
    """The program answers SIGTERM with exit code 143 and a hint at --resume; Ray would end it with 15."""
    ray = pytest.importorskip("ray")
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def init(**_):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
        seen.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    RayWorkers("local").connect()
    assert len(seen) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_bad_options():
    pytest.importorskip("ray")
    with pytest.raises(InputError, match="unknown kind of workers"):
        RayWorkers("auto", device="cuda:1")
    with pytest.raises(InputError, match="workers is an object"):
        Execution(workers="auto")
    with pytest.raises(InputError, match="at least 1 image"):
        Execution(batch_images=0)
