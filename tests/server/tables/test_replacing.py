"""The loops that give new ids the rows of others, and delete rows, beside a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psnb._src.server import hashing
from psnb._src.server.tables.eviction import replacing

NO, ALL_MAY = np.empty(0, np.uint32), np.empty(0, np.bool_)


class Map:
    """A hash map of few slots, so that many ids want the same one, and what it must have."""

    def __init__(self, bound: int) -> None:
        slots, self.bound = 2 * bound + 1, bound
        self.keys, self.rows = np.zeros(slots, np.uint64), np.full(slots, hashing.EMPTY)
        self.by_row, self.stamps = np.zeros(bound, np.uint64), np.zeros(bound, np.uint32)
        self.count = self.head = self.used = 0
        self.queue = np.empty(0, np.int64)
        self.known: dict[int, int] = {}

    def choose(self, ids: list[int]) -> None:
        """Let these leave next."""
        replacing.touch(np.arange(self.count), self.stamps, np.uint32(1), NO, NO, np.uint32(0))
        self.queue, self.head = self.rows_of(ids), 0
        flagged = replacing.set_flags(self.rows_of(ids), self.stamps, replacing.FLAG)
        assert flagged == len(self.known.keys() & {*ids})

    def rows_of(self, ids: list[int]) -> np.ndarray:
        out = np.empty(len(ids), np.int64)
        hashing.find(self.keys, self.rows, np.array(ids, np.uint64), out)
        return out

    def give(self, ids: list[int]) -> tuple[np.ndarray, int]:
        array, out = np.array(ids, np.uint64), np.empty(len(ids), np.int64)
        done, self.head, count, taken = replacing.choose_rows(
            *(self.keys, self.rows, array, ALL_MAY, 1, self.stamps, self.queue, self.head),
            *(self.count, self.bound, False, out),
        )
        assert done == len(ids)
        self.used += replacing.take_rows_of(
            *(self.keys, self.rows, array, ALL_MAY, 1, self.count, self.by_row, out)
        )
        self.count = count
        self.check()
        return out, taken

    def remove(self, ids: list[int]) -> None:
        gone = np.array(sorted(self.known[each] for each in ids), np.int64)
        count = self.count - gone.size
        movers = np.setdiff1d(np.arange(count, self.count), gone)
        holes = gone[gone < count]
        replacing.delete_rows(self.keys, self.rows, self.by_row, gone, holes, movers)
        self.count, self.used = count, self.used - gone.size
        self.check()

    def check(self) -> None:
        found = self.rows_of([*range(40)])
        self.known = {each: row for each, row in enumerate(found.tolist()) if row >= 0}
        assert sorted(self.known.values()) == list(range(self.count))
        assert {int(self.by_row[row]) for row in self.known.values()} == {*self.known}
        assert self.used == self.count == np.count_nonzero(self.rows != hashing.EMPTY)


STEP = st.lists(st.integers(0, 39), max_size=6, unique=True)


@settings(max_examples=60)
@given(bound=st.integers(6, 12), steps=st.lists(st.tuples(STEP, STEP), max_size=12))
def test_ids_take_the_rows_of_those_that_leave_next(
    bound: int, steps: list[tuple[list[int], list[int]]]
) -> None:
    map_ = Map(bound)
    for ids, gone in steps:
        before = [*map_.known]
        leave = [each for each in before if each not in ids] + before
        map_.choose(leave)
        out, _ = map_.give(ids)
        lost = [each for each in leave if each not in ids]
        kept = {*before, *ids} - {*lost[: max(0, len({*before, *ids}) - bound)]}
        assert {*map_.known} == kept
        assert [map_.known[each] for each in ids] == out.tolist()
        rest = [each for each in gone if each in map_.known]
        map_.remove(rest)
        assert {*map_.known} == kept - {*rest}


def test_what_was_used_since_it_was_chosen_stays() -> None:
    map_ = Map(6)
    map_.give([1, 2, 3, 4, 5, 6])
    map_.choose([1, 2, 3])
    out, taken = map_.give([2])
    assert taken == 1
    _, taken = map_.give([7, 8])
    assert (taken, {*map_.known}) == (2, {2, 4, 5, 6, 7, 8})
    assert map_.known[2] == out[0]


def test_with_nothing_left_to_leave_it_ends_early() -> None:
    map_ = Map(6)
    map_.give([1, 2, 3, 4, 5, 6])
    map_.choose([1])
    out = np.empty(2, np.int64)
    ids = np.array([7, 8], np.uint64)
    done, *_ = replacing.choose_rows(
        *(map_.keys, map_.rows, ids, ALL_MAY, 1, map_.stamps, map_.queue, 0, 6, 6, False, out)
    )
    assert done == 1


def test_uses_are_counted_up_to_the_most_there_are() -> None:
    uses, stamps = np.array([0, 2**32 - 2], np.uint32), np.zeros(2, np.uint32)
    rows = np.array([0, 1, -1, 1], np.int64)
    replacing.touch(rows, stamps, np.uint32(5), uses, stamps[:0], np.uint32(0))
    assert (uses.tolist(), stamps.tolist()) == ([1, 2**32 - 1], [5, 5])


def test_lowered_stamps_keep_their_flags() -> None:
    stamps = np.array([3, 9 | 1 << 31, 20], np.uint32)
    replacing.lower_stamps(stamps, np.uint32(9))
    assert stamps.tolist() == [0, 1 << 31, 11]


def test_flags_are_taken_away_from_rows_that_have_one() -> None:
    map_ = Map(6)
    map_.give([1, 2, 3])
    map_.choose([1, 2])
    assert replacing.set_flags(map_.rows_of([1, 3, 9]), map_.stamps, np.uint32(0)) == 1
    assert np.count_nonzero(map_.stamps & replacing.FLAG) == 1
