"""A true run folder passes; every forgery is found, even after the folder is sealed again."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from tests.support.run_folder import manifest_of, record, seal, write_run
from tiltproof.checker import CheckFailed, check
from tiltproof.checker.form import Form
from tiltproof.checker.network import explained
from tiltproof.errors import InputError

FIRST = 10
CERTIFIED, DARK, BROKEN, WRONG, OPEN = range(5)
TRANSFORM = "B(-0.2:0.2), R(10)"


def network() -> nn.Module:
    """Predict class 1 if the mean of the four central pixels exceeds one half, after a convolution that copies the image."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    with torch.no_grad():
        model[0].weight.zero_()[:, 0, 1, 1] = 1
        model[0].bias.zero_()
        model[3].weight.zero_()
        model[3].weight[1].view(2, 6, 6)[:, 2:4, 2:4] = 1 / 8
        model[3].bias.copy_(torch.tensor([0.5, 0.0, -9.0]))
    return model


def make_images() -> torch.Tensor:
    """Return nearly constant images: under B(0.2) the first two are certified, the third and the last can be broken."""
    grey = torch.tensor([0.75, 0.25, 0.6, 0.4, 0.6]).view(-1, 1, 1, 1)
    return (grey + 0.01 * torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))).contiguous()


LABELS = torch.tensor([1, 0, 1, 1, 1])


def true_records() -> list[dict]:
    return [
        record(FIRST, 1, "certified", margin=0.04, grid=[2, 2], tree="2.ba4."),
        record(FIRST + 1, 0, "certified", margin=0.02, grid=[2, 2], tree="4."),
        record(FIRST + 2, 1, "falsified", margin=-0.05, counterexample=[-0.2, 3.0]),
        record(FIRST + 3, 1, "misclassified", margin=-0.095),
        record(FIRST + 4, 1, "unknown", margin=-0.1, open_box=[[-0.2, -10], [0.2, 10]], reason="boxes"),
    ]


class Case:
    """A run folder with its network and images, all open to tampering."""

    def __init__(self, folder):
        self.folder, self.model, self.images, self.labels = folder, network(), make_images(), LABELS.clone()
        self.manifest = manifest_of(self.model, self.images, self.labels, TRANSFORM, first=FIRST)
        self.records = true_records()
        self.write()

    def write(self):
        write_run(self.folder, self.manifest, self.records)

    def check(self, **settings):
        return check(self.folder, self.model, self.images, self.labels, **settings)

    def fails(self, match="", image=None):
        with pytest.raises(CheckFailed, match=match or None) as caught:
            self.check()
        assert image is None or caught.value.image == FIRST + image, caught.value
        assert "\n" not in str(caught.value)


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path / "run")


@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_a_true_run_holds(case, semantics):
    case.manifest["claim"]["semantics"] = semantics
    case.write()
    steps = []
    report = case.check(progress=lambda done, total: steps.append((done, total)))
    counts = (report.images, report.certified, report.boxes, report.counterexamples, report.sampled)
    assert counts == (5, 2, 10, 1, False)
    assert report.sub_boxes >= 10
    assert steps[-1] == (10, 10)


def test_double_images_that_are_exactly_the_run_s(case):
    case.images = case.images.double()
    case.check()
    case.images[0, 0, 0, 0] += 1e-12
    case.fails("pixels", 0)


def test_a_sample(case):
    report = case.check(sample=2, seed=3)
    assert report.images == 2
    assert report.sampled
    assert not case.check(sample=99).sampled
    with pytest.raises(InputError):
        case.check(sample=0)
    case.records[DARK]["tree"] = "3."
    case.write()
    for seed in range(5):  # tilings are checked for all images
        with pytest.raises(CheckFailed, match="cover"):
            case.check(sample=1, seed=seed)


@pytest.mark.parametrize(
    "tree", ["1.ba4.", "2.ba3.", "2.ba5.", "2.ba4..", "2.ca4.", "ba", "", "2.ba4.\n", "a" * 10**6, "999999999999."]
)
def test_a_tree_that_is_no_tiling(case, tree):
    case.records[CERTIFIED]["tree"] = tree
    case.write()
    case.fails("tiling", CERTIFIED)


