"""Recipes: the bundled ones' settings, and the messages for mistakes in a file."""

import dataclasses

import pytest

from tiltproof import InputError, parse
from tiltproof.training import read_recipe, recipe_names, recipes
from tiltproof.training.recipe import FOLDER, MAX_BYTES, from_dict

ROWS = {
    "mnist-r30": ("R(30)", 240),
    "mnist-tu2-tv2": ("Tu(2), Tv(2)", 6_400),
    "mnist-sc5-r5-c5-b001": ("Sc(5), R(5), C(5), B(0.01)", 3_200),
    "mnist-sh2-r2-sc2-c2-b0001": ("Sh(2), R(2), Sc(2), C(2), B(0.001)", 16_384),
    "cifar10-r10": ("R(10)", 100_000),
    "cifar10-r2-sh2": ("R(2), Sh(2)", 64_000),
    "cifar10-sc1-r1-c1-b0001": ("Sc(1), R(1), C(1), B(0.001)", 640_000),
}
TEXT = (FOLDER / "mnist-r30-paper.toml").read_text(encoding="utf-8")


@pytest.fixture
def refused(tmp_path):
    """Read the paper's recipe for R(30) with one text replaced; return the message."""

    def read(old, new):
        assert old in TEXT
        path = tmp_path / "recipe.toml"
        path.write_text(TEXT.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(InputError) as caught:
            read_recipe(path)
        assert str(path) in str(caught.value)
        assert str(caught.value).isprintable()
        return str(caught.value)

    return read


WIDER = ("cifar10-r2-sh2", "cifar10-sc1-r1-c1-b0001")
"""Rows with a third recipe, for a wider network."""
DEEPER = ("cifar10-r10",)
"""Rows with one for a deeper network."""


def test_the_recipes_of_each_row_of_the_paper():
    two_each = {name for row in ROWS for name in (row, f"{row}-paper")}
    small = {name for name in recipe_names() if name.startswith(("mnist-", "cifar10-"))}
    assert small == two_each | {f"{row}-wide" for row in WIDER} | {f"{row}-resnet9" for row in DEEPER}
    for recipe in map(read_recipe, sorted(small)):
        row, _, last = recipe.name.rpartition("-")
        row, last = (row, last) if last in ("paper", "wide", "resnet9") else (recipe.name, "")
        assert parse(recipe.transform) == parse(ROWS[row][0])
        assert recipe.model.architecture == f"{recipe.data.name}_{last if last in ('wide', 'resnet9') else 'cnn'}"
        assert recipe.name.startswith(recipe.data.name)


@pytest.mark.parametrize("row", ROWS)
def test_the_papers_recipes_are_the_papers(row):
    recipe = read_recipe(f"{row}-paper")
    train, loss, data = recipe.train, recipe.loss, recipe.data
    mnist = data.name == "mnist"
    assert (train.epochs, train.batch_size, train.milestones) == ((100, 256, (80,)) if mnist else (120, 128, (100,)))
    assert (loss.warm_up_epochs, loss.ramp_epochs) == ((15, 50) if mnist else (30, 60))
    assert (data.crop_padding, data.flip) == ((0, False) if mnist else (4, True))
    assert (train.optimizer, train.learning_rate, train.decay, train.clip_norm) == ("adam", 1e-3, 0.1, 8.0)
    assert (loss.kind, loss.bounds, loss.propagation, loss.kappa) == ("certified", "fgv", "interval", (1.0, 0.5))
    boxes = 1
    for splits in recipe.certify.splits:
        boxes *= splits
    assert boxes == ROWS[row][1]


@pytest.mark.parametrize(("row", "nu", "splits"), [("sh2", 0.005, 2000), ("sc2", 0.005, 2000), ("r5", 0.0025, 10_000)])
def test_the_papers_recipes_for_tiny_imagenet(row, nu, splits):
    recipe = read_recipe(f"tinyimagenet-{row}-paper")
    train, loss, data = recipe.train, recipe.loss, recipe.data
    assert (train.epochs, train.batch_size, train.milestones, train.learning_rate) == (160, 128, (120, 150), 5e-4)
    assert (loss.nu, loss.warm_up_epochs, loss.ramp_epochs, loss.kappa) == ((nu,), 30, 80, (1.0, 0.5))
    assert (data.crop_size, data.flip, recipe.certify.splits) == (56, True, (splits,))
    assert read_recipe(f"tinyimagenet-{row}").transform == recipe.transform


def test_the_papers_recipe_for_steering():
    recipe = read_recipe("driving-r2-paper")
    train, loss = recipe.train, recipe.loss
    assert (train.epochs, train.batch_size, train.milestones, train.learning_rate) == (50, 128, (20, 40), 1e-3)
    assert (loss.nu, loss.warm_up_epochs, loss.ramp_epochs, loss.kappa) == ((0.002,), 0, 50, (1.0, 0.5))
    assert recipe.certify.splits == (4000,)
    others = [read_recipe(f"driving-r2{kind}") for kind in ("", "-regular", "-dropout")]
    assert {other.transform for other in others} == {"R(2)"}
    assert others[2].model.architecture == "driving_cnn_dropout"


def test_a_recipe_reads_back_from_its_values():
    for recipe in recipes():
        assert from_dict(recipe.to_dict(), "itself") == recipe
    assert "splits" not in read_recipe("mnist-r30").to_dict()["certify"]


def test_a_recipe_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        read_recipe("mnist-r30").train.epochs = 3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("learning_rate", "learnig_rate", "unknown key 'learnig_rate' in [train] of"),
        ("learning_rate", "learnig_rate", "did you mean 'learning_rate'?"),
        ("[model]", "[modle]", "did you mean 'model'?"),
        ("[data]", "[data]\nbatch_size = 3", "it belongs in [train]"),
        ("epochs = 100", "epochs = 100.0", "must be a whole number from 1 to 100,000. Got: 100.0, a number"),
        ("epochs = 100", 'epochs = "100"', "Got: '100', a text"),
        ("epochs = 100", "epochs = true", "Got: True, a boolean"),
        ("epochs = 100", "epochs = 50", "longer than the training"),
        ("flip = false", "flip = 1979-05-27", "'flip' in [data]"),
        ('"certified"', '"certifed"', "one of certified, augmentation, worst-of, pgd, ibp"),
        ("nu = [0.25]", "nu = [0.25, 1]", "needs 1 numbers"),
        ("nu = [0.25]", "", "needs 1 numbers"),
        ("nu = [0.25]", "nu = 0.25", "a list of"),
        ("nu = [0.25]", "nu = [70]", "larger than the range of R(30)"),
        ("nu = [0.25]", "nu = [nan]", "a number above 0"),
        ("nu = [0.25]", "nu = [inf]", "a number above 0"),
        ("nu = [0.25]", f"nu = [1{'0' * 400}]", "a number above 0"),
        ("nu = [0.25]", f"nu = [1{'0' * 5000}]", "invalid number"),
        ("nu = [0.25]", f"nu = [0x{'f' * 6000}]", "thousands of digits"),
        ("flip = false", "flip = 1979-02-31", "line"),
        ("nu = [0.25]", f"nu = {'[' * 5000}", "too deeply"),
        ("nu = [0.25]", "nu = [0.25", "line "),
        ("[240]", "[240, 2]", "certify.splits"),
        ('name = "mnist"', "", "'name' is missing in [data]"),
        ('"R(30)"', '"Q(30)"', "unknown transformation letter"),
        ('"R(30)"', '"R(30:10)"', "reversed"),
        ("milestones = [80]", "milestones = [80, 20]", "ascend"),
        ("milestones = [80]", "", "needs train.milestones"),
        ('"mnist-r30-paper"', '"../up"', "it names a folder"),
        ("[model]", "[model", "(at line"),
        ("[data]", "data = 3\n[other]", "unknown key 'other'"),
        ("[model]", "#" * MAX_BYTES + "\n[model]", "too large"),
    ],
)
def test_mistakes_are_named(refused, old, new, words):
    assert words in refused(old, new)


