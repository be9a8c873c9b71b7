"""Verdicts, budgets, batches and bad input of `certify` and `attack`."""

import copy
import functools
import warnings

import pytest
import torch
from torch import nn

import tiltproof
from tiltproof import BranchAndBound, InputError, Verdict
from tiltproof.runtime import batch_size as memory
from tiltproof.transforms import Rotation
from tiltproof.verify.options import BOUNDS


class Brightness(nn.Module):
    """Predicts class 0 while the mean pixel stays above a threshold, class 1 below it."""

    def __init__(self, threshold):
        super().__init__()
        self.linear = nn.Linear(36, 2)
        with torch.no_grad():
            self.linear.weight[0] = 1 / 36
            self.linear.weight[1] = 0
            self.linear.bias.copy_(torch.tensor([-threshold, 0.0]))
        self.eval()

    def forward(self, x):
        return self.linear(x.flatten(1))


IMAGES = torch.full((3, 1, 6, 6), 0.5)
LABELS = torch.tensor([0, 0, 1])


def test_the_four_verdicts():
    """Brightness by +-0.1 moves the mean from 0.4 to 0.6."""
    certified = tiltproof.certify(Brightness(0.39), IMAGES, LABELS, "B(0.1)")
    assert certified.verdicts == [Verdict.CERTIFIED, Verdict.CERTIFIED, Verdict.MISCLASSIFIED]
    assert certified.margins[0] == pytest.approx(0.01, abs=1e-5)
    assert certified.margins[0] <= 0.01 + 1e-9
    falsified = tiltproof.certify(Brightness(0.45), IMAGES, LABELS, "B(0.1)")
    assert falsified.verdicts[0] is Verdict.FALSIFIED
    (amount,) = falsified.counterexamples[0]
    assert -0.1 <= amount < -0.05
    assert falsified.margins[0] < 0
    tied = tiltproof.certify(Brightness(0.4), IMAGES, LABELS, "B(0.1)", search=tiltproof.BranchAndBound(max_boxes=60))
    assert tied.verdicts[0] is Verdict.UNKNOWN  # the margin reaches zero, and is never below it
    assert tied.margins[0] <= 0
    (low,), (high,) = tied.open_boxes[0]
    assert low <= -0.1 < high


def test_summary_counts_and_records():
    result = tiltproof.certify(Brightness(0.39), IMAGES, LABELS, Rotation(3))
    summary = result.summary()
    assert summary["images"] == 3
    assert summary["correct"] == 2
    assert summary["misclassified"] == 1
    assert summary["certified"] + summary["falsified"] + summary["unknown"] == 2
    assert summary["boxes"] == sum(result.boxes)
    assert summary["transform"] == "R(3)"
    assert [record["verdict"] for record in result.to_json()["records"]] == [str(v) for v in result.verdicts]


