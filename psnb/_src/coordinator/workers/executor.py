"""Executor: carries out what the scheduler wants, on workers, servers and for callers.

On the Dask client's event loop. What must ask servers or workers is a task there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from psnb._src.coordinator.scheduling.gates import ApplyRound, Flush
from psnb._src.coordinator.scheduling.instructions import (
    CallBack,
    Dispatch,
    EndLong,
    Instruction,
    RecordFailure,
    RecordStates,
)
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.workers.membership import Membership
from psnb._src.monitor.viewed import Records
from psnb._src.server.operations import EndRound
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.threads import start_task


class Executor:
    """Carries out instructions.

    Parameters
    ----------
    scheduler : Scheduler
        Whose they are.
    membership : Membership
        The way to the workers.
    strategy : StrategyCore
        The way to the servers.
    records : Records
        Where metrics are merged.
    failed : callable
        Records a failure: takes worker, closure and pickled exception.
    answer : callable
        Answers those who wait; returns whether that may have changed something.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        membership: Membership,
        strategy: StrategyCore,
        records: Records,
        failed: Callable[[str, Work, bytes], None],
        answer: Callable[[], bool],
    ) -> None:
        self._scheduler, self._membership = scheduler, membership
        self._strategy, self._records = strategy, records
        self._failed, self._answer = failed, answer
        self._tasks: set[asyncio.Task[None]] = set()

    def carry_out(self, instructions: Sequence[Instruction]) -> bool:
        """Carry instructions out, or begin to; see `Scheduler.carry_out`."""
        for each in instructions:
            match each:
                case RecordStates():
                    self._records.merged.add(each.packed)
                case RecordFailure():
                    self._failed(each.worker, each.closure, each.error)
                case CallBack():
                    each.remote.tell()
                case Dispatch():
                    self._membership.wake()
                case EndLong():
                    self._membership.end_long(each.worker)
                case ApplyRound() | Flush():
                    start_task(self._take_step(each), self._tasks, f"psnb {each}")
        return self._answer()

    async def _take_step(self, step: ApplyRound | Flush) -> None:
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
