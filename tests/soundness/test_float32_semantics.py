"""With float32 semantics every float32 evaluation of the network stays inside the bounds, in any order of summation."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.forms import candidates, make_form, points
from tests.support.small_networks import SHAPE, SUPPORTED, build, in_turn
from tiltproof import BranchAndBound, InputError, Verdict, bound_pixels, certify, parse
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import margins, read_network, refine, run
from tiltproof.verify.options import BOUNDS

pytestmark = pytest.mark.usefixtures("in_proof")

UNIT = 2.0**-24


class Evaluation:
    """numpy float32 with a random order for every sum, sometimes with fused multiply-add."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def sum(self, terms, weights=None):
        """Sum over the last axis; `weights` multiply the terms first, or are fused into the additions."""
        order = self.orders()[self.rng.integers(4)](terms if weights is None else terms * weights)
        total = np.zeros(terms.shape[:-1], np.float32)
        fused = self.rng.random() < 0.5
        for k in order:
            term = terms[..., k]
            if weights is None:
                total = total + term
            elif fused:  # the product of two float32 numbers is exact in float64
                total = (total.astype(np.float64) + term.astype(np.float64) * weights[..., k]).astype(np.float32)
            else:
                total = total + term * weights[..., k]
        return total

    def orders(self):
        size = lambda products: np.abs(products).reshape(-1, products.shape[-1]).mean(0)  # noqa: E731
        count = lambda products: products.shape[-1]  # noqa: E731
        return (
            lambda products: self.rng.permutation(count(products)),
            lambda products: np.argsort(size(products)),
            lambda products: np.argsort(-size(products)),
            lambda products: np.argsort(products.reshape(-1, count(products)).mean(0)),
        )

    def layer(self, layer, x):
        if isinstance(layer, nn.Sequential):
            for each in layer:
                x = self.layer(each, x)
            return x
        if isinstance(layer, Residual):
            return x + self.layer(layer.inside, x)
        if isinstance(layer, nn.Flatten):
            return x.reshape(len(x), -1)
        if isinstance(layer, nn.ReLU):
            return np.maximum(x, 0)
        if isinstance(layer, nn.LeakyReLU):
            return np.where(x > 0, x, x * np.float32(layer.negative_slope))
        if isinstance(layer, nn.Tanh):
            return np.tanh(x)
        if isinstance(layer, nn.Linear):
            columns = np.concatenate([x, np.ones((len(x), 1), np.float32)], 1)[:, None, :]
            weights = np.concatenate([layer.weight.numpy(), layer.bias.numpy()[:, None]], 1)[None]
            return self.sum(np.broadcast_to(columns, (len(x), *weights.shape[1:])), weights)
        if isinstance(layer, nn.Conv2d):
            columns = nn.functional.unfold(torch.tensor(x), layer.kernel_size, 1, layer.padding, layer.stride).numpy()
            columns = np.concatenate([columns, np.ones_like(columns[:, :1])], 1).transpose(0, 2, 1)[:, :, None, :]
            weights = np.concatenate(
                [layer.weight.numpy().reshape(len(layer.bias), -1), layer.bias.numpy()[:, None]], 1
            )
            shape = (*columns.shape[:2], *weights.shape)
            result = self.sum(np.broadcast_to(columns, shape), weights).transpose(0, 2, 1)
            size = x.shape[2] + 2 * layer.padding[0] - layer.kernel_size[0] + 1
            return result.reshape(len(x), -1, size, size)
        if isinstance(layer, nn.BatchNorm2d):
            mean, variance, gain, shift = (
                tensor.detach().numpy()[:, None, None]
                for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
            )
            inverse = np.float32(1) / np.sqrt(variance + np.float32(layer.eps))
            if self.rng.random() < 0.5:
                return (x - mean) * inverse * gain + shift
            scale = inverse * gain
            return x * scale + (shift - mean * scale)
        assert isinstance(layer, nn.AvgPool2d)
        k = layer.kernel_size
        blocks = x.reshape(*x.shape[:2], x.shape[2] // k, k, x.shape[3] // k, k).transpose(0, 1, 2, 4, 3, 5)
        return self.sum(blocks.reshape(*blocks.shape[:4], -1)) / np.float32(k * k)


class Residual(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return x + self.inside(x)


def make_network(kind, seed):
    """Build networks of every operation, at a scale where rounding shows."""
    layers = {
        "plain": [
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        ],
        "batch norm": [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)],
        "residual": [
            nn.Conv2d(1, 2, 3, padding=1),
            Residual(nn.Sequential(nn.LeakyReLU(0.1), nn.Conv2d(2, 2, 3, padding=1))),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(18, 3),
        ],
        "cancelling": [nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, 3)],
        "cancelling last": [nn.Flatten(), nn.Linear(36, 3)],
        "tanh last": [nn.Flatten(), nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 3), nn.Tanh()],
    }[kind]
    model = nn.Sequential(*layers).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                values = torch.randn(tensor.shape, generator=generator) * (0.3 if kind == "tanh last" else 1)
                tensor.copy_(values.abs() + 0.01 if "running_var" in name else values)
        if "cancelling" in kind:
            model[1].weight[: 6 if kind == "cancelling" else 1] = LOST_ONES
            model[1].bias[: 6 if kind == "cancelling" else 1] = 200  # far above zero, so that no ReLU hides it
    return model


