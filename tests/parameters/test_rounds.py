"""Ending a round on shards in this process: one update, clipped by the norm of all of it."""

from __future__ import annotations

import numpy as np

from psnb.parameters import CommitId, Round, Updates, apply_round, buffered
from psnb.server import SGD
from tests.parameters.test_handles import InProcess, embedding, variable


def test_a_round_is_clipped_by_the_norm_of_all_shards() -> None:
    transport = InProcess(3)
    v = variable(np.zeros(3), 3, SGD(1.0, clipnorm=3.5), transport)
    e = embedding(None, 3, SGD(1.0, clipnorm=1.0), transport, dtype="float64")
    free = variable(np.zeros(3), 3, SGD(1.0), transport, name="free")
    before = e.lookup([1, 2])
    for number, factor in enumerate((0.5, 1.5)):
        updates = Updates(counted=True, turn=Round("s", 0))
        with buffered(updates):
            v.push(factor * np.array([3.0, 6.0, 2.0]))  # norm 7 on average
            free.push(np.full(3, factor))
            e.push([1, 2, 1], factor * np.array([[1.0, 2.0], [0.0, 4.0], [2.0, 2.0]]))  # 6.4
            v.assign_add(np.ones(3))
            np.testing.assert_array_equal(v.read(), np.full(3, number + 1.0))
        updates.commit(transport, CommitId("a", number, 0))
    np.testing.assert_array_equal(v.read(), np.full(3, 2.0))
    for _ in range(2):
        apply_round(transport, transport.shards, [v, e, free], "a", 0, [0, 1])
    np.testing.assert_allclose(v.read(), 2 - np.array([1.5, 3.0, 1.0]), rtol=1e-12)
    np.testing.assert_allclose(free.read(), np.full(3, -1.0), rtol=1e-12)
    change = np.array([[3.0, 4.0], [0.0, 4.0]]) / np.sqrt(9 + 16 + 16)
    np.testing.assert_allclose(before - e.lookup([1, 2]), change, rtol=1e-12)


def test_norms_are_asked_for_only_where_something_may_be_clipped() -> None:
    transport = InProcess(2)
    v = variable(np.zeros(2), 1, SGD(1.0), transport)
    transport.carried.clear()
    apply_round(transport, transport.shards, [v], "a", 0, [])
    assert [each.operation for each in transport.carried] == ["end_round", "end_round"]


def test_clipnorm_of_a_divided_variable_that_was_switched_on_live_is_of_the_whole_average() -> None:
    transport = InProcess(2)
    v = variable(np.zeros(2), 2, SGD(1.0), transport)
    assert v.optimizer is not None
    v.optimizer.clipnorm = 1.0
    for closure, gradient in enumerate(([6.0, 0.0], [0.0, 8.0])):
        updates = Updates(counted=True, turn=Round("s", 0))
        with buffered(updates):
            v.push(gradient)
        updates.commit(transport, CommitId("a", closure, 0))
    apply_round(transport, transport.shards, [v], "a", 0, [0, 1])
    np.testing.assert_allclose(v.read(), [-0.6, -0.8])  # of (3, 4)
