"""The certificate is about the module itself: a graph that computes anything else is refused, and no faithful one is."""

from __future__ import annotations

import cProfile
import functools
import itertools
import logging
import os
import random
import secrets
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from tiltproof import Attack, InputError, UnsupportedOperation, certify
from tiltproof.network import agreement, proof_arithmetic, read_network

IMAGES = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 0])
MARGIN = 1e-5
is_exporting = renamed = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
"""torch 2.6 has no `is_exporting`; there `is_compiling` is true during an export."""


class Constant(nn.Module):
    """Answers class 0 by a tiny margin, whatever the image; `extra` adds to class 1 what the graph need not know of."""

    def __init__(self, extra=None, **attributes):
        super().__init__()
        self.fc, self.extra = nn.Linear(16, 2), extra
        nn.init.zeros_(self.fc.weight)
        self.fc.bias.data = torch.tensor([MARGIN, 0.0])
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        outputs = self.fc(x.flatten(1))
        if self.extra is None:
            return outputs
        # only operations that have rules, so that no case is refused for a missing one
        return outputs + nn.functional.pad(0 * outputs[:, :1] + self.extra(self, x), (1, 0))


def first(x):
    """Return the first pixel of each image."""
    return x[:, :, :1, :1].flatten(1)


def count(module, _):
    module.calls += 1
    return 0.0


class Kept:
    calls = 0


CALLS = {"all": 0}
GENERATOR = np.random.default_rng(1)


def by_globals(_module, _):
    CALLS["all"] += 1
    return 2 * MARGIN * (CALLS["all"] > 10**6)


def by_closure():
    calls = 0

    def count(_module, _):
        nonlocal calls
        calls += 1
        return 2 * MARGIN * (calls > 10**6)

    return count


def later(change):
    """Change the answer once the kept state has been changed a million times."""
    return lambda m, _: 2 * MARGIN * (change(m) > 10**6)


def rarely(draw):
    """Add noise that a few calls do not show."""
    return lambda m, _: 2 * MARGIN * (draw(m) < 1e-9)


def while_not_traced(asks):
    return lambda _, x: 0.0 if asks() else 1e-3 * (first(x) - 0.99).relu()


class InSlots:
    __slots__ = ("calls",)


class OfAClass(Constant):
    """Keeps a count in the class, or in a function."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x) + 2 * MARGIN * (self.calls > 10**6)


class InAHelper(Constant):
    """A method of forward's changes a global variable."""

    def forward(self, x):
        return super().forward(x) + self.help()

    def help(self):
        CALLS["all"] += 1
        return 2 * MARGIN * (CALLS["all"] > 10**6)


class Counted:
    """A global object of which only the class changes."""

    calls = 0

    @classmethod
    def count(cls):
        cls.calls += 1
        return cls.calls


def counted():
    counted.calls += 1
    return counted.calls


counted.calls = 0
HIDDEN = Kept()


class Decorated(Constant):
    @torch.no_grad()
    def forward(self, x):
        HIDDEN.calls += 1
        return super().forward(x) + 2 * MARGIN * (HIDDEN.calls > 10**6)


def count_in_the_environment():
    os.environ["TILTPROOF_TEST_COUNT"] = str(int(os.environ.get("TILTPROOF_TEST_COUNT", "0")) + 1)
    return int(os.environ["TILTPROOF_TEST_COUNT"])


def one_after_many():
    yield from [0.0] * 10**6
    while True:
        yield 2 * MARGIN


def reads_the_flag():
    return (
        torch.compiler._is_exporting_flag
        if hasattr(torch.compiler, "is_exporting")
        else torch.compiler._is_compiling_flag
    )


