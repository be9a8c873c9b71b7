"""Whatever the state of the calling process, the evidence is the same to the last bit, or the proof is refused."""

import contextvars
import copy
import itertools
import json
import pickle
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tiltproof
from tests.support.processes import environment
from tiltproof import Attack, Execution, InputError, RunFolder, certify, certify_range
from tiltproof.checker import check
from tiltproof.checker import network as checker_network
from tiltproof.distributed.worker import Package, Worker, versions
from tiltproof.network import arithmetic, read_network, run
from tiltproof.verify.batch import Batch
from tiltproof.verify.inputs import check_inputs

CPU = torch.device("cpu")
NEW_SETTINGS = hasattr(torch.backends, "fp32_precision")


class LowRank(nn.Module):
    """Computes weights from parameters by products, as in LoRA, so 8-bit products change them. Dropout exposes the mode."""

    def __init__(self, outputs=3):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        numbers = lambda *shape: nn.Parameter(torch.randn(*shape, generator=draw) / 3)  # noqa: E731
        self.kernel, self.left, self.right = numbers(4, 1, 3, 3), numbers(4, 2), numbers(2, 9)
        self.weight, self.down, self.up = numbers(16, 144), numbers(16, 3), numbers(3, 144)
        self.last, self.dropout = nn.Linear(16, outputs), nn.Dropout(0.5)
        with torch.no_grad():
            self.last.weight.copy_(torch.randn(outputs, 16, generator=draw) / 3)
            self.last.bias.copy_(torch.linspace(-0.1, 0.1, outputs))

    def forward(self, x):
        kernel = self.kernel + (self.left @ self.right).view(4, 1, 3, 3)
        hidden = torch.relu(F.conv2d(x, kernel, stride=2, padding=1)).flatten(1)
        return self.last(self.dropout(torch.relu(F.linear(hidden, self.weight + self.down @ self.up))))


IMAGES = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(3))
NETWORKS = {outputs: LowRank(outputs).eval() for outputs in (1, 3)}  # built before any setting changes
LABELS = NETWORKS[3](IMAGES).argmax(1)


def network(outputs=3):
    return copy.deepcopy(NETWORKS[outputs])


def evidence(results):
    """Return everything but seconds."""
    return [{key: value for key, value in result.record().items() if key != "seconds"} for result in results]


class Alone:
    """Workers with one worker, a thread of this process, which receives everything as another machine would."""

    def connect(self):
        pass

    def work(self, inputs, job, batches, grid, pairs):
        packed = pickle.dumps(Package.of(inputs, job, pairs))
        member = Worker()
        member.prepare(packed, "cpu", versions())
        for rows in batches:
            results, grid = member.batch(job.part(rows), inputs.images[rows], inputs.labels[rows], grid, False)
            yield Batch(rows.start, results, grid, "cpu")


WAYS = ("plain", "out", "resume", "workers", "memory")
IN_SHORT = {
    ("autocast", "out"),
    ("autocast", "resume"),
    ("autocast", "workers"),
    ("bf16 products", "out"),
    ("bf16 products", "workers"),
}
"""Pairs of states and ways to prove; every state is also tried in the plain way."""


def execution_of(way):
    return Execution("16GB" if way == "memory" else None, Alone() if way == "workers" else None, batch_images=2)


def prove(way, tmp_path, model=None):
    """Return the evidence of a run of two batches, proved in this way."""
    model = network() if model is None else model
    options = {"search": tiltproof.BranchAndBound(max_boxes=200), "execution": execution_of(way)}
    if way in ("out", "resume"):
        options["run"] = RunFolder(tmp_path / "run")
    if way == "resume":
        seen = []

        def progress(state):
            seen.append(state)
            if state.done >= 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            certify(model, IMAGES, LABELS, "R(20)", **options, progress=progress)
        options["run"] = RunFolder(tmp_path / "run", resume=True)
    return evidence(certify(model, IMAGES, LABELS, "R(20)", **options).results)


def prove_range(way, tmp_path):
    options = {"search": tiltproof.BranchAndBound(max_boxes=20), "execution": execution_of(way)}
    options |= {"run": RunFolder(tmp_path / "range")} if way == "out" else {}
    return evidence(certify_range(network(1), IMAGES, None, "R(20)", **options).results)


