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
from tiltproof.transforms.rotation import Rotation
from tiltproof.transforms.scaling import Scaling
from tiltproof.transforms.shearing import Shearing
from tiltproof.transforms.translation import TranslationU, TranslationV

__all__ = [
    "LETTERS",
    "Brightness",
    "Compose",
    "Contrast",
    "Filter",
    "Gamma",
    "GaussianBlur",
    "Hue",
    "MotionBlur",
    "Part",
    "Photometric",
    "Pixelwise",
    "Rotation",
    "Saturation",
    "Scaling",
    "Shearing",
    "Spatial",
    "Transform",
    "TranslationU",
    "TranslationV",
    "parse",
]
