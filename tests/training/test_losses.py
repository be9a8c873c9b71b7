"""The losses: what they compute, that their bounds hold, and that all randomness comes from (seed, step) alone."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tiltproof
from tiltproof.losses import IBP, PGD, Augmentation, Certified, CertifiedRegression, Ramp, WorstOf
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.fgv import lines_needed, window_bounds
from tiltproof.training import read_recipe, recipes
from tiltproof.training.bounded_network import BoundedNetwork
from tiltproof.training.epoch import make_loss

TRANSFORM = "R(20), B(0.05)"


def problem(outputs=3):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, outputs)
    )
    return model, torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])


def every_loss():
    combinations = [(b, p) for b in ("fgv", "hull", "affine") for p in ("interval", "affine", "backward")]
    certified = {f"{b} {p}": Certified(TRANSFORM, (0.5, 0.01), bounds=b, propagation=p) for b, p in combinations}
    narrow = {"bounds": "affine", "propagation": "affine", "measure": "width"}
    return certified | {
        "width": Certified(TRANSFORM, (0.05, 0.001), **narrow),
        "augmentation": Augmentation(TRANSFORM),
        "worst of": WorstOf(TRANSFORM, 3),
        "pgd": PGD(TRANSFORM, 0.05, 0.02, 2),
        "ibp": IBP(TRANSFORM, 0.05),
    }


@pytest.mark.parametrize("name", every_loss())
def test_a_loss_is_finite_differentiable_and_depends_on_seed_and_step_alone(name):
    model, images, labels = problem()
    loss, twin = every_loss()[name], every_loss()[name]
    value = loss(model, images, labels, 7)
    value.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in model.parameters())
    loss(model, images, labels, 8)  # earlier draws do not matter
    assert torch.equal(twin(model, images, labels, 7).total, loss(model, images, labels, 7).total)
    assert not torch.equal(loss(model, images, labels, 8).clean, value.clean)


@pytest.mark.parametrize("name", every_loss())
def test_two_processes_see_what_one_would(name):
    model, images, labels = problem()
    whole = every_loss()[name](model, images, labels, 3)
    halves = []
    for rank in (0, 1):
        loss = every_loss()[name]
        loss.shard = (rank, 2)
        halves.append(loss(model, images[3 * rank : 3 * rank + 3], labels[3 * rank : 3 * rank + 3], 3))
    assert torch.allclose(sum(half.total for half in halves) / 2, whole.total, atol=1e-5)


def test_the_width_is_what_no_symbol_explains():
    """log of the mean radius of the margins' forms over the mean margin, computed here with the verifier's own forms."""
    model, images, labels = problem()
    loss = Certified(TRANSFORM, (0.4, 0.01), bounds="affine", propagation="affine", measure="width", kappa=(0.5, 0.5))
    value = loss(model, images, labels, 0)
    (parameters, low, high, _) = loss.draw(images, 0)
    rows, transform = torch.arange(len(images)), loss.transform
    pixels = pair_bounds(images.double(), rows, transform, "affine", low, high)
    form = tiltproof.bound_network(model.double(), pixels, labels)
    assert (low <= parameters).all()
    expected = (form.radius.sum(1) / form.center.abs().sum(1)).log().mean()
    assert torch.allclose(value.certified.double(), expected.double(), atol=1e-3)
    assert torch.allclose(value.total, 0.5 * value.clean + 0.5 * value.certified, atol=1e-5)


def test_training_for_width_narrows_bounds():
    model, images, labels = problem()
    loss = Certified(TRANSFORM, (0.4, 0.01), bounds="affine", propagation="affine", measure="width", kappa=(0.0, 0.0))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    values = []
    for _ in range(25):
        value = loss(model, images, labels, 0)
        optimizer.zero_grad()
        value.total.backward()
        optimizer.step()
        values.append(float(value.certified))
    assert values[-1] < values[0] - 0.3


def test_the_width_of_ranges_and_of_backward_bounds_is_refused():
    for kind, propagation in ((Certified, "backward"), (CertifiedRegression, "affine")):
        with pytest.raises(tiltproof.InputError, match="width"):
            kind("R(2)", 0.1, bounds="affine", propagation=propagation, measure="width")
    with pytest.raises(tiltproof.InputError, match="measure"):
        Certified("R(2)", 0.1, measure="breadth")


def test_the_papers_loss_is_its_formula():
    """kappa l(f(P(x, theta)), y) + (1 - kappa) l(f^(P(x, theta +- nu)), y) with the worst output vector f^."""
    model, images, labels = problem()
    loss = Certified(TRANSFORM, (0.5, 0.01), bounds="fgv", kappa=(1.0, 0.25), shared_parameters=True)
    value = loss(model, images, labels, 5)
    parameters = loss.sampler.parameters(5, 6, images)
    assert len(parameters.unique(dim=0)) == 1
    clean = F.cross_entropy(model(loss.transform.apply(images, parameters)), labels)
    low, high = loss.sampler.boxes(parameters, torch.tensor([0.5, 0.01]))
    form = tiltproof.bound_network(model, tiltproof.bound_pixels(images, loss.transform, "fgv", low, high))
    worst = form.upper.scatter(1, labels[:, None], form.lower.gather(1, labels[:, None]))
    assert torch.allclose(value.clean, clean)
    assert torch.allclose(value.certified, F.cross_entropy(worst, labels), rtol=1e-3)
    assert torch.allclose(value.total, 0.25 * value.clean + 0.75 * value.certified)


@pytest.mark.parametrize("propagation", ["interval", "affine", "backward"])
@pytest.mark.parametrize("bounds", ["hull", "affine"])
def test_bounds_of_a_loss_are_those_of_the_verifier(bounds, propagation):
    model, images, labels = problem()
    loss = Certified(TRANSFORM, (1.0, 0.02), bounds=bounds, propagation=propagation)
    low, high = loss.sampler.boxes(loss.sampler.parameters(0, 6, images), torch.tensor([1.0, 0.02]))
    pixels = BoundedNetwork().pixels(images, loss.transform, bounds, low, high, propagation)
    worst = BoundedNetwork().worst_outputs(model, pixels, labels, propagation)
    worst = worst - worst.gather(1, labels[:, None])
    for trial in range(30):
        share = torch.rand(6, 2, generator=torch.Generator().manual_seed(trial), dtype=torch.float64)
        transformed = loss.transform.apply(images.double(), low + (high - low) * share)
        with torch.no_grad():
            outputs = model.double()(transformed)
        model.float()
        assert (outputs - outputs.gather(1, labels[:, None]) <= worst + 1e-4).all()


def test_better_bounds_give_a_smaller_certified_loss():
    model, images, labels = problem()

    def certified(bounds, propagation):
        return float(
            Certified("R(20)", 1.0, bounds=bounds, propagation=propagation)(model, images, labels, 0).certified
        )

    assert certified("fgv", "interval") > certified("hull", "interval")
    assert certified("hull", "interval") > certified("affine", "affine")


def test_boxes_stay_inside_the_range():
    loss = Certified("R(20), B(0.05)", (3.0, 0.2))
    parameters = torch.tensor([[20.0, 0.05], [-19.0, 0.0], [0.0, 0.0]])
    low, high = loss.sampler.boxes(parameters, torch.tensor([3.0, 0.2]))
    assert low.tolist() == [[14.0, -0.05], [-20.0, -0.05], [-3.0, -0.05]]
    assert high.tolist() == [[20.0, 0.05], [-14.0, 0.05], [3.0, 0.05]]


def test_warm_up_and_ramp():
    model, images, labels = problem()
    loss = Certified("R(20)", 1.0, kappa=(1.0, 0.5), ramp=Ramp(warm_up=4, ramp=10))
    assert loss(model, images, labels, 3).certified is None
    middle, end = loss(model, images, labels, 9), loss(model, images, labels, 14)
    assert (middle.kappa, middle.size) == (0.75, 0.5)
    assert (end.kappa, end.size) == (0.5, 1.0)


def test_the_worst_of_some_is_worse_than_one():
    model, images, labels = problem()
    one = sum(float(Augmentation("R(60)")(model, images, labels, step).total.detach()) for step in range(20))
    worst = sum(float(WorstOf("R(60)", 6)(model, images, labels, step).total.detach()) for step in range(20))
    assert worst > one


def test_the_certified_loss_looks_around_the_worst_sample():
    """Clean term: the worst of the samples; certified term: the box around that one, for every second image."""
    model, images, labels = problem()
    loss = Certified("R(60)", 1.0, bounds="affine", propagation="affine", samples=5, every=2)
    value = loss(model, images, labels, 2)
    every = torch.cat([loss.sampler.parameters(2, 6, images, purpose=k) for k in range(5)]).view(5, 6, 1)
    with torch.no_grad():
        losses = torch.stack(
            [F.cross_entropy(model(loss.transform.apply(images, p)), labels, reduction="none") for p in every]
        )
    assert torch.allclose(value.clean, losses.amax(0).mean())
    worst = every[losses.argmax(0), torch.arange(6)]
    low, high = loss.sampler.boxes(worst, torch.tensor([1.0]))
    form = tiltproof.bound_pixels(images[::2], loss.transform, "affine", low[::2], high[::2])
    form.unit = 0.0  # a loss proves nothing
    apart = BoundedNetwork().worst_outputs(model, form, labels[::2], "affine")
    assert torch.allclose(value.certified, F.cross_entropy(apart, labels[::2]), rtol=1e-3)


@pytest.mark.parametrize("propagation", ["interval", "affine", "backward"])
def test_bounds_normalize_by_the_mini_batch_as_the_answers_do(propagation):
    """Empty boxes in training mode: the certified term is the clean term, though the running statistics are far away."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Linear(12, 3),
    )
    model[1].running_mean.fill_(5.0)
    _, images, labels = problem()
    loss = Certified("R(20)", 1e-9, bounds="affine", propagation=propagation, kappa=(0.5, 0.5))
    value = loss(model.train(), images, labels, 0)
    assert torch.allclose(value.clean, value.certified, rtol=1e-3)
    assert not torch.allclose(value.certified, loss(model.eval(), images, labels, 0).certified, rtol=0.01)
    value.total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_regression_draws_both_ends_to_the_label():
    model, images, _ = problem(outputs=1)
    values = torch.linspace(-1, 1, 6)
    loss = CertifiedRegression("R(5)", 0.5, kappa=(0.5, 0.5))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    first = None
    for step in range(60):
        value = loss(model, images, values, step)
        optimizer.zero_grad()
        value.total.backward()
        optimizer.step()
        first = first or float(value.certified)
    assert float(value.certified) < 0.3 * first


