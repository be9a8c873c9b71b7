"""A run folder records what was proved, and a run stopped anywhere continues as if undisturbed."""

import hashlib
import importlib
import json
import math
import resource
from fractions import Fraction

import pytest
import torch

from tests.support.digits import IMAGES, evidence, problem, run
from tiltproof import BranchAndBound, Execution, InputError, RunFolder, UniformGrid, Verdict, certify
from tiltproof.checker import check
from tiltproof.reports.assessment import facts
from tiltproof.runs import folder as run_folder
from tiltproof.runs.atomic_io import lock
from tiltproof.runs.reader import read_finished


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return an undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, run(folder)


def test_the_folder_and_the_certificate_agree(whole):
    folder, certificate = whole
    records = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert [record["verdict"] for record in records] == certificate.verdicts
    assert records == json.loads(json.dumps(certificate.records()))
    assert set(certificate.verdicts) >= {Verdict.CERTIFIED, Verdict.FALSIFIED, Verdict.MISCLASSIFIED}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["certified"] == certificate.count(Verdict.CERTIFIED)
    for name, digest in summary["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_the_claim_names_weights_and_images_by_their_bytes(whole):
    folder, _ = whole
    claim = json.loads((folder / "manifest.json").read_text())["claim"]
    model, images, labels = problem()
    assert claim["images_sha256"] == [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images]
    assert claim["labels"] == labels.tolist()
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update((json.dumps([name, "float32", list(tensor.shape)]) + "\n").encode() + tensor.numpy().tobytes())
    assert claim["weights_sha256"] == digest.hexdigest()


def test_every_certified_image_has_a_tiling_that_covers_its_range(whole):
    folder, certificate = whole
    for record in evidence(folder):
        assert (record["tree"] is not None) == (record["verdict"] == "certified")
        if record["tree"]:
            assert sum(volume for volume in leaf_volumes(record["grid"], record["tree"])) == 1
    assert any("a" in (result.tree or "") or "b" in (result.tree or "") for result in certificate.results)


def leaf_volumes(grid, tree):
    """Return exact volumes of the leaves, read as docs/run-folder.md says."""
    stack = [Fraction(1, math.prod(grid))] * math.prod(grid)
    count = ""
    for letter in tree:
        if letter.isdigit():
            count += letter
        elif letter == ".":
            for _ in range(int(count or 1)):
                yield stack.pop()
            count = ""
        else:
            half = stack.pop() / 2
            stack += [half, half]
    assert not stack


def test_without_a_folder_the_certificate_is_the_same(whole):
    assert [result.tree for result in run().results] == [result.tree for result in whole[1].results]


@pytest.mark.parametrize("name", ["verdicts.jsonl", "batches.jsonl"])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.93, 0.999])
def test_a_torn_tail_is_cut_off_and_done_again(whole, tmp_path, name, share):
    folder = copy_of(whole[0], tmp_path)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * len(content))])
    (folder / "summary.json").unlink()
    run(folder, resume=True)
    assert evidence(folder) == evidence(whole[0])
    assert (folder / "summary.json").exists()


@pytest.mark.parametrize("name", ["verdicts.jsonl", "batches.jsonl"])
def test_a_changed_byte_is_noticed_and_done_again(whole, tmp_path, name):
    folder = copy_of(whole[0], tmp_path)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    run(folder, resume=True)
    assert evidence(folder) == evidence(whole[0])


