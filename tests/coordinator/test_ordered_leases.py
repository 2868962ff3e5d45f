"""Leases in slots: what a closure takes depends on the dataset, not on who is fast or dies."""

from __future__ import annotations

import json
import random
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.coordinator.scheduling.free_parts import SplitRange
from psnb._src.coordinator.scheduling.leases import Turn
from psnb._src.coordinator.scheduling.ordered_leases import OrderedLeases
from tests.coordinator.queues import take


def lease(
    leases: OrderedLeases, slot: int, closure: int, holder: Hashable = "A"
) -> tuple[int, SplitRange]:
    return leases.lease(holder, turn=Turn(slot, closure)) or pytest.fail("there is something")


def test_a_closure_takes_the_splits_of_its_lane_in_their_order() -> None:
    leases = OrderedLeases(2, 4)
    assert lease(leases, 1, closure=0) == (0, SplitRange(1))
    assert lease(leases, 0, closure=1) == (1, SplitRange(0))
    take(leases, "A", 0, 0, count=1, after=1, ended=True)
    assert lease(leases, 1, closure=0) == (2, SplitRange(3))


def test_it_goes_on_where_the_one_before_it_has_stopped() -> None:
    leases = OrderedLeases(2, 4)
    number, _ = lease(leases, 0, closure=0)
    take(leases, "A", number, 0, count=3, after=3, ended=False)
    leases.end(0, succeeded=True)
    assert lease(leases, 0, closure=1) == (number, SplitRange(0, 3))


def test_another_worker_gets_the_rest_and_the_first_one_cannot_take_any_more() -> None:
    leases = OrderedLeases(2, 4)
    number, _ = lease(leases, 0, closure=0)
    take(leases, "A", number, 0, count=3, after=3, ended=False)
    leases.end(0, succeeded=True)
    assert lease(leases, 0, closure=1, holder="B") == (1, SplitRange(0, 3))
    take(leases, "A", number, 2, count=1, after=4, ended=False)
    assert lease(leases, 0, closure=2) == (2, SplitRange(0, 3))  # anew: A is not where it was


def test_what_a_failed_closure_had_taken_comes_next_in_its_lane() -> None:
    leases = OrderedLeases(2, 4)
    number, _ = lease(leases, 0, closure=0)
    take(leases, "A", number, 0, count=1, after=1, ended=False)
    take(leases, "A", number, 0, count=1, after=2, ended=False)
    leases.end(0, succeeded=False)
    found = []
    for count in (1, 1, None):
        number, part = lease(leases, 0, closure=1)
        found.append(part)
        if count:
            take(leases, "A", number, 1, count, None, ended=False)
    assert found == [SplitRange(0, None, 1), SplitRange(0, 1, 1), SplitRange(0, 2)]


def test_the_rest_of_a_lost_worker_comes_next_in_its_lane() -> None:
    leases = OrderedLeases(2, 4)
    number, _ = lease(leases, 0, closure=0)
    take(leases, "A", number, 0, count=1, after=1, ended=False)
    leases.lose("A")
    assert leases.again("B", 0) == [(1, SplitRange(0, None, 1))]
    assert lease(leases, 0, closure=0, holder="B") == (2, SplitRange(0, 1))


def test_what_a_closure_does_not_take_again_comes_next_in_its_lane() -> None:
    leases = OrderedLeases(2, 4)
    number, _ = lease(leases, 0, closure=0)
    take(leases, "A", number, 0, count=3, after=3, ended=False)
    leases.lose("A")
    ((number, _),) = leases.again("B", 0)
    take(leases, "B", number, 0, count=1, after=1, ended=False)
    leases.end(0, succeeded=True)
    number, part = lease(leases, 0, closure=2, holder="B")
    assert part == SplitRange(0, 1, 2)
    take(leases, "B", number, 2, count=2, after=3, ended=True)
    assert lease(leases, 0, closure=2, holder="B")[1] == SplitRange(0, 3)


def test_only_lanes_with_something_to_read_are_named() -> None:
    leases = OrderedLeases(3, 5)
    assert leases.slots() == [0, 1, 2]
    number, _ = lease(leases, 2, closure=0)
    assert leases.slots() == [0, 1, 2]
    take(leases, "A", number, 0, count=0, after=None, ended=True)
    assert leases.slots() == [0, 1]
    assert leases.lease("A", turn=Turn(2, 0)) is None
    assert OrderedLeases(3, 1).slots() == [0]


def test_a_lane_suits_the_same_worker_as_long_as_the_same_ones_are_there() -> None:
    leases = OrderedLeases(4, 8)
    both = {"b", "a"}
    assert [leases.suits("a", both, slot) for slot in range(4)] == [True, False, True, False]
    assert [leases.suits("b", both, slot) for slot in range(4)] == [False, True, False, True]
    assert all(leases.suits("b", {"b"}, slot) for slot in range(4))


def test_a_lane_suits_who_has_what_comes_next_in_memory() -> None:
    leases = OrderedLeases(2, 4, owners={0: "a", 1: "a", 2: "b", 3: "c"})
    everyone = {"a", "b", "c"}
    assert leases.suits("a", everyone, 1)
    assert not leases.suits("b", everyone, 0)
    number, _ = leases.lease("A", "a", everyone, Turn(0, 0)) or pytest.fail("it is its own")
    take(leases, "A", number, 0, count=1, after=1, ended=True)
    assert leases.suits("b", everyone, 0)
    assert leases.suits("a", {"a", "c"}, 0)  # what b had


