"""Noise after the transformation (`Linf`): bounds against exact numbers and samples, claims, counterexamples, the checker, refusals."""

import json
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from tiltproof import (
    FGV,
    BranchAndBound,
    CheckFailed,
    InputError,
    IntervalHull,
    RunFolder,
    UniformGrid,
    attack,
    bound_network,
    bound_pixels,
    certified_radius,
    certify,
    certify_range,
    check,
    data,
    models,
    parse,
)
from tiltproof.checker.form import Form
from tiltproof.checker.noise import followed, noisy, pushed, read_perturbation
from tiltproof.checker.pixels import transformed
from tiltproof.checker.tiling import read_transform
from tiltproof.enclosures.affine_form import AffineForm, Interval
from tiltproof.losses import Certified
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.noise import noisy_form, noisy_interval, pushed_form
from tiltproof.pixels.polynomial import polynomial_form
from tiltproof.reports import report
from tiltproof.runs.curve import certified_curve
from tiltproof.training import pixel_widths
from tiltproof.transforms import Compose, Linf, Rotation
from tiltproof.transforms.noise import as_text, from_text, perturbed
from tiltproof.verify.shares import nested

EPSILONS = (0.3, 0.01, 1e-9, 1.0)


def problem(channels=1, outputs=3, size=5, seed=0):
    torch.manual_seed(seed)
    images = torch.rand(4, channels, size, size)
    inner = 4 * (size - 2) ** 2
    model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(inner, outputs)).eval()
    with torch.no_grad():
        return model, images, model(images).argmax(1)


def exact(value):
    return Fraction(float(value))


def random_pixels(seed):
    """Forms of pixels whose true values are in [0, 1]: exact ones, and others that reach beyond."""
    torch.manual_seed(seed)
    center = torch.cat([torch.rand(1, 40), torch.tensor([[0.0, 1.0, 0.5, 1e-12, 1 - 2**-53]])], 1).double()
    spread = torch.rand_like(center) * 10.0 ** torch.randint(-9, 0, center.shape) * (torch.rand_like(center) < 0.6)
    return AffineForm(torch.stack([center, spread / 2]), spread / 3)


def members(form, share):
    """The numbers of a form that are in [0, 1], at e = share and the same share of the remainder."""
    e = Fraction(share)
    for c, g, r in zip(form.center[0], form.slopes[0, 0], form.radius[0], strict=True):
        yield min(max(exact(c) + exact(g) * e + exact(r) * e, Fraction(0)), Fraction(1))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_exact_pixel_leaves_its_form(epsilon):
    """The decimal as well as the float; by center, slope and radius themselves, so that no other slack helps."""
    for seed in range(3):
        form = random_pixels(seed)
        up = torch.rand(form.shape) < 0.5
        result, one = noisy_form(form, epsilon), pushed_form(form, epsilon, up)
        for share in (-1, -0.3, 0, 0.7, 1):
            for k, x in enumerate(members(form, share)):
                # the member's own symbol; a clamped member is nearer to the middle, with another remainder
                inside = (
                    exact(form.center[0, k])
                    + (exact(form.slopes[0, 0, k]) + exact(form.radius[0, k])) * Fraction(share)
                    == x
                )
                e = Fraction(share) if inside else None
                for limit in (Fraction(epsilon), Fraction(str(epsilon))):
                    for d in (-limit, limit, limit / 3):
                        contains(result, k, min(max(x + d, Fraction(0)), Fraction(1)), e)
                step = Fraction(epsilon) if up[0, k] else -Fraction(epsilon)
                contains(one, k, min(max(x + step, Fraction(0)), Fraction(1)), e)


