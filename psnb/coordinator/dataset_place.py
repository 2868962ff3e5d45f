"""DatasetPlace: what datasets on the workers need of their coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from psnb.coordinator.lease_desk import LeaseDesk
from psnb.coordinator.options import Options
from psnb.coordinator.per_worker import ResourceRegistry
from psnb.coordinator.pinned import PinnedCalls
from psnb.coordinator.remote_value import RemoteValue


class DatasetPlace(NamedTuple):
    """Where datasets are made.

    Attributes
    ----------
    registry : ResourceRegistry
        Of per-worker values.
    desk : LeaseDesk
        Where epochs are opened.
    schedule : callable
        Schedules a function with arguments and options.
    pinned : PinnedCalls
        Calls each worker.
    """

    registry: ResourceRegistry
    desk: LeaseDesk
    schedule: Callable[[Callable[..., Any], tuple[Any, ...], Options], RemoteValue]
    pinned: PinnedCalls
