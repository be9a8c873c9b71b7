"""Networks that want other inputs than pixels in [0, 1]: scaled, or with a mean subtracted and divided by a standard deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown

Numbers = float | str | Sequence[float]
"""One number for all channels, one for each, as text "0.5,0.5,0.5", or a name of `MEANS`."""
MEANS = {"imagenet": (0.485, 0.456, 0.406), "cifar10": (0.4914, 0.4822, 0.4465), "mnist": (0.1307,)}
DEVIATIONS = {"imagenet": (0.229, 0.224, 0.225), "cifar10": (0.2470, 0.2435, 0.2616), "mnist": (0.3081,)}
"""Customary constants by name; the architectures of this package have those of cifar10 and mnist built in."""
MAX_CHANNELS = 64


class Normalized(nn.Module):
    """A network behind x -> (scale x - mean) / deviation, channel by channel, which is part of what is certified."""

    scale: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], deviation: Sequence[float], scale: float) -> None:
        super().__init__()
        self.model = model
        tensors = [*model.parameters(), *model.buffers()]
        kind = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))
        for name, numbers in (("scale", [scale]), ("mean", mean), ("deviation", deviation)):
            values = torch.tensor([float(x) for x in numbers], dtype=kind.dtype, device=kind.device)
            if name != "mean" and not bool((values > 0).all() and values.isfinite().all()):
                raise InputError(f"the {name} is not a positive number in the network's precision", got=list(numbers))
            self.register_buffer(name, values.view(1, -1, 1, 1))
        self.scales, self.channels = scale != 1, max(self.mean.shape[1], self.deviation.shape[1])
        self.train(model.training)

    def forward(self, images: Tensor) -> Tensor:
        if self.channels > 1 and images.shape[1] != self.channels:  # would be repeated without a word
            raise InputError(
                "the images have another number of channels than the normalization",
                got=f"{images.shape[1]} and {self.channels}",
                do="give one number for each channel; gray images become RGB by --rgb (rgb=True in Python)",
            )
        scaled = images * self.scale if self.scales else images
        return self.model((scaled - self.mean) / self.deviation)


def normalized(
    model: nn.Module, mean: Numbers | None = None, std: Numbers | None = None, scale: float | None = None
) -> nn.Module:
    """Put a normalization in front of a network, for a network that was trained on normalized images.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    mean, std : float, sequence of float or str, optional
        Numbers for all channels or for each, subtracted from the images and then divided by; by default 0 and 1. Or a name, the same
        for both: ``imagenet``, ``cifar10`` or ``mnist``.
    scale : float, optional
        A number by which pixels in [0, 1] are multiplied first, such as 255. Mean and standard deviation are then those of images in
        [0, scale].

    Returns
    -------
    torch.nn.Module
        The network of images x in [0, 1] that answers as ``model`` does for ``(scale * x - mean) / std``.

    Raises
    ------
    InputError
        If the numbers cannot be used, or nothing is given.

    Examples
    --------
    >>> model = normalized(nn.Flatten(), mean=127.5, std=127.5, scale=255)
    >>> model(torch.tensor([[[[0.0, 0.5, 1.0]]]])).tolist()
    [[-1.0, 0.0, 1.0]]
    """
    if not isinstance(model, nn.Module):
        raise InputError("the model must be a torch.nn.Module", got=type(model).__name__)
    if mean is None and std is None and scale is None:
        raise InputError("nothing to normalize by", do="give a mean and a standard deviation, or a scale")
    names = [given for given in (mean, std) if isinstance(given, str) and given in MEANS]
    if names and (mean != std or scale not in (None, 1)):
        raise InputError(
            "mean and std by name must be the same name, for pixels in [0, 1]",
            got=", ".join(f"{key} {shown(value)}" for key, value in (("mean", mean), ("std", std), ("scale", scale))),
            do=f"write --mean {names[0]} --std {names[0]} without --scale, or numbers",
        )
    means = (0.0,) if mean is None else MEANS[names[0]] if names else _numbers(mean, "mean")
    deviations = (1.0,) if std is None else DEVIATIONS[names[0]] if names else _numbers(std, "std")
    if len(means) != len(deviations) and 1 not in (len(means), len(deviations)):
        raise InputError(
            "mean and std are for different numbers of channels", got=f"{len(means)} and {len(deviations)}"
        )
    if min(deviations) <= 0:
        raise InputError("std must be positive", got=shown(std), why="mean and std were exchanged")
    if scale is not None and not (isinstance(scale, (int, float)) and math.isfinite(scale) and scale > 0):
        raise InputError(
            "scale must be a positive number", got=shown(scale), do="e.g. 255 for a network of pixels 0 to 255"
        )
    return Normalized(model, means, deviations, 1.0 if scale is None else float(scale))


def _numbers(given: Numbers, name: str) -> tuple[float, ...]:
    try:
        parts = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
        numbers = tuple(float(part) for part in parts)
        if not 0 < len(numbers) <= MAX_CHANNELS or not all(map(math.isfinite, numbers)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name} is a number, or one for each channel",
            got=shown(given),
            do=f"write e.g. --{name} 0.5 or --{name} 0.485,0.456,0.406, or one of the names {', '.join(MEANS)}",
        ) from None
    return numbers
