"""Snapshots and history of what a coordinator does, and their displays."""

from psnb.monitor import protocol
from psnb.monitor.backlog import Backlog, Extract, Extracts
from psnb.monitor.commands import execute
from psnb.monitor.display import LiveView
from psnb.monitor.events import Event, EventKind, EventLog
from psnb.monitor.failures import Failure, FailureLog
from psnb.monitor.history import History
from psnb.monitor.kernel import in_notebook, kernel_id
from psnb.monitor.link import Link, tell_panels
from psnb.monitor.plot import plot
from psnb.monitor.progress import ProgressLine, wanted
from psnb.monitor.protocol import CommandName, Identity
from psnb.monitor.rate import Rate
from psnb.monitor.records import Records
from psnb.monitor.source import Source
from psnb.monitor.staleness import Staleness, StalenessStatistics
from psnb.monitor.statistics import (
    CheckpointStatistics,
    MetricStatistics,
    ServerStatistics,
    Statistics,
    WorkerStatistics,
)

__all__ = [
    "Backlog",
    "CheckpointStatistics",
    "CommandName",
    "Event",
    "EventKind",
    "EventLog",
    "Extract",
    "Extracts",
    "Failure",
    "FailureLog",
    "History",
    "Identity",
    "Link",
    "LiveView",
    "MetricStatistics",
    "ProgressLine",
    "Rate",
    "Records",
    "ServerStatistics",
    "Source",
    "Staleness",
    "StalenessStatistics",
    "Statistics",
    "WorkerStatistics",
    "execute",
    "in_notebook",
    "kernel_id",
    "plot",
    "protocol",
    "tell_panels",
    "wanted",
]
