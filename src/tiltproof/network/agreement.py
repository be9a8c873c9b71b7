"""Check that the traced operations compute what the module computes; and take the head off a classifier.

Tracing freezes every decision the module made while it was traced: a branch on the batch size, a random draw, a constant. Here the
operations bound float evaluations at single points, and the module runs on the same points: alone, in a batch, and a second time. Every
output and every margin must lie within rounding. The module must also be a fixed function: equal calls return equal bits, no call
changes its state or draws random numbers, and the calls of torch are the same as those that were traced.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tiltproof.device import is_out_of_memory, return_freed_memory
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError, raised, shown
from tiltproof.network.arithmetic import no_autocast, proof_arithmetic
from tiltproof.network.forward import margins, run
from tiltproof.network.graph import Network
from tiltproof.network.module_state import (
    FIXED,
    Pass,
    copied,
    difference,
    other_calls,
    recorded,
    same_bits,
    state_of,
    unchanged,
)
from tiltproof.network.ops.base import REGISTRY, LinearRule
from tiltproof.network.tracing import TRACE_BATCH, as_rows, eval_mode, example_of, export_network

UNITS, TIMES = 2.0**12, 64
"""For networks so deep that a rigorous bound of the rounding says little: units in the last place of the largest term, and how many
times the difference that another order of the same sums, or a perturbation of every operation by one unit roundoff, was seen to make."""
SLACK = 1 + 2.0**-20
"""Covers the float64 roundings of the comparison itself."""
ENTRIES_AT_ONCE = 2**22


def read_network(model: nn.Module, shape: tuple[int, ...], like: Tensor, points: Tensor | None = None) -> Network:
    """Trace the module, and check that the operations compute what it does.

    The check uses the first of the images ``like``, random images, and ``points`` [Q, C, H, W], such as transformed images.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, *shape, generator=generator, dtype=torch.float64).to(like.device, like.dtype)
    first = [like[:3].view(-1, *shape), noise.clamp(0, 1), 3 * noise]
    images = torch.cat(first if points is None else [*first, points.to(like)])
    with eval_mode(model), torch.no_grad():
        with no_autocast():  # the module itself, not what autocast makes of it
            _refuse_special_first_calls(model, images)
        with unchanged(model):
            with no_autocast(), recorded(model) as passes:
                network = export_network(model, shape, like)
            images = images.to(network.dtype())
            with proof_arithmetic(like.device), _exact_convolutions(like.device):
                _compare_calls(model, passes, example_of(shape, like), images)
                answers = _answers(model, images)
                if not images.is_cuda and network.entries() > ENTRIES_AT_ONCE:
                    return_freed_memory()  # or what tracing took would add to what the comparison takes
                _compare(network, images, answers)
                _compare_with_files(model, images)
    return network


def without_head(model: nn.Module, images: Tensor) -> tuple[nn.Module, tuple[str, ...]]:
    """The classifier's scores, and what was taken off for them; the module itself if it ends in no head."""
    with eval_mode(model), torch.no_grad(), no_autocast():
        tried = copied(model)
        with unchanged(tried):
            head = head_of(tried, images)
    return (WithoutHead(model, head), head) if head else (model, ())


def _refuse_special_first_calls(model: nn.Module, images: Tensor) -> None:
    """Refuse a module whose answers depend on the images that it was first called with, on copies: the user's module stays as it was."""
    own, other = images[:1], images[-1:]
    answers = []
    for before in ([], [own], [other]):
        tried = copied(model)
        if tried is model:
            return
        with unchanged(tried):
            try:
                answers.append([tried(image) for image in (*before, own)][-1])
            except InputError:
                raise
            except Exception:  # tracing says why
                return
    once, twice, after_other = answers
    if not all(isinstance(answer, Tensor) for answer in answers) or not same_bits(once, twice):
        return  # refused later
    if not images.is_cuda and not same_bits(once, after_other):
        raise InputError(
            "the model's answers depend on the images that it was first called with",
            why="a layer that takes its parameters from these, without keeping them as weights or buffers",
            do="call model(images) once on data of yours, or keep what it takes from them in buffers; the model was not changed",
        )


def _compare_calls(model: nn.Module, passes: list[Pass], example: Tensor, images: Tensor) -> None:
    """Refuse a module that does not ask torch for what it asked while it was traced, in the last of these passes."""
    found = difference(passes[-1], passes[0])
    batches = ([] if found is None else [example]) + [images[:1], images[:5]]
    for batch in batches:
        for last_try in (False, True):  # a first call may fill a cache
            with recorded(model) as own:
                _answer(model, batch)
            found = difference(passes[-1], own[-1], sizes=batch is example)
            if found is None:
                break
            if last_try:
                raise other_calls(found)


