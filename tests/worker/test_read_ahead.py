"""What is read while a closure computes, with a coordinator's lease registry in the same process.

That whatever is read ahead is leased, taken and had again like all else, has `test_leasing`.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import psnb
from psnb._src.client.server_client import process_client
from psnb._src.client.updates import current_updates
from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.data.stages import StageLog, log_stages
from psnb._src.protocol.messages import AskLease, BeginLease, Lease, Taken
from psnb._src.utils.ahead import NoClosureYet
from psnb._src.worker import leasing, read_ahead
from psnb._src.worker.context import entered
from psnb._src.worker.lease_requests import LeaseInquiry, LeaseRequests
from psnb._src.worker.leasing import LeasedSplitReader
from psnb._src.worker.read_ahead import AheadIterator, NotReadError, ReadAhead
from psnb._src.worker.resources import make_leased_iterator
from psnb.data import Dataset, Options, splits
from psnb.errors import ConfigurationError, DatasetError
from tests.conftest import DEADLINE, wait_until
from tests.worker.test_leasing import Worker, collected, context
from tests.worker.test_printed_lines import closure


def reading(count: int, function: Callable[[int], Any] = bool) -> Dataset:
    """Return numbers, with each of which a function is called as it is read."""

    def read(number: int) -> int:
        function(int(number))
        return number

    return Dataset.range(count).map(read)


def ahead_of(chain: Dataset, count: int | None = None) -> AheadIterator:
    """Return an iterator that is read ahead."""
    return ReadAhead(context()).iterate(chain.iterator, part(count))


def part(count: int | None) -> Lease:
    """Return a lease of so many elements from the beginning."""
    return Lease(0, 0, None, count, ())


def worker_of(chain: Dataset, parts: int) -> Worker:
    """Return a worker that reads a dataset in parts."""
    leases = LeaseRegistry()
    return Worker(leases, splits(chain, parts), leases.open(parts))


def threads_of_reading(
    function: Callable[[int], Any] = bool, parts: int = 2
) -> tuple[Worker, list[tuple[int, str]]]:
    """Return a worker that reads eight numbers, and in which threads each of them was read."""
    calls: list[tuple[int, str]] = []

    def read(number: int) -> None:
        calls.append((number, this_thread()))
        function(number)

    return worker_of(reading(8, read), parts), calls


def this_thread() -> str:
    """Return the name of this thread without its number."""
    return threading.current_thread().name.rstrip("-0123456789")


HERE = threading.main_thread().name
AHEAD = "psnb-ahead"


def numbers(worker: Worker) -> list[int]:
    """Return what a worker reads."""
    return [int(each) for each in worker.iterator]


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take all reading for slow."""
    monkeypatch.setattr(leasing, "WORTH_AHEAD", 0.0)
    with collected(), entered(context()):
        yield


def test_the_next_element_is_read_while_a_closure_has_one() -> None:
    read = {number: threading.Event() for number in range(3)}
    ahead = ahead_of(reading(3, lambda i: read[i].set()), 3)
    next(ahead)
    assert read[1].wait(DEADLINE)
    assert not read[2].is_set()


def test_what_comes_after_a_slow_lease_is_read_ahead() -> None:
    worker, calls = threads_of_reading()
    assert numbers(worker) == [*range(8)]
    assert calls == [(i, HERE if i < 4 else AHEAD) for i in range(8)]


