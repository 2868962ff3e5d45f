from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.block import block_of, objects
from psnb._src.data.nodes import row_store
from psnb._src.data.nodes.row_store import NumberRows, RaggedRows, RowStore
from psnb.data import Dataset, Ragged
from psnb.errors import DatasetError

rows = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=8, max_size=8)


def ragged(lists: list[Any], dtype: Any = np.int64) -> Ragged:
    return Ragged.from_rows([np.array(each, dtype) for each in lists])


@given(st.lists(st.tuples(st.permutations(range(8)), st.integers(1, 8), rows), max_size=8))
def test_rows_are_what_was_put_there_last(puts: list[Any]) -> None:
    store = RaggedRows(ragged([[0]]))
    store.grow(5)
    store.grow(8)
    expected: list[list[int]] = [[] for _ in range(8)]
    for places, count, new in puts:
        store.put(np.array(places[:count]), [ragged(new[:count])])
        for place, row in zip(places[:count], new, strict=False):
            expected[place] = row
        (found,) = store.take(np.array([3, 1, 3]))
        assert list(map(np.ndarray.tolist, found)) == [expected[i] for i in (3, 1, 3)]
    (found,) = store.take(np.arange(8))
    assert list(map(np.ndarray.tolist, found)) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, "S3", object])
def test_rows_of_any_dtype_and_with_more_axes_are_kept(dtype: Any) -> None:
    new = Ragged(np.arange(12).astype(dtype).reshape(6, 2), np.array([0, 4, 4, 6]))
    store = RaggedRows(new)
    store.grow(4)
    store.put(np.array([2, 0, 3]), [new])
    assert store.take(np.array([2, 0, 3])) == [new]


def test_memory_is_bounded_by_what_is_in_use() -> None:
    store = RaggedRows(ragged([[0]]))
    store.grow(2)
    for _ in range(1000):
        store.put(np.array([0, 1]), [ragged([[1] * 10, [2] * 10])])
    assert store._values.size <= 4 * 20