def test_spread_is_the_variance_of_answers_without_dropout():
    model, images, _ = problem(outputs=2)
    model = torch.nn.Sequential(torch.nn.Dropout(0.3), model)
    values = torch.rand(6, 2)
    settings = {"kappa": (0.5, 0.5), "samples": 3, "bounds": "affine", "propagation": "affine"}
    apart = []
    for spread in (0.0, 7.0):
        loss = CertifiedRegression("R(20)", 0.5, spread=spread, **settings)
        for step in (0, 3):
            torch.manual_seed(step)
            apart.append(loss(model, images, values, step).total)
    answers = []
    for step in (0, 3):
        (parameters,) = loss.draw(images, step)[:1]
        transformed = loss.transform.apply(images.repeat(3, 1, 1, 1), parameters)
        answers.append(torch.stack(model.eval()(transformed).split(6)))
    model.train()
    for k, answer in enumerate(answers):
        variance = (answer - answer.mean(0)).square().mean()
        assert float(variance) > 1e-6
        assert torch.allclose(apart[2 + k] - apart[k], 7.0 * variance, rtol=1e-4)
    (gradient,) = torch.autograd.grad(apart[2] - apart[0], [model[1][0].weight])
    assert float(gradient.abs().max()) > 0


@pytest.mark.parametrize(("spread", "samples"), [(-1.0, 4), (1.0, 1)])
def test_a_spread_that_cannot_be_is_refused(spread, samples):
    with pytest.raises(tiltproof.InputError, match="spread"):
        CertifiedRegression("R(20)", 0.5, spread=spread, samples=samples)


