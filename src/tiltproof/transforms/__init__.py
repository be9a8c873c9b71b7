"""The transformations whose effect on a network can be bounded, their composition, and the text notation."""

# Classes register when they are defined: this is the order of their letters in messages and tables.
# isort: off
from tiltproof.transforms.base import LETTERS, Compose, Part, Photometric, Pixelwise, Spatial, Transform
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
from tiltproof.transforms.camera import Camera, CameraMove, MoveX, MoveY, MoveZ, Pitch, Roll, Yaw
from tiltproof.transforms.lens import LensDistortion
from tiltproof.transforms.photometric import Brightness, Contrast, Gamma, Hue, Saturation
from tiltproof.transforms.blur import Filter, GaussianBlur, MotionBlur
from tiltproof.transforms.noise import Linf
from tiltproof.transforms.base import parse

# isort: on

__all__ = [
    "LETTERS",
    "Brightness",
    "Camera",
    "CameraMove",
    "Compose",
    "Contrast",
    "Filter",
    "Gamma",
    "GaussianBlur",
    "Hue",
    "LensDistortion",
    "Linf",
    "MotionBlur",
    "MoveX",
    "MoveY",
    "MoveZ",
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
