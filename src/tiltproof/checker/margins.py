"""By how much the label's output exceeds every other one, over boxes and at single pictures."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tiltproof.checker.failed import CheckFailed
from tiltproof.checker.form import Form
from tiltproof.checker.layers import sum_of_products
from tiltproof.checker.network import outputs


class Margins(NamedTuple):
    """Over each of P boxes: bounds of min_j (f_label - f_j) over the other classes j."""

    lower: Tensor
    upper: Tensor


def bound_margins(model: nn.Module, pictures: Form, labels: Tensor) -> Margins:
    output = outputs(model, pictures, least=2)
    if not ((labels >= 0) & (labels < output.shape[1])).all():
        raise CheckFailed(f"a label is not one of the network's {output.shape[1]} classes")
    ahead = differences(output, labels)
    own = torch.nn.functional.one_hot(labels, output.shape[1]).bool()
    return Margins(*(side.masked_fill(own, math.inf).amin(1) for side in (ahead.lower(), ahead.upper())))


def differences(output: Form, labels: Tensor) -> Form:
    """f_label - f_j for every j [P, K].

    After a linear layer: (W_label - W_j) x + (b_label - b_j), whose shared part cancels before it is bounded. Roundings (of the
    differences, of the products, and of a float32 evaluation of each of both outputs) are relative to |W_label| + |W_j|.
    """
    if output.made_by is None:
        label = Form(output.rows.gather(2, labels.expand(len(output.rows), -1)[:, :, None]), output.unit)
        return Form(label.rows, 0.0) - Form(output.rows, 0.0)
    x, weight, bias = output.made_by
    n = weight.shape[1]
    apart, both = weight[labels][:, None] - weight, weight[labels].abs()[:, None] + weight.abs()

    def product(rows: Tensor, w: Tensor) -> Tensor:
        return (w @ rows.movedim(0, -1)).movedim(-1, 0)  # [P, K, n] @ [P, n, rows]

    biases = bias[labels].abs()[:, None] + bias.abs()
    return sum_of_products(x, product, apart, bias[labels][:, None] - bias, n + 2, (both, biases))
