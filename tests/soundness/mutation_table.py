"""Deliberate one-line defects: where, what stands there, what replaces it, why that is wrong, who should notice.

Some slacks are not here because another one covers for them on its own: those of Algorithm 1's sums (its weights are widened
already), of the sigmoid's library function (8 roundings are allowed for anyway), and of ReLU backward (linear layers allow
for twice what they need). To edit: `old` must occur exactly once in the file (a test checks it); keep it as short as that allows.
"""

from __future__ import annotations

from dataclasses import dataclass

CAMPAIGN, PIXELS = "soundness/test_campaign.py", "soundness/test_pixel_bounds.py"
NETWORK, BACKWARD = "soundness/test_network_bounds.py", "soundness/test_backward_bounds.py"
NOISE, PLANTED = "soundness/test_near_noise.py", "soundness/test_certify_planted.py"
SLIVERS, VERDICTS = "soundness/test_slivers.py", "soundness/test_certify_verdicts.py"
TILING, FORMS = "certify/test_tiling_exactly.py", "soundness/test_forms_exactly.py"
FLOAT32 = "soundness/test_float32_semantics.py"
PERSPECTIVE = "soundness/test_perspective.py"
CHECKER_FORMS, CHECKER_PIXELS = "checker/test_checker_layers.py", "checker/test_checker_pixels.py"


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # below src/tiltproof
    old: str
    new: str
    why: str
    tests: tuple[str, ...]  # below tests, the likeliest first


AFFINE, COORDINATES, RELAX = "bounds/affine.py", "bounds/coordinates.py", "bounds/relax.py"
CELLS, RESAMPLE, INTERVAL = "bounds/cells.py", "bounds/resample.py", "bounds/interval.py"
RULES, LINEAR, ACTIVATIONS = "network/rules/base.py", "network/rules/linear.py", "network/rules/activations.py"
MAXPOOL, TILES, LEDGER = "network/rules/maxpool.py", "certify/tiling.py", "certify/ledger.py"
RANGE_SEARCH = "certify/range_search.py"
RANGES = "certify/test_regression.py"
BACKWARD_PASS = "network/backward.py"

