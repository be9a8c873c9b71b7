"""What may happen to a picture: one small file per transformation, composition, and the text notation."""

from tiltproof.transforms.base import Compose, Part, Photometric, Pixelwise, Spatial, Transform
from tiltproof.transforms.brightness import Brightness
from tiltproof.transforms.colour import Hue, Saturation
from tiltproof.transforms.contrast import Contrast
from tiltproof.transforms.filters import Filter
from tiltproof.transforms.gamma import Gamma
from tiltproof.transforms.gaussian_blur import GaussianBlur
from tiltproof.transforms.motion_blur import MotionBlur
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
