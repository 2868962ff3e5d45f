"""What a closure writes: held back, seen by itself, committed once. Servers in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from psnb import errors
from psnb._src.client.requests import Request
from psnb._src.client.updates import Updates, buffered
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit
from psnb._src.server.operations import ApplyCommit, CommitParts, PreparePart
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables.operations import ShardOperation
from psnb.errors import InvalidArrayError, ServerUnresponsiveError
from tests.client.in_process import InProcess, embedding, variable
from tests.conftest import wait_until

SHARDS = pytest.mark.parametrize("shards", [1, 3])


def commit(updates: Updates, transport: InProcess, closure: int = 0) -> None:
    updates.commit(transport, Commit("a", closure))


@SHARDS
def test_writes_of_a_closure_are_made_at_its_end(shards: int) -> None:
    transport = InProcess(3)
    v = variable(np.zeros(6), shards, SGD(1.0), transport)
    updates = Updates()
    with buffered(updates):
        v.push(-np.ones(6))
        v.assign_add(np.ones(6))
    np.testing.assert_array_equal(v.read(), np.zeros(6))
    commit(updates, transport)
    np.testing.assert_array_equal(v.read(), np.full(6, 2))


@SHARDS
def test_a_closure_reads_its_own_writes(shards: int) -> None:
    transport = InProcess(shards)
    v = variable(np.zeros(6), shards, Adagrad(1.0), transport, name="v")
    e = embedding(rows=None, shards=shards, optimizer=SGD(1.0), transport=transport)
    before = e.lookup([1, 2, 3])
    with buffered(Updates()):
        v.assign(np.arange(6.0))
        np.testing.assert_array_equal(v.read(), np.arange(6))
        e.push([2, 2], -np.ones((2, 2), np.float32))
        np.testing.assert_allclose(e.lookup([1, 2, 3]) - before, [[0, 0], [2, 2], [0, 0]])
    np.testing.assert_array_equal(v.read(), np.zeros(6))
    np.testing.assert_array_equal(e.lookup([1, 2, 3]), before)


@SHARDS
def test_a_closure_reads_its_own_scattered_rows(shards: int) -> None:
    transport = InProcess(3)
    v = variable(np.zeros((6, 2)), shards, transport=transport)
    updates = Updates()
    with buffered(updates):
        v.scatter_add([1, 5, 1], np.ones((3, 2)))
        v.scatter_update([0], [[7.0, 7.0]])
        assert v.gather([0, 1, 5, 2])[:, 0].tolist() == [7, 2, 1, 0]
    assert not v.read().any()
    for _ in range(2):  # the same closure again: it is applied once
        commit(updates, transport)
    assert v.read()[:, 0].tolist() == [7, 2, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("shards", "expected"),
    [(1, [CommitParts]), (2, [PreparePart, PreparePart, ApplyCommit, ApplyCommit])],
)
def test_all_writes_travel_in_one_request_to_each_server(shards: int, expected: list[type]) -> None:
    transport = InProcess(shards)
    v = variable(np.zeros(6), shards, SGD(1.0), transport)
    e = embedding(rows=None, shards=shards, optimizer=SGD(1.0), transport=transport)
    updates = Updates()
    with buffered(updates):
        for _ in range(3):
            v.push(np.ones(6))
            e.push(np.arange(100), np.ones((100, 2), np.float32))
    transport.carried.clear()
    commit(updates, transport)
    assert [type(request.operation) for request in transport.carried] == expected


def test_a_closure_that_runs_again_has_its_effect_once() -> None:
    transport = InProcess(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    for _ in range(3):
        updates = Updates()
        with buffered(updates):
            v.push(-np.ones(2))
        commit(updates, transport, closure=7)
    np.testing.assert_array_equal(v.read(), [1, 1])


def test_an_array_changed_after_it_was_pushed_is_pushed_as_it_was() -> None:
    transport = InProcess(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    gradient, updates = -np.ones(2), Updates()
    with buffered(updates):
        v.push(gradient)
        gradient *= 100
    commit(updates, transport)
    np.testing.assert_array_equal(v.read(), [1, 1])


def test_immediate_writes_are_made_at_once() -> None:
    transport = InProcess(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    e = embedding(rows=None, shards=1, optimizer=SGD(1.0), transport=transport)
    before = e.lookup([1])
    updates = Updates()
    with buffered(updates):
        v.push(-np.ones(2), immediate=True)
        v.assign_sub(np.ones(2), immediate=True)
        e.push([1], -np.ones((1, 2), np.float32), immediate=True)
    assert not updates
    np.testing.assert_array_equal(v.read(), [0, 0])
    np.testing.assert_allclose(e.lookup([1]) - before, [[1, 1]])


def test_a_wrong_gradient_is_refused_in_the_closure_not_at_its_end() -> None:
    v = variable(np.zeros(2), 1, SGD(1.0))
    updates = Updates()
    with buffered(updates), pytest.raises(InvalidArrayError):
        v.push(np.ones(3))
    assert not updates


def test_writes_of_other_threads_are_not_held_back() -> None:
    v = variable(np.zeros(2), 1, SGD(1.0))
    with buffered(Updates()):
        thread = threading.Thread(target=v.push, args=(-np.ones(2),))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(v.read(), [1, 1])


class ForgetfulAnswers(InProcess):
    """A transport that carries each request twice, as if the first answer had been lost."""

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        super().attempt(requests, seen)
        return super().attempt(requests, seen)


def test_a_write_outside_of_closures_that_is_sent_twice_is_made_once() -> None:
    transport = ForgetfulAnswers(2)
    v = variable(np.zeros(6), 2, SGD(1.0), transport)
    e = embedding(rows=None, shards=2, optimizer=SGD(1.0), transport=transport)
    before = e.lookup([1, 2])
    for _ in range(3):
        v.push(-np.ones(6))
        v.assign_add(np.ones(6))
        e.push([1, 2], -np.ones((2, 2), np.float32))
    assert (v.read() == 6).all()
    np.testing.assert_allclose(e.lookup([1, 2]), before + 3)


def counted(transport: InProcess, number: int, updates: Updates) -> int | None:
    return updates.commit(transport, Commit("a", number))


def test_the_staleness_of_an_update_is_what_came_since_its_first_read() -> None:
    transport = InProcess(3)
    v = variable(np.zeros(6), 3, SGD(1.0), transport)
    slow, fast = Updates(counted=True), [Updates(counted=True) for _ in range(4)]
    for number, updates in enumerate([slow, *fast]):
        with buffered(updates):
            v.read()
            v.push(np.ones(6))
            v.read()  # the first one counts
        if updates is not slow:
            assert counted(transport, number, updates) == 0
    v.push(np.ones(6))  # no closure's
    assert counted(transport, 0, slow) == len(fast)


def test_the_largest_staleness_of_several_shards_counts() -> None:
    transport = InProcess(2)
    v, w = (variable(np.zeros(2), 2, SGD(1.0), transport, name) for name in "vw")
    slow, other = Updates(counted=True), Updates(counted=True)
    with buffered(slow):
        v.gather([0, 1])
        w.push(np.ones(2))
    with buffered(other):
        v.scatter_add([1], [1.0])  # on the second shard alone
    assert counted(transport, 1, other) == 0
    assert counted(transport, 0, slow) == 1


def test_an_update_that_has_read_nothing_is_not_stale() -> None:
    transport = InProcess(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    for number in range(2):
        updates = Updates(counted=True)
        with buffered(updates):
            v.push(np.ones(2))
        assert counted(transport, number, updates) == 0


def test_a_commit_that_comes_again_gets_the_same_answer() -> None:
    transport = InProcess(1)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    slow, fast = Updates(counted=True), Updates(counted=True)
    with buffered(slow):
        v.read()
        v.push(np.ones(2))
    with buffered(fast):
        v.push(np.ones(2))
    counted(transport, 1, fast)
    assert [counted(transport, 0, slow) for _ in range(3)] == [1, 1, 1]
    np.testing.assert_array_equal(v.read(), [-2, -2])


class Unresponsive(InProcess):
    """The last server says nothing to an operation, until it is let; then it has not heard it."""

    operation: type[ShardOperation] | None = None
    error: errors.PsnbError = errors.ServerUnresponsiveError("it says nothing")

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.goes_on = threading.Event()

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        last = requests[-1]
        if (
            type(last.operation) is not self.operation
            or last.to != self.shards[-1]
            or self.goes_on.is_set()
        ):
            return super().attempt(requests, seen)
        found = super().attempt(requests[:-1], seen)
        if len(requests) == 1:
            self.goes_on.wait()
        return [*found, self.error]


def test_a_write_that_one_of_several_servers_has_made_is_made_by_the_unresponsive_one_as_well() -> (
    None
):
    transport = Unresponsive(2)
    v = variable(np.zeros(2), 2, transport=transport)
    transport.operation = ApplyCommit
    with pytest.raises(ServerUnresponsiveError, match="It may have been written"):
        v.assign_add([1.0, 1.0])
    assert v.read().tolist() == [1, 0]
    transport.goes_on.set()
    wait_until(lambda: v.read().tolist() == [1, 1], "the other server has made it too")


def test_a_write_that_an_unresponsive_server_did_not_take_is_made_nowhere() -> None:
    transport = Unresponsive(2)
    v = variable(np.zeros(2), 2, transport=transport)
    transport.operation = PreparePart
    with pytest.raises(ServerUnresponsiveError):
        v.assign_add([1.0, 1.0])
    transport.goes_on.set()
    v.assign_add([1.0, 1.0])
    assert v.read().tolist() == [1, 1]


def test_a_write_that_a_replica_has_missed_is_reported_as_lost_in_part() -> None:
    transport = Unresponsive(2)
    v = variable(np.zeros(2), 2, transport=transport)
    transport.operation, transport.error = (
        ApplyCommit,
        errors.ClosureCancelledError("it was given up"),
    )
    with pytest.raises(errors.ServerLostError, match="It may have been written"):
        v.assign_add([1.0, 1.0])
