"""Folders without a table of the user's own: a class per folder, GTSRB, images alone; and what makes them unusable."""

import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from tiltproof.data import layouts, load, load_folder
from tiltproof.errors import InputError


def save(path, gray, size=(3, 2), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, gray if mode == "L" else (gray,) * 3).save(path)


@pytest.fixture
def classes(tmp_path):
    """Write three classes; the gray value of an image is its number in the expected order."""
    names = ["Zebra/a.png", "ant/10.png", "ant/2.PNG", "ant/more/1.bmp", "bee/x.ppm"]
    for number, name in enumerate(names):
        save(tmp_path / "set" / name, number)
    (tmp_path / "set" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "set" / "ant" / ".hidden.png").write_text("not read")
    (tmp_path / "set" / ".cache").mkdir()
    return tmp_path / "set"


def test_a_folder_per_class_is_numbered_and_ordered_as_in_torchvision(classes):
    images, labels = load_folder(classes)
    assert labels.tolist() == [0, 1, 1, 1, 2]
    assert images[:, 0, 0, 0].mul(255).round().tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(load(classes, task="any")[1], labels)
    some, part = load(classes, start=1, limit=2)
    assert torch.equal(some, images[1:3])
    assert part.tolist() == [1, 1]


def test_only_the_images_asked_for_are_read(classes):
    (classes / "bee" / "x.ppm").write_text("damaged")
    assert len(load(classes, limit=4)[0]) == 4
    with pytest.raises(InputError, match="not an image"):
        load(classes)


def test_numbered_folders_whose_order_surprises_are_announced(tmp_path):
    for number in (0, 1, 2, 10):
        save(tmp_path / str(number) / "a.png", number)
    with pytest.warns(UserWarning, match="class 2 is the folder 10"):
        load_folder(tmp_path)
    for number in (0, 1, 2):
        (tmp_path / str(number)).rename(tmp_path / f"0{number}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_folder(tmp_path)


def write_signs(root, final=True):
    training, test = root / "Final_Training" / "Images", root / "Final_Test" / "Images"
    header = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"
    for number, count in ((0, 1), (14, 2)):
        name = f"{number:05}"
        files = [f"00000_{k:05}.ppm" for k in range(count)]
        for k, file in enumerate(files):
            save(training / name / file, 10 * number + k, (3 + k, 2), "RGB")
        rows = "".join(f"{file};3;2;0;0;2;1;{number}\n" for file in files)
        (training / name / f"GT-{name}.csv").write_text(header + rows)
    for k in range(2):
        save(test / f"{k:05}.ppm", k, (3 + k, 2), "RGB")
    (test / "GT-final_test.test.csv").write_text("Filename;Width\n00000.ppm;3\n")
    if final:
        table = header + "00001.ppm;3;2;0;0;2;1;42\n00000.ppm;3;2;0;0;2;1;7\n"
        (root / "GT-final_test.csv").write_text(table)


@pytest.mark.parametrize("inside", ["gtsrb", "gtsrb/GTSRB", "GTSRB", ""])
def test_traffic_signs_by_name(tmp_path, inside):
    write_signs(tmp_path / inside)
    if inside == "gtsrb/GTSRB":  # torchvision: the table of the test images lies above
        (tmp_path / inside / "GT-final_test.csv").rename(tmp_path / "gtsrb" / "GT-final_test.csv")
    images, labels = load("gtsrb", tmp_path, resize="2x3")
    assert labels.tolist() == [7, 42]
    assert images.shape == (2, 3, 2, 3)
    assert images[:, 0, 0, 0].mul(255).round().tolist() == [0, 1]
    images, labels = load("gtsrb", tmp_path, "train", resize=(2, 3))
    assert labels.tolist() == [0, 14, 14]
    with pytest.raises(InputError, match="one size and mode.*--resize"):
        load("gtsrb", tmp_path)


def test_traffic_signs_are_recognized(tmp_path):
    write_signs(tmp_path)
    assert load(tmp_path / "Final_Training" / "Images", resize=4, crop=4)[1].tolist() == [0, 14, 14]
    assert load(tmp_path, resize=(4, 4))[1].tolist() == [7, 42]
    (tmp_path / "GT-final_test.csv").rename(tmp_path / "Final_Test" / "Images" / "GT-final_test.csv")
    assert load(tmp_path / "Final_Test" / "Images", resize=(4, 4))[1].tolist() == [7, 42]


def test_traffic_signs_that_are_not_there(tmp_path, monkeypatch):
    write_signs(tmp_path, final=False)
    with pytest.raises(InputError, match=r"not in the data folder.*GT-final_test\.csv.*GTSRB_Final_Test_GT"):
        load("gtsrb", tmp_path)
    monkeypatch.delenv("TILTPROOF_DATA", raising=False)
    with pytest.raises(InputError, match="not downloaded automatically.*--data-root"):
        load("gtsrb", split="train")
    table = tmp_path / "Final_Training" / "Images" / "00014" / "GT-00014.csv"
    table.write_text(table.read_text().replace(";14\n", ";13\n"))
    with pytest.raises(InputError, match="ClassId must be 14, as the folder.*13"):
        load("gtsrb", tmp_path, "train")


def test_images_alone_have_no_answers(tmp_path):
    for name in ("b.png", "a.png"):
        save(tmp_path / name, ord(name[0]))
    with pytest.raises(InputError, match="no class numbers.*2 images.*filename,label.*--task regression"):
        load(tmp_path)
    for task in ("regression", "any"):
        images, targets = load(tmp_path, task=task)
        assert targets.shape == (2, 0)
        assert images[:, 0, 0, 0].mul(255).round().tolist() == [97, 98]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no labels.csv, no images and no folder per class"),
        (["cat/a.png", "b.png"], "both images and folders"),
        (["photos/labels.csv", "photos/a.png"], "no labels.csv, but a folder in it has.*photos"),
        (["train/cat/a.png", "val/cat/a.png"], "no classes.*splits train, val"),
        (["cat/a.png", "dog/a.txt"], "class dog has no images"),
        (["cat/a.png", "dog/\x1b[2J.png"], "cannot be used"),
        (["cat/a.png", "d\x1b[2J/a.png"], "cannot be used"),
    ],
)
def test_folders_that_are_no_data(tmp_path, files, message):
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path)
    assert str(caught.value).isprintable()


