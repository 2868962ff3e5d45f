"""Pauses between attempts to reach a worker."""

from __future__ import annotations

from psnb._src.coordinator.workers.absences import Backoff


def test_an_address_that_never_failed_may_be_tried() -> None:
    assert Backoff().ready("a", 0.0)


def test_pauses_double_up_to_a_limit() -> None:
    backoff, now, pauses = Backoff(), 0.0, []
    for _ in range(7):
        backoff.failed("a", now)
        begin = now
        while not backoff.ready("a", now):
            now += 0.25
        pauses.append(now - begin)
    assert pauses == [0.5, 1, 2, 4, 8, 8, 8]


def test_addresses_do_not_wait_for_each_other() -> None:
    backoff = Backoff()
    backoff.failed("a", 0.0)
    assert backoff.ready("b", 0.0)


def test_success_makes_the_next_pause_short_again() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.failed("a", 0.0)
    backoff.succeeded("a")
    backoff.failed("a", 0.0)
    assert backoff.ready("a", 0.5)


def test_an_address_that_has_left_is_forgotten() -> None:
    backoff = Backoff()
    backoff.failed("a", 0.0)
    backoff.keep({"b"})
    assert backoff.ready("a", 0.0)
