"""Data sets by name, folders of the user's images, and the bundled samples."""

from tiltproof.data.driving import Frame
from tiltproof.data.folder import load_folder
from tiltproof.data.image_file import center_crop
from tiltproof.data.loading import DATA_NAMES, SIGNED_LABELS, load, load_frames, load_pixels

__all__ = ["DATA_NAMES", "SIGNED_LABELS", "Frame", "center_crop", "load", "load_folder", "load_frames", "load_pixels"]
