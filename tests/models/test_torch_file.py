"""Pickles of torch.save: refused, or with ``allow_pickle`` read as plain tensors; their code never runs."""

import io
import os
import pickle
import struct
import zipfile

import pytest
import torch
from torch import nn

from tiltproof.errors import InputError
from tiltproof.models import load as load_model
from tiltproof.models import mnist_cnn


def resolve(path):
    return load_model(str(path), "mnist_cnn", allow_pickle=True)


def state():
    torch.manual_seed(0)
    return mnist_cnn().state_dict()


def archive_with(program, records=()):
    """Return an archive as torch.save writes it, around another pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {"data.pkl": program, "version": b"3\n", "byteorder": b"little", **dict(records)}.items():
            archive.writestr(f"archive/{name}", content)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["pt", "PTH", "pkl", "pickle", "ckpt", "bin"])
def test_a_state_dict_is_read_when_allowed_and_else_refused(tmp_path, suffix):
    path = tmp_path / f"model.{suffix}"
    torch.save(state(), path)
    with pytest.raises(InputError, match="safetensors files only.*--allow-pickle.*allow_pickle=True"):
        load_model(str(path), "mnist_cnn")
    model = resolve(path)
    assert not model.training
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in state().items())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: {"state_dict": weights},
        lambda weights: {"epoch": 3, "loss": 0.5, "note": None, "done": True, "sizes": [1, 2], "state_dict": weights},
        dict,
        lambda weights: {name: nn.Parameter(tensor) for name, tensor in weights.items()},
    ],
    ids=["state_dict", "checkpoint", "dict", "parameters"],
)
def test_the_forms_a_state_dict_comes_in(tmp_path, wrap):
    path = tmp_path / "model.pt"
    torch.save(wrap(state()), path)
    assert torch.equal(resolve(path).fc2.bias, state()["fc2.bias"])


class Hostile:
    """Creates a file when unpickled by a reader that trusts it."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("form", ["bare", "archive", "beside tensors", "legacy"])
@pytest.mark.parametrize("function", ["system", "eval", "exec"])
def test_a_hostile_pickle_runs_nothing(tmp_path, form, function):
    trap = tmp_path / "trap"
    calls = {
        "system": Hostile(os.system, f"touch '{trap}'"),
        "eval": Hostile(eval, f"open({str(trap)!r}, 'w')"),
        "exec": Hostile(exec, f"open({str(trap)!r}, 'w').close()"),
    }
    path = tmp_path / "model.pt"
    content = {**state(), "hostile": calls[function]} if form != "archive" else calls[function]
    if form == "bare":
        path.write_bytes(pickle.dumps(content, 2))
        pickle.loads(path.read_bytes())
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form != "legacy")
        torch.load(path, weights_only=False)
    assert trap.exists(), "the trap works on a reader that trusts it"
    trap.unlink()
    for allowed in (False, True):
        with pytest.raises(InputError, match="safetensors|holds more than tensors|not a file of torch.save"):
            load_model(str(path), "mnist_cnn", allow_pickle=allowed)
    assert not trap.exists()