def contains(form, k, y, e):
    c, g, r = (exact(each[0, k]) for each in (form.center, form.slopes[0], form.radius))
    assert exact(form.lower[0, k]) <= y <= exact(form.upper[0, k])
    if e is not None:
        assert abs(y - c - g * e) <= r


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_intervals_are_those_of_the_definition(epsilon):
    low, high = torch.sort(torch.rand(2, 50).double(), 0).values
    result, e = noisy_interval(Interval(low, high), epsilon), Fraction(str(epsilon))
    for a, b, least, most in zip(low, high, result.lower, result.upper, strict=True):
        assert exact(least) <= max(Fraction(0), exact(a) - e)
        assert exact(most) >= min(Fraction(1), exact(b) + e)
        assert exact(least) >= max(Fraction(0), exact(a) - e) - Fraction(1, 10**12)


def sampled(images, text, low, high, count, seed=0):
    """Pictures of the set: random parameters of each image's box, random and extreme noise."""
    transform, generator = parse(text), torch.Generator().manual_seed(seed)
    for _ in range(count):
        share = torch.rand(low.shape, generator=generator, dtype=torch.float64)
        plain = transform.apply(images, low + share * (high - low))
        noise = torch.rand(plain.shape, generator=generator, dtype=torch.float64) * 2 - 1
        noise = noise.sign() if share[0, :1].sum() < 0.5 else noise
        yield (plain + noise * transform.noise).clamp(0, 1)


CASES = [
    *((text, method) for text in ("R(20), Linf(0.05)", "C(10), Linf(0.01)") for method in ("affine", "hull", "fgv")),
    ("Linf(0.1)", "affine"),
    ("Linf(0.1)", "hull"),
    ("G(20), Linf(0.02)", "affine"),
    ("Bl(1), Linf(0.02)", "hull"),
    ("Sc(5), R(5), B(0.02), Linf(0.01); padding=border", "affine"),
]


@pytest.mark.parametrize(("text", "method"), CASES)
def test_no_picture_leaves_the_pixel_bounds(text, method):
    torch.manual_seed(1)
    images, transform = torch.rand(3, 1, 6, 6).double(), parse(text)
    images[0] = (images[0] > 0.5).double()  # black and white: the clamp matters
    low, high = (torch.tensor(end, dtype=torch.float64).expand(3, -1) for end in (transform.low, transform.high))
    rows = torch.arange(3)
    forms = [bound_pixels(images, transform, method), bound_pixels(images.float(), transform, method)]
    forms += [pair_bounds(images, rows, transform, method, low, high, quadratic=True)]
    for picture in sampled(images, text, low, high, 60):
        for form in forms:
            assert bool((form.lower.double() - 1e-6 * (form.lower.dtype != torch.float64) <= picture + 1e-12).all())
            assert bool((picture - 1e-12 <= form.upper.double() + 1e-6 * (form.upper.dtype != torch.float64)).all())
    plain = bound_pixels(images, transform.without_noise(), method)
    assert float((forms[0].width - plain.width).max()) > transform.noise / 2


def test_polynomial_forms_leave_noise_to_others():
    images, transform = torch.rand(1, 1, 6, 6).double(), parse("R(1), Linf(0.05)")
    low = torch.zeros(1, 1).double()
    form = polynomial_form(images, torch.zeros(1, dtype=torch.int64), transform, low, low + 0.01, symbols=16)
    inside = (images > 0.06) & (images < 0.94)
    assert float((form.upper - form.lower)[inside].min()) >= 0.1


def by_hand(model, lower, upper):
    """Interval bound propagation through linear and convolutional layers and ReLU."""
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            middle, half = layer((lower + upper) / 2), (upper - lower) / 2
            weight = layer.weight.abs()
            half = (
                nn.functional.linear(half, weight)
                if isinstance(layer, nn.Linear)
                else nn.functional.conv2d(half, weight)
            )
            lower, upper = middle - half, middle + half
        else:
            lower, upper = layer(lower), layer(upper)
    return lower, upper


