"""The public API is what __init__ exports; changing it is a decision, not an accident."""

import enum
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from types import ModuleType

import pytest

import tiltproof
import tiltproof.training as training
from tests.support.processes import environment
from tiltproof import names
from tiltproof.models.normalization import MEANS

PUBLIC = {
    "AffineBounds",
    "Allow",
    "Attack",
    "BranchAndBound",
    "Certificate",
    "CheckFailed",
    "Execution",
    "FGV",
    "Forbid",
    "InputError",
    "IntervalHull",
    "KeepOwn",
    "Linear",
    "RadiusCertificate",
    "RangeCertificate",
    "RayWorkers",
    "RunFolder",
    "Tolerance",
    "TopK",
    "UniformGrid",
    "UnsupportedOperation",
    "Verdict",
    "attack",
    "bound_network",
    "bound_pixels",
    "certified_radius",
    "certify",
    "certify_range",
    "check",
    "inspect",
    "parse",
    "report",
    "train",
}
SUBMODULES = {"data", "export", "losses", "models", "reports", "training", "transforms"}
TRAINING = {
    "Recipe",
    "TrainProgress",
    "TrainResult",
    "TrainingFailed",
    "Widths",
    "pixel_widths",
    "read_recipe",
    "recipe_names",
    "recipes",
    "train",
    "tune",
}


def test_the_public_names_are_frozen():
    assert set(tiltproof.__all__) == PUBLIC | SUBMODULES
    assert set(training.__all__) == TRAINING


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_no_public_function_shares_its_name_with_a_module(name):
    """`import tiltproof.certify` must not yield a function, nor `tiltproof.certify` a package."""
    assert not isinstance(getattr(tiltproof, name), ModuleType)
    assert importlib.util.find_spec(f"tiltproof.{name}") is None


def documented():
    """Every public function and class, by its name."""
    for name in sorted(tiltproof.__all__):
        thing = getattr(tiltproof, name)
        inside = thing.__all__ if isinstance(thing, ModuleType) else ()
        yield from ((f"{name}.{each}", getattr(thing, each)) for each in inside)
        if not isinstance(thing, ModuleType):
            yield name, thing


NEVER_RAISES = {
    "export.as_csv", "export.as_jsonl", "export.as_junit", "models.cifar10_cnn", "models.mnist_cnn", "reports.bounds_plot",
    "reports.margin_plot", "reports.steering_plot", "reports.tradeoff_plot", "training.recipe_names", "training.recipes",
}  # fmt: skip


@pytest.mark.parametrize(("name", "thing"), [pair for pair in documented() if callable(pair[1])])
def test_every_public_name_has_a_numpy_docstring(name, thing):
    """Functions have the sections Parameters, Returns and Raises; every parameter of functions and classes is named."""
    text = inspect.getdoc(thing)
    assert text
    if inspect.isclass(thing):
        if issubclass(thing, (BaseException, enum.Enum)):
            return
        text = "\n".join(inspect.cleandoc(each.__doc__ or "") for each in thing.__mro__[:-1])
    signature = inspect.signature(thing)
    sections = set(re.findall(r"^(\w+)\n-+$", text, re.MULTILINE))
    described = sections & {"Parameters", "Attributes"} if inspect.isclass(thing) else sections & {"Parameters"}
    assert described or not signature.parameters
    head = re.findall(r"^([\w*][\w*, ]*)(?: : .*)?$", text, re.MULTILINE)
    known = {word.lstrip("*") for line in head for word in line.split(", ")}
    assert set(signature.parameters) <= known
    if inspect.isfunction(thing):
        assert "Returns" in sections or signature.return_annotation in (None, "None")
        assert "Raises" in sections or name in NEVER_RAISES


def members():
    """Every public method and property that the package defines on a public class, by its name."""
    for name, thing in documented():
        if inspect.isclass(thing) and not issubclass(thing, (BaseException, enum.Enum)):
            for each, static in inspect.getmembers_static(thing):
                function = getattr(static, "__func__", None) or getattr(static, "fget", None) or static
                own = not each.startswith("_") and inspect.isfunction(function)
                if own and function.__module__.startswith("tiltproof"):
                    yield f"{name}.{each}", static