def test_a_folder_per_class_has_no_target_values(classes):
    with pytest.raises(InputError, match="no target values.*labels.csv"):
        load(classes, task="regression")
    with pytest.raises(InputError, match="unknown task"):
        load(classes, task="detection")


def test_links_lead_nowhere_else(classes):
    secret = classes.parent / "secret"
    save(secret / "s.png", 9)
    (classes / "cat").symlink_to(secret)
    with pytest.raises(InputError, match="outside the folder"):
        load(classes)
    (classes / "cat").unlink()
    (classes / "bee" / "inner").symlink_to(secret)
    with pytest.raises(InputError, match="links to folders.*not followed"):
        load(classes)
    (classes / "bee" / "inner").unlink()
    (classes / "bee" / "loop").symlink_to(classes)
    with pytest.raises(InputError, match="links to folders.*not followed"):
        load(classes)
    (classes / "bee" / "loop").unlink()
    (classes / "bee" / "y.png").symlink_to(secret / "s.png")
    with pytest.raises(InputError, match="outside the folder"):
        load(classes)
    (classes / "bee" / "y.png").unlink()
    os.mkfifo(classes / "bee" / "y.png")
    with pytest.raises(InputError, match="not a regular file"):
        load(classes)


def test_a_loop_of_links(classes, tmp_path):
    (classes / "loop").symlink_to("loop")
    assert len(load(classes)[0]) == 5, "a link to nothing is no class"
    (classes / "bee" / "loop.png").symlink_to("loop.png")
    with pytest.raises(InputError, match="cannot be found|missing"):
        load(classes)
    save(tmp_path / "alone" / "a.png", 1)
    (tmp_path / "alone" / "loop.png").symlink_to("loop.png")
    with pytest.raises(InputError, match="cannot be found|missing"):
        load(tmp_path / "alone", task="any")