NO_FUNCTIONS = {
    "noise of numpy": lambda: Constant(lambda m, _: m.rng.normal() * 5e-4, rng=np.random.default_rng(1)),
    "noise of Python": lambda: Constant(lambda *_: random.random() * 1e-4),
    "draws that change nothing so far": lambda: Constant(rarely(lambda _: np.random.rand())),
    "noise below rounding, of the operating system": lambda: Constant(lambda *_: secrets.randbelow(2**20) * 1e-37),
    "a counter": lambda: Constant(count, calls=0),
    "a counter in an object": lambda: Constant(
        later(lambda m: setattr(m.kept, "calls", m.kept.calls + 1) or m.kept.calls), kept=Kept()
    ),
    "a list that grows": lambda: Constant(later(lambda m: m.seen.append(1) or len(m.seen)), seen=[]),
    "a dictionary": lambda: Constant(later(lambda m: m.seen.update(n=m.seen["n"] + 1) or m.seen["n"]), seen={"n": 0}),
    "an array": lambda: Constant(later(lambda m: m.seen.__iadd__(1)[0]), seen=np.zeros(1)),
    "an iterator": lambda: Constant(later(lambda m: next(m.seen)), seen=itertools.count()),
    "an iterator that hides its position": lambda: Constant(
        lambda m, _: next(m.seen), seen=itertools.chain(itertools.repeat(0.0, 10**6), itertools.repeat(2 * MARGIN))
    ),
    "a generator": lambda: Constant(lambda m, _: next(m.seen), seen=one_after_many()),
    "a class": OfAClass,
    "a global variable of a helper": InAHelper,
    "a global variable behind a decorator": Decorated,
    "a global class": lambda: Constant(later(lambda _: Counted.count())),
    "a function's attribute": lambda: Constant(later(lambda _: counted())),
    "an object with slots": lambda: Constant(
        later(lambda m: setattr(m.kept, "calls", getattr(m.kept, "calls", 0) + 1) or m.kept.calls), kept=InSlots()
    ),
    "a bound method": lambda: Constant(later(lambda m: m.append(1) or len(m.append.__self__)), append=[].append),
    "a module in a list": lambda: Constant(
        later(lambda m: setattr(m.kept[0], "calls", m.kept[0].calls + 1) or m.kept[0].calls), kept=[Constant(calls=0)]
    ),
    "the environment": lambda: Constant(later(lambda _: count_in_the_environment())),
    "rare noise of the operating system": lambda: Constant(rarely(lambda m: m.rng.random()), rng=random.SystemRandom()),
    "a global variable": lambda: Constant(by_globals),
    "a variable of a closure": lambda: Constant(by_closure()),
    "rare noise of its own generator": lambda: Constant(rarely(lambda m: m.rng.random()), rng=np.random.default_rng(1)),
    "rare noise of Python's class": lambda: Constant(rarely(lambda m: m.rng.random()), rng=random.Random(1)),
    "rare noise of a global generator": lambda: Constant(rarely(lambda _: GENERATOR.random())),
    "asks whether it is exported": lambda: Constant(while_not_traced(is_exporting)),
    "asks by another name": lambda: Constant(while_not_traced(renamed)),
    "asks whether it is compiled": lambda: Constant(while_not_traced(torch.compiler.is_compiling)),
    "asks torch's internals": lambda: Constant(while_not_traced(lambda: torch._utils.is_compiling())),
    "reads the flag": lambda: Constant(while_not_traced(reads_the_flag)),
    "asks for the kind of tensor": lambda: Constant(lambda _, x: 2 * MARGIN * (type(x) is torch.Tensor)),
    "asks for the batch": lambda: Constant(lambda _, x: 2 * MARGIN * (len(x) == 1)),
    "a pixel that only turned images light up": lambda: Constant(
        lambda _, x: 0.0 if type(x) is not torch.Tensor else (x[:, :, 1, 1] - IMAGES[:, 0, 1, 1].max()).relu()
    ),
}


@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_no_fixed_function_of_a_image_is_certified(name):
    model = NO_FUNCTIONS[name]().eval()
    with pytest.raises(InputError) as caught:
        certify(model, IMAGES, LABELS, "R(30)", attack=Attack(samples=4))
    assert not isinstance(caught.value, UnsupportedOperation)
    assert "What to do:" in str(caught.value)


class WhileTraced(Constant):
    """Leaves out, while `asks` says that it is traced, a band of pixel values so thin that no comparison meets it."""

    def __init__(self, asks):
        super().__init__()
        self.asks, self.one, self.none = asks, nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        outputs = super().forward(x)
        return self.asks(self, x, outputs)

    def more(self, x, outputs, share=1.0):
        distance = 1e9 * (first(x) - 0.12345678)
        band = 2 * MARGIN * (1 - distance.relu() - (-distance).relu()).relu() * share
        return outputs + nn.functional.pad(band, (1, 0))


