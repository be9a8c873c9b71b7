"""The README's Python runs, and it names the two commands."""

import re

import pytest

from tests.support.processes import ROOT

README = ROOT / "README.md"


@pytest.mark.skipif(not README.exists(), reason="not in a source checkout")
def test_the_example_runs(capsys):
    text = README.read_text(encoding="utf-8")
    example, loop = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(example, names)
    exec(loop, names)
    assert names["value"].total.grad_fn is not None
    assert all(parameter.grad is not None for parameter in names["model"].parameters())
    assert names["certificate"].summary()["certified"] >= 18
    assert "certified" in capsys.readouterr().out
    assert "make demo" in text
    assert "make test" in text
    assert "@@" not in text