@torch.no_grad()
def test_bounds_are_never_looser_than_interval_propagation_by_hand():
    for seed in range(2):
        model, images, labels = problem(seed=seed)
        model, images = model.double(), images.double()
        for epsilon in (0.02, 0.2):
            lower, upper = by_hand(model, (images - epsilon).clamp(0, 1), (images + epsilon).clamp(0, 1))
            form = bound_network(model, bound_pixels(images, Linf(epsilon)))
            assert bool((form.lower >= lower - 1e-9).all() and (form.upper <= upper + 1e-9).all())
            margins = (lower.gather(1, labels[:, None]) - upper).scatter(1, labels[:, None], math.inf).amin(1)
            verdicts = certify(model, images, labels, Linf(epsilon)).verdicts
            assert all(
                str(v) == "certified" for v, margin in zip(verdicts, margins.tolist(), strict=True) if margin > 1e-9
            )


OPTIONS = [
    ("R(5), Linf(0.01)", {}),
    ("R(5), Linf(0.01)", {"bounds": IntervalHull()}),
    ("R(5), Linf(0.01)", {"bounds": FGV()}),
    ("R(5), Linf(0.01)", {"search": UniformGrid(16)}),
    ("C(5), B(0.01), Linf(0.004)", {"semantics": "float32"}),
    ("Linf(0.01)", {}),
]


def violations(model, images, certificate, text, count):
    """Sampled pictures of certified images that the network answers differently; half of them follow a gradient."""
    transform, wrong = parse(text), 0
    low, high = (
        torch.tensor(end, dtype=torch.float64).expand(len(images), -1) for end in (transform.low, transform.high)
    )
    certified = torch.tensor([str(verdict) == "certified" for verdict in certificate.verdicts])
    labels = torch.tensor([result.label for result in certificate.results])
    for picture in sampled(images.double(), text, low, high, count):
        picture = picture.float().clamp(0, 1).requires_grad_()
        outputs = model(picture)
        own = outputs.gather(1, labels[:, None])
        others = outputs.scatter(1, labels[:, None], -math.inf).amax(1, keepdim=True)
        (gradient,) = torch.autograd.grad((own - others).sum(), picture)
        with torch.no_grad():
            plain = transform.apply(images, (low + high).float() / 2)
            worse = perturbed(plain, transform.noise * (1 - 1e-6), gradient <= 0)
            for each in (outputs, model(worse)):
                wrong += int(((each.argmax(1) != labels) & certified).sum())
    return wrong


@pytest.mark.parametrize(("text", "options"), OPTIONS)
def test_certified_images_withstand_sampled_noise_and_are_proved_again(text, options, tmp_path):
    model, images, labels = problem()
    certificate = certify(model, images, labels, text, run=RunFolder(tmp_path / "run"), **options)
    assert sum(str(verdict) == "certified" for verdict in certificate.verdicts) >= 2, certificate
    assert violations(model, images, certificate, text, 40) == 0
    checked = check(tmp_path / "run", model, images, labels)
    assert checked.certified == certificate.summary()["certified"]