def _compare_with_files(model: nn.Module, images: Tensor) -> None:
    """Modules that were read from a file are compared with the file's own runtime, on what these images give them."""
    read = [module for module in model.modules() if hasattr(module, "compare_with_file")]
    given: list[tuple[Any, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, inputs: given.append((module, inputs[0]))) for module in read
    ]
    try:
        if read:
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    for module, file_images in given:
        module.compare_with_file(file_images)


def _answers(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The module's outputs for a batch, for each image alone, and for the batch again; refuse a module that is no fixed function."""
    together = _answer(model, images)
    before = state_of(model)
    for last_try in (False, False, True):  # another thread may draw random numbers meanwhile
        generators = _generators()
        again = _answer(model, images)
        if generators == _generators():
            break
        if last_try:
            raise InputError("the model draws random numbers in forward", do=FIXED)
    after = state_of(model)
    alone = torch.cat([_answer(model, image[None]) for image in images])
    if after != before:
        name = next(name for name in before | after if before.get(name) != after.get(name))
        raise InputError(
            "the model changes itself in forward",
            got=f"attribute {shown(name)}",
            why="a counter, a cache, or a random number generator of its own",
            do=FIXED,
        )
    # on a GPU a library may choose another order of summation each time
    if not images.is_cuda and not same_bits(together, again):
        raise InputError(
            "the model answers the same images differently each time",
            got="another shape"
            if together.shape != again.shape
            else f"outputs that differ by {float((together - again).abs().max()):.2g}",
            why="randomness in forward, or state that it keeps",
            do=FIXED,
        )
    return [together, alone, again]


@contextmanager
def users_code(failure: str) -> Iterator[None]:
    """An exception in the module's own code is an `InputError` that says ``failure``; running out of memory is not."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            failure,
            got=raised(error),
            why="code in forward that depends on the values of images, or on how many there are",
            do="try model(images) with batches of other sizes",
        ) from error


def _answer(model: nn.Module, images: Tensor) -> Tensor:
    """The module's outputs."""
    with users_code(
        f"the model failed on {len(images)} images, though not on the {TRACE_BATCH} that it was traced with"
    ):
        outputs = model(images)
    if not isinstance(outputs, Tensor) or not outputs.ndim:
        raise _other_function("no row of outputs for each image")
    return as_rows(outputs)


def _compare(network: Network, images: Tensor, answers: list[Tensor]) -> None:
    """Refuse a graph whose outputs or margins rounding cannot take to the module's own ``answers``."""
    shape, outputs, ahead, labels, size = _enclosed(network, images)
    others = [_values(network.network_as(network.dtype()), images), _perturbed(network, images)]
    finite = outputs.center.isfinite().all(1)  # else an overflow: bounds will be infinite and prove nothing
    seen = max(float((other - outputs.center)[finite].abs().amax()) if bool(finite.any()) else 0.0 for other in others)
    coarse = (
        (UNITS * torch.finfo(network.dtype()).eps * size + TIMES * seen)
        .nan_to_num(nan=torch.inf, posinf=torch.inf)
        .unsqueeze(1)
    )
    if any(REGISTRY[operation.kind].discontinuous for operation in network.operations):
        coarse = torch.full_like(coarse, torch.inf)  # a rounding may decide to which of two steps a value belongs
    overflow = ~outputs.reach().isfinite().all(
        1, keepdim=True
    )  # of an evaluation, where the real-valued network has none
    for answer in answers:
        if answer.shape[1:] != shape or len(answer) != len(images):
            raise _other_function(f"outputs of shape {list(answer.shape[1:])}, and {list(shape)} when traced")
        values = [(answer.flatten(1).double(), outputs)]
        if ahead is not None:
            own = values[0][0].gather(1, labels.unsqueeze(1))
            values.append((own - values[0][0], ahead))
        for value, form in values:
            rigorous = (form.reach() * SLACK).nan_to_num(nan=torch.inf, posinf=torch.inf)
            allowed, difference = torch.minimum(rigorous, 2 * coarse), (value - form.center).abs()
            wrong = ~((difference <= allowed) | (overflow & ~value.isfinite())) & finite.unsqueeze(1)
            if bool(wrong.any()):
                worst = int(torch.where(wrong, difference.nan_to_num(nan=torch.inf, posinf=torch.inf), -1.0).argmax())
                raise _other_function(
                    f"outputs that differ by {float(difference.flatten()[worst]):.2g}, where rounding explains "
                    f"{float(allowed.flatten()[worst]):.2g}"
                )


def _other_function(got: str) -> InputError:
    return InputError(
        "the model does not compute the function that tracing saw",
        got=got,
        why="code in forward that depends on the batch size, on values, or on being traced; or a library whose float arithmetic is "
        "off by more than its precision",
        do=FIXED,
    )


def _enclosed(network: Network, images: Tensor) -> tuple[torch.Size, AffineForm, AffineForm | None, Tensor, Tensor]:
    """Evaluations in the network's own precision: the outputs' shape, flat outputs [P, K], margins of the largest output and
    which that is, and the size [P] of the largest term that they are sums of."""
    unit = torch.finfo(network.dtype()).eps / 2
    live, outputs, ahead, labels, sizes = network.network_as(torch.float64, unit), [], [], [], []
    constants = max(
        [
            0.0,
            *(
                float(shift.abs().amax())
                for o in live.operations
                if (shift := o.settings.get("shift_size")) is not None
            ),
        ]
    )
    for part in _parts(network, images):
        forms = run(live, AffineForm.constant(part.double()))
        output = forms[live.output]
        outputs.append(output.exactly(lambda planes: planes.flatten(1)))
        sizes.append(
            torch.stack([part.new_zeros(len(part), dtype=torch.float64), *_terms(live, forms)])
            .amax(0)
            .clamp(min=constants)
        )
        if len(output.shape) == 2 and output.shape[1] > 1:
            labels.append(output.center.argmax(1))
            ahead.append(margins(live, forms, labels[-1]))
        del forms  # or the next part's would be in memory beside them
    shape = output.shape[1:]
    if not ahead:
        return shape, _joined(outputs), None, torch.empty(0), torch.cat(sizes)
    return shape, _joined(outputs), _joined(ahead), torch.cat(labels), torch.cat(sizes)


def _terms(live: Network, forms: dict[str, AffineForm]) -> Iterator[Tensor]:
    """For each image [P], the sum over operations of the largest absolute value of a sum's terms."""
    for operation in live.operations:
        size, rule = forms[operation.name].center, REGISTRY[operation.kind]
        if isinstance(rule, LinearRule):
            size = rule.absolute(operation, forms[operation.inputs[0]].center.abs())
        yield size.abs().reshape(len(size), -1).amax(1)


def _values(live: Network, images: Tensor) -> Tensor:
    """The operations' own outputs, summed in another order."""
    parts = [run(live, AffineForm.constant(part))[live.output].center for part in _parts(live, images)]
    return torch.cat(parts).flatten(1).double()


def _perturbed(network: Network, images: Tensor) -> Tensor:
    """The outputs when each operation's result is off by one unit roundoff of the network's precision, relative to the terms that it sums.

    Signs are random but fixed. This shows how far later layers carry a rounding, also where terms cancel.
    """
    live, unit = network.network_as(torch.float64), torch.finfo(network.dtype()).eps / 2
    generator = torch.Generator().manual_seed(0)
    outputs = []
    for part in _parts(network, images):
        forms = {live.input: AffineForm.constant(part.double())}
        for operation in live.operations:
            inputs, rule = [forms[name] for name in operation.inputs], REGISTRY[operation.kind]
            value = rule.forward(operation, inputs).center
            terms = rule.absolute(operation, inputs[0].center.abs()) if isinstance(rule, LinearRule) else value.abs()
            signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.float64).to(value.device) * 2 - 1
            forms[operation.name] = AffineForm.constant(value + signs * unit * terms)
        outputs.append(forms[live.output].center)
    return torch.cat(outputs).flatten(1)


