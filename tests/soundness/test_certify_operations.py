# ruff: noqa: ARG005 - the networks are lambdas of (modules, x)
"""Every operation through `certify`: networks wrong by a hair at one parameter must not be certified.

The search may refine and may bound backwards through the network; this is where a wrong rule on that way would show.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import letters_of
from forms import in_float64
from oracle import transformed
from planted import plant
from small_networks import SUPPORTED, Function, build
from torch import Tensor, nn

from tiltproof import Budget, InputError, Verdict, certify, parse

TEXTS = ("R(4)", "Tu(0.4), B(0.05)", "B(0.04), Sc(5); padding=border")


def sampled_margins(model: nn.Module, image: Tensor, label: int, transform, number: int) -> tuple[Tensor, Tensor]:
    """Margins at a fine grid of parameters, float64."""
    axes = [
        torch.linspace(a, b, number, dtype=torch.float64) for a, b in zip(transform.low, transform.high, strict=True)
    ]
    thetas = torch.cartesian_prod(*axes).view(-1, len(axes))
    with torch.no_grad():
        pictures = transform.apply(image.double()[None].expand(len(thetas), -1, -1, -1), thetas)
        outputs = in_float64(model)(pictures.contiguous())
    others = outputs.clone()
    others[:, label] = -torch.inf
    return outputs[:, label] - others.max(1).values, thetas


@pytest.mark.parametrize("name", SUPPORTED)
def test_wrong_by_a_hair_is_never_certified(name):
    transform = parse(TEXTS[sum(map(ord, name)) % len(TEXTS)])
    images = torch.rand(2, 2, 6, 5, generator=torch.Generator().manual_seed(len(name)))
    for n, image in enumerate(images):
        net = build(SUPPORTED[name], n)
        with torch.no_grad():
            label = int(net(image[None].clone()).argmax())
        margins, thetas = sampled_margins(net, image, label, transform, 301 if len(transform.parts) == 1 else 41)
        shift = torch.zeros(3)
        shift[label] = -(margins.min() + 1e-3 * margins.abs().max())
        model = Function(lambda m, x: m.net(x) + m.shift, net=net, shift=shift).eval()
        after, _ = sampled_margins(model, image, label, transform, 3)
        worst = thetas[margins.argmin()]
        theta = [float(t) for t in worst]
        exact = torch.tensor(
            transformed(image.double().numpy(), letters_of(transform), theta, transform.padding).floats()
        )
        with torch.no_grad():
            truth = in_float64(model)(exact[None])[0]
        assert truth[label] < truth[[k for k in range(3) if k != label]].max(), "the plant itself"
        try:
            certificate = certify(
                model, image[None], torch.tensor([label]), transform, samples=1, budget=Budget(boxes=300)
            )
        except InputError as error:
            pytest.fail(f"refused: {error}")
        assert certificate.verdicts[0] is not Verdict.CERTIFIED, (n, theta, certificate.margins)
        if certificate.verdicts[0] is Verdict.UNKNOWN:
            assert certificate.margins[0] <= after.min() + 1e-9


@pytest.mark.parametrize("name", SUPPORTED)
def test_right_by_a_little_is_proved_with_an_honest_margin(name):
    """The margin stays above a tenth of its own variation; whatever is proved lies below every sampled margin."""
    transform = parse(TEXTS[(1 + sum(map(ord, name))) % len(TEXTS)])
    image = torch.rand(2, 6, 5, generator=torch.Generator().manual_seed(1 + len(name)))
    net = build(SUPPORTED[name], 7)
    with torch.no_grad():
        label = int(net(image[None].clone()).argmax())
    margins, _ = sampled_margins(net, image, label, transform, 301 if len(transform.parts) == 1 else 41)
    shift = torch.zeros(3)
    shift[label] = -margins.min() + 0.1 * (margins.max() - margins.min()) + 1e-4
    model = Function(lambda m, x: m.net(x) + m.shift, net=net, shift=shift).eval()
    certificate = certify(model, image[None], torch.tensor([label]), transform, samples=1, budget=Budget(boxes=200))
    margins, _ = sampled_margins(model, image, label, transform, 301 if len(transform.parts) == 1 else 41)
    assert certificate.verdicts[0] is not Verdict.FALSIFIED
    assert certificate.margins[0] <= margins.min() + 1e-9


def alias_spellings() -> dict:
    """Ways to write y = relu(y) in place, so that the old name of y means the new value."""
    return {
        "relu_": lambda m, y: y.relu_(),
        "F.relu_": lambda m, y: F.relu_(y),
        "inplace argument": lambda m, y: F.relu(y, inplace=True),
        "module": lambda m, y: m.relu(y),
        "through identity": lambda m, y: m.relu(m.identity(y)),
        "through dropout": lambda m, y: m.relu(m.dropout(y)),
        "through functional dropout": lambda m, y: F.relu_(F.dropout(y, 0.5, m.training)),
        "through dropout2d": lambda m, y: F.relu_(m.dropout2d(y.view(-1, 2, 1, 1))),
        "through feature dropout": lambda m, y: F.relu_(F.alpha_dropout(y, 0.5, m.training)),
        "through a view": lambda m, y: y.view(-1, 1, 2).relu_(),
        "through a slice": lambda m, y: y[:, :].relu_(),
        "through a permutation": lambda m, y: F.relu_(y.t()),
        "through detach": lambda m, y: y.detach().relu_(),
        "through contiguous": lambda m, y: y.contiguous().relu_(),
        "through to": lambda m, y: y.to(y.dtype).relu_(),
        "through flatten": lambda m, y: y.flatten(1).relu_(),
        "through reshape": lambda m, y: y.reshape(-1, 2).relu_(),
        "through float": lambda m, y: y.float().relu_(),
        "through expand_as": lambda m, y: y.expand_as(y).relu_(),
        "through unsqueeze": lambda m, y: y.unsqueeze(1).relu_(),
        "through chunk": lambda m, y: [part.relu_() for part in y.chunk(2, 1)],
        "through avg pool of one": lambda m, y: F.relu_(F.adaptive_avg_pool2d(y.view(-1, 2, 1, 1), (1, 1))),
        "through padding of none": lambda m, y: F.relu_(F.pad(y, (0, 0))),
        "through cat of one": lambda m, y: F.relu_(torch.cat([y], 1)),
        "through clone": lambda m, y: F.relu_(y.clone()),
        "through times one": lambda m, y: F.relu_(y * 1),
        "out argument": lambda m, y: torch.clamp(y, min=0, out=y),
        "copy_": lambda m, y: y.copy_(F.relu(y)),
        "data": lambda m, y: y.data.relu_(),
    }


@pytest.mark.parametrize("spelling", alias_spellings())
def test_in_place_relu_under_another_name(spelling):
    """Margin 1 - 2 relu(hat) - relu(-5): a reader who misses that y has changed sees 6 - 2 hat, never below 4."""
    transform = parse("Tu(2)")
    for seed in range(20):
        planted, picture = plant(["Tu"], transform.low, transform.high, [1.234], seed=seed)

        def body(m, x):
            y = m.last(F.relu(m.first(x.flatten(1))))
            m.spell(m, y)
            return m.read(y)

        last, read = nn.Linear(2, 2), nn.Linear(2, 2)
        with torch.no_grad():
            last.weight.copy_(torch.tensor([[-1.0, -1.0], [0.0, 0.0]]))
            last.bias.copy_(torch.tensor([1.0, -5.0]))
            read.weight.copy_(torch.tensor([[-2.0, -1.0], [0.0, 0.0]]))
            read.bias.copy_(torch.tensor([1.0, 0.0]))
        model = Function(
            body, first=planted[1], last=last, read=read, relu=nn.ReLU(inplace=True), identity=nn.Identity(),
            dropout=nn.Dropout(), dropout2d=nn.Dropout2d(), spell=alias_spellings()[spelling],
        ).eval()  # fmt: skip
        exact = in_float64(model)
        with torch.no_grad():
            here = exact(torch.tensor(transformed(picture.double().numpy(), ["Tu"], [1.234]).floats())[None])[0]
            clean = exact(picture.double()[None])[0]
        if (
            clean[0] > clean[1] or here[0] > 3
        ):  # right at rest; or this spelling copies, and the margin is really above 3
            break
    try:
        certificate = certify(model, picture[None], torch.tensor([0]), transform, samples=1, budget=Budget(boxes=500))
    except InputError:
        return
    assert (certificate.verdicts[0] is Verdict.CERTIFIED) <= bool(here[0] > here[1]), float(here[0] - here[1])