LOST_ONES = torch.tensor([2.0**25, -(2.0**25), *[1.0] * 34])
"""Times 1/2 and summed: 17; but from the lowest term to the highest float32 gives 0, because 2^24 + 1/2 rounds to 2^24."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "batch norm", "residual", "cancelling", "cancelling last", "tanh last"])
@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_every_evaluation_is_inside(kind, seed, dtype):
    model, transform = make_network(kind, seed), parse("R(2), B(0.01)")
    images = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    if "cancelling" in kind:
        images, transform = torch.full_like(images, 0.5), parse("C(2), B(0.01)")
    network = read_network(model, (1, 6, 6), images).network_as(dtype, UNIT)
    for half in (0.0, 1e-6, 0.3):  # of a box: at a point only rounding is left
        middle = 0.0 if "cancelling" in kind else 0.5
        low, high = [middle - half, 0.0], [middle + half, 0.0]
        pixels = bound_pixels(images.double(), transform, low=low, high=high)
        forms = run(network, pixels.to(dtype))
        outputs, label = forms[network.output], torch.tensor([0])
        lowest = margins(network, forms, label).lower[0, 1:].double().numpy()
        back, _ = refine(network, forms, label, torch.tensor([0, 0]), torch.tensor([1, 2]))
        for trial in range(12):
            share = np.random.default_rng(trial).uniform(-half, half)
            image = transform.apply(images.double(), torch.tensor([middle + share, 0.0])).float().numpy()
            answer = Evaluation(trial).layer(model, image)[0].astype(np.float64)
            assert (answer >= outputs.lower[0].double().numpy()).all()
            assert (answer <= outputs.upper[0].double().numpy()).all()
            difference = answer[0] - answer[1:]
            assert (difference >= lowest).all()
            assert (difference >= back.numpy()).all()


@pytest.mark.parametrize("name", in_turn(SUPPORTED, 0, 2))
@torch.no_grad()
def test_evaluations_of_every_operation_are_inside(name):
    """torch evaluates a batch, single images and both memory formats; in small boxes little but rounding counts."""
    model = build(SUPPORTED[name], 3)
    network = read_network(model, SHAPE, make_form(SHAPE, 1, 0).center)
    for seed, (scale, dtype) in enumerate([(0.0, torch.float32), (1e-6, torch.float64), (0.1, torch.float32)]):
        form = make_form(SHAPE, 1, seed, scale=scale)
        live = network.network_as(dtype, UNIT)
        forms = run(live, form.to(dtype))
        labels = torch.tensor([0, 2, 1])
        bounds = [(forms[live.output], None), (margins(live, forms, labels), labels)]
        e, s = candidates(form, seed)
        for members in points(form, e, s).float():  # whose rounding to float32 belongs to the evaluation
            answers = [model(members), torch.cat([model(member[None]) for member in members])]
            if members.ndim == 4 and not name.startswith("view"):
                answers.append(model(members.contiguous(memory_format=torch.channels_last)))
            for answer in (each.double() for each in answers):
                for bound, label in bounds:
                    value = answer if label is None else answer.gather(1, label[:, None]) - answer
                    assert (value >= bound.lower.double()).all()
                    assert (value <= bound.upper.double()).all()


def cancelling():
    """f_0 is 17 as a real number and 0 in an unlucky order; f_1 is 8."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([LOST_ONES, torch.zeros(36)]))
        model[1].bias.copy_(torch.tensor([0.0, 8.0]))
    return model, torch.full((1, 1, 6, 6), 0.5), torch.tensor([0])