@contextmanager
def settings(**values):
    """Set torch's reduced-precision switches; return their values afterwards."""
    if not NEW_SETTINGS:
        pytest.skip("this torch has the older switches only")
    owners = (
        torch.backends.mkldnn.conv,
        torch.backends.mkldnn.matmul,
        torch.backends.cudnn.conv,
        torch.backends.cuda.matmul,
    )
    before = [owner.fp32_precision for owner in owners]
    try:
        for owner, value in zip(owners, values["values"], strict=True):
            owner.fp32_precision = value
        yield
        assert [owner.fp32_precision for owner in owners] == list(values["values"]), "the user's settings are back"
    finally:
        for owner, value in zip(owners, before, strict=True):
            owner.fp32_precision = value


@contextmanager
def medium():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        yield
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def flush_denormal():
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def switched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


STATES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast for GPUs": lambda: torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_available()),
    "bf16 products": lambda: settings(values=("bf16", "bf16", "tf32", "tf32")),
    "one switch at odds": lambda: settings(values=("none", "bf16", "ieee", "none")),
    "matmul precision medium": medium,
    "default float64": lambda: default_dtype(torch.float64),
    "default bfloat16": lambda: default_dtype(torch.bfloat16),
    "no gradients": torch.no_grad,
    "flushed denormals": flush_denormal,
    "deterministic": deterministic,
    "cuDNN tries kernels": lambda: switched(torch.backends.cudnn, "benchmark", True),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    found = prove("plain", folder), prove_range("plain", folder)
    assert {record["verdict"] for record in found[0]} >= {"certified", "falsified"}
    return found


@pytest.mark.parametrize("way", WAYS)
def test_every_way_comes_to_the_same(way, undisturbed, tmp_path):
    assert prove(way, tmp_path) == undisturbed[0]
    assert prove_range(way, tmp_path) == undisturbed[1]


def matrix():
    for state in STATES:
        for way in WAYS:
            short = way == "plain" or (state, way) in IN_SHORT
            yield pytest.param(state, way, marks=[] if short else [pytest.mark.slow])


@pytest.mark.parametrize(("state", "way"), matrix())
def test_evidence_does_not_depend_on_the_state_of_the_process(state, way, undisturbed, tmp_path):
    with STATES[state]():
        assert prove(way, tmp_path) == undisturbed[0]


@pytest.mark.parametrize(
    "state", [pytest.param(state, marks=[] if state == "autocast" else [pytest.mark.slow]) for state in STATES]
)
def test_ranges_and_checks_do_not_depend_on_it_either(state, undisturbed, tmp_path):
    with STATES[state]():
        assert prove_range("out", tmp_path) == undisturbed[1]
        prove("out", tmp_path)
        report = check(tmp_path / "run", network(), IMAGES, LABELS)
    assert report.certified == sum(record["verdict"] == "certified" for record in undisturbed[0])


def ways(*short):
    return [pytest.param(way, marks=[] if way in short else [pytest.mark.slow]) for way in WAYS]


@pytest.mark.parametrize("way", ways("plain", "out", "workers"))
def test_training_mode(way, undisturbed, tmp_path):
    model = network().train()
    with pytest.warns(UserWarning, match="training mode"):
        assert prove(way, tmp_path, model) == undisturbed[0]
    assert all(module.training for module in model.modules())


def test_two_threads_at_once_wait_for_each_other(undisturbed):
    """The second begins while the first proves; each ends with its own evidence, and the user's settings are kept."""
    model, found, errors = network().train(), {}, []
    inside, order = threading.Event(), []

    def progress(name):
        def say(_):
            if name not in order[-1:]:
                order.append(name)
            inside.set()

        return say

    def one(name):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                options = {"search": tiltproof.BranchAndBound(max_boxes=200), "progress": progress(name)}
                options["execution"] = Execution(batch_images=2)
                found[name] = evidence(certify(model, IMAGES, LABELS, "R(20)", **options).results)
        except BaseException as error:
            errors.append(error)

    with settings(values=("bf16", "bf16", "tf32", "tf32")):
        threads = [threading.Thread(target=one, args=(name,)) for name in ("first", "second", "third")]
        threads[0].start()
        assert inside.wait(60)
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not errors
    assert found == dict.fromkeys(("first", "second", "third"), undisturbed[0])
    assert len(order) == 3, "their proofs were interleaved"
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("way", ways("out", "workers"))
def test_two_threads_come_to_the_same_in_every_way(way, undisturbed, tmp_path):
    """Each has its own model in training mode, and the user's settings allow short products."""
    found, start = {}, threading.Barrier(2)

    def one(name):
        (tmp_path / name).mkdir()
        model = network().train()
        start.wait(60)
        found[name] = prove(way, tmp_path / name, model), all(module.training for module in model.modules())

    with settings(values=("bf16", "bf16", "tf32", "tf32")), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=one, args=(name,)) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert found == dict.fromkeys(("first", "second"), (undisturbed[0], True))


