"""What a process may still take, by limits of a test."""

from __future__ import annotations

from typing import Any

import pytest

from psnb._src.utils.process_memory.limits import MemoryUse
from psnb._src.utils.process_memory.room import LEAST_KEPT, MOST_KEPT, MemoryRoom, kept

MB = 1 << 20
KEPT = LEAST_KEPT


class Process:
    """A process, and its limits.

    Attributes
    ----------
    now, used, promised, freed : int
        Seconds; bytes that it has, those that it will write, and those that a trim gives back.
    measured, trims : int
        How often.
    """

    def __init__(self, limit: int = 200 * MB, *others: MemoryUse) -> None:
        self.now = self.used = self.promised = self.freed = self.measured = self.trims = 0
        self._limit, self._others = limit, others
        self.room = MemoryRoom(self._trim, lambda: self.now)
        limits: Any = self
        self.room.watch(limits, lambda: self.promised)

    def measure(self) -> list[MemoryUse]:
        self.measured += 1
        left = max(0, self._limit - self.used)
        return [MemoryUse(self.used, left, self._limit, "of this test"), *self._others]

    def _trim(self) -> None:
        self.trims += 1
        self.used -= self.freed

    def may(self, nbytes: int, *, lasts: bool = True) -> bool:
        return self.room.lacks(nbytes, lasts=lasts) is None


def test_a_process_that_is_not_watched_may_take_anything() -> None:
    assert MemoryRoom().lacks(1 << 60, lasts=True) is None
    process = Process()
    process.room.end()
    assert process.may(1 << 60)
    assert process.room.use() is None


def test_it_is_watched_as_long_as_one_wants_it() -> None:
    process = Process()
    process.room.watch(process, int)  # type: ignore[arg-type]
    process.room.end()
    assert not process.may(1 << 60)


def test_some_is_kept_of_what_is_left() -> None:
    process = Process()
    assert process.may(200 * MB - KEPT)
    process = Process()
    assert not process.may(200 * MB - KEPT + 1)


@pytest.mark.parametrize(
    ("limit", "expected"), [(100 * MB, LEAST_KEPT), (1 << 30, 64 * MB), (1 << 40, MOST_KEPT)]
)
def test_a_sixteenth_is_kept_within_bounds(limit: int, expected: int) -> None:
    assert kept(limit) == expected


def test_what_comes_and_goes_may_have_half_of_what_is_kept() -> None:
    for nbytes, allowed in ((KEPT // 2, True), (KEPT // 2 + 1, False)):
        process = Process()
        process.used = 200 * MB - KEPT
        assert process.may(nbytes, lasts=False) is allowed
        assert not process.may(1)


def test_what_is_small_and_passes_is_not_asked_for() -> None:
    process = Process()
    process.used = 200 * MB
    assert process.may(MB - 1, lasts=False)
    assert not process.may(MB, lasts=False)


def test_what_makes_room_may_have_it_for_a_moment() -> None:
    process = Process()
    process.used = 200 * MB - KEPT
    with process.room.for_a_moment():
        assert process.may(2 * MB)
    assert not process.may(2 * MB)


def test_what_is_promised_is_not_left() -> None:
    process = Process()
    process.promised = 100 * MB
    assert not process.may(200 * MB - KEPT - 100 * MB + 1)
    assert process.may(200 * MB - KEPT - 100 * MB)


def test_it_is_not_measured_for_each_piece() -> None:
    process = Process(2 << 30)
    for _ in range(100):
        assert process.may(MB)
        process.used += MB
    assert process.measured <= 2


def test_all_that_is_taken_between_two_measurements_counts() -> None:
    process, taken = Process(), 0
    while process.may(MB):
        taken += MB
        process.used = taken
    assert taken == 200 * MB - KEPT


def test_the_heap_gives_back_before_anything_is_refused_once_a_second() -> None:
    process = Process()
    process.used, process.freed = 200 * MB, 100 * MB
    assert process.may(10 * MB)
    process.used = 200 * MB
    assert not process.may(10 * MB)
    assert process.trims == 1
    process.now += 1
    assert process.may(10 * MB)
    assert process.trims == 2


def test_the_limit_that_is_nearest_is_named() -> None:
    other = MemoryUse(1, 50 * MB, 100 * MB, "of another")
    far = MemoryUse(1, 60 * MB, 100 * MB, "of addresses", kills=False)
    process = Process(200 * MB, other, far)
    assert process.room.lacks(40 * MB, lasts=True) == other
    assert process.room.use() == other
    assert process.may(10 * MB)


def test_limits_that_the_kernel_refuses_at_refuse_nothing_here_but_are_shown() -> None:
    addresses = MemoryUse(99 * MB, MB, 100 * MB, "of addresses", kills=False)
    process = Process(200 * MB, addresses)
    assert process.may(100 * MB)
    assert process.room.use() == addresses


def test_the_use_is_measured_once_a_second() -> None:
    process = Process()
    for _ in range(5):
        process.room.use()
    assert process.measured == 1
    process.now, process.used = 1, 7
    use = process.room.use()
    assert use is not None
    assert use.used == 7


def test_what_cannot_be_measured_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()

    def fails() -> list[MemoryUse]:
        raise OSError("too many open files")

    monkeypatch.setattr(process, "measure", fails)
    assert process.may(1 << 60)
