"""Steps: carries out the steps that a gate asks for, on servers and workers.

Each step is a task on the Dask client's event loop.
"""

from __future__ import annotations

import asyncio

from psnb._src.coordinator.scheduling.gates import (
    ApplyRound,
    FlushGate,
    Gate,
    RoundGate,
    StalenessGate,
    Step,
)
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.workers.membership import Membership
from psnb._src.protocol.modes import BoundedStaleness, Geo, Mode, Sync
from psnb._src.server.operations import EndRound
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.threads import start_task


def gate_for(mode: Mode) -> Gate:
    """Return a new gate for an update mode."""
    match mode:
        case Sync(closures=closures) if closures is not None:
            return RoundGate(closures)
        case BoundedStaleness(updates=updates):
            return StalenessGate(updates)
        case Geo():
            return FlushGate()
    return Gate()


class Steps:
    """Carries out steps and reports the outcome to the queue.

    Parameters
    ----------
    scheduler : Scheduler
        Whose gate asks for them.
    membership : Membership
        The way to the workers, and to the event loop.
    strategy : StrategyCore
        The way to the servers.
    """

    def __init__(
        self, scheduler: Scheduler, membership: Membership, strategy: StrategyCore
    ) -> None:
        self._scheduler, self._membership = scheduler, membership
        self._strategy = strategy
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop's alone

    def begin(self, step: Step) -> None:
        """Carry out a step; on the event loop, returns at once."""
        start_task(self._carry_out(step), self._tasks, f"psnb {step}")

    async def _carry_out(self, step: Step) -> None:
        error: Exception | None = None
        try:
            if isinstance(step, ApplyRound):
                of = EndRound(self._scheduler.name, step.number, step.closures, {}, step.weights)
                await self._strategy.apply_round(of, self._scheduler.block)
            else:
                await self._membership.flush()
        except Exception as raised:  # `join` raises it
            error = raised
        self._scheduler.stepped(error)
