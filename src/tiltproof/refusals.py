"""What a network is refused for: every use of an operation that has no bound rule, and what to do about each.

Readers of modules and files collect all of them before they raise, so that one attempt shows the whole list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiltproof.errors import UnsupportedOperation, shown

MOST_CHARACTERS = 4000
"""Length of a list in a message."""


NO_RULE = "has no bound rule"


@dataclass(frozen=True)
class Refusal:
    """One use of an operation without a bound rule."""

    operation: str
    """Name in its own vocabulary: ATen's, ONNX's, Keras's or TFLite's."""
    node: str
    """Name of the node or layer."""
    why: str = NO_RULE
    module: str = ""
    """Path of the module that calls it, if known."""
    part: str = "node"
    """What the network calls its parts."""
    instead: str = ""
    """What to do about it, where that is known better than for all uses of the operation."""

    @property
    def do(self) -> str:
        """What to do about it."""
        if self.instead:
            return self.instead
        general = advice(self.operation)
        if general != GENERAL or self.why.startswith(NO_RULE):
            return general
        return USES.get(name_of(self.operation), OTHERWISE)

    def __str__(self) -> str:
        module = f" (module {self.module!r})" if self.module else ""
        return f"{shown(self.operation, 60)} at {self.part} {shown(self.node, 80)!r}{module} {shown(self.why, 160)}"

    def record(self) -> dict[str, str]:
        """Return plain values for JSON."""
        plain = {"operation": self.operation, "node": self.node, "module": self.module}
        return plain | {"why": self.why, "what_to_do": self.do}


def refusals_of(error: UnsupportedOperation) -> tuple[Refusal, ...]:
    """Return what a network was refused for; an error of another kind counts as one refusal."""
    return error.refusals or (Refusal("network", "-", " ".join(filter(None, (error.what, str(error.got or ""))))),)


def all_refused(errors: Sequence[UnsupportedOperation], supported: str) -> UnsupportedOperation:
    """Return one error that names every use; ``supported``: the operations that have rules."""
    refusals = [refusal for error in errors for refusal in refusals_of(error)]
    first = errors[0]
    listed = "; ".join(f"({number}) {refusal}" for number, refusal in enumerate(refusals, 1))
    got: object = f"in all {len(refusals)} unsupported operations: {shown(listed, MOST_CHARACTERS)}"
    if len(refusals) == 1:
        got = first.got or (None if refusals[0].node in first.what else str(refusals[0]))
    elif first.got is not None:
        got = f"{first.got}; {got}"
    do = "; ".join(advised(refusals))
    if len(refusals) == 1 and first.do:
        do = first.do
    elif any(refusal.why.startswith(NO_RULE) for refusal in refusals):
        do = f"{shown(do, MOST_CHARACTERS)}; supported operations: {supported}"
    return UnsupportedOperation(first.what, got=got, why=first.why, do=do, refusals=tuple(refusals))


def advised(refusals: Sequence[Refusal]) -> list[str]:
    """Return what to do, each advice once, behind the operations that it is about."""
    texts: dict[str, dict[str, None]] = {}
    for refusal in refusals:
        texts.setdefault(refusal.do, {})[shown(refusal.operation, 60)] = None
    return [f"{', '.join(names)}: {text}" for text, names in texts.items()]


GENERAL = "replace it by operations that have rules, or add a rule (docs/add-an-operation.md)"
OTHERWISE = "use it in a way that has a rule, or write it with other operations"
HEAD = "if it comes last, end the network before it: which output is largest does not change, and that is certified"
BEFORE = "end the network before it (an ONNX file: --output NAME), and certify the values that it reads"
CONSTANTS = f"of constants alone it is supported; of values of the image, {BEFORE}"
STEPS = "leave it out, or put a quantizer in its place: it is a step function"
RANDOM = "take the randomness out of forward: a proof is about one function"
RECURRENT = "write the steps out one after the other with linear layers and products"
DYNAMIC = (
    "its scale depends on the image (dynamic quantization): quantize statically, with calibration images (quantize_static, QDQ format), "
    "certify the network of floats, or evaluate the file with --semantics uint8"
)
SMOOTH = "use an activation that has a rule, e.g. relu, leaky_relu or tanh, and train again"
ADVICE = {
    **dict.fromkeys(["argmax", "argmin", "arg_max", "arg_min", "topk", "sort", "argsort", "hardmax"], HEAD),
    **dict.fromkeys(["nonmaxsuppression", "roialign", "nonzero", "masked_select", "embedding", "one_hot"], BEFORE),
    **dict.fromkeys(["scatter", "grid_sample", "grid_sampler", "grid_sampler_2d", "gridsample"], BEFORE),
    **dict.fromkeys(["onehot", "scatternd", "scatterelements", "gathernd", "gatherelements", "range"], CONSTANTS),
    **dict.fromkeys(["round", "floor", "ceil", "trunc", "fix", "heaviside"], STEPS),
    **dict.fromkeys(["bernoulli", "rand", "rand_like", "randn", "randn_like", "randint", "multinomial"], RANDOM),
    **dict.fromkeys(["randomnormal", "randomuniform", "randomnormallike", "randomuniformlike"], RANDOM),
    **dict.fromkeys(["lstm", "gru", "rnn", "rnn_tanh", "rnn_relu", "simplernn", "bidirectional"], RECURRENT),
    **dict.fromkeys(["loop", "if", "scan", "while_loop", "cond"], RECURRENT),
    **dict.fromkeys(["rrelu"], SMOOTH),
    **dict.fromkeys(["var_mean", "std_mean"], "write the variance as mean((x - mean(x)) ** 2)"),
    **dict.fromkeys(["log2", "log10"], "write it with log: log(x) times a constant"),
    **dict.fromkeys(["sinh", "cosh"], "write it with exp"),
    **dict.fromkeys(["convinteger", "matmulinteger", "dynamicquantizelinear", "dynamicquantizematmul"], DYNAMIC),
    **dict.fromkeys(["lrn", "local_response_norm"], "use batch normalization in its place, and train again"),
    **dict.fromkeys(["fft_fft2", "fft_rfft2", "fft_fft", "fft_rfft", "dft", "stft"], "write it as a linear layer"),
}
"""Of an operation without a rule: name without overload, in lower case -> what to do."""
CHOICE = (
    "choose by comparing one branch with a number (torch.where(x > 0, a, b)) or by a constant mask; minus infinity is for "
    "scores right before a softmax, by a constant mask"
)
SAME_SHAPE = "give both branches the same shape, e.g. by expand"
USES = {
    **dict.fromkeys(["where", "masked_fill"], CHOICE),
    **dict.fromkeys(["maximum", "minimum", "max", "min"], SAME_SHAPE),
    **dict.fromkeys(["log_softmax", "logsoftmax"], HEAD),
}
"""Of an operation that has a rule, but not in every use: likewise."""


def advice(operation: str) -> str:
    """Return what to do about an operation without a rule.

    >>> advice("topk.default") == HEAD and advice("Det") == GENERAL
    True
    """
    return ADVICE.get(name_of(operation), GENERAL)


def name_of(operation: str) -> str:
    """Return the name that the tables have it under."""
    return operation.split(".")[0].lower()
