"""Network architectures, the trained models that come with the package, and the ways a command names a model."""

from tiltproof.models.architectures import ARCHITECTURES, cifar10_cnn, mnist_cnn
from tiltproof.models.bundled import load_model, models
from tiltproof.models.cards import Card
from tiltproof.models.load import card_of, resolve_model
from tiltproof.onnx import load_onnx

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
