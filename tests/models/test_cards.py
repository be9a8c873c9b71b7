"""The card next to a weight file gives its architecture and its transformation."""

import json

import pytest

from tiltproof.errors import InputError
from tiltproof.models import card_of
from tiltproof.models import load as load_model


@pytest.fixture
def weights(models_folder):
    return models_folder / "tiny.safetensors"


@pytest.mark.parametrize("name", ["tiny.json", "card.json"])
def test_the_card_tells_the_architecture(weights, name):
    weights.with_name("tiny.json").rename(weights.with_name(name))
    assert load_model(str(weights)).fc1.out_features == 200
    assert card_of(str(weights)).transform == "R(30)"


def test_more_keys_do_no_harm(weights):
    card = json.loads(weights.with_suffix(".json").read_text())
    weights.with_suffix(".json").write_text(json.dumps(card | {"recipe": {}, "clean_percent": None}))
    assert card_of(str(weights)).architecture == "mnist_cnn"


def test_a_card_of_other_weights(weights):
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    for read in (load_model, card_of):
        with pytest.raises(InputError, match="describes other weights"):
            read(str(weights))
    assert load_model(str(weights), "mnist_cnn")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"architecture": 5, "transform": "R(1)", "sha256": ""}'])
def test_what_is_no_card(weights, content):
    weights.with_suffix(".json").write_text(content)
    assert card_of(str(weights)) is None
    with pytest.raises(InputError, match="needs the architecture"):
        load_model(str(weights))


def test_an_unknown_architecture(weights):
    card = json.loads(weights.with_suffix(".json").read_text())
    weights.with_suffix(".json").write_text(json.dumps(card | {"architecture": "huge"}))
    with pytest.raises(InputError, match="unknown architecture"):
        load_model(str(weights))


def test_bundled_models_have_one():
    assert card_of("mnist-r30").transform == "R(30)"
    assert card_of("package.module:function") is None
