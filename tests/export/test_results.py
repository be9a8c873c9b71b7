"""Results as rows: the field's three words, the same columns for every run, numbers that read back exactly."""

import csv
import io
import json

import pytest
import torch
from torch import nn

from tests.support.range_case import range_record, write_ranges
from tests.support.run_folder import manifest_of, record, write_run
from tiltproof import InputError, RunFolder, certify, certify_range
from tiltproof.export import as_csv, as_jsonl, result_rows
from tiltproof.transforms import parse

IMAGES = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
RECORDS = [
    record(7, 1, "certified", margin=0.1, grid=[2], tree="2."),
    record(8, 0, "falsified", margin=-1e-300, counterexample=[0.1]),
    record(9, 2, "unknown", open_box=[[-0.5], [0.5]]),
    record(10, 0, "misclassified", margin=-2.5),
    record(11, 0, "unknown", margin=-3.0, open_box=[[0.5], [1.0]]),
]


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, outputs)).eval()


@pytest.fixture
def run(tmp_path):
    def make(transform):
        folder = tmp_path / "run"
        labels = [one["label"] for one in RECORDS]
        write_run(folder, manifest_of(network(), IMAGES, labels, transform, first=7), RECORDS)
        return folder

    return make


def test_the_three_words(run):
    rows = result_rows(run("R(-1:1)"))
    assert [row["result"] for row in rows] == ["safe", "unsafe", "unknown", "unknown", "unknown"]
    assert [row["verdict"] for row in rows] == [one["verdict"] for one in RECORDS]
    assert [row["counterexample"] for row in rows] == ["", "[0.1]", "", "", ""]
    assert [row["proved_at_least"] for row in rows] == [0.1, None, None, None, -3.0]
    assert [row["reached_at_most"] for row in rows] == [None, -1e-300, None, -2.5, None]
    assert rows[2]["open_box"] == "[[-0.5], [0.5]]"
    assert [row["image"] for row in rows] == [7, 8, 9, 10, 11]


@pytest.fixture
def misclassified(tmp_path):
    """Return a network and a run that calls five images misclassified: one by 1e-3, one by nothing, and one is right."""

    def make(transform, semantics="real"):
        layer = nn.Linear(16, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.stack([torch.full((16,), 1 / 16), torch.zeros(16)]))
            layer.bias.copy_(torch.tensor([0.0, 0.5]))
        model = nn.Sequential(nn.Flatten(), layer).eval()
        images = torch.tensor([0.0, 0.499, 0.5, 0.75, 0.25]).view(5, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
        records = [record(k, 0, "misclassified", margin=-0.5) for k in range(5)]
        write_run(tmp_path / "run", manifest_of(model, images, [0] * 5, transform, semantics=semantics), records)
        return tmp_path / "run", model, images

    return make


@pytest.mark.parametrize("transform", ["R(1)", "Tu(0:1), B(-0.1:0)", "Bl(1)"])
def test_misclassified_is_unsafe_once_it_is_confirmed(misclassified, transform):
    """A tie, or an image that rounding made wrong, is not a counterexample; nor is a forged record's claim."""
    folder, model, images = misclassified(transform)
    rows = result_rows(folder, model=model, images=images)
    assert [row["result"] for row in rows] == ["unsafe", "unsafe", "unknown", "unknown", "unsafe"]
    zeros = json.dumps([0.0] * len(parse(transform).parts))
    assert [row["counterexample"] for row in rows] == [zeros, zeros, "", "", zeros]
    assert {row["result"] for row in result_rows(folder)} == {"unknown"}


def test_confirming_needs_the_network_and_the_images_of_the_run(misclassified):
    folder, model, images = misclassified("R(1)")
    with pytest.raises(InputError, match="both model and images"):
        result_rows(folder, model=model)
    with pytest.raises(InputError, match="image 2 is not the run's"):
        result_rows(folder, model=model, images=images + torch.tensor([0, 0, 0.1, 0, 0]).view(5, 1, 1, 1))
    with pytest.raises(InputError, match="weights are not those of the run"):
        result_rows(folder, model=network(2), images=images)


def test_an_image_outside_the_range_is_no_counterexample(misclassified):
    folder, model, images = misclassified("R(0.05:1)")
    for row in result_rows(folder, model=model, images=images):
        assert (row["verdict"], row["result"], row["counterexample"]) == ("misclassified", "unknown", "")


def test_a_rounded_image_is_not_confirmed_by_the_image_itself(misclassified):
    folder, model, images = misclassified("R(1)", "uint8")
    assert {row["result"] for row in result_rows(folder, model=model, images=images)} == {"unknown"}


def kinds(rows):
    return {name: {type(row[name]) for row in rows} - {type(None)} for name in rows[0]}


def test_columns_and_types_are_constant(run, tmp_path):
    rows = result_rows(run("R(1)"))
    model, labels = network(), torch.tensor([0, 1])
    certify(model, IMAGES[:2], labels, "R(5), B(0.1)", run=RunFolder(tmp_path / "other"))
    others = result_rows(tmp_path / "other")
    assert {tuple(row) for row in rows + others} == {tuple(rows[0])}
    assert all(len(types) <= 1 for types in kinds(rows + others).values())
    assert {row["result"] for row in others} <= {"safe", "unsafe", "unknown"}


def test_files_read_back_exactly(run):
    rows = result_rows(run("R(1)"))
    assert [json.loads(line) for line in as_jsonl(rows).splitlines()] == rows
    table = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [list(row) for row in table] == [list(row) for row in rows]
    for read, row in zip(table, rows, strict=True):
        for name, value in row.items():
            kind = type(value)
            assert read[name] == "" if value is None else kind(read[name]) == value, name


HOSTILE = ['=HYPERLINK("http://x","y")', "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1"]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_cell_of_text_is_a_formula(run, text):
    """Spreadsheets evaluate text with such a beginning; JSON lines keep it as it is."""
    rows = [
        row | {"model": text, "method": text, "reached_at_most": -0.5, "label": 3} for row in result_rows(run("R(1)"))
    ]
    table = list(csv.DictReader(io.StringIO(as_csv(rows), newline="")))
    assert len(table) == len(rows)
    for read in table:
        assert (read["model"], read["method"]) == ("'" + text.replace("\r", "\n"),) * 2
        assert (read["reached_at_most"], read["label"]) == ("-0.5", "3"), "numbers stay numbers"
    assert [json.loads(line)["model"] for line in as_jsonl(rows).splitlines()] == [text] * len(rows)


def test_a_name_out_of_a_hostile_run_is_no_formula(tmp_path):
    """From the notes of a folder to the file: control characters become question marks on the way."""
    notes = {"model": HOSTILE[0], "data": "\t=1"}
    certify(network(), IMAGES[:1], torch.tensor([0]), "R(5)", run=RunFolder(tmp_path / "run", notes=notes))
    (read,) = csv.DictReader(io.StringIO(as_csv(result_rows(tmp_path / "run"))))
    assert (read["model"], read["data"]) == ("'" + HOSTILE[0], "?=1")


@pytest.fixture
def ranges(tmp_path):
    """Return a proved range [0.1, 0.5] with inner range 0.2 to 0.3 and target value 0.25; and one without upper end."""
    more = {"inner_lower": 0.2, "inner_upper": 0.3, "lowest_at": [-1.0], "highest_at": [0.5]}
    records = [
        range_record(0, prediction=0.25, lower=0.1, upper=0.5, **more) | {"value": [0.25]},
        range_record(1, prediction=0.25, lower=0.1, upper=None, **more) | {"value": [0.25]},
    ]
    write_ranges(tmp_path / "run", network(1), IMAGES[:2], "R(1)", records, values=[[0.25], [0.25]])
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("tolerance", "words", "at"),
    [
        (None, ["safe", "unknown"], ""),
        ("0.25", ["safe", "unknown"], ""),
        ("0.2499", ["unknown", "unknown"], ""),
        ("0.06", ["unknown", "unknown"], ""),
        (0.05, ["unknown", "unknown"], ""),
        ("0.04999", ["unsafe", "unsafe"], "[-1.0]"),
        ("0", ["unsafe", "unsafe"], "[-1.0]"),
    ],
)
def test_ranges_and_a_tolerance(ranges, tolerance, words, at):
    rows = result_rows(ranges, tolerance)
    assert [row["result"] for row in rows] == words
    assert {row["counterexample"] for row in rows} == {at}
    assert rows[0]["lowest_at"] == "[-1.0]"
    assert (rows[1]["lower"], rows[1]["upper"]) == (0.1, None)
    assert ("0.04999 of value" in rows[0]["property"]) == (tolerance == "0.04999")


