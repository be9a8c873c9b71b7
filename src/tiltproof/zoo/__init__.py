"""Network architectures, the trained models that come with the package, and the ways a command names a model."""

from tiltproof.zoo.architectures import ARCHITECTURES, cifar10_cnn, mnist_cnn
from tiltproof.zoo.bundled import load_model, models
from tiltproof.zoo.card import Card
from tiltproof.zoo.onnx_model import load_onnx
from tiltproof.zoo.resolve import card_of, resolve_model

__all__ = [
    "ARCHITECTURES",
    "Card",
    "card_of",
    "cifar10_cnn",
    "load_model",
    "load_onnx",
    "mnist_cnn",
    "models",
    "resolve_model",
]
