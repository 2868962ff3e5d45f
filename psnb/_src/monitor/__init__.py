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
from psnb._src.monitor.shown import LiveView, ProgressLine, plot, wanted
from psnb._src.monitor.told import CommandName, Identity, OptimizerState

__all__ = [
    "RUNNING",
    "CheckpointStatistics",
    "CommandName",
    "Event",
    "EventKind",
    "EventLog",
    "Failure",
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
    "plot",
    "tell_panels",
    "wanted",
]
