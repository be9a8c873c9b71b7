"""The notebook has the cells of scripts/docs_notebook.py, was run from top to bottom, and its code still runs."""

import ast
import json
import warnings

import docs_notebook
import pytest

import tiltproof

pytestmark = pytest.mark.skipif(not docs_notebook.NOTEBOOK.exists(), reason="not in a source checkout")


@pytest.fixture(scope="module")
def cells():
    return json.loads(docs_notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def code(cells):
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_its_cells_are_those_of_the_script(cells):
    sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    expected = [(cell["cell_type"], "".join(cell["source"])) for cell in docs_notebook.notebook()["cells"]]
    assert sources == expected, "run python scripts/docs_notebook.py"


def test_it_was_run_from_top_to_bottom(cells):
    assert [cell["execution_count"] for cell in code(cells)] == list(range(1, len(code(cells)) + 1))
    assert all(cell["outputs"] for cell in code(cells))
    kinds = [output["output_type"] for cell in code(cells) for output in cell["outputs"]]
    assert "error" not in kinds
    shown = json.dumps([cell["outputs"] for cell in code(cells)])
    for words in (
        "<progress value=",
        "<td>falsified</td>",
        '"image/png"',
        "CheckReport(images=40, certified=40",
        "report.html",
    ):
        assert words.replace('"', '\\"') in shown or words in shown


def test_its_code_runs(cells, tmp_path, monkeypatch, capsys):
    """The last expression of each cell is what the notebook shows: the kinds of values must be those stored."""
    monkeypatch.chdir(tmp_path)
    names, values = {}, []
    for cell in code(cells):
        *statements, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(statements, []), "notebook", "exec"), names)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values.append(eval(compile(ast.Expression(last.value), "notebook", "eval"), names))
    assert "CheckReport(images=40, certified=40" in capsys.readouterr().out
    certificates = [value for value in values if isinstance(value, tiltproof.Certificate)]
    assert [str(each.transform) for each in certificates] == ["R(3)", "R(15)"]
    assert certificates[0].count("certified") == 40
    assert "<td>falsified</td>" in certificates[1]._repr_html_()
    stored = [
        set(output["data"])
        for cell in code(cells)
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
    ]
    assert [any(key == "text/html" for key in keys) for keys in stored] == [
        isinstance(value, tiltproof.Certificate) for value in values
    ]
    assert (tmp_path / "runs" / "notebook" / "report.html").exists()
