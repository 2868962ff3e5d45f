"""Tests of how parameters are split over servers."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.server.tables.sharding import (
    FixedShards,
    MaxSize,
    MinSize,
    Owner,
    as_items,
    row_ranges,
    shard_of_ids,
)
from psnb.errors import ConfigurationError

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "expected"), [((10,), 3), ((3, 2), 3), ((2, 9), 2), ((1,), 1), ((0, 4), 1), ((), 1)]
)
def test_fixed_shards_are_no_more_than_rows(shape: tuple[int, ...], expected: int) -> None:
    assert FixedShards(3)(shape, FLOAT) == expected


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", None])
def test_number_of_shards_below_one_or_no_integer_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="shards must be 1 or more"):
        FixedShards(bad)


@pytest.mark.parametrize(
    ("partitioner", "shape", "expected"),
    [  # the first two of each: TensorFlow's own examples
        (MinSize(4, max_shards=2), (6, 1), 2),
        (MinSize(4, max_shards=10), (6, 1), 6),
        (MinSize(4000, max_shards=10), (2500, 1), 3),
        (MinSize(), (1000, 1000), 1),
        (MinSize(4, max_shards=10), (), 1),
        (MinSize(4, max_shards=10), (0, 4), 1),
        (MaxSize(4), (6, 1), 6),
        (MaxSize(4, max_shards=2), (6, 1), 2),
        (MaxSize(1024), (6, 1), 1),
        (MaxSize(10), (6, 1), 3),
        (MaxSize(1), (6, 100), 6),
        (MaxSize(1), (), 1),
        (MaxSize(1), (0, 4), 1),
        (MaxSize(1), (4, 0), 1),
    ],
)
def test_shards_by_size_are_as_many_as_tensorflow_makes(
    partitioner: MinSize | MaxSize, shape: tuple[int, ...], expected: int
) -> None:
    assert partitioner(shape, FLOAT) == expected


@given(rows=st.integers(1, 200), columns=st.integers(1, 9), most=st.integers(1, 500))
def test_shards_of_a_maximum_size_keep_it_where_a_row_does(
    rows: int, columns: int, most: int
) -> None:
    shards = MaxSize(most)((rows, columns), FLOAT)
    largest = max(stop - start for start, stop in row_ranges(rows, shards))
    assert largest == 1 or largest * columns * 4 <= most


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2"])
def test_sizes_below_one_or_no_integers_are_refused(bad: Any) -> None:
    for make in (MinSize, MaxSize):
        with pytest.raises(ConfigurationError, match="_shard_bytes must be 1 or more"):
            make(bad)
        with pytest.raises(ConfigurationError, match="max_shards must be 1 or more"):
            make(1, bad)


@given(shards=st.integers(1, 20), more=st.integers(0, 100))
def test_row_ranges_cover_all_rows_in_even_runs(shards: int, more: int) -> None:
    rows = shards + more
    ranges = row_ranges(rows, shards)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == rows
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    sizes = [stop - start for start, stop in ranges]
    assert len(sizes) == shards
    assert max(sizes) - min(sizes) <= 1


def test_fixed_ids_are_dealt_out_in_turn() -> None:
    owners = shard_of_ids(np.arange(6, dtype=np.uint64), 3, growing=False)
    assert owners.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("shards", [2, 3, 8])
@pytest.mark.parametrize("shift", [0, 32, 48])
def test_growing_ids_are_spread_evenly_whatever_their_pattern(shards: int, shift: int) -> None:
    ids = np.arange(20_000, dtype=np.uint64) << np.uint64(shift)
    counts = np.bincount(shard_of_ids(np.unique(ids), shards, growing=True), minlength=shards)
    expected = counts.sum() / shards
    assert abs(counts - expected).max() < 5 * expected**0.5


def test_growing_id_belongs_to_the_same_shard_in_any_company() -> None:
    ids = np.array([0, 5, 2**63, 2**64 - 1], np.uint64)
    alone = [int(shard_of_ids(ids[i : i + 1], 3, growing=True)[0]) for i in range(4)]
    assert shard_of_ids(ids, 3, growing=True).tolist() == alone


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_each_shard_takes_its_own_ids(shards: int, growing: bool) -> None:
    ids = np.random.default_rng(0).integers(0, 2**64, 100, np.uint64)
    owners = shard_of_ids(ids, shards, growing=growing)
    for number in range(shards):
        taken = Owner(number, shards, growing).takes(ids)
        assert taken.tolist() == np.flatnonzero(owners == number).tolist()


def test_rows_are_copied_as_items() -> None:
    rows, out = np.arange(12.0).reshape(4, 3), np.zeros((6, 3))
    as_items(out)[[5, 0]] = as_items(rows[::2])  # not contiguous
    assert out.tolist() == [[6, 7, 8], *[[0, 0, 0]] * 4, [0, 1, 2]]


@pytest.mark.parametrize("growing", [True, False])
def test_owners_of_no_ids_are_none(growing: bool) -> None:
    owners = shard_of_ids(np.empty(0, np.uint64), 3, growing=growing)
    assert (owners.shape, owners.dtype) == ((0,), np.int64)
