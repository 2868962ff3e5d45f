"""Tests of arrays that rows are added to."""

import numpy as np
import pytest

from psnb._src.server import memory
from psnb._src.server.disk import DiskSpace
from psnb._src.server.tables import growing_array
from psnb._src.server.tables.growing_array import STEP, GrowingArray, promised
from tests.utils.process_memory.little import Little

COLUMNS = 16
ROW = 4 * COLUMNS

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
        monkeypatch.setattr(growing_array, "addresses", no_memory)
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
    monkeypatch.setattr(growing_array, "addresses", no_memory)
    fill(array, 5000)
    assert is_filled(array, 5000)
    with pytest.raises(MemoryError):
        array.grow(10_000_000)
    assert is_filled(array, 5000)


@pytest.mark.parametrize("scarce", [False, True], ids=["reserved addresses", "copied to grow"])
def test_memory_is_promised_before_it_is_written_and_refused_before_it_is_short(
    scarce: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scarce:
        monkeypatch.setattr(growing_array, "_memory", lambda: 0)
    array, little = made(), Little(10 * STEP)
    monkeypatch.setattr(memory, "room", little)
    fill(array, count := 2 * STEP // ROW)
    with pytest.raises(MemoryError, match=r"of the 100 bytes at which a test ends .* 10 are left"):
        fill(array, 12 * STEP // ROW)
    assert is_filled(array, count)
    fill(array, 3 * STEP // ROW)
    assert is_filled(array, 3 * STEP // ROW)
    assert little.most >= 0


def test_what_is_promised_and_not_written_is_known() -> None:
    before, array = promised(), made()
    array.reserve(10 * STEP // ROW)
    assert promised() - before == 10 * STEP
    fill(array, 4 * STEP // ROW)
    assert promised() - before == 6 * STEP
    array.give_back(5 * STEP // ROW)
    assert promised() - before == STEP
    array.clear()  # the system has given these pages
    assert promised() - before == STEP
    array.give_back(0)
    assert (array.room, promised()) == (4 * STEP // ROW, before)
    del array
    assert promised() == before


def test_rows_that_are_kept_in_other_memory_leave_no_promise() -> None:
    before, array = promised(), made()
    fill(array, 4 * STEP // ROW)
    array.keep(np.arange(len(array.rows)) % 2 == 1, 3 * STEP // ROW)
    assert (array.room, promised() - before) == (3 * STEP // ROW, STEP)


def no_memory(*_: object) -> np.ndarray:
    raise MemoryError
