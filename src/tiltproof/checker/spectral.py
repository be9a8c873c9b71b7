"""Largest singular values of convolutions, proved by Cholesky factorization.

Zero padding is a part of a convolution on a torus that is so large that nothing wraps around, and on a torus the
discrete Fourier transform makes a matrix W(f) of each frequency. With strides, the frequencies that coincide on the
coarser torus stand side by side in one matrix, divided by the root of their number.

sigma(M)^2 <= q if q I - M M* is positive semidefinite, which a Cholesky factorization that runs to its end shows but for
its roundings: the factor R is exactly that of a matrix off by at most gamma_(n+1) |R*| |R|, whose norm is at most
gamma_(n+1) / (1 - gamma_(n+1)) times the trace (Higham, Accuracy and Stability, theorem 10.3). A complex matrix A + i B
stands as the real [[A, -B], [B, A]], which has the same singular values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiltproof.checker.form import UNIT, gamma

LARGER = (1.0 + 2.0**-20, 1.001, 1.1, 2.0)
"""Factors on the estimate of sigma^2 that are tried."""
MOST_NUMBERS = 2**22


def conv2d_sigma(
    weight: Tensor, stride: Any, padding: Any, dilation: Any, size: Sequence[int], result: Sequence[int]
) -> float:
    """At least the largest singular value of the convolution of one group from images of ``size`` to images of ``result``.

    Its weights may have 16 relative roundings.
    """
    steps, before, apart = ([v, v] if isinstance(v, int) else list(v) for v in (stride, padding, dilation))
    outputs, inputs, *kernel = weight.shape
    coarse = []
    for k in (0, 1):
        last = (result[k] - 1) * steps[k]
        needed = max(size[k] + before[k], last - before[k] + (kernel[k] - 1) * apart[k] + 1, last + 1)
        coarse.append(-(-needed // steps[k]))
    fine = [n * step for n, step in zip(coarse, steps, strict=True)]
    # one dimension after the other: numbers [outputs, inputs, frequencies of rows, frequencies of columns]
    waves = []
    for k in (0, 1):
        turns = torch.outer(torch.arange(fine[k]), torch.arange(kernel[k]) * apart[k]) % fine[k]
        angle = turns.to(weight) * (2 * math.pi / fine[k])
        waves.append((angle.cos(), angle.sin()))
    (row_cos, row_sin), (col_cos, col_sin) = waves
    half = [torch.einsum("oihw,fw->oihf", weight, wave) for wave in (col_cos, col_sin)]
    real = torch.einsum("oihg,fh->oifg", half[0], row_cos) - torch.einsum("oihg,fh->oifg", half[1], row_sin)
    imaginary = torch.einsum("oihg,fh->oifg", half[0], row_sin) + torch.einsum("oihg,fh->oifg", half[1], row_cos)
    # cosines and sines are off by 32 units, twice; sums of as many terms as the kernel has numbers, real and imaginary
    each = (128 * UNIT + gamma(2 * sum(kernel) + 32, UNIT)) * 4
    off = float(weight.abs().sum((2, 3)).square().sum().sqrt()) * each * math.sqrt(math.prod(steps)) * 1.01

    def blocks(x: Tensor) -> Tensor:
        """[frequencies, outputs, inputs and strides]: f and f + n of the coarse torus together."""
        x = x.view(outputs, inputs, steps[0], coarse[0], steps[1], coarse[1])
        x = x[..., : coarse[1] // 2 + 1]  # the others are the conjugates of these
        return x.permute(3, 5, 0, 1, 2, 4).flatten(3).flatten(0, 1)

    real, imaginary = blocks(real), blocks(imaginary)
    largest = 0.0
    most = max(1, MOST_NUMBERS // (4 * outputs * max(outputs, real.shape[2])))
    for a, b in zip(real.split(most), imaginary.split(most), strict=True):
        largest = max(largest, _sigma(torch.cat([torch.cat([a, -b], 2), torch.cat([b, a], 2)], 1)))
    return (largest + off * 2) / math.sqrt(math.prod(steps)) * (1 + 2.0**-40)


def _sigma(matrices: Tensor) -> float:
    """At least the largest singular value of all matrices [N, m, n]."""
    if matrices.shape[1] > matrices.shape[2]:
        matrices = matrices.mT
    size, terms = matrices.shape[1:]
    gram = matrices @ matrices.mT
    # |computed - exact|_2 <= gamma_n |M|_F^2, and the trace is |M|_F^2
    trace = float(gram.diagonal(dim1=1, dim2=2).sum(1).max()) * (1 + 2.0**-30)
    estimate = float(torch.linalg.eigvalsh(gram).max())
    for factor in LARGER:
        q = estimate * factor + 1e-250
        identity = torch.eye(size, dtype=gram.dtype, device=gram.device)
        shifted = q * identity - (gram + gram.mT) / 2
        _, failed = torch.linalg.cholesky_ex(shifted)
        if not bool(failed.any()) and math.isfinite(q):
            # its trace is at most size q; four roundings of each entry of the shifted matrix
            slack = gamma(size + 1, UNIT) * 1.01 * size * q + gamma(terms + 8, UNIT) * 2 * (trace + size * q)
            return math.sqrt(q + slack) * (1 + 2.0**-40)
    return math.inf
