"""Tests of the compiled loops: the hash map, rows, numbers that are not finite."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from psnb._src.server import hashing, kernels
from psnb._src.server.hashing import hash_ids

SLOTS = 1 << 14
IDS = SLOTS * 2 // 3
"""As full as `GrowingRows` lets a map become."""

ALL = np.empty(0, np.bool_)

PATTERNS: dict[str, Callable[[], np.ndarray]] = {
    "sequential": lambda: np.arange(IDS, dtype=np.uint64),
    "multiples of 2**32": lambda: np.arange(IDS, dtype=np.uint64) << np.uint64(32),
    "multiples of the slots": lambda: np.arange(IDS, dtype=np.uint64) * np.uint64(SLOTS),
    "from the top": lambda: ~np.arange(IDS, dtype=np.uint64),
    "random": lambda: np.unique(np.random.default_rng(0).integers(0, 1 << 64, IDS, np.uint64)),
}


def inserted(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keys and rows of a map with the ids, and the rows that were answered."""
    keys, rows = np.zeros(SLOTS, np.uint64), np.full(SLOTS, hashing.EMPTY)
    out, distinct = np.empty(ids.size, np.int64), np.unique(ids).size
    by_row = np.empty(IDS, np.uint64)
    done = hashing.find_or_add(keys, rows, kernels.read_only(ids), ALL, 1, 0, IDS, out, by_row)
    assert done == (ids.size, distinct, IDS - distinct)
    return keys, rows, out


@pytest.mark.parametrize("pattern", PATTERNS)
def test_new_ids_get_the_next_rows_in_order(pattern: str) -> None:
    ids = PATTERNS[pattern]()
    np.testing.assert_array_equal(inserted(ids)[2], np.arange(ids.size))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_known_ids_keep_their_rows(pattern: str) -> None:
    ids = PATTERNS[pattern]()
    keys, rows, _ = inserted(ids)
    again = np.empty(ids.size, np.int64)
    hashing.find(keys, rows, kernels.read_only(ids[::-1].copy()), again)
    np.testing.assert_array_equal(again[::-1], np.arange(ids.size))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_probes_stay_short_whatever_the_ids(pattern: str) -> None:
    keys, rows, _ = inserted(PATTERNS[pattern]())
    used = np.flatnonzero(rows != hashing.EMPTY)
    home = np.empty(used.size, np.uint64)
    hash_ids(keys[used], home)
    home = ((home & np.uint64(0xFFFFFFFF)) * np.uint64(SLOTS)) >> np.uint64(32)
    distance = (used - home.astype(np.int64)) % SLOTS
    assert distance.mean() < 2  # 1 is expected of a good hash at this load


def test_duplicates_within_one_batch_share_a_row() -> None:
    ids = np.array([7, 9, 7, 7, 0, 9], np.uint64)
    np.testing.assert_array_equal(inserted(ids)[2], [0, 1, 0, 0, 2, 1])


@pytest.mark.parametrize(("free", "room"), [(40, 90), (90, 40)])
def test_a_full_map_stops_and_goes_on_in_a_larger_one(free: int, room: int) -> None:
    ids = kernels.read_only(PATTERNS["random"]()[:100])
    small, large = (
        (np.zeros(slots, np.uint64), np.full(slots, hashing.EMPTY)) for slots in (61, 203)
    )
    out, by_row = np.empty(100, np.int64), np.zeros(100, np.uint64)
    done = hashing.find_or_add(*small, ids, ALL, 1, 0, free, out, by_row[:room])
    assert done == (40, 40, free - 40)
    hashing.move(*small, *large)
    assert hashing.find_or_add(*large, ids, ALL, 1, 40, 90, out, by_row) == (100, 100, 30)
    np.testing.assert_array_equal(out, np.arange(100))
    np.testing.assert_array_equal(by_row, ids)
    hashing.find(*large, ids, out)
    np.testing.assert_array_equal(out, np.arange(100))


def test_ids_that_may_not_have_a_row_are_left_out() -> None:
    keys, rows = np.zeros(8, np.uint64), np.full(8, hashing.EMPTY)
    ids, out = kernels.read_only(np.array([3, 4, 3], np.uint64)), np.empty(3, np.int64)
    may, by_row = np.array([True, False, True]), np.empty(8, np.uint64)
    assert hashing.find_or_add(keys, rows, ids, may, 1, 0, 5, out, by_row) == (3, 1, 4)
    assert out.tolist() == [0, -1, 0]
    assert hashing.find(keys, rows, ids, out) == 1


