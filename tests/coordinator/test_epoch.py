"""Scheduling the closures of an epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.coordinator.datasets import epoch as epochs
from psnb._src.coordinator.datasets.epoch import run_epoch, run_in_order
from psnb._src.coordinator.scheduling.events import Withdraw
from psnb._src.utils.inbox import Inbox
from tests.conftest import wait_until
from tests.coordinator.queues import TIMEOUT, Inline, in_thread


class Epoch:
    """An epoch that is over when it is told so, its coordinator, and what was scheduled for it."""

    count, epoch = 2, 1

    def __init__(self) -> None:
        self.queue = self.membership = self.saving = self.leases = self.resources = self
        self.loop = Inline()
        self.inbox = Inbox(self.loop, self.handle)  # type: ignore[arg-type]
        self.over = False
        self.scheduled: list[RemoteValue] = []
        self.withdrawn: list[str] = []
        self.woken = threading.Event()
        self.watch: Callable[[], object] | None = bool
        self.idle = False  # a worker is
        self.poll: Callable[[], object] = bool
        self.wanted = 1000
        self.ended: list[RemoteValue] = []
        self.round_size: int | None = None
        self.left: list[int] = []  # slots in which there is something to read
        self.rounds: list[list[int]] = []  # the slots of the closures of each
        self.before: list[int] = []  # how many had been yielded when each was scheduled

    def progress(self) -> Any:
        return self

    def unread(self) -> bool:
        return not self.over

    def slots(self, epoch: int) -> list[int]:
        return [] if self.over else self.left

    def handle(self, *events: Any) -> None:
        self.withdrawn += [each.reason for each in events if isinstance(each, Withdraw)]
        self.inbox.look()

    @contextmanager
    def filling(self) -> Iterator[None]:
        self.rounds.append([])
        yield

    def schedule(self, fn: object, args: object, kwargs: object, how: Any) -> RemoteValue:
        if how is not None and how.slot is not None:
            self.rounds[-1].append(how.slot)
        self.before.append(len(self.ended))
        self.scheduled.append(RemoteValue(self.inbox))
        return self.scheduled[-1]

    def end(self, *numbers: int) -> None:
        def end() -> None:
            for number in numbers:
                self.scheduled[number].set_status(ClosureStatus.RUNNING)
                self.scheduled[number].set_status(ClosureStatus.COMPLETED)
                self.scheduled[number].tell()
            self.inbox.look()

        self.loop.do(end)

    def require_own(self, values: object, what: str) -> None:
        pass

    def look_again(self) -> None:
        self.woken.set()

    def run(self) -> None:
        def wanted(waiting: int) -> bool:
            return len(self.ended) + waiting < self.wanted

        core: Any = self
        for remote in run_epoch(
            core, abs, core, (), {}, wanted=None if self.round_size else wanted, watch=self.watch
        ):
            self.ended.append(remote)

    def run_in_order(self, count: int, round_size: int | None = None) -> None:
        core: Any = self
        elements = iter(range(count))

        def schedule(element: int) -> RemoteValue:
            return self.schedule(abs, (element,), {}, None)

        for remote in run_in_order(core, elements, schedule, round_size):
            self.ended.append(remote)


def test_a_long_closure_does_not_hold_up_the_others() -> None:
    epoch = Epoch()
    running = in_thread(epoch.run)
    wait_until(lambda: len(epoch.scheduled) == 8, "four for each worker")
    epoch.end(*range(1, 8))
    wait_until(lambda: len(epoch.scheduled) == 15, "one for each that has ended")
    epoch.over = True
    epoch.end(0)
    running.result(TIMEOUT)
    assert epoch.withdrawn == ["the epoch is over"]


def test_idle_workers_are_asked_again_from_time_to_time() -> None:
    epoch = Epoch()
    running = in_thread(epoch.run)
    assert epoch.woken.wait(TIMEOUT)
    epoch.over = True
    running.result(TIMEOUT)


def test_an_epoch_that_nobody_watches_waits_without_the_loop_until_something_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epochs, "_LOOK_AT_LEAST", 100 * TIMEOUT)
    epoch = Epoch()
    epoch.watch = None
    looked = threading.Semaphore(0)
    epoch.poll = looked.release
    running = in_thread(epoch.run)
    wait_until(lambda: len(epoch.scheduled) == 8, "four for each worker")
    assert looked.acquire(timeout=TIMEOUT)
    turns, posts = epoch.loop.call_soon_threadsafe, list[object]()
    epoch.loop.call_soon_threadsafe = (  # type: ignore[method-assign]
        lambda *given: (posts.append(given), turns(*given))[1]
    )
    for _ in range(5):
        assert looked.acquire(timeout=TIMEOUT)
    assert not posts
    assert not epoch.woken.is_set()

    epoch.idle = True
    assert epoch.woken.wait(TIMEOUT)
    epoch.idle, epoch.over = False, True
    running.result(TIMEOUT)


def test_a_new_worker_gets_closures_though_none_has_ended() -> None:
    epoch = Epoch()
    epoch.watch = None
    running = in_thread(epoch.run)
    wait_until(lambda: len(epoch.scheduled) == 8, "four for each worker")
    epoch.count = 3
    wait_until(lambda: len(epoch.scheduled) == 12, "four for the third")
    epoch.over = True
    running.result(TIMEOUT)


def test_a_watcher_is_called_when_closures_end_and_while_none_does() -> None:
    epoch = Epoch()
    called = threading.Semaphore(0)
    epoch.watch = called.release
    running = in_thread(epoch.run)
    for _ in range(3):
        assert called.acquire(timeout=TIMEOUT)
    epoch.over = True
    running.result(TIMEOUT)


def test_what_a_watcher_raises_ends_the_epoch() -> None:
    epoch = Epoch()

    def watch() -> None:
        raise ValueError("enough")

    epoch.watch = watch
    with pytest.raises(ValueError, match="enough"):
        in_thread(epoch.run).result(TIMEOUT)


def test_closures_are_yielded_as_they_end_and_no_more_are_scheduled_than_are_wanted() -> None:
    epoch = Epoch()
    epoch.wanted = 9
    running = in_thread(epoch.run)
    wait_until(lambda: len(epoch.scheduled) == 8, "four for each worker")
    epoch.end(3)
    wait_until(lambda: epoch.ended == [epoch.scheduled[3]], "it is yielded while others run")
    wait_until(lambda: len(epoch.scheduled) == 9, "the last one")
    epoch.end(*{*range(9)} - {3})
    running.result(TIMEOUT)
    assert len(epoch.scheduled) == 9
    assert {*epoch.ended} == {*epoch.scheduled}
    assert epoch.withdrawn == ["the epoch is over"]


def test_a_round_is_scheduled_at_once_when_the_one_before_has_ended() -> None:
    epoch = Epoch()
    epoch.round_size, epoch.left = 3, [0, 1, 2]
    running = in_thread(epoch.run)
    wait_until(lambda: len(epoch.scheduled) == 3, "the first round")
    epoch.end(2, 0)
    wait_until(lambda: len(epoch.ended) == 2, "they are yielded while the other one runs")
    assert len(epoch.scheduled) == 3
    epoch.left = [0, 2]  # what is left is divided among all slots of a round
    epoch.end(1)
    wait_until(lambda: len(epoch.scheduled) == 6, "the second round")
    epoch.over = True
    epoch.end(3, 4, 5)
    running.result(TIMEOUT)
    assert epoch.rounds[:2] == [[0, 1, 2], [0, 2, 0]]


def test_closures_of_elements_are_yielded_in_order_and_the_next_takes_the_place_of_each() -> None:
    epoch = Epoch()
    running = in_thread(lambda: epoch.run_in_order(10))
    wait_until(lambda: len(epoch.scheduled) == 8, "four for each worker")
    epoch.end(1, 2)
    epoch.woken.clear()
    assert epoch.woken.wait(TIMEOUT), "the first one is waited for"
    assert not epoch.ended
    epoch.end(0)
    wait_until(lambda: len(epoch.scheduled) == 10, "the rest")
    epoch.end(*range(3, 10))
    running.result(TIMEOUT)
    assert epoch.ended == epoch.scheduled
    assert not epoch.withdrawn


def test_a_round_of_elements_is_taken_to_its_end_before_the_next_is_scheduled() -> None:
    epoch = Epoch()
    running = in_thread(lambda: epoch.run_in_order(3, round_size=2))
    wait_until(lambda: len(epoch.scheduled) == 2, "the first round")
    epoch.end(0, 1)
    wait_until(lambda: len(epoch.scheduled) == 3, "what is left")
    epoch.end(2)
    running.result(TIMEOUT)
    assert epoch.before == [0, 0, 2]


def test_an_element_whose_closure_is_held_up_is_yielded() -> None:
    epoch = Epoch()
    running = in_thread(lambda: epoch.run_in_order(1))
    wait_until(lambda: len(epoch.scheduled) == 1, "it is scheduled")
    epoch.scheduled[0].set_status(ClosureStatus.RUNNING)
    epoch.scheduled[0].block("server-0 says nothing")
    epoch.loop.do(epoch.inbox.look)
    running.result(TIMEOUT)
    assert epoch.ended == epoch.scheduled


@pytest.mark.parametrize("in_order", [False, True])
def test_saves_that_are_due_are_asked_for_while_no_closure_ends(in_order: bool) -> None:
    epoch = Epoch()
    polled = threading.Semaphore(0)
    epoch.poll = polled.release
    running = in_thread((lambda: epoch.run_in_order(1)) if in_order else epoch.run)
    for _ in range(3):
        assert polled.acquire(timeout=TIMEOUT)
    epoch.over = True
    epoch.end(*range(len(epoch.scheduled)))
    running.result(TIMEOUT)