def test_a_whole_module(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(mnist_cnn(), path)
    with pytest.raises(InputError, match=r"more than tensors.*ConvolutionalNetwork.*whole module.*state_dict\(\)"):
        resolve(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_files_that_are_no_state_dict(tmp_path, legacy):
    path = tmp_path / "model.pt"
    for content in ([1, 2], torch.zeros(3), {"a": 1}, {1: torch.zeros(1)}, {"state_dict": [torch.zeros(1)]}):
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(InputError, match="before version 1.6" if legacy else "dictionary"):
            resolve(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc2.bias": torch.zeros(7)}, r"fc2.bias is \[7\] instead of \[10\]"),
        ({"fc2.bias": torch.full((10,), float("inf"))}, "NaN or infinite"),
        ({"fc2.bias": torch.zeros(10, dtype=torch.float64)}, "torch.float64"),
        ({"extra\x1b": torch.zeros(1)}, r"extra\? is unknown"),
    ],
)
def test_tensors_are_checked_as_in_a_safetensors_file(tmp_path, change, message):
    path = tmp_path / "model.pt"
    torch.save({**state(), **change}, path)
    with pytest.raises(InputError, match=f"do not fit mnist_cnn.*{message}"):
        resolve(path)


def tensor_program(count, shape, stride, offset=0):
    """Return the pickle of {'fc2.bias': tensor} with an arbitrary description of storage and shape."""
    numbers = b"".join
    integer = lambda number: b"\x8a\x08" + struct.pack("<q", number)  # noqa: E731
    text = lambda word: b"X" + struct.pack("<I", len(word)) + word  # noqa: E731
    tuple_of = lambda items: b"(" + numbers(map(integer, items)) + b"t"  # noqa: E731
    storage = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + integer(count) + b"tQ"
    arguments = (
        storage + integer(offset) + tuple_of(shape) + tuple_of(stride) + b"\x89" + b"ccollections\nOrderedDict\n)R"
    )
    return b"\x80\x02}" + text(b"fc2.bias") + b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tRs."


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (tensor_program(10, [10], [1]), "do not fit"),
        (tensor_program(10, [2**39], [0]), "do not fit"),
        (tensor_program(2**39, [10], [1]), "do not fit"),  # mapped, the storage ends with the file
        (tensor_program(2**39, [1_000_000], [1]), "not a readable"),
        (tensor_program(1_000_000, [1_000_000], [1]), "not a readable"),
        (tensor_program(10, [2**39], [1]), "not a readable"),
        (tensor_program(10, [10], [1], offset=1), "not a readable"),
        (tensor_program(10, [-1], [1]), "not a readable"),
        (tensor_program(10, [10], [-1]), "not a readable"),
        (tensor_program(2**62, [2**62], [1]), "not a readable"),
        (b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\0\0\0\0\x10\x85R.", "more than tensors.*builtins.bytearray"),
        (b"\x80\x02\x8c\x02os\x8c\x06system\x93.", "more than tensors.*STACK_GLOBAL"),
        (b"\x80\x04}.", "more than tensors.*protocol 4"),
        (b"\x80\x02\x8e" + struct.pack("<Q", 2**62), "not a readable"),
        (b"\x80\x02" + b"(" * 100_000 + b".", "not a readable"),
        (b"\x80\x02" + b"]" * 80_000 + b"a" * 40_000 + b".", "not a readable"),
        (b"\x80\x02})" + b"\x85" * 120_000 + b"K\x01s.", "not a readable"),
        (b"\x80\x02})" + b"\x85" * 900_000 + b"K\x01s.", "more than any state dict needs"),
        (b"\x80\x02}" + b"." + bytes(2**20), "more than any state dict needs"),
    ],
)
def test_pickles_that_describe_giants(tmp_path, program, message):
    path = tmp_path / "model.pt"
    path.write_bytes(archive_with(program, {"data/0": bytes(40)}.items()))
    with pytest.raises(InputError, match=message):
        resolve(path)


def test_one_number_that_stands_for_many(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({**state(), "fc2.bias": torch.zeros(1).expand(2**40)}, path)
    with pytest.raises(InputError, match=r"fc2.bias is \[1099511627776\] instead of \[10\]"):
        resolve(path)


def test_an_archive_that_unpacks_to_a_giant(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", tensor_program(10, [10], [1]))
        with archive.open("archive/data/0", "w", force_zip64=True) as record:
            for _ in range(100):
                record.write(bytes(2**20))
    assert path.stat().st_size < 1_000_000
    with pytest.raises(InputError, match="compressed archive"):
        resolve(path)


@pytest.mark.parametrize("keep", [0, 3, 100, 50_000, -1, -30])
def test_a_truncated_archive(tmp_path, keep):
    path = tmp_path / "model.pt"
    torch.save(state(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="not a (readable )?file of torch.save"):
        resolve(path)
