"""``tiltproof train``: results, resuming, failures and Ctrl-C, with the bundled digits as the training set."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiltproof as package


@pytest.fixture
def train(tiltproof, digits):  # noqa: ARG001
    def run(*arguments):
        return tiltproof("train", "tiny.toml", "--data-root", ".", "--device", "cpu", *arguments)

    return run


def test_a_run_and_its_certificate(train, tiltproof, digits):
    result = train("--certify-images", 3)
    assert result.exit_code == 0, result.output
    assert "runs/tiny: 2 epochs" in result.stdout
    assert "of the first 3 of them" in result.stdout
    assert "next: tiltproof certify --model runs/tiny/model.safetensors --data mnist" in result.stdout
    certified = tiltproof(
        "certify", "--model", "runs/tiny/model.safetensors", "--data", "mnist-sample", "--limit", 2, "--json", "c.json"
    )
    assert certified.exit_code == 0, certified.output
    assert json.loads((digits / "c.json").read_text())["transform"] == "R(1)"


def test_settings_and_quick(train, digits):
    result = train("--set", "train.epochs=1", "--set", "transform='R(5)'", "--quick", "--quiet", "--certify-images", 0)
    assert (result.exit_code, result.stdout) == (0, "")
    recipe = json.loads((digits / "runs" / "tiny-quick" / "recipe.json").read_text())
    assert (recipe["train"]["epochs"], recipe["transform"]) == (1, "R(5)")


def test_a_second_run_needs_resume(train):
    assert train("--out", "out", "--certify-images", 0).exit_code == 0
    again = train("--out", "out")
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    assert train("--out", "out", "--certify-images", 0, "--resume").exit_code == 0
    other = train("--out", "out", "--resume", "--set", "train.learning_rate=0.01")
    assert other.exit_code == 2
    assert "train.learning_rate was 0.001, and is 0.01" in other.stderr


def test_a_loss_that_goes_astray(train, monkeypatch):
    from tiltproof.training import epoch

    make = epoch.make_loss

    def spoiled(*arguments):
        loss = make(*arguments)
        return lambda_with_share(lambda *call: nan_total(loss(*call)))

    def lambda_with_share(function):
        class Loss:
            share = (0, 1)

            def __call__(self, *call):
                return function(*call)

        return Loss()

    def nan_total(value):
        value.total = value.total * float("nan")
        return value

    monkeypatch.setattr(epoch, "make_loss", spoiled)
    result = train()
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("training failed: the loss is no longer finite (epoch 1, step 1)")


def test_bad_numbers(train):
    assert train("--certify-images", -1).exit_code == 2
    assert train("--certify-every", -1).exit_code == 2
    assert train("--device", "abacus").exit_code == 2


def test_help_teaches(tiltproof):
    text = tiltproof("train", "--help").stdout
    assert all(word in text for word in ("Examples", "tiltproof train", "torchrun", "--resume", "--quick", "--set"))


def test_ctrl_c_keeps_the_last_checkpoint(digits):
    source = str(Path(package.__file__).parents[1])
    command = [sys.executable, "-m", "tiltproof", "train", "tiny.toml", "--data-root", ".", "--device", "cpu"]
    command += ["--set", "train.epochs=5000", "--out", "out"]
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=digits, env=environment, stderr=subprocess.PIPE, text=True)
    while not any((digits / "out" / "checkpoint").glob("*.json")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished epochs are kept in out; repeat the command with --resume" in stderr
    assert "Traceback" not in stderr
