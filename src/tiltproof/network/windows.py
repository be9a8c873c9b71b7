"""Symbols that have reached few pixels: windows of their columns instead of whole images.

The symbol of a kink stands in one entry of its layer, and each convolution widens the square of pixels that it has reached by the size of a
kernel. Until that is a good part of the image, its column is zero elsewhere, and only the window is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiltproof.network.arithmetic import Window, conv2d_as_product
from tiltproof.network.graph import Operation

UNIT = 2.0**-53


@dataclass
class Windows:
    """Columns of K symbols of one row: entry (y, x) of the window ``values[k]`` [C, rows, columns] stands at row ``top[k] + y`` and column
    ``left[k] + x`` of the image, and all other entries are zero. So are the entries of a window that lie beyond the image."""

    values: Tensor
    top: Tensor
    left: Tensor
    numbers: Tensor
    """Of the symbols."""

    def __len__(self) -> int:
        return len(self.numbers)

    def _places(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """The number of each entry's pixel [K, rows, columns], clamped, and which entries are in the image."""
        rows = self.top.unsqueeze(1) + torch.arange(self.values.shape[2], device=self.top.device)
        columns = self.left.unsqueeze(1) + torch.arange(self.values.shape[3], device=self.top.device)
        inside = ((rows >= 0) & (rows < height)).unsqueeze(2) & ((columns >= 0) & (columns < width)).unsqueeze(1)
        return rows.clamp(0, height - 1).unsqueeze(2) * width + columns.clamp(0, width - 1).unsqueeze(1), inside

    def _with(self, values: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Windows:
        """Other values of the same symbols; what lies beyond the image becomes zero."""
        result = Windows(values, top, left, self.numbers)
        _, inside = result._places(height, width)
        result.values = torch.where(inside.unsqueeze(1), values, 0.0)
        return result

    def scaled(self, factor: Tensor) -> Windows:
        """Times a number for each entry of the image [C, height, width]."""
        places, _ = self._places(*factor.shape[1:])
        return Windows(self.values * factor.flatten(1)[:, places].transpose(0, 1), self.top, self.left, self.numbers)

    def sizes(self, shape: torch.Size) -> Tensor:
        """At least sum_k |column_k|, as an image [C, height, width]; a sum of K numbers >= 0 rounds at most K times."""
        channels, height, width = shape
        places, _ = self._places(height, width)
        total = self.values.new_zeros(height * width, channels)
        total.index_add_(0, places.flatten(), self.values.abs().permute(0, 2, 3, 1).flatten(0, 2))
        return total.T.reshape(shape) * (1 + 2 * (len(self) + 4) * UNIT)

    def columns(self, shape: torch.Size) -> Tensor:
        """The whole columns [K, C, height, width]."""
        channels, height, width = shape
        places, _ = self._places(height, width)
        result = self.values.new_zeros(len(self), channels, height * width)
        # places beyond the image are clamped to ones that may be in use, and have zeros to add
        result.scatter_add_(2, places.flatten(1).unsqueeze(1).expand(-1, channels, -1), self.values.flatten(2))
        return result.view(len(self), *shape)

    def small(self, shape: torch.Size) -> bool:
        """Whether windows are less than half of an image of this shape [P, C, height, width]."""
        return 2 * self.values.shape[2] * self.values.shape[3] < shape[2] * shape[3]

    def times(self, factor: int) -> Windows:
        return Windows(self.values * factor, self.top, self.left, self.numbers)

    def moved(self, down: int, right: int) -> Windows:
        """The same in a larger image, with so many rows above and columns on the left."""
        return Windows(self.values, self.top + down, self.left + right, self.numbers)

    def convolved(self, operation: Operation) -> Windows:
        """Through a convolution: each output that reads a window is one sum of products, over entries that are zero elsewhere.

        Output o of an axis reads the inputs o s - p to o s - p + k - 1, so that a window [t, t + n) is read by those from ceil((t + p -
        k + 1) / s) to floor((t + n - 1 + p) / s): at most (n + k - 2) // s + 1 of them.
        """
        weight, window = operation.settings["weight"], operation.settings["window"]
        kernel, firsts, offsets, sizes, counts = weight.shape[2:], [], [], [], []
        for axis, begin in ((0, self.top), (1, self.left)):
            k, s, p, n = kernel[axis], window.stride[axis], window.padding[axis], self.values.shape[2 + axis]
            first = -((k - 1 - p - begin) // s)  # rounded up
            firsts.append(first)
            counts.append((n + k - 2) // s + 1)
            # where the window begins among the inputs that these outputs read: from k - s to k - 1; s more in front of them
            offsets.append(begin - (first * s - p) + s)
            sizes.append(max((counts[axis] - 1) * s + k + s, n + k - 1 + s))
        read = self.values.new_zeros(len(self), self.values.shape[1], *sizes)
        key = offsets[0] * sizes[1] + offsets[1]
        for each in key.unique().tolist():
            some = (key == each).nonzero().flatten()
            down, right = divmod(each, sizes[1])
            read[some, :, down : down + self.values.shape[2], right : right + self.values.shape[3]] = self.values[some]
        (high, wide), (down, right) = kernel, window.stride
        read = read[:, :, down:, right:][:, :, : (counts[0] - 1) * down + high, : (counts[1] - 1) * right + wide]
        values = conv2d_as_product(read, weight, Window(window.stride, (0, 0), (1, 1), 1), operation.once, "windows ")
        height, width = operation.shape[1:]
        return self._with(values, firsts[0], firsts[1], height, width)

    def plus(self, other: Windows, sign: int = 1) -> Windows:
        """The sum or difference of columns of the same symbols in two branches: windows that contain both."""
        top, left = torch.minimum(self.top, other.top), torch.minimum(self.left, other.left)
        ends = [
            torch.maximum(mine + self.values.shape[axis], theirs + other.values.shape[axis]) - first
            for axis, mine, theirs, first in ((2, self.top, other.top, top), (3, self.left, other.left, left))
        ]
        values = self.values.new_zeros(*self.values.shape[:2], *(int(end.max()) for end in ends))
        for part, factor in ((self, 1), (other, sign)):
            down, right = part.top - top, part.left - left
            key = down * values.shape[3] + right
            for each in key.unique().tolist():
                some = (key == each).nonzero().flatten()
                y, x = divmod(each, values.shape[3])
                values[some, :, y : y + part.values.shape[2], x : x + part.values.shape[3]] += (
                    factor * part.values[some]
                )
        return Windows(values, top, left, self.numbers)

    @classmethod
    def of_entries(cls, values: Tensor, index: Tensor, shape: torch.Size, numbers: Tensor) -> Windows:
        """Symbols that stand in one entry each: ``values`` [K] at the entries ``index`` [K] of an image of ``shape``."""
        channels, height, width = shape
        windows = values.new_zeros(len(values), channels, 1, 1)
        windows[torch.arange(len(values), device=values.device), index // (height * width), 0, 0] = values
        return cls(windows, index // width % height, index % width, numbers)
