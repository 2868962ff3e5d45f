"""When results leave a worker."""

from __future__ import annotations

import asyncio
from typing import Any

from psnb._src.runtime.result_sender import ResultSender


class _Sent:
    """Keeps what was sent, and tells when something was."""

    def __init__(self) -> None:
        self.messages: list[tuple[list[Any], list[Any]]] = []
        self.event = asyncio.Event()

    def __call__(self, results: list[Any], reports: list[Any]) -> None:
        self.messages.append((results, reports))
        self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(10):
            await self.event.wait()
        self.event.clear()


def test_a_lone_result_leaves_without_waiting_for_the_clock() -> None:
    async def run() -> None:
        sent = _Sent()
        outbox = ResultSender(asyncio.get_running_loop(), {}, sent)
        outbox.add_result((1,))
        await asyncio.sleep(0)  # one turn of the loop
        assert sent.messages == [([(1,)], [])]

    asyncio.run(run())


def test_results_gather_while_more_closures_wait() -> None:
    async def run() -> None:
        sent = _Sent()
        unstarted = dict.fromkeys(range(3))
        outbox = ResultSender(asyncio.get_running_loop(), unstarted, sent)
        for number in range(2):
            outbox.add_result((number,))
        await asyncio.sleep(0)
        assert sent.messages == []
        outbox.add_result((2,))
        await asyncio.sleep(0)
        assert sent.messages == [([(0,), (1,), (2,)], [])]

    asyncio.run(run())


def test_a_result_does_not_wait_for_a_closure_that_takes_long() -> None:
    async def run() -> None:
        sent = _Sent()
        outbox = ResultSender(asyncio.get_running_loop(), dict.fromkeys(range(100)), sent)
        outbox.expect(2)
        outbox.add_result((1,))
        await sent.wait()
        assert sent.messages == [([(1,)], [])]

    asyncio.run(run())


def test_reports_leave_while_their_closure_runs() -> None:
    async def run() -> None:
        sent = _Sent()
        outbox = ResultSender(asyncio.get_running_loop(), {}, sent)
        outbox.expect(1)
        outbox.add_report(0.0, {"loss": 1.0})
        await sent.wait()
        assert sent.messages == [([], [(0.0, {"loss": 1.0})])]

    asyncio.run(run())


def test_the_clock_stops_when_nothing_is_expected() -> None:
    async def run() -> None:
        outbox = ResultSender(asyncio.get_running_loop(), {}, _Sent())
        outbox.expect(2)
        outbox.expect(-1)
        assert outbox._ticking
        outbox.add_result((1,))
        while outbox._ticking:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), 10))
