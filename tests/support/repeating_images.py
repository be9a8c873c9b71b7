"""Images in which pixels are alike: symmetric ones, edges, constant areas, gray pictures of three channels; one range for each letter."""

from __future__ import annotations

import torch

MOVES = [
    ("R", "R(-40:40)"), ("Tu", "Tu(-2:2)"), ("Tv", "Tv(-2:2)"), ("Sc", "Sc(-30:40)"), ("Scu", "Scu(-30:40)"), ("Scv", "Scv(-30:40)"),
    ("Sh", "Sh(-30:30)"), ("Shv", "Shv(-30:30)"), ("Yaw@9", "Yaw(-4:4@9)"),
]  # fmt: skip
PADDINGS = ["zeros", "border", "reflect"]


def repeating(kind: str, height: int = 5, width: int = 6, seed: int = 0) -> torch.Tensor:
    """Return an image [C, H, W] in float64 with values k / 255."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 4, (1, height, width), generator=generator).double() * 60
    if kind == "point":
        image = image + image.flip(1, 2)
    elif kind == "mirrors":
        image = image + image.flip(1)
        image = (image + image.flip(2)) / 2
    elif kind == "edge":
        image = image[:, :1].expand(-1, height, -1)
    elif kind == "stripes":
        image = image[:, :, :1].expand(-1, -1, width)
    elif kind == "constant":
        image = torch.full_like(image, 200.0)
    elif kind == "checkers":
        image = ((torch.arange(height)[:, None] + torch.arange(width)) % 2 * 200.0).double()[None]
    elif kind == "gray":
        image = image.expand(3, -1, -1)
    return (image.clamp(0, 255).round() / 255).contiguous()


KINDS = ["random", "point", "mirrors", "edge", "stripes", "constant", "checkers", "gray"]