@pytest.mark.parametrize("options", [{}, {"bounds": IntervalHull()}, {"bounds": FGV()}, {"semantics": "float32"}])
@pytest.mark.parametrize("text", ["Linf(0.3)", "B(0.01), Linf(0.3)", "R(5), Linf(0.3)"])
def test_what_no_attack_finds_is_not_certified(text, options):
    """Class 1 wins where one pixel is brighter than another; the gradient is zero until it is."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 1), nn.ReLU(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        model[1].weight.zero_()[0, 3:5] = torch.tensor([1.0, -1.0])
        model[1].bias.fill_(-0.3)
        model[3].weight.copy_(torch.tensor([[0.0], [10.0]]))
        model[3].bias.copy_(torch.tensor([1.0, 0.0]))
    images = torch.full((2, 1, 3, 3), 0.5)
    certificate = certify(model, images, torch.zeros(2, dtype=torch.int64), text, **options)
    assert [str(verdict) for verdict in certificate.verdicts] == ["unknown"] * 2
    assert {str(result.reason) for result in certificate.results} <= {"noise", "splits"}


def test_more_noise_proves_less():
    model, images, labels = problem()
    margins = []
    for epsilon in (0, 0.003, 0.03, 0.1):
        text = "R(3)" if not epsilon else f"R(3), Linf({epsilon})"
        certificate = certify(model, images, labels, text, search=BranchAndBound(max_boxes=64))
        margins.append(sum(str(verdict) == "certified" for verdict in certificate.verdicts))
    assert margins == sorted(margins, reverse=True)
    assert margins[0] == 4
    assert margins[-1] < 4


def falsified_run(folder, text="R(2), Linf(0.3)"):
    model, images, labels = problem(channels=2)
    certificate = certify(model, images, labels, text, run=RunFolder(folder))
    return model, images, labels, certificate


@pytest.mark.parametrize("text", ["R(2), Linf(0.3)", "Linf(0.3)"])
def test_counterexamples_hold_the_perturbation_that_changes_the_answer(text, tmp_path):
    model, images, labels, certificate = falsified_run(tmp_path / "run", text)
    broken = [result for result in certificate.results if str(result.verdict) == "falsified"]
    assert any(result.perturbation for result in broken)
    for result in broken:
        picture = parse(text).apply(images[result.image][None], torch.tensor([result.counterexample]))
        if result.perturbation is not None:
            picture = perturbed(picture, 0.3, from_text(result.perturbation, (2, 5, 5))[None])
        assert int(model(picture).argmax()) != int(labels[result.image])
    assert check(tmp_path / "run", model, images, labels).counterexamples == len(broken)
    found = attack(model, images, labels, text)
    assert sum(each is not None for each in found.perturbations) > 0
    page = report(tmp_path / "run", model, images, labels)
    assert "noise of at most 0.3 in each pixel" in page.read_text()


def changed(folder, change):
    """Rewrite a run's records, and its digests, so that only what they say can be wrong."""
    import hashlib

    path = folder / "verdicts.jsonl"
    old = path.read_bytes()
    records = [json.loads(line) for line in old.splitlines()]
    change(records)
    new = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    path.write_bytes(new)
    batch = json.loads((folder / "batches.jsonl").read_bytes().splitlines()[0])
    batch |= {"bytes": len(new), "sha256": hashlib.sha256(new).hexdigest()}
    (folder / "batches.jsonl").write_text(json.dumps(batch) + "\n")
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("verdicts.jsonl", "batches.jsonl", "manifest.json"):
        summary["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize("forgery", ["dropped", "inverted", "short", "not text", "elsewhere"])
def test_the_checker_refuses_other_perturbations(forgery, tmp_path):
    model, images, labels, _ = falsified_run(tmp_path / "run")

    def change(records):
        record = next(record for record in records if "perturbation" in record)
        up = from_text(record["perturbation"], (2, 5, 5))
        if forgery == "dropped":
            del record["perturbation"]
        elif forgery == "elsewhere":
            record["counterexample"] = [2.5]
        else:
            record["perturbation"] = {"inverted": as_text(~up), "short": as_text(up[:1]), "not text": "???"}[forgery]

    changed(tmp_path / "run", change)
    with pytest.raises(CheckFailed):
        check(tmp_path / "run", model, images, labels)


def test_the_checker_does_not_take_less_noise_for_more(tmp_path):
    model, images, labels = problem()
    certificate = certify(model, images, labels, "R(2), Linf(0.001)", run=RunFolder(tmp_path / "run"))
    assert certificate.summary()["certified"] == 4
    for name in ("manifest.json", "summary.json"):
        path = tmp_path / "run" / name
        path.write_text(path.read_text().replace("Linf(0.001)", "Linf(0.4)"))
    changed(tmp_path / "run", list)
    with pytest.raises(CheckFailed, match="could not be re-proved"):
        check(tmp_path / "run", model, images, labels)


def test_the_checkers_own_noise_holds_exactly():
    for seed in range(3):
        form = random_pixels(seed)
        mine = Form(torch.cat([form.stack, form.radius[None]])[:, :, :, None, None])
        up = torch.rand(mine.shape) < 0.5
        wide, one = noisy(mine, 0.1), pushed(mine, 0.1, up)
        each = followed(wide)
        assert bool((each.reach >= wide.reach * (1 - 1e-15)).all())
        for share in (-1, 0, 1):
            for k, x in enumerate(members(form, share)):
                where = 0, k, 0, 0
                c, g, r = (exact(row[where]) for row in wide.rows)
                symbol = exact(form.slopes[0, 0, k]) + exact(form.radius[0, k])
                inside = exact(form.center[0, k]) + symbol * share == x  # not clamped to [0, 1]
                for d in (-Fraction(1, 10), Fraction(1, 10), Fraction(0.1)):
                    y = min(max(x + d, Fraction(0)), Fraction(1))
                    assert exact(wide.lower()[where]) <= y <= exact(wide.upper()[where])
                    assert not inside or abs(y - c - g * share) <= r
                step = Fraction(0.1) if up[where] else -Fraction(0.1)
                y = min(max(x + step, Fraction(0)), Fraction(1))
                assert exact(one.lower()[where]) <= y <= exact(one.upper()[where])


def test_the_checker_refuses_ranges_with_noise(tmp_path):
    """No run makes such a claim; a forged one changes its transformation alone."""
    model, images, _ = problem()
    certify_range(model, images, None, "R(2)", run=RunFolder(tmp_path / "run"), search=BranchAndBound(max_boxes=8))
    for name in ("manifest.json", "summary.json"):
        path = tmp_path / "run" / name
        path.write_text(path.read_text().replace('"R(2)"', '"R(2), Linf(0.4)"'))
    changed(tmp_path / "run", list)
    with pytest.raises(CheckFailed, match="has noise"):
        check(tmp_path / "run", model, images, None)


def test_both_readings_of_a_perturbation_agree():
    up = torch.rand(3, 7, 5) < 0.5
    assert torch.equal(from_text(as_text(up), (3, 7, 5)), up)
    assert torch.equal(read_perturbation(as_text(up), (3, 7, 5)), up)
    for text in ("", "A", "é", "AAAA", as_text(torch.ones(200, dtype=torch.bool))):
        with pytest.raises(CheckFailed):
            read_perturbation(text, (3, 7, 5))
        with pytest.raises(ValueError, match="perturbation"):
            from_text(text, (3, 7, 5))


def test_noise_is_the_last_part():
    assert str(parse(" R(5) ,Linf( 0.01 ); padding=border")) == "R(5), Linf(0.01); padding=border"
    assert parse("R(5), Linf(0.01)") == Compose(Rotation(5), Linf(0.01)) != parse("R(5), Linf(0.02)")
    assert parse("R(5), Linf(0.01)") != parse("R(5)")
    assert read_transform("R(5), Linf(0.01)").noise == 0.01
    for text in ("Linf(0.01), R(5)", "Linf(0.1), Linf(0.1)"):
        with pytest.raises(InputError, match="last"):
            parse(text)
        with pytest.raises(CheckFailed):
            read_transform(text)
    for text in ("Linf(0)", "Linf(-0.1)", "Linf(1.5)", "Linf(nan)", "Linf(0:0.1)", "Linf(0.1@3)", "Linf(x)"):
        with pytest.raises(InputError):
            parse(text)
        with pytest.raises(CheckFailed):
            read_transform(text)


def test_what_does_not_know_noise_refuses_it():
    model, images, labels = problem()
    with pytest.raises(InputError, match="regression does not support noise"):
        certify_range(model, images, None, "R(2), Linf(0.01)")
    with pytest.raises(InputError, match="training does not support noise"):
        Certified("R(2), Linf(0.01)", 1.0)
    with pytest.raises(InputError, match="tune does not support noise"):
        pixel_widths(images, "R(2), Linf(0.01)", (1.0,))
    with pytest.raises(InputError, match="splits"):
        certify(model, images, labels, "Linf(0.01)", search=UniformGrid(16))
    certificate = certify(model, images, labels, "Linf(0.01)")
    for ask in (certified_radius, lambda *problem: certified_curve(*problem, certificate)):
        with pytest.raises(InputError, match="a share of a range of parameters, and noise has none"):
            ask(model, images, labels, "Linf(0.01)")


@pytest.mark.parametrize("text", ["R(20), Linf(0.02)", "B(0.1), R(9), Linf(0.01); padding=border"])
def test_radii_with_noise_hold_for_samples_and_are_proved_again(tmp_path, text):
    """Inside a proved share no parameters and no noise change the answer; counterexamples, with theirs, do."""
    model, images, labels = problem(seed=3)
    transform, folder = parse(text), RunFolder(tmp_path / "run")
    certificate = certified_radius(model, images, labels, text, run=folder, search=BranchAndBound(max_boxes=400))
    assert check(tmp_path / "run", model, images, labels).task == "radius"
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (transform.low, transform.high))
    generator = torch.Generator().manual_seed(1)
    shares = [result.share for result in certificate.results]
    assert any(0 < share < 1 for share in shares), shares
    exact = model.double()
    for image, label, result in zip(images.double(), labels, certificate.results, strict=True):
        unit = torch.rand(300, len(low), generator=generator, dtype=torch.float64)
        moved = transform.apply(image.expand(300, -1, -1, -1), (low + (high - low) * unit) * result.share)
        signs = torch.randint(0, 2, moved.shape, generator=generator) * 2 - 1
        if result.share:
            assert (exact((moved + transform.noise * signs).clamp(0, 1)).argmax(1) == label).all()
        if result.verdict == "falsified":
            seen = transform.apply(image[None], torch.tensor([result.counterexample], dtype=torch.float64))
            if result.perturbation is not None:
                seen = perturbed(seen, transform.noise, from_text(result.perturbation, seen.shape[1:])[None])
            assert exact(seen).argmax(1) != label
    model.float()