def test_a_stream_whose_rows_change_their_other_axes_is_shuffled() -> None:
    arrays = [np.full((i, 2 if i < 2000 else 3), i % 7) for i in range(0, 2100, 30)]
    found = list(Dataset.from_generator(lambda: iter(arrays)).shuffle(10))
    assert sorted(each.shape for each in found) == [each.shape for each in arrays]
    assert all((each == arrays[len(each) // 30]).all() for each in found)


def put_and_get(*blocks: dict[str, Any]) -> list[Any]:
    """Return the elements that a store holds after blocks were put into it, one by one."""
    store = RowStore(8)
    for block in map(block_of, blocks):
        store.put(block)
    return [store.take(np.array([row])).element(0) for row in range(store.made)]


def test_columns_of_one_dtype_stay_what_they_are() -> None:
    ids = np.arange(6)
    block = {"a": ids, "b": ids / 2, "c": -ids, "d": ids > 2, "e": ids / 3, "f": ids[:, None]}
    store = RowStore(8)
    store.put(block_of(block))
    assert len(store._held) == 4
    found = store.take(np.array([4, 1])).whole()
    for name, column in block.items():
        assert found[name].dtype == column.dtype
        assert (found[name] == column[[4, 1]]).all()
        assert found[name].base is None  # who keeps one column does not keep all


def test_columns_that_are_no_longer_alike_are_taken_apart() -> None:
    first = {"a": np.array([1, 2]), "b": np.array([3, 4])}
    second = {"a": np.array([5]), "b": np.array([[6, 7]])}
    found = put_and_get(first, second)
    rows = [{name: np.array(leaf).tolist() for name, leaf in row.items()} for row in found]
    assert rows == [{"a": 1, "b": 3}, {"a": 2, "b": 4}, {"a": 5, "b": [6, 7]}]


def test_columns_of_another_dtype_are_refused() -> None:
    first = {"a": np.array([1]), "b": np.array([2])}
    for other in ({"a": np.array([1.0]), "b": np.array([2.0])}, {**first, "b": np.array([2.0])}):
        with pytest.raises(DatasetError, match="different dtypes: float64, int64"):
            put_and_get(first, other)


def test_numbers_of_another_byte_order_keep_it() -> None:
    ids, store = np.arange(3, dtype=">i8"), RowStore(8)
    store.put(block_of({"a": ids, "b": ids}))
    for other in (ids[2:], np.array([[7, 8]], ">i8")):  # together, then apart
        found = store.take(store.put(block_of({"a": ids[2:], "b": other}))).whole()["a"]
        assert found.dtype.str == ">i8"
        assert found.tolist() == [2]


def test_scalars_and_arrays_of_another_byte_order_are_of_one_dtype() -> None:
    leaves = [np.array([1], ">i8"), np.array([[2]], ">i8"), np.array([3], ">i8")]
    found = put_and_get(*({"a": leaf} for leaf in leaves))
    assert [row["a"].tolist() for row in found] == [1, [2], 3]


def test_after_a_lack_of_memory_more_is_put(monkeypatch: pytest.MonkeyPatch) -> None:
    block = block_of({"a": np.arange(4), "b": np.arange(4) / 2})
    store, left, grow = RowStore(8), [1], row_store.grow

    def scarce(array: np.ndarray, rows: int) -> None:
        if left.pop() == 0:
            raise MemoryError
        left.append(0)
        grow(array, rows)

    with monkeypatch.context() as patch:
        patch.setattr(row_store, "grow", scarce)
        with pytest.raises(MemoryError):
            store.put(block)
    rows = store.put(block)
    assert store.take(rows[3:]).element(0) == {"a": 3, "b": 1.5}


def test_the_buffer_takes_little_more_than_what_it_holds() -> None:
    block = block_of({"a": np.zeros(1000), "b": np.zeros(1000)})
    store = RowStore(100_000)
    tracemalloc.start()
    for _ in range(100):
        store.put(block)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.2 * 100_000 * 16


def test_leaves_of_another_dtype_are_refused_among_objects_too() -> None:
    arrays = objects([np.ones((2, 2)), np.ones((3, 3))])
    for held, other in (
        (objects(["5"]), np.array([7])),
        (arrays, np.array([7])),
        (arrays, objects([each.astype(int) for each in arrays])),
    ):
        with pytest.raises(DatasetError, match="different dtypes"):
            put_and_get({"a": held}, {"a": other})


def test_scalars_and_arrays_are_taken_together() -> None:
    store = RowStore(8)
    leaves = [1, [2, 3], [[4]]]
    for leaf in leaves:
        store.put(block_of({"a": np.array([leaf])}))
    for places in ([0, 1, 2], [2, 1, 0], [1, 0]):
        found = store.take(np.array(places)).whole()["a"]
        assert [leaf.tolist() for leaf in found] == [leaves[i] for i in places]


@pytest.mark.parametrize("other", [np.array([2**53 + 1]), np.array([True])])
def test_the_order_of_leaves_hides_no_other_dtype(other: np.ndarray) -> None:
    first = {"a": np.array([1.5]), "b": np.array([2])}
    with pytest.raises(DatasetError, match="different dtypes"):
        put_and_get(first, {"b": first["b"], "a": other})
    assert put_and_get(first, dict(reversed(first.items()))) == [{"a": 1.5, "b": 2}] * 2


class _Scarce:
    """NumPy whose n-th call of a function finds no memory."""

    def __init__(self, name: str, left: int) -> None:
        self._name, self._left = name, left

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._left -= 1
            if self._left < 0:
                raise MemoryError
        return getattr(np, name)


@pytest.mark.parametrize(("function", "left"), [("concatenate", 1), ("empty", 0)])
def test_a_lack_of_memory_leaves_rows_as_they_are(
    function: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RaggedRows(ragged([[0]]))
    store.grow(2)
    store.put(np.array([0, 1]), [ragged([[1, 2, 3], [4]])])
    store.put(np.array([0]), [ragged([[5, 6]])])

    def more() -> None:
        store.grow(3)
        store.put(np.array([2]), [ragged([[7] * 9])])

    with monkeypatch.context() as patch:
        patch.setattr(row_store, "np", _Scarce(function, left))
        with pytest.raises(MemoryError):
            more()
    (found,) = store.take(np.array([0, 1]))
    assert list(map(np.ndarray.tolist, found)) == [[5, 6], [4]]
    more()
    (found,) = store.take(np.arange(3))
    assert list(map(np.ndarray.tolist, found)) == [[5, 6], [4], [7] * 9]


def test_a_lack_of_memory_leaves_columns_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store, first = RowStore(8), {"a": np.array([1]), "b": np.array([2])}
    store.put(block_of(first))
    with monkeypatch.context() as patch:
        patch.setattr(NumberRows, "grow", _no_memory)
        with pytest.raises(MemoryError):
            store._as_objects(1)
    assert store.take(np.array([0])).element(0) == {"a": 1, "b": 2}


def _no_memory(*_: Any) -> None:
    raise MemoryError


@pytest.mark.parametrize("allowed", range(5))
def test_no_element_is_lost_nor_twice_for_a_lack_of_memory(
    allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the buffer is filled, and when it is full."""
    lists = ragged([[n] * (n % 3) for n in range(20)])
    source = Dataset.from_tensor_slices({"n": np.arange(20), "lists": lists})
    made = source.filter(lambda each: True).shuffle(6, seed=1)  # not by number
    whole = [int(each["n"]) for each in made]
    left, put = allowed, RaggedRows.put

    def scarce(self: RaggedRows, places: np.ndarray, columns: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise MemoryError
        put(self, places, columns)

    monkeypatch.setattr(RaggedRows, "put", scarce)
    with made.iterator() as iterator:
        found: list[int] = []
        with pytest.raises(MemoryError):
            found.extend(int(each["n"]) for each in iterator)
        with made.iterator(iterator.state()) as again:
            assert [*found, *(each["n"] for each in again)] == whole
        assert [*found, *(each["n"] for each in iterator)] == whole