def test_a_closure_does_not_go_on_to_what_another_worker_may_have_in_memory() -> None:
    leases = OrderedLeases(1, 2, owners={0: "a", 1: "a"})
    number, _ = leases.lease("A", "a", {"a"}, Turn(0, 7)) or pytest.fail("it is its own")
    take(leases, "A", number, 7, count=1, after=1, ended=True)
    assert leases.lease("A", "a", {"a"}, Turn(0, 7)) is None
    assert leases.lease("A", "a", {"a"}, Turn(0, 8)) == (1, SplitRange(1))


def test_of_a_worker_that_is_there_no_more_than_one_split_is_taken() -> None:
    leases = OrderedLeases(1, 3, owners={0: "b", 1: "b", 2: "b"})
    leases.lease("A", "a", {"a", "b"}, Turn(0, 0))
    assert (leases.owned("A", "a"), leases.owned("B", "b")) == ([0], [1, 2])


def test_closures_without_a_lane_take_what_is_free_and_no_lanes_lease() -> None:
    leases = OrderedLeases(2, 4)
    assert lease(leases, 0, closure=0) == (0, SplitRange(0))
    assert leases.lease("A") == (1, SplitRange(1))
    assert lease(leases, 1, closure=2) == (2, SplitRange(3))


class _Epoch:
    """Closures of an epoch, whose workers are lost, fail and change by chance."""

    def __init__(self, slots: int, sizes: list[int], seed: int) -> None:
        self.slots, self.sizes, self.chance = slots, sizes, random.Random(seed)
        self.leases = OrderedLeases(slots, len(sizes))
        self.number, self.lives = 0, 0
        self.rounds: list[list[list[tuple[int, int]]]] = []

    def run(self, saves: bool, disturbed: bool) -> list[list[list[tuple[int, int]]]]:
        while slots := self.leases.slots():
            closures = [(slots[slot % len(slots)], slot) for slot in range(self.slots)]
            taken: dict[int, list[tuple[int, int]]] = {}
            while closures:  # whichever may begin: of each slot the first
                first = dict(reversed(closures))
                slot = self.chance.choice([*first]) if disturbed else closures[0][0]
                taken[first[slot]] = self.closure(slot, 1 + first[slot] % 3, disturbed)
                closures.remove((slot, first[slot]))
            self.rounds.append([taken[slot] for slot in sorted(taken)])
            if saves:
                state = json.loads(json.dumps(self.leases.state()))
                self.leases = OrderedLeases(self.slots, len(self.sizes), state)
        assert self.leases.progress().over
        assert self.leases.progress().visits == sum(self.sizes)
        return self.rounds

    def closure(self, slot: int, wanted: int, disturbed: bool) -> list[tuple[int, int]]:
        """Take so many elements, in as many attempts as it takes; return them."""
        number, self.number = self.number, self.number + 1
        while True:
            holder = f"life {self.lives} of {self.chance.randint(0, 2)}" if disturbed else "A"
            found = list[tuple[int, int]]()
            for lease, part in self.leases.again(holder, number):
                self.take_part(holder, lease, part, number, found)
            while self.take(holder, Turn(slot, number), wanted, found):
                if disturbed and self.chance.random() < 0.3:
                    break  # in the middle
            else:
                self.leases.end(number, succeeded=True)
                return found
            if self.chance.random() < 0.5:
                self.leases.lose(holder)
                self.lives += 1
            else:
                self.leases.end(number, succeeded=False)

    def take(self, holder: str, turn: Turn, wanted: int, found: list[tuple[int, int]]) -> bool:
        """Take the next element, or find that a part has ended; False if there is no more to do."""
        leased = self.leases.lease(holder, turn=turn) if len(found) < wanted else None
        if leased is None:
            return False
        self.take_part(holder, *leased, turn.closure, found)
        return True

    def take_part(
        self, holder: str, lease: int, part: SplitRange, closure: int, found: list[tuple[int, int]]
    ) -> None:
        at = part.state or 0
        end = self.sizes[part.split] if part.count is None else at + part.count
        count = int(at < end)
        take(self.leases, holder, lease, closure, count, at + count, not count)
        found += [(part.split, at)] * count


@given(st.integers(0, 2**32), st.integers(1, 4), st.lists(st.integers(0, 9), max_size=9))
def test_rounds_are_the_same_whatever_dies_or_fails_and_whenever_it_is_saved(
    seed: int, slots: int, sizes: list[int]
) -> None:
    undisturbed = _Epoch(slots, sizes, 0).run(saves=False, disturbed=False)
    assert _Epoch(slots, sizes, seed).run(saves=True, disturbed=True) == undisturbed


def test_a_slot_is_read_by_a_worker_that_has_the_data_of_what_comes_next() -> None:
    leases = OrderedLeases(2, 6)
    leases.place({0: {"b"}, 1: {"c"}}, dict.fromkeys(range(6), False))
    present = {"a", "b"}
    assert [leases.suits(worker, present, slot=0) for worker in "ab"] == [False, True]
    assert [leases.suits(worker, present, slot=1) for worker in "ab"] == [False, True]  # c is gone
    assert lease(leases, 0, closure=0) == (0, SplitRange(0))  # its order is that of the dataset
    assert leases.needed(4) == [0, 2, 4, 1, 3]