@pytest.mark.parametrize(
    "grid",
    [[2, 3], [2], [2, 2, 1], [0, 2], [2, -2], [2.0, 2], [True, 4], "22", None, [2**30, 2], [10**400, 2], [2, None]],
)
def test_a_changed_grid(case, grid):
    case.records[CERTIFIED]["grid"] = grid
    case.write()
    case.fails(image=CERTIFIED)


@pytest.mark.parametrize("letter", ["a", "b"])
def test_another_axis_is_another_tiling_of_the_same_range(case, letter):
    """Sealed again the run is still true: all that matters is that the boxes cover the range."""
    case.records[CERTIFIED]["tree"] = f"2.{letter}3."
    case.write()
    text = (case.folder / "verdicts.jsonl").read_text()
    (case.folder / "verdicts.jsonl").write_text(text.replace(f"2.{letter}3.", "2.b3." if letter == "a" else "2.a3."))
    case.fails("sha256|not those")
    case.write()
    case.check()


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("B(-0.26:0.2), R(10)", CERTIFIED),
        ("B(-0.2:0.26), R(10)", DARK),
        ("B(-0.2:0.2), Tu(6)", CERTIFIED),
        ("R(10), B(3)", BROKEN),
    ],
)
def test_a_wider_or_another_range(case, text, image):
    case.manifest["claim"]["transform"] = text
    for each in case.records:
        if each["open_box"] is not None:
            each["open_box"] = [[0.0, 0.0], [0.1, 0.1]]
    case.write()
    case.fails("could not be re-proved|smaller than claimed|does not change", image)


def test_one_step_past_the_true_limit(tmp_path):
    """mean + b > 1/2 exactly when b > -1/4: proved up to that limit, refused beyond."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0] * 4, [0.25] * 4]))
        model[1].bias.copy_(torch.tensor([0.5, 0.0]))
    images, labels = torch.full((1, 1, 2, 2), 0.75), torch.tensor([1])
    for low, holds in (("-0.2499999", True), ("-0.25", False), ("-0.2500001", False)):
        one = record(0, 1, "certified", margin=1e-9, grid=[4], tree="4.")
        write_run(tmp_path / low, manifest_of(model, images, labels, f"B({low}:0.1)"), [one])
        if holds:
            check(tmp_path / low, model, images, labels)
        else:
            with pytest.raises(
                CheckFailed, match="image 0: (box .* could not be re-proved|its margin is smaller than claimed)"
            ):
                check(tmp_path / low, model, images, labels)


def test_limits_between_two_float32_numbers(tmp_path):
    """0.7 + b > bias exactly when b > bias - 0.7, which is not a float32 number: boxes must not be rounded to float32."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    images, labels = torch.full((1, 1, 1, 1), 0.7), torch.tensor([1])
    rounded_up = 0
    for k in range(12):
        with torch.no_grad():
            model[1].weight.copy_(torch.tensor([[0.0], [1.0]]))
            model[1].bias.copy_(torch.tensor([0.05 + k / 777, 0.0]))
        limit = model[1].bias[0].item() - images[0, 0, 0, 0].item()  # exact: 27 bits suffice
        rounded_up += float(torch.tensor(limit)) > limit
        for step, holds in ((1e-12, True), (-1e-12, False)):
            folder = tmp_path / f"{k}{holds}"
            text = f"B({limit + step!r}:0.1)"
            proof = record(0, 1, "certified", margin=1e-13, grid=[1], tree=".")
            write_run(folder, manifest_of(model, images, labels, text), [proof])
            if holds:
                check(folder, model, images, labels)
                continue
            with pytest.raises(CheckFailed):
                check(folder, model, images, labels)
            broken = record(0, 1, "falsified", margin=-1e-13, counterexample=[limit + step / 2])
            write_run(folder, manifest_of(model, images, labels, text), [broken])
            check(folder, model, images, labels)
    assert rounded_up >= 3


def test_a_weight_in_its_last_bit(case):
    with torch.no_grad():
        weight = case.model[3].weight
        weight[1, 14] = torch.nextafter(weight[1, 14], torch.tensor(2.0))
    case.fails("weights")
    case.manifest["claim"]["weights_sha256"] = "0" * 64
    case.write()
    case.fails("weights")