def fails(function):
    try:
        function()
    except Exception:
        return True
    return False


def in_fake_mode(x):
    from torch._guards import detect_fake_mode

    return detect_fake_mode([x]) is not None


TRACED = {
    "type": lambda x: type(x) is not torch.Tensor,
    "address": lambda x: fails(x.data_ptr) or x.data_ptr() == 0,  # 0 under torch 2.6
    "numbers": lambda x: fails(x.detach().numpy),
    "fake mode": in_fake_mode,
    "text": lambda x: "Fake" in repr(x) or "Functional" in repr(x),
    "export": lambda _: is_exporting(),
}
HOW = {
    "other calls": lambda asks: lambda m, x, y: y if asks(x) else m.more(x, y),
    "another number": lambda asks: lambda m, x, y: m.more(x, y, 0.0 if asks(x) else 1.0),
    "another weight": lambda asks: lambda m, x, y: m.more(x, y, m.none if asks(x) else m.one),
    "another constant": lambda asks: lambda m, x, y: m.more(x, y, torch.tensor(0.0 if asks(x) else 1.0)),
    "single images": lambda asks: lambda m, x, y: m.more(x, y) if len(x) == 1 and not asks(x) else y,
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("asks", TRACED)
def test_what_forward_does_while_it_is_traced_is_all_that_it_does(asks, how):
    """No output shows the difference: only the calls do."""
    with pytest.raises(InputError, match="asks torch for something else while it is traced"):
        certify(WhileTraced(HOW[how](TRACED[asks])).eval(), IMAGES, LABELS, "R(1)", attack=Attack(samples=4))


def test_noise_that_no_call_shows(monkeypatch):
    monkeypatch.setattr(agreement, "_compare_calls", lambda *_: None)
    model = NO_FUNCTIONS["noise below rounding, of the operating system"]().eval()
    with proof_arithmetic(torch.device("cpu")), pytest.raises(InputError, match="differently each time"):
        read_network(model, (1, 4, 4), IMAGES)


def test_a_question_that_changes_nothing_is_allowed():
    def ask(_, x):
        answers = [TRACED[name](x) for name in ("type", "fake mode", "export")]
        return 0.0 if any(answers) else float(len(x) - len(x))

    assert certify(Constant(ask).eval(), IMAGES, LABELS, "R(1)", attack=Attack(samples=4)).verdicts == ["certified"] * 2


@pytest.mark.parametrize("switch", ["settrace", "setprofile"])
def test_debuggers_and_profilers_go_on(switch):
    """Nothing of Python's is switched for the comparison; a `cProfile.Profile` could not be switched on again."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        assert (
            certify(Constant().eval(), IMAGES, LABELS, "R(1)", attack=Attack(samples=4)).verdicts == ["certified"] * 2
        )
    finally:
        profile.disable()
    seen = set()

    def watch(frame, _event, _argument):
        seen.add(frame.f_code.co_name)

    before = getattr(sys, switch.replace("set", "get"))()
    getattr(sys, switch)(watch)
    try:
        certify(Constant().eval(), IMAGES, LABELS, "R(1)", attack=Attack(samples=4))
        assert getattr(sys, switch.replace("set", "get"))() is watch
    finally:
        getattr(sys, switch)(before)
    assert {"read_network", "forward", "__torch_function__"} <= seen


def test_a_mean_over_the_batch_is_refused():
    model = Constant(lambda _, x: 1e-3 * first(x - x.mean(0, keepdim=True))).eval()
    with pytest.raises(InputError, match="batch dimension"):
        certify(model, IMAGES, LABELS, "R(30)", attack=Attack(samples=4))


def test_what_a_network_may_keep():
    """Its last images, a cache that the first call fills, tables and locks do not change the answer."""

    def remember(m, x):
        m.kept.last = x
        return m.cache.setdefault(len(x), 0.0 * len(m.table))

    tables = [1, 2, np.arange(3), {"a": (torch.ones(2), {4})}]
    model = Constant(remember, kept=Kept(), cache={}, table=tables, lock=threading.Lock())
    model.kept.again = model.kept
    assert certify(model.eval(), IMAGES, LABELS, "R(1)", attack=Attack(samples=4)).verdicts == ["certified"] * 2


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return 2 * x

    @staticmethod
    def backward(_, gradient):
        return 2 * gradient


def without_gradients(_, x):
    with torch.no_grad():
        return first(x) - first(x)


def fills_a_cache(m, x):
    if x.dtype not in m.cache:
        m.cache[x.dtype] = torch.zeros(1)
    return m.cache[x.dtype]


def says_something(_, x):
    logging.getLogger("anything").info("%s", x.shape)
    warnings.warn("something", stacklevel=1)
    return 0.0


def dropout_first(m, x):
    kept = first(x)
    dropped = m.layer(kept)
    return kept + dropped - 2 * kept


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.end = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        self.other.weight = self.one.weight

    @torch.no_grad()
    def forward(self, x):
        return self.end(torch.relu(self.other(torch.relu(self.one(x.flatten(1))))))


def hooked():
    model = Constant()
    model.fc.register_forward_hook(lambda _module, _inputs, outputs: 2 * outputs)
    model.register_forward_hook(lambda _module, _inputs, outputs: 2 * outputs)
    return model


FAITHFUL = {
    "no_grad inside": lambda: Constant(without_gradients),
    "an autograd function": lambda: Constant(lambda _, x: Twice.apply(first(x)) - 2 * first(x)),
    "shared weights, and a decorator": Shared,
    "weight norm": lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(16, 2))),
    "a cache": lambda: Constant(fills_a_cache, cache={}),
    "a table of a function": lambda: Constant(lambda *_: functools.lru_cache(lambda: torch.zeros(1))()),
    "messages": lambda: Constant(says_something),
    "a dropout's input": lambda: Constant(dropout_first, layer=nn.Dropout()),
    "a number from a weight": lambda: Constant(
        lambda m, x: 0 * first(x) * m.scale.item(), scale=nn.Parameter(torch.ones(()))
    ),
    "a number from a tensor": lambda: Constant(lambda m, _: 0.0 * float(m.scale), scale=torch.ones(())),
    "a tensor in a list": lambda: Constant(lambda m, _: 0.0 * m.scales[0], scales=[torch.ones(1)]),
    "a new tensor": lambda: Constant(lambda *_: torch.tensor([0.0])),
    "a partial function": lambda: Constant(
        lambda m, x: m.part(first(x)) - m.part(first(x)), part=functools.partial(torch.clamp, min=0.25, max=0.5)
    ),
    "hooks": hooked,
    "a lock": lambda: Constant(lock=threading.Lock()),
}


@pytest.mark.parametrize("name", FAITHFUL)
def test_what_forward_may_do(name):
    with proof_arithmetic(torch.device("cpu")), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_network(FAITHFUL[name]().eval(), (1, 4, 4), IMAGES)


def test_the_network_without_these_is_certified():
    assert [
        result.verdict
        for result in certify(Constant().eval(), IMAGES, LABELS, "R(30)", attack=Attack(samples=4)).results
    ] == ["certified"] * 2


@pytest.mark.parametrize("size", [1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("relative", [1e-5, 1e-3])
def test_a_small_difference_of_small_outputs_is_seen(size, relative, monkeypatch):
    """The comparison is relative to each output, not to 1 or to the largest one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    with torch.no_grad():
        model[1].weight.mul_(torch.tensor([[1e3], [1.0], [1.0]]) * size)
    forward = model.forward
    factors = torch.tensor([1, 1 + relative, 1])

    def untraced(x):
        return forward(x) * factors if type(x) is torch.Tensor else forward(x)

    monkeypatch.setattr(model, "forward", untraced)
    monkeypatch.setattr(agreement, "_compare_calls", lambda *_: None)  # else the calls differ, whatever the size
    with proof_arithmetic(torch.device("cpu")), pytest.raises(InputError, match=r"where rounding explains"):
        read_network(model, (1, 4, 4), IMAGES)


class ActNorm(nn.Module):
    """Takes its scale from the first batch that it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if type(x) is torch.Tensor and not self.ready:
            self.scale.copy_(x.std())
            self.ready.fill_(True)
        return x / self.scale


def test_first_batches_are_not_taken_for_parameters():
    model = nn.Sequential(ActNorm(), nn.Flatten(), nn.Linear(16, 2)).eval()
    with pytest.raises(InputError, match=r"changes its own weights.*scale.*call model\(images\) once"):
        certify(model, IMAGES, LABELS, "R(1)")
    assert float(model[0].scale) == 1.0
    assert not bool(model[0].ready)


class FlagActNorm(nn.Module):
    """Remembers in a Python attribute, or in an object of its own, that it has taken its scale."""

    def __init__(self, in_object=False, weight=True):
        super().__init__()
        self.ready = Kept()
        self.in_object, self.done = in_object, False
        self.scale = nn.Parameter(torch.ones(1)) if weight else torch.ones(1)

    def forward(self, x):
        if not (self.ready.calls if self.in_object else self.done):
            self.scale.data.copy_(x.std() + 1)
            self.ready.calls, self.done = 1, True
        return x / self.scale


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("in_object", [True, False])
def test_a_refusal_changes_nothing(in_object, weight):
    """Half of an initialization would be worse than none: a second call would certify a layer without its scale."""
    norm = FlagActNorm(in_object, weight)
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(16, 2)).eval()
    for _ in range(2):
        with pytest.raises(InputError, match=r"call model\(images\) once on data of yours"):
            certify(model, IMAGES, LABELS, "R(1)", attack=Attack(samples=4))
        assert (norm.scale.item(), norm.done, norm.ready.calls) == (1.0, False, 0)
    labels = model(IMAGES).argmax(1)
    assert certify(model, IMAGES, labels, "R(0.01)", attack=Attack(samples=4)).verdicts == ["certified"] * 2


def test_a_refusal_changes_no_attribute_of_what_cannot_be_copied():
    norm = FlagActNorm()
    norm.lock = threading.Lock()
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(16, 2)).eval()
    for _ in range(2):
        with pytest.raises(InputError, match="changes its own weights"):
            certify(model, IMAGES, LABELS, "R(1)", attack=Attack(samples=4))
        assert (norm.scale.item(), norm.done) == (1.0, False)


class Buffered(Constant):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def test_buffers_that_are_not_saved_are_put_back():
    model = Buffered().eval()
    with pytest.raises(InputError, match=r"changes its own weights or buffers.*calls"):
        certify(model, IMAGES, LABELS, "R(1)", attack=Attack(samples=4))
    assert float(model.calls) == 0


def test_parameters_that_do_not_exist_yet():
    with pytest.raises(InputError, match=r"parameters that only its first call makes.*once"):
        certify(nn.Sequential(nn.Flatten(), nn.LazyLinear(2)).eval(), IMAGES, LABELS, "R(1)")


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.body(x))


def deep(blocks):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        *[Residual(8) for _ in range(blocks)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def cancelling():
    """Build outputs that are the difference of two large numbers."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[1].weight[8:] = model[1].weight[:8]
        model[1].bias[8:] = model[1].bias[:8]
        model[3].weight[:, 8:] = -model[3].weight[:, :8]
        model[3].weight.mul_(1e6)
    return model


NETWORKS = {
    "deep": lambda: deep(12),
    "cancelling": cancelling,
    "large weights": lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(32, 3)),
    "tanh": lambda: nn.Sequential(
        nn.Flatten(), *[m for _ in range(6) for m in (nn.Linear(16, 16), nn.Tanh())], nn.Linear(16, 3)
    ),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_rounding_is_no_other_function(name, dtype):
    for seed in range(2):
        torch.manual_seed(seed)
        model = NETWORKS[name]().to(dtype).eval()
        for parameter in model.parameters():
            parameter.mul_(1 + 3 * seed * torch.rand(1, dtype=dtype))
        with proof_arithmetic(torch.device("cpu")):
            read_network(model, (1, 4, 4), IMAGES.to(dtype), 5 * torch.randn(3, 1, 4, 4, dtype=dtype))


def test_an_evaluation_that_overflows_is_no_other_function():
    """In exact arithmetic everything is finite; an order of the sum overflows."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[3e38] * 8 + [-3e38] * 8, [0.0] * 16]))
    with proof_arithmetic(torch.device("cpu")):
        read_network(model, (1, 4, 4), IMAGES)
