"""Justified survivors among the mutants that `network_fuzz.py` judges: network rules, backward passes and relaxations.

Format as in `mechanical_survivors.py`. One argument covers all mutants of a kind of line. Mutants that lower a rounding
allowance are unsound on paper; the argument says why inputs do not show it. Rows cover every second mutant of a file, all of
`enclosures/relu.py`, every third of `network/backward.py`, and every eighth of `network/ops/base.py`; the others have not
been judged.
"""

from __future__ import annotations

from tests.soundness.mechanical_survivors import Argued

SLOPE = (
    "Any slope from 0 to 1 gives a sound relaxation, with the offset that `relu_gap` finds for the slope in use: "
    "other forms, of which neither contains the other."
)
EQUAL_TERMS = (
    "At the chord's slope both terms of the maximum are the same number, and at slope 0 the second one is the "
    "larger: either is right for the slopes in use, and a larger one is sound; they differ by roundings, which the "
    "radius covers."
)
LARGER = "The bounds of x above and below zero may be too large: the offset grows with both, for any slope from 0 to 1."
OFFSET = "The offset may be any number that is large enough; the center moves by as much as the radius grows."
ROUNDS = (
    "Allows for fewer roundings than the comment next to it counts, but for more than any known input causes: each "
    "operation rounds by at most half a unit in the last place, and those of one entry hardly ever in the same "
    "direction. No sampling can see it."
)
MORE = (
    "Allows for more roundings than before; later steps choose other slopes for the wider forms, so these are not "
    "subsets, but each is sound."
)
UNDER = (
    "Covers underflow. SMALLEST is 2^26 (float64: 2^122) times the largest underflow, so no sum of a few dozen of "
    "them comes close."
)
FLOOR = (
    "Covers underflow of a backward step, which is below 2^-126 times a coefficient; other terms of the error are "
    "larger wherever coefficients are not tiny themselves."
)
CHOICE = "Chooses which of two sound bounds is used, nothing else."
LIB = (
    "Allows for the error of float64's sigmoid and tanh, 2^-40, where libraries are off by 2^-52: no sampling can "
    "distinguish 2^-40 from 2^-41, nor see a few roundings of 2^-53."
)
SMALLER_SLOPE = (
    "Any slope s below the derivatives at both ends is sound, even one below zero, since f(x) - s x then still "
    "increases. A slope that is too high by 2^-40 or a rounding costs less than the slack next to it."
)
EQUI = "The two numbers of the fit are free: the largest and the least value are found for those in use."
CHEB = (
    "At Chebyshev's fit the maxima of both branches are equal, and so are the minima at the kink and at the ends. "
    "So one of them may be wrong, or left out, as long as another is right; the allowance of 256 units covers the "
    "fit's own roundings."
)
WIDERFIT = (
    "The radius grows by more than the center moves: the parabola's minimum is not below zero, so a sum of both "
    "ends is no smaller than their difference."
)
PEAK = (
    "Larger than the maximum, or another formula for a case that the fit never meets (|a| < 4 curvature holds for "
    "both branches)."
)
SCALESIZE = (
    "For a leaky ReLU 16 roundings of this magnitude are allowed, twice what happens: half of it is enough, or a "
    "part of it that is as large wherever the slope is composed of two parts that do not cancel."
)
POOL = (
    "Roundings of a difference of two forms: twice the symbols and 16 more are allowed for, relative to both "
    "entries and the difference, of which one alone is at least a third."
)
POOLBACK = (
    "Going back through max pooling moves coefficients and adds those of a few windows; the operation before allows "
    "for as many roundings of the same coefficients, of at least the same lengths."
)
WINDOW = (
    "The number of products in a sum: fewer than there are, but 4 to 8 more are allowed for, and the error of a sum "
    "in blocks, which is what libraries compute, grows with its logarithm."
)
DIFF = (
    "The rounding of a difference of weights is covered a second time: going forward, each product's allowance is "
    "relative to the magnitudes of both factors."
)
NOFOLD = (
    "Whether a scale is folded at all: the convolution followed by the scale is the same function, and is bounded "
    "by its own rules."
)
COUNTS = (
    "Allows for more, or fewer, roundings of folded constants: 8 and 6 are allowed for where at most 4 happen, and "
    "the products that use them allow for 4 to 8 more."
)
DROPPED = "Which symbols are dropped: the dropped ones go entirely into the radii, so either choice is sound."
PAIR = (
    "Two roundings are allowed for in a difference that rounds once, and each factor's own allowance covers it as well."
)
WIDE = (
    "Rounding of one difference of biases in float64: 1025 roundings are allowed for where one happens, and the "
    "biases of either row are enough."
)
JOIN = (
    "Adding the coefficients of two branches rounds once; the operations before it allow for 8 roundings and more, "
    "of the same coefficients and values."
)
PARABOLA = (
    "In float64: 32 units are allowed for where fewer than 16 roundings happen, on top of a bound's own 8 units "
    "(2^-50), and a parabola's minimum is rarely attained at a point that is a float."
)
SUMS = (
    "Roundings of sums in float64, or of second order: 1024 and more are allowed for where a few dozen happen, and "
    "each step's own allowance is larger."
)
NOTHING = "Errors become so large, or infinite, that nothing is proved; intermediate bounds then differ."

