"""What becomes of a shard's place, one step at a time. See `tests/model` for all of it together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.next_layout import Health, ObservedServer, next_layout
from psnb._src.placement.status import ReplicaState, Role, ShardStatus

A, B, C, D = (ServerAddress(f"tcp://{name}", name) for name in "abcd")
SYNCING, SYNCED, BROKEN = ReplicaState.SYNCING, ReplicaState.SYNCED, ReplicaState.BROKEN
GONE, UNRESPONSIVE = ObservedServer(Health.GONE), ObservedServer(Health.UNRESPONSIVE)


def primary(
    version: int = 1, *, role: Role = Role.PRIMARY, idle: bool = False, **synced: ReplicaState
) -> ObservedServer:
    """A server that answers, and holds the shard."""
    return ObservedServer(Health.ALIVE, 9, {0: ShardStatus(role, version, idle, synced)})


REPLICA = ObservedServer(Health.ALIVE, 9, {0: ShardStatus(Role.REPLICA, 1)})
EMPTY = ObservedServer(Health.ALIVE, 9)


def step(
    placement: ShardPlacement,
    observed: Mapping[ServerAddress, ObservedServer],
    replicas: int = 1,
    usable: Any = (A, B, C, D),
    home: ServerAddress | None = None,
    unfit: Any = (),
) -> ShardPlacement:
    """Return the place that follows."""
    layout = Layout("s", 9, replicas, 10.0, (placement,))
    homes = {} if home is None else {0: home}
    (after,) = next_layout(layout, observed, usable, homes, {0: unfit}).placements
    return after


def unchanged(
    placement: ShardPlacement, observed: Mapping[ServerAddress, ObservedServer], **more: Any
) -> bool:
    return step(placement, observed, **more) is placement


def test_a_shard_that_has_its_copy_stays_as_it_is() -> None:
    assert unchanged(ShardPlacement(A, (B,)), {A: primary(b=SYNCED), B: REPLICA})


def test_a_change_has_a_new_version_and_a_new_primary_a_new_term() -> None:
    placement = ShardPlacement(A, (B,), version=5, term=3)
    after = step(placement, {A: GONE, B: REPLICA})
    assert (after.primary, after.term, after.version) == (B, 4, 6)
    after = step(ShardPlacement(A, version=5, term=3), {A: primary(5), B: EMPTY})
    assert (after.syncing, after.term, after.version) == (B, 3, 6)


def test_a_shard_without_a_copy_gets_one_on_the_least_loaded_server() -> None:
    layout = Layout("s", 9, 1, 10.0, (ShardPlacement(A), ShardPlacement(B, (C,))))
    other = {1: ShardStatus(Role.PRIMARY, 1, True, {"c": SYNCED})}
    observed = {
        A: primary(),
        B: ObservedServer(Health.ALIVE, 9, other),
        C: ObservedServer(Health.ALIVE, 9, {1: ShardStatus(Role.REPLICA, 1)}),
        D: EMPTY,
    }
    assert next_layout(layout, observed, (A, B, C, D)).placements[0].syncing == D


def test_none_is_made_where_none_is_wanted_or_possible() -> None:
    assert unchanged(ShardPlacement(A), {A: primary(), B: EMPTY}, replicas=0)
    assert unchanged(ShardPlacement(A), {A: primary(), B: UNRESPONSIVE, C: GONE})
    assert unchanged(ShardPlacement(A), {A: primary(), B: EMPTY}, usable=(A,))


def test_a_copy_that_is_full_is_named_as_such() -> None:
    after = step(ShardPlacement(A, syncing=B), {A: primary(b=SYNCED), B: REPLICA})
    assert (after.synced, after.syncing) == ((B,), None)


def test_one_that_is_being_filled_is_waited_for() -> None:
    assert unchanged(ShardPlacement(A, syncing=B), {A: primary(b=SYNCING), B: REPLICA})


@pytest.mark.parametrize("there", [REPLICA, UNRESPONSIVE, GONE])
def test_one_that_broke_while_it_was_filled_is_given_up_before_another_is_chosen(
    there: ObservedServer,
) -> None:
    after = step(ShardPlacement(A, syncing=B), {A: primary(b=BROKEN), B: there, C: EMPTY})
    assert (after.synced, after.syncing, after.version) == ((), None, 2)


def test_none_is_begun_where_one_could_not_be_filled_lately() -> None:
    observed = {A: primary(), B: EMPTY, C: EMPTY}
    assert step(ShardPlacement(A), observed, unfit=(B,)).syncing == C
    assert unchanged(ShardPlacement(A), observed, unfit=(B, C))


def test_nothing_follows_before_the_primary_has_heard_of_the_last_step() -> None:
    placement = ShardPlacement(A, syncing=B, version=4)
    assert unchanged(placement, {A: primary(3), B: EMPTY})


@pytest.mark.parametrize("copy", [UNRESPONSIVE, GONE])
def test_the_primary_does_without_a_copy_that_does_not_answer(copy: ObservedServer) -> None:
    after = step(ShardPlacement(A, (B,)), {A: primary(b=SYNCED), B: copy, C: EMPTY})
    assert (after.primary, after.synced) == (A, ())
    assert after.leaving == ((B,) if copy is UNRESPONSIVE else ())


def test_and_without_one_that_does_not_follow() -> None:
    after = step(ShardPlacement(A, (B,)), {A: primary(b=BROKEN), B: REPLICA})
    # It is leaving: a new copy there would overwrite it.
    assert (after.synced, after.leaving, after.syncing) == ((), (B,), None)


def test_when_the_primary_knows_it_the_replica_is_gone_for_good_and_may_be_synced_again() -> None:
    after = step(ShardPlacement(A, leaving=(B,)), {A: primary(), B: REPLICA})
    assert (after.leaving, after.syncing) == ((), B)


@pytest.mark.parametrize("gone", [UNRESPONSIVE, GONE])
def test_a_copy_takes_over_from_a_primary_that_does_not_answer(gone: ObservedServer) -> None:
    after = step(ShardPlacement(A, (B,), syncing=C), {A: gone, B: REPLICA, C: REPLICA})
    assert (after.primary, after.synced, after.syncing) == (B, (), None)
    # It may come back before the other one has said that it has taken over.
    assert after.leaving == ((A,) if gone is UNRESPONSIVE else ())


def test_a_primary_that_answers_and_has_lost_the_shard_is_as_good_as_gone() -> None:
    assert step(ShardPlacement(A, (B,)), {A: EMPTY, B: REPLICA}).primary == B
    assert step(ShardPlacement(A), {A: EMPTY}, replicas=0).primary is None


def test_but_not_if_it_has_not_heard_of_the_layout_yet() -> None:
    early = ObservedServer(Health.ALIVE, 8)
    assert unchanged(ShardPlacement(A, (B,)), {A: early, B: REPLICA})


def test_an_unresponsive_shard_without_a_living_copy_stays_where_it_is() -> None:
    assert unchanged(ShardPlacement(A), {A: UNRESPONSIVE})
    assert unchanged(ShardPlacement(A, (B,)), {A: UNRESPONSIVE, B: UNRESPONSIVE})
    assert unchanged(ShardPlacement(A, (B,)), {A: UNRESPONSIVE, B: GONE})


def test_a_shard_whose_copy_is_only_unresponsive_is_not_lost() -> None:
    assert unchanged(ShardPlacement(A, (B,)), {A: GONE, B: UNRESPONSIVE})


def test_a_shard_is_lost_when_all_that_had_it_are_gone() -> None:
    after = step(ShardPlacement(A, (B,), syncing=C), {A: GONE, B: GONE, C: REPLICA})
    assert (after.primary, after.servers) == (None, ())
    assert step(ShardPlacement(A, (B,)), {}).primary is None  # nothing is known of servers given up
    assert unchanged(after, {A: EMPTY, B: EMPTY})


def test_a_copy_that_was_leaving_takes_over_if_the_primary_is_gone() -> None:
    assert step(ShardPlacement(A, leaving=(B,)), {A: GONE, B: REPLICA}).primary == B
    assert unchanged(ShardPlacement(A, leaving=(B,)), {A: GONE, B: UNRESPONSIVE})
    assert step(ShardPlacement(A, leaving=(B,)), {A: GONE, B: GONE}).primary is None


def test_but_not_from_one_that_may_come_back_having_gone_on_alone() -> None:
    assert unchanged(ShardPlacement(A, leaving=(B,)), {A: UNRESPONSIVE, B: REPLICA})


def test_a_shard_moves_by_a_copy() -> None:
    observed = {A: primary(), B: EMPTY}
    assert step(ShardPlacement(A), observed, replicas=0, home=B).syncing == B
    observed = {A: primary(b=SYNCED), B: REPLICA}
    after = step(ShardPlacement(A, syncing=B), observed, replicas=0, home=B)
    assert (after.primary, after.synced, after.successor) == (A, (B,), B)


def test_the_heir_takes_over_when_the_primary_has_stopped_and_all_have_everything() -> None:
    placement = ShardPlacement(A, (B,), successor=B)
    for stopped in (primary(b=SYNCED), primary(role=Role.RETIRED, b=SYNCED)):
        assert unchanged(placement, {A: stopped, B: REPLICA}, home=B)
    stopped = primary(role=Role.RETIRED, idle=True, b=SYNCED)
    after = step(placement, {A: stopped, B: REPLICA}, replicas=0, home=B)
    # The old one stays as a replica until the new one answers.
    assert (after.primary, after.synced, after.successor) == (B, (A,), None)


def test_with_copies_there_are_as_many_after_a_move_as_before() -> None:
    stopped = primary(role=Role.RETIRED, idle=True, b=SYNCED, c=SYNCED)
    observed = {A: stopped, B: REPLICA, C: REPLICA}
    after = step(ShardPlacement(A, (B, C), successor=C), observed, home=C, usable=(B, C))
    assert (after.primary, after.synced, after.leaving) == (C, (B,), (A,))


def test_what_is_too_much_goes_once_the_new_primary_answers() -> None:
    after = step(ShardPlacement(B, (A,)), {B: primary(a=SYNCED), A: REPLICA}, replicas=0)
    assert (after.synced, after.leaving) == ((), (A,))


@pytest.mark.parametrize("home", [UNRESPONSIVE, GONE])
def test_a_move_to_a_server_that_does_not_answer_is_undone(home: ObservedServer) -> None:
    stopped = primary(role=Role.RETIRED, idle=True, b=SYNCED)
    after = step(ShardPlacement(A, (B,), successor=B), {A: stopped, B: home}, replicas=0, home=B)
    assert (after.primary, after.successor) == (A, None)


def test_a_move_that_is_not_wanted_any_more_is_undone() -> None:
    stopped = primary(role=Role.RETIRED, b=SYNCED)
    after = step(ShardPlacement(A, (B,), successor=B), {A: stopped, B: REPLICA})
    assert (after.primary, after.synced, after.successor) == (A, (B,), None)


def test_a_server_that_is_drained_keeps_its_copy_until_there_is_another() -> None:
    observed = {A: primary(b=SYNCED), B: REPLICA, C: EMPTY}
    after = step(ShardPlacement(A, (B,)), observed, usable=(A, C))
    assert (after.synced, after.syncing) == ((B,), C)
    observed = {A: primary(b=SYNCED, c=SYNCED), B: REPLICA, C: REPLICA}
    after = step(ShardPlacement(A, (B,), syncing=C), observed, usable=(A, C))
    assert (after.synced, after.leaving) == ((C,), (B,))


def test_of_several_copies_one_takes_over_that_may_stay_and_the_others_are_leaving() -> None:
    observed = {A: GONE, B: REPLICA, C: REPLICA, D: REPLICA}
    after = step(ShardPlacement(A, (B, C, D)), observed, usable=(C, D))
    assert (after.primary, after.leaving) == (C, (D, B))


def test_after_a_move_those_copies_stay_that_may() -> None:
    stopped = primary(role=Role.RETIRED, idle=True, b=SYNCED, c=SYNCED)
    observed = {A: stopped, B: REPLICA, C: REPLICA}
    after = step(ShardPlacement(A, (B, C), successor=C), observed, home=C, usable=(A, C))
    assert (after.primary, after.synced, after.leaving) == (C, (A,), (B,))


def test_a_copy_that_holds_nothing_does_not_take_over() -> None:
    assert step(ShardPlacement(A, (B,)), {A: GONE, B: EMPTY}).primary is None


def test_a_replica_without_news_since_may_hold_the_shard() -> None:
    early = ObservedServer(Health.ALIVE, 8)
    assert unchanged(ShardPlacement(A, (B,)), {A: GONE, B: early})


def test_a_copy_on_a_server_that_ended_while_it_was_filled_is_given_up() -> None:
    after = step(ShardPlacement(A, syncing=B), {A: primary(b=SYNCING), B: GONE}, usable=(A,))
    assert after.servers == (A,)


@pytest.mark.parametrize("home", [UNRESPONSIVE, GONE])
def test_a_move_to_a_server_that_does_not_answer_does_not_begin(home: ObservedServer) -> None:
    assert unchanged(ShardPlacement(A), {A: primary(), B: home}, replicas=0, home=B)


def test_a_server_that_has_a_copy_gets_no_second_one() -> None:
    assert unchanged(
        ShardPlacement(A, (B,)), {A: primary(b=SYNCED), B: REPLICA}, replicas=2, usable=(A, B)
    )


def test_new_copies_of_several_shards_are_spread() -> None:
    held = {index: ShardStatus(Role.PRIMARY, 1) for index in range(4)}
    layout = Layout("s", 9, 1, 10.0, (ShardPlacement(A),) * 4)
    observed = {A: ObservedServer(Health.ALIVE, 9, held), B: EMPTY, C: EMPTY}
    after = next_layout(layout, observed, (A, B, C))
    assert [placement.syncing for placement in after.placements] == [B, C, B, C]


def test_a_shard_moves_away_from_a_primary_that_is_not_usable_to_the_least_loaded_server() -> None:
    layout = Layout("s", 9, 0, 10.0, (ShardPlacement(A), ShardPlacement(B)))
    observed = {A: primary(), B: ObservedServer(Health.ALIVE, 9), C: EMPTY}
    placements = next_layout(layout, observed, (B, C)).placements
    assert placements[0].syncing == C


def test_it_moves_to_the_one_that_is_being_filled_whatever_the_others_have() -> None:
    placement = ShardPlacement(A, syncing=C)
    observed = {A: primary(c=SYNCING), B: EMPTY, C: REPLICA}
    assert unchanged(placement, observed, replicas=0, usable=(B, C))


def test_it_moves_to_its_copy_at_once_if_there_is_one() -> None:
    placement = ShardPlacement(A, (C,))
    after = step(placement, {A: primary(c=SYNCED), B: EMPTY, C: REPLICA}, usable=(B, C))
    assert (after.primary, after.successor) == (A, C)


def test_it_stays_where_it_is_if_no_server_is_usable() -> None:
    assert unchanged(ShardPlacement(A), {A: primary(), B: UNRESPONSIVE}, replicas=0, usable=())
    assert unchanged(ShardPlacement(A), {A: primary(), B: UNRESPONSIVE}, replicas=0, usable=(B,))
