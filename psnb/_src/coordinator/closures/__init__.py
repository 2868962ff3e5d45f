"""Closures: scheduled calls, how they are scheduled, and their results. Pure."""

from psnb._src.coordinator.closures.as_completed import as_completed
from psnb._src.coordinator.closures.awaiting import join
from psnb._src.coordinator.closures.call import keyword, pack_call, positional
from psnb._src.coordinator.closures.closure import NOT_TAKEN, Closure, Execution, FunctionRegistry
from psnb._src.coordinator.closures.dependents import Dependents
from psnb._src.coordinator.closures.duration import Duration
from psnb._src.coordinator.closures.failed_closures import FailedClosures, raise_together
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.closures.schedule_options import (
    DEFAULT_RETRIES,
    Chooser,
    Pin,
    ScheduleOptions,
    options,
)
from psnb._src.coordinator.closures.status import ClosureStatus

__all__ = [
    "DEFAULT_RETRIES",
    "NOT_TAKEN",
    "Chooser",
    "Closure",
    "ClosureStatus",
    "Dependents",
    "Duration",
    "Execution",
    "FailedClosures",
    "FunctionRegistry",
    "Pin",
    "RemoteValue",
    "ScheduleOptions",
    "as_completed",
    "join",
    "keyword",
    "options",
    "pack_call",
    "positional",
    "raise_together",
]