def test_a_check_waits_for_a_proof(tmp_path):
    """Prover and checker switch the same settings with separate code."""
    prove("out", tmp_path)
    model, inside, seen = network(), threading.Event(), []

    def check_it():
        inside.wait(60)
        seen.append(check(tmp_path / "run", model, IMAGES, LABELS).certified)

    thread = threading.Thread(target=check_it)
    thread.start()

    def progress(_):
        inside.set()
        thread.join(0.02)
        seen.append("proving") if "proving" not in seen[-1:] else None

    certify(model, IMAGES, LABELS, "R(20)", progress=progress, execution=Execution(batch_images=2))
    thread.join(60)
    assert seen[:-1] == ["proving"]
    assert isinstance(seen[-1], int)


class Watched(LowRank):
    """Records the settings that it is evaluated under."""

    def forward(self, x):
        if type(x) is torch.Tensor or type(x).__name__ == "Form":
            values = {owner.fp32_precision for owner in (torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul)}
            globals()["SEEN"].append((values, torch.is_autocast_enabled("cpu"), self.training))
        return super().forward(x)


SEEN = []
"""Looked up by its name at run time, so that it is not taken for state of the network."""


@pytest.mark.skipif(not NEW_SETTINGS, reason="this torch has the older switches only")
def test_every_evaluation_is_under_the_proofs_settings(tmp_path):
    """This also works on processors without bf16 units: it looks at the settings themselves."""
    model = Watched().eval()
    with settings(values=("bf16", "bf16", "tf32", "tf32")), torch.autocast("cpu", dtype=torch.bfloat16):
        for work in (
            lambda: prove("out", tmp_path, model),
            lambda: check(tmp_path / "run", model, IMAGES, LABELS),
            lambda: tiltproof.attack(model, IMAGES, LABELS, "R(20)", samples=4, steps=1),
            lambda: tiltproof.bound_network(model, tiltproof.bound_pixels(IMAGES, "R(1)"), LABELS),
        ):
            SEEN.clear()
            work()
            assert SEEN
            # before the proof's precision settings the module is only tried and traced
            assert all(seen == ({"ieee"}, False, False) for seen in SEEN), SEEN


@pytest.mark.skipif(not NEW_SETTINGS, reason="this torch has the older switches only")
def test_a_setting_that_is_changed_during_a_proof_ends_it():
    """The change ignores the lock: no result computed meanwhile is used."""

    def progress(_):
        torch.backends.mkldnn.conv.fp32_precision = "bf16"

    before = torch.backends.mkldnn.conv.fp32_precision
    with pytest.raises(InputError, match="changed during a proof"):
        certify(network(), IMAGES, LABELS, "R(20)", progress=progress)
    assert torch.backends.mkldnn.conv.fp32_precision == before


# what oneDNN does, whatever torch's settings say


PROGRAM = """
import json, os, sys
if sys.argv[1] == "used":
    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16"
import torch
torch.set_num_threads(1)
import torch.nn.functional as F
F.conv2d(torch.rand(8, 16, 16, 16), torch.rand(32, 16, 3, 3))  # oneDNN reads the mode here, and remembers it
os.environ.pop("ONEDNN_DEFAULT_FPMATH_MODE", None)
from pathlib import Path
import tempfile
from tests.verify.test_ambient_state import prove
from tiltproof import InputError
try:
    print(json.dumps(prove(sys.argv[2], Path(tempfile.mkdtemp()))))
except InputError as error:
    print(json.dumps(str(error)))
"""


MODES = [
    pytest.param(mode, way, marks=[] if (mode, way) == ("used", "plain") else [pytest.mark.slow])
    for mode in ("used", "unset")
    for way in WAYS
    if mode == "used" or way == "plain"
]


@pytest.mark.parametrize("way", WAYS)
def test_a_mode_that_is_set_is_refused(way, monkeypatch, tmp_path):
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    with pytest.raises(InputError, match="oneDNN is told to compute with fewer bits"):
        certify(network(), IMAGES, LABELS, "R(20)", **options_of(way, tmp_path))
    assert not (tmp_path / "run").exists()


