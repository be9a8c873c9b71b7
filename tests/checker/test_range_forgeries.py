"""Every forgery of a regression run is found, even with all digests, counts and means recomputed."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch

from tests.support.range_case import FIRST, TRANSFORM, RangeCase, read_records
from tests.support.run_folder import manifest_of, seal, write_run
from tests.support.small_regression import network, some_images
from tiltproof import RunFolder
from tiltproof.checker import CheckFailed
from tiltproof.checker.folder import read_run
from tiltproof.verify.api import certify_range

NOT_NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -(10**400), "1", True, [], {}]
NOT_RE_PROVED = "leaves the range|could not be re-proved"


@pytest.fixture(scope="module")
def true_records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("true")
    values = torch.tensor([[0.5, -0.5], [0.25, 0.0], [1.0, 2.0]])
    certify_range(network(2, seed=1), some_images(), values, TRANSFORM, run=RunFolder(folder), first=FIRST)
    return read_records(folder)


@pytest.fixture
def case(tmp_path, true_records):
    return RangeCase(tmp_path / "run", true_records)


def test_untouched_it_holds(case):
    whole = case.check()
    assert whole.boxes == sum(read.boxes for read in read_run(case.folder).ranges)
    part = case.check(sample=1, seed=2)
    assert (part.images, part.certified, part.sampled) == (1, 1, True)


@pytest.mark.parametrize("by", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize(("outer", "inner", "sign"), [("lower", "inner_lower", 1), ("upper", "inner_upper", -1)])
def test_a_narrower_range(case, outer, inner, sign, output, by):
    """Narrow the range past the run's own inner range; then adapt that too, so that only the boxes can expose it."""
    record = case.records[1]
    width = record["inner_upper"][output] - record["inner_lower"][output]
    record[outer][output] = record[inner][output] + sign * by * width
    case.fails_sealed("inner range", 1)
    record[inner][output] = record[outer][output]
    case.fails_sealed(NOT_RE_PROVED, 1)


def test_a_wider_range_is_true_too(case):
    for record in case.records:
        record["lower"], record["upper"] = (
            [end + by for end in record[key]] for key, by in (("lower", -1), ("upper", 1))
        )
    case.write()
    report = case.check()
    assert report.sub_boxes == report.boxes


@pytest.mark.parametrize("key", ["lower", "upper"])
def test_an_end_that_is_taken_back(case, key):
    case.records[0][key][1] = None
    case.write()
    case.check()
    true = json.loads((case.folder / "summary.json").read_text())
    assert true["mean_width"] is None
    for name in ("mean_width", "largest_width", "certified_mean_absolute_error"):
        seal(case.folder, case.manifest, case.records, **{name: 0.25})
        case.fails(name)


@pytest.mark.parametrize("key", ["prediction", "inner_lower", "inner_upper", "value", "lowest_at", "highest_at"])
def test_numbers_that_cannot_be_taken_back(case, key):
    case.records[0][key][1] = None
    case.fails_sealed("", 0)
    case.records[0][key] = None
    case.fails_sealed("", 0)
    del case.records[0][key]
    case.fails_sealed("", 0)


@pytest.mark.parametrize("tree", ["", "3.", "5.", "4..", "a4.", "c5.", "3.a", "4.\n", "a" * 10**5, "999999999999."])
def test_a_tree_that_is_no_tiling(case, tree):
    case.records[2].update(grid=[2, 2], tree=tree)
    case.fails_sealed("tiling", 2)


@pytest.mark.parametrize("grid", [[2, 3], [2], [2, 2, 1], [0, 2], [2.0, 2], [True, 4], "22", None, [2**60, 1]])
def test_a_changed_grid(case, grid):
    case.records[2].update(grid=grid, tree="4.")
    case.fails_sealed("", 2)


def test_another_tiling_of_the_same_range_is_as_true(case):
    for record in case.records:
        record.update(grid=[8, 3], tree="24.")
    case.write()
    assert case.check().boxes == 72


@pytest.mark.parametrize("text", ["R(8), B(0.08)", "R(-8:12), B(0.05)", "R(8), Tu(2)", "B(0.05), R(8.0)"])
def test_a_wider_or_another_range_of_parameters(case, text):
    case.manifest["claim"]["transform"] = text
    case.fails_sealed()


