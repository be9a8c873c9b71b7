"""Bounds of a network's outputs with live parameters: differentiable, without rounding slack, and proving nothing.

The rules are the verifier's own; only what makes a bound sound to the last bit is left out (``unit=0``), because in training it
costs time and changes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import Network, margins, read_network, refine, refine_outputs, run
from tiltproof.network.arithmetic import training_arithmetic
from tiltproof.pixels.api import pair_bounds
from tiltproof.transforms import Transform

SMALLEST_MARGINS = 1e-6
"""Of a network that knows nothing yet: no width is divided by less."""
PROPAGATIONS = ("interval", "affine", "backward")


class LiveNetwork:
    """Reads a module once and bounds its outputs with whatever its parameters are now."""

    def __init__(self) -> None:
        self.read: weakref.WeakKeyDictionary[nn.Module, Network] = weakref.WeakKeyDictionary()
        self.statistics: dict[int, Tensor] = {}

    def network(self, model: nn.Module, like: Tensor) -> Network:
        if model not in self.read:
            self.read[model] = read_network(model, tuple(like.shape[1:]), like)
        return self.read[model].network_as(instead=self.statistics)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Inside, batch norm layers in training mode are watched: bounds that follow normalise by the same mini-batch's mean and
        variance, as the answers do, not by running statistics that lag behind."""
        self.statistics = {}

        def note(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            if layer.training and layer.running_mean is not None:
                values = inputs[0].float()
                others = [k for k in range(values.ndim) if k != 1]
                variance, mean = torch.var_mean(values, others, correction=0)
                self.statistics |= {id(layer.running_mean): mean, id(layer.running_var): variance}

        layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        hooks = [layer.register_forward_pre_hook(note) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def pixels(
        self,
        images: Tensor,
        transform: Transform,
        method: str,
        low: Tensor,
        high: Tensor,
        propagation: str,
        cells: int | None = None,
    ) -> AffineForm:
        """Pixel bounds of each image over its own box, in the images' dtype."""
        rows = torch.arange(len(images), device=images.device)
        form = pair_bounds(images.double(), rows, transform, method, low, high, cells)
        if propagation != "affine" and form.symbols:
            form = AffineForm.between(form.lower, form.upper)
        return AffineForm(form.stack.to(images.dtype), form.radius.to(images.dtype), unit=0.0)

    def worst_outputs(self, model: nn.Module, pixels: Any, labels: Tensor, propagation: str) -> Tensor:
        """[n, K], to be put into a cross-entropy.

        ``interval``: the paper's worst output vector, the label's lower bound and the others' upper bounds. ``affine`` and
        ``backward``: 0 for the label, and for every other class how far it can come above the label's output.
        """
        network, own = self.network(model, pixels.center), labels.unsqueeze(1)
        with training_arithmetic(), torch.autocast(labels.device.type, enabled=False):
            forms = run(network, pixels)
            if propagation == "interval":
                output = forms[network.output]
                return output.upper.scatter(1, own, output.lower.gather(1, own))
            lower = _margins(network, forms, labels).lower
            if propagation == "backward":
                lower = self._refined(network, forms, labels, lower)
        return -lower.scatter(1, own, 0.0)

    def relative_width(self, model: nn.Module, pixels: AffineForm, labels: Tensor) -> Tensor:
        """[n]: the radius of the margins' forms, relative to the margins themselves; means over the other classes."""
        network = self.network(model, pixels.center)
        with training_arithmetic(), torch.autocast(labels.device.type, enabled=False):
            form = _margins(network, run(network, pixels), labels)
        return form.radius.sum(1) / form.center.abs().sum(1).clamp(min=SMALLEST_MARGINS)

    def _refined(self, network: Network, forms: dict[str, AffineForm], labels: Tensor, lower: Tensor) -> Tensor:
        count, classes = lower.shape
        pairs = torch.arange(count, device=lower.device).repeat_interleave(classes)
        others = torch.arange(classes, device=lower.device).repeat(count)
        bound, _ = refine(network, forms, labels, pairs, others)
        return torch.maximum(bound.to(lower.dtype).view(count, classes), lower)

    def output_range(self, model: nn.Module, pixels: Any, propagation: str) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of all outputs [n, K]."""
        network = self.network(model, pixels.center)
        with training_arithmetic(), torch.autocast(pixels.center.device.type, enabled=False):
            forms = run(network, pixels)
            form = forms[network.output]
            lower, upper = form.lower, form.upper
            if propagation == "backward":
                every = torch.arange(len(lower), device=lower.device)
                for unit in torch.eye(lower.shape[1], dtype=lower.dtype, device=lower.device):
                    directions = unit.expand_as(lower).contiguous()
                    below, _ = refine_outputs(network, forms, every, directions)
                    above, _ = refine_outputs(network, forms, every, -directions)
                    lower = torch.maximum(lower, below.to(lower.dtype).unsqueeze(1).where(unit > 0, lower))
                    upper = torch.minimum(upper, -above.to(lower.dtype).unsqueeze(1).where(unit > 0, -upper))
        return lower, upper


def _margins(network: Network, forms: dict[str, AffineForm], labels: Tensor) -> AffineForm:
    """f_label - f_j for all j, [n, K]; after a last linear layer from the differences of its rows, all labels at once."""
    last = network.last
    if last.name != network.output or last.kind != "linear":
        return margins(network, forms, labels)
    form = forms[last.inputs[0]]
    weight, bias = last.settings["weight"], last.settings["bias"]
    apart = weight[labels].unsqueeze(1) - weight  # [n, K, features]
    spread = apart.abs() @ form.radius.unsqueeze(2)
    stack = torch.einsum("nkf,snf->snk", apart, form.stack)
    if bias is not None:
        stack = torch.cat([stack[:1] + (bias[labels].unsqueeze(1) - bias), stack[1:]])
    return AffineForm(stack, spread.squeeze(2), unit=0.0)
