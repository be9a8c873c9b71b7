"""A training run of seconds: the bundled digits stand in for a training set."""

import struct

import torch

from tiltproof import load_data
from tiltproof.train import read_recipe

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


def write_mnist(folder):
    folder.mkdir(parents=True)
    pixels = IMAGES.mul(255).round().to(torch.uint8).numpy().tobytes()
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, len(IMAGES), 28, 28) + pixels)
    labels = LABELS.to(torch.uint8).numpy().tobytes()
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(LABELS)) + labels)


def same_weights(first, second):
    """Bit for bit."""
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_seconds(log):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in log]
