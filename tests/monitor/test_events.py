"""The log of what happened."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from psnb._src.monitor import events
from psnb._src.monitor.events import MOST_WARNINGS, EventKind, EventLog
from tests.conftest import wait_until


def test_events_are_kept_in_their_order() -> None:
    log = EventLog()
    log.add(EventKind.WORKER_JOINED, "alice gets work", "alice")
    log.add(EventKind.WORKER_LOST, "alice was lost", "alice", ["step #1"])
    joined, lost = log.all()
    assert (joined.kind, joined.worker, joined.closures) == (EventKind.WORKER_JOINED, "alice", ())
    assert (lost.message, lost.closures) == ("alice was lost", ("step #1",))
    assert joined.time <= lost.time


def test_the_oldest_events_are_forgotten() -> None:
    log = EventLog(limit=3)
    for number in range(5):
        log.add(EventKind.CLOSURE_FAILED, str(number))
    assert [event.message for event in log.all()] == ["2", "3", "4"]
    assert log.count(EventKind.CLOSURE_FAILED) == 5


def test_thousands_of_failures_do_not_fill_the_page(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now = EventLog(), 1000.0
    monkeypatch.setattr(events.time, "time", lambda: now)

    def warned() -> list[str]:
        return [each.message for each in caplog.records if each.levelname == "WARNING"]

    for _ in range(3000):
        log.add(EventKind.CLOSURE_FAILED, "step failed")
    assert len(warned()) == MOST_WARNINGS
    assert warned()[-1].endswith("last warning for a minute)")
    log.add(EventKind.WORKER_LOST, "alice was lost")
    now += 61
    log.add(EventKind.CLOSURE_FAILED, "again")
    assert warned()[MOST_WARNINGS:] == ["alice was lost", "again"]
    assert log.count(EventKind.CLOSURE_FAILED) == 3001


def test_a_log_handler_that_raises_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ConnectionError("the log server is down")

    logger, handler, log = logging.getLogger("psnb"), Refusing(), EventLog()
    logger.addHandler(handler)
    try:
        log.add(EventKind.WORKER_LOST, "alice was lost")
    finally:
        logger.removeHandler(handler)
    assert log.count(EventKind.WORKER_LOST) == 1
    assert "the log server is down" in capsys.readouterr().err


def test_of_many_closures_the_first_are_named() -> None:
    log = EventLog()
    log.add(EventKind.CLOSURES_CANCELLED, "all", closures=range(100_000))
    assert log.all()[0].closures == tuple(map(str, range(20)))


@pytest.mark.parametrize("kind", EventKind)
def test_what_is_lost_or_missing_is_logged_as_a_warning(
    kind: EventKind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "psnb")
    EventLog().add(kind, "100 % of it")
    losses = {EventKind.WORKER_LOST, EventKind.WORKER_UNREACHABLE, EventKind.NO_WORKERS}
    losses |= {EventKind.SERVER_LOST, EventKind.SERVER_UNRESPONSIVE, EventKind.WORKER_AWAITED}
    losses |= {EventKind.CLOSURE_FAILED, EventKind.SERVER_NEARLY_FULL}
    losses |= {EventKind.UPDATES_LOST, EventKind.SHARDS_LOST, EventKind.CHECKPOINT_FAILED}
    losses |= {EventKind.CLOSURES_ABANDONED, EventKind.FAILURES_CLEARED, EventKind.ROWS_UNMOVED}
    losses |= {EventKind.BOUND_TOO_SMALL}
    expected = logging.WARNING if kind in losses else logging.INFO
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(expected, "100 % of it")]


def test_events_may_be_read_while_others_are_added() -> None:
    log, end, interval = EventLog(limit=1000), threading.Event(), sys.getswitchinterval()

    def add() -> None:
        while not end.is_set():
            log.add(EventKind.CLOSURE_FAILED, "x")

    adding = threading.Thread(target=add)
    adding.start()
    try:
        sys.setswitchinterval(1e-6)  # or they would hardly ever take turns
        wait_until(lambda: len(log.all()) == 1000, "it is full, and goes on")
        for _ in range(200):
            assert len(log.all()) == 1000
    finally:
        sys.setswitchinterval(interval)
        end.set()
        adding.join()
