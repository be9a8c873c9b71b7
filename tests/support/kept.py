"""Small classifiers, what they may have to keep, and what that means: written a second time, with nothing of the package."""

from __future__ import annotations

import torch
from torch import nn

import tiltproof as tp

CLASSES = 5
KEPT = {
    "own": tp.KeepOwn(),
    "top 1": tp.TopK(1),
    "top 2": tp.TopK(2),
    "top 4": tp.TopK(4),
    "allow": tp.Allow([1, 3]),
    "allow by label": tp.Allow({0: [1], 2: [0, 1, 4]}),
    "forbid": tp.Forbid([2, 4]),
    "forbid by label": tp.Forbid({0: [1], 1: [0, 2], 3: [0, 1, 2, 4]}),
    "rows": tp.Linear([[1.0, 0.0, -0.5, 0.0, -0.25], [0.0, 1.0, 1.0, -1.0, 0.0]], [-0.4, -0.7]),
    "rows by label": tp.Linear(
        torch.eye(CLASSES).unsqueeze(1) - 0.3 * torch.eye(CLASSES).roll(1, 1).unsqueeze(1), 0.25, each="label"
    ),
}


def allowed(keep: object, label: int) -> set[int]:
    if isinstance(keep, tp.Allow):
        given_ = keep.classes.get(label, ()) if isinstance(keep.classes, dict) else keep.classes
        return {label, *given_}
    assert isinstance(keep, tp.Forbid)
    if isinstance(keep.classes, dict) and label not in keep.classes:
        return {label}
    return {*range(CLASSES)} - {*(keep.classes[label] if isinstance(keep.classes, dict) else keep.classes)}


def slack(keep: object, outputs: list[float], label: int) -> float:
    """How far the outputs are from violating it: negative if they do."""
    others = [outputs[label] - y for k, y in enumerate(outputs) if k != label]
    if isinstance(keep, tp.KeepOwn):
        return min(others)
    if isinstance(keep, tp.TopK):
        above = sorted(others)  # the k-1 largest others may be above the label, the next one must not
        return above[keep.k - 1]
    if isinstance(keep, tp.Linear):
        rows, bounds = (each[label if keep.each else 0].tolist() for each in (keep.rows, keep.bounds))
        return min(
            sum(c * y for c, y in zip(row, outputs, strict=True)) - d for row, d in zip(rows, bounds, strict=True)
        )
    inside = allowed(keep, label)
    return max(outputs[a] for a in inside) - max(y for j, y in enumerate(outputs) if j not in inside)


def network(seed: int) -> nn.Module:
    """A random network whose answer moves with the transformation."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )
    for module in (model[0], model[3], model[5]):
        nn.init.normal_(module.weight, std=1.6 / module.weight[0].numel() ** 0.5)
        nn.init.uniform_(module.bias, -0.2, 0.2)
    return model.eval()


def case(seed: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = network(seed)
    images = torch.rand(6, 1, 6, 6)
    labels = model(images).argmax(1)
    labels[-1] = (labels[-1] + 1) % CLASSES  # one of them wrong
    return model, images, labels


class Mean(nn.Module):
    """Outputs a + b m of the mean m of the image; exact for the numbers used here."""

    def __init__(self, *lines: tuple[float, float]) -> None:
        super().__init__()
        self.last = nn.Linear(4, len(lines))
        with torch.no_grad():
            self.last.weight.copy_(torch.tensor([[b / 4] * 4 for _, b in lines]))
            self.last.bias.copy_(torch.tensor([a for a, _ in lines]))
        self.lines = lines

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.flatten(1))


RISING, FALLING = (-0.4375, 1.0), (0.5625, -1.0)
"""m - 7/16 and 9/16 - m: one of them is at least 1/16, whatever m is."""
