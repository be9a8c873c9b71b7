"""A run as one HTML page that opens offline, and plots of what was proved."""

from tiltproof.reports.page import report
from tiltproof.reports.plots import Point, Steering, bounds_plot, margin_plot, steering_plot, tradeoff_plot

__all__ = ["Point", "Steering", "bounds_plot", "margin_plot", "report", "steering_plot", "tradeoff_plot"]
