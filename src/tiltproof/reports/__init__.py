"""Pictures of what was proved, drawn with Pillow alone, and a whole run as one page that opens offline."""

from tiltproof.reports.page import report
from tiltproof.reports.plots import bounds_picture, margin_picture
from tiltproof.reports.steering_plot import Steering, steering_picture
from tiltproof.reports.tradeoff_plot import Point, front_picture

__all__ = [
    "Point",
    "Steering",
    "bounds_picture",
    "front_picture",
    "margin_picture",
    "report",
    "steering_picture",
]
