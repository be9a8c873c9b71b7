"""Bundled models: cards, digests and strictness about the weights."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiltproof.errors import InputError
from tiltproof.zoo import load_model, models


def edit_card(folder, **changes):
    path = folder / "tiny.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_cards_are_found_and_models_loaded(zoo_folder):
    (card,) = models(zoo_folder)
    assert (card.name, card.architecture, card.transform) == ("tiny", "mnist_cnn", "R(30)")
    model = load_model("tiny", zoo_folder)
    assert not model.training
    expected = load_file(zoo_folder / "tiny.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_every_bundled_model_loads():
    for card in models():
        assert not load_model(card.name).training


def test_an_unknown_name_lists_the_known_ones(zoo_folder):
    with pytest.raises(InputError, match="Got: huge.*use one of tiny"):
        load_model("huge", zoo_folder)


def test_a_name_cannot_lead_out_of_the_zoo(zoo_folder):
    with pytest.raises(InputError, match="no bundled model"):
        load_model("../tiny", zoo_folder / "elsewhere")


def test_changed_weights_are_noticed(zoo_folder):
    edit_card(zoo_folder, sha256="0" * 64)
    with pytest.raises(InputError, match="not those its card describes.*reinstall"):
        load_model("tiny", zoo_folder)


def test_missing_weights_are_noticed(zoo_folder):
    (zoo_folder / "tiny.safetensors").unlink()
    with pytest.raises(InputError, match="cannot be read.*tiny.safetensors"):
        load_model("tiny", zoo_folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "tiny"}'])
def test_a_broken_card(zoo_folder, content):
    (zoo_folder / "tiny.json").write_text(content)
    with pytest.raises(InputError, match="model card .*tiny.json"):
        models(zoo_folder)


def test_a_card_with_one_key_too_many(zoo_folder):
    edit_card(zoo_folder, mood="good")
    with pytest.raises(InputError, match="must have the keys"):
        models(zoo_folder)


def test_a_weight_file_is_only_ever_safetensors(zoo_folder):
    save_file({"a": torch.zeros(1)}, zoo_folder / "other.safetensors")
    assert [card.name for card in models(zoo_folder)] == ["tiny"]
