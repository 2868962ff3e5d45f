"""Tests of variables and embeddings against servers in this process, without a cluster."""

from itertools import chain
from typing import Any

import cloudpickle
import numpy as np
import pytest

from psnb._src.server.operations import CommitParts, PreparePart
from psnb._src.server.optimizers import SGD, Adagrad
from psnb._src.server.tables.initializers import Uniform
from psnb._src.server.tables.operations import PushRows
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError
from tests.client.in_process import (
    DIM,
    KINDS,
    ROWS,
    SHARDS,
    InProcess,
    asked_ids,
    embedding,
    process_client,
    variable,
)

__all__ = ["process_client"]

VALUES = [
    np.float32(3),
    np.arange(7.0),
    np.arange(12, dtype=np.int32).reshape(4, 3),
    np.ones((0, 2)),
]


@SHARDS
@pytest.mark.parametrize("value", VALUES)
def test_variable_reads_what_it_started_with(value: Any, shards: int) -> None:
    found = variable(value, shards).read()
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, value)


@SHARDS
@pytest.mark.parametrize("value", VALUES)
def test_assign_add_and_sub_on_every_shard(value: Any, shards: int) -> None:
    v, one = variable(value, shards), np.ones_like(value)
    v.assign(np.full_like(value, 5))
    v.assign_add(one)
    v.assign_sub(one * 4)
    np.testing.assert_array_equal(v.read(), np.full_like(value, 2))


def test_assign_sub_works_on_unsigned_integers() -> None:
    v = variable(np.array([5, 6], np.uint8))
    v.assign_sub([1, 2])
    assert v.read().tolist() == [4, 4]


def test_push_applies_the_optimizer_to_every_shard() -> None:
    v = variable(np.ones((5, 2), np.float32), optimizer=SGD(0.5))
    gradient = np.arange(10, dtype=np.float32).reshape(5, 2)
    v.push(gradient)
    np.testing.assert_array_equal(v.read(), 1 - 0.5 * gradient)


@SHARDS
def test_a_variable_is_an_array_of_its_value_for_numpy(shards: int) -> None:
    v = variable(np.arange(6, dtype=np.float32), shards)
    array = np.asarray(v)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, np.arange(6))
    np.testing.assert_array_equal(np.asarray(v, np.float64) + v, 2 * np.arange(6))


def test_a_variables_array_cannot_be_had_without_a_copy() -> None:
    with pytest.raises(ValueError, match="must be copied"):
        np.asarray(variable([1.0]), copy=False)


def test_an_embedding_is_no_array_for_numpy() -> None:
    with pytest.raises(ConfigurationError, match=r"'e' is a table.*lookup\(ids\)"):
        np.asarray(embedding(10))


def test_variable_takes_python_numbers_and_lists() -> None:
    scalar, vector = variable(np.float32(1)), variable(np.zeros(3, np.float32))
    scalar.assign_add(2)
    vector.assign([1, 2.5, 3])
    assert scalar.read() == 3
    assert vector.read().tolist() == [1, 2.5, 3]


@pytest.mark.parametrize("operation", ["assign", "assign_add", "assign_sub", "push"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.ones(4, np.float32), r"'v': expected shape \(5,\), found \(4,\)"),
        (np.ones((5, 1), np.float32), r"'v': expected shape \(5,\), found \(5, 1\)"),
        (1.0, r"'v': expected shape \(5,\), found \(\)"),
        (np.ones(5), "'v': expected dtype float32, found float64"),
    ],
)
def test_wrong_array_for_a_variable_is_refused_before_anything_is_sent(
    operation: str, bad: Any, message: str
) -> None:
    transport = InProcess(3)
    v = variable(np.ones(5, np.float32), optimizer=SGD(), transport=transport)
    transport.carried.clear()
    with pytest.raises(InvalidArrayError, match=message):
        getattr(v, operation)(bad)
    assert not transport.carried


ROW_VALUES = [np.arange(7.0), np.arange(12, dtype=np.int8).reshape(4, 3), np.ones((5, 2, 2))]


@SHARDS
@pytest.mark.parametrize("value", ROW_VALUES, ids=lambda value: str(value.shape))
@pytest.mark.parametrize("rows", [2, [], [3, 0, 3, 3], [[1, 2], [3, 1]]], ids=str)
def test_gather_and_scatter_do_to_rows_what_numpy_does(value: Any, rows: Any, shards: int) -> None:
    v, expected, at = variable(value, shards), value.copy(), np.array(rows, np.int64)
    more = np.arange(at.size * value[0].size).reshape((*at.shape, *value.shape[1:]))
    more = more.astype(value.dtype)
    v.scatter_add(rows, more)
    np.add.at(expected, at, more)
    np.testing.assert_array_equal(v.read(), expected)
    v.scatter_sub(rows, more + 1)
    np.subtract.at(expected, at, more + 1)
    np.testing.assert_array_equal(v.read(), expected)
    v.scatter_update(rows, more)
    expected[at] = more
    np.testing.assert_array_equal(v.read(), expected)
    found = v.gather(rows)
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, expected[at])