@pytest.mark.parametrize(("name", "member"), list(members()))
def test_every_public_method_and_property_says_what_it_does(name, member):
    """In its own docstring, or in that of the base class's method that it overrides."""
    owner = functools.reduce(getattr, name.split(".")[:-1], tiltproof)
    assert inspect.getdoc(member) or inspect.getdoc(getattr(owner, name.rpartition(".")[2]))


@pytest.mark.parametrize("kind", [tiltproof.Certificate, tiltproof.RangeCertificate])
def test_methods_of_certificates_have_numpy_docstrings(kind):
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            assert "Returns\n-------" in inspect.getdoc(member), name
            if len(inspect.signature(member).parameters) > 1:
                assert "Parameters\n----------" in inspect.getdoc(member), name


def test_both_functions_take_the_same_options_in_the_same_order():
    first, second = (
        list(inspect.signature(f).parameters.values()) for f in (tiltproof.certify, tiltproof.certify_range)
    )
    assert [each.name for each in first[:4]] == ["model", "images", "labels", "transform"]
    assert [each.name for each in second[:4]] == ["model", "images", "targets", "transform"]
    assert (first[4].name, second[4].name) == ("keep", "tolerance")
    assert [each.name for each in first[4:6]] == ["keep", "tolerance"]
    assert second[5:] == first[6:]  # names, kinds, defaults and annotations
    assert all(each.kind is each.KEYWORD_ONLY for each in second[4:])
    assert len(second) <= 14


def test_a_certificate_shows_its_counts():
    lines = [
        tiltproof.Certificate("R(1)", "affine", "real", []),
        tiltproof.RangeCertificate("R(1)", "affine", "real", [], 1.25),
    ]
    assert repr(lines[0]) == "Certificate('R(1)', affine, real: 0 images, 0 s)"
    assert repr(lines[1]) == "RangeCertificate('R(1)', affine, real: 0 images, 1.25 s)"


@pytest.mark.parametrize("name", ["verify.api", "checker", "reports", "training", "distributed", "losses"])
def test_importing_a_module_shadows_no_public_name(name):
    importlib.import_module(f"tiltproof.{name}")
    assert not any(isinstance(getattr(tiltproof, public), ModuleType) for public in PUBLIC)


def test_bad_input_is_a_value_error():
    assert issubclass(tiltproof.InputError, ValueError)
    assert issubclass(tiltproof.UnsupportedOperation, tiltproof.InputError)


def test_the_verdicts_are_the_four_words():
    assert [verdict.value for verdict in tiltproof.Verdict] == ["certified", "falsified", "unknown", "misclassified"]


def test_import_needs_only_torch_and_numpy():
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'pooch', 'PIL', 'matplotlib', 'onnx', 'onnxruntime', 'ray'): sys.modules[name] = None\n"
        "import tiltproof\n"
        "for name in tiltproof.__all__: name in ('report', 'reports') or getattr(tiltproof, name)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment()).returncode == 0


def test_help_and_completion_import_neither_torch_nor_numpy():
    """They take seconds. A command imports what needs them inside its function (as tiltproof/cli/attack.py does)."""
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'PIL', 'onnx', 'ray'): sys.modules[name] = None\n"
        "import tiltproof.cli, typer\n"
        "group = typer.main.get_command(tiltproof.cli.app)\n"
        "for command in group.commands.values():\n"
        "    context = command.make_context(command.name, [], resilient_parsing=True)\n"
        "    command.get_help(context)\n"
        "    for each in command.params: each.shell_complete(context, '')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment()).returncode == 0


def test_names_are_those_of_what_they_name():
    assert tuple(tiltproof.models.ARCHITECTURES) == names.ARCHITECTURE_NAMES
    assert set(names.NORMALIZATIONS) == set(MEANS)


@pytest.mark.parametrize("package", [tiltproof, tiltproof.models, tiltproof.training])
def test_packages_that_import_on_first_use(package):
    """They list their names, refuse others, and no other module of theirs can replace a name."""
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
    modules = {each.name for each in pkgutil.iter_modules(package.__path__)}
    assert {name for name in package.__all__ if name in modules} <= SUBMODULES