def test_a_forward_pass_that_changes_its_weights(case):
    class Drifting(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.register_buffer("calls", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.calls += 1
            return self.inner(x)

    case.model = Drifting(case.model)
    case.manifest = manifest_of(case.model, case.images, case.labels, TRANSFORM, first=FIRST)
    case.write()
    case.fails("changed its own")


def test_a_pixel_in_its_last_bit(case):
    pixels = case.images[BROKEN, 0, 0]
    pixels[3] = torch.nextafter(pixels[3], torch.tensor(2.0))
    case.fails("pixels", BROKEN)


def test_labels(case):
    case.labels[DARK] = 1
    case.fails("label", DARK)
    case.manifest["claim"]["labels"][DARK] = 1
    case.write()
    case.fails("label", DARK)
    case.records[DARK]["label"] = 1
    case.write()
    case.fails("misclassified", DARK)
    case.labels = case.labels[:3]
    case.fails()


@pytest.mark.parametrize("label", [3, -1, 2**40, 1.0, True, None, "1"])
def test_labels_that_are_no_classes(case, label):
    case.manifest["claim"]["labels"][0] = label
    case.records[0]["label"] = label
    if type(label) is int and abs(label) < 2**40:
        case.labels[0] = label
    case.write()
    case.fails()


TILING = {"grid": [64, 8], "tree": "512.", "margin": 1e-6}
POINT = {"counterexample": [0.1, 1.0], "margin": -0.01}
FLIPS = [
    (CERTIFIED, "falsified", POINT), (CERTIFIED, "misclassified", {"margin": -0.1}),
    (CERTIFIED, "falsified", {"counterexample": [-0.3, 0.0], "margin": -0.1}),
    (BROKEN, "certified", TILING), (BROKEN, "misclassified", {"margin": -0.1}),
    (WRONG, "certified", TILING), (WRONG, "falsified", {"counterexample": [-0.2, 0.0], "margin": -0.1}), (WRONG, "unknown", {}),
    (OPEN, "certified", TILING), (OPEN, "misclassified", {"margin": -0.1}), (OPEN, "falsified", POINT),
]  # fmt: skip


@pytest.mark.parametrize(("image", "verdict", "fields"), FLIPS)
def test_a_verdict_that_claims_something_false(case, image, verdict, fields):
    case.records[image] = record(FIRST + image, int(LABELS[image]), verdict, **fields)
    case.write()
    case.fails(image=image)


@pytest.mark.parametrize(
    "point",
    [
        [0.1, 3.0],
        [-0.2000000001, 3.0],
        [-0.2, 11.0],
        [-0.2],
        [-0.2, 3.0, 0.0],
        [None, 1.0],
        "ab",
        [1e308, 1e308],
        [-0.2, True],
    ],
)
def test_a_counterexample_that_is_none(case, point):
    case.records[BROKEN]["counterexample"] = point
    case.write()
    case.fails(image=BROKEN)


@pytest.mark.parametrize(
    ("image", "margin"),
    [(CERTIFIED, x) for x in (0.5, 0.0, None, "1")] + [(BROKEN, x) for x in (0.01, -0.5, None)],
)
def test_a_margin_that_is_provably_wrong(case, image, margin):
    case.records[image]["margin"] = margin
    case.write()
    case.fails("margin", image)


def swap(records):
    records[0], records[1] = records[1], records[0]


RECORDS = {
    "swapped": swap,
    "duplicated": lambda records: records.insert(1, records[0]),
    "duplicate instead": lambda records: records.__setitem__(1, records[0]),
    "dropped": lambda records: records.pop(),
    "dropped first": lambda records: records.pop(0),
    "renumbered": lambda records: records[0].update(image=7),
    "all gone": lambda records: records.clear(),
    "unknown verdict": lambda records: records[0].update(verdict="proved"),
    "tree for unknown": lambda records: records[OPEN].update(grid=[1, 1], tree="."),
    "key missing": lambda records: records[0].pop("open_box"),
    "negative boxes": lambda records: records[0].update(boxes=-1),
    "open box": lambda records: records[OPEN].update(open_box=[[1, 2]]),
    "reason of a proof": lambda records: records[CERTIFIED].update(reason="boxes"),
    "no reason": lambda records: records[OPEN].update(reason="whim"),
    "list of reasons": lambda records: records[OPEN].update(reason=["boxes"]),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_out_of_order(case, name):
    RECORDS[name](case.records)
    case.write()
    case.fails()


@pytest.mark.parametrize("name", ["manifest.json", "verdicts.jsonl", "batches.jsonl", "summary.json"])
def test_each_file_cut_off_or_spoilt(case, name):
    path = case.folder / name
    whole = path.read_bytes()
    spoilt = [whole[: int(len(whole) * part)] for part in (0, 0.2, 0.5, 0.9)] + [
        whole[:-1],
        whole + b"{}\n",
        b"[]\n",
        b"\xff\xfe" + whole,
    ]
    spoilt += [
        b"[" * 10**5,
        whole.replace(b"0.1", b"NaN"),
        whole.replace(b"1", b"Infinity"),
        whole.replace(b"1", b"1e999"),
        b"1" * 5000,
    ]
    spoilt += [whole.replace(b'"image": 10', b'"image": 10, "image": 10'), whole.replace(b": 1", b": 1" + b"0" * 4000)]
    for text in spoilt:
        if text == whole:
            continue
        path.write_bytes(text)
        case.fails()
        if name != "summary.json":  # and sealed again
            seal(case.folder, case.manifest, case.records)
            if not (name == "manifest.json" and text == whole[:-1] + b"}"):
                case.fails()
        path.write_bytes(whole)
    seal(case.folder, case.manifest, case.records)
    case.check()
    path.unlink()
    if name == "manifest.json":
        with pytest.raises(InputError):
            case.check()
    else:
        case.fails("resume" if name == "summary.json" else "missing")


@pytest.mark.parametrize(
    "key", ["certified", "images", "correct", "unfalsified", "unknown", "transform", "semantics", "method", "seconds"]
)
def test_a_summary_that_does_not_add_up(case, key):
    seal(
        case.folder,
        case.manifest,
        case.records,
        **{key: "R(30)" if key in ("transform", "semantics", "method") else 99 if key != "seconds" else None},
    )
    case.fails()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("semantics", "float16"), ("dtype", "int8"), ("dtype", "nn"), ("shape", [1, 6]), ("shape", [1, 6, 2**60]),
        ("first", -1), ("first", 11), ("first", 10**30),
        ("images_sha256", []), ("images_sha256", [0] * 5), ("labels", [1]), ("weights_sha256", None),
        ("transform", "R(nan)"), ("transform", 5),
    ],
)  # fmt: skip
def test_a_claim_that_is_none(case, key, value):
    case.manifest["claim"][key] = value
    case.write()
    case.fails()


def test_another_format_or_version(case):
    for key, value in (("format", "other"), ("version", 2), ("version", True), ("claim", []), ("settings", None)):
        manifest = copy.deepcopy(case.manifest)
        manifest[key] = value
        (case.folder / "manifest.json").write_text(json.dumps(manifest))
        seal(case.folder, case.manifest, case.records)
        case.fails()


def test_batches_that_do_not_add_up(case):
    path = case.folder / "batches.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for k, key, value in (
        (0, "images", 3),
        (0, "bytes", 10),
        (1, "batch", 5),
        (1, "sha256", "0" * 64),
        (2, "bytes", 2**52),
        (1, "bytes", 0),
        (0, "grid", ...),
    ):
        changed = copy.deepcopy(lines)
        if value is ...:
            del changed[k][key]
        else:
            changed[k][key] = value
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
        seal(case.folder, case.manifest, case.records)
        case.fails()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    seal(case.folder, case.manifest, case.records)
    case.fails("add up")


def test_inputs_that_cannot_be_used(case, tmp_path):
    with pytest.raises(InputError):
        check(tmp_path / "nowhere", case.model, case.images, case.labels)
    with pytest.raises(InputError):
        check(case.folder, case.model, case.images[0], case.labels)
    with pytest.raises(CheckFailed, match="5 images"):
        check(case.folder, case.model, case.images[:4], case.labels[:4])
    case.manifest["claim"]["semantics"] = "float32"
    case.model.double()
    case.manifest["claim"]["weights_sha256"] = manifest_of(case.model, case.images, case.labels, "R(1)")["claim"][
        "weights_sha256"
    ]
    case.write()
    case.fails("float32")


def test_small_outputs_are_compared_by_their_own_size():
    """Beside an output of 100, one of a thousandth may not be off by a thousandth: it decides, too."""
    answers = torch.tensor([[100.0, 0.001], [100.0, 0.0]], dtype=torch.float64)
    form = Form(torch.tensor([[[100.0, 0.0]] * 2, [[1e-4, 1e-7]] * 2], dtype=torch.float64))
    assert explained(answers, form, form).tolist() == [[True, False], [True, True]]
