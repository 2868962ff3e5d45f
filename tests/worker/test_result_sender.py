"""When results leave a worker."""

from __future__ import annotations

import asyncio
import time

import pytest

from psnb._src.protocol.messages import ClosureResult, ClosureResults, held_seconds
from psnb._src.worker.results import ResultSender

NONE = [0.0] * 5


class _Sent:
    """Keeps what was sent, and tells when something was."""

    def __init__(self) -> None:
        self.messages: list[ClosureResults] = []
        self.event = asyncio.Event()

    def __call__(self, message: ClosureResults) -> None:
        self.messages.append(message)
        self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(10):
            await self.event.wait()
        self.event.clear()


def result(closure: int) -> ClosureResult:
    return ClosureResult(closure, 0, True, False, b"", (), 0.1, False, ())


def test_a_lone_result_leaves_without_waiting_for_the_clock() -> None:
    async def run() -> None:
        sent = _Sent()
        sender = ResultSender(asyncio.get_running_loop(), {}, sent)
        sender.end(1, result(1), NONE)
        await asyncio.sleep(0)  # one turn of the loop
        assert sent.messages == [ClosureResults([], [], NONE, [result(1)])]

    asyncio.run(run())


def test_results_gather_while_more_closures_wait() -> None:
    async def run() -> None:
        sent = _Sent()
        unstarted = dict.fromkeys(range(3))
        sender = ResultSender(asyncio.get_running_loop(), unstarted, sent)
        for number in range(2):
            sender.end(number, result(number), NONE)
        await asyncio.sleep(0)
        assert sent.messages == []
        sender.end(2, result(2), NONE)
        await asyncio.sleep(0)
        assert sent.messages == [
            ClosureResults([], [], NONE, [result(number) for number in range(3)])
        ]

    asyncio.run(run())


def test_a_result_does_not_wait_for_a_closure_that_takes_long() -> None:
    async def run() -> None:
        sent = _Sent()
        sender = ResultSender(asyncio.get_running_loop(), dict.fromkeys(range(100)), sent)
        sender.expect(2)
        sender.end(1, result(1), NONE)
        await sent.wait()
        assert sent.messages == [ClosureResults([], [], NONE, [result(1)])]

    asyncio.run(run())


def test_reports_leave_while_their_closure_runs() -> None:
    async def run() -> None:
        sent = _Sent()
        sender = ResultSender(asyncio.get_running_loop(), {}, sent)
        sender.expect(1)
        sender.add_report(0.0, {"loss": 1.0})
        await sent.wait()
        assert sent.messages == [ClosureResults([], [(0.0, {"loss": 1.0})], NONE, [])]

    asyncio.run(run())


def test_with_each_tick_others_are_asked_to_send_too() -> None:
    async def run() -> None:
        ticked = asyncio.Event()
        sender = ResultSender(asyncio.get_running_loop(), {}, _Sent(), ticked.set)
        sender.expect(1)
        async with asyncio.timeout(10):
            await ticked.wait()

    asyncio.run(run())


def test_what_could_not_be_sent_goes_with_the_next_tick_before_what_has_come_since() -> None:
    async def run() -> None:
        refused, sent = list[ClosureResults](), asyncio.Queue[ClosureResults]()

        def send(message: ClosureResults) -> None:
            if not refused:
                refused.append(message)
                sender.add_report(0.0, {"loss": 2.0})
                sender.end(7, None, NONE)
                raise MemoryError
            sent.put_nowait(message)

        sender = ResultSender(asyncio.get_running_loop(), dict.fromkeys(range(9)), send)
        sender.expect(3)
        sender.add_report(0.0, {"loss": 1.0})
        sender.end(5, None, NONE)
        async with asyncio.timeout(10):
            messages = [await sent.get(), await sent.get()]
        assert [each.reports[0][1]["loss"] for each in messages] == [1.0, 2.0]
        results = [result for each in messages for result in each.results]
        assert [(each.closure, each.ended) for each in results] == [(5, True), (7, True)]

    asyncio.run(run())


def test_a_heartbeat_sends_what_was_held_for_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        sent = _Sent()
        sender = ResultSender(asyncio.get_running_loop(), {}, sent)
        sender.workers = 200
        sender.add_report(0.0, {"loss": 1.0}, urgent=False)
        for seconds in (4.9, 5.1):
            monkeypatch.setattr(sender, "_sent_at", time.monotonic() - seconds)
            sender.flush_due()
            assert len(sent.messages) == (seconds > held_seconds(200))
        sender.add_report(0.0, {"loss": 1.0})
        sender.flush_due()
        assert len(sent.messages) == 2

    asyncio.run(run())


def test_the_clock_of_an_ended_session_stops() -> None:
    async def run() -> None:
        sender = ResultSender(asyncio.get_running_loop(), {}, _Sent())
        sender.expect(2)
        sender.close()
        while sender._ticking:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), 10))


def test_the_clock_stops_when_nothing_is_expected() -> None:
    async def run() -> None:
        sender = ResultSender(asyncio.get_running_loop(), {}, _Sent())
        sender.expect(2)
        sender.expect(-1)
        assert sender._ticking
        sender.end(1, result(1), NONE)
        while sender._ticking:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), 10))


def test_the_phases_of_results_that_travel_together_add_up() -> None:
    async def run() -> None:
        sent = _Sent()
        unstarted = dict.fromkeys(range(2))
        sender = ResultSender(asyncio.get_running_loop(), unstarted, sent)
        sender.end(1, result(1), [1.0, 0.0, 2.0, 0.0, 0.5])
        sender.end(2, result(2), [0.0, 4.0, 1.0, 0.0, 0.5])
        unstarted.clear()
        sender.end(3, result(3), NONE)
        assert [each.phases for each in sent.messages] == [[1.0, 4.0, 3.0, 0.0, 1.0], NONE]

    asyncio.run(run())
