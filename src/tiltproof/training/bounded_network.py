"""Differentiable bounds of a network's outputs for training; they prove nothing.

The rules are those of the verifier. Only the allowance for rounding errors is omitted (``unit=0``): in training it would cost time
and change nothing.
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

MIN_MARGIN = 1e-6
"""Smallest divisor of a relative width; margins of an untrained network may vanish."""
PROPAGATIONS = ("interval", "affine", "backward")
"""How bounds go through the network: intervals, affine forms, or intervals and one back-substitution."""


class BoundedNetwork:
    """Traces a module once and bounds its outputs with its current parameters."""

    def __init__(self) -> None:
        self.traced: weakref.WeakKeyDictionary[nn.Module, Network] = weakref.WeakKeyDictionary()
        self.statistics: dict[int, Tensor] = {}

    def network(self, model: nn.Module, like: Tensor) -> Network:
        """Return the traced network with the module's current parameters."""
        if model not in self.traced:
            self.traced[model] = read_network(model, tuple(like.shape[1:]), like)
        return self.traced[model].network_as(instead=self.statistics)

    @contextmanager
    def batch_statistics(self, model: nn.Module) -> Iterator[None]:
        """Record the mini-batch statistics of batch norm layers in training mode.

        Bounds computed afterwards normalize by the same mean and variance as the outputs, not by running statistics.
        """
        self.statistics = {}

        def record(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            if layer.training and layer.running_mean is not None:
                values = inputs[0].float()
                others = [k for k in range(values.ndim) if k != 1]
                variance, mean = torch.var_mean(values, others, correction=0)
                self.statistics |= {id(layer.running_mean): mean, id(layer.running_var): variance}

        layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        hooks = [layer.register_forward_pre_hook(record) for layer in layers]
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
        """Return the pixel bounds of each image over its own box, in the images' dtype."""
        rows = torch.arange(len(images), device=images.device)
        form = pair_bounds(images.double(), rows, transform, method, low, high, cells)
        if propagation != "affine" and form.symbols:
            form = AffineForm.between(form.lower, form.upper)
        return AffineForm(form.stack.to(images.dtype), form.radius.to(images.dtype), unit=0.0)

    def worst_outputs(self, model: nn.Module, pixels: Any, labels: Tensor, propagation: str) -> Tensor:
        """Return worst-case outputs [n, K] for a cross-entropy.

        With ``interval`` these are the paper's: the label's lower bound and the others' upper bounds. With ``affine`` and
        ``backward``: 0 for the label, and for every other class an upper bound of its output minus the label's.
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
        """Return [n]: the mean radius of the margins' forms over the other classes, relative to the mean absolute margin."""
        network = self.network(model, pixels.center)
        with training_arithmetic(), torch.autocast(labels.device.type, enabled=False):
            form = _margins(network, run(network, pixels), labels)
        return form.radius.sum(1) / form.center.abs().sum(1).clamp(min=MIN_MARGIN)

    def _refined(self, network: Network, forms: dict[str, AffineForm], labels: Tensor, lower: Tensor) -> Tensor:
        count, classes = lower.shape
        pairs = torch.arange(count, device=lower.device).repeat_interleave(classes)
        others = torch.arange(classes, device=lower.device).repeat(count)
        bound, _ = refine(network, forms, labels, pairs, others)
        return torch.maximum(bound.to(lower.dtype).view(count, classes), lower)

    def output_range(self, model: nn.Module, pixels: Any, propagation: str) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds of all outputs, [n, K]."""
        network = self.network(model, pixels.center)
        with training_arithmetic(), torch.autocast(pixels.center.device.type, enabled=False):
            forms = run(network, pixels)
            form = forms[network.output]
            lower, upper = form.lower, form.upper
            if propagation == "backward":
                rows = torch.arange(len(lower), device=lower.device)
                for unit in torch.eye(lower.shape[1], dtype=lower.dtype, device=lower.device):
                    directions = unit.expand_as(lower).contiguous()
                    below, _ = refine_outputs(network, forms, rows, directions)
                    above, _ = refine_outputs(network, forms, rows, -directions)
                    lower = torch.maximum(lower, below.to(lower.dtype).unsqueeze(1).where(unit > 0, lower))
                    upper = torch.minimum(upper, -above.to(lower.dtype).unsqueeze(1).where(unit > 0, -upper))
        return lower, upper


def _margins(network: Network, forms: dict[str, AffineForm], labels: Tensor) -> AffineForm:
    """Return f_label - f_j for all j, [n, K]; a last linear layer is replaced by the differences of its rows."""
    last = network.last
    if last.name != network.output or last.kind != "linear":
        return margins(network, forms, labels)
    form = forms[last.inputs[0]]
    weight, bias = last.settings["weight"], last.settings["bias"]
    differences = weight[labels].unsqueeze(1) - weight  # [n, K, features]
    radius = differences.abs() @ form.radius.unsqueeze(2)
    stack = torch.einsum("nkf,snf->snk", differences, form.stack)
    if bias is not None:
        stack = torch.cat([stack[:1] + (bias[labels].unsqueeze(1) - bias), stack[1:]])
    return AffineForm(stack, radius.squeeze(2), unit=0.0)
