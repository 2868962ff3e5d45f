"""Tests of the two ways from ids to rows: what both promise, then each one's own."""

from collections.abc import Callable

import numpy as np
import pytest

from psnb._src.server import memory
from psnb._src.server.tables.admission import CountFilter
from psnb._src.server.tables.row_index import FixedRowIndex, GrowingRowIndex, RowIndex
from psnb.errors import InternalError

ROWS = 5000
KINDS: dict[str, Callable[[], RowIndex]] = {
    "fixed": lambda: FixedRowIndex(ROWS, index=0, shards=1),
    "growing": GrowingRowIndex,
}


@pytest.fixture(params=KINDS)
def rows(request: pytest.FixtureRequest) -> RowIndex:
    return KINDS[request.param]()


def located(rows: RowIndex, ids: np.ndarray) -> np.ndarray:
    return rows.find(ids) if isinstance(rows, FixedRowIndex) else rows.locate(ids)


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, ROWS, 8000).astype(np.uint64)


def test_an_id_keeps_its_row(rows: RowIndex, ids: np.ndarray) -> None:
    first = located(rows, ids[:50])
    located(rows, ids)
    np.testing.assert_array_equal(located(rows, ids[:50]), first)


def test_distinct_ids_have_distinct_rows(rows: RowIndex, ids: np.ndarray) -> None:
    distinct = np.unique(ids)
    assert np.unique(located(rows, distinct)).size == distinct.size


def test_rows_are_dense_below_the_count(rows: RowIndex, ids: np.ndarray) -> None:
    of_ids = located(rows, ids)
    assert of_ids.dtype == np.int64
    assert of_ids.min() >= 0
    assert of_ids.max() < rows.count


def test_ids_are_listed_by_row(rows: RowIndex, ids: np.ndarray) -> None:
    of_ids = located(rows, ids)
    listed = rows.ids()
    assert listed.dtype == np.uint64
    assert listed.size == rows.count
    np.testing.assert_array_equal(listed[of_ids], ids)


def test_no_ids_are_no_rows(rows: RowIndex) -> None:
    before = rows.count
    assert located(rows, np.empty(0, np.uint64)).shape == (0,)
    assert rows.count == before


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [1, 2, 10, 21])
def test_fixed_shards_hold_every_id_exactly_once(total: int, shards: int) -> None:
    held = [FixedRowIndex(total, index, shards) for index in range(shards)]
    ids = np.concatenate([shard.ids() for shard in held])
    assert sorted(ids.tolist()) == list(range(total))
    assert [shard.count for shard in held] == [shard.ids().size for shard in held]


def test_fixed_shard_finds_its_own_ids() -> None:
    shard = FixedRowIndex(100, index=2, shards=3)
    np.testing.assert_array_equal(shard.find(shard.ids()), np.arange(shard.count))


def test_growing_starts_empty() -> None:
    assert GrowingRowIndex().count == 0
    assert GrowingRowIndex().ids().size == 0


def test_growing_takes_rows_in_the_order_of_first_sight() -> None:
    rows = GrowingRowIndex()
    ids = np.array([2**64 - 1, 0, 5, 0, 2**63], np.uint64)
    assert rows.locate(ids).tolist() == [0, 1, 2, 1, 3]
    assert rows.ids().tolist() == [2**64 - 1, 0, 5, 2**63]


def test_growing_keeps_rows_while_it_grows_step_by_step() -> None:
    rows = GrowingRowIndex()
    before = rows.nbytes()
    ids = np.random.default_rng(1).permutation(20_000).astype(np.uint64) << np.uint64(40)
    for part in np.split(ids, 40):
        rows.locate(part)
    assert rows.nbytes() > before
    np.testing.assert_array_equal(rows.locate(ids), np.arange(ids.size))


def test_growing_takes_a_batch_much_larger_than_itself() -> None:
    rows = GrowingRowIndex()
    ids = np.arange(50_000, dtype=np.uint64)
    np.testing.assert_array_equal(rows.locate(ids), np.arange(ids.size))
    np.testing.assert_array_equal(rows.ids(), ids)