@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_that_are_taken_back_leave_the_map_as_it_was(pattern: str) -> None:
    ids = kernels.read_only(PATTERNS[pattern]())
    before, _ = np.split(ids, [IDS // 2])
    keys, rows = np.zeros(SLOTS, np.uint64), np.full(SLOTS, hashing.EMPTY)
    out, by_row = np.empty(ids.size, np.int64), np.empty(IDS, np.uint64)
    hashing.find_or_add(keys, rows, before, ALL, 1, 0, IDS, out, by_row)
    was = rows.copy()
    hashing.find_or_add(keys, rows, ids, ALL, 1, before.size, IDS - before.size, out, by_row)
    hashing.take_back(keys, rows, kernels.read_only(by_row[before.size : ids.size]), hashing.EMPTY)
    np.testing.assert_array_equal(rows, was)
    hashing.find(keys, rows, ids, out)
    np.testing.assert_array_equal(out[: before.size], np.arange(before.size))
    assert (out[before.size :] == -1).all()


def test_an_id_has_no_row_before_it_is_sighted_often_enough() -> None:
    keys, rows = np.zeros(8, np.uint64), np.full(8, hashing.EMPTY)
    ids, out = kernels.read_only(np.array([2**64 - 1, 0], np.uint64)), np.empty(2, np.int64)
    for occurrence in range(1, 4):
        hashing.find_or_add(keys, rows, ids, ALL, 3, 0, 5, out, np.empty(2, np.uint64))
        assert out.tolist() == ([0, 1] if occurrence == 3 else [-1, -1])
        found = np.empty(2, np.int64)
        hashing.find(keys, rows, ids, found)
        assert found.tolist() == out.tolist()


def test_id_zero_is_distinguished_from_a_free_slot() -> None:
    keys, rows, out = inserted(np.zeros(1, np.uint64))
    assert out[0] == 0
    assert (rows != hashing.EMPTY).sum() == 1
    assert keys[rows == 0][0] == 0


def test_hash_of_distinct_ids_is_distinct() -> None:
    ids = np.concatenate([make() for make in PATTERNS.values()])
    out = np.empty_like(ids)
    hash_ids(ids, out)
    assert np.unique(out).size == np.unique(ids).size


def take(values: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    place = np.zeros(kernels.PLACE, np.int64)
    place[kernels.VALUES] = kernels.address(values)
    offsets = kernels.read_only(np.array([0, rows.size]))
    kernels.take_rows(np.array([kernels.address(place)]), offsets, rows, out)


@pytest.mark.parametrize("dim", [1, 3, 16, 40, 500])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 200])
def test_rows_are_taken_and_missing_ones_are_zeros(count: int, dtype: str, dim: int) -> None:
    rng = np.random.default_rng(count)
    values, rows = rng.normal(size=(50, dim)).astype(dtype), rng.integers(-1, 50, count)
    out = np.full((count, dim), np.nan, dtype)
    take(values, rows, out)
    np.testing.assert_array_equal(out, np.where(rows[:, None] < 0, 0, values[rows]))


def test_rows_of_an_empty_table_are_missing() -> None:
    out = np.full((3, 2), np.nan)
    take(np.empty((0, 2)), np.full(3, -1), out)
    assert not out.any()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_seen(dtype: str, size: int, bad: float) -> None:
    array = np.full((size, 2), np.finfo(dtype).max, dtype)
    assert kernels.all_finite(array)
    for at in {0, size // 2, size - 1}:
        array[at, 1] = bad
        assert not kernels.all_finite(array)
        array[at, 1] = -0.0


def test_no_number_at_all_is_finite() -> None:
    assert kernels.all_finite(np.empty((0, 3), np.float32))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(0,), (1,), (1000, 7)])
def test_norm_is_the_root_of_the_sum_of_squares(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    expected = np.linalg.norm(array.astype(np.float64).reshape(-1))
    assert kernels.norm(array) == pytest.approx(expected, rel=1e-12)


def test_norm_does_not_overflow_the_dtype() -> None:
    assert kernels.norm(np.full(4, 1e38, np.float32)) == pytest.approx(2e38)


def test_no_row_is_given_that_the_hash_map_cannot_hold(tmp_path: Path) -> None:
    most = 2**31
    # A file with a hole: only what is written takes room.
    by_row = np.asarray(np.memmap(tmp_path / "ids", np.uint64, "w+", shape=most + 8))
    keys, rows = np.zeros(64, np.uint64), np.full(64, hashing.EMPTY, np.int32)
    ids, out = np.array([11, 22], np.uint64), np.zeros(2, np.int64)
    arguments = kernels.read_only(ids), np.empty(0, np.bool_), 1, most - 1, 40, out, by_row
    assert hashing.find_or_add(keys, rows, *arguments) == (1, most, 39)
    assert hashing.find(keys, rows, kernels.read_only(ids), out) == 1
    assert out.tolist() == [most - 1, -1]