def test_deep_dotted_keys_and_bytes_are_refused(tmp_path):
    path = tmp_path / "recipe.toml"
    for content in (b"a." * 4000 + b"a = 1", b"\xff\xfe", b'name = "\x00"', b'"\\u001b[2J" = 1', b"", b"[a]\n[a]"):
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_recipe(path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1500


def test_unknown_names_and_paths(tmp_path):
    with pytest.raises(InputError, match="mnist-r30-paper was meant"):
        read_recipe("mnist-r3-paper")
    for path in ("nowhere.toml", tmp_path, "/dev/null", "a\0b.toml"):
        with pytest.raises(InputError):
            read_recipe(path)


def test_settings():
    recipe = read_recipe("mnist-r30-paper")
    changed = recipe.with_settings(["train.epochs=70", "loss.nu=[0.1]", "transform=R(10)", "loss.bounds='affine'"])
    assert (changed.train.epochs, changed.loss.nu, changed.transform, changed.loss.bounds) == (
        70,
        (0.1,),
        "R(10)",
        "affine",
    )
    assert recipe.with_settings([]) == recipe
    assert recipe.with_settings(["loss.kind = worst-of", "loss.samples=2", "data.flip=true"]).loss.kind == "worst-of"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.epochs", "section.key=value"),
        ("trian.epochs=3", "section.key=value"),
        ("train.epoch=3", "did you mean 'epochs'"),
        ("epochs=300", "it belongs in [train]"),
        ("data=3", "unknown key 'data'"),
        ("train.epochs=", "not TOML"),
        ("train.epochs=3\nx=4", "not TOML"),
        ("train.epochs=3", "longer than the training"),
        ("train.epochs=-1", "must be a whole number"),
        (f"loss.nu={'[' * 3000}", "not TOML"),
    ],
)
def test_settings_with_mistakes(setting, words):
    with pytest.raises(InputError) as caught:
        read_recipe("mnist-r30-paper").with_settings([setting])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [["loss.kind=worst-of"], ["loss.samples=3"], ["loss.every=0"]],
    ids=["worst of one", "worst of several for a whole batch", "every zeroth image"],
)
def test_samples_that_make_no_sense(settings):
    with pytest.raises(InputError, match="samples|every"):
        read_recipe("mnist-r30-paper").with_settings(settings)
