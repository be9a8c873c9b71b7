"""Network architectures, the bundled networks, loading a network by name, and normalization in front of it."""

from typing import TYPE_CHECKING

from tiltproof.lazy import lazy

if TYPE_CHECKING:
    from tiltproof.keras import load_keras
    from tiltproof.models.architectures import ARCHITECTURES, cifar10_cnn, mnist_cnn
    from tiltproof.models.cards import Card, RegressionCard, models
    from tiltproof.models.loading import card_of, load
    from tiltproof.models.normalization import normalized
    from tiltproof.onnx import load_onnx
    from tiltproof.tflite import load_tflite
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "keras": ("load_keras",),
            "models.architectures": ("ARCHITECTURES", "cifar10_cnn", "mnist_cnn"),
            "models.cards": ("Card", "RegressionCard", "models"),
            "models.loading": ("card_of", "load"),
            "models.normalization": ("normalized",),
            "onnx": ("load_onnx",),
            "tflite": ("load_tflite",),
        },
    )

__all__ = [
    "ARCHITECTURES",
    "Card",
    "RegressionCard",
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
