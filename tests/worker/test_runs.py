"""Closures of many steps in a worker: each a commit, until something ends them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.commit import UndecidedError
from psnb._src.client.updates import current_updates
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.errors import unpack_error
from psnb._src.protocol.messages import (
    EFFECTIVE,
    Assignment,
    ClosureResult,
    ClosureResults,
    ElementsTaken,
    Inquiry,
    ReturnLease,
    SessionOpening,
    Taken,
)
from psnb._src.protocol.packing import dumps, loads
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.tables.operations import PushGradient, on_table
from psnb._src.worker.attempt import MOST_IN_VAIN, LoadedFunction
from psnb._src.worker.context import Stop, worker_context
from psnb._src.worker.link import NotebookLink
from psnb._src.worker.reports import ReportedStates
from psnb._src.worker.resources import Resources
from psnb._src.worker.results import ResultSender
from psnb._src.worker.runner import ClosureRunner, Unstarted
from psnb.errors import ConfigurationError, ServerLostError

SHARD = ShardId("s", 0)
OPENING = SessionOpening("notebook", "a", 0, 1, 1.0, 1.0, "s", None, 1)


class Servers:
    """Servers that answer commits when they are sent, or when they are asked to."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.held: list[Callable[[Any], None]] = []
        self.hold_at = -1
        self.waiting: list[Callable[[Any], None]] = []  # not sent yet

    def commit_soon(
        self,
        commit: Commit,
        parts: Mapping[ShardId, Part],
        ended: Callable[[Any], None],
        *,
        later: bool = False,
    ) -> None:
        self.commits.append(commit)
        if commit.number == self.hold_at:
            self.held.append(ended)
            return
        self.waiting.append(ended)
        if not later:
            self.flush()

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        for ended in waiting:
            ended(0)


class Link(NotebookLink):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def ask(self, inquiry: Inquiry) -> Future[Any]:
        raise AssertionError


