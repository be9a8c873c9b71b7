"""Justified survivors among a sample of the mutants of products, attention, normalizations, quantization, smooth functions and pixels.

Format as in `mechanical_survivors.py`. Rows cover the samples that `make soundness` takes; the other mutants have not been judged.
"""

from __future__ import annotations

from tests.soundness.mechanical_survivors import Argued

CHOICE = (
    "Decides which slope, plane or enclosure is used, or a number that any value is sound for: each choice is sound, "
    "neither contains the other, and what remains is worked out for the one in use."
)
EQUAL = (
    "At the slope in use, both numbers are the same but for roundings, which the slack next to them covers: so either "
    "of them alone, or in the other's place, is right."
)
ROUNDS = (
    "Allows for fewer roundings than the comment next to it counts, or takes them relative to less, but for more than "
    "any known input causes: roundings of one entry hardly ever go in the same direction. No sampling can see it."
)
PRECISE = (
    "An allowance, or a part of one, for float64 roundings: 2^-46 or 2^-30 of sizes, where functions and sums are off by "
    "a few 2^-53 of them. What is left is far more than any rounding; no sampling can see the rest."
)
SHARE = (
    "The assumption about a library's softmax is made of the largest argument, the number of terms and 512 units, of which "
    "the worst evaluation that is known takes a fourth: the fuzz cannot see a part of it go."
)
MORE = "Allows for more than before; later steps choose other slopes for the wider forms, so these are not subsets, but sound."
LOOSER = (
    "The line, range or interval is further away than before, which is sound; what follows chooses other slopes for it."
)
NOTHING = "More entries are given up: their bounds become infinite and prove nothing; other bounds then differ."
NANS = "Bounds become NaN, of which no comparison is true: they prove nothing."
CHUNKS = "How many entries are worked out at a time: sums are added in another order, and round differently."
TANGENTS = (
    "A wrong derivative, or a piece in which the curvature changes sign: the hull holds the point of the tangent in either end "
    "of a piece, and what moves one of them towards the graph moves the other away from it. The bounds move by the piece's "
    "square or cube; no sampled point leaves them."
)
OFFSETS = (
    "An offset without an allowance for its few roundings; the budget of the step, nine units of slopes times arguments and of "
    "offsets, covers them too."
)
CUTS = "Where an interval is cut into pieces, which any points of it are right for."
MEET = (
    "Each corner lies on a tangent at an end of its piece, at one place for both: hulls of such corners hold the graph wherever that place "
    "is, and where the tangents meet they are smallest."
)
GIVEN_UP = "A slope of entries that are given up: their bounds are infinite, whatever it is."
TOGETHER = (
    "Whether bounds are worked out once for each box or once for each row: entries that are bounded together decide whether one piece "
    "serves, and either is sound."
)
UNDER = (
    "Covers underflow. SMALLEST is 2^26 (float64: 2^122) times the largest underflow, so that no sum of a few dozen of "
    "them comes close."
)

INTEGERS = (
    "Whole numbers times 2^-128 round by a few units, which no float of a position can show: what they may be off is given ten "
    "thousand times as much room by the 2^-84 that every position is charged."
)

