"""Stopped or killed at any moment, a resumed run ends with the weights of an undisturbed one, bit for bit."""

import json
import multiprocessing
import os
import signal
import time
import warnings

import pytest
import torch

from tests.support.tiny_training import same_weights, without_seconds
from tiltproof.errors import InputError
from tiltproof.models import load as load_model
from tiltproof.training.checkpoint import latest, save


@pytest.fixture
def whole(run):
    return run("whole")


def notices(caught):
    return [str(each.message) for each in caught if "checkpoint" in str(each.message)]


def damaged(folder, name, content=None):
    path = folder / "checkpoint" / name
    path.write_bytes(path.read_bytes()[:-50] if content is None else content)


def test_moments_lie_in_memory_as_their_parameters_do(tmp_path):
    """Otherwise a fused step refuses them: a GPU run in bf16 keeps its weights channels last."""

    def fresh():
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    model, optimizer = fresh()
    model(torch.rand(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    save(tmp_path, 1, {}, model, optimizer)
    again, other = fresh()
    found = latest(tmp_path)
    found.restore(again, other)
    assert other.state[again.weight]["exp_avg"].stride() == again.weight.stride()
    assert torch.equal(other.state[again.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    again(torch.rand(2, 3, 5, 5)).sum().backward()
    other.step()


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_stopped_after_an_epoch(run, epochs, optimizer):
    setting = f"train.optimizer='{optimizer}'"
    whole = run("whole", setting)
    part = run("part", setting, stop_after=epochs)
    assert (part.finished, part.epochs) == (False, epochs)
    rest = run("part", setting, resume=True)
    assert rest.finished
    assert same_weights(whole.model, rest.model)
    assert without_seconds(whole.log) == without_seconds(rest.log)


def test_a_finished_run_is_finished(run, whole):
    again = run("whole", resume=True)
    assert same_weights(whole.model, again.model)
    assert again.log == whole.log


def test_nothing_to_resume_is_a_beginning(run, whole):
    assert same_weights(whole.model, run("new", resume=True).model)


def test_killed(run, whole, tmp_path):
    """SIGKILL as soon as there is a checkpoint, then after ever longer times until a child finishes."""
    folder, kills = tmp_path / "killed", 0
    checkpoint = folder / "checkpoint"
    while not (folder / "card.json").exists():
        child = multiprocessing.get_context("fork").Process(target=run, args=("killed",), kwargs={"resume": True})
        child.start()
        end = time.monotonic() + 0.15 * kills
        while child.exitcode is None and (time.monotonic() < end or not any(checkpoint.glob("epoch-*.json"))):
            time.sleep(0.005)
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    assert kills
    assert same_weights(whole.model, load_model(str(folder / "model.safetensors")))
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert without_seconds(log) == without_seconds(whole.log)


def test_two_checkpoints_are_kept(whole, tmp_path):
    assert whole.finished
    assert sorted(path.name for path in (tmp_path / "whole" / "checkpoint").iterdir()) == [
        f"epoch-0000{epoch}.{suffix}" for epoch in (2, 3) for suffix in ("json", "optimizer.safetensors", "safetensors")
    ]


@pytest.mark.parametrize("name", ["json", "safetensors", "optimizer.safetensors"])
def test_a_torn_checkpoint_gives_way_to_the_one_before(run, whole, tmp_path, name):
    run("torn", stop_after=2)
    damaged(tmp_path / "torn", f"epoch-00002.{name}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rest = run("torn", resume=True)
    assert any("epoch 2" in text and "damaged" in text for text in notices(caught))
    assert same_weights(whole.model, rest.model)
    assert without_seconds(whole.log) == without_seconds(rest.log)


def test_one_changed_bit_is_noticed(run, tmp_path):
    run("torn", stop_after=2)
    path = tmp_path / "torn" / "checkpoint" / "epoch-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match="another checksum"):
        assert run("torn", resume=True, stop_after=1).epochs == 1


def test_no_whole_checkpoint(run, tmp_path):
    run("torn", stop_after=1)
    damaged(tmp_path / "torn", "epoch-00001.json", b"{")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(InputError, match="no checkpoint is whole"):
        run("torn", resume=True)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.learning_rate=0.5", "train.learning_rate was 0.001, and is 0.5"),
        ("transform='R(20)'", r"transform was R\(30\), and is R\(20\)"),
        ("loss.samples=3", "loss.samples was 2, and is 3"),
    ],
)
def test_another_recipe_is_refused(run, setting, words):
    run("a", stop_after=1)
    with pytest.raises(InputError, match=f"belongs to a different run.*{words}"):
        run("a", setting, resume=True)


def test_other_data_are_refused(run):
    from tests.support.tiny_training import IMAGES

    run("a", stop_after=1)
    with pytest.raises(InputError, match="data_sha256 was"):
        run("a", resume=True, images=IMAGES.flip(3))


def test_a_run_is_not_overwritten(run, whole):
    assert whole.finished
    with pytest.raises(InputError, match="already contains a training run.*checkpoint.*--resume"):
        run("whole")


def test_a_folder_that_is_a_file(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        run("file")