def options_of(way, tmp_path):
    options = {"execution": execution_of(way)}
    if way in ("out", "resume"):
        options["run"] = RunFolder(tmp_path / "run", resume=way == "resume")
    return options


@pytest.mark.parametrize(("mode", "way"), MODES)
def test_a_mode_that_onednn_remembers(mode, way, undisturbed):
    """The mode is set at oneDNN's first use and unset before the proof. Processors without bf16 units are unaffected; others refuse."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode, way], env=environment(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    if isinstance(found, str):
        assert mode == "used"
        assert "products of float32 numbers are not IEEE products" in found
    else:
        assert found == json.loads(json.dumps(undisturbed[0]))


def shortened(function, which=(0, 1)):
    """Wrap the function so that these arguments are rounded to bf16, as a library would use them."""

    def short(*args, **options):
        rounded = [
            x.bfloat16().to(x.dtype) if k in which and x.dtype == torch.float32 else x for k, x in enumerate(args)
        ]
        return function(*rounded, **options)

    return short


NOTICED = {
    "conv2d": "convolutions, convolutions of weights",
    "conv_transpose2d": "transposed convolutions",
    "linear": "matrix products, matrix products from the left",
}
"""Who notices that one of the factors is short: each alone would do, and none may be missing."""


@pytest.mark.parametrize("which", [(0, 1), (0,), (1,)], ids=["both factors", "images", "weights"])
@pytest.mark.parametrize("name", NOTICED)
def test_products_of_fewer_bits_are_noticed(name, which, monkeypatch):
    """Processors without bf16 units compute IEEE products whatever they are told, so torch's functions are replaced."""
    monkeypatch.setattr(F, name, shortened(getattr(F, name), which))
    with pytest.raises(InputError, match="not IEEE products") as refused:
        certify(network(), IMAGES, LABELS, "R(20)")
    assert f"wrong results of {NOTICED[name]}." in str(refused.value)


def in_pieces(function, count):
    """Wrap the function so that each factor becomes a sum of ``count`` bf16 numbers, whose products are summed."""

    def pieces(x):
        parts = []
        for _ in range(count):
            parts.append(x.bfloat16().to(x.dtype))
            x = x - parts[-1]
        return parts

    def composed(x, y, *args, **options):
        if x.dtype != torch.float32:
            return function(x, y, *args, **options)
        return sum(function(a, b, *args, **options) for a, b in itertools.product(pieces(x), pieces(y)))

    return composed


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["conv2d", "linear"])
def test_products_composed_of_pieces_are_noticed(name, count, monkeypatch):
    """Three pieces hold all bits of a factor, but the sum of their products is rounded more than once."""
    monkeypatch.setattr(F, name, in_pieces(getattr(F, name), count))
    with pytest.raises(InputError, match="not IEEE products"), arithmetic.proof_arithmetic(CPU):
        pass


class OffByAProduct(nn.Module):
    """f0 - f1 = |p - c| + 2^-10 - beta with beta = A B + b0, which is 2^-9 in float32 and 0 in bf16; nothing else is a product."""

    def __init__(self, leaves_autocast_on=False):
        super().__init__()
        a, b, shift = torch.tensor([[1.0]]), torch.tensor([[1 + 2.0**-9]]), torch.tensor([[-1.0]])
        self.a, self.b, self.shift = nn.Parameter(a), nn.Parameter(b), nn.Parameter(shift)
        self.register_buffer("on", torch.tensor([1.0, 0.0]))
        self.leaves_autocast_on = leaves_autocast_on

    def forward(self, x):
        beta = (self.a @ self.b + self.shift).flatten()
        t = x.flatten(1) - 0.5137
        if self.leaves_autocast_on and type(x) is torch.Tensor:
            torch.set_autocast_dtype("cpu", torch.bfloat16)
            torch.set_autocast_enabled("cpu", True)
        return (2 * torch.relu(t) - t) * self.on + torch.cat([2.0**-10 - beta, torch.zeros_like(beta)])


def verdict_off_by_a_product(model=None, **options):
    image = torch.full((1, 1, 1, 2), 0.5)
    return str(
        certify(
            model or OffByAProduct().eval(),
            image,
            torch.tensor([0]),
            "B(-0.05:0.12)",
            attack=Attack(samples=6),
            **options,
        ).verdicts[0]
    )


def under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return verdict_off_by_a_product()


