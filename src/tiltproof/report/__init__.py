"""Pictures of what was proved, drawn with Pillow alone, and a whole run as one page that opens offline."""

from tiltproof.report.bounds_picture import bounds_picture
from tiltproof.report.front_picture import Point, front_picture
from tiltproof.report.margin_picture import margin_picture
from tiltproof.report.page import write_report
from tiltproof.report.steering_picture import Steering, steering_picture

__all__ = [
    "Point",
    "Steering",
    "bounds_picture",
    "front_picture",
    "margin_picture",
    "steering_picture",
    "write_report",
]
