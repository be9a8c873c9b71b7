"""Images and labels out of a torch Dataset or DataLoader, and every item that is not such a pair."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tiltproof.data import from_dataset, torch_dataset
from tiltproof.errors import InputError

IMAGES = torch.rand(5, 3, 4, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([3, 1, 4, 1, 5])


class Items(Dataset):
    """A data set of these items, which counts how many were asked for."""

    def __init__(self, items):
        self.items, self.asked = items, 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        self.asked += 1
        if isinstance(self.items[k], Exception):
            raise self.items[k]
        return self.items[k]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(IMAGES, LABELS.tolist(), strict=True))


@pytest.mark.parametrize(
    "data",
    [
        Items(list(zip(IMAGES, LABELS.tolist(), strict=True))),
        Items([(image, np.int64(label)) for image, label in zip(IMAGES, LABELS, strict=True)]),
        TensorDataset(IMAGES, LABELS),
        DataLoader(TensorDataset(IMAGES, LABELS), batch_size=2),
        Stream(),
        DataLoader(Stream(), batch_size=3),
        list(zip(IMAGES, LABELS, strict=True)),
    ],
    ids=["ints", "numpy", "tensors", "loader", "stream", "loader of a stream", "list"],
)
@pytest.mark.parametrize("limit", [None, 3, 100])
def test_images_and_labels(data, limit):
    images, labels = from_dataset(data, limit)
    assert torch.equal(images, IMAGES[:limit])
    assert torch.equal(labels, LABELS[:limit])
    assert (labels.dtype, images.dtype) == (torch.int64, torch.float32)


def test_no_more_than_the_limit_is_asked_for():
    data = Items(list(zip(IMAGES, LABELS.tolist(), strict=True)))
    from_dataset(data, 2)
    assert data.asked == 2


def test_target_values():
    targets = torch.tensor([[0.5, 1.0]] * 5)
    assert torch.equal(from_dataset(TensorDataset(IMAGES, targets), task="regression")[1], targets.double())
    assert from_dataset([(IMAGES[0], -0.5)], task="regression")[1].tolist() == [-0.5]


IMAGE = IMAGES[0]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(Image.new("RGB", (3, 3)), 1)], "image 0.*not a tensor.*ToTensor"),
        ([(IMAGE, 1), (IMAGE[:, :3], 1)], r"image 1.*differs from the first.*\[3, 3, 6\]"),
        ([(IMAGE, 1), (IMAGE.double(), 1)], "image 1.*differs"),
        ([((IMAGE * 255).byte(), 1)], "float32 or float64.*uint8.*255"),
        ([(IMAGE.half(), 1)], "float32 or float64"),
        ([(IMAGE[None], 1)], r"shape \[C, H, W\]"),
        ([(IMAGE[:0], 1)], r"shape \[C, H, W\]"),
        ([((IMAGE - 0.5) / 0.2, 1)], r"outside \[0, 1\].*normalizes.*tiltproof.models.normalized"),
        ([(IMAGE * 255, 1)], r"outside \[0, 1\]"),
        ([(IMAGE * float("nan"), 1)], r"outside \[0, 1\].*nan"),
        ([(IMAGE, 1.0)], "label 0.*not a class number.*regression"),
        ([(IMAGE, True)], "label 0.*not a class number"),
        ([(IMAGE, torch.tensor([1]))], "label 0.*not a class number"),
        ([(IMAGE, "cat")], "label 0.*not a number.*cat"),
        ([(IMAGE, {"boxes": 1})], "label 0.*not a number"),
        ([IMAGE], "an image and a label.*Tensor as item 0"),
        ([(IMAGE, 1), {"image": IMAGE, "label": 1}], "an image and a label.*dict as item 1"),
        ([(IMAGE, 1, 2)], "an image and a label"),
        ([(IMAGE, 1), KeyError("lost")], "failed at item 1.*KeyError.*lost"),
        ([], "empty"),
    ],
)
def test_items_that_are_no_image_and_label(items, message):
    with pytest.raises(InputError, match=message):
        from_dataset(Items(items))


def test_what_is_no_data_set(monkeypatch):
    for data in (7, None, object()):
        with pytest.raises(InputError, match="not a data set"):
            from_dataset(data)
    with pytest.raises(InputError, match="shuffles.*shuffle=False"):
        from_dataset(DataLoader(TensorDataset(IMAGES, LABELS), shuffle=True))
    with pytest.raises(InputError, match="batch must be images"):
        from_dataset(DataLoader(TensorDataset(LABELS, LABELS)))
    for limit in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="limit"):
            from_dataset(Stream(), limit)
    with pytest.raises(InputError, match="unknown task"):
        from_dataset(Stream(), task="any")
    for target in (float("inf"), [[1.0]]):
        with pytest.raises(InputError, match="target 0.*finite"):
            from_dataset([(IMAGE, target)], task="regression")
    with pytest.raises(InputError, match="target 1"):
        from_dataset([(IMAGE, 1.0), (IMAGE, [1.0])], task="regression")
    monkeypatch.setattr(torch_dataset, "MAX_VALUES", 100)
    with pytest.raises(InputError, match="do not fit into memory"):
        from_dataset(Stream())