def test_errors_of_the_operating_system(classes, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(layouts.os, "scandir", denied)
    with pytest.raises(InputError, match="cannot be read.*Permission denied"):
        load(classes)
    monkeypatch.setattr(layouts.Path, "is_file", denied)
    with pytest.raises(InputError, match="cannot be read.*Permission denied"):
        load("gtsrb", classes)


def test_folders_of_very_many_files(classes, monkeypatch):
    monkeypatch.setattr(layouts, "MAX_ROWS", 4)
    with pytest.raises(InputError, match="too many images"):
        load(classes)
    monkeypatch.setattr(layouts, "MAX_ENTRIES", 3)
    with pytest.raises(InputError, match="too many files"):
        load(classes)
    monkeypatch.setattr(layouts, "MAX_CLASSES", 2)
    with pytest.raises(InputError, match="too many"):
        load(classes)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(classes):
    (classes / "bee").chmod(0)
    try:
        with pytest.raises(InputError, match="cannot be read"):
            load(classes)
    finally:
        (classes / "bee").chmod(0o755)


def table(folder, text):
    for name in ("a.png", "b.png"):
        save(folder / name, 5)
    (folder / "labels.csv").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("filename,label\na.png,-0.25\nb.png,1e-3\n", [-0.25, 1e-3]),
        ("filename,label\na.png,3\nb.png,+.5\n", [3, 0.5]),
        ("filename,target_0\na.png,1\nb.png,2.\n", [[1], [2]]),
        ("target_1,filename,target_0,label\n1,a.png,0,7\n3,b.png, 2 ,7\n", [[0, 1], [2, 3]]),
        ("filename\na.png\nb.png\n", [[], []]),
        ("filename,note\na.png,x\nb.png,y\n", [[], []]),
    ],
)
def test_target_values(tmp_path, text, values):
    _, targets = load(table(tmp_path, text), task="regression")
    assert targets.dtype == torch.float64
    assert targets.tolist() == values


@pytest.mark.parametrize(
    ("text", "task", "message"),
    [
        ("filename,label\na.png,1.5\n", "classification", "class number.*1.5.*--task regression"),
        ("filename,target_0\na.png,1\n", "classification", "no class numbers.*target values.*--task regression"),
        ("filename\na.png\n", "classification", "no class numbers.*file names only"),
        ("filename,target_0,target_2\na.png,1,2\n", "regression", "without a gap.*target_0, target_2"),
        ("filename,target_0,target_0\na.png,1,2\n", "regression", "without a gap"),
        ("filename,target_0,target_1\na.png,1\n", "regression", "line 2.*needs a filename and a label"),
        ("label\n1\n", "regression", "lacks the column filename"),
        *(
            (f"filename,label\na.png,{text}\n", "regression", "finite decimal number")
            for text in ("nan", "inf", "1e999", "0x10", "1_0", "\u0661", "cat", "", "9" * 5000)
        ),
    ],
)
def test_targets_that_cannot_be_used(tmp_path, text, task, message):
    with pytest.raises(InputError, match=message):
        load(table(tmp_path, text), task=task)


def test_classes_if_there_are_any(tmp_path):
    assert load(table(tmp_path, "filename,label\na.png,3\nb.png,1\n"), task="any")[1].tolist() == [3, 1]
    assert load(table(tmp_path, "filename,label\na.png,3\nb.png,1.5\n"), task="any")[1].shape == (2, 0)
    assert load(table(tmp_path, "filename\na.png\n"), task="any")[1].shape == (1, 0)


def test_a_selection_of_named_data():
    images, labels = load("mnist-sample", start=3, limit=2, crop=20, rgb=True)
    whole, every = load("mnist-sample")
    assert torch.equal(images, whole[3:5, :, 4:24, 4:24].expand(-1, 3, -1, -1))
    assert torch.equal(labels, every[3:5])
    with pytest.raises(InputError, match="images 0 to 99"):
        load("mnist-sample", start=100)
    with pytest.raises(InputError, match="at least 1"):
        load("mnist-sample", limit=0)


def test_pixels_do_not_depend_on_which_images_are_read(classes):
    images, _ = load(classes, resize=(5, 7))
    for k in range(5):
        assert torch.equal(load(classes, resize=(5, 7), start=k, limit=1)[0][0], images[k])
    assert np.isfinite(images.numpy()).all()
