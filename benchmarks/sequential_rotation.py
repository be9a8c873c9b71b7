"""The baseline of `interval_speed.py`: interval bounds of a rotated image, one pixel after the other, on one CPU core.

It stands for a sequential CPU implementation such as Semantify-NN's, and gives Algorithm 1's numbers (a test compares
them). The same loops exist twice: in Python with plain floats and no vectorization, and in C, compiled on demand, so
that a ratio can exclude the cost of Python. Neither accounts for rounding, which only makes them faster. The
coordinates and weights of an output pixel are computed once for all channels, and only grid lines nearer than 1 are
considered.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def cosine(low: float, high: float) -> tuple[float, float]:
    """The range of cos over [low, high], in radians."""
    ends = math.cos(low), math.cos(high)
    top = math.floor(high / (2 * math.pi)) >= math.ceil(low / (2 * math.pi))
    bottom = math.floor((high / math.pi - 1) / 2) >= math.ceil((low / math.pi - 1) / 2)
    return -1.0 if bottom else min(ends), 1.0 if top else max(ends)


def product(number: float, low: float, high: float) -> tuple[float, float]:
    return (number * low, number * high) if number >= 0 else (number * high, number * low)


def weights(low: float, high: float, size: int) -> list[tuple[int, float, float]]:
    """Grid lines nearer than 1 to [low, high], each with the range of max(0, 1 - distance)."""
    found = []
    for line in range(max(0, math.ceil(low - 1)), min(size - 1, math.floor(high + 1)) + 1):
        below, above = line - high, line - low
        nearest = max(below, -above, 0.0)
        if nearest < 1:
            found.append((line, max(0.0, 1 - max(above, -below)), 1 - nearest))
    return found


def rotated(image: Tensor, low_degrees: float, high_degrees: float) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds [C, H, W] of all pixels of one image over the angles, in plain Python."""
    pixels = image.double().tolist()
    channels, height, width = image.shape
    low, high = math.radians(low_degrees), math.radians(high_degrees)
    (cos_low, cos_high), (sin_low, sin_high) = cosine(low, high), cosine(low - math.pi / 2, high - math.pi / 2)
    lower = [[[0.0] * width for _ in range(height)] for _ in range(channels)]
    upper = [[[0.0] * width for _ in range(height)] for _ in range(channels)]
    for i in range(height):
        v = (height - 1) / 2 - i
        for j in range(width):
            u = j - (width - 1) / 2
            (a, b), (c, d) = product(u, cos_low, cos_high), product(v, sin_low, sin_high)
            columns = weights(a + c + (width - 1) / 2, b + d + (width - 1) / 2, width)
            (a, b), (c, d) = product(v, cos_low, cos_high), product(u, sin_low, sin_high)
            rows = weights((height - 1) / 2 - (b - c), (height - 1) / 2 - (a - d), height)
            for channel in range(channels):
                least = most = 0.0
                for n, row_low, row_high in rows:
                    line = pixels[channel][n]
                    for m, column_low, column_high in columns:
                        least += row_low * column_low * line[m]
                        most += row_high * column_high * line[m]
                lower[channel][i][j], upper[channel][i][j] = min(1.0, least), min(1.0, most)
    return torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)


SOURCE = r"""
#include <math.h>
static int weights(double low, double high, int size, int *line, double *least, double *most) {
  int first = fmax(0, ceil(low - 1)), last = fmin(size - 1, floor(high + 1)), count = 0;
  for (int n = first; n <= last; n++) {
    double below = n - high, above = n - low, nearest = fmax(fmax(below, -above), 0);
    if (nearest >= 1) continue;
    line[count] = n; least[count] = fmax(0, 1 - fmax(above, -below)); most[count++] = 1 - nearest;
  }
  return count;
}
static double small(double x, double low, double high) { return x >= 0 ? x * low : x * high; }
static double large(double x, double low, double high) { return x >= 0 ? x * high : x * low; }
void rotated(const double *pixels, int channels, int height, int width, double cl, double ch, double sl, double sh,
             double *lower, double *upper) {
  int row[height], column[width];
  double row_low[height], row_high[height], column_low[width], column_high[width];
  for (int i = 0; i < height; i++) for (int j = 0; j < width; j++) {
    double v = (height - 1) / 2.0 - i, u = j - (width - 1) / 2.0, x = (width - 1) / 2.0, y = (height - 1) / 2.0;
    int columns = weights(small(u, cl, ch) + small(v, sl, sh) + x, large(u, cl, ch) + large(v, sl, sh) + x, width,
                          column, column_low, column_high);
    int rows = weights(y - large(v, cl, ch) + small(u, sl, sh), y - small(v, cl, ch) + large(u, sl, sh), height,
                       row, row_low, row_high);
    for (int c = 0; c < channels; c++) {
      double least = 0, most = 0;
      for (int n = 0; n < rows; n++) for (int m = 0; m < columns; m++) {
        double pixel = pixels[(c * height + row[n]) * width + column[m]];
        least += row_low[n] * column_low[m] * pixel;
        most += row_high[n] * column_high[m] * pixel;
      }
      lower[(c * height + i) * width + j] = fmin(1, least);
      upper[(c * height + i) * width + j] = fmin(1, most);
    }
  }
}
"""


class Compiled:
    """The same function in C; ``Compiled.make()`` is None without a C compiler."""

    def __init__(self, compiler: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "rotated.c"), Path(folder, "rotated.so")
            source.write_text(SOURCE)
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
            self.function = ctypes.CDLL(str(library)).rotated  # stays loaded when the file is gone

    @staticmethod
    def make() -> Compiled | None:
        compiler = shutil.which("cc")
        return None if compiler is None else Compiled(compiler)

    def __call__(self, image: Tensor, low_degrees: float, high_degrees: float) -> tuple[Tensor, Tensor]:
        pixels = np.ascontiguousarray(image.double().numpy())
        lower, upper = np.empty_like(pixels), np.empty_like(pixels)
        low, high = math.radians(low_degrees), math.radians(high_degrees)
        ends = [*cosine(low, high), *cosine(low - math.pi / 2, high - math.pi / 2)]
        place = [ctypes.c_void_p(array.ctypes.data) for array in (pixels, lower, upper)]
        self.function(place[0], *map(ctypes.c_int, pixels.shape), *map(ctypes.c_double, ends), *place[1:])
        return torch.from_numpy(lower), torch.from_numpy(upper)