MUTATIONS = [
    # affine arithmetic
    Mutation("product remainder", AFFINE, " + self.deviation() * other.deviation()", "",
             "the product of two deviations is of second order, not zero", (CAMPAIGN,)),
    Mutation("sine remainder", AFFINE, "self.center.cos(), self._bend(value) * deviation * deviation / 2",
             "self.center.cos(), self._bend(value) * deviation * deviation / 4",
             "the Taylor remainder is max|f''| / 2 times the square", (CAMPAIGN, PIXELS)),
    Mutation("reciprocal remainder", AFFINE, "deviation * deviation / low**3", "deviation * deviation / (2 * low**3)",
             "half of |f''| is 1 / t^3 itself", (CAMPAIGN, PIXELS)),
    Mutation("float32 conversion", AFFINE, "self.radius + self.magnitude() * (2 * unit)", "self.radius",
             "rounding the center moves it by up to half a unit in the last place", (CAMPAIGN,)),
    Mutation("reach without rounding", AFFINE, "widen(deviation, self.center.abs(), self.symbols + 2, self.unit)",
             "deviation",
             "center - reach rounds to nearest, perhaps inwards", (FORMS,)),
    Mutation("deviation without slopes", AFFINE, "widen(self.radius + _size(self.slopes), 0.0,",
             "widen(self.radius, 0.0,",
             "the symbols move the value too", (CAMPAIGN,)),
    Mutation("second derivative of the sine", AFFINE, "(value.abs() + self.deviation()).clamp(max=1)", "value.abs()",
             "it is |sin| at some place of the box, not at its middle", (FORMS, CAMPAIGN)),
    Mutation("quotient remainder", AFFINE, " + size * divisor.deviation() / (low * middle)", "",
             "the denominator varies with the numerator: a term of second order", (FORMS, PERSPECTIVE)),
    Mutation("least denominator", AFFINE, "divisor.deviation() / (low * middle)", "divisor.deviation() / (middle * middle)",
             "1 / w is largest where w is least", (FORMS, PERSPECTIVE)),
    Mutation("quotient by what reaches zero", AFFINE, "torch.where(low > 0, radius, torch.inf)", "radius",
             "nothing bounds 1 / w there", (FORMS, PERSPECTIVE)),
    # coordinates
    Mutation("the horizon", INTERVAL, "torch.where(self.lower > 0, self.lower.reciprocal(), torch.inf)", "self.lower.reciprocal()",
             "a depth that may be zero bounds no position", (PERSPECTIVE,)),
    Mutation("part of the picture out of sight", COORDINATES, "interval.upper, size + 1.0)", "interval.upper, size / 2)",
             "an unbounded position may show any part of the picture", (PERSPECTIVE,)),
    Mutation("a range past the horizon", "bounds/horizon.py", "(depth.lower >= LEAST_DEPTH).flatten(1).all(1)",
             "(depth.lower >= LEAST_DEPTH).flatten(1).any(1)", "all four corners have to be in view", (PERSPECTIVE,)),
    Mutation("half of a range past the horizon", "bounds/horizon.py", "torch.cat([low, torch.where(axis, middle, low)])",
             "torch.cat([torch.where(axis, middle, low), torch.where(axis, middle, low)])",
             "both halves have to be in view", (PERSPECTIVE,)),
    Mutation("width alone", "transforms/scaling.py", "((value / 100 + 1).reciprocal(), 0, 0), (0, 1, 0)",
             "((value / 100 + 1), 0, 0), (0, 1, 0)", "the inverse divides by the factor", (CAMPAIGN,)),
    Mutation("height alone", "transforms/scaling.py", "(1, 0, 0), (0, (value / 100 + 1).reciprocal(), 0)",
             "((value / 100 + 1).reciprocal(), 0, 0), (0, 1, 0)", "columns stay where they are", (CAMPAIGN,)),
    Mutation("direction of a vertical shear", "transforms/shearing.py", "(-(value / 100), 1, 0)", "(value / 100, 1, 0)",
             "the inverse goes the other way", (CAMPAIGN,)),
    Mutation("the side a camera turns to", "transforms/perspective.py", "(-(sine / f), 0, cosine)", "(sine / f, 0, cosine)",
             "what comes nearer in front goes away behind", (CAMPAIGN,)),
    Mutation("depth of a shift after a camera", "transforms/matrices.py", "return plus(total, times(first[i][2], second[2][j]))",
             "return plus(total, first[i][2] if j == 2 else 0)", "a shift counts in units of the depth", (CAMPAIGN,)),
    Mutation("quotient remainder of the checker", "checker/smooth.py", "(z.radius + z.magnitude * (w.reach / lower)) / c", "z.radius / c",
             "the checker's own quotient has the term as well", (CHECKER_FORMS, CHECKER_PIXELS)),
    Mutation("sine of the checker", "checker/smooth.py", "(value.abs() + x.reach + 8 * UNIT)", "value.abs()",
             "the second derivative is taken anywhere in the box", (CHECKER_FORMS, CHECKER_PIXELS)),
    Mutation("camera of the checker", "checker/pixels.py", "w * cosine - u * sine / f, True", "w * cosine, True",
             "what lies to the side has another depth", (CHECKER_PIXELS,)),
    Mutation("coordinate remainder", COORDINATES, "widen(ra * u.abs() + rb * v.abs() + rc, magnitude,",
             "widen(0 * rc, magnitude,",
             "matrix entries have remainders of second order", (CAMPAIGN,)),
    Mutation("order of composition", COORDINATES, "for k in reversed(run):", "for k in run:",
             "T^-1 = T_1^-1 ... T_n^-1, the last part's inverse acts first", (CAMPAIGN,)),
    Mutation("meet of forms and intervals", COORDINATES, "torch.minimum(form.upper, interval.upper)",
             "torch.minimum(form.center, interval.upper)",
             "positions above the middle are cut off", (CAMPAIGN,)),
    # cells, padding, pixels
    Mutation("a cell forgotten", CELLS, "cells = max(1, int((last.ceil() - base).max().item()))",
             "cells = max(1, int((last.ceil() - base).max().item()) - 1)",
             "the last cell of the widest box is not looked at", (CAMPAIGN,)),
    Mutation("clamp at the border", CELLS, "low.clamp(-2, size + 1), high.clamp(-2, size + 1)",
             "low.clamp(0, size - 1), high.clamp(0, size - 1)",
             "between border and ring of zeros the picture fades", (CAMPAIGN,)),
    Mutation("a grid line left out", CELLS, "points.append(torch.where(line < last, line, high))",
             "points.append(high)",
             "the plane is subtracted at the wrong place", (CAMPAIGN,)),
    Mutation("ring of zeros", "transforms/sampling.py", "return index.clamp(-1, size) + 1",
             "return index.clamp(0, size) + 1",
             "left of the picture lie zeros, not its first column", (CAMPAIGN,)),
    Mutation("reflection", "transforms/sampling.py", "period = 2 * (size - 1)", "period = 2 * size - 1",
             "the border pixel is not doubled", (CAMPAIGN,)),
    Mutation("residual along v", RESAMPLE, "residual = value - across[i] - down[j]", "residual = value - across[i]",
             "the form adds a plane that the residual never lost", (CAMPAIGN,)),
    Mutation("remainder of u", RESAMPLE, "size_u * u.radius.unsqueeze(-1) + ", "",
             "u is its form and a remainder", (CAMPAIGN, PIXELS)),
    Mutation("spread of resampled slopes", RESAMPLE, "radius = radius + slope.radius",
             "radius = radius + 0 * slope.radius",
             "contrast before a rotation: slopes move too", (CAMPAIGN, PIXELS)),
    Mutation("remainder of the source picture", RESAMPLE, "radius + hull(picture.radius, rows_of, place, padding).upper",
             "radius",
             "a clamped picture has a remainder of its own", (CAMPAIGN, PIXELS)),
    Mutation("rounding of pixels", RESAMPLE, "widen(radius, magnitude, 24, unit)", "radius",
             "interpolation rounds a dozen times", (CAMPAIGN,)),
    # interval arithmetic and Algorithm 1
    Mutation("turning points of the cosine", INTERVAL, "torch.where(holds_odd, -1.0, lower.clamp(min=-1.0))",
             "lower.clamp(min=-1.0)",
             "the least cosine may be inside", (CAMPAIGN,)),
    Mutation("signs of a product", INTERVAL, "lower, upper = products.amin(0), products.amax(0)",
             "lower, upper = products[0], products[3]",
             "a negative factor swaps the ends", (CAMPAIGN,)),
    Mutation("hat above its line", "bounds/algorithm1.py", "near = torch.where((low <= 0) & (high >= 0), 0.0,",
             "near = torch.where(low > high, 0.0,",
             "an interval that holds the line has distance zero", (CAMPAIGN,)),
    Mutation("upper weights of Algorithm 1", "bounds/algorithm1.py", "(pictures.upper, grid.weights.upper)",
             "(pictures.upper, grid.weights.lower)", "the largest value needs the largest weights", (CAMPAIGN,)),
    # kinks
    Mutation("half the ReLU gap", RELAX, "half = gap / 2", "half = gap / 4",
             "the parallelogram no longer holds the kink", (FORMS, NETWORK)),
    Mutation("one side of the gap", RELAX, "torch.maximum(slope * below, (1 - slope) * above)", "slope * below",
             "with slope 0 the gap is at the upper end", (FORMS, NETWORK)),
    Mutation("upper end of a kink", RELAX, "(form.center + reach).clamp_(min=0)", "(form.center + reach)",
             "h instead of max(h, 0): backwards, a chord of slope below 0", (BACKWARD,)),
    Mutation("lower end of a kink", RELAX, "(reach - form.center).clamp_(min=0)", "(reach - form.center)",
             "-l instead of max(-l, 0): a chord of slope above 1", (FORMS,)),
    Mutation("clamp to one", RELAX, "-relax_kink(-relax_kink(form) + 1.0) + 1.0", "relax_kink(form)",
             "clamp has two sides", (CAMPAIGN,)),
    Mutation("rounding of a kink", RELAX, "alpha=(16 if negative_slope else 8) * form.unit", "alpha=0",
             "slope, product and offset round", (FORMS, NETWORK)),
    # linear layers
    Mutation("gamma forward", RULES, "form.magnitude(), alpha=own", "form.magnitude(), alpha=0",
             "a sum of n products is off by gamma_n of its terms' sizes", (NETWORK, NOISE)),
    Mutation("remainder through |W|", RULES, "radius = self.absolute(operation, radius)",
             "radius = self.signed(operation, radius).abs()",
             "remainders of different inputs do not cancel", (NETWORK,)),
    Mutation("rounding of the bias", RULES, "shift) * ((own + theirs)", "shift) * (0 * (own + theirs)",
             "adding the bias rounds once more", (NETWORK, NOISE)),
    Mutation("float32 evaluation forward", RULES, "farthest(form) + UNDERFLOW, alpha=theirs", "farthest(form) + UNDERFLOW, alpha=0",
             "with float32 semantics the evaluation's own rounding belongs to the bound", (FLOAT32,)),
    Mutation("float32 evaluation backward", RULES, "theirs = gamma(terms[0] + 8, operation.evaluation)", "theirs = 0.0",
             "the same in the backward pass", (FLOAT32,)),
    Mutation("float32 evaluation of the margin", "network/forward.py", "radius + error + error.gather(1, own)", "radius",
             "each of the two outputs is evaluated by itself", (FLOAT32,)),
    Mutation("float32 evaluation of the margin, backward", BACKWARD_PASS, "torch.where(size < OVERFLOW, size * theirs, torch.inf)",
             "0 * size", "each of the two outputs is evaluated by itself", (FLOAT32,)),
    Mutation("overflow of an evaluation", "network/forward.py", "largest < OVERFLOW, radius", "size < OVERFLOW, radius",
             "a sum may pass through infinity", (FLOAT32,)),
    Mutation("overflow of a last operation, backward", BACKWARD_PASS, "error += underflow(directions, [forms[network.output]], pairs)",
             "error += 0", "an infinite forward bound of the output itself must end the backward pass too", (FLOAT32,)),
    Mutation("divisor of an average", LINEAR, 'operation.settings.get("divisor") or 1', "1",
             "the sum is larger than the average by the divisor, whatever the window", (FLOAT32,)),
    Mutation("underflow backward", BACKWARD_PASS, "error = error + underflow(a_out, inputs, pairs)", "error = error + 0",
             "coefficients that underflow are met by activations that may be huge", (NOISE,)),
    Mutation("constants that vanish", "network/graph.py", "(size > 0) & (size < least)", "size < 0",
             "a denormal factor has no relative precision", (NOISE,)),
    Mutation("gamma backward", RULES, "dot(a.abs(), size[pairs]) * count", "0.0",
             "the transposed product rounds like the forward one", (BACKWARD,)),
    Mutation("size of a batch norm's shift", LINEAR, "return shift.abs() if size is None else",
             "return shift.abs() if True else",
             "bias and mean may cancel; the rounding does not", (BACKWARD, NOISE)),
    Mutation("row differences", "network/forward.py", "form.radius.gather(1, own) + form.radius", "form.radius",
             "both logits have remainders", (NETWORK,)),
    # activations and pooling
    Mutation("slope of a sigmoid", ACTIVATIONS,
             "slope = torch.minimum(self.derivative(at_lower), self.derivative(at_upper))",
             "slope = torch.maximum(self.derivative(at_lower), self.derivative(at_upper))",
             "f(x) - s x must increase", (NETWORK,)),
    Mutation("half the gap of a sigmoid", ACTIVATIONS, "((high - low) / 2).to(dtype)", "((high - low) / 4).to(dtype)",
             "f(x) - s x ranges over all of it", (NETWORK,)),
    Mutation("slopes of ReLU backward", ACTIVATIONS, "torch.where(positive, lower[pairs], chord[pairs])",
             "torch.where(positive, chord[pairs], lower[pairs])",
             "the chord lies above ReLU, not below", (BACKWARD,)),
    Mutation("offset of ReLU backward", ACTIVATIONS, "(offset + error)[pairs]", "error[pairs]",
             "the chord does not pass through zero", (BACKWARD,)),
    Mutation("bias backward", RULES, "result.constant = dot(a, shift.expand_as(a))",
             "result.constant = 0 * dot(a, shift.expand_as(a))",
             "a . (L x + s) has a constant part", (BACKWARD,)),
    Mutation("max pool excess", MAXPOOL, "form.radius.flatten(2).gather(2, index) + excess / 2",
             "form.radius.flatten(2).gather(2, index)",
             "another entry may be the largest", (NETWORK,)),
    Mutation("max pool excess along the symbols", MAXPOOL, "difference[0] + difference[1:].abs().sum(0)",
             "difference[0]",
             "the symbols can lift another entry", (NETWORK, BACKWARD)),
    Mutation("max pool backward", MAXPOOL, "dot(a.clamp(max=0), excess[pairs])", "dot(a.clamp(min=0), excess[pairs])",
             "the excess counts where the coefficient is negative", (BACKWARD,)),
    Mutation("remainder of the pixels backward", "network/backward.py", " - moves.sum(0) - remainder",
             " - moves.sum(0)",
             "pixels are known up to their remainder", (BACKWARD,)),
    Mutation("joined branches backward", "network/backward.py", "a = coefficients[name] + a",
             "a = coefficients[name] + 0 * a",
             "both branches count", (BACKWARD,)),
    # tiling and verdicts
    Mutation("edges rounded separately", TILES,
             "first, second = (self._edge(boxes.index + step, boxes.level) for step in (0, 1))",
             "first = self._edge(boxes.index, boxes.level); second = first + (self.high - self.low) / (self.base * 2**boxes.level)",
             "neighbours may leave a gap of one unit in the last place", (TILING,)),
    Mutation("outer ends", TILES, "torch.where(index == 0, outer_low, inner)", "inner",
             "0.1 as written lies outside its float", (TILING,)),
    Mutation("a box missing", TILES, "[torch.arange(count) for count", "[torch.arange(max(1, count - 1)) for count",
             "the last box of an axis is never proved", (TILING,)),
    Mutation("a half missing", TILES, "torch.cat([index, index + step])", "torch.cat([index, index])",
             "the upper half is never proved", (TILING,)),
    Mutation("NaN as proved", "certify/prover.py", "lower.nan_to_num(nan=-torch.inf, ",
             "lower.nan_to_num(nan=torch.inf, ",
             "infinity minus infinity is no margin", (NOISE,)),
    Mutation("an open box passed", LEDGER, "passed = bound > 0", "passed = bound > -0.05",
             "a bound below zero proves nothing", (VERDICTS, SLIVERS, NOISE)),
    Mutation("settled too early", LEDGER, "rows[self.waiting[rows] == 0]", "rows[self.waiting[rows] <= 1]",
             "one box is still open", (SLIVERS, VERDICTS)),
    Mutation("failed boxes forgotten", "certify/uniform.py",
             "passed = self.record(mine, bound, time.perf_counter() - began)",
             "passed = self.record(mine, bound.abs(), time.perf_counter() - began)",
             "a failed box counts as proved", (PLANTED, SLIVERS)),
    # output ranges
    Mutation("upper ends of ranges", "certify/range_prover.py", "return ends[0], -ends[1], shares", "return ends[0], ends[0], shares",
             "an upper bound of f is minus a lower bound of -f", (RANGES,)),
    Mutation("open boxes of a range forgotten", RANGE_SEARCH,
             "self._settle(self.image[gone], self.above_lower[gone], self.above_upper[gone])", "pass",
             "boxes that wait when the budget ends belong to the range", (RANGES,)),
    Mutation("given up boxes of a range forgotten", RANGE_SEARCH,
             "self._settle(rows[done | given_up], outcome.lower[done | given_up], outcome.upper[done | given_up])",
             "self._settle(rows[done], outcome.lower[done], outcome.upper[done])",
             "a box that is not tight enough still counts", (RANGES,)),
    Mutation("bounds of a neighbour", RANGE_SEARCH, "ends = outcome.lower[rest].repeat(2, 1), outcome.upper[rest].repeat(2, 1)",
             "ends = outcome.lower[rest].repeat_interleave(2, 0), outcome.upper[rest].repeat_interleave(2, 0)",
             "a half obeys the bounds of its own whole", (RANGES,)),
    Mutation("intersection of a range", RANGE_SEARCH, 'self.lower.scatter_reduce_(0, index, lower, "amin")',
             'self.lower.scatter_reduce_(0, index, lower, "amax", include_self=False)',
             "the range is the union over boxes", (RANGES,)),
]  # fmt: skip