def test_growing_takes_at_most_32_bytes_an_id() -> None:
    rows = GrowingRowIndex()
    ids = np.random.default_rng(0).integers(0, 1 << 64, 50_000, np.uint64)
    for stop in range(1000, ids.size, 1000):
        rows.locate(ids[:stop])
        assert rows.nbytes() <= 32.1 * rows.count


def test_known_ids_make_growing_no_larger() -> None:
    rows = GrowingRowIndex()
    ids = np.arange(5000, dtype=np.uint64)
    rows.locate(ids)
    before = rows.nbytes()
    rows.locate(np.tile(ids, 5))
    assert rows.nbytes() == before


def test_keeping_some_rows_frees_the_others() -> None:
    rows = GrowingRowIndex()
    ids = np.arange(5000, dtype=np.uint64) << np.uint64(50)
    rows.locate(ids)
    before = rows.nbytes()
    kept = np.arange(ids.size) % 10 == 3
    rows = rows.kept(kept, forget_waiting=False)
    assert rows.count == 500
    assert rows.nbytes() < before / 3
    np.testing.assert_array_equal(rows.ids(), ids[kept])
    assert rows.find(ids[:5]).tolist() == [-1, -1, -1, 0, -1]


def test_an_id_is_sighted_once_a_call() -> None:
    rows = GrowingRowIndex(CountFilter(2))
    ids = np.array([5, 5, 5], np.uint64)
    assert rows.locate(ids).tolist() == [-1] * 3
    assert (rows.count, rows.waiting) == (0, 1)
    assert rows.locate(ids).tolist() == [0] * 3
    assert (rows.count, rows.waiting) == (1, 0)


def test_looking_without_counting_is_no_sighting() -> None:
    rows = GrowingRowIndex(CountFilter(2))
    for _ in range(3):
        assert rows.give(rows.prepare(np.array([5], np.uint64), counting=False)).tolist() == [-1]
    assert rows.waiting == 0


@pytest.mark.parametrize("forget", [True, False])
def test_ids_that_wait_outlive_the_rows_unless_forgotten(forget: bool) -> None:
    rows = GrowingRowIndex(CountFilter(3))
    waiting, ready = np.arange(2, dtype=np.uint64), np.arange(9, 3000, dtype=np.uint64)
    for ids in (ready, ready, ready, waiting, waiting):
        rows.locate(ids)
    rows = rows.kept(np.zeros(rows.count, bool), forget_waiting=forget)
    assert rows.waiting == (0 if forget else 2)
    assert rows.locate(waiting).tolist() == ([-1, -1] if forget else [0, 1])


@pytest.mark.parametrize("frequencies", [1, 2])
def test_rows_that_are_taken_back_are_given_again(frequencies: int) -> None:
    rows = GrowingRowIndex(CountFilter(frequencies))
    ids = np.arange(2000, dtype=np.uint64)
    for _ in range(frequencies):
        rows.locate(ids[:900])
    for _ in range(frequencies):
        rows.locate(ids)
    rows.take_back(900)
    assert rows.count == 900
    assert (rows.find(ids) >= 0).sum() == 900
    np.testing.assert_array_equal(rows.locate(ids), np.arange(2000))
    np.testing.assert_array_equal(rows.ids(), ids)


def test_ids_for_which_there_is_no_room_are_refused() -> None:
    rows = GrowingRowIndex()
    with pytest.raises(InternalError, match="room for 0 of 9 ids"):
        rows.give(rows.prepare(np.arange(9, dtype=np.uint64)))
    assert rows.count == 0


def test_room_that_is_reserved_is_there_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = GrowingRowIndex()
    occurrence = rows.prepare(np.arange(5000, dtype=np.uint64))
    rows.reserve(5000)
    monkeypatch.setattr(memory, "allocate", None)
    np.testing.assert_array_equal(rows.give(occurrence), np.arange(5000))
