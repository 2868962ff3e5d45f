"""Snapshots and history of what a coordinator does, and their displays."""

from psnb.monitor.display import LiveView
from psnb.monitor.events import Event, EventKind, EventLog
from psnb.monitor.history import History
from psnb.monitor.staleness import Staleness, StalenessStatistics
from psnb.monitor.statistics import MetricStatistics, Statistics, WorkerStatistics

__all__ = [
    "Event",
    "EventKind",
    "EventLog",
    "History",
    "LiveView",
    "MetricStatistics",
    "Staleness",
    "StalenessStatistics",
    "Statistics",
    "WorkerStatistics",
]
