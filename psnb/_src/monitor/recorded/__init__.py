"""The records of a coordinator, and the immutable snapshots that views read."""

from psnb._src.monitor.recorded.events import Event, EventKind, EventLog
from psnb._src.monitor.recorded.failures import Failure
from psnb._src.monitor.recorded.history import EXAMPLES, Points
from psnb._src.monitor.recorded.rate import Rate
from psnb._src.monitor.recorded.records import Records
from psnb._src.monitor.recorded.staleness import StalenessStatistics
from psnb._src.monitor.recorded.statistics import (
    CheckpointStatistics,
    MetricStatistics,
    ServerStatistics,
    Statistics,
    WorkerStatistics,
)
from psnb._src.monitor.recorded.timeline import Span

__all__ = [
    "EXAMPLES",
    "CheckpointStatistics",
    "Event",
    "EventKind",
    "EventLog",
    "Failure",
    "MetricStatistics",
    "Points",
    "Rate",
    "Records",
    "ServerStatistics",
    "Span",
    "StalenessStatistics",
    "Statistics",
    "WorkerStatistics",
]
