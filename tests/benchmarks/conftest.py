"""Fixtures that tests of benchmarks share with the tests of training."""

from tests.training.conftest import recipe, run  # noqa: F401