ARGUED: list[Argued] = [
    Argued(
        "enclosures/centered.py",
        "coarse = [(number + step // 2) // step for number in self.exact]",
        ("step // 2 -> step * 2",),
        CHOICE,
    ),
    Argued("enclosures/centered.py", "BITS = 128", ("128 -> 129",), CHOICE),
    Argued(
        "enclosures/centered.py",
        "inverse.slack = (self.slack + 1) * (inverse._largest() + 1) ** 3 * 4",
        ("inverse._largest() + 1 -> 1",),
        INTEGERS,
    ),
    Argued(
        "enclosures/centered.py",
        "return self._with(lambda number: (number * unit) >> (BITS + GUARD), self.slack + 2, self.rest.deg2rad())",
        ("2 -> 1",),
        INTEGERS,
    ),
    Argued(
        "enclosures/polynomial.py",
        "slack = self.center.abs() * (2 * U) + (first.abs() + second.abs() + rest + self.radius) * (16 * U)",
        ("16 -> 8",),
        ROUNDS,
    ),
    Argued(
        "enclosures/polynomial.py",
        "return Polynomial(stack, widen(self.radius * size, absolute_sum(stack), 1, U))",
        ("widen(self.radius * size, absolute_sum(stack), 1, U) -> self.radius * size",),
        ROUNDS,
    ),
    Argued(
        "enclosures/polynomial.py",
        "small = first * others + mine * second + mine * others",
        ("first -> second",),
        ROUNDS,
    ),
    Argued(
        "enclosures/polynomial.py",
        "return Polynomial(self.stack, widen(self.radius + size, 0.0, 2, U))",
        ("2 -> 3",),
        MORE,
    ),
    Argued(
        "enclosures/polynomial.py",
        "return sine._plus_unknown(fifth * (more / 120)), cosine._plus_unknown(fifth * size * (more / 720))",
        ("120 -> 119",),
        MORE,
    ),
    Argued(
        "enclosures/polynomial.py",
        "return Polynomial(result.stack, torch.where((middle > 0) & (self.ends()[0] > 0), result.radius, torch.inf))",
        ("torch.where((middle > 0) & (self.ends()[0] > 0), result.r... -> torch.inf",),
        NOTHING,
    ),
    Argued(
        "network/ops/gather.py",
        "if len(branches) > 1:",
        ("len(branches) > 1 -> len(branches) >= 1",),
        "A concatenation of one branch is that branch; the network has one operation more, and the same values.",
    ),
    Argued(
        "network/ops/maxima.py",
        "if ceil_mode or (dilation != (1, 1) and padding != (0, 0)):",
        ("1 -> 0 #2",),
        "The rule that lists the entries of windows serves where the other one does too: both bound the same function.",
    ),
    Argued(
        "network/ops/piecewise.py",
        "slope = torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, slope.clamp(0, 1)))",
        ("torch.where(high <= 0, 0.0, slope.clamp(0, 1)) -> torch.where(high <= 0, slope.clamp(0, 1), 0.0)",),
        CHOICE,
    ),
    Argued(
        "network/ops/piecewise.py",
        "magnitude = one.magnitude() + one.radius + two.magnitude() + two.radius + top",
        ("one.magnitude() + one.radius -> one.magnitude()",),
        "The factor in `widen` covers the roundings of the radius, which is a sum of products of this one and others.",
    ),
    Argued(
        "network/ops/piecewise.py",
        "return low, high, 2.0**-40 * (abs(low) + abs(high))",
        ("2.0 ** (-40) * (abs(low) + abs(high)) -> 2.0 ** (-40) / (abs(low) + abs(high))", "high -> low #2"),
        OFFSETS,
    ),
    Argued(
        "network/ops/piecewise.py",
        "above = torch.where(down > 0, above + moved[1], most)",
        ("down > 0 -> down < 0",),
        OFFSETS,
    ),
    Argued("network/ops/piecewise.py", "crossing = (least < most) & (lower < 0) & (upper > 0)", ("0 -> 1 #2",), CHOICE),
    Argued(
        "network/ops/piecewise.py",
        "return torch.where(crossing & (far > near) & (slope >= 2.0**-60), slope, zero)",
        ("crossing & (far > near) & (slope >= 2.0 ** (-60)) -> crossing & (far > near) | (slope >= 2.0 ** (-60))",),
        "The docstring's lines hold for every slope from 0 on, wherever the jump is: each choice is sound.",
    ),
    Argued(
        "network/ops/curves.py",
        "wide = (upper - lower > 9.4) | (_reach(lower, upper) > 2.0**20)",
        ("_reach(lower, upper) > 2.0 ** 20 -> _reach(lower, upper) < 2.0 ** 20",),
        "Multiples of pi are off by a few 2^-53 of |x|, and sines by no more; lines far out have a slack of 2^-44 of |x|.",
    ),
    Argued("network/ops/piecewise.py", "STEEPEST = 2.0**20", ("2.0 ** 20 -> 2.0 * 20",), CHOICE),
    Argued(
        "network/ops/piecewise.py",
        "slope = above / (below + above + SMALLEST[low.dtype])",
        ("below + above -> below",),
        CHOICE,
    ),
    Argued(
        "network/ops/piecewise.py",
        "size = lengths(farthest(first) + farthest(second) + top)",
        ("farthest(first) + farthest(second) -> farthest(second)",),
        "The top is worked out of ends of the difference that are widened by two units of both branches' sizes, of which the "
        "larger coefficient times that is more than the rounding of either product: what is charged besides is not needed.",
    ),
    Argued(
        "network/ops/piecewise.py",
        "slopes = [(each * rise).to(form.radius.dtype).double() for each in (up, down)]",
        ("each * rise -> each / rise",),
        "Another slope, and the line moves by how far it may be off: by the difference of the slopes times the largest argument.",
    ),
    Argued("pixels/polynomial.py", "before, after = (-low).clamp(min=0), (high - 1).clamp(min=0)", ("0 -> 1",), CHOICE),
    Argued("pixels/polynomial.py", "AT_ONCE = 2**15", ("2 ** 15 -> 2 * 15",), CHUNKS),
    Argued(
        "pixels/polynomial.py",
        "moved = around[0].deviation() + around[1].deviation() + square.deviation()",
        (
            "around[0].deviation() + around[1].deviation() + square.de... -> around[0].deviation() + around[1].deviation() - square.de...",
        ),
        ROUNDS,
    ),
    Argued(
        "pixels/polynomial.py",
        "(at[left] // area, at[left] % area), values[left].abs() * (1 + 8 * U), accumulate=True",
        ("values[left].abs() * (1 + 8 * U) -> values[left].abs() / (1 + 8 * U)",),
        ROUNDS,
    ),
    Argued("pixels/crossings.py", "SAME = 2.0**-44", ("2.0 ** (-44) -> 2.0 * -44",), CHOICE),
    Argued("pixels/crossings.py", "half = highest.clamp(min=0) / 2 * (1 + 4 * U)", ("1 + 4 * U -> 1 - 4 * U",), ROUNDS),
    Argued(
        "pixels/crossings.py",
        "sides = a.magnitude()[group] + b.magnitude()[group] * factor.abs().clamp(min=1)",
        ("a -> b",),
        ROUNDS,
    ),
    Argued(
        "pixels/crossings.py",
        "size = (places[where].abs() + added.movedim(0, 1).abs()).sum(1)",
        ("places[where].abs() + added.movedim(0, 1).abs() -> places[where].abs()",),
        ROUNDS,
    ),
    Argued(
        "pixels/crossings.py",
        "mixed, size = mixed + pixel * (p * q), size + pixel.abs() * abs(p * q)",
        ("size + pixel.abs() * abs(p * q) -> pixel.abs() * abs(p * q)",),
        ROUNDS,
    ),
    Argued(
        "enclosures/relu.py",
        "lowest = -tilt * kink - curvature * (2 * kink * kink - 1)",
        ("2 * kink * kink - 1 -> 1",),
        LOOSER,
    ),
    Argued(
        "network/ops/contraction.py", "if len(size) == 2 and not rest:", ("len(size) == 2 -> len(size) != 2",), CHOICE
    ),
    Argued(
        "network/ops/contraction.py",
        'return inputs // operation.settings["window"].groups * height * width, outputs * height * width',
        ("width -> height #2",),
        ROUNDS,
    ),
    Argued(
        "network/ops/contraction.py",
        "count = 16 * (sum(x.shape[-2:]) + sum(operation.shape[-2:]) + 8)",
        ("16 -> 1",),
        ROUNDS,
    ),
    Argued(
        "network/ops/contraction.py",
        "result.rounding_budget = result.rounding_budget + lengths(self._near(operation, farthest(inputs[0])))",
        (
            "result.rounding_budget + lengths(self._near(operation, fa... -> lengths(self._near(operation, farthest(inputs[0])))",
        ),
        ROUNDS,
    ),
    Argued(
        "enclosures/affine_form.py",
        "radius = (radius * (1 + 4 * unit) + (8 * SMALLEST[dtype] if unit else 0.0)).to(dtype)",
        ("8 -> 1",),
        UNDER,
    ),
    Argued(
        "enclosures/affine_form.py",
        "radius = widen(slope.abs() * self.radius + rest, magnitude, 16, self.unit)",
        ("16 -> 15",),
        ROUNDS,
    ),
    Argued(
        "enclosures/affine_form.py",
        "magnitude = value.abs() + slope.abs() * (self.magnitude() + deviation) + bend.abs() * deviation * deviation",
        ("slope.abs() * (self.magnitude() + deviation) -> slope.abs() / (self.magnitude() + deviation)",),
        ROUNDS,
    ),
    Argued(
        "enclosures/rounding.py",
        "return total.mul_(1 + (operations + 8) * unit).add_(SMALLEST[radius.dtype] * (operations + 8))",
        ("8 -> 4 #2",),
        ROUNDS,
    ),
    Argued(
        "network/arithmetic.py",
        'if a.device.type != "cpu" and arithmetic_now() != TRAINING:',
        (
            "a.device.type != 'cpu' and arithmetic_now() != TRAINING -> a.device.type != 'cpu' or arithmetic_now() != TRAINING",
        ),
        CHUNKS,
    ),
    Argued("network/ops/activations.py", "activation = True", ("True -> False",), CHOICE),
    Argued(
        "network/ops/activations.py",
        "result.rounding_budget = form_lengths(form) * ((max(1.0, abs(negative)) + 1 - negative) * allowance)",
        ("max(1.0, abs(negative)) + 1 -> 1",),
        ROUNDS,
    ),
    Argued(
        "network/ops/activations.py",
        "magnitude = size * (form.center.abs() + form.reach()) + middle.abs() + half",
        (
            "size * (form.center.abs() + form.reach()) + middle.abs() ... -> size * (form.center.abs() + form.reach()) + middle.abs()",
        ),
        ROUNDS,
    ),
    Argued(
        "network/ops/activations.py", "return slope.clamp(0, 1).to(form.radius.dtype).double()", ("0 -> 1",), CHOICE
    ),
    Argued(
        "network/ops/activations.py",
        "rise = self._value(operation, y) - self._value(operation, x)",
        ("y -> x",),
        CHOICE,
    ),
    Argued("network/ops/activations.py", "better = gain > 0 if index == 0 else gain < 0", ("0 -> -1 #3",), CHOICE),
    Argued(
        "network/ops/activations.py",
        "return slope, at_lower - slope * lower - slack, at_upper - slope * upper + slack",
        ("at_upper - slope * upper + slack -> at_upper - slope * upper",),
        PRECISE,
    ),
    Argued(
        "network/ops/arithmetic.py",
        "count = gamma(4, operation.evaluation) + (backward_gamma(served + 4, 1, first.unit) if served > 1 else 0.0)",
        ("served + 4 -> served",),
        ROUNDS,
    ),
    Argued("network/ops/attention.py", "PRECISION = 2.0**-46", ("2.0 -> 1.0",), PRECISE),
    Argued("network/ops/attention.py", "ENTRIES_CPU, ENTRIES_GPU = 2**22, 2**26", ("2 ** 22 -> 2 * 22",), CHUNKS),
    Argued(
        "network/ops/attention.py",
        "return first.shape[-1] + 2 * first.symbols * (first.symbols + 1) + 16",
        ("first.symbols + 1 -> first.symbols - 1",),
        ROUNDS,
    ),
    Argued(
        "network/ops/attention.py", "count = self._terms(operation, one) + a.shape[-1] + a.shape[-2]", ("2 -> 3",), MORE
    ),
    Argued(
        "network/ops/attention.py", "theirs = gamma(first.shape[-1] + 24, operation.evaluation)", ("1 -> 2",), ROUNDS
    ),
    Argued(
        "network/ops/attention.py",
        "size = center.abs() + radius + sum((slope.abs() for slope in slopes), torch.zeros_like(radius))",
        ("slope.abs() -> slope",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "precision = PRECISION + (length + 64) * 2.0**-52",
        ("2.0 ** (-52) -> 2.0 * -52",),
        NANS,
    ),
    Argued("network/ops/attention.py", "at, sizes = apart(center), apart(size, 1)", ("1 -> 2",), MORE),
    Argued(
        "network/ops/attention.py",
        "chord = torch.where(high > low, (last - first) / (high - low), first)",
        ("last -> first",),
        CHOICE,
    ),
    Argued(
        "network/ops/attention.py",
        "slack = precision * (last + chord * (low.abs() + high.abs()))",
        ("last + chord * (low.abs() + high.abs()) -> last",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "above = torch.maximum(first - chord * low, last - chord * high) + slack",
        ("first - chord * low -> first",),
        EQUAL,
    ),
    Argued(
        "network/ops/attention.py",
        "rest = rest + precision * (chord * sizes + above.abs() + below.abs()).sum(3)",
        ("chord * sizes + above.abs() + below.abs() -> below.abs()",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "least = torch.maximum((middle - spread) - 4 * precision * (middle.abs() + spread), first.sum(3) * inward)",
        ("4 -> 5",),
        MORE,
    ),
    Argued(
        "network/ops/attention.py",
        "largest = torch.minimum((middle + spread) + 4 * precision * (middle.abs() + spread), last.sum(3) * outward)",
        (
            "middle + spread + 4 * precision * (middle.abs() + spread) -> middle + spread - 4 * precision * (middle.abs() + spread)",
        ),
        PRECISE,
    ),
    Argued(
        "enclosures/affine_form.py",
        "magnitude = absolute_sum(stack) + 1 + deviation + bend.abs() * square",
        ("absolute_sum(stack) + 1 + deviation + bend.abs() * square -> absolute_sum(stack) + 1 + deviation",),
        ROUNDS,
    ),
    Argued(
        "network/ops/arithmetic.py",
        "return evaluated(first + second if self.sign > 0 else first - second, 2, operation.evaluation)",
        ("2 -> 3",),
        MORE,
    ),
    Argued(
        "network/ops/attention.py",
        "precision = PRECISION + (length + 64) * 2.0**-52",
        ("PRECISION + (length + 64) * 2.0 ** (-52) -> PRECISION",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "chord = torch.where(high > low, (last - first) / (high - low), first)",
        ("high - low -> high",),
        CHOICE,
    ),
    Argued(
        "network/ops/attention.py",
        "below = chord * (1 - chord.clamp(min=2.0**-1000).log()) - slack",
        ("1 -> 0",),
        LOOSER,
    ),
    Argued(
        "network/ops/attention.py",
        "largest = torch.minimum((middle + spread) + 4 * precision * (middle.abs() + spread), last.sum(3) * outward)",
        ("middle + spread + 4 * precision * (middle.abs() + spread) -> middle + spread",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "most = 1 + others(high, low, length * 2.0**-1020) * (1 + slack)  # with what was flushed to zero",
        ("2.0 ** (-1020) -> 2.0 * -1020",),
        "The sum becomes negative, and so does the lower end of a number that is not.",
    ),
    Argued(
        "network/ops/attention.py",
        "error = share * high.clamp(max=1) * (1 + 2.0**-10) + length * 2.0**-120",
        ("10 -> 20",),
        SHARE,
    ),
    Argued(
        "network/ops/attention.py",
        "precision = 4 * (PRECISION + (math.prod(rows.shape[1:]) * rows.shape[2] + 64) * 2.0**-52)",
        ("1 -> 2",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "result.error = error + total(a.abs()) * (FLOOR[a.dtype] + SMALLEST[a.dtype])",
        ("a -> b #2",),
        UNDER,
    ),
    Argued(
        "network/ops/contraction.py",
        'return inputs // operation.settings["window"].groups * height * width, outputs * height * width',
        ("outputs * height * width -> outputs * height / width",),
        ROUNDS,
    ),
    Argued(
        "network/ops/contraction.py",
        "return sum(shape[-2:]) + 8, sum(operation.shape[-2:]) + 8",
        ("8 -> 7 #2",),
        ROUNDS,
    ),
    Argued(
        "network/ops/contraction.py",
        "result.radius = widen(result.radius + error, error, 4, result.unit)",
        ("widen(result.radius + error, error, 4, result.unit) -> result.radius + error",),
        ROUNDS,
    ),
    Argued(
        "network/ops/smooth.py",
        "slack = self.slack + PRECISION * slope.abs() * torch.maximum(self.x[0].abs(), self.x[-1].abs())",
        ("1 -> 0",),
        PRECISE,
    ),
    Argued(
        "network/ops/smooth.py",
        "return _cheapest(self.least.clamp(max=0), self.most.clamp(min=0), cost)",
        ("self.least.clamp(max=0) -> self.least",),
        CHOICE,
    ),
    Argued(
        "network/ops/smooth.py",
        "return offset + sign * slope * middle, sign * (middle - self._x(graph == offset))",
        ("middle - self._x(graph == offset) -> self._x(graph == offset)",),
        CHOICE,
    ),
    Argued(
        "network/ops/smooth.py",
        "slope = torch.where((slope >= left) & (slope <= right), slope, (left + right) / 2)",
        ("right -> left",),
        CHOICE,
    ),
    Argued(
        "network/ops/smooth.py",
        "width, rise = x[1:] - x[:-1], y[1:] - y[:-1]",
        ("y[1:] - y[:-1] -> y[1:] + y[:-1]",),
        MEET,
    ),
    Argued(
        "network/ops/smooth.py",
        "beyond = ((slope, 0.0), (low, -torch.inf), (high, torch.inf))",
        ("0.0 -> 9.5367431640625e-07",),
        GIVEN_UP,
    ),
    Argued(
        "network/ops/smooth.py",
        "if isinstance(form, GatheredForm) and len(form) > len(form.form):  # each row is selected for several margins",
        ("len(form) > len(form.form) -> len(form) < len(form.form)",),
        TOGETHER,
    ),
    Argued(
        "network/ops/smooth.py",
        "error = operation.evaluation * (1 + 2.0**-10) * (units + UNDERFLOW)",
        ("10 -> 20",),
        ROUNDS,
    ),
    Argued("network/ops/curves.py", "return (first + (last - first) * share).sinh()", ("first -> last",), CUTS),
    Argued(
        "network/ops/curves.py",
        "return (1 + (x * math.sqrt(0.5)).erf()) / 2 + x * (-x * x / 2).exp() * math.sqrt(0.5 / math.pi)",
        ("2 -> 3 #2",),
        TANGENTS,
    ),
    Argued(
        "network/ops/curves.py",
        'return (first + (last - first) * share).sinh() / operation.settings["beta"]',
        ("last - first -> first",),
        CUTS,
    ),
    Argued(
        "network/ops/curves.py",
        "end, other, share = torch.where(far, a, b), torch.where(far, b, a), torch.where(far, 1 - share, share)",
        ("b -> a #2",),
        CUTS,
    ),
    Argued(
        "network/ops/curves.py",
        "return (first + (last - first) * share).sinh()",
        ("last - first -> last + first #2",),
        CUTS,
    ),
    Argued(
        "network/ops/curves.py",
        "made.slack = torch.where(wide, PRECISION * (1 + _reach(lower, upper)), made.slack)",
        ("1 -> 0",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "least.clamp(min=1.0),",
        ("1.0 -> 0.5",),
        MORE,
    ),
    Argued(
        "network/ops/attention.py",
        "slope = -1 / (e.least * e.most)",
        ("-1 / (e.least * e.most) -> -1 * (e.least * e.most)",),
        CHOICE,
    ),
    Argued(
        "network/ops/attention.py",
        "above = torch.maximum(1 / e.least - slope * e.least, 1 / e.most - slope * e.most)",
        ("slope * e.least -> slope / e.least",),
        EQUAL,
    ),
    Argued(
        "network/ops/attention.py",
        "size = above + slope.abs() * (e.center.abs() + e.radius + sum((p.abs() for p in e.slopes), 0 * e.radius))",
        (
            "above + slope.abs() * (e.center.abs() + e.radius + sum((p... -> slope.abs() * (e.center.abs() + e.radius + sum((p.abs() f...",
        ),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "ends = (1 / e.most) * (1 - 4 * precision), (1 / e.least) * (1 + 4 * precision)",
        ("1 - 4 * precision -> 1",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py", "error = self._evaluation_error(operation, form, high)", ("high -> low",), SHARE
    ),
    Argued(
        "network/ops/attention.py",
        "share = unit * (16 * farthest(form).double().amax(dim, keepdim=True) + 8 * length + 512)",
        (
            "16 * farthest(form).double().amax(dim, keepdim=True) + 8 ... -> 16 * farthest(form).double().amax(dim, keepdim=True) - 8 ...",
            "8 -> 4",
        ),
        SHARE,
    ),
    Argued(
        "network/ops/attention.py",
        "b = torch.where(up, -weight / (point * point), -weight / (e.least * e.most))",
        ("torch.where(up, -weight / (point * point), -weight / (e.l... -> -weight / (point * point)",),
        EQUAL,
    ),
    Argued(
        "network/ops/attention.py",
        "free = torch.where(up, 2 * weight / point, weight * (1 / e.least + 1 / e.most))",
        ("2 -> 1",),
        LOOSER,
    ),
    Argued(
        "network/ops/attention.py",
        "parts = torch.where(b > 0, here * (1 + e.at.abs()), e.high.exp() + e.chord * (e.low.abs() + e.high.abs()))",
        ("e.low.abs() + e.high.abs() -> e.low.abs()",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "precision = 4 * (PRECISION + (math.prod(rows.shape[1:]) * rows.shape[2] + 64) * 2.0**-52)",
        ("64 -> 63",),
        PRECISE,
    ),
    Argued(
        "network/ops/base.py",
        "return length.mul_(1 + 2 * gamma(count + 8, UNIT[x.dtype])).add_(count * vanishing)",
        ("2 -> 1",),
        ROUNDS,
    ),
    Argued(
        "network/ops/base.py",
        "most = FLOOR[like.dtype] / (SMALLEST[like.dtype] * MORE * ones_length(like)) - row_size(like)",
        (
            "FLOOR[like.dtype] / (SMALLEST[like.dtype] * MORE * ones_l... -> FLOOR[like.dtype] / (SMALLEST[like.dtype] * MORE * ones_l... #2",  # noqa: E501
        ),
        ROUNDS,
    ),
    Argued(
        "network/ops/base.py",
        "factor = 1 + 2 * gamma(count + len(stack) + 16, form.unit)",
        ("count + len(stack) -> count - len(stack)",),
        ROUNDS,
    ),
    Argued(
        "network/ops/convex.py",
        "return torch.maximum(first - slope * low, last - slope * high) + slack",
        ("first - slope * low -> first + slope * low",),
        EQUAL,
    ),
    Argued(
        "network/ops/convex.py",
        "return torch.minimum(torch.maximum(point, low), high)",
        ("torch.minimum -> torch.maximum",),
        CHOICE,
    ),
    Argued(
        "network/ops/convex.py",
        "radius = radius + (self.evaluation_error(operation, low, high) * (1 + 2.0**-20)).to(dtype)",
        ("20 -> 21",),
        ROUNDS,
    ),
    Argued(
        "network/ops/norms.py",
        "roundings = _count(operation, form.shape) + 2 * form.symbols * (form.symbols + 1) + 8",
        ("1 -> 0",),
        ROUNDS,
    ),
    Argued("network/ops/norms.py", "shared = other < half", ("other < half -> other > half",), CHOICE),
    Argued(
        "network/ops/norms.py",
        "return gamma(8 * _count(operation, form.shape) + 64, operation.evaluation)",
        ("8 * _count(operation, form.shape) + 64 -> 64",),
        ROUNDS,
    ),
    Argued(
        "network/ops/norms.py",
        "radius = widen(result.radius + largest * self._roundings(operation, form), 0.0, count + 8, form.unit)",
        ("count + 8 -> count - 8",),
        ROUNDS,
    ),
    Argued(
        "network/ops/norms.py",
        "size = lengths(_mean(operation, (2 * center.abs() + far) * far) + most)",
        (
            "_mean(operation, (2 * center.abs() + far) * far) + most -> _mean(operation, (2 * center.abs() + far) * far)",
        ),
        ROUNDS,
    ),
    Argued(
        "network/ops/norms.py",
        "result.rounding_budget = size * backward_gamma(count + 16, row_size(a), form.unit)",
        ("count + 16 -> 16",),
        ROUNDS,
    ),
    Argued(
        "network/ops/norms.py",
        "return (lower if operation.evaluation else lower.clamp(min=0)), upper.clamp(min=0)",
        ("lower.clamp(min=0) -> lower.clamp(max=0)",),
        LOOSER,
    ),
    Argued(
        "network/ops/norms.py",
        "return (low + self._epsilon(operation) > 2.0**-60) & (high < 2.0**120)",
        ("2.0 -> 1.0 #2",),
        NOTHING,
    ),
    Argued(
        "network/ops/norms.py",
        "return (-2 * slope).pow(-2 / 3) - self._epsilon(operation)",
        ("(-2 * slope).pow(-2 / 3) - self._epsilon(operation) -> (-2 * slope).pow(-2 / 3)",),
        CHOICE,
    ),
    Argued(
        "network/ops/norms.py",
        "return gamma(32, operation.evaluation) * self.value(operation, low)",
        ("32 -> 31",),
        ROUNDS,
    ),
    Argued("network/ops/pooling.py", "length = math.prod(shape[1:]) + 4", ("4 -> 3",), ROUNDS),
    Argued(
        "network/ops/pooling.py",
        "radius = torch.where(excess > 0, widen(radius, stack[0].abs() + excess, 4, form.unit), radius)",
        ("stack[0].abs() + excess -> excess",),
        ROUNDS,
    ),
    Argued(
        "network/ops/products.py",
        "s = torch.where(s > 0, s, 1.0)  # a NaN",
        ("torch.where(s > 0, s, 1.0) -> torch.where(s > 0, 1.0, s)",),
        CHOICE,
    ),
    Argued(
        "network/ops/products.py",
        "size, roundings = s * one + two, 2 * first.symbols + 8",
        ("2 * first.symbols + 8 -> 8",),
        ROUNDS,
    ),
    Argued("network/ops/products.py", "MOST_UNEVEN = 2.0**20", ("2.0 ** 20 -> 2.0 * 20",), CHOICE),
    Argued(
        "network/ops/products.py",
        "quadratic = (first.quadratic or second.quadratic) and first.symbols > 1",
        ("1 -> 2",),
        CHOICE,
    ),
    Argued(
        "network/ops/products.py",
        "half = torch.maximum(high - middle, middle - low)",
        ("middle - low -> middle + low",),
        EQUAL,
    ),
    Argued(
        "network/ops/products.py",
        "better = half < form.radius  # false for a NaN",
        ("form.radius -> form.center",),
        CHOICE,
    ),
    Argued(
        "network/ops/products.py",
        "spread = p.abs() * one.radius + q.abs() * two.radius",
        ("one.radius -> one.center",),
        CHOICE,
    ),
    Argued(
        "network/ops/products.py",
        "return sign * 1.5 * (p * one.center + q * two.center + offset) - spread / 2",
        (
            "sign * 1.5 * (p * one.center + q * two.center + offset) -... -> sign * 1.5 * (p * one.center + q * two.center + offset)",
            "one.center -> one.radius",
        ),
        CHOICE,
    ),
    Argued(
        "network/ops/products.py",
        "highest = torch.where(better, value, highest)",
        ("torch.where(better, value, highest) -> value",),
        CHOICE,
    ),
    Argued(
        "network/ops/products.py",
        "result.rounding_budget = result.rounding_budget + theirs * gamma(4, operation.evaluation)",
        ("4 -> 2",),
        ROUNDS,
    ),
    Argued(
        "network/ops/products.py",
        "size = lengths((2 * center.abs() + far) * far + form.deviation() ** 2)",
        ("center.abs() -> center",),
        ROUNDS,
    ),
    Argued("network/ops/quantize.py", "ROUNDED = 2.0**-46", ("46 -> 23",), MORE),
    Argued("network/ops/quantize.py", "LARGEST = 2.0**60", ("2.0 ** 60 -> 2.0 * 60",), NOTHING),
    Argued(
        "network/ops/quantize.py",
        "room = torch.where(size < LARGEST, room, torch.inf)",
        ("torch.where(size < LARGEST, room, torch.inf) -> torch.inf",),
        NOTHING,
    ),
    Argued("network/ops/quantize.py", "beside = step * room", ("step * room -> step / room",), MORE),
    Argued(
        "network/ops/quantize.py",
        'farthest * (slope.abs() + step * factor) + step * (operation.settings["size"] + room)',
        ("slope.abs() + step * factor -> slope.abs() - step * factor",),
        PRECISE,
    ),
    Argued("network/ops/quantize.py", "chord = rise / (y - x + SMALLEST[torch.float64])", ("y - x -> x",), CHOICE),
    Argued(
        "network/ops/quantize.py",
        "flat = ~((most - least) / 2 > slope * form.radius + (high - low) / 2)",
        (
            "(most - least) / 2 -> (most - least) * 2",
            "low -> high",
        ),
        CHOICE,
    ),
    Argued("network/ops/quantize.py", "middle = (lower + upper) / 2", ("lower + upper -> lower",), CHOICE),
    Argued(
        "network/ops/quantize.py", "better = gain > 0 if index == 0 else gain < 0", ("gain > 0 -> gain < 0",), CHOICE
    ),
    Argued(
        "network/ops/quantize.py",
        '"size": float(abs(low) + abs(high)), "zero": zero,',
        ("abs(low) + abs(high) -> abs(low)",),
        PRECISE,
    ),
    Argued("network/ops/smooth.py", "PIECES = 6", ("6 -> 7",), CHOICE),
    Argued(
        "network/ops/smooth.py",
        "graph = self.y - slope * self.x",
        ("self.y - slope * self.x -> self.y + slope * self.x",),
        CHOICE,
    ),
    Argued(
        "network/ops/smooth.py",
        "return torch.where(chosen, self.x, -torch.inf).amax(0)",
        ("-torch.inf -> torch.inf",),
        CHOICE,
    ),
    Argued(
        "network/ops/smooth.py",
        "best, least = torch.where(here < least, slope, best), torch.minimum(here, least)",
        ("torch.where(here < least, slope, best) -> torch.where(here < least, best, slope)",),
        CHOICE,
    ),
    Argued(
        "network/ops/smooth.py",
        "first = y[:-1] + steep[:-1] * (meet - x[:-1])",
        ("y[:-1] + steep[:-1] * (meet - x[:-1]) -> y[:-1] - steep[:-1] * (meet - x[:-1])",),
        EQUAL,
    ),
    Argued(
        "network/ops/smooth.py",
        "size = 1 + lower.abs() + upper.abs() + y.abs().amax((0, 1)) + turn.amax((0, 1))",
        (
            "1 + lower.abs() + upper.abs() + y.abs().amax((0, 1)) -> 1 + lower.abs() + upper.abs() - y.abs().amax((0, 1))",
        ),
        PRECISE,
    ),
    Argued(
        "network/ops/curves.py",
        "return v.sigmoid() + near * steep * self.FACTOR * (1 + 3 * self.CUBE * near * near)",
        ("3 -> 6",),
        TANGENTS,
    ),
    Argued(
        "network/ops/curves.py",
        "return torch.where(inside.abs() < 3, x / 3 + 0.5, (inside > 0).to(x.dtype))",
        ("3 -> 2 #2",),
        TANGENTS,
    ),
    Argued(
        "network/ops/curves.py",
        "return (LIBRARY + 8) * abs(low) + 8 * abs(scale) * upper.clamp(min=0)",
        ("8 -> 4 #2",),
        ROUNDS,
    ),
    Argued(
        "network/ops/curves.py",
        "drop = math.log1p(math.exp(-threshold * (1 - 2.0**-10))) / beta * (1 + 2.0**-10)",
        ("2.0 -> 4.0",),
        ROUNDS,
    ),
    Argued("network/ops/curves.py", "return b + 2 * (first + (1 - first) * share).log()", ("2 -> 3",), CHOICE),
    Argued("network/ops/curves.py", "return end * ratio ** (1 - share)", ("1 - share -> 1 + share",), CHOICE),
    Argued(
        "network/ops/curves.py",
        "return [(first + k) * math.pi + self.shift for k in range(4)]",
        ("(first + k) * math.pi + self.shift -> (first + k) * math.pi",),
        TANGENTS,
    ),
    Argued(
        "network/ops/curves.py",
        "made.slack = torch.where(wide, PRECISION * (1 + _reach(lower, upper)), made.slack)",
        ("PRECISION * (1 + _reach(lower, upper)) -> PRECISION / (1 + _reach(lower, upper))",),
        PRECISE,
    ),
    Argued("network/arithmetic.py", "ONEDNN_PRODUCTS = 2**20", ("2 ** 20 -> 2 * 20",), CHUNKS),
    Argued("pixels/api.py", "slack = _largest(images) * (12 * UNIT[images.dtype])", ("12 -> 6",), ROUNDS),
    Argued(
        "pixels/api.py",
        "slope_v = _secant(nw + ne - sw - se, y.points[-1] - y.points[0])",
        ("y.points[-1] - y.points[0] -> y.points[0]",),
        CHOICE,
    ),
    Argued(
        "pixels/fgv.py",
        "return Interval(ends[0] * (1 - slack) - slack, ends[1] * (1 + slack) + slack)",
        ("1 -> 2 #3",),
        MORE,
    ),
    Argued(
        "pixels/fgv.py",
        "elif not launch_bound(low) and len(boxes) * SHARED <= len(low):",
        (
            "not launch_bound(low) and len(boxes) * SHARED <= len(low) -> not launch_bound(low) or len(boxes) * SHARED <= len(low)",
        ),
        CHUNKS,
    ),
    Argued("pixels/photometric.py", "SAFE = 1 + 2.0**-30", ("1 + 2.0 ** (-30) -> 1 - 2.0 ** (-30)",), PRECISE),
    Argued(
        "pixels/photometric.py",
        "magnitude = size + slope * base.magnitude() + (middle.abs() + 1 + 1 / center) * exponent.deviation()",
        ("middle.abs() + 1 + 1 / center -> 1 / center",),
        ROUNDS,
    ),
    Argued(
        "pixels/photometric.py",
        "return slope, least, greatest, at_high + (1 + power) * at_middle + slope * high",
        ("1 -> 2",),
        MORE,
    ),
    Argued(
        "pixels/photometric.py",
        "return 8 * len(offsets) + 32 + (0 if whole else 128 * len(offsets))",
        ("128 * len(offsets) -> 128 / len(offsets)",),
        ROUNDS,
    ),
    Argued(
        "pixels/photometric.py",
        "curved, steep = self.bend * reach, (self.slopes[1] - self.slopes[0]) / 2",
        ("2 -> 1",),
        LOOSER,
    ),
    Argued(
        "pixels/photometric.py",
        "doubt = 2.0**-30 * factors[1] * (square + end.mean) / begin.whole",
        ("begin -> end",),
        PRECISE,
    ),
    Argued(
        "pixels/quadratic.py",
        "return AffineForm(torch.cat([center[None], slopes]), widen(radius, magnitude, 32, u.unit)), magnitude",
        ("32 -> 31",),
        ROUNDS,
    ),
    Argued("pixels/bilinear.py", "MOST_CELLS = 12", ("12 -> 13",), CHOICE),
    Argued(
        "network/ops/attention.py",
        "precision = PRECISION + (length + 64) * 2.0**-52",
        ("52 -> 51",),
        MORE,
    ),
    Argued(
        "network/ops/attention.py",
        "slack = precision * (last + chord * (low.abs() + high.abs()))",
        ("chord * (low.abs() + high.abs()) -> chord / (low.abs() + high.abs())",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "above = torch.maximum(first - chord * low, last - chord * high) + slack",
        ("chord * low -> chord / low",),
        EQUAL,
    ),
    Argued(
        "network/ops/attention.py",
        "rest = rest + precision * (chord * sizes + above.abs() + below.abs()).sum(3)",
        ("chord * sizes + above.abs() -> chord * sizes - above.abs()",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "inward, outward = (1 - 4 * precision), (1 + 4 * precision)",
        ("4 * precision -> 4 / precision #2",),
        MORE,
    ),
    Argued(
        "network/ops/attention.py",
        "least = torch.maximum((middle - spread) - 4 * precision * (middle.abs() + spread), first.sum(3) * inward)",
        ("4 -> 3",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "least.clamp(min=1.0),",
        ("1.0 -> 0.0",),
        MORE,
    ),
    Argued(
        "network/ops/attention.py",
        "precision = PRECISION + (length + 64) * 2.0**-52",
        ("52 -> 53 #2",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "parts = torch.where(b > 0, here * (1 + e.at.abs()), e.high.exp() + e.chord * (e.low.abs() + e.high.abs()))",
        (
            "torch.where(b > 0, here * (1 + e.at.abs()), e.high.exp() ... -> torch.where(b > 0, e.high.exp() + e.chord * (e.low.abs() ...",
        ),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "shares, sizes = shares + share.sum(2), sizes + share.abs().sum(2)",
        ("share.abs() -> share",),
        PRECISE,
    ),
    Argued(
        "network/ops/attention.py",
        "parts = torch.where(b > 0, here * (1 + e.at.abs()), e.high.exp() + e.chord * (e.low.abs() + e.high.abs()))",
        ("e.high.exp() + e.chord * (e.low.abs() + e.high.abs()) -> e.high.exp()",),
        PRECISE,
    ),
]
