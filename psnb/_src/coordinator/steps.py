"""Steps: carries out the steps that a queue's gate asks for, on servers and workers.

Each step is a task on the Dask client's event loop. Requests to servers block, so they run in a
thread of the loop's own. The strategy is referenced weakly: whoever waits for a step keeps it.
"""

from __future__ import annotations

import asyncio
import weakref

from psnb._src.coordinator.queue import (
    ApplyRound,
    ClosureQueue,
    FlushGate,
    Gate,
    RoundGate,
    StalenessGate,
    Step,
)
from psnb._src.coordinator.workers import Membership
from psnb._src.modes import BoundedStaleness, Geo, Mode, Sync
from psnb._src.strategy import StrategyCore


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
    """Carries out steps and tells the queue how it went.

    Parameters
    ----------
    queue : ClosureQueue
        The queue whose gate asks for them.
    membership : Membership
        The way to the workers, and to the event loop.
    strategy : StrategyCore
        The way to the servers.
    """

    def __init__(self, queue: ClosureQueue, membership: Membership, strategy: StrategyCore) -> None:
        self._queue, self._membership = queue, membership
        self._strategy = weakref.ref(strategy)
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop's alone

    def begin(self, step: Step) -> None:
        """Carry out a step; any thread, returns at once."""
        self._membership.soon(lambda: self._start(step))

    def _start(self, step: Step) -> None:
        task = asyncio.create_task(self._carry_out(step), name=f"psnb {step}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, step: Step) -> None:
        error: Exception | None = None
        try:
            if isinstance(step, ApplyRound):
                await self._apply(step)
            else:
                await self._membership.flush()
        except Exception as raised:  # `join` raises it
            error = raised
        self._queue.stepped(error)

    async def _apply(self, step: ApplyRound) -> None:
        strategy = self._strategy()
        if strategy is not None:
            name, hold_up = self._queue.name, self._queue.hold_up
            await asyncio.to_thread(strategy.apply_round, name, step.number, step.closures, hold_up)