@pytest.mark.parametrize("key", ["lowest_at", "highest_at"])
@pytest.mark.parametrize(
    "point", [[8.000001, 0.0], [0.0, math.nextafter(0.05, 1)], [0.0, -0.06], [0.0], [0.0, 0.0, 0.0], [1e200, 0.0], 0.0]
)
def test_parameters_outside_the_range(case, key, point):
    case.records[0][key][1] = point
    case.fails_sealed(key, 0)


def test_one_parameter_vector_an_output(case):
    case.records[0]["lowest_at"].pop()
    case.fails_sealed("lowest_at", 0)


@pytest.mark.parametrize("by", [1e-3, 1e-7])
def test_an_inner_range_that_is_not_reached(case, by):
    """The outer range is moved along, so that only the network can expose the forgery."""
    for inner, outer, sign, words in (
        ("inner_lower", "lower", -1, "not as low"),
        ("inner_upper", "upper", 1, "not as high"),
    ):
        before = copy.deepcopy(case.records)
        case.records[1][inner][1] += sign * by
        case.records[1][outer][1] += sign * by
        case.fails_sealed(words, 1)
        case.records = before


def test_parameters_at_which_nothing_is_reached(case):
    record = case.records[0]
    record["lowest_at"], record["highest_at"] = record["highest_at"], record["lowest_at"]
    case.fails_sealed("not as low", 0)


@pytest.mark.parametrize("by", [0.1, 1e-4, -1e-4])
def test_a_prediction_that_is_none(case, by):
    case.records[2]["prediction"][0] += by
    case.fails_sealed("prediction", 2)


def test_values(case):
    case.records[1]["value"][0] = 0.125
    case.fails_sealed("value is not that of the claim", 1)
    case.manifest["claim"]["values"][1][0] = 0.125
    case.fails_sealed("value is not that of the run", 1)
    case.values[1, 0] = 0.125
    case.check()  # now it is another true run, about other values
    case.records[1]["value"] = None
    case.fails_sealed("value", 1)
    for record in case.records:
        record["value"] = None
    case.fails_sealed("value", 0)
    case.manifest["claim"]["values"] = None
    case.fails_sealed("the run has none")
    case.values = None
    case.check()


@pytest.mark.parametrize(
    "values", [..., [[0.0, 0.0]] * 2, [[0.0]] * 3, [0.0] * 3, [[]] * 3, "abc", {}, [[0.0, 0.0], [0.0, 0.0], [0.0]]]
)
def test_values_of_another_shape(case, values):
    case.manifest["claim"]["values"] = values
    if values is ...:
        del case.manifest["claim"]["values"]
    case.fails_sealed("value")


NUMBERS = ("mean_width", "largest_width", "mean_inner_width", "mean_absolute_error", "certified_mean_absolute_error")


@pytest.mark.parametrize("key", [*NUMBERS, "images", "complete"])
def test_a_summary_that_does_not_add_up(case, key):
    true = json.loads((case.folder / "summary.json").read_text())[key]
    for other in (true * (1 + 1e-6), true + 1, -true, None, *NOT_NUMBERS):
        seal(case.folder, case.manifest, case.records, **{key: other})
        case.fails()
    if key in NUMBERS:  # another order of summation is not a forgery
        seal(case.folder, case.manifest, case.records, **{key: true * (1 + 1e-13)})
        read_run(case.folder)
    summary = json.loads((case.folder / "summary.json").read_text())
    del summary[key]
    (case.folder / "summary.json").write_text(json.dumps(summary))
    case.fails()


def test_errors_without_values(case):
    case.manifest["claim"]["values"] = case.values = None
    for record in case.records:
        record["value"] = None
    for key in ("mean_absolute_error", "certified_mean_absolute_error"):
        case.write()
        read_run(case.folder)
        seal(case.folder, case.manifest, case.records, **{key: 0.1})
        case.fails(key)


@pytest.mark.parametrize("key", ["transform", "semantics", "method", "task", "seconds"])
def test_a_summary_of_another_run(case, key):
    for other in ("R(30)", None, 5, []):
        if (key, other) != ("seconds", 5):
            seal(case.folder, case.manifest, case.records, **{key: other})
            case.fails()


