"""Noise of each pixel, after the transformation: any picture that differs from the transformed one by at most epsilon."""

from __future__ import annotations

import base64
import binascii
import math

import numpy as np
import torch
from torch import Tensor

from tiltproof.errors import InputError
from tiltproof.transforms.base import Transform, noise_text, number_text


class Linf(Transform):
    """Any perturbation of each pixel up to an amount: ``Linf(0.01)`` is -0.01 to +0.01; text ``Linf(0.01)``.

    It has no parameter: a proof covers every perturbation at once. In a composition it is the last part. A transformation
    with noise stands for all pictures y with

    Convention
        formula:  y = clamp(x + d) for the transformed image x, with any numbers d of at most epsilon in size, one for
                  each pixel and channel
        clamp:    to [0, 1]
        padding:  none; it also acts on padding that an earlier part added

    Parameters
    ----------
    epsilon : float
        The largest change of a pixel, above 0 and at most 1.

    Raises
    ------
    InputError
        If epsilon is not such a number.

    Examples
    --------
    >>> from tiltproof.transforms import Compose, Rotation
    >>> str(Compose(Rotation(5), Linf(0.01)))
    'R(5), Linf(0.01)'
    """

    parts = ()
    padding = "zeros"

    def __init__(self, epsilon: float) -> None:
        try:
            epsilon = float(epsilon)
        except (TypeError, ValueError):
            raise InputError("Linf needs a number", got=repr(epsilon), do="Linf(0.01)") from None
        if not 0 < epsilon <= 1:  # true for NaN
            raise InputError(
                "Linf's epsilon lies above 0 and at most at 1",
                got=number_text(epsilon) if math.isfinite(epsilon) else epsilon,
                why="pixel values of 0 to 255 instead of 0 to 1" if epsilon > 1 else "",
                do="give for example Linf(0.01), or leave it out",
            )
        self.noise = epsilon

    def __repr__(self) -> str:
        return noise_text(self.noise)


# A counterexample to a claim with noise is a point of the range and a perturbation. All perturbations that are searched move
# every pixel by the whole epsilon, up or down, so that one bit for each says which, and the picture is known exactly.


def perturbed(images: Tensor, epsilon: float, up: Tensor) -> Tensor:
    """Return transformed images [N, C, H, W] with each pixel moved ``up`` (bool) or down by epsilon, and clamped."""
    return torch.where(up, images + epsilon, images - epsilon).clamp(0, 1)


def as_text(up: Tensor) -> str:
    """Write one image's perturbation [C, H, W]: a bit for each pixel in C order, 1 for up, the first is a byte's highest; base64."""
    return base64.b64encode(np.packbits(up.detach().cpu().flatten().numpy()).tobytes()).decode("ascii")


def from_text(text: str, shape: tuple[int, ...]) -> Tensor:
    """Read what `as_text` wrote for an image of this shape; ValueError if it is something else."""
    count = math.prod(shape)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a perturbation is not base64") from None
    if len(content) != -(-count // 8):
        raise ValueError(f"a perturbation has {len(content)} bytes instead of {-(-count // 8)}")
    bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8))[:count]
    return torch.from_numpy(bits.astype(bool)).view(shape)
