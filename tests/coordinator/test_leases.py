"""Leases: every element of a dataset is used once an epoch, whoever dies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from psnb._src.coordinator.scheduling.free_parts import SplitRange
from psnb._src.coordinator.scheduling.leases import HELD_SECONDS, EpochLeases, Progress
from psnb._src.protocol.messages import Taken
from psnb.errors import ConfigurationError, DatasetError
from tests.coordinator.queues import take


def test_splits_are_leased_in_order_and_done_when_their_closures_have_ended() -> None:
    leases = EpochLeases(2)
    assert leases.lease("a") == (0, SplitRange(0))
    take(leases, "a", 0, closure=7, count=3, after={"at": 3}, ended=True)
    assert (leases.progress().done, leases.progress().leased, leases.progress().left) == (0, 1, 1)
    leases.end(7, succeeded=True)
    assert (leases.progress().done, leases.progress().visits) == (1, 3)


def test_the_rest_of_a_dead_workers_lease_goes_to_the_next() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=3, after={"at": 3}, ended=False)
    leases.lose("a")
    assert leases.lease("b") == (1, SplitRange(0, {"at": 3}))


def test_a_closure_that_runs_again_uses_what_it_had_taken() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=6, count=1, after={"at": 1}, ended=False)
    take(leases, "a", 0, closure=7, count=3, after={"at": 4}, ended=False)
    leases.lose("a")
    assert leases.again("b", 7) == [(1, SplitRange(0, {"at": 1}, 3))]
    assert leases.lease("b") == (2, SplitRange(0, {"at": 4}))  # to others, what is behind it


def seven_runs_again() -> EpochLeases:
    """Return leases of which closure 7 has taken two parts of two, and does so again on b."""
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=2, after=2, ended=False)
    take(leases, "a", 0, closure=6, count=1, after=3, ended=False)
    take(leases, "a", 0, closure=7, count=2, after=5, ended=True)
    leases.end(6, succeeded=True)
    leases.lose("a")
    assert leases.again("b", 7) == [(1, SplitRange(0, None, 2)), (2, SplitRange(0, 3, 2))]
    assert not leases.unread()
    return leases


def test_what_a_closure_does_not_take_again_is_leased_again() -> None:
    leases = seven_runs_again()
    take(leases, "b", 1, closure=7, count=1, after=1, ended=False)
    leases.end(7, succeeded=True)
    assert leases.progress().visits == 2
    assert leases.state()["ranges"] == [[0, 1, 1], [0, 3, 2]]
    assert not leases.progress().over
    assert [leases.lease("c") for _ in range(3)] == [
        (3, SplitRange(0, 1, 1)),
        (4, SplitRange(0, 3, 2)),
        None,
    ]


def test_what_servers_say_is_used_again_decides_as_well() -> None:
    leases = seven_runs_again()
    leases.note_used(Taken(1, 1, 7, 0, 1, 1, False))
    leases.lose("b")
    leases.end(7, succeeded=True)
    assert leases.progress().visits == 2
    assert leases.state()["ranges"] == [[0, 1, 1], [0, 3, 2]]


def test_a_closure_that_is_lost_twice_takes_the_same_in_the_same_order() -> None:
    leases = seven_runs_again()
    take(leases, "b", 1, closure=7, count=1, after=1, ended=False)
    leases.lose("b")
    assert leases.state()["ranges"] == [[0, None, 1], [0, 1, 1], [0, 3, 2]]
    again = leases.again("c", 7)
    assert [part for _, part in again] == [
        SplitRange(0, None, 1),
        SplitRange(0, 1, 1),
        SplitRange(0, 3, 2),
    ]
    take(leases, "b", 2, closure=7, count=1, after=4, ended=False)  # it was given up
    for number, part in again:
        take(leases, "c", number, 7, part.count or 0, None, ended=True)
    leases.end(7, succeeded=True)
    assert leases.progress() == Progress(1, 0, 0, 5)


def test_what_a_closure_takes_again_is_free_if_it_fails() -> None:
    leases = seven_runs_again()
    take(leases, "b", 1, closure=7, count=2, after=2, ended=True)
    leases.end(7, succeeded=False)
    assert leases.progress().visits == 1
    assert leases.state()["ranges"] == [[0, None, 2], [0, 3, 2]]


def test_the_data_of_what_a_closure_takes_again_is_needed() -> None:
    assert seven_runs_again().needed(0) == [0]


def test_what_a_failed_closure_had_taken_is_leased_again() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=3, after={"at": 3}, ended=True)
    assert leases.lease("a") is None
    leases.end(7, succeeded=False)
    assert leases.lease("b") == (1, SplitRange(0, None, 3))
    assert not leases.progress().over


def test_who_was_given_up_cannot_take_any_more() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    leases.lose("a")
    take(leases, "a", 0, closure=7, count=1, after=None, ended=False)
    assert leases.again("a", 7) == []


def test_what_servers_say_is_used_of_a_lost_lease_is_not_leased_again() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=6, count=2, after=2, ended=False)
    for closure, at in ((8, 5), (7, 3)):
        leases.note_used(Taken(1, 0, closure, at, 1, at + 1, False))
        leases.note_used(Taken(1, 0, closure, at, 1, at + 1, False))  # another task asked too
    leases.lose("a")
    found = [leases.lease("b") for _ in range(4)]
    assert [each and each[1] for each in found] == [
        SplitRange(0, 2, 1),
        SplitRange(0, 4, 1),
        SplitRange(0, 6),
        None,
    ]
    assert leases.progress().visits == 2


def test_what_servers_say_is_used_counts_once_though_the_worker_reports_it_later() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    leases.note_used(Taken(1, 0, 7, 1, 1, 2, False))
    assert leases.state()["ranges"] == [[0, None, 1], [0, 2, None]]
    take(leases, "a", 0, closure=6, count=1, after=1, ended=False)
    take(leases, "a", 0, closure=7, count=1, after=2, ended=False)
    assert leases.again("b", 7) == []
    leases.end(6, succeeded=True)
    assert leases.progress().visits == 2
    assert leases.state()["ranges"] == [[0, 2, None]]


def test_the_last_of_a_lost_lease_that_servers_say_is_used_leaves_nothing() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    leases.note_used(Taken(1, 0, 7, 0, 1, None, True))
    leases.lose("a")
    assert leases.progress() == Progress(1, 0, 0, 1)


def test_an_empty_split_is_done_when_its_end_is_found() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=0, after=None, ended=True)
    assert leases.progress().over


def test_a_returned_portion_ends_after_its_count() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=2, after=2, ended=True)
    leases.end(7, succeeded=False)
    number, range_ = leases.lease("b") or pytest.fail("it is free again")
    assert range_.count == 2
    take(leases, "b", number, closure=8, count=2, after=2, ended=False)
    leases.end(8, succeeded=True)
    assert leases.progress().over


def test_owners_alone_lease_their_splits_while_they_are_there() -> None:
    leases = EpochLeases(3, owners={0: "b", 1: "a", 2: "b"})
    everyone = {"a", "b"}
    assert leases.lease("A", "a", everyone) == (0, SplitRange(1))
    assert leases.lease("A", "a", everyone) is None
    assert leases.lease("B", "b", everyone) == (1, SplitRange(0))
    assert (leases.owned("A", "a"), leases.owned("B", "b")) == ([1], [0, 2])
    assert leases.owned("A", "a") == []


def test_who_leases_a_split_of_a_lost_owner_owns_all_that_it_had() -> None:
    leases = EpochLeases(4, owners={0: "b", 1: "a", 2: "b", 3: "c"})
    leases.lease("A", "a", {"a", "b", "c"})
    leases.lose("B")
    assert leases.lease("A", "a", {"a", "c"}) == (1, SplitRange(0))
    assert leases.owned("A", "a") == [0, 1, 2]
    assert leases.lease("C", "c", {"a", "c"}) == (2, SplitRange(3))
    assert leases.lease("C", "c", {"a", "c"}) is None


def test_what_a_lost_owner_was_reading_goes_to_another_with_all_that_it_had() -> None:
    leases = EpochLeases(3, owners={0: "b", 1: "a", 2: "b"})
    everyone = {"a", "b"}
    leases.lease("A", "a", everyone)
    assert [leases.lease("B", "b", everyone) for _ in range(2)] == [
        (1, SplitRange(0)),
        (2, SplitRange(2)),
    ]
    left = {"a"}
    assert leases.lease("A", "a", left) is None
    leases.lose("B")
    assert leases.suits("a", left)
    assert leases.lease("A", "a", left) == (3, SplitRange(2))
    assert leases.owned("A", "a") == [0, 1, 2]


def test_each_session_hears_of_what_its_worker_owns_once() -> None:
    leases = EpochLeases(3, owners={0: "a", 1: "a", 2: "b"})
    assert [leases.owned("A", "a") for _ in range(2)] == [[0, 1], []]
    assert leases.owned("A again", "a") == [0, 1]
    leases.lease("A", "a", {"a"})
    leases.lease("A", "a", {"a"})
    assert leases.lease("A", "a", {"a"}) == (2, SplitRange(2))
    assert [leases.owned("A", "a") for _ in range(2)] == [[2], []]


def test_closures_suit_workers_that_have_something_to_read() -> None:
    leases = EpochLeases(2, owners={0: "a", 1: "b"})
    everyone = {"a", "b"}
    number, _ = leases.lease("A", "a", everyone) or pytest.fail("it is its own")
    assert leases.suits("a", everyone)  # it reads that
    assert leases.suits("b", everyone)
    assert not leases.suits("c", {*everyone, "c"})
    take(leases, "A", number, closure=1, count=1, after=1, ended=True)
    assert not leases.suits("a", everyone)
    assert leases.suits("a", {"a"})  # what b had
    assert leases.unread()


def test_where_nothing_is_left_to_read_closures_may_go_anywhere_to_run_again() -> None:
    leases = EpochLeases(1, owners={0: "a"})
    number, _ = leases.lease("A", "a", {"a"}) or pytest.fail("it is its own")
    take(leases, "A", number, closure=1, count=1, after=1, ended=True)
    assert not leases.unread()
    assert leases.suits("b", {"b"})
    assert not leases.progress().over


def test_an_epoch_goes_on_where_its_state_was_taken() -> None:
    leases = EpochLeases(3)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=2, after={"at": 2}, ended=False)
    leases.end(7, succeeded=True)
    state = json.loads(json.dumps(leases.state()))
    again = EpochLeases(3, state)
    assert again.progress() == Progress(done=0, leased=1, left=2, visits=2)
    assert [again.lease("b") for _ in range(4)] == [
        (0, SplitRange(0, {"at": 2})),
        (1, SplitRange(1)),
        (2, SplitRange(2)),
        None,
    ]


def test_a_state_of_an_epoch_that_was_over_has_nothing_left() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=2, after=None, ended=True)
    leases.end(7, succeeded=True)
    again = EpochLeases(1, leases.state())
    assert again.progress() == Progress(done=1, leased=0, left=0, visits=2)


def test_what_runs_when_a_state_is_taken_is_done_again() -> None:
    leases = EpochLeases(1)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=2, after=2, ended=True)
    again = EpochLeases(1, leases.state())
    assert again.lease("b") == (0, SplitRange(0, None, 2))


def test_parts_of_a_partition_have_the_same_rows_also_when_an_epoch_goes_on() -> None:
    leases = EpochLeases(3)
    for _ in range(3):
        leases.lease("a")
    assert leases.begin("a", 0, 0, [[7, 5, "aa"]])
    assert leases.begin("a", 1, 0, [[7, 5, "aa"], [8, 5, "cc"]])
    for epoch in (leases, EpochLeases(3, json.loads(json.dumps(leases.state())))):
        epoch.lease("a")
        with pytest.raises(DatasetError, match="partition 7 was computed again"):
            epoch.begin("a", 2 if epoch is leases else 0, 0, [[7, 5, "bb"]])


def test_a_lease_that_is_returned_is_leased_next() -> None:
    leases = EpochLeases(2)
    leases.lease("a")
    take(leases, "a", 0, closure=7, count=2, after=2, ended=False)
    leases.return_("b", 0)  # not its own
    assert leases.lease("b") == (1, SplitRange(1))
    leases.return_("a", 0)
    assert leases.lease("b") == (2, SplitRange(0, 2))
    assert leases.again("b", 7) == [(3, SplitRange(0, None, 2))]


@pytest.mark.parametrize(
    "state",
    [{}, {"version": 1}, {**EpochLeases(2).state()}, {**EpochLeases(1).state(), "version": 9}],
)
def test_a_state_that_does_not_fit_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="state"):
        EpochLeases(1, state)


def test_workers_lease_the_splits_whose_data_they_have() -> None:
    now = [0.0]
    leases = EpochLeases(5, clock=lambda: now[0])
    leases.place({0: {"b"}, 1: {"a", "b"}, 2: {"a"}, 4: {"gone"}})
    present = {"a", "b", "c"}
    taken = {"c": [3, 4], "a": [1, 2], "b": [0]}
    for worker, splits in taken.items():
        for split in splits:
            found = leases.lease(worker, worker, present)
            assert found is not None
            assert found[1].split == split
    assert leases.lease("c", "c", present) is None


def test_data_is_moved_only_while_a_worker_that_has_it_is_busy() -> None:
    now = [0.0]
    leases = EpochLeases(4, clock=lambda: now[0])
    leases.place({0: {"a"}, 1: {"a"}, 2: {"a"}, 3: {"b"}})
    present = {"a", "b", "c"}
    assert not leases.suits("c", present)  # nobody reads yet: each begins with its own
    assert leases.lease("c", "c", present) is None
    number, _ = leases.lease("a", "a", present) or (0, None)
    assert leases.suits("c", present)
    assert (leases.lease("c", "c", present) or (0, SplitRange(0)))[1].split == 2  # a's last
    take(leases, "a", number, closure=1, count=0, after=None, ended=True)
    leases.lose("c")
    assert not leases.suits("c", present)  # between two splits
    now[0] = HELD_SECONDS + 0.1
    assert leases.suits("c", present)  # who reads nothing for so long does something else
    assert (leases.lease("c", "c", present) or (0, SplitRange(0)))[1].split == 1


def test_splits_whose_data_is_not_there_wait() -> None:
    leases = EpochLeases(6, order=[5, 4, 3, 2, 1, 0])
    assert leases.needed(3) == [5, 4, 3]
    leases.place({}, dict.fromkeys([3, 2, 1, 0], False))
    number, range_ = leases.lease("w") or (0, SplitRange(0))
    assert range_.split == 5
    take(leases, "w", number, closure=7, count=1, after="after", ended=True)
    assert leases.needed(2) == [5, 4, 3]  # closure 7 may run again
    leases.end(7, succeeded=True)
    assert leases.needed(2) == [4, 3]
    assert leases.lease("w") is not None
    assert leases.lease("w") is None
    assert not leases.suits("v", {"w", "v"})
    assert leases.unread()
