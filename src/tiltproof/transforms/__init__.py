"""What may happen to a picture: one small file per transformation, composition, and the text notation."""

from tiltproof.transforms.base import Compose, Part, Pixelwise, Spatial, Transform
from tiltproof.transforms.brightness import Brightness
from tiltproof.transforms.contrast import Contrast
from tiltproof.transforms.notation import LETTERS, parse
from tiltproof.transforms.perspective import Camera, Pitch, Roll, Yaw
from tiltproof.transforms.rotation import Rotation
from tiltproof.transforms.scaling import Scaling, ScalingU, ScalingV
from tiltproof.transforms.shearing import Shearing, ShearingV
from tiltproof.transforms.translation import TranslationU, TranslationV

__all__ = [
    "LETTERS",
    "Brightness",
    "Camera",
    "Compose",
    "Contrast",
    "Part",
    "Pitch",
    "Pixelwise",
    "Roll",
    "Rotation",
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
