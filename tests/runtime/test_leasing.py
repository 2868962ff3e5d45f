"""The worker's side of leased datasets, with a coordinator's lease registry in the same process."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from psnb._src.coordinator.datasets.lease_registry import LeaseRegistry
from psnb._src.coordinator.queue.queue import ClosureQueue
from psnb._src.runtime.leasing import LeasedSplitReader, LeaseRequests
from psnb._src.runtime.session_messages import AskLease, TakeElements
from psnb.data import Dataset, splits
from psnb.errors import CancelledError, DatasetError
from tests.coordinator.queues import closure


class Worker:
    """A worker that asks a lease registry, and takes for one closure at a time."""

    def __init__(self, leases: LeaseRegistry, parts: list[Dataset], epoch: int) -> None:
        self.leases = leases
        self.requests = self.begin(0)
        self.iterator = LeasedSplitReader(parts, epoch, lambda: self.requests)

    def begin(self, closure: int, lane: int | None = None) -> LeaseRequests:
        """Begin an attempt at a closure."""
        self.requests = LeaseRequests(closure, self.ask, self.leases.portions(closure), lane)
        return self.requests

    def ask(self, question: AskLease | TakeElements) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(question, AskLease):
            future.set_result(self.leases.lease(self, question))
        else:
            future.set_result(self.leases.take(self, question))
        return future


@pytest.fixture
def leases() -> LeaseRegistry:
    return LeaseRegistry()


def workers(leases: LeaseRegistry, dataset: Dataset, count: int, parts: int = 3) -> list[Worker]:
    cut = splits(dataset, parts)
    epoch = leases.open(len(cut))
    return [Worker(leases, cut, epoch) for _ in range(count)]


def test_a_worker_alone_reads_everything(leases: LeaseRegistry) -> None:
    (worker,) = workers(leases, Dataset.range(10), 1)
    assert [int(each) for each in worker.iterator] == list(range(10))
    assert worker.requests.ended
    worker.requests.settle()


def test_a_closure_that_runs_again_gets_the_very_same(leases: LeaseRegistry) -> None:
    first, second = workers(leases, Dataset.range(30).shuffle(30), 2)
    first.begin(7)
    taken = [next(first.iterator) for _ in range(12)]
    leases.lose(first)
    second.begin(7)
    again = [next(second.iterator) for _ in range(12)]
    rest = list(second.iterator)
    assert again == taken
    assert sorted(int(each) for each in again + rest) == list(range(30))


def test_a_closure_knows_which_element_it_took_last_also_when_it_runs_again(
    leases: LeaseRegistry, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n" * 10)
    lines = Dataset.text_lines([tmp_path / "a", tmp_path / "b"])
    first, second = workers(leases, lines.batch(2), 2, parts=2)
    assert first.begin(7).latest == ""
    for _ in range(7):
        next(first.iterator)
    path = tmp_path / "b"
    told = f"element 1 (its first example is of {path}, record 3) of split 1 of 2"
    assert first.requests.latest == told
    leases.lose(first)
    again = second.begin(7)
    for _ in range(7):
        next(second.iterator)
    assert again.latest == told


def test_what_is_taken_after_a_worker_was_given_up_does_not_count(leases: LeaseRegistry) -> None:
    (worker,) = workers(leases, Dataset.range(10), 1)
    next(worker.iterator)
    worker.requests.settle()
    leases.lose(worker)
    requests = worker.begin(1)
    next(worker.iterator)
    with pytest.raises(CancelledError, match="given this worker up"):
        requests.settle()


def test_threads_share_what_is_leased(leases: LeaseRegistry) -> None:
    (worker,) = workers(leases, Dataset.range(200), 1, parts=7)
    found: list[int] = []
    own = threading.local()
    worker.iterator._lease_requests = lambda: own.requests

    def run(closure: int) -> None:
        own.requests = LeaseRequests(closure, worker.ask, ())
        found.extend(int(each) for each in worker.iterator)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(200))


def test_an_element_that_cannot_be_had_is_left_out_like_any_other_error(
    leases: LeaseRegistry,
) -> None:
    def fails(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    (worker,) = workers(leases, Dataset.range(6).map(fails), 1, parts=1)
    found = [next(worker.iterator) for _ in range(3)]
    with pytest.raises(DatasetError, match="three"):
        next(worker.iterator)
    assert [int(each) for each in [*found, *worker.iterator]] == [0, 1, 2, 4, 5]


def test_a_lease_that_could_not_be_begun_is_for_the_next_who_asks(leases: LeaseRegistry) -> None:
    cut = splits(Dataset.range(6), 2)
    epoch = leases.open(len(cut))
    worker = Worker(leases, cut, epoch)
    errors = [OSError("for now"), OSError("still")]

    def prepare(owned: object) -> None:
        if errors:
            raise errors.pop()

    worker.iterator = LeasedSplitReader(cut, epoch, lambda: worker.requests, prepare)
    for what in ("still", "for now"):
        with pytest.raises(OSError, match=what):
            next(worker.iterator)
    assert [int(each) for each in worker.iterator] == list(range(6))
    worker.requests.settle()
    leases.end(closure(ClosureQueue(1)), succeeded=True)
    assert leases.progress(epoch).over


def test_threads_wait_for_what_another_prepares(leases: LeaseRegistry) -> None:
    cut = splits(Dataset.range(4), 1)
    epoch = leases.open(len(cut))
    worker = Worker(leases, cut, epoch)
    asked, begun, go_on = [], threading.Event(), threading.Event()

    def ask(question: AskLease | TakeElements) -> Future[Any]:
        asked.append(type(question))
        return worker.ask(question)

    def prepare(owned: object) -> None:
        begun.set()
        go_on.wait(10)

    own = threading.local()

    def requests() -> LeaseRequests:
        if not hasattr(own, "requests"):
            own.requests = LeaseRequests(threading.get_ident(), ask, [])
        return own.requests  # type: ignore[no-any-return]

    iterator = LeasedSplitReader(cut, epoch, requests, prepare)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(int(next(iterator)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    assert asked == [AskLease]
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(found) == [0, 1, 2]
    assert asked.count(AskLease) == 1
