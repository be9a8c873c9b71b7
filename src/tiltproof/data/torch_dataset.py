"""Images and labels of a ``torch.utils.data`` Dataset or DataLoader, checked item by item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from tiltproof.data.folder import MAX_VALUES
from tiltproof.errors import InputError, shown

NORMALIZED = "let the data set end with ToTensor, and put the normalization into the network: tiltproof.models.normalized(model, mean, std)"


def from_dataset(dataset: Any, limit: int | None = None, *, task: str = "classification") -> tuple[Tensor, Tensor]:
    """Collect the images and labels of a torch data set.

    Parameters
    ----------
    dataset : Dataset, DataLoader or sequence
        Items (image, label), or batches of them from a DataLoader without shuffling. An image is a float tensor [C, H, W] in [0, 1].
    limit : int, optional
        At most this many images; the others are not asked for.
    task : {"classification", "regression"}
        Labels are class numbers, or target values: a number or K numbers for each image.

    Returns
    -------
    images : Tensor
        Images [N, C, H, W], in the type of the data set.
    labels : Tensor
        Classes [N], int64, or target values [N] or [N, K], float64.

    Raises
    ------
    InputError
        If an item is not such a pair, sizes differ, pixels lie outside [0, 1], or a label is not an integer.

    Examples
    --------
    >>> data = [(torch.zeros(1, 4, 4), 7), (torch.ones(1, 4, 4), 2), (torch.ones(1, 4, 4), 5)]
    >>> images, labels = from_dataset(data, limit=2)
    >>> images.shape, labels.tolist()
    (torch.Size([2, 1, 4, 4]), [7, 2])
    """
    if task not in ("classification", "regression"):
        raise InputError("unknown task", got=repr(task), do="use 'classification' or 'regression'")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InputError("the limit must be a whole number of at least 1", got=repr(limit))
    if isinstance(dataset, DataLoader) and isinstance(dataset.sampler, RandomSampler):
        raise InputError("the DataLoader shuffles", why="shuffle=True, as for training", do="give shuffle=False")
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for image, label in _pairs(dataset, limit):
        k = len(images)
        images.append(_image(image, k, images[0] if images else None))
        labels.append(
            _class(label, k) if task == "classification" else _target(label, k, labels[0] if labels else None)
        )
        if k * image.numel() > MAX_VALUES:
            raise InputError("the images do not fit into memory together", got=f"more than {k:,}", do="give a limit")
        if limit is not None and len(images) == limit:
            break
    if not images:
        raise InputError("the data set is empty", got=type(dataset).__name__)
    return torch.stack(images), torch.stack(labels)


def _pairs(dataset: Any, limit: int | None) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels one by one; an exception of the data set becomes an `InputError`."""
    if not isinstance(dataset, Iterable) and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InputError("not a data set", got=type(dataset).__name__, do="give a torch Dataset or DataLoader")
    count = 0
    try:
        for item in _items(dataset, limit):
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                raise InputError(
                    "an item of a data set must be an image and a label",
                    got=f"{type(item).__name__} as item {count}",
                    do="wrap it in a data set that returns (image, label)",
                )
            image, label = item
            if not isinstance(dataset, DataLoader):
                yield image, label
                count += 1
                continue
            if not isinstance(image, Tensor) or image.ndim != 4 or len(image) != len(label):
                got = list(image.shape) if isinstance(image, Tensor) else type(image).__name__
                raise InputError("a batch must be images [B, C, H, W] and as many labels", got=f"images: {got}")
            yield from zip(image, label, strict=True)
            count += 1
    except InputError:
        raise
    except Exception as error:
        text = shown(" ".join(str(error).split()))
        raise InputError(
            f"the data set failed at {'batch' if isinstance(dataset, DataLoader) else 'item'} {count}",
            got=f"{type(error).__name__}: {text}",
        ) from error


def _items(dataset: Any, limit: int | None) -> Iterator[Any]:
    if isinstance(dataset, (DataLoader, IterableDataset)) or not hasattr(dataset, "__len__"):
        yield from dataset
        return
    for k in range(len(dataset) if limit is None else min(limit, len(dataset))):
        yield dataset[k]


def _image(image: Any, k: int, first: Tensor | None) -> Tensor:
    if not isinstance(image, Tensor):
        raise InputError(
            f"image {k} of the data set is not a tensor",
            got=type(image).__name__,
            do="let its transform end with torchvision.transforms.ToTensor()",
        )
    if image.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"image {k} of the data set must be float32 or float64", got=image.dtype, do="image.float() / 255 for bytes"
        )
    if image.ndim != 3 or 0 in image.shape:
        raise InputError(f"image {k} of the data set must have the shape [C, H, W]", got=list(image.shape))
    if first is not None and (image.shape != first.shape or image.dtype != first.dtype):
        raise InputError(
            f"image {k} of the data set differs from the first in size or type",
            got=f"{list(image.shape)} {image.dtype} and {list(first.shape)} {first.dtype}",
            do="resize and crop all images to one size in its transform",
        )
    low, high = float(image.min()), float(image.max())
    if not (low >= 0 and high <= 1):  # NaN fails every comparison
        raise InputError(
            f"pixels of image {k} of the data set lie outside [0, 1]",
            got=f"{low:g} to {high:g}",
            why="its transform normalizes, or leaves bytes 0 to 255",
            do=NORMALIZED,
        )
    return image.detach().cpu()


def _class(label: Any, k: int) -> Tensor:
    value = _tensor(label, k)
    if value.ndim or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise InputError(
            f"label {k} of the data set is not a class number",
            got=f"{shown(label, 60)} ({type(label).__name__})",
            do="return an int; target values need task='regression'",
        )
    return value.to(torch.int64)


def _target(label: Any, k: int, first: Tensor | None) -> Tensor:
    value = _tensor(label, k).to(torch.float64)
    if value.ndim > 1 or not bool(value.isfinite().all()) or (first is not None and value.shape != first.shape):
        raise InputError(
            f"target {k} of the data set must be a finite number, or as many as the first has", got=shown(label, 60)
        )
    return value


def _tensor(label: Any, k: int) -> Tensor:
    try:
        return torch.as_tensor(label).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"label {k} of the data set is not a number", got=f"{shown(label, 60)} ({type(label).__name__})"
        ) from None