def test_spread_is_for_numbers_alone():
    recipe = read_recipe("mnist-r30").with_settings(["loss.spread=3.0"])
    with pytest.raises(tiltproof.InputError, match="spread"):
        make_loss(recipe.loss, tiltproof.parse("R(30)"), 10, 0)
    recipe = read_recipe("driving-r2").with_settings(["loss.spread=3.0"])
    assert make_loss(recipe.loss, tiltproof.parse("R(2)"), 10, 0, regression=True).spread == 3.0


@pytest.mark.parametrize("propagation", ["interval", "affine", "backward"])
def test_ranges_of_a_loss_contain_the_outputs_and_backward_is_tighter(propagation):
    model, images, _ = problem(outputs=2)
    loss = CertifiedRegression(TRANSFORM, (1.0, 0.02), bounds="affine", propagation=propagation)
    low, high = loss.sampler.boxes(loss.sampler.parameters(0, 6, images), torch.tensor([1.0, 0.02]))
    pixels = BoundedNetwork().pixels(images, loss.transform, "affine", low, high, propagation)
    with torch.no_grad():
        below, above = BoundedNetwork().output_range(model, pixels, propagation)
        forward = BoundedNetwork().output_range(model, pixels, "interval")
    for trial in range(30):
        share = torch.rand(6, 2, generator=torch.Generator().manual_seed(trial), dtype=torch.float64)
        with torch.no_grad():
            outputs = model.double()(loss.transform.apply(images.double(), low + (high - low) * share))
        model.float()
        assert (outputs >= below - 1e-4).all()
        assert (outputs <= above + 1e-4).all()
    if propagation == "backward":
        assert (below >= forward[0] - 1e-6).all()
        assert float((above - below).mean()) < float((forward[1] - forward[0]).mean())