def test_what_holds_for_real_numbers_only():
    problem = cancelling()
    assert certify(*problem, "B(1e-12)", search=BranchAndBound(max_boxes=64)).verdicts == [Verdict.CERTIFIED]
    assert certify(*problem, "B(1e-12)", search=BranchAndBound(max_boxes=64), semantics="float32").verdicts == [
        Verdict.UNKNOWN
    ]
    model, image, _ = problem
    terms = (image.flatten() * model[1].weight[0]).detach().sort().values.numpy()
    total = np.float32(0)
    for term in terms:
        total += term
    assert total < 8  # wrong
    assert math.fsum(terms) == 17


@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_float32_certifies_less_than_real_but_most(method):
    model = make_network("plain", 1)
    images = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    labels = model(images).argmax(1)
    real, strict = (
        certify(model, images, labels, "R(1)", bounds=BOUNDS[method], semantics=each) for each in ("real", "float32")
    )
    for one, other in zip(real.results, strict.results, strict=True):
        assert other.verdict is not Verdict.CERTIFIED or one.verdict is Verdict.CERTIFIED
    assert strict.count(Verdict.CERTIFIED) >= real.count(Verdict.CERTIFIED) - 1 > 4


@torch.no_grad()
def test_an_overflow_on_the_way_is_no_proof():
    """The real margin is 1e36, far above rounding, but a sum may pass through infinity: in the order 0, 3, 1, 2, not in torch's."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    model[1].weight.copy_(torch.tensor([[3e38, -3e38, -3e38, 3e38], [0, 0, 0, 0]]))
    model[1].bias.copy_(torch.tensor([1e36, 0.0]))
    problem = model, torch.full((1, 1, 2, 2), 0.9), torch.tensor([0])
    if not model(problem[1]).isfinite().all():  # this machine's library takes the unlucky order
        with pytest.raises(InputError, match="are not finite numbers"):
            certify(*problem, "B(1e-12)")
        return
    assert certify(*problem, "B(1e-12)", search=BranchAndBound(max_boxes=64)).verdicts == [Verdict.CERTIFIED]
    assert certify(*problem, "B(1e-12)", semantics="float32", search=BranchAndBound(max_boxes=64)).verdicts == [
        Verdict.UNKNOWN
    ]


def test_a_float64_model_has_no_float32_evaluation():
    model, image, label = cancelling()
    with pytest.raises(InputError, match="float32 models only"):
        certify(model.double(), image.double(), label, "B(1e-12)", semantics="float32")
    with pytest.raises(InputError, match="unknown semantics"):
        certify(model.float(), image, label, "B(1e-12)", semantics="bf16")


class Chain(nn.Module):
    """A fixed function of the image, then a trivial linear layer to two classes."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function, self.last = function, nn.Linear(1, 2)
        for name, value in buffers.items():
            self.register_buffer(name, torch.tensor(value))
        with torch.no_grad():
            self.last.weight.copy_(torch.tensor([[1.0], [0.0]]))
            self.last.bias.copy_(torch.tensor([-0.1, 0.0]))

    def forward(self, x):
        return self.last(self.function(self, x))


FRAGILE = {  # functions of (module, image)
    "a mean whose sum overflows": lambda _, x: (x * 1.3e36).mean((2, 3)) * 1e-36,
    "a sum over a window that overflows": lambda _, x: F.avg_pool2d(x * 1.3e36, 28).flatten(1) * 1e-36,
    "a divisor that may be flushed": lambda _, x: x.mean((2, 3)) * 1e-3 / 5e-39 * 5e-36,
    "a variance that may be flushed": lambda m, x: F.batch_norm(
        x.mean((2, 3)) * 1e-19, m.zero, m.variance, None, None, False, 0.1, 1e-300
    ),
    "a weight that may be flushed": lambda m, x: F.batch_norm(
        x.mean((2, 3)) * 1e36, m.zero, m.one, m.small, None, False, 0.1, 1e-5
    ),
    "a constant that is no float32 number": lambda _, x: x.mean((2, 3)) * 1e-5 * 1e39 * 1e-34,
}


def certified_in_float32(model, image, label):
    """Certify; a network that answers the image itself with infinity is refused before anything is proved."""
    job = partial(certify, model, image, label, "B(0.1)", semantics="float32", search=BranchAndBound(max_boxes=60))
    if not model(image).isfinite().all():
        with pytest.raises(InputError, match="are not finite numbers"):
            job()
        return False
    return job().verdicts[0] is Verdict.CERTIFIED


