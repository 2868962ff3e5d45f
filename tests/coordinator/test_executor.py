"""What becomes of the rest when an instruction cannot be carried out."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.coordinator.closures.call import NO_ARGUMENTS
from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.coordinator.closures.options import ScheduleOptions
from psnb._src.coordinator.closures.remote_value import RemoteValue
from psnb._src.coordinator.scheduling.doubts import Doubt, LostWorker
from psnb._src.coordinator.scheduling.events import Joined, Started
from psnb._src.coordinator.scheduling.scheduler import Scheduler
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.coordinator.scheduling.worker_state import WorkerState
from psnb._src.coordinator.workers import connection as connections
from psnb._src.coordinator.workers.connection import WorkerConnection
from psnb._src.coordinator.workers.executor import Executor


def executor(scheduler: Scheduler, loop: Any, membership: object, resolver: object) -> Executor:
    made = Executor(scheduler, None, None, loop)  # type: ignore[arg-type]
    made.attach(membership, resolver, bool, bool)  # type: ignore[arg-type]
    return made


def work(number: int) -> Work:
    inbox: Any = None
    function = FunctionRegistry().register(len)
    return Work(number, number, function, NO_ARGUMENTS, ScheduleOptions(), RemoteValue(inbox))


def test_an_instruction_that_fails_keeps_no_other_from_being_carried_out() -> None:
    scheduler, sent = Scheduler(), list[Work]()
    workers = [WorkerState(name, f"tcp://{name}", i, i, 2) for i, name in enumerate("ab")]

    def of(worker: WorkerState) -> Any:
        if worker is workers[1]:  # the latest, which gets the first one
            raise RuntimeError("a fault")
        return SimpleNamespace(send_closures=sent.extend)

    loop: Any = SimpleNamespace(is_closed=lambda: True)
    run = executor(scheduler, loop, SimpleNamespace(of=of), None)
    for worker in workers:
        run.handle(Joined(worker), Started(worker))
    first, second = work(0), work(1)
    run.handle(first, second)
    assert sent == [second]


def test_a_session_to_which_closures_cannot_be_sent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    doubts = list[Doubt]()

    async def run() -> None:
        scheduler, loop = Scheduler(), asyncio.get_running_loop()

        async def forever(*args: object) -> Any:
            await asyncio.sleep(60)

        stream = SimpleNamespace(send=bool, receive=forever, abort=lambda: None)

        async def opened(*args: object) -> Any:
            return stream, 1

        monkeypatch.setattr(connections, "_open_session", opened)
        made_for = list[WorkerConnection]()
        membership = SimpleNamespace(of=lambda worker: made_for[0])
        made = executor(scheduler, loop, membership, SimpleNamespace(resolve=doubts.append))
        services: Any = SimpleNamespace(
            handle=made.handle,
            mode=None,
            records=None,
            resources=None,
            resolver=None,
            start_delay=SimpleNamespace(seconds=lambda index: 0.0),
            timeouts=SimpleNamespace(beat=60.0),
        )
        opening: Any = SimpleNamespace(
            worker_name="a", worker_index=0, session=0, num_workers=1, beat=60.0
        )
        one = WorkerConnection(opening, "tcp://a", services, forever)
        made_for.append(one)

        def refuse(*args: object) -> Any:
            raise MemoryError

        one._knowledge = SimpleNamespace(run=refuse, new_resources=tuple)  # type: ignore[assignment]
        task = asyncio.create_task(one.run())
        await asyncio.sleep(0.01)
        made.handle(work(0))
        with contextlib.suppress(BaseExceptionGroup):
            await asyncio.wait_for(task, 5)

    asyncio.run(run())
    assert [isinstance(each, LostWorker) and len(each.asked) for each in doubts] == [1]