ARGUED: list[Argued] = [
    Argued(
        "enclosures/relu.py",
        "if not (form.quadratic and form.unit and form.symbols > 1) or form.like.requires_grad:",
        ("form.symbols > 1 -> form.symbols < 1",),
        ("Disables the quadratic relaxation: the zonotope relaxation is sound."),
    ),
    Argued(
        "enclosures/relu.py",
        "k = kink.abs()",
        ("kink.abs() -> kink",),
        EQUI,
    ),
    Argued(
        "enclosures/relu.py",
        "middle = k <= 1 / 3",
        ("k <= 1 / 3 -> k >= 1 / 3", "1 -> 2", "3 -> 4", "3 -> 6"),
        EQUI,
    ),
    Argued(
        "enclosures/relu.py",
        "curvature = size * torch.where(middle, 0.25 / (1 + k), 2 * (1 - k) / (3 - k) ** 2)",
        (
            "size * torch.where(middle, 0.25 / (1 + k), 2 * (1 - k) / ... -> size / torch.where(middle, 0.25 / (1 + k), 2 * (1 - k) / ...",
            "torch.where(middle, 0.25 / (1 + k), 2 * (1 - k) / (3 - k)... -> 0.25 / (1 + k)",
            "0.25 / (1 + k) -> 0.25 * (1 + k)",
            "0.25 -> 0.125",
            "0.25 -> 0.5",
            "0.25 -> 0.0",
            "1 + k -> 1",
            "1 -> 2",
            "2 * (1 - k) / (3 - k) ** 2 -> 2 * (1 - k) * (3 - k) ** 2",
            "2 -> 3",
            "1 - k -> 1 + k",
            "1 - k -> k",
            "3 - k -> 3 + k",
            "3 - k -> k",
            "3 -> 2",
            "3 -> 1",
            "2 -> 1 #2",
        ),
        EQUI,
    ),
    Argued(
        "enclosures/relu.py",
        "tilt = -kink.sign() * size * torch.where(middle, k / (1 + k), 0.5 - 4 * ((1 - k) / (3 - k)) ** 2)",
        (
            "-kink.sign() * size -> -kink.sign() / size",
            "torch.where(middle, k / (1 + k), 0.5 - 4 * ((1 - k) / (3 ... -> torch.where(middle, 0.5 - 4 * ((1 - k) / (3 - k)) ** 2, k...",
            "torch.where(middle, k / (1 + k), 0.5 - 4 * ((1 - k) / (3 ... -> 0.5 - 4 * ((1 - k) / (3 - k)) ** 2",
            "1 + k -> 1 - k",
            "1 + k -> k",
            "1 -> 0",
            "0.5 - 4 * ((1 - k) / (3 - k)) ** 2 -> 0.5",
            "0.5 -> 1.0",
            "0.5 -> 0.0",
            "4 -> 3",
            "4 -> 5",
            "4 -> 8",
            "4 -> 1",
            "(1 - k) / (3 - k) -> (1 - k) * (3 - k)",
            "1 - k -> 1",
            "1 -> 2 #2",
            "3 - k -> 3 + k",
            "3 - k -> k",
            "3 -> 2",
            "3 -> 1",
            "2 -> 1",
        ),
        EQUI,
    ),
    Argued(
        "enclosures/relu.py",
        "highest = torch.maximum(*(_highest(sign * c / 2 + curvature, sign * g / 2 - tilt, curvature) for sign in (1, -1)))",
        (
            "sign * c / 2 + curvature -> curvature",
            "sign * c -> sign / c",
            "2 -> 1",
            "sign * g / 2 - tilt -> sign * g / 2",
            "sign * g / 2 -> sign * g * 2",
            "1 -> 2",
            "-1 -> 1",
            "1 -> 0 #2",
        ),
        CHEB,
    ),
    Argued(
        "enclosures/relu.py",
        "lowest = -tilt * kink - curvature * (2 * kink * kink - 1)",
        (
            "-tilt * kink - curvature * (2 * kink * kink - 1) -> -tilt * kink",
            "-tilt * kink -> -tilt / kink",
            "curvature * (2 * kink * kink - 1) -> curvature / (2 * kink * kink - 1)",
            "2 * kink * kink - 1 -> 2 * kink * kink",
            "2 * kink * kink -> 2 * kink / kink",
            "2 -> 3",
            "1 -> 2",
        ),
        CHEB,
    ),
    Argued(
        "enclosures/relu.py",
        "for end in (1, -1):",
        ("1 -> 2", "-1 -> 1", "1 -> 0 #2"),
        CHEB,
    ),
    Argued(
        "enclosures/relu.py",
        "lowest = torch.minimum(lowest, (c + end * g).abs() / 2 - end * tilt - curvature)",
        (
            "(c + end * g).abs() / 2 - end * tilt - curvature -> (c + end * g).abs() / 2 - end * tilt",
            "(c + end * g).abs() / 2 - end * tilt -> (c + end * g).abs() / 2 + end * tilt",
            "(c + end * g).abs() / 2 - end * tilt -> end * tilt",
            "(c + end * g).abs() -> c + end * g",
            "c + end * g -> c",
            "end * g -> end / g",
            "2 -> 1",
        ),
        CHEB,
    ),
    Argued(
        "enclosures/relu.py",
        "slack = (c.abs() + g.abs() + t) * (ROUNDINGS * form.unit) + ROUNDINGS * SMALLEST[c.dtype]",
        (
            "c.abs() + g.abs() + t -> c.abs() + g.abs() - t",
            "c.abs() + g.abs() + t -> t",
            "c.abs() + g.abs() -> c.abs()",
            "c.abs() -> c",
            "ROUNDINGS * SMALLEST[c.dtype] -> ROUNDINGS / SMALLEST[c.dtype]",
        ),
        (
            "256 units are allowed for, relative to three sizes of which c is below g; fewer than 30 roundings happen, "
            "and parabolas touch at points that are no floats."
        ),
    ),
    Argued(
        "enclosures/relu.py",
        "return (highest + lowest) / 2, tilt, curvature, (highest - lowest) / 2",
        ("highest - lowest -> highest + lowest", "highest - lowest -> lowest", "2 -> 1 #2"),
        WIDERFIT,
    ),
    Argued(
        "enclosures/relu.py",
        "where = (source.kinks if rows is None else source.kinks[rows]).nonzero(as_tuple=True)",
        ("rows -> rows - 1",),
        ("Decides only where the quadratic relaxation is tried: any entries will do."),
    ),
    Argued(
        "enclosures/relu.py",
        "return form.center.abs() < form.slopes[0].abs()",
        ("form.center -> form.radius", "0 -> 1"),
        (
            "Where parabolas are tried, nothing else: for an entry without a kink the formulas hold as well, or give "
            "no number."
        ),
    ),
    Argued(
        "enclosures/relu.py",
        "a, smallest = a.abs(), SMALLEST[a.dtype]",
        ("a.abs() -> a",),
        PEAK,
    ),
    Argued(
        "enclosures/relu.py",
        "return p + torch.where(a < 4 * curvature, a / 8 * (a / curvature.clamp(min=smallest)), a - 2 * curvature)",
        (
            "4 -> 8",
            "a / 8 -> a * 8",
            "8 -> 7",
            "8 -> 4",
            "curvature.clamp(min=smallest) -> curvature.clamp(max=smallest)",
            "a - 2 * curvature -> a + 2 * curvature",
            "a - 2 * curvature -> 2 * curvature",
            "2 -> 3",
        ),
        PEAK,
    ),
    Argued(
        "enclosures/relu.py",
        "better = radius < result.radius[found.where]  # false for a NaN",
        ("result.radius -> result.center",),
        CHOICE,
    ),
    Argued(
        "enclosures/relu.py",
        "above, below = (form.center + reach).clamp_(min=0), (reach - form.center).clamp_(min=0)",
        ("0 -> 1", "0 -> 1 #2"),
        LARGER,
    ),
    Argued(
        "enclosures/relu.py",
        "return above, below, above / (above + below + SMALLEST[above.dtype])",
        ("above -> below #2", "above + below -> above", "below -> above #2"),
        SLOPE,
    ),
    Argued(
        "enclosures/relu.py",
        "return above, below, above / (above + below + SMALLEST[above.dtype])",
        (
            "above + below + SMALLEST[above.dtype] -> above + below - SMALLEST[above.dtype]",
            "above + below + SMALLEST[above.dtype] -> above + below",
        ),
        (
            "SMALLEST keeps 0 / 0 away where both are zero, and then nothing is proved (NaN). Elsewhere the sum is at "
            "least 20 SMALLEST, twice what `reach` is widened by, so that the slope is still one from 0 to 1 but for a "
            "rounding."
        ),
    ),
    Argued(
        "enclosures/relu.py",
        "return torch.maximum(slope * below, (1 - slope) * above)",
        ("slope * below -> slope / below", "below -> above", "1 - slope -> 1 + slope", "1 - slope -> 1", "1 -> 2"),
        EQUAL_TERMS,
    ),
    Argued(
        "enclosures/relu.py",
        "slope = torch.where(2 * form.radius > above, 0.0, slope)",
        (
            "torch.where(2 * form.radius > above, 0.0, slope) -> torch.where(2 * form.radius > above, slope, 0.0)",
            "torch.where(2 * form.radius > above, 0.0, slope) -> slope",
            "2 * form.radius > above -> 2 * form.radius < above",
            "2 * form.radius -> 2 / form.radius",
            "2 -> 3",
            "2 -> 1",
            "form.radius -> form.center",
            "above -> below",
            "0.0 -> 1.0",
            "0.0 -> 9.5367431640625e-07",
        ),
        SLOPE,
    ),
    Argued(
        "enclosures/relu.py",
        "gap = relu_gap(slope, above, below)",
        ("below -> above",),
        EQUAL_TERMS,
    ),
    Argued(
        "enclosures/relu.py",
        "size = torch.add(above, gap, alpha=2) if form.unit else None",
        ("alpha=2 dropped", "2 -> 1"),
        SCALESIZE,
    ),
    Argued(
        "enclosures/relu.py",
        "size = size * (1 - negative_slope) + (above + below) * abs(negative_slope)",
        (
            "size * (1 - negative_slope) -> size / (1 - negative_slope)",
            "1 - negative_slope -> 1 + negative_slope",
            "1 - negative_slope -> 1",
            "(above + below) * abs(negative_slope) -> (above + below) / abs(negative_slope)",
            "above + below -> below",
            "above -> below",
        ),
        SCALESIZE,
    ),
    Argued(
        "enclosures/relu.py",
        "slope, gap = negative_slope + (1 - negative_slope) * slope, gap * (1 - negative_slope)",
        ("1 -> 2 #2",),
        OFFSET,
    ),
    Argued(
        "enclosures/relu.py",
        "half = gap / 2",
        ("gap / 2 -> gap * 2", "2 -> 1"),
        OFFSET,
    ),
    Argued(
        "enclosures/relu.py",
        "radius = radius.add_(size, alpha=(16 if negative_slope else 8) * form.unit).add_(16 * SMALLEST[radius.dtype])",
        ("16 -> 15", "16 -> 8", "16 -> 15 #2", "16 -> 8 #2", "16 -> 1"),
        UNDER,
    ),
    Argued(
        "enclosures/relu.py",
        "width = torch.add(width.new_full((), 2 * smallest), width, alpha=2 * (1 + (2 * symbols + 4) * unit))",
        ("2 * smallest -> 2 / smallest",),
        UNDER,
    ),
    Argued(
        "enclosures/relu.py",
        "width = torch.add(width.new_full((), 2 * smallest), width, alpha=2 * (1 + (2 * symbols + 4) * unit))",
        (
            "2 -> 3",
            "2 -> 1",
            "2 -> 3 #2",
            "1 -> 2",
            "2 * symbols + 4 -> 2 * symbols",
            "2 * symbols + 4 -> 4",
            "2 -> 3 #3",
            "2 -> 1 #3",
            "4 -> 3",
            "4 -> 2",
        ),
        ROUNDS,
    ),
    Argued(
        "enclosures/relu.py",
        "width = torch.add(width.new_full((), 2 * smallest), width, alpha=2 * (1 + (2 * symbols + 4) * unit))",
        ("(2 * symbols + 4) * unit -> (2 * symbols + 4) / unit", "4 -> 5", "4 -> 8"),
        MORE,
    ),
    Argued(
        "enclosures/relu.py",
        "slope = (above / width).clamp_(max=1)",
        ("1 -> 0",),
        SLOPE,
    ),
    Argued(
        "enclosures/relu.py",
        "slope = torch.ops.aten.threshold_backward(slope, torch.add(above, form.radius, alpha=-2), 0)  # 0 where 2 r >= h",
        (
            "torch.add -> torch.sub",
            "form.radius -> form.center",
            "alpha=-2 dropped",
            "-2 -> 2",
            "2 -> 3",
            "2 -> 1",
            "0 -> 1",
            "0 -> -1",
        ),
        SLOPE,
    ),
    Argued(
        "enclosures/relu.py",
        "half = torch.addcmul(above, slope, above, value=-1).mul_(0.5)",
        (
            "torch.addcmul(above, slope, above, value=-1).mul_ -> torch.addcmul(above, slope, above, value=-1).div_",
            "value=-1 dropped",
            "-1 -> 1",
            "1 -> 0",
            "0.5 -> 1.0",
        ),
        OFFSET,
    ),
    Argued(
        "enclosures/relu.py",
        "size = torch.add(above, half, alpha=4)  # above + 2 t, as in `zonotope_relu`",
        ("alpha=4 dropped", "4 -> 3", "4 -> 2"),
        ROUNDS,
    ),
    Argued(
        "enclosures/relu.py",
        "radius = radius.add_(size, alpha=7 * unit).add_(16 * smallest)",
        ("alpha=7 * unit dropped", "7 * unit -> 7 / unit", "7 -> 14"),
        MORE,
    ),
    Argued(
        "enclosures/relu.py",
        "radius = radius.add_(size, alpha=7 * unit).add_(16 * smallest)",
        ("7 -> 6", "7 -> 3", "7 -> 1"),
        ROUNDS,
    ),
    Argued(
        "enclosures/relu.py",
        "radius = radius.add_(size, alpha=7 * unit).add_(16 * smallest)",
        ("16 * smallest -> 16 / smallest", "16 -> 17", "16 -> 15", "16 -> 32", "16 -> 8", "16 -> 1"),
        UNDER,
    ),
    Argued(
        "network/backward.py",
        "shifts * (backward_gamma(0, 1, unit) * (1 + 2.0**-10)),",
        (
            "backward_gamma(0, 1, unit) * (1 + 2.0 ** (-10)) -> backward_gamma(0, 1, unit) / (1 + 2.0 ** (-10))",
            "1 -> 0",
            "1 + 2.0 ** (-10) -> 1",
        ),
        WIDE,
    ),
    Argued(
        "network/backward.py",
        "theirs = gamma(weight.shape[1] + 8, network.evaluation)",
        ("8 -> 7", "8 -> 4"),
        WINDOW,
    ),
    Argued(
        "network/backward.py",
        "size = dot(weight[own].abs() + weight[other].abs(), reachable) * (1 + 2.0**-10)",
        (
            "dot(weight[own].abs() + weight[other].abs(), reachable) *... -> dot(weight[own].abs() + weight[other].abs(), reachable) /...",
            "1 + 2.0 ** (-10) -> 1 - 2.0 ** (-10)",
            "2.0 -> 4.0",
            "10 -> 11",
            "10 -> 20",
        ),
        (
            "The factor pays for the rounding of a sum of terms >= 0, which counting 8 more products than there are covers too."
        ),
    ),
    Argued(
        "network/backward.py",
        "return a, torch.stack([row_norm(a.detach()), first - second, first.abs() + second.abs()], 1)",
        ("first.abs() + second.abs() -> first.abs()", "first -> second #2", "second -> first #2"),
        WIDE,
    ),
    Argued(
        "network/graph.py",
        "ROUNDINGS = 8",
        ("8 -> 9", "8 -> 16"),
        COUNTS,
    ),
    Argued(
        "network/graph.py",
        "OF_SCALES = 6",
        ("6 -> 7", "6 -> 12"),
        COUNTS,
    ),
    Argued(
        "network/graph.py",
        'before = result.get(operation.inputs[0]) if operation.kind == "scale" and len(operation.inputs) == 1 else None',
        ("len(operation.inputs) == 1 -> len(operation.inputs) != 1", "1 -> 0"),
        NOFOLD,
    ),
    Argued(
        "network/graph.py",
        "if before is not None and readers[before.name] == 1:",
        ("1 -> 2",),
        NOFOLD,
    ),
    Argued(
        "network/graph.py",
        "return all(x is None or x.ndim < 3 or tuple(x.shape[-2:]) == (1, 1) for x in constants) and all(",
        ("x.ndim < 3 -> x.ndim > 3", "-2 -> 2", "2 -> 1", "1 -> 0", "1 -> 0 #2"),
        NOFOLD,
    ),
    Argued(
        "network/graph.py",
        "x is None or x.ndim >= 3 or x.numel() == 1 for x in constants",
        ("1 -> 2",),
        NOFOLD,
    ),
    Argued(
        "network/graph.py",
        "size = shift.abs() if before is None else by_channel(before) * factor.abs()",
        ("shift.abs() -> shift",),
        COUNTS,
    ),
    Argued(
        "network/graph.py",
        'settings["roundings"] = settings.get("roundings", 0) + ROUNDINGS',
        ("settings.get('roundings', 0) + ROUNDINGS -> ROUNDINGS", "0 -> -1"),
        COUNTS,
    ),
    Argued(
        "network/graph.py",
        'settings["roundings"] = OF_SCALES + sum(each.settings.get("roundings", 0) for each in (first, second))',
        (
            "OF_SCALES + sum((each.settings.get('roundings', 0) for ea... -> OF_SCALES - sum((each.settings.get('roundings', 0) for ea...",
            "OF_SCALES + sum((each.settings.get('roundings', 0) for ea... -> sum((each.settings.get('roundings', 0) for each in (first...",
            "0 -> -1",
        ),
        COUNTS,
    ),
    Argued(
        "network/forward.py",
        "NEGLIGIBLE = {1: 1e-3, 2: 0.03}",
        ("1 -> 0", "2 -> 1", "0.001 -> 0.0005", "0.001 -> 0.0", "0.03 -> 0.0"),
        DROPPED,
    ),
    Argued(
        "network/forward.py",
        "bounds = evaluated(bounds, 2, network.evaluation)",
        ("2 -> 1",),
        ("Two roundings are allowed for where a pixel is rounded once."),
    ),
    Argued(
        "network/forward.py",
        "bounds = AffineForm(bounds.stack, bounds.radius + SMALLEST[bounds.radius.dtype], bounds.unit, bounds.quadratic)",
        ("bounds.radius + SMALLEST[bounds.radius.dtype] -> bounds.radius",),
        UNDER,
    ),
    Argued(
        "network/forward.py",
        "if kept > lasting and REGISTRY[operation.kind].activation:",
        (
            "kept > lasting and REGISTRY[operation.kind].activation -> kept > lasting or REGISTRY[operation.kind].activation",
            "kept > lasting -> kept < lasting",
        ),
        DROPPED,
    ),
    Argued(
        "network/forward.py",
        "*sizes, radius = torch.stack([*torch.linalg.vector_norm(slopes, 1, dims), form.radius.sum()]).tolist()",
        ("1 -> 2", "form.radius -> form.center"),
        DROPPED,
    ),
    Argued(
        "network/forward.py",
        "while kept > lasting and sizes[kept - lasting - 1] < NEGLIGIBLE.get(kept - 1, 0.0) * radius:",
        (
            "1 -> 2",
            "NEGLIGIBLE.get(kept - 1, 0.0) * radius -> NEGLIGIBLE.get(kept - 1, 0.0) / radius",
            "kept - 1 -> kept",
            "1 -> 2 #2",
        ),
        DROPPED,
    ),
    Argued(
        "network/forward.py",
        "kept -= 1",
        ("1 -> 2",),
        DROPPED,
    ),
    Argued(
        "network/forward.py",
        "if form.symbols <= kept:",
        ("form.symbols <= kept -> form.symbols < kept",),
        ("Goes through the same sum with no symbol to drop: only roundings are added."),
    ),
    Argued(
        "network/forward.py",
        "radius = widen(form.radius + extra, 0.0, form.symbols + 2, form.unit)",
        ("0.0 -> 1.0",),
        MORE,
    ),
    Argued(
        "network/forward.py",
        "radius = widen(form.radius + extra, 0.0, form.symbols + 2, form.unit)",
        ("form.symbols + 2 -> form.symbols - 2", "form.symbols + 2 -> 2"),
        ("`widen` allows for 8 roundings besides, of a sum of at most 4 terms."),
    ),
    Argued(
        "network/forward.py",
        "return AffineForm(form.stack[: 1 + kept], radius, form.unit, form.quadratic and kept > 1)",
        ("1 -> 2",),
        (
            "Whether a form may be quadratic decides on parabolas alone: without them, or with one symbol, lines are sound."
        ),
    ),
    Argued(
        "network/forward.py",
        "radius = radius + lost * farthest(form).sum(1, keepdim=True)",
        ("radius + lost * farthest(form).sum(1, keepdim=True) -> radius - lost * farthest(form).sum(1, keepdim=True)",),
        UNDER,
    ),
    Argued(
        "network/forward.py",
        "error = size * (gamma(weight.shape[1] + 8, network.evaluation) * (1 + 2.0**-10))",
        ("weight.shape[1] + 8 -> 8", "1 -> 0", "8 -> 7", "8 -> 4", "1 + 2.0 ** (-10) -> 1"),
        WINDOW,
    ),
    Argued(
        "network/forward.py",
        '"roundings": 2,  # of each difference of weights; the shift\'s slack covers the bias',
        ("2 -> 1",),
        PAIR,
    ),
    Argued(
        "network/forward.py",
        'return Operation(last.name, "linear", last.inputs, settings, last.shape, vanishing=last.vanishing, kept=kept)',
        ("vanishing=last.vanishing dropped",),
        UNDER,
    ),
    Argued(
        "network/forward.py",
        "radius = widen(radius, stack.abs().sum(0), 2, form.unit)",
        ("2 -> 1",),
        PAIR,
    ),
    Argued(
        "network/backward.py",
        "self.steps = 2  # that may underflow; 2 for the products of concretizing",
        ("2 -> 1",),
        FLOOR,
    ),
    Argued(
        "network/backward.py",
        "if self.enough is not None and len(self.coefficients) == 1 and operation.name in expensive[1:]:",
        ("1 -> 2 #2",),
        ("Decides only where an early-exit test happens: every form encloses its operation."),
    ),
    Argued(
        "network/backward.py",
        "allowance = form_lengths(self.forms[name]) * backward_gamma(3, row_size(a), self.unit)",
        ("3 -> 1",),
        JOIN,
    ),
    Argued(
        "network/backward.py",
        "self.error = self.error + dot(self.lengths(a), allowance + FLOOR[a.dtype])",
        (
            "self.error + dot(self.lengths(a), allowance + FLOOR[a.dty... -> self.error",
            "allowance + FLOOR[a.dtype] -> allowance",
        ),
        JOIN,
    ),
    Argued(
        "network/backward.py",
        "bound, error = bound + least(first, second), error + (first.abs() + second.abs()) * 2.0**-48",
        (
            "error + (first.abs() + second.abs()) * 2.0 ** (-48) -> error - (first.abs() + second.abs()) * 2.0 ** (-48)",
            "first.abs() + second.abs() -> second.abs()",
            "second.abs() -> second",
            "2.0 -> 4.0",
            "48 -> 96",
        ),
        PARABOLA,
    ),
    Argued(
        "network/backward.py",
        "bound = bound - error.add_(bound.abs(), alpha=2.0**-50)",
        ("50 -> 51",),
        ("8 units of float64 are allowed for where a subtraction rounds once."),
    ),
    Argued(
        "network/backward.py",
        "if len(self.sums) > 1:",
        ("1 -> 2",),
        UNDER,
    ),
    Argued(
        "network/backward.py",
        "rows = (~(bound > enough)).nonzero().flatten()",
        ("~(bound > enough) -> bound > enough",),
        ("Decides which rows become inactive: each keeps the best bound proved for it."),
    ),
    Argued(
        "network/ops/activations.py",
        "offset = relu_gap(chord, above, below) * (1 - negative)",
        ("above -> below",),
        EQUAL_TERMS,
    ),
    Argued(
        "network/ops/activations.py",
        "lower = (above > below).to(chord.dtype)",
        ("above > below -> above < below", "below -> above"),
        SLOPE,
    ),
    Argued(
        "network/ops/activations.py",
        "result = BackwardResult([a * torch.where(a > 0, lower, chord)], constant=dot(a.clamp(max=0), offset))",
        ("0 -> 1",),
        (
            "Coefficients up to 1 take the chord's slope instead, without its offset: relu(x) >= s x holds for any "
            "slope from 0 to 1."
        ),
    ),
    Argued(
        "network/ops/activations.py",
        "result.rounding_budget = form_lengths(form) * ((max(1.0, abs(negative)) + 1 - negative) * allowance)",
        (
            "max(1.0, abs(negative)) + 1 - negative -> max(1.0, abs(negative)) + 1 + negative",
            "max(1.0, abs(negative)) + 1 -> max(1.0, abs(negative))",
            "1.0 -> 0.0",
        ),
        (
            "8 roundings are allowed for, of which 5 happen: half of the size is not seen, since the ends of [l, h] "
            "are rounded outward by as much again."
        ),
    ),
    Argued(
        "network/ops/activations.py",
        "result.rounding_budget.add_(UNDERFLOW * ones_length(a) * allowance)",
        ("result.rounding_budget.add_(UNDERFLOW * ones_length(a) * ... dropped",),
        FLOOR,
    ),
    Argued(
        "network/ops/activations.py",
        "under = torch.minimum(above, below) ** 2 / (above + below) / 2",
        (
            "torch.minimum(above, below) ** 2 / (above + below) -> torch.minimum(above, below) ** 2 * (above + below)",
            "torch.minimum -> torch.maximum",
            "below -> above",
            "2 -> 1",
            "above + below -> above",
            "above -> below #2",
            "2 -> 3 #2",
        ),
        CHOICE,
    ),
    Argued(
        "network/ops/activations.py",
        "better = found.rest < torch.where(weight > 0, under, offset / 2)  # false for a NaN",
        (
            "torch.where(weight > 0, under, offset / 2) -> torch.where(weight > 0, offset / 2, under)",
            "torch.where(weight > 0, under, offset / 2) -> offset / 2",
            "weight > 0 -> weight < 0",
            "0 -> -1",
            "2 -> 3",
        ),
        CHOICE,
    ),
    Argued(
        "network/ops/activations.py",
        "allowance = None if result.rounding_budget is None else result.rounding_budget * 8",
        ("result.rounding_budget is None -> result.rounding_budget is not None", "8 -> 1"),
        (
            "Parabolas leave less than lines by much more than a rounding where they are taken, and where they are not "
            "the lines' ends are rounded outward by a few units, beside which 8 roundings are not seen."
        ),
    ),
    Argued(
        "network/ops/activations.py",
        "slope = (slope - 2.0**-40).clamp(min=0).to(form.radius.dtype).double() * (1 - 2.0**-20)",
        (
            "(slope - 2.0 ** (-40)).clamp(min=0) -> (slope - 2.0 ** (-40)).clamp(max=0)",
            "slope - 2.0 ** (-40) -> slope",
            "2.0 -> 1.0",
            "-40 -> 40",
            "40 -> 39",
            "40 -> 20",
            "1 - 2.0 ** (-20) -> 1",
            "2.0 -> 1.0 #2",
            "-20 -> 20",
            "20 -> 19",
            "20 -> 10",
        ),
        SMALLER_SLOPE,
    ),
    Argued(
        "network/ops/activations.py",
        "slack = 2.0**-40 * (1 + lower.abs() + upper.abs()) if form.unit else 0.0",
        (
            "2.0 ** (-40) * (1 + lower.abs() + upper.abs()) -> 2.0 ** (-40) / (1 + lower.abs() + upper.abs())",
            "2.0 -> 4.0",
            "40 -> 41",
            "40 -> 80",
            "1 + lower.abs() + upper.abs() -> upper.abs()",
            "1 + lower.abs() -> 1",
            "1 -> 2",
            "upper.abs() -> upper",
        ),
        LIB,
    ),
    Argued(
        "network/ops/activations.py",
        "magnitude = size * (form.center.abs() + form.reach()) + middle.abs() + half",
        (
            "size * (form.center.abs() + form.reach()) + middle.abs() ... -> size * (form.center.abs() + form.reach()) + middle.abs() ...",
            "size * (form.center.abs() + form.reach()) -> size / (form.center.abs() + form.reach())",
            "form.center.abs() + form.reach() -> form.center.abs()",
        ),
        (
            "8 roundings are allowed for, relative to a sum of which each part is at least a fourth where it matters; "
            "4 happen, in random directions."
        ),
    ),
    Argued(
        "network/ops/activations.py",
        "radius = widen(form.radius * size + half, magnitude, 8, form.unit) + self.evaluation_error(operation, form)",
        ("8 -> 7", "8 -> 4"),
        ROUNDS,
    ),
    Argued(
        "network/ops/activations.py",
        "size = lengths(gain * farthest(form) + torch.maximum(low.abs(), high.abs()).to(a.dtype))",
        (
            "gain * farthest(form) + torch.maximum(low.abs(), high.abs... -> gain * farthest(form) - torch.maximum(low.abs(), high.abs...",
            "gain * farthest(form) + torch.maximum(low.abs(), high.abs... -> torch.maximum(low.abs(), high.abs()).to(a.dtype)",
            "torch.maximum -> torch.minimum",
            "low -> high",
            "high -> low",
        ),
        (
            "9 roundings are allowed for where 2 happen, beside a slack of 2^-40; neither part of the size is ever the "
            "smaller one by far."
        ),
    ),
    Argued(
        "network/ops/activations.py",
        "return 1 - value * value",
        ("1 -> 0",),
        SMALLER_SLOPE,
    ),
    Argued(
        "network/ops/base.py",
        "vanishing = 2.0**-62 if x.dtype == torch.float32 else 2.0**-510",
        ("2.0 -> 4.0",),
        UNDER,
    ),
    Argued(
        "network/ops/base.py",
        "return length.mul_(1 + 2 * gamma(count + 8, UNIT[x.dtype])).add_(count * vanishing)",
        ("count + 8 -> 8",),
        WINDOW,
    ),
    Argued(
        "network/ops/base.py",
        "return gamma(count, unit) + gamma(entries + 1024, 2.0**-53) if unit else 0.0",
        ("gamma(count, unit) + gamma(entries + 1024, 2.0 ** (-53)) -> gamma(count, unit)", "1024 -> 512", "53 -> 106"),
        SUMS,
    ),
    Argued(
        "network/ops/base.py",
        "FLOOR = {torch.float32: 2.0**-50, torch.float64: 2.0**-400}",
        ("-50 -> 50",),
        NOTHING,
    ),
    Argued(
        "network/ops/base.py",
        "MORE = 1 + 2.0**-16",
        ("16 -> 17",),
        SUMS,
    ),
    Argued(
        "network/ops/base.py",
        "return math.sqrt(a.shape[1]) * (1 + 2.0**-20) if a.ndim > 2 else 1.0",
        ("20 -> 21",),
        SUMS,
    ),
    Argued(
        "network/ops/base.py",
        "OVERFLOW = 2.0**120",
        ("2.0 -> 0.0",),
        NOTHING,
    ),
    Argued(
        "network/ops/base.py",
        "own, theirs = gamma(count + 4, form.unit), gamma(count + 8, operation.evaluation)",
        ("count + 4 -> 4",),
        WINDOW,
    ),
    Argued(
        "network/ops/base.py",
        "radius = torch.add(radius, farthest(form) + UNDERFLOW, alpha=theirs)",
        ("farthest(form) + UNDERFLOW -> farthest(form)",),
        UNDER,
    ),
    Argued(
        "network/ops/base.py",
        "theirs = gamma(terms[0] + 8, operation.evaluation)",
        ("8 -> 7",),
        WINDOW,
    ),
    Argued(
        "network/ops/base.py",
        "count = backward_gamma(terms[1] + 8, row_size(a), form.unit) + theirs",
        ("terms[1] + 8 -> 8",),
        WINDOW,
    ),
    Argued(
        "network/ops/base.py",
        "count *= 1 + 2 * gamma(sum(terms) + 32, form.unit)",
        (
            "count *= 1 + 2 * gamma(sum(terms) + 32, form.unit) -> count /= 1 + 2 * gamma(sum(terms) + 32, form.unit)",
            "2 -> 1",
        ),
        SUMS,
    ),
    Argued(
        "network/ops/linear.py",
        "return inputs + more, outputs + more",
        ("inputs + more -> inputs - more",),
        WINDOW,
    ),
    Argued(
        "network/ops/linear.py",
        "count = backward_gamma(terms[1] + 8, row_size(a), form.unit)",
        ("terms[1] + 8 -> 8", "8 -> 7", "8 -> 4"),
        WINDOW,
    ),
    Argued(
        "network/ops/linear.py",
        '[row_norm(weight) * count, (least + UNDERFLOW) * count + FLOOR[operation.settings["weight"].dtype]], 1',
        (
            "(least + UNDERFLOW) * count + FLOOR[operation.settings['w... -> (least + UNDERFLOW) * count",
            "least + UNDERFLOW -> least",
        ),
        FLOOR,
    ),
    Argued(
        "network/ops/linear.py",
        'inputs = operation.settings["weight"].shape[-1] + operation.settings["roundings"]',
        (
            "operation.settings['weight'].shape[-1] + operation.settin... -> operation.settings['weight'].shape[-1]",
            "1 -> 0",
        ),
        DIFF,
    ),
    Argued(
        "network/ops/linear.py",
        "return (norm(parts, (1, 2)).amax(0) * (1 + 2.0**-20)).to(weight.dtype)[None, None]",
        (
            "norm(parts, (1, 2)).amax(0) * (1 + 2.0 ** (-20)) -> norm(parts, (1, 2)).amax(0) / (1 + 2.0 ** (-20))",
            "1 + 2.0 ** (-20) -> 1 - 2.0 ** (-20)",
            "2.0 -> 4.0",
            "20 -> 21",
            "20 -> 40",
        ),
        (
            "The factor pays for the rounding of a length to float32, 2^-24; the length is met with a Euclidean norm, "
            "which is larger than the sum it stands for by far more, unless all entries are in proportion."
        ),
    ),
    Argued(
        "network/ops/linear.py",
        "height_met, width_met = -(-height // window.stride[0]), -(-width // window.stride[1])",
        ("height -> width", "1 -> 0"),
        WINDOW,
    ),
    Argued(
        "network/ops/linear.py",
        "return inputs * height * width + more, outputs // window.groups * height_met * width_met + more",
        (
            "inputs * height * width + more -> inputs * height * width",
            "height -> width",
            "outputs // window.groups * height_met * width_met + more -> outputs // window.groups * height_met * width_met - more",
            "outputs // window.groups * height_met * width_met + more -> more",
            "outputs // window.groups * height_met -> outputs // window.groups / height_met",
        ),
        WINDOW,
    ),
    Argued(
        "network/ops/arithmetic.py",
        'more = 8 + operation.settings.get("roundings", 0)  # of folded constants',
        ("8 + operation.settings.get('roundings', 0) -> 8",),
        WINDOW,
    ),
    Argued(
        "network/ops/pooling.py",
        "return math.prod(shape[-2:]) + 4, math.prod(operation.shape[-2:]) + 4",
        (
            "math.prod(shape[-2:]) + 4 -> math.prod(shape[-2:])",
            "4 -> 3",
            "4 -> 2",
            "math.prod(operation.shape[-2:]) + 4 -> math.prod(operation.shape[-2:])",
            "-2 -> 2 #2",
            "2 -> 1 #2",
            "4 -> 3 #2",
            "4 -> 2 #2",
        ),
        WINDOW,
    ),
    Argued(
        "network/ops/pooling.py",
        "length = math.prod(shape[1:]) + 4",
        ("math.prod(shape[1:]) + 4 -> math.prod(shape[1:])",),
        WINDOW,
    ),
    Argued(
        "network/ops/pooling.py",
        "size = others.abs().sum(0) + best.abs().sum(0).unsqueeze(2) + excess.abs()",
        (
            "others.abs().sum(0) + best.abs().sum(0).unsqueeze(2) + ex... -> others.abs().sum(0) + best.abs().sum(0).unsqueeze(2)",
            "others.abs().sum(0) + best.abs().sum(0).unsqueeze(2) -> others.abs().sum(0) - best.abs().sum(0).unsqueeze(2)",
            "others.abs().sum(0) + best.abs().sum(0).unsqueeze(2) -> best.abs().sum(0).unsqueeze(2)",
            "best.abs() -> best",
        ),
        POOL,
    ),
    Argued(
        "network/ops/pooling.py",
        "excess = excess + size * gamma(2 * len(form.stack) + 16, form.unit)",
        ("2 * len(form.stack) + 16 -> 16", "2 -> 3", "16 -> 17", "16 -> 32"),
        POOL,
    ),
    Argued(
        "network/ops/pooling.py",
        "radius = torch.where(excess > 0, widen(radius, stack[0].abs() + excess, 4, form.unit), radius)",
        ("stack[0].abs() + excess -> stack[0].abs()", "0 -> -1 #2", "4 -> 3", "4 -> 2"),
        ROUNDS,
    ),
    Argued(
        "network/ops/pooling.py",
        'entries = operation.settings["kernel_size"][0] * operation.settings["kernel_size"][1]',
        ("0 -> 1",),
        POOLBACK,
    ),
    Argued(
        "network/ops/pooling.py",
        "size = lengths(farthest(form).flatten(2).gather(2, index) + excess).view(len(form), *operation.shape[1:])",
        (
            "farthest(form).flatten(2).gather(2, index) + excess -> farthest(form).flatten(2).gather(2, index) - excess",
            "farthest(form).flatten(2).gather(2, index) + excess -> excess",
        ),
        POOLBACK,
    ),
    Argued(
        "network/ops/pooling.py",
        "result.rounding_budget = size * backward_gamma(entries + 9, a[0].numel(), form.unit)",
        ("entries + 9 -> 9", "9 -> 8", "9 -> 4"),
        POOLBACK,
    ),
    Argued(
        "network/ops/arithmetic.py",
        "return evaluated(first + second if self.sign > 0 else first - second, 2, operation.evaluation)",
        ("2 -> 1",),
        ("Allows for two roundings where an evaluation makes one, on top of the form's own."),
    ),
]
