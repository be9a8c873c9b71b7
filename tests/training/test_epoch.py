"""Learning rates: milestones, one cycle, and how a quick run scales them."""

import pytest

from tiltproof.training.epoch import learning_rate
from tiltproof.training.recipe import shortened


def rates(recipe, steps_per_epoch=10):
    part = recipe.train
    return [learning_rate(part, step, steps_per_epoch) for step in range(part.epochs * steps_per_epoch)]


def test_constant(recipe):
    assert set(rates(recipe("train.schedule='constant'", "train.learning_rate=0.5"))) == {0.5}


def test_steps(recipe):
    settings = ["train.schedule='steps'", "train.epochs=5", "train.milestones=[2, 4]", "train.learning_rate=1.0"]
    assert rates(recipe(*settings, "train.decay=0.5")) == [1.0] * 20 + [0.5] * 20 + [0.25] * 10


def test_one_cycle(recipe):
    values = rates(recipe("train.schedule='one-cycle'", "train.epochs=10", "train.learning_rate=1.0"), 101)
    peak = values.index(max(values))
    assert peak == pytest.approx(0.2 * len(values), abs=1)
    assert max(values) == pytest.approx(1.0, abs=1e-4)
    assert values[0] == pytest.approx(1 / 25)
    assert values[-1] == pytest.approx(0, abs=1e-5)
    assert values[:peak] == sorted(values[:peak])
    assert values[peak:] == sorted(values[peak:], reverse=True)


def test_a_run_of_one_step(recipe):
    assert rates(recipe("train.schedule='one-cycle'", "train.epochs=1"), 1)


def test_a_quick_run_keeps_the_proportions(recipe):
    settings = ["train.epochs=100", "train.batch_size=256", "train.schedule='steps'", "train.milestones=[80]"]
    before = recipe(*settings, "loss.warm_up_epochs=15", "loss.ramp_epochs=50", "certify.method='fgv'")
    after = shortened(before)
    assert (after.train.epochs, after.train.batch_size, list(after.train.milestones)) == (5, 128, [4])
    assert (after.loss.warm_up_epochs, after.loss.ramp_epochs) == (1, 2)
    assert after.certify.method == "affine"
    assert (after.name, after.model, after.data) == (before.name, before.model, before.data)


def test_a_short_recipe_is_not_made_longer(recipe):
    assert shortened(recipe("train.epochs=2")).train.epochs == 2
