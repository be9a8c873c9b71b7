"""The program of `make gpu` where there is no GPU, and its way with parts that fail."""

import sys

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_says_that_there_is_no_gpu(program, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gpu", "--json", str(tmp_path / "gpu.json")])
    assert program("gpu").main() == 0
    assert "no GPU" in capsys.readouterr().out


def test_parts_that_fail_or_lack_their_data_say_so(program, tmp_path):
    gpu = program("gpu")
    commands = {
        "ok": gpu.Part(["-c", "print('done')"], 60, lambda _, lines: lines[-1]),
        "failed": gpu.Part(["-c", "raise SystemExit('no luck')"], 60, lambda _, lines: lines[-1]),
        "too slow": gpu.Part(["-c", "import time; time.sleep(60)"], 1, lambda _, lines: lines[-1]),
        "no data": gpu.Part(["-c", ""], 60, lambda _, lines: lines[-1], (tmp_path / "absent",)),
    }
    rows = {name: gpu.run(name, part, tmp_path) for name, part in commands.items()}
    assert {name: row["outcome"] for name, row in rows.items()} == {name: name for name in commands}
    assert rows["ok"]["says"] == "done"
    assert "no luck" in rows["failed"]["says"]
    assert "absent" in rows["no data"]["says"]


def test_every_kernel_is_checked(program):
    """The names of the kernels that reference functions name."""
    from pathlib import Path

    import tiltproof

    named = set()
    for file in Path(tiltproof.__file__).parent.rglob("*.py"):
        named |= {line.split('"')[1] for line in file.read_text().splitlines() if line.startswith("@has_kernel(")}
    assert named - {"pixels:pairs_alone"} == set(program("gpu").KERNELS)
