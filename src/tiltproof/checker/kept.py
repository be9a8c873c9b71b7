"""What a classification run claims instead of "the label's output is the largest", and its margin over boxes.

With f the outputs, S the allowed classes of an image and c the number of other classes that need not be beaten:

- the run's own answers, the label, allowed and forbidden classes: each class j outside of S, but at most c, has
  f_a > f_j for some a in S. With c = 0 the largest output is then one of S however ties are broken, since nothing
  outside of S is the largest. With S = {label} at most c outputs are at least the label's, so it is among the c + 1 largest.
- rows: C_r f > d_r for every row r.

The margin is the (c + 1)-th smallest over j of max_a f_a - f_j, or the least C_r f - d_r. It is bounded from below by
using some of the allowed classes only, and from above by one of the classes j.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiltproof.checker.form import Form
from tiltproof.checker.operations import sum_of_products
from tiltproof.checker.strict_json import ensure, get, vector

TRIED = 4
"""Allowed classes that are tried in a box, by the outputs at its center."""


class Kept(NamedTuple):
    """A claim: ``rule`` is own, top, allow, forbid or linear; the others hold what belongs to it."""

    rule: str
    k: int = 1
    classes: Mapping[int | None, Sequence[int]] = MappingProxyType({})
    """By label; None: for every label that is not named."""
    each: str | None = None
    rows: Sequence[Sequence[Sequence[float]]] = ()
    bounds: Sequence[Sequence[float]] = ()


def read_keep(claim: dict[str, Any], labels: list[int]) -> Kept | None:
    """Read what the claim says must be kept, strictly."""
    if "keep" not in claim:
        return None
    keep = get(claim, "keep", dict)
    rule = get(keep, "rule", str)
    fields = {"own": 0, "top": 1, "allow": 1, "forbid": 1, "linear": 3}
    ensure(rule in fields, "what the claim keeps is unknown")
    ensure(len(keep) == 1 + fields[rule], "what the claim keeps has too many or too few entries")
    if rule == "top":
        ensure(get(keep, "k", int) >= 1, "the label is to be among less than one output")
        return Kept(rule, keep["k"])
    if rule in ("allow", "forbid"):
        return Kept(rule, classes=read_classes(keep, rule))
    return read_rows(keep, labels) if rule == "linear" else Kept(rule)


def read_classes(keep: dict[str, Any], rule: str) -> dict[int | None, list[int]]:
    if "classes" in keep:
        return {None: class_list(get(keep, "classes", list))}
    table = get(keep, "by_label", dict)
    ensure(0 < len(table) < 2**20, "what the claim keeps names no label")
    found: dict[int | None, list[int]] = {}
    for name in table:
        ensure(name.isascii() and name.isdigit() and str(int(name[:12])) == name, "a label of by_label is no number")
        found[int(name)] = class_list(get(table, name, list))
        ensure(rule == "allow" or int(name) not in found[int(name)], "a label is forbidden for its own images")
    return found


def class_list(numbers: list[Any]) -> list[int]:
    ensure(len(numbers) > 0, "a list of classes is empty")
    ensure(all(type(n) is int and 0 <= n < 2**31 for n in numbers), "a class is not a valid class index")
    return numbers


def read_rows(keep: dict[str, Any], labels: list[int]) -> Kept:
    each, rows, bounds = keep.get("each", ""), get(keep, "rows", list), get(keep, "bounds", list)
    ensure(each in (None, "label", "image"), "the kind of rows is unknown")
    ensure(len(rows) == len(bounds) > 0, "rows and bounds are not about the same images")
    ensure(each is None or len(rows) > (max(labels) if each == "label" else len(labels) - 1), "rows are missing")
    for table, limits in zip(rows, bounds, strict=True):
        ensure(type(table) is list and type(limits) is list and len(table) == len(limits) > 0, "rows are not tables")
        for row in table:
            ensure(type(row) is list and len(row) == len(rows[0][0]) > 0, "a row has the wrong length")
            vector(row, len(row), "a row")
            ensure(any(row), "a row is zero")
        vector(limits, len(limits), "the bounds of rows")
        ensure(len(table) == len(rows[0]), "tables of rows have different sizes")
    return Kept("linear", each=each, rows=rows, bounds=bounds)


class Bounds(NamedTuple):
    """Bounds of the margin for each of P boxes."""

    lower: Tensor
    upper: Tensor


def bound_kept(kept: Kept, output: Form, labels: Tensor, numbers: Tensor) -> Bounds:
    """Bound the margin from the outputs [P, K] of images with these labels and numbers, counted from 0."""
    if kept.rule == "linear":
        found = rows_of(kept, output, labels, numbers)
        return Bounds(found.lower().amin(1), found.upper().amin(1))
    allowed = allowed_classes(kept, labels, output.shape[1])
    spared = kept.k - 1 if kept.rule == "top" else 0
    ensure(spared < output.shape[1] - 1, "the label is among all outputs anyway")

    def ordered(margins: Tensor) -> Tensor:
        return margins.masked_fill(allowed, math.inf).sort(dim=1).values[:, spared]

    centers = output.center.masked_fill(~allowed, -math.inf)
    best = torch.full_like(centers, -math.inf)
    for own in centers.argsort(1, descending=True)[:, :TRIED].unbind(1):
        lower = differences(output, own).lower()
        counts = allowed.gather(1, own[:, None]) & ~lower.isnan()
        best = torch.where(counts & (lower > best), lower, best)
    return Bounds(ordered(best), largest_margin(output, allowed, spared))


def largest_margin(output: Form, allowed: Tensor, spared: int) -> Tensor:
    """Bound the margin from above: of a single allowed class by its own differences, else by the other class with the
    largest output at the center, which every allowed class could at most exceed by -(f_j - f_a)."""
    if bool((allowed.sum(1) == 1).all()):
        upper = differences(output, allowed.int().argmax(1)).upper()
        return upper.nan_to_num(nan=math.inf).masked_fill(allowed, math.inf).sort(dim=1).values[:, spared]
    other = output.center.masked_fill(allowed, -math.inf).argmax(1)
    ahead = differences(output, other).lower().nan_to_num(nan=-math.inf)
    return -ahead.masked_fill(~allowed, math.inf).amin(1)


def allowed_classes(kept: Kept, labels: Tensor, classes: int) -> Tensor:
    """Return the allowed classes of each image, [P, K]."""
    own = torch.nn.functional.one_hot(labels, classes).bool()
    if kept.rule not in ("allow", "forbid"):
        return own
    named = [each for each in kept.classes if each is not None] + [j for each in kept.classes.values() for j in each]
    ensure(max(named) < classes, f"what the claim keeps names a class that is not one of the network's {classes}")
    rows = []
    for label, mine in zip(labels.tolist(), own, strict=True):
        listed = kept.classes.get(label, kept.classes.get(None))
        if listed is not None:
            marked = torch.zeros_like(mine)
            marked[list(listed)] = True
            mine = mine | marked if kept.rule == "allow" else ~marked
        ensure(not bool(mine.all()), "every class is allowed, so that nothing is claimed")
        ensure(bool(mine.any()), "no class is allowed")
        rows.append(mine)
    return torch.stack(rows)


def differences(output: Form, labels: Tensor) -> Form:
    """Return f_label - f_j for every j [P, K].

    After a linear layer that is (W_label - W_j) x + (b_label - b_j), whose shared part cancels before it is bounded. Roundings
    (of the differences, of the products, and of a float32 evaluation of both outputs) are relative to |W_label| + |W_j|.
    """
    if output.made_by is None:
        label = Form(output.rows.gather(2, labels.expand(len(output.rows), -1)[:, :, None]), output.unit)
        return Form(label.rows, 0.0) - Form(output.rows, 0.0)
    x, weight, bias = output.made_by
    n = weight.shape[1]
    weight_differences, both = weight[labels][:, None] - weight, weight[labels].abs()[:, None] + weight.abs()

    def product(rows: Tensor, w: Tensor) -> Tensor:
        return (w @ rows.movedim(0, -1)).movedim(-1, 0)  # [P, K, n] @ [P, n, rows]

    biases = bias[labels].abs()[:, None] + bias.abs()
    return sum_of_products(x, product, weight_differences, bias[labels][:, None] - bias, n + 2, (both, biases))


def rows_of(kept: Kept, output: Form, labels: Tensor, numbers: Tensor) -> Form:
    """Return C f - d for every row [P, R].

    Of real numbers after a linear layer that is (C W) x + (C b - d), whose shared part cancels. Its weights and shifts
    round at most K + 2 times more, relative to |C| |W| and |C| |b| + |d|. A float32 evaluation rounds the outputs, and
    the rows of these are exact.
    """
    which = {None: torch.zeros_like(labels), "label": labels, "image": numbers}[kept.each]
    like = output.center
    matrix, limits = like.new_tensor(kept.rows)[which], like.new_tensor(kept.bounds)[which]
    classes = output.shape[1]
    ensure(matrix.shape[2] == classes, f"the claim's rows are not about the network's {classes} outputs")

    def product(rows: Tensor, w: Tensor) -> Tensor:
        return (w @ rows.movedim(0, -1)).movedim(-1, 0)

    if output.made_by is None or output.unit:
        return sum_of_products(Form(output.rows, 0.0), product, matrix, -limits, classes)
    x, weight, bias = output.made_by
    sizes = matrix.abs() @ weight.abs(), (matrix.abs() * bias.abs()).sum(2) + limits.abs()
    shift = (matrix * bias).sum(2) - limits
    terms = weight.shape[1] + classes + 4
    return sum_of_products(x, product, matrix @ weight, shift, terms, sizes)