@pytest.mark.parametrize("kind", ["augmentation", "worst-of", "certified"])
def test_regression_in_a_recipe(kind):
    part = read_recipe("mnist-r30").loss
    part = dataclasses.replace(part, kind=kind, nu=(0.5,), parameters_per_batch="each", samples=3)
    model, images, _ = problem(outputs=1)
    loss = make_loss(part, tiltproof.parse("R(20)"), 100, 0, regression=True)
    values = torch.linspace(-1, 1, 6)
    value = loss(model, images, values, 0)
    value.total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    if kind == "worst-of":
        every = torch.cat([loss.sampler.parameters(0, 6, images, purpose=k) for k in range(3)]).view(3, 6, 1)
        with torch.no_grad():
            errors = torch.stack([(model(loss.transform.apply(images, p))[:, 0] - values) ** 2 for p in every])
        assert torch.allclose(value.clean, errors.amax(0).mean())
    with pytest.raises(tiltproof.InputError, match="regression"):
        make_loss(dataclasses.replace(part, kind="pgd"), tiltproof.parse("R(20)"), 100, 0, regression=True)


def test_every_recipe_makes_its_loss():
    for recipe in recipes():
        loss = make_loss(recipe.loss, tiltproof.parse(recipe.transform), 100, 0, recipe.data.name == "driving")
        assert loss.transform == tiltproof.parse(recipe.transform)
    paper = make_loss(read_recipe("mnist-r30-paper").loss, tiltproof.parse("R(30)"), 100, 0)
    assert (paper.ramp, paper.half_width, paper.kappa, paper.bounds) == (Ramp(1500, 5000), (0.25,), (1.0, 0.5), "fgv")
    assert paper.sampler.shared_parameters


@pytest.mark.parametrize(
    "wrong",
    [{"half_width": (1, 2)}, {"half_width": -1}, {"bounds": "exact"}, {"propagation": "zonotope"}, {"kappa": (2, 0)}],
)
def test_what_cannot_be_meant_is_refused(wrong):
    with pytest.raises(tiltproof.InputError):
        Certified("R(30)", **({"half_width": 0.25} | wrong))


COMPOSITIONS = [
    "R(30)",
    "Tu(2), Tv(2)",
    "Sc(5), R(5), C(5), B(0.01)",
    "Sh(2), R(2), Sc(2), C(2), B(0.001)",
    "C(5), R(5)",
    "Scu(5), Scv(5), Shv(5)",
    "Yaw(10@9), Pitch(10@9), Roll(5)",
]


@pytest.mark.parametrize("text", COMPOSITIONS)
@pytest.mark.parametrize("together", [True, False])
def test_the_window_is_algorithm_1(text, together):
    transform = tiltproof.parse(text)
    images = torch.rand(4, 2, 9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    half = tuple((b - a) / 20 for a, b in zip(transform.low, transform.high, strict=True))
    sampler = Certified(transform, half, shared_parameters=together).sampler
    low, high = sampler.boxes(sampler.parameters(1, 4, images), torch.tensor(half))
    lines = lines_needed(transform, half, 9, 7)
    rows = slice(0, 1) if together else slice(None)
    lower, upper = window_bounds(images, transform, low[rows], high[rows], lines)
    form = pair_bounds(images, torch.arange(4), transform, "fgv", low, high)
    assert torch.allclose(lower, form.lower, atol=1e-9)
    assert torch.allclose(upper, form.upper, atol=1e-9)
