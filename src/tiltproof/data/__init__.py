"""Data sets by name, folders of the user's images, torch data sets, and the bundled samples."""

from tiltproof.data.driving import Frame
from tiltproof.data.image_file import center_crop
from tiltproof.data.loading import load, load_folder, load_frames, load_pixels
from tiltproof.data.torch_dataset import from_dataset
from tiltproof.names import DATA_NAMES, SIGNED_LABELS

__all__ = [
    "DATA_NAMES",
    "SIGNED_LABELS",
    "Frame",
    "center_crop",
    "from_dataset",
    "load",
    "load_folder",
    "load_frames",
    "load_pixels",
]