@pytest.mark.parametrize(
    ("rows", "values", "error", "message"),
    [
        ([0, 5], [[1, 1]] * 2, IdOutOfRangeError, r"'v' has shape \(5, 2\).*found row 5"),
        ([-1], [[1, 1]], IdOutOfRangeError, "found row -1"),
        ([1.0], [[1, 1]], InvalidArrayError, "'v': expected integers"),
        ([1], [1, 1], InvalidArrayError, r"expected shape \(1, 2\) for rows of shape \(1,\)"),
        ([1], np.ones((1, 2)), InvalidArrayError, "expected dtype float32, found float64"),
    ],
)
@pytest.mark.parametrize("operation", ["scatter_add", "scatter_sub", "scatter_update"])
def test_bad_scatter_is_refused_before_anything_is_sent(
    operation: str, rows: Any, values: Any, error: type[Exception], message: str
) -> None:
    transport = InProcess(3)
    v = variable(np.ones((5, 2), np.float32), transport=transport)
    transport.carried.clear()
    with pytest.raises(error, match=message):
        getattr(v, operation)(rows, values)
    assert not transport.carried


def test_a_single_number_has_no_rows() -> None:
    with pytest.raises(InvalidArrayError, match="'v' is a single number"):
        variable(np.float32(1)).gather([0])


def test_push_to_a_variable_without_optimizer_is_refused() -> None:
    v = variable(np.ones(5, np.float32))
    with pytest.raises(ConfigurationError, match="has no optimizer"):
        v.push(np.ones(5, np.float32))
    assert v.read().tolist() == [1] * 5


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 3)])
def test_variable_states_load_onto_any_number_of_shards(before: int, after: int) -> None:
    gradient = np.arange(5, dtype=np.float32)
    saved, restored = (variable(np.ones(5, np.float32), n, Adagrad()) for n in (before, after))
    saved.push(gradient)
    restored._shards.load_states(saved._shards.shard_states())
    for v in (saved, restored):
        v.push(gradient)
    np.testing.assert_array_equal(restored.read(), saved.read())


@KINDS
@SHARDS
@pytest.mark.parametrize("ids", [3, [], [[]], [1, 1, 9], [[0, 1, 2], [3, 4, 5]]])
def test_lookup_has_a_row_for_each_id_of_any_shape(rows: int | None, shards: int, ids: Any) -> None:
    found = embedding(rows, shards).lookup(ids)
    assert found.shape == (*np.shape(ids), DIM)
    expected = np.empty((np.size(ids), DIM), np.float32)
    Uniform().fill(expected, np.array(ids, np.uint64).reshape(-1), 3)
    np.testing.assert_array_equal(found.reshape(-1, DIM), expected)


@KINDS
@SHARDS
@pytest.mark.parametrize("ids", [3, [1, 8, 9], [[0, 1, 2], [3, 4, 5]]])
def test_push_moves_the_rows_of_ids_of_any_shape(rows: int | None, shards: int, ids: Any) -> None:
    e = embedding(rows, shards, SGD(1.0), dtype="float64")
    before = e.lookup(range(ROWS))
    gradient = np.random.default_rng(0).normal(size=(*np.shape(ids), DIM))
    e.push(ids, gradient)
    expected = before.copy()
    expected[np.array(ids)] -= gradient
    np.testing.assert_array_equal(e.lookup(range(ROWS)), expected)


@KINDS
def test_duplicate_ids_count_as_one_step(rows: int | None) -> None:
    e, reference = (embedding(rows, optimizer=Adagrad(0.5)) for _ in range(2))
    e.push([[4, 7], [7, 7]], np.ones((2, 2, DIM), np.float32))
    reference.push([4, 7], [[1, 1], [3, 3]])
    np.testing.assert_array_equal(e.lookup([4, 7]), reference.lookup([4, 7]))


@SHARDS
def test_negative_id_is_the_row_of_its_64_bits(shards: int) -> None:
    e = embedding(None, shards, SGD(1.0))
    e.push([-1], np.ones((1, DIM), np.float32))
    found = e.lookup(np.array([2**64 - 1, 0], np.uint64))
    np.testing.assert_array_equal(found[0], e.lookup(-1))
    assert (found[0] < -0.9).all()
    assert (found[1] > -0.9).all()


def test_no_ids_ask_no_server() -> None:
    transport = InProcess(3)
    e = embedding(optimizer=SGD(), transport=transport)
    transport.carried.clear()
    e.lookup([])
    e.push(np.empty((0, 4), np.int64), np.empty((0, 4, DIM), np.float32))
    assert not transport.carried


