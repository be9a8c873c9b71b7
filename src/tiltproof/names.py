"""Names that users type, and defaults that ``--help`` shows, apart from the code behind them, which imports torch."""

DATA_NAMES = ("mnist", "cifar10", "tinyimagenet", "driving", "gtsrb", "mnist-sample", "cifar10-sample")
SIGNED_LABELS = ("driving",)
"""Data sets whose labels change their sign when an image is flipped, as steering angles do."""
ARCHITECTURE_NAMES = (
    *("mnist_cnn", "cifar10_cnn", "cifar10_wide", "cifar10_cnn7", "cifar10_resnet9", "cifar10_resnet18"),
    *("cifar10_resnet20", "tinyimagenet_cnn7", "tinyimagenet_wide", "tinyimagenet_wide_resnet", "driving_cnn"),
    "driving_cnn_dropout",
)
PADDINGS = ("zeros", "border", "reflect")
INTERPOLATIONS = ("bilinear", "nearest", "bicubic")
NORMALIZATIONS = ("imagenet", "cifar10", "mnist")
CLUSTERS = ("auto", "local")

REPORT_DETAILS = 100
"""Images with details in a report."""
TUNE_SAMPLES = 10
"""Parameter vectors to find box sizes with, as in the paper."""
PROPERTY_SECONDS = 100.0
"""Timeout of a VNN-LIB property in instances.csv."""
