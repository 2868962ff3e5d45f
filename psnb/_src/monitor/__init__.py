"""Snapshots and history of a coordinator's work, and their displays."""

from psnb._src.monitor.recorded import (
    RUNNING,
    CheckpointStatistics,
    Event,
    EventKind,
    EventLog,
    Failure,
    MetricStatistics,
    Rate,
    Records,
    ServerStatistics,
    Situation,
    StalenessStatistics,
    Statistics,
    WorkerStatistics,
    coordinator_state,
)
from psnb._src.monitor.served import tell_panels
from psnb._src.monitor.shown import (
    Events,
    Failures,
    LiveView,
    ProgressLine,
    html_table,
    plot,
    wanted,
)
from psnb._src.monitor.told import CommandName, Identity, OptimizerState

__all__ = [
    "RUNNING",
    "CheckpointStatistics",
    "CommandName",
    "Event",
    "EventKind",
    "EventLog",
    "Events",
    "Failure",
    "Failures",
    "Identity",
    "LiveView",
    "MetricStatistics",
    "OptimizerState",
    "ProgressLine",
    "Rate",
    "Records",
    "ServerStatistics",
    "Situation",
    "StalenessStatistics",
    "Statistics",
    "WorkerStatistics",
    "coordinator_state",
    "html_table",
    "plot",
    "tell_panels",
    "wanted",
]
