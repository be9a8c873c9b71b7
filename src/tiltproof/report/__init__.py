"""Pictures of what was proved, drawn with Pillow alone."""

from tiltproof.report.bounds_picture import bounds_picture
from tiltproof.report.margin_picture import margin_picture

__all__ = ["bounds_picture", "margin_picture"]
