"""The worker's side of leased datasets, with a coordinator's lease registry in the same process."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.coordinator.scheduling.lease_registry import LeaseRegistry
from psnb._src.data.block import Block
from psnb._src.data.nodes.partitions import Partitions, PartRange, rows_of_partition
from psnb._src.protocol.messages import AskLease, BeginLease, Taken
from psnb._src.worker import leasing
from psnb._src.worker.context import WorkerContext
from psnb._src.worker.lease_requests import LeaseInquiry, LeaseRequests
from psnb._src.worker.leasing import LeasedSplitReader
from psnb._src.worker.read_ahead import NotReadError, ReadAhead
from psnb.data import Dataset, splits
from psnb.errors import ClosureCancelledError, DatasetError
from tests.conftest import DEADLINE
from tests.coordinator.queues import ClosureQueue, closure


def context() -> WorkerContext:
    """Return that of a closure."""
    return WorkerContext(0, 1, "w", 1, lambda when, values: None)


class Worker:
    """A worker that asks a lease registry, and takes for one closure at a time."""

    def __init__(self, leases: LeaseRegistry, parts: list[Dataset], epoch: int) -> None:
        self.leases = leases
        self.requests = self.begin(0)
        self.iterator = LeasedSplitReader(parts, epoch, lambda: self.requests, ahead=read_ahead)

    def begin(self, closure: int, slot: int | None = None) -> LeaseRequests:
        """Begin an attempt at a closure."""
        ranges = self.leases.again(self, range(closure, closure + 1))
        self.requests = LeaseRequests(closure, self.ask, self.report, ranges, slot)
        return self.requests

    def ask(self, question: LeaseInquiry) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(question, AskLease):
            future.set_result(self.leases.lease(self, question))
        elif isinstance(question, BeginLease):
            future.set_result(self.leases.begin(self, question))
        else:
            future.set_result(self.leases.return_(self, question))
        return future

    def report(self, taken: Taken) -> None:
        self.leases.take(self, taken)


def read_ahead() -> ReadAhead:
    """Return what reads ahead where reading has been slow."""
    return ReadAhead(context())


@pytest.fixture(autouse=True, params=["by the closure", "ahead"])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read as if all that was read before had been slow, or quick."""

    class Slot(leasing._Slot):
        def __init__(self) -> None:
            super().__init__()
            self.slow = request.param == "ahead"

    monkeypatch.setattr(leasing, "_Slot", Slot)
    monkeypatch.setattr(leasing, "WORTH_AHEAD", math.inf)
    with collected():
        yield


