"""What people are told of what a worker does."""

from __future__ import annotations

import threading

import numba
import pytest

from psnb._src.worker import activity
from psnb._src.worker.activity import Activity, longest

ME = threading.get_ident


def test_a_thread_that_does_nothing_is_not_shown() -> None:
    assert longest([ME(), None]) == ("", 0.0)


def test_the_innermost_is_shown_and_lasts_since_the_outermost() -> None:
    with Activity("running step"):
        _, before = activity._doing[ME()]
        with Activity("loading step"):
            assert activity._doing[ME()] == ("loading step", before)
        assert activity._doing[ME()] == ("running step", before)
    assert ME() not in activity._doing


def test_an_error_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), Activity("running step"):
        _ = 1 // 0
    assert longest([ME()]) == ("", 0.0)


def test_of_several_threads_the_longest_activity_is_shown() -> None:
    begun, end = threading.Event(), threading.Event()

    def run() -> None:
        with Activity("running first"):
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(10)
    with Activity("running second"):
        assert longest([ME(), thread.ident])[0] == "running first"
        assert longest([ME()])[0] == "running second"
    end.set()
    thread.join()


def test_compiling_is_shown_while_a_closure_waits_for_it() -> None:
    told = []

    class Listener(numba.core.event.Listener):
        def on_start(self, event: object) -> None:
            told.append(longest([ME()])[0])

        def on_end(self, event: object) -> None:
            told.append(longest([ME()])[0])

    @numba.njit
    def add_one(number: int) -> int:
        return number + 1

    with Activity("running step"), numba.core.event.install_listener("numba:compile", Listener()):
        assert add_one(1) == 2
        assert add_one(2) == 3
        assert longest([ME()])[0] == "running step"
    assert told == ["compiling add_one", "running step"]
    assert longest([ME()]) == ("", 0.0)
