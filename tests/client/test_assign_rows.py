"""Tests of `Embedding.assign`; servers in this process."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.client.local.geo import LocalCopies
from psnb._src.client.updates import Updates, buffered
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables.admission import CountFilter
from psnb.errors import IdOutOfRangeError, InvalidArrayError
from tests.client.in_process import DIM, KINDS, SHARDS, InProcess, embedding
from tests.client.local.test_geo import Worker, on_shards


@SHARDS
@KINDS
def test_rows_are_replaced_and_others_stay(rows: int | None, shards: int) -> None:
    e = embedding(rows, shards)
    before = np.array(e.lookup([2, 3]))
    e.assign([[4, 1], [9, 3]], np.arange(8, dtype=np.float32).reshape(2, 2, DIM))
    assert e.lookup([1, 9, 4]).tolist() == [[2, 3], [4, 5], [0, 1]]
    np.testing.assert_array_equal(e.lookup([2]), before[:1])


def test_of_a_repeated_id_the_last_value_counts() -> None:
    e = embedding()
    e.assign([5, 1, 5], np.array([[1, 1], [2, 2], [3, 3]], np.float32))
    assert e.lookup([5, 1]).tolist() == [[3, 3], [2, 2]]


def test_the_optimizers_state_stays() -> None:
    e, other = (embedding(optimizer=Adagrad(1.0)) for _ in range(2))
    gradient = np.ones((1, DIM), np.float32)
    for each in (e, other):
        each.push([1], gradient)
    now = np.array(other.lookup([1]))
    e.assign([1], now)
    for each in (e, other):
        each.push([1], gradient)
    np.testing.assert_array_equal(np.array(e.lookup([1])), other.lookup([1]))


def test_an_id_that_is_not_admitted_yet_gets_its_row() -> None:
    e = embedding(None, admission=CountFilter(10))
    e.assign([2**63 + 5], np.ones((1, DIM), np.float32))
    assert e.lookup(np.array([2**63 + 5], np.uint64)).tolist() == [[1, 1]]


def test_in_a_closure_it_happens_at_once() -> None:
    e = embedding()
    with buffered(Updates()):
        e.assign([1], np.ones((1, DIM), np.float32))
    assert e.lookup([1]).tolist() == [[1, 1]]


def test_a_workers_copy_has_the_new_rows_and_has_not_learned_them() -> None:
    transport = InProcess(1)
    e = embedding(transport=transport, shards=1, optimizer=SGD(1.0))
    worker = Worker(transport, closures=10)
    assert isinstance(worker.copies, LocalCopies)
    closures = on_shards(e)
    found = worker.run(
        lambda: (
            closures.lookup([1]),
            closures.assign([1, 2], np.ones((2, DIM), np.float32)),
            np.array(closures.lookup([1, 2])),
            closures.push([1], np.full((1, DIM), 0.25, np.float32)),
        )
    )
    assert found[2].tolist() == [[1, 1], [1, 1]]
    worker.copies.exchange()
    assert e.lookup([1, 2]).tolist() == [[0.75, 0.75], [1, 1]]


@pytest.mark.parametrize(
    ("ids", "values", "error"),
    [
        ([1], np.ones((1, DIM + 1), np.float32), InvalidArrayError),
        ([1], np.ones((1, DIM), np.float64), InvalidArrayError),
        ([10], np.ones((1, DIM), np.float32), IdOutOfRangeError),
    ],
)
def test_what_does_not_fit_changes_nothing(
    ids: list[int], values: np.ndarray, error: type[Exception]
) -> None:
    transport = InProcess(3)
    e = embedding(transport=transport)
    transport.calls = 0
    with pytest.raises(error, match="'e'"):
        e.assign(ids, values)
    assert transport.calls == 0
