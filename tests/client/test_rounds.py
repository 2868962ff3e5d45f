"""Ending a round on shards in this process: one update, clipped by the norm of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from psnb._src.client.commit import ask, drive, end_round
from psnb._src.client.handles import shards_of
from psnb._src.client.parameter_shards import clipped_tables
from psnb._src.client.requests import Request
from psnb._src.client.updates import Round, Updates, buffered
from psnb._src.client.variable import Variable
from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit
from psnb._src.server.operations import EndRound, SquareNorms
from psnb._src.server.optimizers import SGD
from psnb._src.server.tables.operations import ShardOperation
from psnb.errors import ServerLostError, ServerUnresponsiveError
from tests.client.in_process import InProcess, embedding, variable


def apply_round(
    attempt: Any,
    shards: Sequence[ShardId],
    parameters: Sequence[Any],
    writer: str,
    number: int,
    closures: Sequence[int],
    on_blocked: Any,
) -> None:
    owners, of = clipped_tables(parameters), EndRound(writer, number, closures, {})
    drive(end_round(shards, owners, of, ask, on_blocked), attempt)


def never(error: Exception) -> None:
    raise AssertionError("nobody is unresponsive")


def test_a_round_is_clipped_by_the_norm_of_all_shards() -> None:
    transport = InProcess(3)
    v = variable(np.zeros(3), 3, SGD(1.0, clipnorm=3.5), transport)
    e = embedding(None, 3, SGD(1.0, clipnorm=1.0), transport, dtype="float64")
    free = variable(np.zeros(3), 3, SGD(1.0), transport, name="free")
    before = e.lookup([1, 2])
    for number, factor in enumerate((0.5, 1.5)):
        updates = Updates(counted=True, sync_round=Round("s", 0))
        with buffered(updates):
            v.push(factor * np.array([3.0, 6.0, 2.0]))  # norm 7 on average
            free.push(np.full(3, factor))
            e.push([1, 2, 1], factor * np.array([[1.0, 2.0], [0.0, 4.0], [2.0, 2.0]]))  # 6.4
            v.assign_add(np.ones(3))
            np.testing.assert_array_equal(v.read(), np.full(3, number + 1.0))
        updates.commit(transport, Commit("a", number))
    np.testing.assert_array_equal(v.read(), np.full(3, 2.0))
    for _ in range(2):
        apply_round(
            transport.attempt,
            transport.shards,
            [shards_of(each) for each in (v, e, free)],
            "a",
            0,
            [0, 1],
            never,
        )
    np.testing.assert_allclose(v.read(), 2 - np.array([1.5, 3.0, 1.0]), rtol=1e-12)
    np.testing.assert_allclose(free.read(), np.full(3, -1.0), rtol=1e-12)
    change = np.array([[3.0, 4.0], [0.0, 4.0]]) / np.sqrt(9 + 16 + 16)
    np.testing.assert_allclose(before - e.lookup([1, 2]), change, rtol=1e-12)


@pytest.mark.parametrize("shards", [1, 2])
def test_all_shards_are_asked_first_where_there_are_several(shards: int) -> None:
    transport = InProcess(shards)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    transport.carried.clear()
    apply_round(transport.attempt, transport.shards, [shards_of(v)], "a", 0, [], never)
    asked = [SquareNorms] * (shards if shards > 1 else 0)
    found = [type(each.operation) for each in transport.carried]
    assert found == [*asked, *[EndRound] * shards]


class Failing(InProcess):
    """Servers of which the last one fails, at an operation, so often."""

    error: Exception
    times = 0
    operation: type[ShardOperation] | None = None

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        last = requests[-1]
        if self.times and type(last.operation) is self.operation and last.to == self.shards[-1]:
            self.times -= 1
            return [*super().attempt(requests[:-1], seen), self.error]
        return super().attempt(requests, seen)


def in_a_round(
    error: Exception, operation: type[ShardOperation], times: int
) -> tuple[Failing, Variable]:
    transport = Failing(2)
    v = variable(np.zeros(2), 2, SGD(1.0), transport)
    updates = Updates(counted=True, sync_round=Round("s", 0))
    with buffered(updates):
        v.push([-1.0, -1.0])
    updates.commit(transport, Commit("a", 0))
    transport.error, transport.operation, transport.times = error, operation, times
    return transport, v


def test_a_round_is_applied_nowhere_if_a_server_is_lost_before() -> None:
    transport, v = in_a_round(ServerLostError("gone"), SquareNorms, 1)
    with pytest.raises(ServerLostError):
        apply_round(transport.attempt, transport.shards, [shards_of(v)], "a", 0, [0], never)
    assert v.read().tolist() == [0, 0]


@pytest.mark.parametrize("operation", [SquareNorms, EndRound])
def test_a_server_that_says_nothing_is_asked_until_it_has_applied_the_round(
    operation: type[ShardOperation],
) -> None:
    unresponsive = ServerUnresponsiveError("unresponsive")
    transport, v = in_a_round(unresponsive, operation, 3)
    told: list[Exception] = []
    apply_round(transport.attempt, transport.shards, [shards_of(v)], "a", 0, [0], told.append)
    assert told == [unresponsive] * 3
    assert v.read().tolist() == [1, 1]


def test_a_server_that_is_lost_while_others_apply_a_round_is_not_waited_for() -> None:
    transport, v = in_a_round(ServerLostError("gone"), EndRound, 1)
    apply_round(transport.attempt, transport.shards, [shards_of(v)], "a", 0, [0], never)
    assert v.gather([0]).tolist() == [1]


def test_clipnorm_of_a_divided_variable_that_was_switched_on_live_is_of_the_whole_average() -> None:
    transport = InProcess(2)
    v = variable(np.zeros(2), 2, SGD(1.0), transport)
    assert v.optimizer is not None
    v.optimizer.clipnorm = 1.0
    for closure, gradient in enumerate(([6.0, 0.0], [0.0, 8.0])):
        updates = Updates(counted=True, sync_round=Round("s", 0))
        with buffered(updates):
            v.push(gradient)
        updates.commit(transport, Commit("a", closure))
    apply_round(transport.attempt, transport.shards, [shards_of(v)], "a", 0, [0, 1], never)
    np.testing.assert_allclose(v.read(), [-0.6, -0.8])  # of (3, 4)
