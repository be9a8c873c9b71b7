"""Bounds of what a network answers to rounded pictures: where they exceed a claimed margin, no picture of a box has to be evaluated.

They hold for evaluations in float32 of the operations of the module's forward pass, each sum in any order (`as_float32`). Torch evaluates
a plain module so on a CPU. Whatever is fused, compiled, or no network at all has no bounds, and neither has one on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tiltproof.checker.folder import Run
from tiltproof.checker.form import Form, enclose
from tiltproof.checker.network import explained, outputs, own_answers
from tiltproof.checker.noise import noisy
from tiltproof.checker.pixels import as_float32, transformed
from tiltproof.checker.records import VerdictRecord
from tiltproof.checker.verdicts import bound_margins
from tiltproof.errors import InputError

TIE = 2.0**-36
"""Far more than the roundings of 255 p and its sum with 1/2."""
BYTES = 2**27
"""About how much the forms of a layer may take."""
FIRST, RARELY, DEEPEST = 8, 1 / 8, 6
"""Boxes of each size to try; the share of them that must hold for more; and how often a box is halved."""


def rounded_pixels(image: Form) -> Form:
    """Return a form of k / 255 for every whole number k with |255 p - k| <= 1/2, for pixels p in [0, 1].

    k / 255 is in [0, 1] and off by at most 1 / 510, which is noise of that size. Of a pixel with one or two possible numbers, these
    are all that there is.
    """
    lower, upper = image.lower(), image.upper()
    least = (255 * torch.where(lower >= 0, lower, 0.0).clamp(max=1) - 0.5 - TIE).ceil().clamp(min=0)
    greatest = (255 * torch.where(upper <= 1, upper, 1.0).clamp(min=0) + 0.5 + TIE).floor().clamp(max=255)
    few = greatest - least <= 1
    numbers = torch.zeros_like(image.rows)
    numbers[0], numbers[-1] = (least + greatest) / 510, (greatest - least) / 510
    return Form(torch.where(few, enclose(numbers, torch.ones_like(lower), 4, 0.0, 0).rows, noisy(image, 1 / 510).rows))


class PictureBounds:
    """Lower bounds of margins over boxes of one parameter, as long as they are of use."""

    def __init__(self, run: Run, model: nn.Module, images: Tensor) -> None:
        self.run, self.model, self.images = run, model, images
        floats = {p.dtype for p in (*model.parameters(), *model.buffers()) if p.is_floating_point()}
        self.known = not images.is_cuda and floats <= {torch.float32} and all(map(is_plain, model.modules()))
        self.checked: set[int] = set()
        self.tried, self.held = [0] * (DEEPEST + 1), [0] * (DEEPEST + 1)
        self.together = max(1, min(256, BYTES // (8 * 32 * 3 * images[0].numel())))

    def open(self, record: VerdictRecord, low: Tensor, high: Tensor, needed: float) -> tuple[Tensor, Tensor, int]:
        """Return the parts of boxes over which no bound exceeds what is needed, and how many parts were proved."""
        count = 0
        for depth in range(DEEPEST + 1):
            held = torch.zeros(len(low), dtype=torch.bool)
            for some in torch.arange(len(low)).split(FIRST if self.tried[depth] < FIRST else self.together):
                if not len(some) or not self._useful(record, depth):
                    break
                held[some] = self._lower(record, low[some], high[some]) > needed  # false for NaN
                self.tried[depth] += len(some)
                self.held[depth] += int(held[some].sum())
            count += int(held.sum())
            low, high = low[~held], high[~held]
            if depth == DEEPEST or not self._useful(record, depth) or not self._useful(record, depth + 1):
                break
            middle = (low + high) / 2
            low, high = torch.cat([low, middle]), torch.cat([middle, high])
        return low, high, count

    def _useful(self, record: VerdictRecord, depth: int) -> bool:
        if self.known and record.image not in self.checked:
            self.known = self._agrees(record)
            self.checked.add(record.image)
        return self.known and (self.tried[depth] < FIRST or self.held[depth] >= RARELY * self.tried[depth])

    def _image(self, record: VerdictRecord) -> Tensor:
        return self.images[record.image - self.run.first][None]

    def _agrees(self, record: VerdictRecord) -> bool:
        """Return whether the network has bounds at all, and its own answer to the rounded image lies within them."""
        picture = (self._image(record) * 255).round().clamp(0, 255) / 255
        form = Form(torch.stack([picture, torch.full_like(picture, 2.0**-52)]))
        try:
            exact, rounded = (outputs(self.model, each, 2) for each in (form, as_float32(form)))
            answers = own_answers(self.model, picture)
        except InputError:  # an operation that the checker does not know
            return False
        return answers is not None and bool(explained(answers, exact, rounded).all())

    def _lower(self, record: VerdictRecord, low: Tensor, high: Tensor) -> Tensor:
        images = self._image(record).expand(len(low), -1, -1, -1)
        form = as_float32(rounded_pixels(transformed(images, self.run.transform, low[:, None], high[:, None])))
        labels = torch.full((len(low),), record.label)
        numbers = torch.full_like(labels, record.image - self.run.first)
        try:
            return bound_margins(self.model, Form(form.rows, form.unit), labels, (), self.run.keep, numbers).lower
        except InputError:  # a box over which an operation has no bound
            return torch.full_like(low, -torch.inf)


def is_plain(module: nn.Module) -> bool:
    """Return whether torch runs what the module's forward pass says, and all of it."""
    return not (
        getattr(module, "opaque", False) or isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod")
    )
