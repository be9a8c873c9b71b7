"""A camera must not turn its back on the picture: ranges for which a pixel would look along the picture's plane are refused.

A camera's inverse map divides by the depth w (`transforms/camera.py`). For given parameters w is linear in (u, v), so over a picture
it is least at a corner; over a box of parameters it is bounded like any coordinate, and boxes that leave it open are halved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError
from tiltproof.pixels.coordinates import combine, symbols
from tiltproof.transforms.base import Spatial, Transform
from tiltproof.transforms.camera import Camera
from tiltproof.transforms.homography import centered_grid

LEAST_DEPTH = 2.0**-4
"""A source position lies at most this many times farther out than its ray starts: beyond, a picture is a smear."""
MOST_BOXES = 2**14


def has_camera(transform: Transform) -> bool:
    return any(isinstance(part, Camera) for part in transform.parts)


def check_camera_depth(
    transform: Transform, height: int, width: int, low: Tensor | None = None, high: Tensor | None = None
) -> None:
    """Refuse boxes [P, d] (by default the whole range) unless the depth is proved to stay above 1/16 for every pixel."""
    if not has_camera(transform):
        return
    low = torch.tensor([transform.low], dtype=torch.float64) if low is None else low.double().cpu()
    high = torch.tensor([transform.high], dtype=torch.float64) if high is None else high.double().cpu()
    for kind, run in transform.stages():
        if kind is Spatial and any(isinstance(transform.parts[k], Camera) for k in run):
            _check_run(transform, run, low, high, height, width)


def _check_run(transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int) -> None:
    both = torch.unique(torch.cat([low, high], 1), dim=0)
    low, high = both[:, : low.shape[1]], both[:, low.shape[1] :]
    while True:
        depth = corner_depth(transform, run, low, high, height, width)
        left = ~(depth.lower >= LEAST_DEPTH).flatten(1).all(1)
        if not bool(left.any()):
            return
        low, high, moves = low[left], high[left], depth.slopes[:, left].abs().flatten(2).amax(2).T
        middle = (low + high) / 2
        least = corner_depth(transform, run, middle, middle, height, width).upper.flatten(1).amin(1)
        worst = int(least.argmin())
        if not float(least[worst]) >= LEAST_DEPTH or len(low) > MOST_BOXES or not bool((moves.amax(1) > 0).all()):
            raise InputError(
                f"the camera turns too far for a picture of {width} x {height} pixels: some of them would look past its horizon",
                got=f"{transform}; at {', '.join(f'{x:.6g}' for x in middle[worst].tolist())} the least depth is {float(least[worst]):.3g}",
                why="a range too wide for the focal length, or a focal length that is not in pixels of these pictures",
                do=f"choose a smaller range or a longer focal length, so that the depth w stays above {LEAST_DEPTH:g}",
            )
        axis = torch.nn.functional.one_hot(moves.argmax(1), low.shape[1]).bool()
        low, high = torch.cat([low, torch.where(axis, middle, low)]), torch.cat([torch.where(axis, middle, high), high])


def corner_depth(
    transform: Transform, run: list[int], low: Tensor, high: Tensor, height: int, width: int
) -> AffineForm:
    """The depth w at the picture's four corner pixels over boxes [P, d], [P, 2, 2]."""
    forms = symbols(low, high)
    u, v = centered_grid(height, width, low)
    third = transform.composed_inverse(run, [forms[k] for k in run])[2]
    return combine((third[0], third[1], third[2]), u[..., [0, -1]], v[:, [0, -1]], forms[0], 1, 0.0)