def test_the_upper_end_breaks_a_tolerance_too(tmp_path):
    one = range_record(0, prediction=0.25, lower=0.1, upper=0.5, inner_lower=0.2, inner_upper=0.4, highest_at=[0.5])
    write_ranges(tmp_path / "run", network(1), IMAGES[:1], "R(1)", [one | {"value": [0.25]}], values=[[0.25]])
    (row,) = result_rows(tmp_path / "run", "0.1")
    assert (row["result"], row["counterexample"]) == ("unsafe", "[0.5]")


def test_a_decimal_tolerance_is_that_decimal(tmp_path):
    """The float64 0.1 is a little more than 0.1: a range that ends there is not within 0.1 of 0."""
    one = range_record(0, prediction=0.0, lower=0.0, upper=0.1) | {"value": [0.0]}
    write_ranges(tmp_path / "run", network(1), IMAGES[:1], "R(1)", [one], values=[[0.0]])
    assert result_rows(tmp_path / "run", 0.1)[0]["result"] == "unknown"
    assert result_rows(tmp_path / "run", "0.10000000000000001")[0]["result"] == "safe"


def test_a_row_for_every_output(tmp_path):
    values = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    certificate = certify_range(network(2), IMAGES[:2], values, "R(5), C(2)", run=RunFolder(tmp_path / "run"))
    rows = result_rows(tmp_path / "run")
    assert [(row["image"], row["output"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row["upper"] for row in rows] == [x for result in certificate.results for x in result.upper]
    assert [json.loads(line) for line in as_jsonl(rows).splitlines()] == rows
    assert next(iter(csv.DictReader(io.StringIO(as_csv(rows)))))["complete"] == "true"
    assert all(len(types) == 1 for types in kinds(rows).values())


@pytest.mark.parametrize("tolerance", ["-1", "nan", "inf", "1e999999999", "wide", "1/2"])
def test_bad_tolerances(ranges, tolerance):
    with pytest.raises(InputError, match="tolerance is a number"):
        result_rows(ranges, tolerance)


def test_a_tolerance_needs_answers_and_a_regression(run, tmp_path):
    with pytest.raises(InputError, match="regression"):
        result_rows(run("R(1)"), "0.1")
    certify_range(network(1), IMAGES[:1], None, "R(5)", run=RunFolder(tmp_path / "other"))
    with pytest.raises(InputError, match="right answers"):
        result_rows(tmp_path / "other", "0.1")
    assert result_rows(tmp_path / "other")[0]["value"] is None
