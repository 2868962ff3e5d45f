"""What is read while a closure computes, with a coordinator's lease registry in the same process.

That whatever is read ahead is leased, taken and had again like all else, has `test_leasing`.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import psnb
from psnb._src.client.requests import process_client
from psnb._src.client.updates import current_updates
from psnb._src.coordinator.leases import LeaseRegistry
from psnb._src.data.node import StageLog, log_stages
from psnb._src.utils.ahead import NoClosureYet
from psnb._src.worker import leasing
from psnb._src.worker.context import entered
from psnb._src.worker.read_ahead import ReadAhead
from psnb._src.worker.resources import make_leased_iterator
from psnb.data import Dataset, Options, splits
from psnb.errors import ConfigurationError, DatasetError
from tests.conftest import DEADLINE, wait_until
from tests.worker.test_leasing import Worker, context
from tests.worker.test_printed_lines import closure


def reading(count: int, function: Callable[[int], Any] = bool) -> Dataset:
    """Return numbers, with each of which a function is called as it is read."""

    def read(number: int) -> int:
        function(int(number))
        return number

    return Dataset.range(count).map(read)


def threads_of_reading(
    function: Callable[[int], Any] = bool, parts: int = 2
) -> tuple[Worker, list[tuple[int, str]]]:
    """Return a worker that reads eight numbers, and in which threads each of them was read."""
    calls: list[tuple[int, str]] = []

    def read(number: int) -> None:
        calls.append((number, this_thread()))
        function(number)

    leases = LeaseRegistry()
    return Worker(leases, splits(reading(8, read), parts), leases.open(parts)), calls


def this_thread() -> str:
    """Return the name of this thread without its number."""
    return threading.current_thread().name.rstrip("-0123456789")


HERE = threading.main_thread().name


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take all reading for slow."""
    monkeypatch.setattr(leasing, "WORTH_AHEAD", 0.0)
    with entered(context()):
        yield
    gc.collect()  # a `Worker` refers to itself


def test_the_next_element_is_read_while_a_closure_has_one() -> None:
    read = {number: threading.Event() for number in range(3)}
    ahead = ReadAhead(reading(3, lambda i: read[i].set()).iterator(), 3, context())
    next(ahead)
    assert read[1].wait(DEADLINE)
    assert not read[2].is_set()
    ahead.close()


def test_what_comes_after_a_slow_lease_is_read_ahead_by_one_thread() -> None:
    worker, calls = threads_of_reading()
    assert [int(each) for each in worker.iterator] == [*range(8)]
    assert calls == [(i, HERE if i < 4 else "psnb-ahead") for i in range(8)]


def test_what_is_quick_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "WORTH_AHEAD", DEADLINE)
    worker, calls = threads_of_reading(parts=4)
    assert [int(each) for each in worker.iterator] == [*range(8)]
    assert {name for _, name in calls} == {HERE}


def test_nothing_is_read_behind_what_may_be_taken() -> None:
    calls: list[int] = []
    ahead = ReadAhead(reading(9, calls.append).iterator(), 2, context())
    for _ in range(2):
        next(ahead)
    ahead._thread.submit(bool).result()  # after what it was given
    assert calls == [0, 1]
    ahead.close()


def wait_until_ended() -> None:
    wait_until(lambda: not ahead_threads(), "the thread has ended")


def ahead_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("psnb-ahead")]


def test_the_thread_ends_with_what_is_not_closed() -> None:
    ahead = ReadAhead(Dataset.range(9).iterator(), None, context())
    next(ahead)
    gone = weakref.ref(ahead)
    del ahead
    assert gone() is None
    wait_until_ended()


def test_close_does_not_wait_for_what_is_being_read() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read(number: int) -> None:
        if number:
            begun.set()
            assert go_on.wait(DEADLINE)

    iterator = reading(3, read).iterator()
    ahead = ReadAhead(iterator, None, context())
    next(ahead)
    assert begun.wait(DEADLINE)
    ahead.close()
    assert ahead_threads()
    go_on.set()
    wait_until_ended()
    assert list(iterator) == []


