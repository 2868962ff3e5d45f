"""Services: what connections to workers need from their coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from psnb._src.coordinator.scheduling.events import Event
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.timeouts import StartDelay, Timeouts
from psnb._src.coordinator.values import ResourceRegistry
from psnb._src.coordinator.workers.resolve import Resolver
from psnb._src.monitor.viewed import Records
from psnb._src.protocol import messages
from psnb._src.protocol.modes import Geo, Mode


class Services(NamedTuple):
    """What connections need from their coordinator.

    Attributes
    ----------
    handle : callable
        Has the scheduler take an event in, and what it wants carried out: `Executor.handle`.
    scheduler : Scheduler
        To look at.
    resources : ResourceRegistry
        The per-worker values that workers must have.
    leases : LeaseRegistry
        Answers what workers ask about leased datasets.
    resolver : Resolver
        Finds out whether lost closures had their effect.
    records : Records
        Where reports and events are recorded.
    timeouts : Timeouts
        How long to wait for workers.
    start_delay : StartDelay
        When a worker takes its first closure.
    mode : Mode
        The update mode.
    strategy : str
        The strategy whose updates follow the mode; those to parameters of another one are made at
        once.
    lost : callable
        Returns what of the strategy's parameters no server has, and the way on; empty if all have
        one.
    watched : callable
        Returns whether someone looks at the figures.
    """

    handle: Callable[[Event], None]
    scheduler: Scheduler
    resources: ResourceRegistry
    leases: LeaseRegistry
    resolver: Resolver
    records: Records
    timeouts: Timeouts
    start_delay: StartDelay
    mode: Mode
    strategy: str
    lost: Callable[[], str]
    watched: Callable[[], bool]

    def opening(self, name: str, index: int, workers: int, session: int) -> messages.SessionOpening:
        """Return what a worker must know from the beginning; see `SessionOpening`."""
        return messages.SessionOpening(
            coordinator=self.scheduler.name,
            worker_name=name,
            worker_index=index,
            num_workers=workers,
            beat=self.timeouts.beat,
            drain=self.timeouts.drain,
            strategy=self.strategy,
            exchange=self.mode.closures if isinstance(self.mode, Geo) else None,
            session=session,
        )
