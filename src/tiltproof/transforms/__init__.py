"""What may happen to a picture: one small file per transformation, composition, and the text notation."""

from tiltproof.transforms.base import Compose, Part, Pixelwise, Spatial, Transform
from tiltproof.transforms.brightness import Brightness
from tiltproof.transforms.contrast import Contrast
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
    "Part",
    "Pixelwise",
    "Rotation",
    "Scaling",
    "Shearing",
    "Spatial",
    "Transform",
    "TranslationU",
    "TranslationV",
    "parse",
]
