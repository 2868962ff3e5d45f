"""Displays of a coordinator: the widget in a notebook, text and figures anywhere else."""

from psnb._src.monitor.shown.display import LiveView
from psnb._src.monitor.shown.html_table import html_table
from psnb._src.monitor.shown.lists import Events, Failures, Phases
from psnb._src.monitor.shown.plot import plot
from psnb._src.monitor.shown.progress import ProgressLine, Share, wanted

__all__ = [
    "Events",
    "Failures",
    "LiveView",
    "Phases",
    "ProgressLine",
    "Share",
    "html_table",
    "plot",
    "wanted",
]