def test_a_proof_inside_another_switches_autocast_off_again():
    """In a progress callback the thread is inside the outer proof's precision settings."""
    found = []
    verdict_off_by_a_product(progress=lambda _: found or found.append(under_autocast()))
    assert found == ["falsified"]


@pytest.mark.parametrize("job", [verdict_off_by_a_product, under_autocast])
@pytest.mark.parametrize("other_thread", [False, True])
def test_a_copied_context_is_not_inside_a_proof(job, other_thread):
    """asyncio and threads copy contexts; this one outlives the proof in which it was copied."""
    contexts, found = [], []
    verdict_off_by_a_product(progress=lambda _: contexts or contexts.append(contextvars.copy_context()))

    def run_copied():
        found.append(contexts[0].run(job))

    if other_thread:
        thread = threading.Thread(target=run_copied)
        thread.start()
        thread.join()
    else:
        run_copied()
    assert found == ["falsified"]


def test_bounds_in_another_thread_are_refused():
    """The context claims to be inside a proof, but torch's autocast settings are per thread."""
    read, form, caught = read_network(network(), (1, 12, 12), IMAGES), tiltproof.bound_pixels(IMAGES, "R(1)"), []
    with arithmetic.proof_arithmetic(CPU):
        live, context = read.network_as(torch.float32), contextvars.copy_context()

        def elsewhere():
            try:
                context.run(run, live, form)
            except RuntimeError as error:
                caught.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert caught
    assert "outside of the proof's arithmetic" in caught[0]


def test_a_module_that_leaves_autocast_on_is_refused(tmp_path):
    verdict_off_by_a_product(run=RunFolder(tmp_path / "run"))
    try:
        with pytest.raises(InputError, match="precision settings were changed"):
            verdict_off_by_a_product(OffByAProduct(leaves_autocast_on=True).eval())
        torch.set_autocast_enabled("cpu", False)
        image, label = torch.full((1, 1, 1, 2), 0.5), torch.tensor([0])
        with pytest.raises(InputError, match="settings were changed during the check"):
            check(tmp_path / "run", OffByAProduct(leaves_autocast_on=True).eval(), image, label)
        torch.set_autocast_enabled("cpu", False)
        read = read_network(network(), (1, 12, 12), IMAGES)
        with arithmetic.proof_arithmetic(CPU):
            torch.set_autocast_enabled("cpu", True)
            with pytest.raises(InputError, match="settings were changed during a proof.*autocast"):
                read.network_as(torch.float32)
            torch.set_autocast_enabled("cpu", False)
    finally:
        torch.set_autocast_enabled("cpu", False)


def test_the_checker_notices_too(monkeypatch, tmp_path):
    prove("out", tmp_path)
    monkeypatch.setattr(F, "conv2d", shortened(F.conv2d))
    with pytest.raises(InputError, match="lose bits"):
        check(tmp_path / "run", network(), IMAGES, LABELS)


# products outside of the proof's precision settings


def test_constants_are_computed_inside_alone():
    read = read_network(network(), (1, 12, 12), IMAGES)
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(RuntimeError, match="outside of the proof's arithmetic"):
            read.network_as(dtype)
    with arithmetic.training_arithmetic(), pytest.raises(RuntimeError, match="outside of the proof's arithmetic"):
        read.network_as(torch.float32)


def test_bounds_are_computed_inside_alone():
    read, form = read_network(network(), (1, 12, 12), IMAGES), tiltproof.bound_pixels(IMAGES, "R(1)")
    with arithmetic.proof_arithmetic(CPU):
        live = read.network_as(torch.float32)
        run(live, form)
    with pytest.raises(RuntimeError, match="outside of the proof's arithmetic"):
        run(live, form)
    with arithmetic.training_arithmetic():
        elsewhere = read.network_as()
    with arithmetic.proof_arithmetic(CPU), pytest.raises(RuntimeError, match="constants were computed outside"):
        run(elsewhere, form)


def test_workers_refuse_what_is_outside():
    inputs = check_inputs(network(), IMAGES, LABELS, "R(1)")
    with pytest.raises(RuntimeError, match="outside of the proof's arithmetic"):
        inputs.network_as(torch.float32)


def test_the_checker_refuses_what_is_outside():
    for wrong in (
        lambda: checker_network.own_answers(network(), IMAGES),
        lambda: checker_network.outputs(network(), None),
    ):
        with pytest.raises(RuntimeError, match="outside of the checker's arithmetic"):
            wrong()
