"""Short runs on the bundled digits."""

import pytest

from tests.support.tiny_training import DIGITS, make_recipe, write_mnist
from tiltproof.training import train


@pytest.fixture
def recipe(tmp_path):
    """Write the small recipe with changed settings."""

    def make(*settings):
        return make_recipe(tmp_path, *settings)

    return make


@pytest.fixture
def run(tmp_path, recipe):
    """Run `train` on the bundled digits in a temporary folder."""

    def start(folder, *settings, **options):
        options = {"device": "cpu", "certify_images": 0} | DIGITS | options
        return train(recipe(*settings), out=tmp_path / folder, **options)

    return start


@pytest.fixture
def data_root(tmp_path):
    """Return a data folder whose MNIST training set is the bundled digits."""
    write_mnist(tmp_path / "data" / "mnist")
    return tmp_path / "data"