@contextmanager
def collected() -> Iterator[None]:
    """Collect what the block leaves, as a `Worker` refers to itself, but nothing from before it.

    Among all that the tests before have imported, that would take half a second.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture
def leases() -> LeaseRegistry:
    return LeaseRegistry()


class Counted(Dataset):
    """A dataset that counts its iterators."""

    begun: int

    def iterator(self, state: Any = None) -> Any:
        self.begun += 1
        return super().iterator(state)


def in_slots(rows: int, slots: int, parts: int) -> tuple[list[Worker], list[Counted]]:
    """Return two workers that read a dataset in slots."""
    leases = LeaseRegistry(slots)
    cut = [Counted(each.node) for each in splits(Dataset.range(rows), parts)]
    for each in cut:
        each.begun = 0
    epoch = leases.open(len(cut))
    return [Worker(leases, list(cut), epoch) for _ in range(2)], cut


def taken(worker: Worker, closure: int, slot: int, count: int) -> list[int]:
    """Return what a closure takes that succeeds."""
    worker.begin(closure, slot)
    found = [int(each) for _, each in zip(range(count), worker.iterator, strict=False)]
    return found


def workers(leases: LeaseRegistry, dataset: Dataset, count: int, parts: int = 3) -> list[Worker]:
    cut = splits(dataset, parts)
    epoch = leases.open(len(cut))
    return [Worker(leases, cut, epoch) for _ in range(count)]


def test_a_worker_alone_reads_everything(leases: LeaseRegistry) -> None:
    (worker,) = workers(leases, Dataset.range(10), 1)
    assert [int(each) for each in worker.iterator] == list(range(10))
    assert worker.requests.ended


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


def test_what_a_closure_that_runs_again_leaves_is_for_the_next(leases: LeaseRegistry) -> None:
    first, second = workers(leases, Dataset.range(30).shuffle(30), 2)
    first.begin(7)
    taken = [int(next(first.iterator)) for _ in range(12)]
    leases.lose(first)
    requests = second.begin(7)
    again = [int(next(second.iterator)) for _ in range(4)]
    assert again == taken[:4]
    assert len({each.lease for each in requests.used}) == 4  # each was taken by itself
    leases.end_steps(closure(ClosureQueue(1), 7), 1)
    second.begin(8)
    assert sorted(again + [int(each) for each in second.iterator]) == list(range(30))


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


def test_what_a_closure_uses_goes_with_its_commit_too(leases: LeaseRegistry) -> None:
    worker, other = workers(leases, Dataset.range(10), 2, parts=1)
    next(worker.iterator)
    requests = worker.begin(1)
    assert [int(next(worker.iterator)) for _ in range(2)] == [1, 2]
    assert [(each.at, each.size, each.ended) for each in requests.used] == [
        (1, 1, False),
        (2, 1, False),
    ]
    leases.note_used(requests.used)  # no news
    leases.lose(worker)
    assert [int(each) for each in other.iterator] == [*range(3, 10)]


def test_who_was_given_up_begins_nothing(leases: LeaseRegistry) -> None:
    (worker,) = workers(leases, Dataset.range(10), 1)
    ask = worker.ask

    def given_up(question: LeaseInquiry) -> Future[Any]:
        if isinstance(question, BeginLease):
            leases.lose(worker)
        return ask(question)

    worker.ask = given_up  # type: ignore[method-assign]
    worker.begin(1)
    with pytest.raises(ClosureCancelledError, match="given this worker up"):
        next(worker.iterator)


def test_threads_share_what_is_leased(leases: LeaseRegistry) -> None:
    (worker,) = workers(leases, Dataset.range(200), 1, parts=7)
    found: list[int] = []
    own = threading.local()
    worker.iterator._lease_requests = lambda: own.requests

    def run(closure: int) -> None:
        own.requests = LeaseRequests(closure, worker.ask, worker.report, ())
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
    leases.end_steps(closure(ClosureQueue(1)), 1)
    assert leases.progress(epoch).over


def test_what_a_worker_must_have_is_prepared_once_or_with_the_next_lease_if_that_failed(
    leases: LeaseRegistry,
) -> None:
    cut = splits(Dataset.range(6), 3)
    epoch = leases.open(len(cut), owners=dict.fromkeys(range(3), "w"))
    worker, prepared, errors = Worker(leases, cut, epoch), list[list[int]](), [OSError("for now")]
    leases.enter(worker, "w")

    def prepare(owned: Sequence[int]) -> None:
        prepared.append(sorted(owned))
        if errors:
            raise errors.pop()

    worker.iterator = LeasedSplitReader(cut, epoch, lambda: worker.requests, prepare)
    with pytest.raises(OSError, match="for now"):
        next(worker.iterator)
    assert [int(each) for each in worker.iterator] == list(range(6))
    assert prepared == [[0, 1, 2], [0, 1, 2], [], []]


def test_parts_of_a_partition_that_is_computed_again_with_other_rows_are_not_used(
    leases: LeaseRegistry,
) -> None:
    class Source:
        reads = 0

        def read(self, number: int) -> tuple[Block, int]:
            self.reads += 1
            return rows_of_partition(np.arange(4)[:: 1 if self.reads == 1 else -1]), 0

        def spec(self) -> None:
            return None

    cut = splits(Dataset(Partitions("t", (PartRange(0),), Source())), 2)
    epoch = leases.open(len(cut))
    first, second = (Worker(leases, cut, epoch) for _ in range(2))
    assert [int(next(first.iterator)) for _ in range(2)] == [0, 1]
    for _ in range(2):  # it is for whoever asks next
        with pytest.raises(DatasetError, match="partition 0 was computed again"):
            next(second.iterator)
    leases.lose(first)


def test_what_cannot_be_read_on_is_leased_again_from_there(leases: LeaseRegistry) -> None:
    (worker,) = workers(leases, Dataset.range(6), 1, parts=1)
    assert int(next(worker.iterator)) == 0
    (slot,) = worker.iterator._slots.values()
    assert slot.lease is not None

    class Failed:  # as what was read ahead, and its partition is gone
        def __next__(self) -> Any:
            raise NotReadError

        def state(self) -> Any:
            return {"odd": 1}

    slot.lease.iterator = Failed()  # type: ignore[assignment]
    with pytest.raises(DatasetError, match="not a state"):
        next(worker.iterator)
    assert [int(each) for each in worker.iterator] == [1, 2, 3, 4, 5]


def test_threads_wait_for_what_another_prepares(leases: LeaseRegistry) -> None:
    cut = splits(Dataset.range(4), 1)
    epoch = leases.open(len(cut))
    worker = Worker(leases, cut, epoch)
    asked, begun, go_on = [], threading.Event(), threading.Event()

    def ask(question: LeaseInquiry) -> Future[Any]:
        asked.append(type(question))
        return worker.ask(question)

    def prepare(owned: object) -> None:
        begun.set()
        go_on.wait(10)

    own = threading.local()

    def requests() -> LeaseRequests:
        if not hasattr(own, "requests"):
            own.requests = LeaseRequests(threading.get_ident(), ask, worker.report, [])
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


def test_a_worker_goes_on_with_the_iterator_of_each_lane() -> None:
    (worker, _), cut = in_slots(20, 2, 4)
    found = [taken(worker, number, number % 2, 2) for number in range(4)]
    assert found == [[0, 1], [5, 6], [2, 3], [7, 8]]
    assert taken(worker, 4, 0, 3) == [4, 10, 11]
    assert [each.begun for each in cut] == [1, 1, 1, 0]


def test_a_worker_starts_over_where_another_one_has_read_on_in_a_slot() -> None:
    (first, second), cut = in_slots(20, 2, 4)
    found = [taken(each, number, 0, 1) for number, each in enumerate((first, second, first))]
    assert found == [[0], [1], [2]]
    assert cut[0].begun == 3


def test_threads_read_several_lanes() -> None:
    (worker, _), _ = in_slots(400, 4, 8)
    found: dict[int, list[int]] = {}
    own = threading.local()
    worker.iterator._lease_requests = lambda: own.requests

    def run(slot: int) -> None:
        own.requests = LeaseRequests(slot, worker.ask, worker.report, (), slot)
        found[slot] = [int(each) for each in worker.iterator]

    threads = [threading.Thread(target=run, args=(slot,)) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parts = [[*range(50 * part, 50 * part + 50)] for part in range(8)]
    assert found == {slot: parts[slot] + parts[slot + 4] for slot in range(4)}


def test_a_closure_that_runs_again_goes_on_in_its_lane() -> None:
    (first, second), _ = in_slots(20, 2, 4)
    first.begin(7, 1)
    assert [int(next(first.iterator)) for _ in range(2)] == [5, 6]
    first.leases.lose(first)
    assert taken(second, 7, 1, 4) == [5, 6, 7, 8]


def test_an_element_that_cannot_be_had_is_not_met_again_by_a_closure_that_failed() -> None:
    def fails(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    leases = LeaseRegistry(1)
    epoch = leases.open(1)
    worker = Worker(leases, splits(Dataset.range(6).map(fails), 1), epoch)
    worker.begin(0, 0)
    assert [int(next(worker.iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DatasetError, match="three"):
        next(worker.iterator)
    leases.end(closure(ClosureQueue(1)))
    assert taken(worker, 1, 0, 9) == [0, 1, 2, 4, 5]


def test_who_prepares_for_a_lane_holds_up_no_other_lane() -> None:
    leases = LeaseRegistry(2)
    cut = splits(Dataset.range(4), 2)
    epoch = leases.open(len(cut))
    worker = Worker(leases, cut, epoch)
    begun, go_on = threading.Event(), threading.Event()

    def prepare(owned: object) -> None:
        if threading.current_thread() is thread:
            begun.set()
            assert go_on.wait(10)

    own = threading.local()
    iterator = LeasedSplitReader(cut, epoch, lambda: own.requests, prepare)
    found: list[int] = []

    def read(slot: int) -> None:
        own.requests = LeaseRequests(slot, worker.ask, worker.report, (), slot)
        found.append(int(next(iterator)))

    thread = threading.Thread(target=read, args=(0,))
    thread.start()
    assert begun.wait(10)
    other = threading.Thread(target=read, args=(1,), daemon=True)
    other.start()
    other.join(10)
    assert found == [2]
    go_on.set()
    thread.join(10)
    assert found == [2, 0]


class Slow:
    """A source of four numbers, of which one takes until ``go_on`` is set."""

    def __init__(self, slow: int) -> None:
        self.reading, self.go_on = threading.Event(), threading.Event()

        def read(number: int) -> int:
            if number == slow:
                self.reading.set()
                assert self.go_on.wait(2 * DEADLINE)
            return number

        self.parts = splits(Dataset.range(4).map(read), 2)

    def read_meanwhile(
        self, worker: Worker, first: LeaseRequests, other: LeaseRequests
    ) -> list[int]:
        """Return what the other closure gets while the first one reads, and what both have got."""
        requests: dict[threading.Thread, LeaseRequests] = {}
        worker.iterator._lease_requests = lambda: requests[threading.current_thread()]
        found: list[int] = []

        def read() -> None:
            found.append(int(next(worker.iterator)))

        threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
        requests.update(zip(threads, (first, other), strict=True))
        threads[0].start()
        assert self.reading.wait(DEADLINE)
        threads[1].start()
        threads[1].join(DEADLINE)
        meanwhile = found.copy()
        self.go_on.set()
        threads[0].join(DEADLINE)
        return [*meanwhile, *found]


def test_who_reads_in_a_lane_holds_up_no_other_lane() -> None:
    leases, slow = LeaseRegistry(2), Slow(0)
    worker = Worker(leases, slow.parts, leases.open(2))
    first, other = (LeaseRequests(slot, worker.ask, worker.report, (), slot) for slot in range(2))
    assert slow.read_meanwhile(worker, first, other) == [2, 2, 0]


def test_a_closure_that_runs_again_waits_for_no_other_that_reads() -> None:
    leases, slow = LeaseRegistry(), Slow(1)
    epoch = leases.open(2)
    lost, worker = (Worker(leases, slow.parts, epoch) for _ in range(2))
    lost.begin(7)
    assert int(next(lost.iterator)) == 0
    leases.lose(lost)
    first = LeaseRequests(8, worker.ask, worker.report, ())
    ranges = leases.again(worker, range(7, 8))
    again = LeaseRequests(7, worker.ask, worker.report, ranges)
    assert slow.read_meanwhile(worker, first, again) == [0, 0, 1]
