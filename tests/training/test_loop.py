"""A run from end to end: seeds, log, card, held-out images, and diverging losses."""

import hashlib
import json

import pytest
import torch

from tests.support.tiny_training import DIGITS, IMAGES, LABELS, STEPS, same_weights, without_seconds
from tiltproof.cli.train import sentence
from tiltproof.errors import InputError
from tiltproof.models import load as load_model
from tiltproof.training import TrainingFailed
from tiltproof.training.data import TrainingSet
from tiltproof.training.losses import LossValue


def test_two_runs_are_equal_and_another_seed_is_not(run):
    state = torch.get_rng_state()
    first = run("a")
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    second, other = run("b"), run("c", "train.seed=4")
    assert same_weights(first.model, second.model)
    assert without_seconds(first.log) == without_seconds(second.log)
    assert not same_weights(first.model, other.model)


def test_what_a_run_leaves(run, tmp_path):
    seen = []
    result = run("a", "transform='R(1)'", certify_images=4, certify_every=1, progress=seen.append)
    folder = tmp_path / "a"
    assert {path.name for path in folder.iterdir()} >= {
        "model.safetensors", "card.json", "log.jsonl", "recipe.json", "checkpoint",
    }  # fmt: skip
    assert result.finished
    assert not result.model.training
    assert same_weights(result.model, load_model(str(folder / "model.safetensors")))
    card = json.loads((folder / "card.json").read_text())
    assert card["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (card["architecture"], card["transform"], card["dataset"]) == ("mnist_cnn", "R(1)", "mnist")
    assert card["clean_percent"] == result.clean_percent
    assert card["certified_percent"] == result.certified_percent is not None
    assert card["boxes_per_image"] > 0
    assert "20 images held out of the training set" in card["measured"]
    assert "first 4 " in card["measured"]
    assert card["recipe"] == json.loads((folder / "recipe.json").read_text())
    assert [progress.phase for progress in seen] == ["train", "certify"] * 3
    assert seen[-1].step == seen[-1].steps == 3 * STEPS


def test_the_log(run, tmp_path):
    result = run("a", "transform='R(1)'", certify_images=2, certify_every=2)
    lines = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert lines == result.log
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert [line["step"] for line in lines] == [5, 10, 15]
    for line in lines:
        assert line["clean_loss"] > 0
        assert 0 <= line["sampled_accuracy"] <= 1
        assert 0 <= line["validation_accuracy"] <= 1
        assert {"certified_loss", "kappa", "size", "learning_rate", "seconds"} <= line.keys()
    assert ["certified_percent" in line for line in lines] == [False, True, False]


def test_nothing_is_held_out(run, tmp_path):
    seen = []
    result = run("a", "data.hold_out=0.0", "train.epochs=1", certify_images=5, progress=seen.append)
    assert {progress.phase for progress in seen} == {"train"}  # nor does it claim to certify
    card = json.loads((tmp_path / "a" / "card.json").read_text())
    assert result.clean_percent is card["clean_percent"] is card["certified_percent"] is None
    assert card["boxes_per_image"] is None
    assert card["measured"].startswith("nothing")
    assert result.log[0]["step"] == 6
    assert result.log[0]["validation_accuracy"] is None


def test_held_out_images_take_no_part(run):
    """Other held-out pixels, the same weights."""
    rows = TrainingSet(IMAGES, LABELS, 0.2, 3, torch.device("cpu")).held_rows
    changed = IMAGES.clone()
    changed[rows] = 1 - changed[rows]
    assert len(rows) == 20
    first, second = run("a", "train.epochs=1"), run("b", "train.epochs=1", images=changed)
    assert same_weights(first.model, second.model)


@pytest.mark.parametrize("images", [IMAGES, IMAGES * 0.999])
def test_pixels_are_what_was_given(images):
    data = TrainingSet(images, LABELS, 0.2, 3, torch.device("cpu"))
    held, labels = data.first_held_out(7)
    assert torch.equal(held, images[data.held_rows[:7]])
    assert torch.equal(labels, LABELS[data.held_rows[:7]])
    seen = data.batch(data.order(0, 0))[0].flatten(1).sum(1).sort().values
    left = [k for k in range(100) if k not in data.held_rows.tolist()]
    assert torch.equal(seen, images[left].flatten(1).sum(1).sort().values)


def test_bytes_are_kept_as_they_are_and_train_the_same(run):
    levels = IMAGES.mul(255).round().to(torch.uint8)
    given, converted = (TrainingSet(images, LABELS, 0.2, 3, torch.device("cpu")) for images in (levels, IMAGES))
    assert given.pixels.dtype == torch.uint8
    assert given.sha256 == converted.sha256
    assert torch.equal(given.first_held_out(5)[0], converted.first_held_out(5)[0])
    first, second = run("a", "train.epochs=1"), run("b", "train.epochs=1", images=levels)
    assert same_weights(first.model, second.model)


def test_crops_of_larger_images(run, monkeypatch):
    """Train on crops anywhere in the image, measure on its center."""
    from tiltproof.training import epoch

    seen, corners, augment = [], set(), epoch.augment
    large = torch.zeros(100, 1, 32, 32)
    large[:, :, 2:30, 2:30] = 0.5
    large[:, :, 0, 0] = large[:, :, 31, 31] = 1

    def watched(images, labels, **options):
        crops, labels = augment(images, labels, **options)
        seen.append((images.shape, crops.shape))
        corners.update((float(crop[0, 0, 0]), float(crop[0, -1, -1])) for crop in crops)
        return crops, labels

    monkeypatch.setattr(epoch, "augment", watched)
    settings = ("data.crop_size=28", "data.crop_padding=0", "data.flip=false", "train.epochs=1", "transform='R(1)'")
    result = run("a", *settings, images=large, certify_images=2)
    assert set(seen) == {((16, 1, 32, 32), (16, 1, 28, 28))}
    assert corners > {(1.0, 0.5), (0.5, 1.0)}, "crops from corner to corner"
    assert result.certified_images == 2
    data = TrainingSet(large, LABELS, 0.2, 3, torch.device("cpu"), crop_size=28)
    assert torch.equal(data.first_held_out(3)[0], torch.full((3, 1, 28, 28), 0.5))
    assert data.held_pixels.shape == (20, 1, 28, 28)
    with pytest.raises(InputError, match="data.crop_size is larger than the images.*33.*32 x 32"):
        run("b", "data.crop_size=33", images=large)


class Watching:
    """A regression loss that keeps its inputs."""

    regression, share = True, (0, 1)

    def __init__(self):
        self.seen = []

    def __call__(self, model, images, labels, step):
        self.seen.append((images, labels))
        total = model(images).mean()
        return LossValue(total, total.detach(), None, torch.zeros(()))


@pytest.mark.parametrize(("name", "signed"), [("driving", True), ("mnist", False)])
def test_a_flipped_road_turns_the_other_way(run, monkeypatch, name, signed):
    from tiltproof.training import epoch

    loss = Watching()
    monkeypatch.setattr(epoch, "make_loss", lambda *_: loss)
    roads, angles = torch.zeros(100, 1, 28, 28), torch.linspace(0.01, 1, 100)
    roads[..., 0] = angles.view(-1, 1, 1)  # the left edge encodes the angle
    settings = (f"data.name={name}", "data.crop_padding=0", "data.hold_out=0.0", "train.epochs=1")
    run("a", *settings, images=roads, labels=angles)
    images, labels = (torch.cat(parts) for parts in zip(*loss.seen, strict=True))
    left, right = images[:, 0, 0, 0], images[:, 0, 0, -1]
    assert (right > 0).any()
    assert torch.equal(labels, left - right if signed else left + right)


@pytest.mark.parametrize("kind", ["augmentation", "worst-of", "certified"])
def test_angles_are_learned_and_their_ranges_certified(run, kind):
    """Ten outputs, all trained towards the angle: a regression run from end to end."""
    angles = torch.linspace(-1, 1, 100).unsqueeze(1).expand(-1, 10)
    settings = [f"loss.kind={kind}", "loss.nu=[0.5]", "loss.parameters_per_batch=each", "train.epochs=2"]
    certified = kind == "certified"  # how a network was trained makes no difference to its certification
    result = run("a", *settings, labels=angles, certify_images=int(certified))
    lines = [json.loads(line) for line in (result.folder / "log.jsonl").read_text().splitlines()]
    assert all(0 < line["validation_error"] < 5 and "validation_accuracy" not in line for line in lines)
    assert lines[-1]["clean_loss"] < lines[0]["clean_loss"]
    card = json.loads((result.folder / "card.json").read_text())
    assert card["mean_absolute_error"] == result.mean_absolute_error == pytest.approx(lines[-1]["validation_error"])
    assert "clean_percent" not in card
    if certified:
        assert card["certified_mean_absolute_error"] == result.certified_mean_absolute_error > 0
        assert result.mean_width > 0
        assert "certified" in sentence(result)


def test_some_losses_are_for_classes_only(run):
    with pytest.raises(InputError, match="regression"):
        run("a", "loss.kind=pgd", labels=torch.linspace(-1, 1, 100))


def test_angles_are_part_of_what_a_run_began_with():
    angles = torch.linspace(-1, 1, 100)
    first, second = (TrainingSet(IMAGES, numbers, 0.2, 3, torch.device("cpu")) for numbers in (angles, angles * 0.9))
    assert first.sha256 != second.sha256


def spoiled_loss(monkeypatch, at, value):
    from tiltproof.training import epoch

    make = epoch.make_loss

    def spoiled(*arguments):
        loss = make(*arguments)

        class Spoiled:
            share = (0, 1)

            def __call__(self, model, images, labels, step):
                result = loss(model, images, labels, step)
                if step == at:
                    result.total = result.total * value
                return result

        return Spoiled()

    monkeypatch.setattr(epoch, "make_loss", spoiled)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run(run, tmp_path, monkeypatch, value):
    spoiled_loss(monkeypatch, STEPS + 2, value)
    with pytest.raises(TrainingFailed, match=r"epoch 2, step 3.*epoch-00001\.safetensors") as failure:
        run("a")
    assert (failure.value.epoch, failure.value.step) == (2, 3)
    weights = load_model(str(failure.value.checkpoint), "mnist_cnn")
    assert all(tensor.isfinite().all() for tensor in weights.state_dict().values())
    assert not (tmp_path / "a" / "model.safetensors").exists()


def test_weights_that_are_not_finite_are_never_saved(run, tmp_path, monkeypatch):
    """The loss of the epoch's last step was still finite."""
    from tiltproof.training import epoch

    step = epoch.EpochRunner.step

    def spoil(runner, rows, number, column):
        value = step(runner, rows, number, column)
        if number == STEPS - 1:
            with torch.no_grad():
                runner.parameters[0].fill_(float("nan"))
        return value

    monkeypatch.setattr(epoch.EpochRunner, "step", spoil)
    with pytest.raises(TrainingFailed, match="weights are no longer finite.*no epoch was finished"):
        run("a")
    assert not (tmp_path / "a" / "checkpoint").exists()


def test_a_batch_larger_than_the_set(run):
    with pytest.raises(InputError, match="smaller than one mini-batch.*80 images"):
        run("a", "train.batch_size=81")


def test_images_that_cannot_be(run):
    with pytest.raises(InputError, match="float images"):
        run("a", **DIGITS | {"images": IMAGES[:50]})
    with pytest.raises(InputError, match="unsigned bytes.*int64"):
        run("a", **DIGITS | {"images": IMAGES.long()})


def test_beginning_with_weights_of_an_earlier_run(run, tmp_path):
    first = run("a")
    weights = str(tmp_path / "a" / "model.safetensors")
    gentle = ("train.learning_rate=1e-12", "train.l1=0.0", "train.weight_decay=0.0", "train.epochs=1")
    second, third = run("b", f"model.start='{weights}'", *gentle), run("c", "model.start='mnist-r30'", *gentle)
    for mine, begun in ((second.model, first.model), (third.model, load_model("mnist-r30"))):
        for a, b in zip(mine.state_dict().values(), begun.state_dict().values(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)
    with pytest.raises(InputError, match="weights of another architecture than mnist_cnn"):
        run("d", "model.start='cifar10-r10'")
    with pytest.raises(
        InputError, match="could not load the initial weights.*nothing.safetensors.*No such file.*--set model.start"
    ):
        run("e", "model.start='nothing.safetensors'")


def test_holding_out_stretches():
    whole = TrainingSet(IMAGES, LABELS, 0.2, 0, torch.device("cpu"), run=8)
    assert len(whole.held_rows) == round(0.2 * len(IMAGES))
    starts = whole.held_rows[whole.held_rows % 8 == 0]
    cut = [start for start in starts.tolist() if not set(range(start, start + 8)) <= set(whole.held_rows.tolist())]
    assert len(starts) >= 2
    assert len(cut) <= 1  # the last stretch, where the share ends
    single = TrainingSet(IMAGES, LABELS, 0.2, 0, torch.device("cpu"))
    assert not torch.equal(single.held_rows, whole.held_rows)
