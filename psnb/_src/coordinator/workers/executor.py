"""Executor: has the scheduler take events in, and carries out what it wants. On the event loop.

It knows workers, servers and callers; the scheduler does not. What must ask servers or workers is a
task here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

from psnb._src.coordinator.scheduling.events import Balance, Blocked, Event, StepTaken
from psnb._src.coordinator.scheduling.gates import ApplyRound, Flush
from psnb._src.coordinator.scheduling.instructions import (
    BalanceLater,
    CallBack,
    EndSession,
    Instruction,
    RecordFailure,
    RecordStates,
    RecordSteps,
    ReportSettled,
    Resolve,
    Send,
    Tell,
)
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.workers.membership import Membership
from psnb._src.coordinator.workers.resolve import Resolver
from psnb._src.monitor.viewed import Records
from psnb._src.server.operations import EndRound
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.threads import start_task

logger = logging.getLogger("psnb")


class Executor:
    """Carries out instructions.

    Parameters
    ----------
    scheduler : Scheduler
        Whose they are.
    strategy : StrategyCore
        The way to the servers.
    records : Records
        Where metrics are merged.
    loop : asyncio.AbstractEventLoop
        The Dask client's.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        strategy: StrategyCore,
        records: Records,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._scheduler, self._strategy, self._records = scheduler, strategy, records
        self._loop = loop
        self._pending: deque[Instruction] = deque()
        self._busy = False
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(
        self,
        membership: Membership,
        resolver: Resolver,
        failed: Callable[[str, Work, bytes], None],
        answer: Callable[[], bool],
    ) -> None:
        """Set what needs `handle` itself; to be called before anything happens.

        Parameters
        ----------
        membership : Membership
            The way to the workers.
        resolver : Resolver
            Asks servers about doubts.
        failed : callable
            Records a failure: takes worker, closure and pickled exception.
        answer : callable
            Answers those who wait; returns whether that may have changed something.
        """
        self._membership, self._resolver = membership, resolver
        self._failed, self._answer = failed, answer

    def handle(self, *events: Event) -> None:
        """Have the scheduler take events in, carry out what it wants, and answer those who wait.

        What happens within that, as by a callback, is taken in immediately, and carried out then.
        """
        if self._busy:
            self._pending += self._scheduler.handle(*events)
            return
        self._busy = True
        try:
            self._pending += self._scheduler.handle(*events)
        except BaseException:  # a fault: what else has happened counts all the same
            self._pending += self._scheduler.handle()
            raise
        finally:
            try:
                self._carry_out()
                while self._answer():
                    self._pending += self._scheduler.handle()  # one may have put a closure
                    if not self._pending:
                        break
                    self._carry_out()
            finally:
                self._busy = False

    def _carry_out(self) -> None:
        while self._pending:
            try:
                self._do(self._pending.popleft())
            except BaseException:  # a fault: the others must not wait for ever
                with contextlib.suppress(Exception):  # of a user's handler or filter
                    logger.exception("psnb: an instruction failed")

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Send(worker, closures):
                self._membership.of(worker).send_closures(closures)
            case Tell(worker, message):
                self._membership.of(worker).send(message)
            case RecordSteps(worker, seconds, failed, staleness):
                threads, now = worker.load.threads, time.time()
                self._records.timeline.add(worker.index, seconds, failed, threads, now)
                if staleness:
                    self._records.staleness.add_all(staleness)
                self._records.merged.draw(now)
            case RecordStates(packed):
                self._records.merged.add(packed)
            case RecordFailure(name, closure, error):
                self._failed(name, closure, error)
            case CallBack(remote):
                remote.tell()
            case ReportSettled(bounds):
                self._resolver.report_settled(bounds)
            case Resolve(doubt):
                self._resolver.resolve(doubt)
            case EndSession(worker):
                self._membership.of(worker).drained.set()
            case BalanceLater(seconds):
                if not self._loop.is_closed():  # then it is a thread's last words
                    self._loop.call_later(seconds, self.handle, Balance())
            case ApplyRound() | Flush() as step:
                start_task(self._take_step(step), self._tasks, f"psnb {step}")

    async def _take_step(self, step: ApplyRound | Flush) -> None:
        error: Exception | None = None
        try:
            if isinstance(step, ApplyRound):
                of = EndRound(self._scheduler.name, step.number, step.closures, {}, step.weights)
                await self._strategy.apply_round(of, self._on_blocked)
            else:
                await self._membership.flush()
        except Exception as raised:  # `join` raises it
            error = raised
        self.handle(StepTaken(error))

    def _on_blocked(self, error: Exception) -> None:
        self.handle(Blocked(error))