@pytest.mark.parametrize(
    ("ids", "gradients", "error", "message"),
    [
        ([1, 10], np.ones((2, DIM), np.float32), IdOutOfRangeError, "'e' has 10 rows.*found id 10"),
        ([1, -1], np.ones((2, DIM), np.float32), IdOutOfRangeError, "'e' has 10 rows.*found id -1"),
        ([1.0], np.ones((1, DIM), np.float32), InvalidArrayError, "'e': expected integers"),
        ([1], np.ones((1, DIM)), InvalidArrayError, "'e': expected dtype float32, found float64"),
        (
            [1],
            np.ones((1, 3), np.float32),
            InvalidArrayError,
            r"'e': expected shape \(1, 2\).*found \(1, 3\)",
        ),
        ([1, 2], np.ones(DIM, np.float32), InvalidArrayError, r"\(2, 2\) for ids of shape \(2,\)"),
    ],
)
def test_bad_push_is_refused_before_anything_is_sent(
    ids: Any, gradients: np.ndarray, error: type[Exception], message: str
) -> None:
    transport = InProcess(3)
    e = embedding(optimizer=SGD(), transport=transport)
    transport.carried.clear()
    with pytest.raises(error, match=message):
        e.push(ids, gradients)
    assert not transport.carried


@KINDS
@SHARDS
def test_ids_that_are_repeated_often_are_asked_for_once(rows: int | None, shards: int) -> None:
    transport = InProcess(shards)
    e = embedding(rows, shards, transport=transport)
    ids = np.random.default_rng(0).integers(0, ROWS, (40, 5))
    transport.carried.clear()
    found = e.lookup(ids)
    asked = np.concatenate(asked_ids(transport))
    assert sorted(asked.tolist()) == list(range(ROWS))
    np.testing.assert_array_equal(found, e.lookup(range(ROWS))[ids])
    found[0, 0] = 9
    assert not (e.lookup(ids) == 9).any()


@KINDS
@SHARDS
def test_ids_are_pushed_once_with_the_sum_of_their_gradients(rows: int | None, shards: int) -> None:
    transport = InProcess(shards)
    e = embedding(rows, shards, SGD(1.0), transport)
    before = e.lookup(range(ROWS))
    ids = np.random.default_rng(0).integers(0, ROWS, (40, 5))
    transport.carried.clear()
    e.push(ids, np.ones((40, 5, DIM), np.float32))
    operations = [request.operation for request in transport.carried]
    whole = [each.parts.values() for each in operations if isinstance(each, CommitParts)]
    parts = [*chain(*whole), *(e.part for e in operations if isinstance(e, PreparePart))]
    writes = [write.operation for part in parts for write in part.writes]
    pushed = np.concatenate([write.ids for write in writes if isinstance(write, PushRows)])
    assert sorted(pushed.tolist()) == list(range(ROWS))
    counts = np.bincount(ids.ravel(), minlength=ROWS)
    np.testing.assert_allclose(before - e.lookup(range(ROWS)), counts[:, None] * [1, 1], rtol=1e-5)


def test_lookup_of_an_id_outside_the_rows_is_refused() -> None:
    with pytest.raises(IdOutOfRangeError, match="'e' has 10 rows"):
        embedding().lookup([[0, 10]])


@KINDS
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 3)])
def test_embedding_states_load_onto_any_number_of_shards(
    rows: int | None, before: int, after: int
) -> None:
    gradient = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)
    saved, restored = (embedding(rows, n, Adagrad()) for n in (before, after))
    saved.push([0, 5, 9], gradient)
    restored._shards.load_states(saved._shards.shard_states())
    for e in (saved, restored):
        e.push([0, 5, 9], gradient)
    np.testing.assert_array_equal(restored.lookup(range(ROWS)), saved.lookup(range(ROWS)))


def test_unpickled_handles_use_the_transport_of_their_process(process_client: InProcess) -> None:
    v = variable(np.zeros(4, np.float32), transport=process_client)
    e = embedding(optimizer=SGD(1.0), transport=process_client)
    v2, e2 = cloudpickle.loads(cloudpickle.dumps((v, e)))
    v2.assign([1, 2, 3, 4])
    e2.push([3], np.full((1, DIM), 5, np.float32))
    assert v.read().tolist() == [1, 2, 3, 4]
    assert (e.lookup(3) < -4).all()
    assert (v2.name, v2.shape, v2.dtype, v2.optimizer) == ("v", (4,), np.float32, None)
    assert (e2.name, e2.dim, e2.rows, e2.dtype) == ("e", DIM, ROWS, "f4")
    assert e2.optimizer is not None
    assert e2.optimizer.current() == SGD(1.0)


def test_unpickled_handle_where_no_transport_is_says_so() -> None:
    v = cloudpickle.loads(cloudpickle.dumps(variable([1.0])))
    with pytest.raises(ConfigurationError, match="workers of its cluster"):
        v.read()
