"""Mechanical mutants with a tighter bound that no true value refutes: why each is sound, or why sampling cannot expose it.

Rows are keyed by text: the file, the changed line, and the change as `mechanical.py` prints it between brackets. That command
fails if a row matches no mutant any more, and if a row's mutant is refuted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argued:
    file: str
    line: str
    changes: tuple[str, ...]
    why: str


CHOICE = (
    "Decides which of two sound ways bounds a pixel, the closed form or all points of its box. The two results are "
    "not comparable to the last bit, and are equally sound."
)
FLOOR = (
    "A rounding allowance that is needed on paper (3 L + 29 D, where 4 L + 40 D are allowed). The largest error at "
    "240,000 exact points was 2 u L where D is small and 9 u L where D is 2 L, where 84 u L are allowed: so "
    "sampling notices that a whole term is missing, not that it is halved."
)
FLOOR_ENOUGH = (
    "Still at least the 3 L + 29 D that are needed on paper, because no pixel is further from zero than one end of "
    "the range plus the range's width: 4 |end| + 40 D >= 4 L + 36 D."
)
REACH = (
    "A rounding allowance: on paper seven roundings of |g| A, where 24 are allowed. The largest error at 120,000 "
    "exact points was 2.4, so sampling notices that the allowance is missing, or 1, and not that it is halved."
)
HALF = (
    "A rounding allowance for half a side, a few u of at most a cell. What is missing is at most a few u D, and the "
    "floor has 11 u D more than it needs on paper, 30 u D more than any sampled error: sampling cannot see it."
)
UPWARD = (
    "Allows for at most 2^6 roundings of nonnegative sums and products, relative to a radius that, because of the "
    "floor, exceeds what it must cover by more than that in every sampled box: sampling cannot see it."
)
LAST_LINE = (
    "The table is one line short, and all bounds stay the same bit for bit. Boxes are cut off at line size + 1, where "
    "the table then ends. A box that begins there sees constant padding: the differences to the line after it are zero, "
    "which is what the table holds on its last line in any case."
)

ARGUED: list[Argued] = [
    Argued(
        "pixels/single_cell.py",
        "across, down = (ring_index(torch.arange(-BEFORE, size + 3), size, padding) for size in (width, height))",
        ("3 -> 2",),
        LAST_LINE,
    ),
    Argued("pixels/single_cell.py", "MOST_FLAT = 4", ("4 -> 3", "4 -> 2"), CHOICE),
    Argued(
        "pixels/single_cell.py",
        "largest, spread = torch.maximum(-low, high), high - low",
        ("low -> high", "high -> low"),
        FLOOR_ENOUGH,
    ),
    Argued(
        "pixels/single_cell.py",
        "self.floor = (4 * largest + 40 * spread) * UNIT[torch.float64] + SMALLEST[torch.float64]",
        ("4 -> 3", "4 -> 2", "40 -> 39", "40 -> 20"),
        FLOOR,
    ),
    Argued(
        "pixels/single_cell.py",
        "torch.add(form.radius, form.reach(), alpha=24 * form.unit, out=cost)",
        ("24 -> 23", "24 -> 12"),
        REACH,
    ),
    Argued(
        "pixels/single_cell.py",
        "return first, end, (end - begin).abs_().mul_(0.5 + 4 * form.unit).add_(8 * form.unit)",
        (
            "(end - begin).abs_().mul_(0.5 + 4 * form.unit).add_ -> (end - begin).abs_().mul_(0.5 + 4 * form.unit).sub_",
            "0.5 + 4 * form.unit -> 0.5 - 4 * form.unit",
            "0.5 + 4 * form.unit -> 0.5",
            "4 -> 3",
            "4 -> 2",
            "4 -> 1",
            "8 -> 7",
            "8 -> 4",
            "8 -> 1",
        ),
        HALF,
    ),
    Argued(
        "pixels/single_cell.py",
        "UPWARD = 1 + 2.0**-47",
        ("1 + 2.0 ** (-47) -> 1", "2.0 -> 4.0", "47 -> 48", "47 -> 94"),
        UPWARD,
    ),
]

ELSEWHERE = "Bounds nothing: it checks arguments, or serves the reading of networks; tests of its own cover it."
BY_PRODUCT = (
    "Convolutions as matrix products, which the proof takes only where oneDNN computes with fewer bits: other sums of "
    "the same products. `tests/network/test_arithmetic.py` compares them with exact sums."
)
OTHER_FUZZ = "Used with the other fuzz's inputs alone, which judges the files that call it."

BALLS = (
    "Balls and symbols for kinks, which the pass for deep networks alone has: `tests/soundness/test_balls.py` compares each rule at its "
    "worst members, and whole networks, in extended precision."
)
MASKS = (
    "Attention with masks, which no case has: `tests/soundness/test_attention_exactly.py` compares masked softmax with exact values, and "
    "`tests/support/small_networks.py` has networks with masks."
)
BRANCHES = "Einsums of two branches become products of matrices, which cases call; `tests/support/constructs.py` has networks with them."
FIXED_POINT = (
    "Kernels of whole numbers, which no case has: `tests/network/test_fixed_point.py` compares them with exact values."
)

UNCALLED: dict[tuple[str, str], str] = {
    ("enclosures/affine_form.py", "row_length"): BALLS,
    ("enclosures/affine_form.py", "added_lengths"): BALLS,
    ("enclosures/kinks.py", "*"): BALLS,
    ("network/deep.py", "*"): BALLS,
    ("network/operator_norms.py", "*"): BALLS,
    ("network/ops/arithmetic.py", "norm"): BALLS,
    ("network/ops/base.py", "_with_ball"): BALLS,
    ("network/ops/linear.py", "local"): BALLS,
    ("network/ops/linear.py", "_computed"): BALLS,
    ("network/ops/linear.py", "norm"): BALLS,
    ("network/ops/contraction.py", "norm"): BALLS,
    ("network/ops/pooling.py", "_norm"): BALLS,
    ("network/ops/contraction.py", "of_branches"): BRANCHES,
    ("network/ops/contraction.py", "matrices"): BRANCHES,
    ("network/ops/fixed_point.py", "*"): FIXED_POINT,
    ("network/ops/base.py", "_uses"): BALLS,
    **{("network/arithmetic.py", name): BY_PRODUCT for name in ("convolutions_by_lines", "conv2d_by_lines", "_steps")},
    **{
        ("network/ops/attention.py", name): MASKS
        for name in ("taking_part", "fitted", "part", "added", "baddbmm", "shift")
    },
    ("enclosures/relu.py", "clamp01"): OTHER_FUZZ,
    ("enclosures/affine_form.py", "extent"): OTHER_FUZZ,
    ("enclosures/polynomial.py", "__rsub__"): "A negation and a sum, and cases call both of these.",
    ("enclosures/affine_form.py", "width"): "The width of a form, which the search reads to choose a split: it bounds nothing.",
    **{
        ("network/arithmetic.py", name): BY_PRODUCT
        for name in ("unfold_at_most", "output_size", "conv2d_as_product", "_strips", "_add_lines", "_matrix",
                     "conv2d_transposed_as_product", "_rows_at_a_time", "rows", "entries", "im2col")
    },
    ("network/arithmetic.py", "training_arithmetic"): ELSEWHERE,
    ("network/arithmetic.py", "tracing_settings"): ELSEWHERE,
    ("network/backward.py", "shallow_share"): "Says when a pass tests for an early exit: it bounds nothing.",
    ("network/backward.py", "forward_shares"): "Branching scores: they choose which box is split, and bound nothing.",
    ("network/forward.py", "check_labels"): ELSEWHERE,
    ("network/graph.py", "last"): ELSEWHERE,
    ("network/graph.py", "entries"): ELSEWHERE,
    ("network/graph.py", "output_shape"): ELSEWHERE,
    ("network/ops/base.py", "register"): "Called while importing, for every rule and every converter.",
    ("network/ops/base.py", "supported"): ELSEWHERE,
    ("network/ops/convex.py", "ends"): "Every convex function has its own.",
    ("network/ops/gather.py", "_rearranges"): "Called while importing; it names operations of which cases call many.",
    ("network/ops/gather.py", "_nearest"): "Called while importing, for each name of an operation that cases call.",
    ("network/ops/gather.py", "part"): (
        "One of several results of a call, which the cases do not have; `tests/support/small_networks.py` has networks that split."
    ),
    ("pixels/api.py", "check_images"): ELSEWHERE,
    ("pixels/api.py", "bound_pixels"): "The public function: it checks arguments and calls what the cases call.",
    ("pixels/api.py", "bounds_pairs_alone"): ELSEWHERE,
    ("pixels/api.py", "_box"): ELSEWHERE,
    **{
        ("pixels/fgv.py", name): "For losses in training, not for proofs; `tests/training/test_losses.py` compares it with them."
        for name in ("lines_needed", "window_bounds", "_resampled", "_weights")
    },
}  # fmt: skip
"""Functions that no case of a fuzz calls, by file, and why its mutants need no judgement; ``*`` is a whole file."""