RECORDS = {
    "swapped": lambda records: records.insert(0, records.pop(1)),
    "swapped but for their numbers": lambda records: (
        records[0].update(image=FIRST + 1),
        records[1].update(image=FIRST),
        records.insert(0, records.pop(1)),
    ),
    "duplicated": lambda records: records.insert(1, records[0]),
    "duplicate instead": lambda records: records.__setitem__(1, records[0] | {"image": FIRST + 1}),
    "dropped": lambda records: records.pop(),
    "dropped first": lambda records: records.pop(0),
    "renumbered": lambda records: records[0].update(image=0),
    "all gone": lambda records: records.clear(),
    "one output less": lambda records: [records[0][key].pop() for key in LISTS],
    "no outputs": lambda records: [records[0].update({key: []}) for key in LISTS],
    "upside down": lambda records: records[0].update(lower=records[0]["upper"], upper=records[0]["lower"]),
    "complete is no flag": lambda records: records[0].update(complete=1),
}
LISTS = ("prediction", "lower", "upper", "inner_lower", "inner_upper", "lowest_at", "highest_at", "value")


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_do_not_belong(case, name):
    RECORDS[name](case.records)
    case.fails_sealed()


def test_values_hide_no_swapped_records(case):
    """The values are swapped too, so only the prediction distinguishes the two images."""
    case.records[0], case.records[1] = (
        case.records[1] | {"image": FIRST, "value": case.records[0]["value"]},
        case.records[0] | {"image": FIRST + 1, "value": case.records[1]["value"]},
    )
    case.fails_sealed("prediction", 0)


def test_another_network(case):
    true = case.model
    case.model = network(2, seed=1)
    with torch.no_grad():
        weight = case.model[5].weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    case.fails("weights")
    with torch.no_grad():  # the same answers at the images, but not around them
        case.model[3].weight[0] *= 1.5
        case.model[5].bias += true(case.images[:1])[0] - case.model(case.images[:1])[0]
    for record, answers in zip(case.records, case.model(case.images).tolist(), strict=True):
        record["prediction"] = answers
    case.manifest["claim"]["weights_sha256"] = manifest_of(case.model, case.images, [], TRANSFORM)["claim"][
        "weights_sha256"
    ]
    case.fails_sealed()


def test_another_image(case):
    case.images[1, 0, 3, 3] = torch.nextafter(case.images[1, 0, 3, 3], torch.tensor(2.0))
    case.fails("pixels", 1)
    case.images[1, 0, 3, 3] += 0.25
    claim = manifest_of(case.model, case.images, [], TRANSFORM)["claim"]
    case.manifest["claim"]["images_sha256"] = claim["images_sha256"]
    case.records[1]["prediction"] = case.model(case.images)[1].tolist()
    case.fails_sealed("", 1)


def test_a_task_that_is_removed_or_renamed(case):
    for task in (..., None, "classification", "Regression", "regression ", 1, ["regression"]):
        case.manifest["claim"]["task"] = task
        if task is ...:
            del case.manifest["claim"]["task"]
        (case.folder / "manifest.json").write_text(json.dumps(case.manifest))
        seal(case.folder, case.manifest | {"claim": case.manifest["claim"] | {"task": "regression"}}, case.records)
        case.fails("task|labels")
    case.manifest["claim"] |= {"task": "regression", "labels": [0, 0, 0]}
    case.fails_sealed("task|labels")


def numeric_places(value, path=()):
    """Yield every number in nested lists and dictionaries, and every list and dictionary."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numeric_places(inner, (*path, key))
    elif type(value) in (int, float):
        yield path


def put(document, path, value):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def test_anything_but_numbers_in_every_number_of_a_record(case):
    places = list(numeric_places(case.records[1]))
    assert len(places) > 20
    for path in places:
        for value in NOT_NUMBERS:
            records = copy.deepcopy(case.records)
            put(records[1], path, value)
            write_run(case.folder, case.manifest, records)
            with pytest.raises(CheckFailed):
                read_run(case.folder)


def test_anything_but_numbers_in_every_number_of_the_claim(case):
    places = list(numeric_places(case.manifest["claim"]))
    assert len(places) == 1 + 3 + 6
    for path in places:
        for value in [*NOT_NUMBERS, None]:
            manifest = copy.deepcopy(case.manifest)
            put(manifest["claim"], path, value)
            write_run(case.folder, manifest, case.records)
            with pytest.raises(CheckFailed):
                read_run(case.folder)
