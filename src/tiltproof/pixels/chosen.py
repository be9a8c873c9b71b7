"""Bounds of chosen pixels of one image over boxes of one parameter: what is known of the others is not bounded again."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.pixels import single_cell
from tiltproof.pixels.alike import alike
from tiltproof.pixels.api import affine_by_points, pair_bounds
from tiltproof.pixels.coordinates import Coordinates, coordinates_of_chosen
from tiltproof.transforms.base import Transform
from tiltproof.transforms.camera import Camera
from tiltproof.transforms.geometric import Rotation, Scaling, Shearing, ShearingV, TranslationU, TranslationV
from tiltproof.transforms.photometric import Brightness, ColorMatrix, Contrast, Gamma

BY_MATRIX = (Rotation, Scaling, Shearing, ShearingV, TranslationU, TranslationV, Camera)
"""Parts whose positions are a matrix times the pixel's; others are bounded as whole images."""
BY_VALUE = (Brightness, ColorMatrix, Contrast, Gamma)
"""Parts that change a pixel by its own value alone, wherever it is."""

AT_A_TIME = 2**18
"""Pixels bounded at a time; each takes about forty float64 numbers."""


class ChosenPixels:
    """Pixels of an image [C, H, W] in float64 on a CPU, under a transformation of one parameter.

    Where a pixel's new value depends on its own value alone (contrast, say), pixels of equal values are one: `image` holds each
    value once, and `inverse` says where it belongs. They stay equal under the transformation, and so does what they are rounded to.
    """

    def __init__(self, image: Tensor, transform: Transform) -> None:
        self.transform, self.shape = transform, tuple(image.shape)
        part = transform.parts[0]
        self.inverse: Tensor | None = None
        self.spatial = isinstance(part, BY_MATRIX) and transform.interpolation == "bilinear"
        self.dense = not self.spatial and not isinstance(part, BY_VALUE)
        if not self.spatial and not self.dense:
            colors = image.flatten(1) if part.channels is not None else image.reshape(1, -1)
            colors, inverse = colors.unique(dim=1, return_inverse=True)
            if part.channels is None:
                self.inverse = inverse
            else:  # of channel c, all values of that channel
                first = torch.arange(len(image)).unsqueeze(1) * colors.shape[1]
                self.inverse = (first + inverse).flatten()
            image = colors.unsqueeze(1)
        self.image = image.unsqueeze(0)
        self.channels, self.height, self.width = image.shape
        self.count = self.height * self.width
        plain = self.spatial and transform.padding in ("zeros", "border") and self.channels <= single_cell.MOST_CHANNELS
        self.table = single_cell.Table(self.image, transform.padding) if plain else None

    def pictures(self, values: Tensor) -> Tensor:
        """Return pictures [N, C, H, W] from the values of `image` [N, C H W]."""
        return (values if self.inverse is None else values[:, self.inverse]).view(-1, *self.shape)

    def bounds(self, low: Tensor, high: Tensor, box_of: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds [Q, C] of pixels number ``pixels[q]`` over the boxes ``low``, ``high`` [B] number
        ``box_of[q]``; true values lie in [0, 1] as well."""
        low, high = low.unsqueeze(1), high.unsqueeze(1)
        if self.dense:
            form = pair_bounds(
                self.image, torch.zeros_like(low[:, 0], dtype=torch.int64), self.transform, "affine", low, high
            )
            lower, upper = (end.flatten(2)[box_of, :, pixels] for end in (form.lower, form.upper))
            return lower, upper
        ends: list[tuple[Tensor, Tensor]] = []
        for part in torch.arange(len(pixels)).split(AT_A_TIME):
            form = self._form(low, high, box_of[part], pixels[part])
            ends.append((form.lower.flatten(1), form.upper.flatten(1)))
        if not ends:
            none = low.new_empty(0, self.channels)
            return none, none
        lower, upper = (torch.cat(each) for each in zip(*ends, strict=True))
        return lower, upper

    def alike(self, low: float, high: float, pixels: Tensor, channels: Tensor) -> list[Hashable]:
        """Return a key for each of these pixels; those of the same key have the same value at each parameter of the box."""
        if self.spatial:
            return alike(self.image[0], self.transform, low, high, pixels, channels)
        if self.dense:  # a blur treats all channels alike, and so those of a gray picture
            planes = [plane.numpy().tobytes() for plane in self.image[0]]
            channels = torch.tensor([planes.index(planes[c]) for c in channels.tolist()])
        return list(zip(pixels.tolist(), channels.tolist(), strict=True))

    def _form(self, low: Tensor, high: Tensor, box_of: Tensor, pixels: Tensor) -> AffineForm:
        """Return the form [Q, C, 1, 1]."""
        if not self.spatial:
            values = self.image[0].flatten(1)[:, pixels].T[..., None, None]
            own = torch.arange(len(pixels))
            return pair_bounds(values.contiguous(), own, self.transform, "affine", low[box_of], high[box_of])
        place = coordinates_of_chosen(self.transform, low, high, box_of, pixels, self.height, self.width)

        def by_points(images: Tensor, rows_of: Tensor, place: Coordinates) -> AffineForm:
            return affine_by_points(images, rows_of, place, self.transform.padding, None, torch.float64)

        if self.table is None:
            return by_points(self.image, torch.zeros_like(pixels), place)
        return single_cell.chosen_pixels_form(self.image, self.table, place, by_points)