def test_a_curve_with_noise_is_nested_and_keeps_the_noise_whole():
    model, images, labels = problem(seed=3)
    transform = parse("R(20), Linf(0.02)")
    assert str(nested(transform, 0.5)) == "R(10), Linf(0.02)"
    certificate = certify(model, images, labels, transform)
    points = certified_curve(model, images, labels, transform, certificate)
    assert all("Linf(0.02)" in point.transform for point in points)
    counts = [point.certified for point in points]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]
    for point in points[:: max(1, len(points) // 4)]:
        assert certify(model, images, labels, point.transform).count("falsified") <= point.falsified + point.unknown


def test_the_transformed_form_of_the_checker_has_no_noise():
    """It is added by whoever proves a claim, and not where a counterexample says how each pixel moves."""
    images = torch.rand(1, 1, 5, 5).double()
    with_it, without = (read_transform(text) for text in ("B(0.1), Linf(0.2)", "B(0.1)"))
    point = torch.zeros(1, 1).double()
    assert torch.equal(*(transformed(images, each, point, point).rows for each in (with_it, without)))


@pytest.mark.slow
def test_ten_thousand_sampled_pictures_of_digits():
    model = models.load("mnist-r30")
    images, labels = data.load("mnist-sample")
    images, labels = images[:10], labels[:10]
    certified = []
    for epsilon in (0.003, 0.01, 0.014):
        text = f"R(5), Linf({epsilon})"
        certificate = certify(model, images, labels, text)
        certified.append(certificate.summary()["certified"])
        assert violations(model, images, certificate, text, 1000) == 0
    assert certified == sorted(certified, reverse=True)
    assert certified[0] > certified[-1]