def copy_of(folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir(parents=True)
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_a_run_is_not_overwritten_nor_shared(whole):
    with pytest.raises(InputError, match="not empty"):
        run(whole[0])
    with (whole[0] / "verdicts.jsonl").open("r+b") as stream:
        lock(stream, whole[0])
        with pytest.raises(InputError, match="another process"):
            run(whole[0], resume=True)


def test_other_weights_images_or_labels_are_refused_by_name(whole):
    model, images, labels = problem()
    arguments = {"execution": Execution(batch_size=2), "run": RunFolder(whole[0], resume=True)}
    brighter = images.clone()
    brighter[7, 0, 2, 2] = torch.nextafter(brighter[7, 0, 2, 2], torch.tensor(1.0))
    with pytest.raises(InputError, match=r"images sha256 differs.*entry 7"):
        certify(model, brighter, labels, "R(8), B(0.02)", **arguments)
    other = labels.clone()
    other[3] = (other[3] + 1) % 4
    with pytest.raises(InputError, match="labels differs"):
        certify(model, images, other, "R(8), B(0.02)", **arguments)
    with torch.no_grad():
        model[0].bias[0] = torch.nextafter(model[0].bias[0], torch.tensor(9.0))
    with pytest.raises(InputError, match="weights sha256 differs"):
        certify(model, images, labels, "R(8), B(0.02)", **arguments)


def test_another_version_does_not_go_on_with_a_run(whole, tmp_path, monkeypatch):
    """What an older version proved, perhaps wrongly, is not sealed together with this version's proofs."""
    folder = copy_of(whole[0], tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(importlib.import_module("tiltproof.runs.manifest"), "__version__", "9.9.9")
    with pytest.raises(InputError, match=r"another version of tiltproof.*9\.9\.9 now"):
        run(folder, resume=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_other_environments_are_listed(whole, tmp_path, monkeypatch):
    folder, environment = copy_of(whole[0], tmp_path), run_folder.environment
    monkeypatch.setattr(run_folder, "environment", lambda device: environment(device) | {"torch": "9.9"})
    for _ in range(2):
        run(folder, resume=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [each["torch"] for each in manifest["resumed"]] == ["9.9"]
    assert manifest["environment"]["torch"] != "9.9"
    model, images, labels = problem()
    assert check(folder, model, images, labels).certified
    assert ("Resumed with", ", ".join(f"{key} {value}" for key, value in manifest["resumed"][0].items())) in facts(
        read_finished(folder)
    )
    for damaged in ({"environment": None}, {"resumed": [7]}, {"resumed": 7}):
        (folder / "manifest.json").write_text(json.dumps(manifest | damaged))
        with pytest.raises(InputError, match="damaged"):
            run(folder, resume=True)
        with pytest.raises(InputError, match="damaged"):
            read_finished(folder)


def test_a_damaged_manifest_is_refused(whole, tmp_path):
    folder = copy_of(whole[0], tmp_path)
    for content in (b"", b"{", b"[]", b'{"format": "other"}', b"\xff\xfe"):
        (folder / "manifest.json").write_bytes(content)
        with pytest.raises(InputError):
            run(folder, resume=True)


def test_a_full_disk_loses_nothing_that_was_done(whole, tmp_path):
    """The largest file the process may write is limited, as a full disk would do."""
    folder = tmp_path / "full"
    size = (whole[0] / "verdicts.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * 3 // 4, before[1]))
    try:
        with pytest.raises(InputError, match="cannot be written"):
            run(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    done = len((folder / "batches.jsonl").read_text().splitlines())
    assert 0 < done < IMAGES // 2
    seen = []
    run(folder, resume=True, progress=lambda progress: seen.append(progress.done))
    assert seen[0] >= 2 * done  # nothing finished is repeated
    assert evidence(folder) == evidence(whole[0])


def test_overwriting_waits_until_the_request_is_known_to_be_valid(whole, tmp_path):
    folder = copy_of(whole[0], tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model, images, labels = problem()
    wrong = UniformGrid((2, 2)), "R(1)"  # two numbers for one parameter
    for search, transform in (wrong, (BranchAndBound(), "R(1), Q(2)"), (240, "R(1)")):
        with pytest.raises(InputError):
            certify(model, images, labels, transform, search=search, run=RunFolder(folder, overwrite=True))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    certify(model, images[:2], labels[:2], "R(1)", run=RunFolder(folder, overwrite=True))
    assert len(evidence(folder)) == 2


def test_what_another_run_left_behind_never_enters_this_one(whole, tmp_path):
    """A missing manifest, journals of another run with lines of the same length: nothing of them survives."""
    folder = copy_of(whole[0], tmp_path)
    (folder / "manifest.json").unlink()
    model, images, labels = problem()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for options in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(InputError, match="result folder"):
            certify(model, images[:2], labels[:2], "R(8), B(0.03)", run=RunFolder(folder, **options))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    other = copy_of(whole[0], tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["claim"]["transform"] = "R(8), B(0.03)"
    (other / "manifest.json").write_text(json.dumps(manifest))
    seen = []
    certify(
        model,
        images,
        labels,
        "R(8), B(0.03)",
        execution=Execution(batch_size=2),
        run=RunFolder(other, resume=True),
        progress=seen.append,
    )
    assert seen[0].done == 0  # none of the old batches counts


def test_the_same_weights_in_another_network_are_another_run(whole, tmp_path):
    folder = copy_of(whole[0], tmp_path)
    model, images, labels = problem()
    model[1] = torch.nn.Tanh()
    with pytest.raises(InputError, match="graph sha256 differs"):
        certify(
            model,
            images,
            labels,
            "R(8), B(0.02)",
            execution=Execution(batch_size=2),
            run=RunFolder(folder, resume=True),
        )


def test_a_folder_replaced_under_a_run_is_noticed(tmp_path):
    folder = tmp_path / "run"

    def replace(progress):
        if progress.done > 4 and not (tmp_path / "old").exists():
            folder.rename(tmp_path / "old")
            copy_of(tmp_path / "old", tmp_path).rename(folder)

    with pytest.raises(InputError, match="replaced while"):
        run(folder, progress=replace)
