"""Tests of arrays that rows are added to."""

import numpy as np
import pytest

from psnb._src.server.disk import DiskSpace
from psnb._src.server.tables import growing_array
from psnb._src.server.tables.growing_array import GrowingArray

COLUMNS = 16

STORAGE = pytest.mark.parametrize("disk", [None, DiskSpace()], ids=["memory", "disk"])


def made(most: int | None = None, disk: DiskSpace | None = None) -> GrowingArray:
    return GrowingArray(COLUMNS, np.dtype("f4"), most, disk)


def fill(array: GrowingArray, count: int) -> None:
    """Add rows, each with its own number in it."""
    start = len(array.rows)
    array.grow(count)
    array.rows[start:] = np.arange(start, count)[:, None]


def is_filled(array: GrowingArray, count: int) -> bool:
    return bool((array.rows == np.arange(count, dtype="f4")[:, None]).all()) and (
        array.rows.shape == (count, COLUMNS)
    )


@STORAGE
@pytest.mark.parametrize("most", [None, 300_000])
def test_rows_stay_as_they_are_when_others_are_added(
    most: int | None, disk: DiskSpace | None
) -> None:
    array = made(most, disk)
    for count in (0, 1, 2, 10, 1000, 1000, 70_000, 200_000, 300_000):
        fill(array, count)
        assert is_filled(array, count)


def test_rows_start_at_cache_lines() -> None:
    array = made()
    for count in (1, 1000, 200_000):
        fill(array, count)
        assert array.rows.ctypes.data % 64 == 0
        assert array.rows.flags.c_contiguous


def test_a_large_array_stays_where_it_is() -> None:
    array = made()
    fill(array, 100_000)
    address = array.rows.ctypes.data
    fill(array, 400_000)
    assert array.rows.ctypes.data == address


def test_an_array_of_known_size_stays_where_it_is() -> None:
    array = made(5000)
    fill(array, 1)
    address = array.rows.ctypes.data
    fill(array, 5000)
    assert array.rows.ctypes.data == address


def test_it_grows_by_copying_where_addresses_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_array, "_memory", lambda: 1 << 60)  # more than there are addresses
    array = made()
    for count in (100_000, 150_000, 240_000):
        fill(array, count)
        assert is_filled(array, count)


@STORAGE
@pytest.mark.parametrize("memory", [True, False])
def test_the_rows_that_are_kept_move_up(
    memory: bool, disk: DiskSpace | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = made(disk=disk)
    fill(array, 1000)
    which = np.arange(1000) % 3 == 1
    expected = array.rows[which].copy()
    if not memory:
        monkeypatch.setattr(growing_array, "lasting", no_memory)
    array.keep(which, 600)
    np.testing.assert_array_equal(array.rows, expected)
    assert len(array.whole) >= 600
    array.grow(600)
    np.testing.assert_array_equal(array.rows[: len(expected)], expected)
    array.rows[len(expected) :] = 1  # there is a place for them


def test_room_that_is_reserved_is_there_later(monkeypatch: pytest.MonkeyPatch) -> None:
    array = made()
    fill(array, 10)
    array.reserve(5000)
    assert is_filled(array, 10)
    monkeypatch.setattr(growing_array, "lasting", no_memory)
    fill(array, 5000)
    assert is_filled(array, 5000)
    with pytest.raises(MemoryError):
        array.grow(10_000_000)
    assert is_filled(array, 5000)


def no_memory(*_: object) -> np.ndarray:
    raise MemoryError
