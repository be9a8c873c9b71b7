"""Pictures of what was proved, drawn with Pillow alone, and a whole run as one page that opens offline."""

from tiltproof.report.page import write_report
from tiltproof.report.plots import bounds_picture, margin_picture
from tiltproof.report.steering_plot import Steering, steering_picture
from tiltproof.report.tradeoff_plot import Point, front_picture

__all__ = [
    "Point",
    "Steering",
    "bounds_picture",
    "front_picture",
    "margin_picture",
    "steering_picture",
    "write_report",
]
