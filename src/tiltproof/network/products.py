"""Matrix products of float32 rows on a CPU by oneDNN, which torch's convolutions use too.

torch multiplies matrices with MKL, which reaches half of the speed of AMD processors: for a layer from 3,136 inputs to 250, one thread
of an EPYC reached 107 GFLOP/s with MKL and 245 with oneDNN. Either result is one float32 sum of products for each entry, in some
order, so the bounds hold for both. Only the environment can tell this oneDNN operation to use fewer bits; `arithmetic.proof_arithmetic`
then refuses to prove anything, and a self-check runs before the first use.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltproof.kernel_registry import matches_reference

FEWEST = 2**20
"""Multiplications from which on the conversion of tensors pays."""
_trust: dict[str, bool] = {}


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """x [rows, inputs] times the transpose of a matrix [outputs, inputs]."""
    return by_onednn(x, matrix) if _can(x, matrix) else F.linear(x, matrix)


def _can(x: Tensor, matrix: Tensor) -> bool:
    """Whether oneDNN is available and exact, and the product large enough."""
    return (
        x.device.type == "cpu"
        and x.dtype == matrix.dtype == torch.float32
        and x.ndim == 2
        and len(x) * matrix.numel() >= FEWEST
        and not (torch.is_grad_enabled() and (x.requires_grad or matrix.requires_grad))
        and onednn_is_right()
    )


def onednn_is_right() -> bool:
    """Whether oneDNN is available and passed its self-check, which runs once per process."""
    return (
        torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and matches_reference(_trust, "oneDNN", _exact, "products by oneDNN fail, or are not exact where they can be")
    )


def by_onednn(x: Tensor, matrix: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.mkldnn_linear(x.to_mkldnn(), matrix).to_dense()
    return result


def _exact() -> bool:
    """Self-check: exact for 24-bit numbers on either side and for sums that float32 can represent; NaN and infinity propagate."""
    generator, count = torch.Generator().manual_seed(0), 160

    def numbers(most: int, rows: int) -> Tensor:
        drawn = torch.randint(-most, most + 1, (rows, count), generator=generator, dtype=torch.int64, device="cpu")
        return drawn.to(torch.float32)

    whole, one = numbers(2**24 - 1, 64), torch.eye(count, dtype=torch.float32, device="cpu")
    left, right = numbers(255, 48), numbers(255, 40)  # sums below 2^24
    broken = left.clone()
    broken[0, 0], broken[1, 1] = torch.nan, torch.inf
    try:
        found = [by_onednn(*pair) for pair in ((one, whole), (whole, one), (left, right), (broken, right))]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # not supported on this processor; torch's own product is used
        return False
    sums = F.linear(left.double(), right.double()).float()
    exact = all(torch.equal(*pair) for pair in ((found[0], whole.T), (found[1], whole), (found[2], sums)))
    return exact and torch.equal(found[3][2:], sums[2:]) and not bool(torch.isfinite(found[3][:2]).any())