@pytest.fixture(scope="module")
def small():
    """Build a random network with realistic margins, on which every verdict but unknown occurs."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    images = torch.rand(12, 1, 8, 8)
    with torch.no_grad():
        model[-1].bias -= model(images).mean(0)  # so that all classes occur, with small margins
    return model.eval(), images, model(images).argmax(1)


@pytest.mark.parametrize("method", ["affine", "hull", "fgv"])
def test_batch_size_changes_nothing(small, method):
    runs = [
        tiltproof.certify(
            *small,
            "R(4), B(0.02)",
            bounds=BOUNDS[method],
            search=tiltproof.BranchAndBound(max_boxes=100),
            execution=tiltproof.Execution(batch_size=size),
        )
        for size in (1, 7, 1000)
    ]
    for verdicts in zip(
        *(run.verdicts for run in runs), strict=True
    ):  # a batch chooses its own grid, so the budget may end elsewhere
        assert not {Verdict.CERTIFIED, Verdict.FALSIFIED} <= set(verdicts)
    assert sum(len(set(verdicts)) > 1 for verdicts in zip(*(run.verdicts for run in runs), strict=True)) <= 1


def test_certified_images_resist_the_attack(small):
    result = tiltproof.certify(*small, "R(10), Tu(0.3)")
    found = tiltproof.attack(*small, "R(10), Tu(0.3)", samples=300, steps=10)
    assert {Verdict.CERTIFIED, Verdict.FALSIFIED} <= set(result.verdicts)
    for verdict, parameters in zip(result.verdicts, found.parameters, strict=True):
        assert verdict is not Verdict.CERTIFIED or parameters is None


def test_counterexamples_lie_inside_the_range(small):
    model, images, labels = small
    transform = tiltproof.parse("R(10), Tu(0.3)")
    result = tiltproof.certify(model, images, labels, transform)
    exact = copy.deepcopy(model).double()
    for k, parameters in enumerate(result.counterexamples):
        if parameters is not None:
            assert all(a <= p <= b for a, p, b in zip(transform.low, parameters, transform.high, strict=True))
            moved = transform.apply(images[k : k + 1].double(), torch.tensor(parameters, dtype=torch.float64))
            assert int(exact(moved).argmax()) != int(labels[k])


def test_uniform_splits_that_do_not_divide(small):
    """Every piece of the range is bounded, the last one too."""
    one = tiltproof.certify(*small, "R(2)", bounds=tiltproof.IntervalHull(), search=tiltproof.UniformGrid(7))
    for verdict, boxes in zip(one.verdicts, one.boxes, strict=True):
        assert verdict is not Verdict.CERTIFIED or boxes == 7
    assert tiltproof.certify(*small, "R(2), Tu(0.2)", search=tiltproof.UniformGrid((3, 2))).settings["splits"] == [3, 2]


def test_running_out_of_memory_halves_the_batch(small, monkeypatch):
    from tiltproof.verify.prover import Prover

    plain, sizes = Prover.bound, []

    def scarce(self, images, low, high, policy=None, dtype=None):
        sizes.append(len(images))
        if len(images) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory (pretended)")
        return plain(self, images, low, high, policy, dtype)

    expected = tiltproof.certify(*small, "R(4)")
    monkeypatch.setattr(Prover, "bound", scarce)
    result = tiltproof.certify(*small, "R(4)", execution=tiltproof.Execution(batch_size=64))
    assert max(sizes) > 5
    assert result.verdicts == expected.verdicts


def test_no_memory_at_all_is_a_clear_error():
    def never(_size):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(InputError, match="not enough memory"):
        memory.AdaptiveBatchSize(8).run(never)


def test_training_mode_is_noticed_and_restored(small):
    model, images, labels = small
    model.train()
    try:
        with pytest.warns(UserWarning, match="training mode"):
            tiltproof.certify(model, images[:2], labels[:2], "R(1)")
        assert all(module.training for module in model.modules())
    finally:
        model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiltproof.certify(model, images[:2], labels[:2], "R(1)")


def test_global_tf32_settings_change_no_verdict(small):
    before = torch.get_float32_matmul_precision()
    expected = tiltproof.certify(*small, "R(4)")
    try:
        torch.set_float32_matmul_precision("medium")
        again = tiltproof.certify(*small, "R(4)")
    finally:
        torch.set_float32_matmul_precision(before)
    assert again.verdicts == expected.verdicts
    assert again.margins == expected.margins


def test_progress_is_reported(small):
    seen = []
    tiltproof.certify(*small, "R(4)", progress=seen.append)
    assert seen[-1].done == seen[-1].images == 12
    assert seen[-1].certified + seen[-1].falsified + seen[-1].unknown + seen[-1].misclassified == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.rand(2, 8, 8)}, "shape"),
        ({"images": torch.rand(0, 1, 8, 8), "labels": torch.zeros(0, dtype=torch.long)}, "no images"),
        ({"images": torch.rand(2, 1, 8, 8) * 2}, "[0, 1]"),
        ({"images": torch.full((2, 1, 8, 8), torch.nan)}, "NaN"),
        ({"images": torch.rand(2, 3, 8, 8)}, "cannot run"),
        ({"images": torch.rand(2, 1, 8, 8, dtype=torch.float64)}, "float64"),
        ({"labels": torch.tensor([0, 4])}, "between 0 and 3"),
        ({"labels": torch.tensor([0, -1])}, "between 0 and 3"),
        ({"labels": torch.tensor([0.0, 1.0])}, "integers"),
        ({"labels": torch.tensor([0])}, "one per image"),
        ({"transform": "Q(3)"}, "letter"),
        ({"transform": 30}, "Transform"),
        ({"model": "a model"}, "nn.Module"),
        ({"bounds": "hull"}, "bounds must be an object of its own class"),
        ({"search": 240}, "search must be"),
        ({"search": tiltproof.UniformGrid((2, 2))}, "splits must be 1 positive"),
        ({"attack": tiltproof.attack}, "Attack(samples=24)"),
        ({"execution": "2GB"}, "execution must be"),
        ({"run": "runs/r30"}, 'run=RunFolder("runs/r30"'),
    ],
)
def test_bad_input(small, change, message):
    model, images, labels = small
    given = {"model": model, "images": images[:2], "labels": labels[:2], "transform": "R(2)"} | change
    with pytest.raises(InputError) as error:
        tiltproof.certify(**given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "limits", [{"max_boxes": 0}, {"max_boxes": -3}, {"max_seconds": 0}, {"max_seconds": float("nan")}]
)
def test_a_search_without_a_budget(limits):
    for kind in (BranchAndBound, functools.partial(tiltproof.UniformGrid, 4)):
        with pytest.raises(InputError, match=f"the search needs .*{next(iter(limits))}"):
            kind(**limits)


def test_a_model_on_another_device(small):
    model = copy.deepcopy(small[0]).to("meta")
    with pytest.raises(InputError, match="different devices"):
        tiltproof.certify(model, *small[1:], "R(2)")


def test_weights_that_are_not_numbers(small):
    model = copy.deepcopy(small[0])
    with torch.no_grad():
        model[0].weight[0] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        tiltproof.certify(model, *small[1:], "R(2)")


def test_overflow_is_never_certified():
    """The weights are so large that bounds overflow, even in float64, though the outputs of the images are finite."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 1), nn.ReLU(), nn.Linear(1, 2)).double().eval()
    with torch.no_grad():
        model[1].weight.copy_(1.2e307 * (-1.0) ** torch.arange(36, dtype=torch.float64))
        model[1].bias.zero_()
        model[3].weight.copy_(torch.tensor([[-8e-308], [0.0]], dtype=torch.float64))
        model[3].bias.copy_(torch.tensor([20.0, 0.0]))
        outputs = model(IMAGES.double())
    assert outputs.isfinite().all()
    assert (outputs[:, 0] > 0).all()
    result = tiltproof.certify(
        model, IMAGES, torch.zeros(3, dtype=torch.long), "R(2)", search=tiltproof.BranchAndBound(max_boxes=20)
    )
    assert set(result.verdicts) == {Verdict.UNKNOWN}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_may_view_what_a_convolution_gives(channels):
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.last = nn.Conv2d(channels, 4, 3, padding=1), nn.Linear(4 * 36, 3)

        def forward(self, images):
            values = torch.relu(self.convolution(images))
            return self.last(values.view(len(values), -1))

    torch.manual_seed(0)
    model, images = Viewing().eval(), torch.rand(2, channels, 6, 6)
    with torch.no_grad():
        labels = model(images).argmax(1)
    assert (
        tiltproof.certify(model, images, labels, "R(1)", search=tiltproof.BranchAndBound(max_boxes=50)).summary()[
            "correct"
        ]
        == 2
    )


class Fussy(torch.nn.Module):
    """Fails on images that it was not traced with; the traced graph is an ordinary layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 2)

    def forward(self, x):
        if type(x) is torch.Tensor and not x.requires_grad and len(x) > 40:
            raise LookupError("no table for so many images")
        return self.layer(x.flatten(1))


def test_code_of_the_models_own_that_fails_is_not_our_defect():
    images, labels = torch.rand(64, 1, 4, 4), torch.zeros(64).long()
    for work in (
        lambda: tiltproof.certify(Fussy().eval(), images, labels, "R(5)"),
        lambda: tiltproof.certify_range(Fussy().eval(), images, None, "R(5)"),
        lambda: tiltproof.attack(Fussy().eval(), images, labels, "R(5)"),
    ):
        with pytest.raises(
            InputError, match=r"model failed on transformed images.*LookupError: no table.*test_certify\.py, line \d+"
        ):
            work()
