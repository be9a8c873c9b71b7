"""Network architectures, the bundled networks, loading a network by name, and normalization in front of it."""

from tiltproof.keras import load_keras
from tiltproof.models.architectures import ARCHITECTURES, cifar10_cnn, mnist_cnn
from tiltproof.models.cards import Card, models
from tiltproof.models.loading import card_of, load
from tiltproof.models.normalization import normalized
from tiltproof.onnx import load_onnx
from tiltproof.tflite import load_tflite

__all__ = [
    "ARCHITECTURES",
    "Card",
    "card_of",
    "cifar10_cnn",
    "load",
    "load_keras",
    "load_onnx",
    "load_tflite",
    "mnist_cnn",
    "models",
    "normalized",
]