@pytest.mark.parametrize(("slow_ones", "expected"), [(2, {HERE}), (3, {HERE, AHEAD})])
def test_only_where_most_elements_are_slow_are_they_read_ahead(
    slow_ones: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def read(number: int) -> None:
        nonlocal now
        now += 1.0 if number % 4 < slow_ones else 0.0

    monkeypatch.setattr(leasing, "WORTH_AHEAD", 0.5)
    monkeypatch.setattr(leasing, "perf_counter", lambda: now)
    worker, calls = threads_of_reading(read)
    assert numbers(worker) == [*range(8)]
    assert {name for _, name in calls} == expected


@pytest.mark.parametrize(("seconds", "later"), [(0.0, HERE), (1.0, AHEAD)])
def test_what_is_quick_again_is_read_by_the_closure_again(
    seconds: float, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(leasing, "WORTH_AHEAD", 0.5)
    monkeypatch.setattr(read_ahead, "perf_counter", lambda: next(clock))
    slow = iter([0.0, 1.0] * 2)  # the first part; the closure waits for none of what is read ahead
    monkeypatch.setattr(leasing, "perf_counter", lambda: next(slow, 0.0))
    worker, calls = threads_of_reading(parts=4)
    assert numbers(worker) == [*range(8)]
    assert [name for _, name in calls] == [HERE] * 2 + [AHEAD] * 2 + [later] * 4


def test_an_order_is_not_read_ahead() -> None:
    calls: list[str] = []
    chain = reading(8, lambda number: calls.append(this_thread()))
    leases = LeaseRegistry(1)
    worker = Worker(leases, splits(chain, 4), leases.open(4))
    worker.begin(0, 0)
    assert numbers(worker) == [*range(8)]
    assert calls == [HERE] * 8


def test_one_thread_reads_all_parts_from_their_beginning_to_their_end() -> None:
    threads: list[int] = []

    def rows() -> Iterator[int]:
        threads.append(threading.get_ident())
        try:
            yield from range(4)
        finally:
            threads.append(threading.get_ident())

    chain = Dataset.from_generator(rows)
    submitted = ReadAhead(context())
    for _ in range(2):
        ahead = submitted.iterate(chain.iterator, part(2))
        assert [int(next(ahead)) for _ in range(2)] == [0, 1]
        ahead.close()
        submitted.wait()
    assert len(threads) == 4
    assert len({*threads} | {threading.get_ident()}) == 2


def test_nothing_is_read_behind_what_may_be_taken() -> None:
    calls: list[int] = []
    submitted = ReadAhead(context())
    ahead = submitted.iterate(reading(9, calls.append).iterator, part(2))
    for _ in range(2):
        next(ahead)
    submitted.wait()
    assert calls == [0, 1]


def test_the_thread_ends_with_what_is_not_closed() -> None:
    ahead = ahead_of(Dataset.range(9))
    next(ahead)
    gone = weakref.ref(ahead)
    del ahead
    assert gone() is None
    wait_until_ended()


def wait_until_ended() -> None:
    wait_until(lambda: not ahead_threads(), "the thread has ended")


def ahead_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(AHEAD)]


def test_what_was_read_is_not_kept_when_its_lease_is_over() -> None:
    (worker, _), kept = threads_of_reading(), []

    class Noted(ReadAhead):
        def iterate(self, make: Callable[[Any], Any], lease: Lease) -> AheadIterator:
            ahead = super().iterate(make, lease)
            kept.append(weakref.ref(ahead))
            return ahead

    worker.iterator._make_ahead = lambda: Noted(context())
    gc.disable()  # nothing is in a cycle
    try:
        assert numbers(worker) == [*range(8)]
        assert [each() for each in kept] == [None]
    finally:
        gc.enable()


def test_close_does_not_wait_for_what_is_being_read() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read(number: int) -> None:
        if number:
            begun.set()
            assert go_on.wait(DEADLINE)

    ahead = ahead_of(reading(3, read))
    next(ahead)
    assert begun.wait(DEADLINE)
    ahead.close()
    assert ahead_threads()
    go_on.set()
    del ahead
    wait_until_ended()


def test_the_state_is_that_behind_what_was_taken() -> None:
    chain = Dataset.range(9).shuffle(9)
    ahead = ahead_of(chain)
    taken = [next(ahead) for _ in range(4)]
    rest = list(chain.iterator(ahead.state()))
    assert sorted([*taken, *rest]) == [*range(9)]


def fails(number: int) -> None:
    if number == 6:
        raise ValueError("six")


def test_an_error_is_that_of_the_closure_which_reads_the_element_again() -> None:
    worker, calls = threads_of_reading(fails)
    assert [int(next(worker.iterator)) for _ in range(6)] == [*range(6)]
    with pytest.raises(DatasetError, match="six") as caught:
        next(worker.iterator)
    assert caught.value.__context__ is caught.value.__cause__
    assert numbers(worker) == [7]
    assert calls[4:] == [(4, AHEAD), (5, AHEAD), (6, AHEAD), (6, HERE), (7, HERE)]


def test_what_works_in_the_closures_thread_only_works() -> None:
    def bound(number: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("objects of another thread")

    worker, calls = threads_of_reading(bound, parts=4)
    assert numbers(worker) == [*range(8)]
    assert [number for number, name in calls if name == AHEAD] == [2]


def test_who_cannot_wait_any_longer_reads_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PATIENCE", 0.05)
    lock = threading.RLock()

    def locked(number: int) -> None:
        with lock:
            pass

    worker, calls = threads_of_reading(locked)
    with lock:  # as a step may that calls `next`
        assert numbers(worker) == [*range(8)]
    assert (4, HERE) in calls
    gc.collect()
    wait_until_ended()


def test_what_is_only_slow_is_waited_for_longer_and_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "PATIENCE", 0.01)
    pause = threading.Event()
    worker, calls = threads_of_reading(lambda number: pause.wait(0.05))
    assert numbers(worker) == [*range(8)]
    assert sorted(number for number, _ in calls) == [*range(8)]
    assert (7, AHEAD) in calls


def test_who_does_not_wait_any_longer_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(read_ahead, "PATIENCE", 0.05)
    lock = threading.RLock()

    def locked(number: int) -> None:
        with lock:
            pass

    worker, _ = threads_of_reading(locked)
    with lock:
        numbers(worker)
    assert "none is read ahead any more" in caplog.text
    gc.collect()
    wait_until_ended()


def test_an_iterator_that_cannot_be_made_again_is_made_by_the_next_who_asks() -> None:
    worker, _ = threads_of_reading(lambda number: number == 6 and psnb.worker_index())
    second = worker.iterator._splits[1]
    make, errors = second.iterator, [OSError("for now"), OSError("still")]

    def iterator(state: Any = None) -> Any:
        if this_thread() == HERE and errors:
            raise errors.pop()
        return make(state)

    second.iterator = iterator  # type: ignore[method-assign]
    assert [int(next(worker.iterator)) for _ in range(6)] == [*range(6)]
    for what in ("still", "for now"):
        with pytest.raises(OSError, match=what):
            next(worker.iterator)
    assert numbers(worker) == [6, 7]


def test_a_lease_is_over_though_its_generator_raises_as_it_is_closed() -> None:
    def rows() -> Iterator[int]:
        try:
            yield from range(4)
        finally:
            raise ValueError("closed")

    answers: dict[type[object], Any] = {AskLease: Lease(0, 0, None, 1, ()), BeginLease: True}

    def ask(question: LeaseInquiry) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(answers[type(question)])
        return future

    reported: list[Taken] = []
    requests = LeaseRequests(8, ask, reported.append, ())
    iterator = LeasedSplitReader([Dataset.from_generator(rows)], 0, lambda: requests)
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    assert [(each.size, each.ended) for each in reported] == [(1, True)]


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
    assert numbers(worker) == [*range(8)]
    assert [number for number, name in calls if name == AHEAD] == [2]
    assert [number for number, name in calls if name == HERE] == [*range(8)]


def test_what_uses_psnb_says_what_to_do_to_who_catches_it() -> None:
    with pytest.raises(NotReadError) as caught:
        next(ahead_of(reading(2, USES["context"])))
    assert isinstance(caught.value.__cause__, NoClosureYet)
    assert "let this exception pass" in str(caught.value.__cause__)


def test_what_is_printed_has_the_workers_name() -> None:
    def says(number: int) -> None:
        print("read", number, end="")

    with closure() as written:
        next(ahead_of(reading(1, says)))
        assert written == ["[w] read 0\n"]


def test_what_its_functions_iterate_over_is_counted() -> None:
    log = StageLog()
    log_stages(log)
    inner = Dataset.range(3).take(2)
    next(ahead_of(reading(2, lambda i: sum(inner))))
    log_stages(None)
    assert any("take" in each.name for kind in log.statistics().values() for each in kind)


def test_who_runs_again_calls_no_function_while_another_thread_does() -> None:
    begun, go_on, busy = threading.Event(), threading.Event(), threading.Lock()
    together: list[int] = []

    def read(number: int) -> None:
        if not busy.acquire(blocking=False):
            together.append(number)
            return
        if this_thread() == AHEAD and number == 5:
            begun.set()
            assert go_on.wait(DEADLINE)
        busy.release()

    leases = LeaseRegistry()
    cut = splits(reading(12, read), 3)
    epoch = leases.open(3)
    lost, worker = (Worker(leases, cut, epoch) for _ in range(2))

    class Waited(ReadAhead):
        def wait(self) -> None:
            go_on.set()
            super().wait()

    worker.iterator._make_ahead = lambda: Waited(context())
    lost.begin(7)
    assert int(next(lost.iterator)) == 0
    leases.lose(lost)
    worker.begin(8)
    assert [int(next(worker.iterator)) for _ in range(4)] == [1, 2, 3, 4]
    assert begun.wait(DEADLINE)
    worker.begin(7)
    assert int(next(worker.iterator)) == 0
    assert not together


@pytest.mark.parametrize(("size", "name"), [(0, HERE), (1, "psnb-prefetch"), (None, AHEAD)])
def test_who_writes_prefetch_has_the_say(size: int | None, name: str) -> None:
    found: list[str] = []
    chain = reading(8, lambda number: found.append(this_thread()))
    cut = splits(chain if size is None else chain.prefetch(size).with_options(Options()), 2)
    leases = LeaseRegistry()
    epoch = leases.open(2)
    worker = Worker(leases, cut, epoch)
    worker.iterator = make_leased_iterator(cut, epoch)
    worker.iterator._lease_requests = lambda: worker.requests
    assert numbers(worker) == [*range(8)]
    assert found[-1] == name
