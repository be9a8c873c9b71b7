"""Noise, the claim's last part: y = clamp(x + d, 0, 1) for the transformed pixel x in [0, 1] and any d of at most epsilon in size."""

from __future__ import annotations

import base64
import binascii
import math

import torch
from torch import Tensor

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.form import Form, enclose


def noisy(image: Form, epsilon: float) -> Form:
    """Enclose every y. Clamping moves x + d towards x, so |y - x| <= epsilon; and y >= 0 and y <= 1 give y - x >= -x and y - x <= 1 - x.

    Epsilon is taken one unit in the last place larger: the decimal in the claim need not be a float.
    """
    most = torch.full_like(image.center, math.nextafter(epsilon, 1.0 + epsilon))
    low, high = image.lower().clamp(0, 1), image.upper().clamp(0, 1)
    return shifted(image, -torch.minimum(most, high), torch.minimum(most, 1 - low))


def followed(image: Form) -> Form:
    """Give what is left over of each pixel a symbol of its own: [-r_i, r_i] = r_i e_i exactly.

    Its way through the network is then known up to signs: W r e instead of |W| r.
    """
    pairs, *shape = image.shape
    count = math.prod(shape)
    own = image.rows.new_zeros(count, pairs, count)
    each = torch.arange(count, device=own.device)
    own[each, :, each] = image.radius.flatten(1).T
    return Form(torch.cat([image.rows[:-1], own.view(count, pairs, *shape), torch.zeros_like(image.rows[-1:])]))


def pushed(image: Form, epsilon: float, up: Tensor) -> Form:
    """Enclose y for d = epsilon where ``up`` [P, C, H, W] and d = -epsilon elsewhere.

    min(1, x + epsilon) - x and max(0, x - epsilon) - x fall with x, or stay: both ends of x give both ends of y - x.
    """
    low, high = image.lower().clamp(0, 1), image.upper().clamp(0, 1)

    def change(x: Tensor) -> Tensor:
        limit = torch.full_like(x, epsilon)
        return torch.where(up, torch.minimum(limit, 1 - x), -torch.minimum(limit, x))

    return shifted(image, change(high), change(low))


def shifted(image: Form, least: Tensor, greatest: Tensor) -> Form:
    """Enclose image + [least, greatest], whose ends are off by a rounding of a number up to 1 each."""
    rows = image.rows.clone()
    rows[0] += (least + greatest) / 2
    rows[-1] += (greatest - least) / 2
    return enclose(rows, image.magnitude + 3, 8, 0.0, 0)


def read_perturbation(text: str, shape: tuple[int, ...]) -> Tensor:
    """Read which pixels [C, H, W] a counterexample moves up: base64 of one bit each, the highest of a byte first."""
    try:
        content = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise CheckFailed("its perturbation is not base64") from None
    count = math.prod(shape)
    if len(content) * 8 < count or len(content) * 8 >= count + 8:
        raise CheckFailed("its perturbation does not fit the image")
    bits = [byte >> (7 - k) & 1 for byte in content for k in range(8)]
    return torch.tensor(bits[:count], dtype=torch.bool).view(shape)
