"""Tests of the rows of a batch; servers in this process."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.typing import ArrayLike

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.models.batch_rows import BatchRows
from psnb._src.server.optimizers import SGD
from psnb.errors import IdOutOfRangeError, InvalidArrayError
from tests.models.placing import InProcessStrategy

IDS = np.array([[7, 2, 7], [2, 5, 2**63 + 1]], np.uint64)


def table(strategy: InProcessStrategy, name: str = "e", **options: object) -> Embedding:
    return strategy.embedding(name, 2, optimizer=SGD(1.0), **options)  # type: ignore[arg-type]


def locate(rows: BatchRows, table: Embedding, *ids: ArrayLike) -> list[np.ndarray]:
    return rows.locate({table: ids})[table]


def test_positions_among_the_rows_of_distinct_ids_give_what_a_lookup_gives() -> None:
    e = table(InProcessStrategy())
    rows = BatchRows()
    (position,) = locate(rows, e, IDS)
    _, found = rows.fetch()
    assert found[e].shape == (4, 2)
    np.testing.assert_array_equal(found[e][position], e.lookup(IDS))


def test_ids_that_come_later_get_the_next_positions_and_are_fetched_alone() -> None:
    e = table(InProcessStrategy())
    rows = BatchRows()
    first, second = locate(rows, e, [1, 2, 1], [3, 2])
    _, found = rows.fetch()
    (third,) = locate(rows, e, [2, 9, 1, 9])
    _, more = rows.fetch()
    assert [each.tolist() for each in (first, second, third)] == [[0, 1, 0], [2, 1], [1, 3, 0, 3]]
    assert more[e].shape == (1, 2)
    everything = np.concatenate([found[e], more[e]])
    np.testing.assert_array_equal(everything[third], e.lookup([2, 9, 1, 9]))


def test_all_tables_and_variables_are_fetched_and_pushed_in_one_round_trip_each() -> None:
    strategy = InProcessStrategy()
    tables = [table(strategy, f"e{number}") for number in range(26)]
    v = strategy.variable(np.zeros(3), "v", SGD(1.0))
    rows = BatchRows()
    for each in tables:
        locate(rows, each, IDS)
    strategy.calls()
    values, found = rows.fetch([v])
    assert strategy.calls() == 1
    assert values[v].tolist() == [0, 0, 0]
    before = {each: np.array(found[each]) for each in tables}
    strategy.calls()
    rows.push({v: np.ones(3), **{each: np.ones((4, 2), np.float32) for each in tables}})
    assert strategy.calls() == 2  # prepared on both servers, then applied
    assert v.read().tolist() == [-1, -1, -1]
    for each in tables:
        np.testing.assert_allclose(each.lookup(np.unique(IDS)[[1]]), before[each][[2]] - 1)


def test_a_table_with_the_ids_of_another_has_its_positions_and_its_own_rows() -> None:
    strategy = InProcessStrategy()
    one, other = table(strategy), table(strategy, name="other")
    rows = BatchRows()
    (first,) = locate(rows, one, IDS)
    (second,) = locate(rows, other, IDS)
    np.testing.assert_array_equal(second, first)
    (later,) = locate(rows, one, [10**6])  # what comes to one does not come to the other
    assert later.tolist() == [rows.counts()[other]]
    _, found = rows.fetch()
    np.testing.assert_array_equal(found[other][second], other.lookup(IDS))
    np.testing.assert_array_equal(found[one][first], one.lookup(IDS))


def test_two_handles_of_a_table_are_one_update() -> None:
    strategy = InProcessStrategy()
    e = table(strategy)
    _, arguments = shards_of(e).__reduce__()  # type: ignore[misc]
    other = Embedding(SparseShards(arguments[0], arguments[1], strategy.transport))
    rows = BatchRows()
    assert locate(rows, e, [1])[0].tolist() == [0]
    assert locate(rows, other, [4, 1])[0].tolist() == [1, 0]
    assert len(rows.fetch()[1]) == 1
    before = np.array(e.lookup([1, 4]))
    rows.push({other: np.array([[1, 1], [2, 2]], np.float32)})
    np.testing.assert_allclose(e.lookup([1, 4]), before - [[1], [2]], atol=1e-6)


def test_padding_gives_zeros_and_takes_no_gradient() -> None:
    e = table(InProcessStrategy(), rows=10, padding_idx=3)
    rows = BatchRows()
    (position,) = locate(rows, e, [3, 4, 3])
    _, found = rows.fetch()
    assert found[e][position][[0, 2]].tolist() == [[0, 0], [0, 0]]
    before = np.array(e.lookup([4]))
    rows.push({e: np.ones((2, 2), np.float32)})
    np.testing.assert_allclose(e.lookup([4]), before - 1)
    assert e.lookup([3]).tolist() == [[0, 0]]


def test_gradients_of_padded_rows_are_left_out() -> None:
    e = table(InProcessStrategy())
    rows = BatchRows()
    locate(rows, e, [5])
    rows.fetch()
    before = np.array(e.lookup([5]))
    rows.push({e: np.array([[1, 1], [np.nan, 0], [7, 7]], np.float32)})
    np.testing.assert_allclose(e.lookup([5]), before - 1)


@pytest.mark.parametrize("loss", [np.nan, np.inf, -np.inf])
def test_finite_gradients_of_a_loss_that_is_not_are_refused(loss: float) -> None:
    strategy = InProcessStrategy()
    e, v = table(strategy), strategy.variable(np.zeros(3), "v", SGD(1.0))
    rows = BatchRows()
    locate(rows, e, [5])
    rows.fetch()
    before = np.array(e.lookup([5]))
    with pytest.raises(InvalidArrayError, match=f"the loss is {loss}, so nothing"):
        rows.push({e: np.ones((1, 2), np.float32), v: np.ones(3)}, loss=loss)
    np.testing.assert_array_equal(e.lookup([5]), before)
    assert not v.read().any()


def test_parameters_that_all_take_what_is_not_finite_take_its_gradients() -> None:
    v = InProcessStrategy().variable(np.zeros(3), "v", SGD(1.0), nonfinite="allow")
    BatchRows().push({v: np.ones(3)}, loss=np.nan)
    assert v.read().tolist() == [-1, -1, -1]


def test_a_batch_for_evaluation_makes_no_rows() -> None:
    e = table(InProcessStrategy())
    rows = BatchRows(training=False)
    locate(rows, e, IDS)
    rows.fetch()
    assert e.statistics().rows == 0


@pytest.mark.parametrize(
    ("ids", "error"),
    [([1.5], InvalidArrayError), ([10], IdOutOfRangeError), ([-1], IdOutOfRangeError)],
)
def test_what_is_no_id_is_refused_before_anything_is_asked(
    ids: list[float], error: type[Exception]
) -> None:
    strategy = InProcessStrategy()
    e = table(strategy, rows=10)
    strategy.calls()
    with pytest.raises(error, match="'e'"):
        locate(BatchRows(), e, ids)
    assert strategy.calls() == 0


def test_the_key_of_a_parameter_is_that_of_handles_that_have_travelled() -> None:
    strategy = InProcessStrategy()
    a, b = table(strategy, "a"), table(strategy, "b")
    travelled = pickle.loads(pickle.dumps(a))
    assert shards_of(travelled).tables == shards_of(a).tables != shards_of(b).tables
