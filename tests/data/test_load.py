"""`load_data`: the bundled sample, where it looks for the files of a full set, and how it answers a wrong name."""

import gzip
import os
import shutil
import subprocess
import sys

import pooch
import pytest
import torch

from tiltproof.data import load as load_data
from tiltproof.data.loading import SAMPLE_ROOT
from tiltproof.errors import InputError


def test_the_samples_are_the_first_test_images():
    images, labels = load_data("mnist-sample")
    assert (images.shape, images.dtype) == ((100, 1, 28, 28), torch.float32)
    assert (labels[:8].tolist(), labels.dtype) == ([7, 2, 1, 0, 4, 1, 4, 9], torch.int64)
    images, labels = load_data("cifar10-sample")
    assert images.shape == (100, 3, 32, 32)
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert images.min() == 0
    assert images.max() == 1


def test_the_sample_is_small():
    assert sum(path.stat().st_size for path in SAMPLE_ROOT.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("inside", ["", "name"], ids=["parent", "itself"])
@pytest.mark.parametrize("source", ["argument", "variable"])
def test_root_is_the_folder_or_its_parent(name, inside, source, monkeypatch):
    root = SAMPLE_ROOT / name if inside else SAMPLE_ROOT
    if source == "variable":
        monkeypatch.setenv("TILTPROOF_DATA", str(root))
        images, labels = load_data(name)
    else:
        monkeypatch.setenv("TILTPROOF_DATA", "/no/such/folder")
        images, labels = load_data(name, root)
    expected_images, expected_labels = load_data(f"{name}-sample")
    assert torch.equal(images, expected_images)
    assert torch.equal(labels, expected_labels)


def test_plain_and_compressed_files_mix(tmp_path):
    for path in (SAMPLE_ROOT / "mnist").iterdir():
        shutil.copy(path, tmp_path)
    packed = tmp_path / "t10k-labels-idx1-ubyte.gz"
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert load_data("mnist", tmp_path)[1][:3].tolist() == [7, 2, 1]


def test_images_without_their_labels(tmp_path):
    shutil.copy(SAMPLE_ROOT / "mnist" / "t10k-images-idx3-ubyte.gz", tmp_path)
    with pytest.raises(InputError, match="missing.*t10k-labels-idx1-ubyte"):
        load_data("mnist", tmp_path)


def test_labels_of_another_set(tmp_path):
    shutil.copy(SAMPLE_ROOT / "mnist" / "t10k-images-idx3-ubyte.gz", tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 2]))
    with pytest.raises(InputError, match="do not match.*100 images and 2 labels"):
        load_data("mnist", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("imagenet",), "neither a known data set nor a folder.*mnist, cifar10, .*mnist-sample"),
        (("mnist", "/no/such/folder"), "not in the data folder.*not a folder"),
        (("mnist", SAMPLE_ROOT / "cifar10"), "not in the data folder.*t10k-images-idx3-ubyte"),
        (("mnist", SAMPLE_ROOT, "validation"), "unknown split"),
        (("mnist-sample", None, "train"), "test images only"),
        ((SAMPLE_ROOT, None, "train"), "no splits"),
    ],
)
def test_what_cannot_be_loaded(arguments, message):
    with pytest.raises(InputError, match=message):
        load_data(*arguments)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_failed_download_says_what_to_do(name, monkeypatch, tmp_path):
    def unreachable(url, **_):
        raise OSError(f"cannot reach {url}")

    monkeypatch.delenv("TILTPROOF_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path)
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    with pytest.raises(InputError, match=f"{name} could not be downloaded.*--data-root.*TILTPROOF_DATA"):
        load_data(name)


def test_a_download_is_checked_and_read_from_the_cache(monkeypatch, tmp_path):
    asked = {}

    def retrieve(url, known_hash, fname, path):
        asked[fname] = (url, known_hash)
        path.mkdir(exist_ok=True)
        if fname.startswith("t10k"):
            shutil.copy(SAMPLE_ROOT / "mnist" / fname, path)

    monkeypatch.delenv("TILTPROOF_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path)
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(load_data("mnist")[0]) == 100
    assert len(asked) == 4
    assert all(url.startswith("https://") and digest.startswith("md5:") for url, digest in asked.values())


def test_importing_the_package_needs_torch_and_numpy_alone():
    code = "import sys, tiltproof; print([name for name in ('PIL', 'pooch', 'rich', 'typer') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(SAMPLE_ROOT.parents[2])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == "[]"