@pytest.mark.parametrize("name", FRAGILE)
def test_what_an_evaluation_may_lose_on_the_way_is_no_proof(name):
    """Safe as a real-valued function; but a float32 evaluation may overflow, or flush a constant to zero."""
    model = Chain(FRAGILE[name], zero=[0.0], one=[1.0], variance=[1e-39], small=[1e-38]).eval()
    image, label = torch.full((1, 1, 28, 28), 0.5), torch.tensor([0])
    assert not certified_in_float32(model, image, label)


def test_one_tiny_weight_does_no_harm():
    """Weight decay leaves such weights; flushing them would change nothing that matters."""
    model = make_network("plain", 1)
    with torch.no_grad():
        model[3].weight[0, 0] = 1e-40
    images = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    labels = model(images).argmax(1)
    for semantics in ("real", "float32"):
        assert certify(model, images, labels, "R(0.1)", semantics=semantics).verdicts == [Verdict.CERTIFIED] * 4


class AverageLast(nn.Module):
    """Two channels of about 1e36 and 0, whose mean is the network's answer; the sum of the first is beyond float32."""

    def __init__(self):
        super().__init__()
        self.channels = nn.Conv2d(1, 2, 1, bias=False)
        with torch.no_grad():
            self.channels.weight.copy_(torch.tensor([0.5e36, 0.0]).view(2, 1, 1, 1))

    def forward(self, x):
        return self.channels(x).mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_no_pass_proves_what_overflows_in_the_last_operation(dtype):
    """The forward bound is infinite; the backward pass, called alone, must not claim more."""
    model, image = AverageLast().eval(), torch.full((1, 1, 28, 28), 0.9)
    network = read_network(model, (1, 28, 28), image).network_as(dtype, UNIT)
    forms = run(network, bound_pixels(image.double(), "B(0.01)").to(dtype))
    assert forms[network.last.inputs[0]].radius.isfinite().all()
    label = torch.tensor([0])
    assert not margins(network, forms, label).lower[0, 1] > 0
    bound, _ = refine(network, forms, label, torch.tensor([0]), torch.tensor([1]))
    assert not bound[0] > 0


@torch.no_grad()
def test_a_divisor_larger_than_the_window_divides_a_larger_sum():
    """The average is small, but the sum before it is not."""
    pool = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.AvgPool2d(2, divisor_override=2**60), nn.Flatten())
    pool[0].weight.copy_(torch.tensor([0.5e36, 0.0]).view(2, 1, 1, 1))
    image = torch.full((1, 1, 2, 2), 0.9)
    network = read_network(pool.eval(), (1, 2, 2), image).network_as(torch.float64, UNIT)
    forms = run(network, bound_pixels(image.double(), "B(0.01)"))
    channels, pooled = (forms[operation.name] for operation in network.operations[:2])
    assert channels.radius.isfinite().all()
    assert pooled.radius[:, 0].isinf().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("head", ["linear", "convolution"])
def test_weights_of_the_last_layer_may_be_flushed_to_zero(head, dtype):
    """A weight of 2^-127 times an activation of 2^100: evaluations that flush the weight give other answers."""
    make = (
        (lambda n, bias: nn.Linear(1, n, bias=bias))
        if head == "linear"
        else lambda n, bias: nn.Conv2d(1, n, 1, bias=bias)
    )
    first, last = make(1, False), make(2, True)
    layers = [nn.Flatten(), first, last] if head == "linear" else [first, last, nn.Flatten()]
    model = nn.Sequential(*layers).eval()
    with torch.no_grad():
        first.weight.fill_(2.0**100)
        last.weight.zero_()
        last.weight[0] = 2.0**-127
        last.bias.copy_(torch.tensor([0.0, 2.0**-28]))
    image = torch.ones(1, 1, 1, 1)
    network = read_network(model, (1, 1, 1), image).network_as(dtype, 2.0**-24)
    pixels = AffineForm(torch.stack([image, 0 * image]).to(dtype), 0 * image.to(dtype))
    labels, other = torch.tensor([0]), torch.tensor([1])
    with torch.no_grad():
        forms = run(network, pixels)
        bounds = [
            float(margins(network, forms, labels).lower[0, 1]),
            float(refine(network, forms, labels, 0 * other, other)[0]),
        ]
    assert max(bounds) <= -(2.0**-28)
