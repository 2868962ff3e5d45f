"""DatasetServices: what datasets on the workers need from their coordinator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from psnb._src.coordinator.closures import RemoteValue, ScheduleOptions
from psnb._src.coordinator.datasets.lease_registry import LeaseRegistry
from psnb._src.coordinator.datasets.per_worker import ResourceRegistry
from psnb._src.coordinator.queue import PinnedCalls


class DatasetServices(NamedTuple):
    """What datasets need from their coordinator.

    Attributes
    ----------
    registry : ResourceRegistry
        The per-worker values.
    leases : LeaseRegistry
        Opens epochs and knows their leases.
    schedule : callable
        Schedules a function with arguments and options.
    pinned : PinnedCalls
        Calls each worker.
    progress : callable
        Returns a context in which progress is shown: if told so, or where people look.
    """

    registry: ResourceRegistry
    leases: LeaseRegistry
    schedule: Callable[[Callable[..., Any], tuple[Any, ...], ScheduleOptions], RemoteValue]
    pinned: PinnedCalls
    progress: Callable[..., AbstractContextManager[None]]
