"""What there is to compare with: the networks of "Provable Defense Against Geometric Transformations" (ICLR 2023).

Clean and certified accuracy in percent of all test images, from the paper's main table: its own training and verifier. The
architectures are those of its appendix "Network Architectures".
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = '"Provable Defense Against Geometric Transformations" (ICLR 2023)'


class PaperRow(NamedTuple):
    """One network of the paper, as it was trained and certified there."""

    dataset: str
    transform: str
    architecture: str
    clean_percent: float
    certified_percent: float


PAPER_ROWS = (
    PaperRow("mnist", "R(30)", "mnist_cnn", 99.1, 94.2),
    PaperRow("mnist", "Tu(2), Tv(2)", "mnist_cnn", 99.2, 89.8),
    PaperRow("mnist", "Sc(5), R(5), C(5), B(0.01)", "mnist_cnn", 99.1, 92.6),
    PaperRow("mnist", "Sh(2), R(2), Sc(2), C(2), B(0.001)", "mnist_cnn", 99.1, 96.3),
    PaperRow("cifar10", "R(10)", "cifar10_cnn", 80.5, 63.2),
    PaperRow("cifar10", "R(2), Sh(2)", "cifar10_cnn", 70.1, 51.0),
    PaperRow("cifar10", "Sc(1), R(1), C(1), B(0.001)", "cifar10_cnn", 71.3, 42.3),
)
