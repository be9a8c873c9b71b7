"""Road scenes: frames in order of time, angles, the exact resizing, and every kind of bad row."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from tiltproof.data import load as load_data
from tiltproof.data import load_frames, pixel_cache
from tiltproof.data.driving import HEIGHT, WIDTH, read_frames, resized
from tiltproof.data.loading import load_pixels
from tiltproof.errors import InputError

HEADING = "filename,angle_rad,public,split\n"
ROWS = [
    ("1479425441182877835", "-0.0169280299332", "train"),
    ("1479425441232704425", "0.25", "train"),
    ("1479425441282730750", "0", "gap"),
    ("1479425451332745113", "1e-1", "test"),
    ("1479425461382732000", "-3", "train"),
]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(pixel_cache, "cache_folder", lambda: tmp_path / "cache")
    folder = tmp_path / "data" / "driving"
    (folder / "center").mkdir(parents=True)
    for k, (time, _, _) in enumerate(ROWS):
        Image.fromarray(np.full((112, 256, 3), 10 * k, np.uint8)).save(folder / "center" / f"{time}.jpg", quality=95)
    table = HEADING + "".join(f"{time}.jpg,{angle},0,{split}\n" for time, angle, split in ROWS)
    (folder / "labels.csv").write_text(table)
    return tmp_path / "data"


def test_images_and_angles_of_a_split(root):
    images, angles = load_data("driving", root, "train")
    assert (images.shape, images.dtype) == ((3, 3, 66, 200), torch.float32)
    assert (255 * images.mean((1, 2, 3))).round().tolist() == [0, 10, 40]
    assert torch.equal(angles, torch.tensor([-0.0169280299332, 0.25, -3.0]))
    assert angles.dtype == torch.float32
    images, angles = load_data("driving", root)
    assert (len(images), angles.tolist()) == (1, pytest.approx([0.1]))
    assert load_pixels("driving", root)[0].dtype == torch.uint8
    assert len(load_data("driving", root / "driving")[0]) == 1


def test_frames_tell_which_images_are_neighbors(root):
    frames = load_frames(root, "train")
    assert [frame.nanoseconds for frame in frames] == [int(ROWS[k][0]) for k in (0, 1, 4)]
    assert [frame.filename for frame in frames] == [f"{ROWS[k][0]}.jpg" for k in (0, 1, 4)]
    assert (
        torch.tensor([frame.angle_radians for frame in frames]).tolist()
        == load_data("driving", root, "train")[1].tolist()
    )
    assert [frame.split for frame in read_frames(root / "driving")] == ["train", "train", "gap", "test", "train"]


def triangle(size, target):
    """Return the weights [target, size] of a bilinear filter: a triangle that reaches one output pixel to either side."""
    scale = size / target
    centers = (np.arange(target)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(size) + 0.5 - centers) / scale)
    return weights / weights.sum(1, keepdims=True)


def test_resizing_is_the_triangle_filter():
    image = np.random.default_rng(0).integers(0, 256, (3, 112, 256), np.uint8)
    rows = np.floor(image @ triangle(256, WIDTH).T + 0.5)
    expected = np.floor(triangle(112, HEIGHT) @ rows + 0.5)
    found = resized(image)
    assert (found.shape, found.dtype) == ((3, 66, 200), np.uint8)
    assert np.abs(found - expected).max() <= 1, "exact halves, which are frequent here, may be rounded either way"
    assert (found == expected).mean() > 0.98


def test_no_pixel_of_a_frame_is_left_out():
    """Interpolating between the nearest pixels alone would ignore every third row."""
    for row in range(112):
        image = np.zeros((3, 112, 256), np.uint8)
        image[:, row] = 255
        assert resized(image).max() > 60


def with_row(root, row):
    path = root / "driving" / "labels.csv"
    path.write_text(path.read_text() + row + "\n")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1479425471382732000.jpg,left,0,train", "line 7 .*radians.*left"),
        ("1479425471382732000.jpg,nan,0,train", "line 7 .*radians.*nan"),
        ("1479425471382732000.jpg,inf,0,train", "radians"),
        ("1479425471382732000.jpg,400,0,train", "radians"),
        ("1479425471382732000.jpg,,0,train", "radians"),
        ("1479425471382732000.jpg", "needs a filename and a label"),
        ("1479425471382732000.jpg,0.1,0,validation", "split is one of train, test, gap.*validation"),
        ("1479425471382732000.jpg,0.1,0", "split is one of"),
        ("first.jpg,0.1,0,train", "named after its time"),
        ("../147.jpg,0.1,0,train", "named after its time"),
        ("1479425471382732000.png,0.1,0,train", "named after its time"),
        ("1479425461382732000.jpg,0.1,0,train", "order of time"),
        ("1479425441182877836.jpg,0.1,0,train", "order of time"),
        ("1479425471382732000.jpg,0.1,0,train", r"missing.*1479425471382732000\.jpg"),
    ],
)
def test_rows_that_cannot_be_used(root, row, message):
    with_row(root, row)
    with pytest.raises(InputError, match=message):
        load_data("driving", root, "train")


def test_tables_that_cannot_be_used(root):
    path = root / "driving" / "labels.csv"
    path.write_text("filename,label\na.jpg,1\n")
    with pytest.raises(InputError, match="lacks the column angle_rad and split.*filename,angle_rad,split"):
        load_data("driving", root)
    path.write_text(f"{HEADING}{ROWS[0][0]}.jpg,0,0,train\n")
    with pytest.raises(InputError, match="no frames of the split test"):
        load_data("driving", root)


def test_a_frame_whose_top_is_still_there(root):
    Image.new("RGB", (640, 480)).save(root / "driving" / "center" / f"{ROWS[3][0]}.jpg")
    with pytest.raises(InputError, match="another size.*640 x 480.*keep to 256 x 112"):
        load_data("driving", root)


def test_an_angle_is_what_the_table_says_to_float_precision(root):
    _, angles = load_data("driving", root, "train")
    assert math.isclose(float(angles[0]), -0.0169280299332, rel_tol=1e-7)
