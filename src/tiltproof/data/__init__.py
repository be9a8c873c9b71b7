"""The data sets the commands know by name, a folder of the user's own images, and the bundled sample."""

from tiltproof.data.driving import Frame
from tiltproof.data.folder import load_folder
from tiltproof.data.image_file import center_crop
from tiltproof.data.loading import DATA_NAMES, SIGNED_LABELS, load, load_frames, load_pixels

__all__ = [
    "DATA_NAMES",
    "SIGNED_LABELS",
    "Frame",
    "center_crop",
    "load",
    "load_folder",
    "load_frames",
    "load_pixels",
]
