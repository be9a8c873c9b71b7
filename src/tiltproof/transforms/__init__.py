"""What may happen to a picture: one small file per transformation, composition, and the text notation."""

from tiltproof.transforms.base import Compose, Part, Photometric, Pixelwise, Spatial, Transform
from tiltproof.transforms.blur import Filter, GaussianBlur, MotionBlur
from tiltproof.transforms.camera import Camera, Pitch, Roll, Yaw
from tiltproof.transforms.geometric import (
    Rotation,
    Scaling,
    ScalingU,
    ScalingV,
    Shearing,
    ShearingV,
    TranslationU,
    TranslationV,
)
from tiltproof.transforms.notation import LETTERS, parse
from tiltproof.transforms.photometric import Brightness, Contrast, Gamma, Hue, Saturation

__all__ = [
    "LETTERS",
    "Brightness",
    "Camera",
    "Compose",
    "Contrast",
    "Filter",
    "Gamma",
    "GaussianBlur",
    "Hue",
    "MotionBlur",
    "Part",
    "Photometric",
    "Pitch",
    "Pixelwise",
    "Roll",
    "Rotation",
    "Saturation",
    "Scaling",
    "ScalingU",
    "ScalingV",
    "Shearing",
    "ShearingV",
    "Spatial",
    "Transform",
    "TranslationU",
    "TranslationV",
    "Yaw",
    "parse",
]
