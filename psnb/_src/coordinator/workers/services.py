"""Services: what connections to workers need from their coordinator."""

from __future__ import annotations

from typing import NamedTuple

from psnb._src.coordinator.datasets import LeaseRegistry, ResourceRegistry
from psnb._src.coordinator.queue import ClosureQueue, Resolver
from psnb._src.coordinator.workers.start_delay import StartDelay
from psnb._src.coordinator.workers.timeouts import Timeouts
from psnb._src.modes import Geo, Mode
from psnb._src.monitor import Records
from psnb._src.runtime import session_messages


class Services(NamedTuple):
    """What connections need from their coordinator.

    Attributes
    ----------
    queue : ClosureQueue
        Where closures come from.
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
    """

    queue: ClosureQueue
    resources: ResourceRegistry
    leases: LeaseRegistry
    resolver: Resolver
    records: Records
    timeouts: Timeouts
    start_delay: StartDelay
    mode: Mode
    strategy: str

    def opening(
        self, name: str, index: int, workers: int, session: int
    ) -> session_messages.SessionOpening:
        """Return what a worker must know from the beginning; see `SessionOpening`."""
        return session_messages.SessionOpening(
            coordinator=self.queue.name,
            worker_name=name,
            worker_index=index,
            num_workers=workers,
            beat=self.timeouts.beat,
            drain=self.timeouts.drain,
            strategy=self.strategy,
            exchange=self.mode.closures if isinstance(self.mode, Geo) else None,
            session=session,
        )