class World:
    """A worker that does one run."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.servers, self.link, resources = Servers(), Link(), Resources()
        loop = asyncio.new_event_loop()
        unstarted: Unstarted = {}
        self.results = ResultSender(loop, unstarted, self.link.send)
        self.runner = ClosureRunner(
            OPENING,
            self.servers,
            None,
            self.link,
            self.results,
            resources,  # type: ignore[arg-type]
            unstarted,
        )
        loop.close()
        self.function = LoadedFunction("step", dumps(step, "step"), resources)
        self.function._function = step  # not a copy: it refers to this world

    def run(self, steps: int = 5, *, results: bool = False) -> list[Any]:
        """Do closure 8, whose first step has number 10 and commit 3; return what was sent."""
        assignment = Assignment(8, "f", 10, steps, results, 1, 3, None, b"", [], [], None)
        self.runner.expect(self.function, assignment)
        self.runner.run(8)
        return self.link.sent

    def results_sent(self) -> list[ClosureResult]:
        found = [each for each in self.link.sent if isinstance(each, ClosureResults)]
        return [result for message in found for result in message.results]


def push() -> None:
    updates = current_updates()
    assert updates is not None
    updates.add([(SHARD, on_table("t", PushGradient(np.zeros(1, np.float32), 0.1)))])


def test_each_step_is_a_commit_of_its_own_and_they_are_reported_together() -> None:
    closures = []

    def step() -> str:
        closures.append(worker_context().closure)
        psnb.report(loss=2.0)
        push()
        return "dropped"

    world = World(step)
    world.run(steps=4)
    assert closures == [10, 11, 12, 13]
    assert [each.number for each in world.servers.commits] == [3, 4, 5, 6]
    (result,) = world.results_sent()
    assert (result.closure, result.ended, result.steps, result.succeeded) == (8, True, 4, True)
    whole = ReportedStates()
    for _ in range(4):
        whole.add_numbers({"loss": 2.0})
    assert result.payload == whole.packed()
    assert not world.runner.busy


def test_a_closure_that_was_returned_and_comes_again_is_run_once_and_as_it_came_last() -> None:
    steps = []
    world = World(lambda: steps.append(worker_context().closure))
    for number in (10, 20):
        assert world.runner.stop([8], Stop.AFTER_STEP) == [8] * (number == 20)
        given = Assignment(8, "f", number, 1, False, 1, 3, None, b"", [], [], None)
        world.runner.expect(world.function, given)
    for _ in range(2):  # each time that it came it has got a place in the threads' queue
        world.runner.run(8)
    assert steps == [20]
    assert [each.ended for each in world.results_sent()] == [True]


def test_what_was_taken_from_a_lease_is_reported_before_it_is_returned() -> None:
    def step() -> None:
        requests = worker_context().lease_requests
        assert requests is not None
        requests.take(1, 0, 0, 1, None, False)
        requests.return_(1, 0)
        raise ValueError

    world = World(step)

    def ask(inquiry: Inquiry) -> Future[Any]:
        world.link.sent.append(inquiry)
        return Future()

    world.link.ask = ask  # type: ignore[method-assign]
    first, second, *_ = world.run()
    assert first.taken == [Taken(1, 0, 10, 0, 1, None, False)]
    assert second == ReturnLease(1, 0)


def test_what_steps_return_comes_if_it_is_wanted() -> None:
    def step() -> int | None:
        push()
        return worker_context().closure if worker_context().closure != 11 else None

    world = World(step)
    world.run(steps=3, results=True)
    (result,) = world.results_sent()
    assert [loads(each) if each else None for each in result.values] == [10, None, 12]


def test_a_single_step_and_the_end_of_its_closure_are_one_message() -> None:
    def step() -> int:
        push()
        return 7

    world = World(step)
    flush = world.servers.flush

    def flushed() -> None:
        flush()
        world.results.flush()  # as a tick does, when the commit was answered and this thread waits

    world.servers.flush = flushed  # type: ignore[method-assign]
    world.run(steps=1, results=True)
    (result,) = world.results_sent()
    assert (result.steps, result.ended, result.pushed) == (1, True, True)
    assert [loads(each) for each in result.values] == [7]


def test_a_step_that_finds_nothing_ends_it() -> None:
    def step() -> None:
        requests = worker_context().lease_requests
        assert requests is not None
        requests.ended = True

    world = World(step)
    world.run()
    (result,) = world.results_sent()
    assert (result.steps, result.ended) == (1, True)


def test_steps_that_never_take_an_element_are_refused() -> None:
    world = World(push)
    world.run(steps=3 * MOST_IN_VAIN)
    result = world.results_sent()[-1]
    assert (result.ended, result.succeeded) == (True, False)
    with pytest.raises(ConfigurationError, match=r"step has run 1,000 times .* next\(iterator\)"):
        raise unpack_error(result.payload)
    assert len(world.servers.commits) == MOST_IN_VAIN - 1


def test_a_step_that_takes_an_element_now_and_then_is_not_refused() -> None:
    def step() -> None:
        requests = worker_context().lease_requests
        assert requests is not None
        if worker_context().closure == 10 + MOST_IN_VAIN // 2:
            requests.take(1, 0, 0, 1, None, False)
        push()

    world = World(step)
    world.run(steps=MOST_IN_VAIN + 10)
    assert world.results_sent()[-1].succeeded


def test_it_ends_with_the_step_that_it_does_when_it_is_recalled() -> None:
    def step() -> None:
        push()
        if worker_context().closure == 11:
            world.runner.stop([8], Stop.AFTER_STEP)

    world = World(step)
    world.run()
    (result,) = world.results_sent()
    assert (result.steps, result.ended) == (2, True)


def test_a_step_that_raises_ends_it_after_those_that_are_done() -> None:
    def step() -> None:
        push()
        if worker_context().closure == 12:
            raise ValueError("boo")

    world = World(step)
    world.run()
    assert [each.number for each in world.servers.commits] == [3, 4]
    done, failed = world.results_sent()
    assert (done.steps, done.succeeded, done.ended) == (2, True, False)
    assert (failed.closure, failed.succeeded, failed.ended) == (8, False, True)
    phases = [sum(each.phases) for each in world.link.sent if isinstance(each, ClosureResults)]
    assert sum(phases) == pytest.approx(done.seconds + failed.seconds)
    assert isinstance(unpack_error(failed.payload), ValueError)
    assert any(isinstance(each, ElementsTaken) for each in world.link.sent)


@pytest.mark.parametrize("undecided", [False, True])
def test_after_a_step_without_effect_no_later_one_has_any(undecided: bool) -> None:
    lost = ServerLostError("gone")

    def step() -> None:
        push()
        if worker_context().closure == 12:  # the commit before it is under way
            (ended,) = world.servers.held
            commit = world.servers.commits[-1]
            ended(UndecidedError(commit, lost) if undecided else lost)

    world = World(step)
    world.servers.hold_at = 4
    world.run()
    assert [each.number for each in world.servers.commits] == [3, 4]
    done, last = world.results_sent()
    assert (done.steps, done.ended) == (1, False)
    assert (last.steps, last.ended, last.succeeded) == (0, True, undecided)
    if undecided:
        assert last.in_doubt == ("notebook", 4)
    else:
        assert isinstance(unpack_error(last.payload), ServerLostError)
    assert not world.runner.busy


def test_a_step_that_writes_nothing_waits_for_the_commit_before_it() -> None:
    order: list[str] = []

    def step() -> None:
        if worker_context().closure == 10:
            push()

    world = World(step)
    world.servers.hold_at = 3
    add = world.results.add_step

    def add_step(attempt: Any) -> None:
        order.append(f"step {attempt.assignment.number}")
        add(attempt)

    world.results.add_step = add_step  # type: ignore[method-assign]
    awaited = world.runner._await_last

    def await_last() -> None:
        if world.servers.held:
            order.append("waits")
            world.servers.held.pop()(0)
        awaited()

    world.runner._await_last = await_last  # type: ignore[method-assign]
    world.run(steps=2)
    assert order == ["waits", "step 10", "step 11"]


def test_what_a_step_was_given_and_wrote_is_let_go_before_it_is_reported() -> None:
    batches: list[weakref.ref[np.ndarray]] = []

    def step() -> None:
        batch = np.zeros(3)
        batches.append(weakref.ref(batch))
        requests = worker_context().lease_requests
        assert requests is not None
        requests.taken.add(1, batch)
        push()

    world = World(step)
    let_go: list[bool] = []
    flush = world.results.flush
    world.results.flush = lambda: let_go.extend(each() is None for each in batches) or flush()  # type: ignore[method-assign]
    world.run(steps=3)
    assert let_go == [True] * 3


def test_what_steps_have_taken_that_are_done_is_reported_in_one() -> None:
    def step() -> None:
        number = worker_context().closure
        requests = worker_context().lease_requests
        assert requests is not None
        requests.take(1, 0, number - 10, 1, number, False)
        push()

    world = World(step)
    world.servers.hold_at = 6
    world.run(steps=4)
    world.results.flush()
    (first,) = [each.taken for each in world.link.sent if isinstance(each, ClosureResults)]
    assert first == [Taken(1, 0, EFFECTIVE, 0, 3, 12, False), Taken(1, 0, 13, 3, 1, 13, False)]


def test_what_steps_have_taken_that_wrote_nothing_counts_as_the_notebook_counts_them() -> None:
    def step() -> None:
        number = worker_context().closure
        requests = worker_context().lease_requests
        assert requests is not None
        requests.take(1, 0, number - 10, 1, number, False)
        if number not in (11, 12, 14):
            push()

    world = World(step)
    world.run(steps=6)
    world.results.flush()
    (first,) = [each.taken for each in world.link.sent if isinstance(each, ClosureResults)]
    found = [(each.closure, each.at, each.size) for each in first]
    assert found == [
        (EFFECTIVE, 0, 1),
        (14, 1, 2),
        (EFFECTIVE, 3, 1),
        (14, 4, 1),
        (EFFECTIVE, 5, 1),
    ]


def test_a_closure_that_comes_again_is_not_ended_by_its_earlier_attempt() -> None:
    runner: Any = object.__new__(ClosureRunner)
    runner._closures, runner._unstarted, ends = {}, {}, list[str]()
    runner._results = SimpleNamespace(end=lambda closure, last, phases: ends.append(last))
    sent: Any = SimpleNamespace(closure=7, steps=1, number=0, commit=0)

    def step(function: object, assignment: object, steps: Any) -> None:
        steps.last, steps.handed_over = "first", 1  # as by the thread that hears of its commit
        runner._end_if_over(7, steps)
        runner.expect(None, sent)  # the notebook sends it again, before this thread goes on

    runner._run_step = step
    runner.expect(None, sent)
    runner.run(7)
    assert ends == ["first"]
    assert 7 in runner._closures
