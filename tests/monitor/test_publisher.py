"""The thread that tells a view about a coordinator."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from psnb._src.monitor.protocol import Update
from psnb._src.monitor.publisher import Publisher
from tests.monitor.viewed import DEADLINE, FakeViewed

Start = Callable[..., tuple[Publisher, "queue.Queue[Update]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Publisher] = []

    def start(
        viewed: FakeViewed, send: Callable[[Update], Any] | None = None, **options: float
    ) -> tuple[Publisher, queue.Queue[Update]]:
        sent: queue.Queue[Update] = queue.Queue()
        publisher = Publisher(viewed, send or sent.put, "psnb-test", 0.005, **options)
        publisher.start()
        made.append(publisher)
        return publisher, sent

    yield start
    for publisher in made:
        publisher.stop()


def test_a_change_is_reported(start: Start) -> None:
    viewed = FakeViewed()
    _, sent = start(viewed)
    viewed.set(queued=77)
    while (update := sent.get(timeout=DEADLINE))["summary"]["queued"] != 77:
        pass
    assert not update["full"]


def test_hello_brings_everything(start: Start) -> None:
    viewed = FakeViewed()  # held: the publisher does not
    publisher, sent = start(viewed)
    publisher.wake(full=True)
    while not sent.get(timeout=DEADLINE)["full"]:
        pass


def test_a_view_out_of_reach_is_tried_again_with_everything(start: Start) -> None:
    viewed = FakeViewed(state="running")
    arrived: queue.Queue[Update] = queue.Queue()
    refusals = iter([True, True])

    def send(update: Update) -> None:
        if next(refusals, False):
            raise ConnectionRefusedError("not there")
        arrived.put(update)

    start(viewed, send)
    assert arrived.get(timeout=DEADLINE)["full"]


def test_stop_sends_a_last_update_and_ends_the_thread(start: Start) -> None:
    viewed = FakeViewed()
    publisher, sent = start(viewed)
    viewed.set(queued=99)
    publisher.stop()
    assert not publisher.alive
    last = sent.queue[-1]
    assert (last["summary"]["queued"], last["notice"]) == (99, "No longer updated.")


def test_stop_does_not_wait_for_a_view_that_hangs(start: Start) -> None:
    free, entered = threading.Event(), threading.Event()

    def send(update: Update) -> None:
        entered.set()
        free.wait(DEADLINE)

    viewed = FakeViewed(state="running")
    publisher, _ = start(viewed, send, stop_timeout=0.05)
    assert entered.wait(DEADLINE)
    publisher.stop()
    assert publisher.alive
    free.set()


def test_it_ends_with_its_source_closed(start: Start) -> None:
    viewed = FakeViewed()
    publisher, sent = start(viewed)
    viewed.set(state="closed")
    while sent.get(timeout=DEADLINE)["summary"]["state"] != "closed":
        pass
    publisher._thread.join(DEADLINE)
    assert not publisher.alive


def test_an_unreferenced_source_can_be_collected(start: Start) -> None:
    viewed = FakeViewed()
    publisher, sent = start(viewed)
    gone = weakref.ref(viewed)
    del viewed
    gc.collect()
    publisher._thread.join(DEADLINE)
    assert gone() is None
    assert sent.queue[-1]["notice"] == "The coordinator is gone."


def test_a_source_that_fails_is_reported_and_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    viewed = FakeViewed()
    publisher, sent = start(viewed)
    viewed.error = RuntimeError("broken")
    publisher._thread.join(DEADLINE)
    assert "broken" in sent.queue[-1]["notice"]
    assert "stops updating" in caplog.text
