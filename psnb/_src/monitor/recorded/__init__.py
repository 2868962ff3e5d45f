"""The records of a coordinator, and the immutable snapshots that views read."""

from psnb._src.monitor.recorded.events import Event, EventKind, EventLog
from psnb._src.monitor.recorded.failures import Failure
from psnb._src.monitor.recorded.history import EXAMPLES, NO_METRICS, VALIDATION, Points
from psnb._src.monitor.recorded.rate import Rate
from psnb._src.monitor.recorded.records import Records
from psnb._src.monitor.recorded.staleness import StalenessStatistics
from psnb._src.monitor.recorded.state_table import (
    CLOSED,
    IDLE,
    RUNNING,
    SERVER_TONES,
    WORKER_TONES,
    Situation,
    Tone,
    coordinator_state,
    coordinator_tone,
    meaning,
)
from psnb._src.monitor.recorded.statistics import (
    CheckpointStatistics,
    MetricStatistics,
    ServerStatistics,
    Statistics,
    WorkerStatistics,
)
from psnb._src.monitor.recorded.timeline import Span
from psnb._src.monitor.recorded.training_progress import (
    EpochCount,
    TrainingClock,
    TrainingProgress,
)

__all__ = [
    "CLOSED",
    "EXAMPLES",
    "IDLE",
    "NO_METRICS",
    "RUNNING",
    "SERVER_TONES",
    "VALIDATION",
    "WORKER_TONES",
    "CheckpointStatistics",
    "EpochCount",
    "Event",
    "EventKind",
    "EventLog",
    "Failure",
    "MetricStatistics",
    "Points",
    "Rate",
    "Records",
    "ServerStatistics",
    "Situation",
    "Span",
    "StalenessStatistics",
    "Statistics",
    "Tone",
    "TrainingClock",
    "TrainingProgress",
    "WorkerStatistics",
    "coordinator_state",
    "coordinator_tone",
    "meaning",
]
