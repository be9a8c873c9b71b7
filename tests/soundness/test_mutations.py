"""The table of deliberate defects still matches the source, so `make soundness` can try them."""

from __future__ import annotations

import ast

import pytest

from tests.soundness.mutation_table import MUTATIONS
from tests.soundness.mutations import ROOT, fits, source


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_table_fits_the_source(mutation):
    assert fits(mutation), f"not exactly once in {mutation.file}: {mutation.old}"
    assert mutation.new != mutation.old
    ast.parse(source(mutation).read_text().replace(mutation.old, mutation.new))
    assert all((ROOT / "tests" / name).exists() for name in mutation.tests)


def test_names_are_unique_and_there_are_enough():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20
