"""Network architectures, the bundled networks, and loading a network by name."""

from tiltproof.keras import load_keras
from tiltproof.models.architectures import ARCHITECTURES, cifar10_cnn, mnist_cnn
from tiltproof.models.cards import Card, models
from tiltproof.models.loading import card_of, load
from tiltproof.onnx import load_onnx

__all__ = ["ARCHITECTURES", "Card", "card_of", "cifar10_cnn", "load", "load_keras", "load_onnx", "mnist_cnn", "models"]