def test_the_state_is_that_behind_what_was_taken() -> None:
    chain = Dataset.range(9).shuffle(9)
    ahead = ReadAhead(chain.iterator(), None, context())
    taken = [next(ahead) for _ in range(4)]
    rest = list(chain.iterator(ahead.state()))
    ahead.close()
    assert sorted([*taken, *rest]) == [*range(9)]


def test_an_error_is_raised_where_its_element_is_due() -> None:
    def fails(number: int) -> None:
        if number == 1:
            raise ValueError("one")

    ahead = ReadAhead(reading(3, fails).iterator(), None, context())
    assert next(ahead) == 0
    with pytest.raises(DatasetError, match="one"):
        next(ahead)
    assert next(ahead) == 2
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()


def caught(number: int) -> None:
    try:
        psnb.worker_index()
    except BaseException:  # to be found out all the same
        return


def no_client(number: int) -> None:
    with pytest.raises(ConfigurationError):
        process_client()


USES: dict[str, Callable[[int], Any]] = {
    "context": lambda number: psnb.worker_context(),
    "caught": caught,
    "report": lambda number: psnb.report(number=number),
    "updates": lambda number: current_updates(),
    "client": no_client,
}


@pytest.mark.parametrize("use", USES)
def test_a_function_that_uses_psnb_is_called_again_by_the_closure(use: str) -> None:
    worker, calls = threads_of_reading(USES[use], parts=4)
    assert [int(each) for each in worker.iterator] == [*range(8)]
    ahead = [number for number, name in calls if name != HERE]
    assert ahead == [2]
    assert [number for number, name in calls if name == HERE] == [*range(8)]


def test_one_that_uses_psnb_late_is_called_again_from_there() -> None:
    worker, calls = threads_of_reading(lambda number: number == 6 and psnb.worker_index())
    assert [int(each) for each in worker.iterator] == [*range(8)]
    assert calls[4:] == [*((i, "psnb-ahead") for i in (4, 5, 6)), (6, HERE), (7, HERE)]


def test_what_uses_psnb_says_what_to_do_to_who_catches_it() -> None:
    with pytest.raises(NoClosureYet, match="let this exception pass"):
        next(ReadAhead(reading(2, USES["context"]).iterator(), None, context()))


def test_what_is_printed_has_the_workers_name() -> None:
    def says(number: int) -> None:
        print("read", number, end="")

    with closure() as written:
        ahead = ReadAhead(reading(1, says).iterator(), None, context())
        next(ahead)
        assert written == ["[w] read 0\n"]
        ahead.close()


def test_what_its_functions_iterate_over_is_counted() -> None:
    log = StageLog()
    log_stages(log)
    inner = Dataset.range(3).take(2)
    ahead = ReadAhead(reading(2, lambda i: sum(inner)).iterator(), None, context())
    next(ahead)
    log_stages(None)
    ahead.close()
    assert any("take" in each.name for kind in log.statistics().values() for each in kind)


@pytest.mark.parametrize(("size", "name"), [(0, HERE), (1, "psnb-prefetch"), (None, "psnb-ahead")])
def test_who_writes_prefetch_has_the_say(size: int | None, name: str) -> None:
    found: list[str] = []

    chain = reading(8, lambda number: found.append(this_thread()))
    cut = splits(chain if size is None else chain.prefetch(size).with_options(Options()), 2)
    leases = LeaseRegistry()
    epoch = leases.open(2)
    worker = Worker(leases, cut, epoch)
    worker.iterator = make_leased_iterator(cut, epoch)
    worker.iterator._lease_requests = lambda: worker.requests
    assert [int(each) for each in worker.iterator] == [*range(8)]
    assert found[-1] == name
