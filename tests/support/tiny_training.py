"""A training run of a few seconds, with the bundled digits as the training set."""

import socket
import struct
import subprocess
import sys

import torch

from tests.support.processes import environment
from tiltproof.data import load as load_data
from tiltproof.training import read_recipe

RECIPE = """
name = "tiny"
about = "For tests."
transform = "R(30)"
[data]
name = "mnist"
crop_padding = 1
flip = true
hold_out = 0.2
[model]
architecture = "mnist_cnn"
[train]
epochs = 3
batch_size = 16
optimizer = "adamw"
learning_rate = 1e-3
schedule = "one-cycle"
weight_decay = 1e-4
l1 = 1e-4
clip_norm = 1.0
seed = 3
[loss]
kind = "worst-of"
samples = 2
warm_up_epochs = 0
ramp_epochs = 0
[certify]
method = "affine"
"""
IMAGES, LABELS = load_data("mnist-sample")
DIGITS = {"images": IMAGES, "labels": LABELS}
STEPS = 5
"""Mini-batches of 16 in the 80 images that are not held out."""


def make_recipe(folder, *settings):
    path = folder / "tiny.toml"
    path.write_text(RECIPE)
    return read_recipe(str(path)).with_settings(list(settings))


def write_mnist(folder, split="train"):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = IMAGES.mul(255).round().to(torch.uint8).numpy().tobytes()
    (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, len(IMAGES), 28, 28) + pixels)
    labels = LABELS.to(torch.uint8).numpy().tobytes()
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(LABELS)) + labels)


def start_program(folder, data_root, out, *arguments, epochs=2, **variables):
    """Start `tiltproof train` on the small recipe in a child process."""
    (folder / "tiny.toml").write_text(RECIPE)
    command = [sys.executable, "-m", "tiltproof", "train", str(folder / "tiny.toml"), "--data-root", str(data_root)]
    command += ["--device", "cpu", "--set", f"train.epochs={epochs}", "--certify-images", "0"]
    command += ["--out", str(folder / out), *arguments]
    return subprocess.Popen(
        command, env=environment(folder, **variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def start_two(folder, data_root, out, *arguments, epochs=2):
    """Start the two processes that torchrun would start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{"RANK": str(k), "LOCAL_RANK": str(k)} for k in (0, 1)]
    return [start_program(folder, data_root, out, *arguments, epochs=epochs, **together, **rank) for rank in ranks]


def same_weights(first, second):
    """Compare weights bit for bit."""
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_seconds(log):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in log]
