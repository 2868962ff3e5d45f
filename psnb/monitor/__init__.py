"""Snapshots and history of what a coordinator does, and their displays."""

from psnb.monitor import protocol
from psnb.monitor.backlog import Backlog, Extract, Extracts
from psnb.monitor.display import LiveView
from psnb.monitor.events import Event, EventKind, EventLog
from psnb.monitor.history import History
from psnb.monitor.link import Link, tell_panels
from psnb.monitor.staleness import Staleness, StalenessStatistics
from psnb.monitor.statistics import MetricStatistics, Statistics, WorkerStatistics

__all__ = [
    "Backlog",
    "Event",
    "EventKind",
    "EventLog",
    "Extract",
    "Extracts",
    "History",
    "Link",
    "LiveView",
    "MetricStatistics",
    "Staleness",
    "StalenessStatistics",
    "Statistics",
    "WorkerStatistics",
    "protocol",
    "tell_panels",
]
