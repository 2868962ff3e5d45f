"""What is asked of Dask's scheduler again and again: one message a second, and nobody's fault is
another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from distributed import Client, Scheduler
from distributed.core import Status

from psnb._src.transport import questions
from psnb._src.transport.questions import (
    QUESTIONS,
    WORKERS,
    Answers,
    SchedulerQuestions,
    questions_of,
    until_beat,
)


class FakeClient:
    """A client whose scheduler notes messages, and answers with the names of what was asked."""

    def __init__(self) -> None:
        self.messages: list[list[str]] = []
        self.times: list[float] = []
        self.rpc = SimpleNamespace(status=Status.running)
        self.answer: Callable[[list[Any]], Any] = lambda asked: [[name, ""] for name, _ in asked]
        self.scheduler = SimpleNamespace(address="tcp://a", **{QUESTIONS: self._take})

    async def _take(self, questions: list[Any]) -> Any:
        self.times.append(asyncio.get_running_loop().time())
        self.messages.append([name for name, _ in questions])
        return self.answer(questions)


def asking(test: Callable[[FakeClient, SchedulerQuestions], Coroutine[Any, Any, None]]) -> None:
    """Run a test on an event loop."""
    client = FakeClient()
    asyncio.run(test(client, SchedulerQuestions(cast(Client, client))))


async def _again(asker: SchedulerQuestions, name: str, times: int) -> None:
    for _ in range(times):
        assert await asker.ask(name) == name


def test_what_several_ask_again_and_again_goes_in_one_message_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "INTERVAL", 0.1)

    async def test(client: FakeClient, asker: SchedulerQuestions) -> None:
        await asyncio.gather(*(_again(asker, name, 4) for name in "abc"))
        assert client.messages == [["a", "b", "c"]] * 4
        assert client.times[3] - client.times[0] > 0.2  # the second comes with the next beat

    asking(test)


def test_who_begins_does_not_wait_for_the_next_message() -> None:
    async def test(client: FakeClient, asker: SchedulerQuestions) -> None:
        await asker.ask("first")
        waits = asyncio.create_task(asker.ask("waits"))
        await asyncio.sleep(0)
        assert await asker.ask("begins", at_once=True) == "begins"
        assert await waits == "waits"
        assert client.messages == [["first"], ["waits", "begins"]]
        assert client.times[1] - client.times[0] < 0.5

    asking(test)


def test_arguments_are_those_of_the_moment_and_none_asks_nothing() -> None:
    async def test(client: FakeClient, asker: SchedulerQuestions) -> None:
        client.answer = lambda asked: [[each, ""] for _, each in asked]
        given = {"value": 1}
        asked = [asker.ask("a", lambda: dict(given)), asker.ask("b", lambda: None)]
        given["value"] = 2
        assert await asyncio.gather(*asked) == [{"value": 2}, None]
        assert client.messages == [["a"]]

    asking(test)


def test_an_error_of_one_is_raised_there_alone() -> None:
    def bad() -> dict[str, Any]:
        raise KeyError("of the asker's own")

    async def test(client: FakeClient, asker: SchedulerQuestions) -> None:
        client.answer = lambda asked: [
            [None, "it raised"] if name == "fails" else [name, ""] for name, _ in asked
        ]
        names: list[Any] = [asker.ask("fails"), asker.ask("a"), asker.ask("b", bad)]
        fails, good, own = await asyncio.gather(*names, return_exceptions=True)
        assert isinstance(fails, RuntimeError)
        assert str(fails) == "it raised"
        assert good == "a"
        assert isinstance(own, KeyError)

    asking(test)


@pytest.mark.parametrize("answer", ["silence", "another scheduler", "closed", "closing"])
def test_without_an_answer_all_get_an_os_error_and_may_ask_again(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(questions, "INTERVAL", 0.01)
    monkeypatch.setattr(questions, "ANSWER_TIMEOUT", 0.01)

    async def test(client: FakeClient, asker: SchedulerQuestions) -> None:
        async def silence(questions: list[Any]) -> None:
            await asyncio.Event().wait()

        def pool_is_closed(questions: list[Any]) -> None:
            raise RuntimeError("ConnectionPool is closed")

        before = client.scheduler
        if answer == "closed":
            client.scheduler = None  # type: ignore[assignment]
        elif answer == "silence":
            client.scheduler = SimpleNamespace(address="tcp://a", **{QUESTIONS: silence})
        elif answer == "closing":
            client.rpc.status = Status.closed
            client.answer = pool_is_closed
        else:
            client.answer = lambda asked: None
        failed = await asyncio.gather(asker.ask("a"), asker.ask("b"), return_exceptions=True)
        assert [isinstance(each, OSError) for each in failed] == [True, True]
        assert all(map(str, failed))  # each says why
        client.scheduler = before
        client.answer = lambda asked: [[name, ""] for name, _ in asked]
        assert await asker.ask("c") == "c"

    asking(test)


def test_who_gave_up_is_not_asked_for() -> None:
    async def test(client: FakeClient, asker: SchedulerQuestions) -> None:
        given_up = asyncio.create_task(asker.ask("given up"))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await asker.ask("a") == "a"
        assert client.messages == [["a"]]

    asking(test)


def test_all_of_a_client_ask_together() -> None:
    one, other = (cast(Client, FakeClient()) for _ in range(2))
    assert questions_of(one) is questions_of(one)
    assert questions_of(one) is not questions_of(other)


def test_timers_of_an_interval_strike_at_the_same_moments() -> None:
    assert until_beat(12.25, 1.0) == 0.75
    assert until_beat(12.0, 1.0) == 1.0
    assert 12.25 + until_beat(12.25, 0.5) == 12.6 + until_beat(12.6, 0.5) - 0.5 == 12.5


class FakeScheduler:
    """What the plugin uses of a scheduler."""

    def __init__(self) -> None:
        self.id, self.handlers = "scheduler-1", {}  # type: ignore[var-annotated]
        self.workers: dict[str, Any] = {}

    def add(self, address: str, status: str = "running") -> None:
        """Add a worker, or change its status."""
        named = SimpleNamespace(name=status)
        self.workers[address] = SimpleNamespace(name="w", status=named, resources={"ps": 1.0})


@pytest.fixture
def scheduler() -> FakeScheduler:
    """A scheduler with the plugin."""
    found = FakeScheduler()
    asyncio.run(Answers().start(cast(Scheduler, found)))
    return found


def test_workers_are_described_only_when_something_has_changed(scheduler: FakeScheduler) -> None:
    ask = scheduler.handlers[WORKERS]
    scheduler.add("tcp://a")
    version, first = ask(None)
    assert first == {"tcp://a": {"name": "w", "status": "running", "resources": {"ps": 1.0}}}
    assert ask(version) == [version, None]
    assert ask(tuple(version)) == [version, None]  # as it comes through a socket

    scheduler.add("tcp://a", "closing_gracefully")
    later, changed = ask(version)
    assert changed["tcp://a"]["status"] == "closing_gracefully"
    assert ask(later) == [later, None]
    assert ask(["another scheduler", later[1]]) == [later, changed]


def test_a_handler_that_raises_costs_the_others_nothing(scheduler: FakeScheduler) -> None:
    def fails() -> None:
        raise ValueError("broken")

    scheduler.handlers |= {"fails": fails, "good": lambda x: x + 1}
    asked = [["fails", {}], ["good", {"x": 1}], ["missing", {}]]
    (none, why), good, (_, missing) = scheduler.handlers[QUESTIONS](asked)
    assert (none, good) == (None, [2, ""])
    assert "fails" in why
    assert "broken" in why
    assert "missing" in missing
