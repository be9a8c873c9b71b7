"""Bundled models: cards, digests and strictness about the weights."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiltproof.errors import InputError
from tiltproof.models import models
from tiltproof.models.loading import load_bundled
from tiltproof.training.recipe import from_dict


def edit_card(folder, **changes):
    path = folder / "tiny.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_cards_are_found_and_models_loaded(models_folder):
    (card,) = models(models_folder)
    assert (card.name, card.architecture, card.transform) == ("tiny", "mnist_cnn", "R(30)")
    model = load_bundled("tiny", models_folder)
    assert not model.training
    expected = load_file(models_folder / "tiny.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_every_bundled_model_loads():
    for card in models():
        assert not load_bundled(card.name).training


def test_an_unknown_name_lists_the_known_ones(models_folder):
    with pytest.raises(InputError, match="Got: huge.*use one of tiny"):
        load_bundled("huge", models_folder)


def test_a_name_cannot_lead_out_of_the_folder(models_folder):
    with pytest.raises(InputError, match="no bundled model"):
        load_bundled("../tiny", models_folder / "elsewhere")


def test_changed_weights_are_noticed(models_folder):
    edit_card(models_folder, sha256="0" * 64)
    with pytest.raises(InputError, match="not those its card describes.*reinstall"):
        load_bundled("tiny", models_folder)


def test_missing_weights_are_noticed(models_folder):
    (models_folder / "tiny.safetensors").unlink()
    with pytest.raises(InputError, match="cannot be read.*tiny.safetensors"):
        load_bundled("tiny", models_folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "tiny"}'])
def test_a_broken_card(models_folder, content):
    (models_folder / "tiny.json").write_text(content)
    with pytest.raises(InputError, match="model card .*tiny.json"):
        models(models_folder)


def test_a_card_may_say_where_it_was_trained(models_folder):
    assert models(models_folder)[0].environment is None
    edit_card(models_folder, environment={"torch": "2.13.0"})
    assert models(models_folder)[0].environment == {"torch": "2.13.0"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", 3),
        ("certified_percent", None),
        ("boxes_per_image", "17"),
        ("clean_percent", True),
        ("recipe", "mnist-r30"),
        ("environment", []),
    ],
)
def test_a_card_with_a_value_of_another_kind(models_folder, key, value):
    edit_card(models_folder, **{key: value})
    with pytest.raises(InputError, match=f"'{key}' of the model card .*tiny.json must be a "):
        models(models_folder)


@pytest.mark.parametrize("key", ["recipe", "boxes_per_image"])
def test_a_card_with_a_key_too_few(models_folder, key):
    path = models_folder / "tiny.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key}))
    with pytest.raises(InputError, match=f"must have the keys.*{key}"):
        models(models_folder)


def test_the_recipe_of_every_bundled_model_is_one():
    for card in models():
        recipe = from_dict(card.recipe, card.name)
        assert (recipe.model.architecture, recipe.data.name) == (card.architecture, card.dataset)
        assert recipe.transform == card.transform


def test_a_card_with_one_key_too_many(models_folder):
    edit_card(models_folder, mood="good")
    with pytest.raises(InputError, match="must have the keys"):
        models(models_folder)


def test_a_weight_file_is_only_ever_safetensors(models_folder):
    save_file({"a": torch.zeros(1)}, models_folder / "other.safetensors")
    assert [card.name for card in models(models_folder)] == ["tiny"]
