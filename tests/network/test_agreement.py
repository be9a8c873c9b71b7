"""The certificate is about the module itself: a graph that computes anything else is refused, and no faithful one is."""

from __future__ import annotations

import itertools
import random
import secrets
import threading

import numpy as np
import pytest
import torch
from torch import nn

from tiltproof import InputError, UnsupportedOperation, certify
from tiltproof.network import proof_arithmetic, read_network

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
        certify(model, IMAGES, LABELS, "R(30)", samples=4)
    assert not isinstance(caught.value, UnsupportedOperation)
    assert "What to do:" in str(caught.value)


def test_a_mean_over_the_batch_is_refused():
    model = Constant(lambda _, x: 1e-3 * first(x - x.mean(0, keepdim=True))).eval()
    with pytest.raises(InputError, match="batch dimension"):
        certify(model, IMAGES, LABELS, "R(30)", samples=4)


def test_what_a_network_may_keep():
    """Its last images, a cache that the first call fills, tables and locks do not change the answer."""

    def remember(m, x):
        m.kept.last = x
        return m.cache.setdefault(len(x), 0.0 * len(m.table))

    tables = [1, 2, np.arange(3), {"a": (torch.ones(2), {4})}]
    model = Constant(remember, kept=Kept(), cache={}, table=tables, lock=threading.Lock())
    model.kept.again = model.kept
    assert certify(model.eval(), IMAGES, LABELS, "R(1)", samples=4).verdicts == ["certified"] * 2


def test_the_network_without_these_is_certified():
    assert [result.verdict for result in certify(Constant().eval(), IMAGES, LABELS, "R(30)", samples=4).results] == [
        "certified"
    ] * 2


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