def _parts(network: Network, images: Tensor) -> tuple[Tensor, ...]:
    """Split the images so that large networks need little memory."""
    return images.split(max(1, ENTRIES_AT_ONCE // network.entries()))


def _joined(forms: list[AffineForm]) -> AffineForm:
    return AffineForm(torch.cat([form.stack for form in forms], 1), torch.cat([form.radius for form in forms]))


def _generators() -> tuple[Any, ...]:
    """The states of the process's random number generators."""
    numbers = np.random.get_state(legacy=True)
    arrays = tuple(each.tobytes() if isinstance(each, np.ndarray) else each for each in numbers)
    return random.getstate(), arrays, torch.random.get_rng_state().numpy().tobytes()


@contextmanager
def _exact_convolutions(device: torch.device) -> Iterator[None]:
    """Disable cuDNN, which may choose Winograd or FFT, whose rounding the bounds do not cover."""
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    before = cudnn.enabled
    cudnn.enabled = False
    try:
        yield
    finally:
        cudnn.enabled = before


# Take the head off a classifier: a softmax, sigmoid or argmax that comes last says nothing that the scores before it
# do not say.
# A softmax or log-softmax over the classes, p_k = exp(s_k) / sum_j exp(s_j), and a sigmoid of every class are
# strictly increasing in s_k for a given image, so p_a > p_b exactly if s_a > s_b: the largest of the outputs is the
# largest of the scores, and "every other output is smaller" means the same of both. An argmax only names it. So the
# statement about real numbers is unchanged, margins are those of the scores, and no bound has to follow an
# exponential. A float32 evaluation of a head may round two different scores to the same output; what is certified of
# float32 evaluations is about the scores.
# Ranges of outputs are another matter: there nothing is taken off.

SOFTMAX, LOG_SOFTMAX, SIGMOID, LOG_SIGMOID, ARGMAX = "Softmax", "LogSoftmax", "Sigmoid", "LogSigmoid", "ArgMax"
RESHAPE = ""
KINDS: dict[Callable[..., Any], str] = {
    **dict.fromkeys([F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax], SOFTMAX),
    **dict.fromkeys([F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax], LOG_SOFTMAX),
    **dict.fromkeys([torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.special.expit], SIGMOID),
    F.logsigmoid: LOG_SIGMOID,
    **dict.fromkeys([torch.argmax, Tensor.argmax], ARGMAX),
    **dict.fromkeys([torch.flatten, Tensor.flatten, torch.reshape, Tensor.reshape, Tensor.view], RESHAPE),
    **dict.fromkeys([torch.squeeze, Tensor.squeeze], RESHAPE),
}
"""Functions that may stand between the scores and the outputs; reshapes keep the order of the numbers."""
MOST_STEPS = 8


class Made(NamedTuple):
    """A call of one of these functions: what it read and gave, and how often these tensors had been written to."""

    kind: str
    read: Tensor
    result: Tensor
    dim: int | None
    versions: tuple[int, int]

    @property
    def unchanged(self) -> bool:
        return self.versions == (self.read._version, self.result._version)

    @property
    def one_row(self) -> bool:
        """Whether all that is computed from one image is compared with one another: no other dimension has several entries."""
        if self.dim is None or not -self.read.ndim <= self.dim < self.read.ndim or self.dim % self.read.ndim == 0:
            return False
        others = [size for axis, size in enumerate(self.read.shape[1:], 1) if axis != self.dim % self.read.ndim]
        return all(size == 1 for size in others)


class _Watch(TorchFunctionMode):
    """Keeps the last calls of these functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: deque[Made] = deque(maxlen=MOST_STEPS)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kind = KINDS.get(func)
        read = args[0] if args else kwargs.get("input")
        if kind is None or not isinstance(read, Tensor) or not isinstance(result, Tensor) or kwargs.get("dtype"):
            return result
        if read.is_inference() or result.is_inference() or not read.ndim:
            return result  # nobody counts the writes to these
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if func in (F.softmax, F.log_softmax) and dim is None:
            dim = 0 if read.ndim in (1, 3) else 1  # as torch chooses it, with a warning
        dim = dim if type(dim) is int else None
        self.calls.append(Made(kind, read, result, dim, (read._version, result._version)))
        return result

    def scores(self, output: Any) -> tuple[Any, tuple[str, ...]]:
        """What the output was computed from by heads, and their names, the last one first; the output itself without any."""
        value, rows, names = output, output, list[str]()
        for made in reversed(self.calls):
            if made.result is not value or not isinstance(value, Tensor):
                continue
            if not made.unchanged or made.result.shape[:1] != made.read.shape[:1]:
                break
            if made.kind in (SOFTMAX, LOG_SOFTMAX, ARGMAX) and not made.one_row:
                break
            if made.kind == ARGMAX and names:
                break
            value = made.read
            if made.kind:
                names.append(made.kind)
                rows = value
        if not names or math.prod(rows.shape[1:]) < 2 or not (names[0] == ARGMAX or output.ndim == 2):
            return output, ()
        return (rows if rows.ndim == 2 else rows.flatten(1)), tuple(names)


class WithoutHead(nn.Module):
    """The scores of a classifier. Weights and digests are those of ``model``."""

    def __init__(self, model: nn.Module, head: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.head, self.training = model, head, model.training

    def forward(self, images: Tensor) -> Tensor:
        watch = _Watch()
        with watch:
            output = self.model(images)
        scores, head = watch.scores(output)
        if head != self.head:
            raise InputError(
                "the model ends in another head than before",
                got=f"{', '.join(head) or 'none'} instead of {', '.join(self.head)}",
                why="code in forward that depends on the values of images, or on how many there are",
            )
        result: Tensor = scores
        return result


def head_of(model: nn.Module, images: Tensor) -> tuple[str, ...]:
    """Names of the functions that make the model's outputs of scores, the last one first.

    A model that fails has none; tracing reports why.
    """
    watch = _Watch()
    try:
        with watch:
            output = model(images)
    except Exception:
        return ()
    return watch.scores(output)[1]
