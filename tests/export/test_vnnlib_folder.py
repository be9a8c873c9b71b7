"""Folders of properties: every transformed image lies in its box, and the files ask exactly what the run proved."""

import hashlib
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tiltproof as tp
from tests.export.plain_reader import read_plain
from tests.support.kept import Mean
from tests.support.run_folder import manifest_of, record, write_run
from tiltproof import InputError, RunFolder, UniformGrid, bound_network, certify, parse
from tiltproof.data import load as load_data
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.export import export_run, export_vnnlib
from tiltproof.models import load as load_model
from tiltproof.models import load_onnx
from tiltproof.verify.options import BOUNDS

TRANSFORM = "R(-10:25), Sc(5), C(10), B(0.05)"


def small(classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, classes)).eval()


def some_images(count=2):
    return torch.rand(count, 1, 7, 7, generator=torch.Generator().manual_seed(3))


def read(path):
    return read_plain(path.read_text())


def test_the_layout_is_that_of_the_competition(tmp_path):
    model, images = small(), some_images()
    written = export_vnnlib(
        model, images, torch.tensor([1, 2]), "R(5)", tmp_path / "p", splits=3, numbers=[8, 30], timeout=20
    )
    names = [f"vnnlib/image_{n:05d}_box_{k:05d}.vnnlib" for n in (8, 30) for k in range(3)]
    assert [prop.vnnlib for prop in written.properties] == names
    for version in ("1.0", "2.0"):
        folder = tmp_path / "p" / version
        assert (folder / "instances.csv").read_text() == "".join(f"onnx/network.onnx,{name},20\n" for name in names)
        assert sorted(f"vnnlib/{path.name}" for path in (folder / "vnnlib").iterdir()) == names
    content = (tmp_path / "p" / "2.0" / "onnx" / "network.onnx").read_bytes()
    assert content == (tmp_path / "p" / "1.0" / "onnx" / "network.onnx").read_bytes()
    manifest = json.loads((tmp_path / "p" / "manifest.json").read_text())
    assert manifest["onnx_sha256"] == hashlib.sha256(content).hexdigest()
    rows = [json.loads(line) for line in (tmp_path / "p" / "boxes.jsonl").read_text().splitlines()]
    assert [row["vnnlib"] for row in rows] == names
    assert [row["label"] for row in rows] == [1, 1, 1, 2, 2, 2]
    ends = [(row["low"][0], row["high"][0]) for row in rows[:3]]
    assert ends[0][0] <= -5
    assert ends[2][1] >= 5
    assert [a for _, a in ends[:2]] == [b for b, _ in ends[1:]], "neighbors share their edge"
    problem = read(tmp_path / "p" / "1.0" / names[5])
    assert problem.clauses == [(0, 2), (1, 2)]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Return sixteen boxes of a composition for each of two images, with their exact bounds."""
    folder = tmp_path_factory.mktemp("grid") / "p"
    written = export_vnnlib(small(), some_images(), torch.tensor([0, 1]), TRANSFORM, folder, splits=(4, 1, 2, 2))
    return [(prop, read(folder / "1.0" / prop.vnnlib)) for prop in written.properties]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), image=st.integers(0, 1))
def test_no_transformed_image_is_outside(grid, data, image):
    """Sampled parameters, also on the edges: some box of the image contains them, and every such box contains the image."""
    transform = parse(TRANSFORM)
    places = [
        data.draw(st.floats(low, high) | st.sampled_from([low, high, (low + high) / 2]))
        for low, high in zip(transform.low, transform.high, strict=True)
    ]
    original = some_images()[image].double()
    pixels = transform.apply(original[None], torch.tensor([places], dtype=torch.float64)).flatten().tolist()
    holding = [
        problem
        for prop, problem in grid
        if prop.image == image and all(a <= x <= b for a, x, b in zip(prop.low, places, prop.high, strict=True))
    ]
    assert holding
    room = 1e-12  # of the sampled image itself, which is computed in float64
    for problem in holding:
        assert all(a - room <= x <= b + room for a, x, b in zip(problem.lower, pixels, problem.upper, strict=True))


@pytest.mark.parametrize(("method", "transform"), [("hull", "R(1)"), ("fgv", "R(0.1)")])
def test_a_run_by_intervals_is_proved_again_from_the_files_alone(method, transform, tmp_path):
    """ONNX, VNN-LIB 2.0 with its own parser, and one bound per box: what any other verifier would do."""
    vnnlib, compat = pytest.importorskip("vnnlib"), pytest.importorskip("vnnlib.compat")
    images, labels = (tensor[:3] for tensor in load_data("mnist-sample"))
    model = load_model("mnist-r30")
    certificate = certify(
        model, images, labels, transform, bounds=BOUNDS[method], search=UniformGrid(16), run=RunFolder(tmp_path / "run")
    )
    assert certificate.summary()["certified"] == 3
    written = export_run(tmp_path / "run", model, images, labels, tmp_path / "p", numbers=[2, 0])
    assert [prop.image for prop in written.properties] == [2] * 16 + [0] * 16
    assert json.loads((tmp_path / "p" / "manifest.json").read_text())["method"] == method
    network = load_onnx(tmp_path / "p" / "2.0" / "onnx" / "network.onnx")
    boxes, chosen = [], []
    for prop in written.properties:
        (case,) = compat.transform(vnnlib.parse_query_file(str(tmp_path / "p" / "2.0" / prop.vnnlib)))
        boxes.append(np.array(case.input_box, np.float32).reshape(1, 28, 28, 2))
        chosen.append(int(np.array(case.output_constraints[0].coeff_matrix[0]).argmax()))
    assert chosen == [int(labels[prop.image]) for prop in written.properties]
    ends = torch.from_numpy(np.stack(boxes))
    form = bound_network(network, AffineForm.between(ends[..., 0], ends[..., 1]), torch.tensor(chosen))
    others = torch.ones(form.shape, dtype=torch.bool).scatter(1, torch.tensor(chosen)[:, None], False)
    assert bool((form.lower[others] > 0).all())


def test_the_boxes_of_a_run_are_its_tilings(tmp_path):
    images, labels = (tensor[:2] for tensor in load_data("mnist-sample"))
    model = load_model("mnist-r30")
    certificate = certify(model, images, labels, "R(30)", run=RunFolder(tmp_path / "run"), first=0)
    written = export_run(tmp_path / "run", model, images, labels, tmp_path / "p")
    for result in certificate.results:
        mine = [prop for prop in written.properties if prop.image == result.image]
        assert len(mine) >= result.grid[0]
        assert (mine[0].low[0], mine[-1].high[0]) == (np.nextafter(-30, -31), np.nextafter(30, 31))
        assert all(a.high == b.low for a, b in itertools.pairwise(mine)), "no gap"


def test_models_and_images_must_be_the_runs(tmp_path):
    model, images, labels = small(), some_images(), torch.tensor([0, 0])
    certify(model, images, labels, "B(0.001)", run=RunFolder(tmp_path / "run"))
    with pytest.raises(InputError, match="weights are not those of the run"):
        export_run(tmp_path / "run", small(seed=1), images, labels, tmp_path / "p")
    with pytest.raises(InputError, match="not the run's"):
        export_run(tmp_path / "run", model, images.flip(0), labels, tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    "tree", ["3.", "2.a", "a" * 70 + "71..", "z3.", "", "99999999999999.", "a" * 30_000 + "30001.."]
)
def test_forged_tilings_are_refused_in_words(tree, tmp_path):
    model, images = small(), some_images()
    records = [record(k, 0, "certified", margin=1.0, grid=[2], tree=tree) for k in range(2)]
    write_run(tmp_path / "run", manifest_of(model, images, [0, 0], "R(5)"), records)
    with pytest.raises(InputError, match=r"tiling|damaged|20,000|no certified image"):
        export_run(tmp_path / "run", model, images, torch.tensor([0, 0]), tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"splits": 30_000}, "more than 20,000 properties"),
        ({"splits": (2, 2)}, "splits must be 1"),
        ({"method": "boxes"}, "unknown method"),
        ({"numbers": [1, 1]}, "a different number"),
        ({"numbers": [-1, 1]}, "a different number"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
    ],
)
def test_bad_input(change, match, tmp_path):
    with pytest.raises(InputError, match=match):
        export_vnnlib(small(), some_images(), torch.tensor([0, 0]), "R(5)", tmp_path / "p", **change)
    assert not (tmp_path / "p").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="new folder"):
        export_vnnlib(small(), some_images(), torch.tensor([0, 0]), "R(5)", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_the_parser_of_version_1_reads_it_too(tmp_path):
    """vnnlib 0.0.1 from PyPI, which the tools of VNN-COMP used up to 2025, installed in a temporary folder: needs the network."""
    target = tmp_path / "old"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
        "vnnlib==0.0.1.post1",
    ]
    subprocess.run(install, check=True)
    written = export_vnnlib(small(), some_images(), torch.tensor([1, 2]), "R(5)", tmp_path / "p")
    for prop in written.properties:
        path = tmp_path / "p" / "1.0" / prop.vnnlib
        code = (
            "import json, sys; from vnnlib.compat import read_vnnlib_simple as read\n"
            "((box, outputs),) = read(sys.argv[1], 49, 3)\n"
            "print(json.dumps([box, [[a.tolist(), b.tolist()] for a, b in outputs]]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, path], env={"PYTHONPATH": str(target)}, check=True, capture_output=True
        )
        box, outputs = json.loads(done.stdout)
        problem = read(path)
        assert box == [[float(a), float(b)] for a, b in zip(problem.lower, problem.upper, strict=True)]
        rows = [
            [float(k == prop.label) - float(k == other) for k in range(3)] for other in range(3) if other != prop.label
        ]
        assert outputs == [[[row], [[0.0]]] for row in rows]


@pytest.mark.parametrize(
    ("keep", "cases"),
    [
        (tp.KeepOwn(), [[(1, 0)], [(2, 0)], [(3, 0)]]),
        (tp.TopK(2), [[(1, 0), (2, 0)], [(1, 0), (3, 0)], [(2, 0), (3, 0)]]),
        (tp.Allow([2]), [[(1, 0), (1, 2)], [(3, 0), (3, 2)]]),
        (tp.Forbid({0: [3, 1]}), [[(1, 0), (1, 2)], [(3, 0), (3, 2)]]),
    ],
    ids=str,
)
def test_what_a_run_keeps(keep, cases, tmp_path):
    model = Mean((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, 0.0)).eval()
    images, labels = torch.full((1, 1, 2, 2), 0.25), torch.tensor([0])
    tp.certify(model, images, labels, "B(0.1)", keep=keep, run=tp.RunFolder(tmp_path / "run"))
    written = export_run(tmp_path / "run", model, images, labels, tmp_path / "out")
    for prop in written.properties:
        assert read_plain((tmp_path / "out" / "1.0" / prop.vnnlib).read_text()).cases == cases


def test_rows_cannot_be_written(tmp_path):
    model, images, labels = Mean((1.0, 0.0), (0.0, 1.0)).eval(), torch.full((1, 1, 2, 2), 0.25), torch.tensor([0])
    tp.certify(model, images, labels, "B(0.1)", keep=tp.Linear([[1.0, 0.1]], 0.5), run=tp.RunFolder(tmp_path / "run"))
    with pytest.raises(InputError, match="cannot be written as VNN-LIB"):
        export_run(tmp_path / "run", model, images, labels, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rounded_pictures_cannot_be_written(tmp_path):
    """The pixel 0.3 becomes 76 / 255 or 77 / 255, which do not lie within [0.3, 0.301]."""
    model, images, labels = Mean((1.0, -0.25), (-1.0, 0.25)).eval(), torch.full((1, 1, 2, 2), 0.3), torch.tensor([0])
    tp.certify(model, images, labels, "B(0:0.001)", semantics="uint8", run=tp.RunFolder(tmp_path / "run"))
    with pytest.raises(InputError, match="rounded to 8 bits"):
        export_run(tmp_path / "run", model, images, labels, tmp_path / "out")
    assert not (tmp_path / "out").exists()
