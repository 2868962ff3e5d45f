"""Copies that a worker trains on its own, in front of shards in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.commit import UndecidedError
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.local.geo import LocalCopies, LocalDense
from psnb._src.client.requests import Request
from psnb._src.client.updates import Updates, buffered, read_request
from psnb._src.client.variable import Variable
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit
from psnb._src.server.operations import ApplyCommit, FenceCommits, PreparePart
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import FTRL, SGD, Adagrad, Adam, Lion, Momentum, RMSProp
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.operations import (
    LookUpRows,
    OnTables,
    Preview,
    ShardOperation,
)
from psnb._src.server.tables.row_use import CtrAccessor
from psnb.errors import ConfigurationError, ServerMemoryError, ServerUnresponsiveError
from tests.client.in_process import InProcess, asked_ids, embedding, variable
from tests.server.no_memory import Allocator

OPTIMIZERS = [
    SGD(0.1),
    Momentum(0.1),
    Adagrad(0.1),
    Adam(0.1, clipnorm=1.0),
    Lion(0.1),
    RMSProp(0.1, centered=True, momentum=0.5),
    FTRL(0.1),
]


SESSIONS = itertools.count()


class Worker:
    """What a session does with copies; each closure commits under a number of its own."""

    def __init__(self, transport: Any, closures: int, workers: int = 1) -> None:
        self.copies = LocalCopies(transport, closures, "a", f"a/{next(SESSIONS)}")
        self.copies.workers = workers
        self._numbers = iter(range(10_000))

    def run(self, closure: Callable[[], Any]) -> Any:
        """Run a closure."""
        updates = Updates(server_client=self.copies)
        with buffered(updates):
            value = closure()
        if updates:
            number = next(self._numbers)
            commit = Commit("a", number, closures=((number, b"result"),), coordinator="a")
            updates.commit(self.copies, commit)
        self.copies.closure_ended()
        return value


def on_shards(handle: Variable | Embedding) -> Any:
    """Return the handle as closures get it: with the transport of whatever it is used in."""
    kind, arguments = shards_of(handle).__reduce__()  # type: ignore[misc]
    return type(handle)(kind(*arguments))


def made(
    optimizer: Optimizer, transport: InProcess, rows: int | None = None
) -> tuple[Variable, Embedding]:
    v = variable(np.arange(6.0), 3, optimizer, transport)
    return v, embedding(rows, 3, optimizer, transport, dtype="float64")


def test_a_closure_whose_learning_rate_fails_has_learned_nothing() -> None:
    transport = InProcess(3)
    v, e = made(SGD(lambda step: [1.0, 1.0][step]), transport)
    near_v, near_e = on_shards(v), on_shards(e)
    before = v.read()
    worker = Worker(transport, 100)

    def step(times: int) -> None:
        near_e.push([7], np.ones((1, 2)))
        for _ in range(times):
            near_v.push(np.ones(6))

    with pytest.raises(ConfigurationError, match="for step 2"):
        worker.run(lambda: step(3))
    worker.run(lambda: step(1))
    worker.copies.exchange()
    np.testing.assert_array_equal(v.read(), before - 1)
    assert {int(state["step"][0]) for state in shards_of(v).shard_states()} == {1}


@pytest.mark.parametrize("rows", [None, 50], ids=["growing", "fixed"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("closures", [1, 4])
def test_one_worker_alone_gives_what_the_servers_give(
    optimizer: Optimizer, rows: int | None, closures: int
) -> None:
    transport, reference = InProcess(3), InProcess(3)
    v, e = made(optimizer, transport, rows)
    expected_v, expected_e = made(optimizer, reference, rows)
    near_v, near_e = on_shards(v), on_shards(e)
    worker = Worker(transport, closures)
    rng = np.random.default_rng(0)
    for _ in range(12):
        ids, gradient = rng.integers(30, size=8), rng.normal(size=6)

        def step(v: Variable, e: Embedding, ids: np.ndarray, gradient: np.ndarray) -> None:
            v.push(gradient + 0.1 * v.read())
            e.push(ids, e.lookup(ids) + gradient[0])

        step(expected_v, expected_e, ids, gradient)
        worker.run(lambda ids=ids, gradient=gradient: step(near_v, near_e, ids, gradient))
    worker.copies.exchange()
    np.testing.assert_allclose(v.read(), expected_v.read(), rtol=0, atol=1e-12)
    every = np.arange(30)
    np.testing.assert_allclose(e.lookup(every), expected_e.lookup(every), rtol=0, atol=1e-12)
    for found, wanted in ((v, expected_v), (e, expected_e)):
        for one, other in zip(
            found._shards.shard_states(), wanted._shards.shard_states(), strict=True
        ):
            assert one["step"] == other["step"]


def test_what_was_learned_is_divided_by_the_workers() -> None:
    transport = InProcess(3)
    v = variable(np.zeros(6), 3, SGD(1.0), transport)
    near = on_shards(v)
    workers = [Worker(transport, 2, 2) for _ in range(2)]
    for _ in range(2):
        for gradient, worker in zip((-1.0, -3.0), workers, strict=True):
            worker.run(lambda gradient=gradient: near.push(np.full(6, gradient)))
    np.testing.assert_allclose(v.read(), np.full(6, 4.0))


def test_a_worker_sees_its_own_steps_and_the_servers_see_them_together() -> None:
    transport = InProcess(3)
    v, e = made(SGD(1.0), transport)
    near_v, near_e = on_shards(v), on_shards(e)
    worker, before, rows = Worker(transport, 3), v.read(), e.lookup([7, 9])

    def step() -> tuple[np.ndarray, np.ndarray]:
        near_v.push(-np.ones(6))
        near_e.push([7, 7], -np.ones((2, 2)))
        return near_v.read(), near_e.lookup([7, 9])

    for number in (1, 2):
        values, found = worker.run(step)
        np.testing.assert_allclose(values, before + number)
        np.testing.assert_allclose(found - rows, [[2 * number] * 2, [0, 0]])
        np.testing.assert_array_equal(v.read(), before)
    worker.run(step)
    np.testing.assert_allclose(v.read(), before + 3)
    np.testing.assert_allclose(e.lookup([7, 9]) - rows, [[6, 6], [0, 0]])


def test_a_closure_that_raises_leaves_no_trace() -> None:
    transport = InProcess(3)
    v = variable(np.zeros(6), 3, SGD(1.0), transport)
    near, worker = on_shards(v), Worker(transport, 2)

    def fails() -> None:
        near.push(-np.ones(6))
        assert near.read()[0] == 1
        raise ValueError("boo")

    with pytest.raises(ValueError, match="boo"):
        worker.run(fails)
    np.testing.assert_array_equal(worker.run(near.read), np.zeros(6))
    worker.copies.exchange()
    np.testing.assert_array_equal(v.read(), np.zeros(6))


def test_servers_are_asked_less_the_rarer_copies_are_exchanged() -> None:
    calls = []
    for closures in (1, 5):
        transport = InProcess(3)
        v, e = made(SGD(1.0), transport)
        near_v, near_e = on_shards(v), on_shards(e)
        worker = Worker(transport, closures)
        transport.calls = 0
        for _ in range(10):
            worker.run(lambda: (near_v.push(near_v.read()), near_e.push([1], near_e.lookup([1]))))  # noqa: B023
        calls.append(transport.calls)
    assert calls == [10 * 4, 2 * 4]  # to fetch the variable, the rows, to hold and to apply


def test_rows_are_fetched_once_and_only_those_that_are_used() -> None:
    transport = InProcess(1)
    e = embedding(None, 1, SGD(1.0), transport)
    near, worker = on_shards(e), Worker(transport, 100)
    transport.carried.clear()
    for ids in ([3, 4, 3], [4, 5], [3, 5]):
        worker.run(lambda ids=ids: near.lookup(ids))
    assert [ids.tolist() for ids in asked_ids(transport)] == [[3, 4], [5]]


def test_what_is_no_training_makes_no_rows_and_sees_those_that_are_here() -> None:
    transport = InProcess(1)
    e = embedding(None, 1, SGD(1.0), transport)
    near, worker = on_shards(e), Worker(transport, 100)

    def step() -> Any:
        near.push([3], -np.ones((1, 2), np.float32))
        return near.lookup([3], training=False)

    assert worker.run(lambda: near.lookup([3, 4], training=False)).all()
    assert e.statistics().rows == 0
    seen = worker.run(step)
    np.testing.assert_array_equal(worker.run(lambda: near.lookup([3], training=False)), seen)
    assert e.statistics().rows == 1
    np.testing.assert_allclose(e.lookup([3]) + 1, seen, rtol=1e-6)


def test_other_writes_are_seen_here_at_once_and_on_the_servers_with_the_exchange() -> None:
    transport = InProcess(1)
    count = variable(np.zeros(1, np.int64), 1, None, transport, name="count")
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    near_count, near_v, worker = on_shards(count), on_shards(v), Worker(transport, 3)

    def step() -> list[int]:
        seen = near_count.read().tolist()
        near_count.assign_add(np.ones(1, np.int64))
        near_v.push(-np.ones(2))
        near_v.assign_add(10 * np.ones(2))
        return seen

    for number in range(2):
        assert worker.run(step) == [number]
        assert count.read().tolist() == [0]
        assert v.read().tolist() == [0, 0]
    assert worker.run(near_v.read).tolist() == [22, 22]
    assert count.read().tolist() == [2]
    assert v.read().tolist() == [22, 22]


def test_what_is_written_at_once_goes_to_the_servers_at_once_and_is_seen_here() -> None:
    transport = InProcess(1)
    count = variable(np.zeros(1, np.int64), 1, None, transport, name="count")
    near, worker = on_shards(count), Worker(transport, 3)

    def step() -> list[int]:
        seen = near.read().tolist()
        near.assign_add(np.ones(1, np.int64), immediate=True)
        return seen

    for number in range(2):
        assert worker.run(step) == [number]
        assert count.read().tolist() == [number + 1]


def test_a_write_without_a_read_is_seen_by_the_next_closure_here() -> None:
    transport = InProcess(1)
    count = variable(np.zeros(1, np.int64), 1, None, transport, name="count")
    near, worker = on_shards(count), Worker(transport, 3)
    worker.run(lambda: near.assign_add(np.ones(1, np.int64)))
    assert worker.run(near.read).tolist() == [1]
    assert count.read().tolist() == [0]


def test_ids_that_are_not_admitted_give_zeros_and_take_no_gradient() -> None:
    transport = InProcess(1)
    e = embedding(None, 1, SGD(1.0), transport, admission=CountFilter(3))
    near, worker = on_shards(e), Worker(transport, 1)

    def step() -> Any:
        near.push([5], np.ones((1, 2), np.float32))
        return near.lookup([5]).tolist()

    assert worker.run(step) == [[0, 0]]
    assert worker.run(step) == [[0, 0]]
    assert worker.run(step) != [[0, 0]]  # it was fetched three times


def test_shows_are_counted_on_the_servers_with_the_exchange() -> None:
    transport = InProcess(1)
    e = embedding(None, 1, SGD(1.0), transport, accessor=CtrAccessor())
    near, worker = on_shards(e), Worker(transport, 10)
    for _ in range(3):
        worker.run(lambda: near.push([5], np.ones((1, 2), np.float32), clicks=[1]))
    assert e.row_use([5]).show.tolist() == [0]
    worker.copies.exchange()
    use = e.row_use([5])
    assert (use.show.tolist(), use.click.tolist()) == ([3], [3])


def test_a_push_at_once_is_one_to_the_copy() -> None:
    transport = InProcess(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    near, worker = on_shards(v), Worker(transport, 1)

    def step() -> Any:
        for _ in range(3):
            near.push(-np.ones(2), immediate=True)
        assert v.read().tolist() == [0, 0]
        return near.read().tolist()

    assert worker.run(step) == [3, 3]
    assert v.read().tolist() == [3, 3]


def test_an_exchange_tells_how_stale_the_update_was() -> None:
    transport = InProcess(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    near = on_shards(v)
    slow, fast = Worker(transport, 100), Worker(transport, 1)
    slow.run(lambda: near.push(near.read()))
    for _ in range(3):
        fast.run(lambda: near.push(near.read()))
    assert slow.copies.exchange() == 3
    assert slow.copies.exchange() is None


def test_servers_know_which_closures_were_sent_with_what_result() -> None:
    transport = InProcess(2)
    v = variable(np.zeros(4), 2, SGD(1.0), transport)
    near, worker = on_shards(v), Worker(transport, 2)
    for _ in range(3):
        worker.run(lambda: near.push(-np.ones(4)))  # the first two are sent, the third is not
    fence = FenceCommits({"a": {0: 1, 1: 1, 2: 1}})
    for shard in transport.shards:
        (facts,) = transport.call([Request(shard, fence)])
        assert [(fact.commit.closures, fact.applied) for fact in facts] == [
            (((number, b"result"),), True) for number in range(2)
        ]


class Lost(InProcess):
    """Servers of which one is lost in the middle of an exchange."""

    lost_at: type[ShardOperation] | None = None

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        outcomes = super().attempt(requests, seen)
        if type(requests[0].operation) is self.lost_at:
            return [outcomes[0], ServerUnresponsiveError("it says nothing")]
        return outcomes


def test_an_exchange_that_not_all_servers_hold_is_made_by_none() -> None:
    transport = Lost(2)
    v = variable(np.zeros(4), 2, SGD(1.0), transport)
    near, worker = on_shards(v), Worker(transport, 100)
    worker.run(lambda: near.push(-np.ones(4)))
    transport.lost_at = PreparePart
    with pytest.raises(UndecidedError) as raised:  # some may hold it still
        worker.copies.exchange()
    assert isinstance(raised.value.reason, ServerUnresponsiveError)
    assert v.read().tolist() == [0] * 4


def test_an_exchange_that_not_all_servers_have_applied_is_undecided() -> None:
    transport = Lost(2)
    v = variable(np.zeros(4), 2, SGD(1.0), transport)
    near, worker = on_shards(v), Worker(transport, 100)
    worker.run(lambda: near.push(-np.ones(4)))
    transport.lost_at = ApplyCommit
    with pytest.raises(UndecidedError) as raised:
        worker.copies.exchange()
    assert raised.value.commit.writer.startswith("a/")
    assert raised.value.commit.number == 0


class Interrupting(InProcess):
    """Has the copies exchanged while a commit is on its way."""

    copies: LocalCopies | None = None

    def call(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        copies, self.copies = self.copies, None
        if copies is not None:
            copies.exchange()
        return super().call(requests, seen)


def test_a_commit_into_copies_that_are_exchanged_meanwhile_goes_into_the_next_ones() -> None:
    transport = Interrupting(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    other = variable(np.zeros(2), 1, SGD(1.0), transport, name="w")
    near, near_other, worker = on_shards(v), on_shards(other), Worker(transport, 100)
    worker.run(lambda: near.push(-np.ones(2)))

    def step() -> None:
        near.push(-np.ones(2))
        near_other.push(-np.ones(2))  # is fetched first, and the exchange comes between
        transport.copies = worker.copies

    worker.run(step)
    assert v.read().tolist() == [1, 1]
    worker.copies.exchange()
    assert v.read().tolist() == [2, 2]
    assert other.read().tolist() == [1, 1]


def test_a_read_of_the_closures_own_push_needs_no_more_than_its_rows() -> None:
    transport = InProcess(1)
    e = embedding(None, 1, SGD(1.0), transport)
    near, worker = on_shards(e), Worker(transport, 100)

    def step() -> Any:
        near.push([8], -np.ones((1, 2), np.float32))
        request = read_request(transport.shards[0], "e", LookUpRows(np.array([9], np.uint64)))
        assert isinstance(request.operation, OnTables)
        assert isinstance(request.operation.operation, Preview)
        return near.lookup([9]).tolist()

    assert worker.run(step) == e.lookup([9]).tolist()


@pytest.mark.parametrize("exchanges", [False, True], ids=["within a cycle", "at its end"])
def test_a_closure_without_memory_is_refused_in_public_words_and_nothing_is_torn(
    monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    allocator, at, raised = Allocator(monkeypatch), 0, list[MemoryError]()
    while True:
        transport = InProcess(3)
        v, e = made(SGD(1.0), transport)
        near_v, near_e = on_shards(v), on_shards(e)
        start = v.read(), e.lookup([3, 4], training=False)
        worker = Worker(transport, 2 if exchanges else 100)

        def step(v: Variable = near_v, e: Embedding = near_e) -> None:
            v.assign_add(np.ones(6))
            v.push(-np.ones(6))
            e.push([3], -np.ones((1, 2)))
            e.push([4], -np.ones((1, 2)))

        worker.run(step)
        counted = 2
        with allocator.fails(at):
            try:
                worker.run(step)
            except MemoryError as error:
                raised.append(error)
                counted = 0 if "none of it is written" in str(error) else 1
        worker.run(step)
        worker.copies.exchange()
        shown = f"without allocation {at} and later ones"
        np.testing.assert_array_equal(v.read() - start[0], 2 * (counted + 1), shown)
        learned = e.lookup([3, 4], training=False) - start[1]
        np.testing.assert_allclose(learned, counted + 1, 1e-12, err_msg=shown)
        if not allocator.failed:
            break
        at += 1
    assert len(raised) > 5
    assert {type(each) for each in raised} <= {MemoryError, ServerMemoryError}
    assert all("memory for" in str(each) and "ive " in str(each) for each in raised)


def test_what_a_closure_has_changed_in_part_is_dropped_with_its_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = InProcess(3)
    v, e = made(SGD(1.0), transport)
    near_v, near_e, worker = on_shards(v), on_shards(e), Worker(transport, 2)
    start = v.read(), e.lookup([3], training=False)

    def step() -> None:
        near_e.push([3], -np.ones((1, 2)))
        near_v.push(-np.ones(6))

    def no_note(*_: object) -> None:
        raise MemoryError("this process has no memory for it")

    worker.run(step)
    with monkeypatch.context() as patch:
        patch.setattr(LocalDense, "_note", no_note)
        with pytest.raises(MemoryError, match=r"1 closures .* none of it is written"):
            worker.run(step)
    for _ in range(2):
        worker.run(step)
    np.testing.assert_array_equal(v.read() - start[0], 2)
    np.testing.assert_allclose(e.lookup([3], training=False) - start[1], 2, 1e-12)
