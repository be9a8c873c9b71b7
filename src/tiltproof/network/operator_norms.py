"""Proved upper bounds of the largest singular value of linear layers, by Gram iteration.

For a matrix M, sigma(M)^2 = ||M M*||_2, and for a Hermitian positive semidefinite G and any t, ||G||_2 = ||G^(2^t)||_2^(2^-t) <=
||G^(2^t)||_F^(2^-t). The Frobenius norm is at most sqrt(rank) times too large, and the root takes nearly all of that away.

A convolution with zero padding is a part of a convolution on a torus that is large enough for nothing to wrap around: embed the image
into the torus, convolve, and keep some of the outputs. Embedding and keeping do not lengthen a vector, so its largest singular value is at
most that of the convolution on the torus, which the discrete Fourier transform turns into one small matrix for each frequency. With strides
s, the outputs that are kept make s_h s_w frequencies of the input share one of the output: with W(f) the matrix of frequency f, the
block is the row of the W(f) of these, divided by sqrt(s_h s_w).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiltproof.enclosures.rounding import gamma
from tiltproof.network.arithmetic import Window

SQUARINGS = 8
"""Squarings of the Gram matrix: n singular values that are all equal make the bound n^(1 / 2^10) times too large."""
MOST_PRODUCTS = 2**38
"""Multiplications beyond which fewer squarings are made."""
CHUNK = 2**22
"""Entries of the blocks that are worked on at a time."""
UNIT = 2.0**-53
ROUNDED_UP = 1 + 2.0**-30
"""Covers the roundings of a dozen float64 operations on positive numbers, and of logarithms of moderate size."""
PHASE = 64 * UNIT
"""Error of a cosine or sine of an angle below 4 pi: the angle rounds four times, the function by a few units in the last place."""


@torch.no_grad()
def matrix_norm(weight: Tensor, roundings: int = 0) -> float:
    """At least the largest singular value of each matrix within ``roundings`` relative roundings of ``weight`` [outputs, inputs]."""
    weight = weight.double()
    error = frobenius(weight) * gamma(roundings + 1, UNIT)
    return min(_largest(weight[None], None, error), _by_sums(weight, roundings))


@torch.no_grad()
def convolution_norm(
    weight: Tensor, window: Window, size: tuple[int, int], result: tuple[int, int], roundings: int = 0
) -> float:
    """At least the largest singular value of the convolution from images of ``size`` to images of ``result``.

    Output position o of an axis reads the inputs q = o s - p + j d for j < k. On a torus of N >= n + p positions no q < 0 meets an
    image of n entries, nor does a q >= n where N exceeds the largest q; and outputs keep apart where N > (m - 1) s.
    """
    outputs, kernel = len(weight), weight.shape[2:]
    torus = []
    for axis in (0, 1):
        step, before, reach = window.stride[axis], window.padding[axis], window.dilation[axis] * (kernel[axis] - 1)
        last = (result[axis] - 1) * step
        least = max(size[axis] + before, last - before + reach + 1, last + 1)
        torus.append(step * (1 if kernel[axis] == 1 and step == 1 else -(-least // step)))
    weight = weight.double().unflatten(0, (window.groups, outputs // window.groups))
    return max(_on_torus(part, window, torus, roundings) for part in weight)


def _on_torus(weight: Tensor, window: Window, torus: list[int], roundings: int) -> float:
    """The same of one group [outputs, inputs, height, width], on a torus of these sizes, multiples of the strides."""
    outputs, inputs, *kernel = weight.shape
    strides, aliases = window.stride, math.prod(window.stride)
    device = weight.device
    across = [torus[axis] // strides[axis] for axis in (0, 1)]
    # conjugate frequencies have the same singular values, so half of one axis is enough
    grid = torch.cartesian_prod(torch.arange(across[0]), torch.arange(across[1] // 2 + 1)).to(device)
    others = torch.cartesian_prod(torch.arange(strides[0]), torch.arange(strides[1])).view(-1, 2).to(device)
    taps = torch.cartesian_prod(torch.arange(kernel[0]), torch.arange(kernel[1])).view(-1, 2).to(device)
    columns = weight.flatten(2).flatten(0, 1).T  # [taps, outputs inputs]
    # an entry of a block: roundings of the weights, of the phases and of the sum over the taps, of real and imaginary part
    each = (gamma(len(taps) + roundings + 4, UNIT) + PHASE) * 2
    error = frobenius(weight.abs().sum((2, 3))) * each
    factor, largest = 1 / math.sqrt(aliases), 0.0
    for part in grid.split(max(1, CHUNK // (outputs * inputs * aliases))):
        frequency = part.unsqueeze(1) + others * torch.tensor(across, device=device)  # [F, aliases, 2]
        angle = torch.zeros(*frequency.shape[:2], len(taps), dtype=torch.float64, device=device)
        for axis in (0, 1):
            turns = frequency[..., axis, None] * (taps[:, axis] * window.dilation[axis]) % torus[axis]
            angle = angle + turns.double() / torus[axis]
        angle = angle * (2 * math.pi)
        blocks = [
            (phase @ columns).unflatten(2, (outputs, inputs)).permute(0, 2, 1, 3).flatten(2)
            for phase in (angle.cos(), angle.sin())
        ]
        largest = max(largest, _largest(blocks[0], blocks[1], error * math.sqrt(aliases)))
    return largest * factor * ROUNDED_UP


def frobenius(x: Tensor) -> float:
    """At least the Euclidean length of all entries; squares may underflow."""
    count = x.numel()
    return float(torch.linalg.vector_norm(x)) * (1 + 2 * gamma(count + 8, UNIT)) + count * 2.0**-510


def _by_sums(weight: Tensor, roundings: int) -> float:
    """sigma <= sqrt(largest row sum times largest column sum) of the absolute values."""
    size = weight.abs()
    sums = float(size.sum(0).max()) * float(size.sum(1).max())
    return math.sqrt(sums) * (1 + 2 * gamma(sum(weight.shape) + roundings + 8, UNIT))


def _largest(real: Tensor, imaginary: Tensor | None, error: float) -> float:
    """At least the largest singular value of all matrices within Frobenius distance ``error`` of one of M = real + i imaginary
    [B, outputs, inputs].

    With |E|_F <= e: |(M + E)(M + E)* - M M*|_F <= 2 e |M|_F + e^2, and squaring likewise. A product of n terms each, computed as real
    products of real and imaginary parts, is off by at most 2 gamma_2n |X|_F |Y|_F, because | |X| |Y| |_F <= |X|_F |Y|_F. Before each
    squaring matrices are divided by a power of two near their norm, which is exact but for underflows; those are below 2^-500.
    """
    if real.shape[1] > real.shape[2]:
        real, imaginary = real.mT, None if imaginary is None else imaginary.mT
    rows, terms = real.shape[1:]
    whole = len(real) * rows * rows * rows * (1 if imaginary is None else 4)
    squarings = max(2, min(SQUARINGS, MOST_PRODUCTS // max(1, whole)))
    exponent = torch.zeros(len(real), dtype=torch.float64, device=real.device)
    size = _lengths(real, imaginary)
    scale = _power_of_two(size)
    exponent += 2 * scale
    real, imaginary = _scaled(real, scale), None if imaginary is None else _scaled(imaginary, scale)
    size, off = torch.ldexp(size, -scale), torch.ldexp(torch.full_like(size, error), -scale) + 2.0**-500
    for step in range(squarings + 1):
        first = step == 0
        # Hermitian but for roundings afterwards: M M* first, then G G* with |G* - exact| as small as |G - exact|
        next_real = real @ real.mT
        next_imaginary = None
        if imaginary is not None:
            next_real += imaginary @ imaginary.mT
            cross = imaginary @ real.mT
            next_imaginary = cross - cross.mT
        off = (
            2 * off * size + off * off + size * size * (2 * gamma(2 * (terms if first else rows) + 4, UNIT))
        ) * ROUNDED_UP
        real, imaginary = next_real, next_imaginary
        size = _lengths(real, imaginary)
        if step == squarings:
            break
        scale = _power_of_two(size)
        exponent += scale.double() * 2.0**-step
        real, imaginary = _scaled(real, scale), None if imaginary is None else _scaled(imaginary, scale)
        size, off = torch.ldexp(size, -scale), torch.ldexp(off, -scale) + 2.0**-500
    squared = (size + off) * ROUNDED_UP  # ||(G / 2^..)^(2^t)||_2
    logarithm = (squared.log2() * 2.0**-squarings + exponent) / 2
    bound = float((logarithm.exp2() * ROUNDED_UP).max()) * ROUNDED_UP
    return bound if math.isfinite(bound) else math.inf


def _lengths(real: Tensor, imaginary: Tensor | None) -> Tensor:
    """At least the Frobenius norm of each matrix; at least 2^-500."""
    squares = (real * real).sum((1, 2))
    if imaginary is not None:
        squares = squares + (imaginary * imaginary).sum((1, 2))
    count = 2 * real.shape[1] * real.shape[2]
    return squares.sqrt() * (1 + 2 * gamma(count + 8, UNIT)) + count * 2.0**-500


def _power_of_two(size: Tensor) -> Tensor:
    return torch.frexp(size)[1]


def _scaled(x: Tensor, exponent: Tensor) -> Tensor:
    return torch.ldexp(x, -exponent.view(-1, 1, 1))
