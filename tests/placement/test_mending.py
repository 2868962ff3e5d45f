"""What becomes of a shard's place, one step at a time. See `tests/model` for all of it together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from psnb._src.placement.layout import (
    CopyState,
    Layout,
    Role,
    ServerAddress,
    ShardPlace,
    ShardStatus,
)
from psnb._src.placement.next_layout import DesiredLayout, Health, ObservedServer, next_layout

A, B, C, D = (ServerAddress(f"tcp://{name}", name) for name in "abcd")
FILLING, FILLED, BROKEN = CopyState.FILLING, CopyState.FILLED, CopyState.BROKEN
GONE, UNRESPONSIVE = ObservedServer(Health.GONE), ObservedServer(Health.UNRESPONSIVE)


def primary(
    version: int = 1, *, role: Role = Role.PRIMARY, idle: bool = False, **copies: CopyState
) -> ObservedServer:
    """A server that answers, and holds the shard."""
    return ObservedServer(Health.ALIVE, 9, {0: ShardStatus(role, version, idle, copies)})


COPY = ObservedServer(Health.ALIVE, 9, {0: ShardStatus(Role.COPY, 1)})
EMPTY = ObservedServer(Health.ALIVE, 9)


def step(
    place: ShardPlace,
    observed: Mapping[ServerAddress, ObservedServer],
    replicas: int = 1,
    usable: Any = (A, B, C, D),
    home: ServerAddress | None = None,
    unfit: Any = (),
) -> ShardPlace:
    """Return the place that follows."""
    layout = Layout("s", 9, replicas, 10.0, (place,))
    homes = {} if home is None else {0: home}
    (after,) = next_layout(layout, observed, DesiredLayout(usable, homes, {0: unfit})).places
    return after


def unchanged(
    place: ShardPlace, observed: Mapping[ServerAddress, ObservedServer], **more: Any
) -> bool:
    return step(place, observed, **more) is place


def test_a_shard_that_has_its_copy_stays_as_it_is() -> None:
    assert unchanged(ShardPlace(A, (B,)), {A: primary(b=FILLED), B: COPY})


def test_a_change_has_a_new_version_and_a_new_primary_a_new_term() -> None:
    place = ShardPlace(A, (B,), version=5, term=3)
    after = step(place, {A: GONE, B: COPY})
    assert (after.primary, after.term, after.version) == (B, 4, 6)
    after = step(ShardPlace(A, version=5, term=3), {A: primary(5), B: EMPTY})
    assert (after.filling, after.term, after.version) == (B, 3, 6)


def test_a_shard_without_a_copy_gets_one_on_the_least_loaded_server() -> None:
    layout = Layout("s", 9, 1, 10.0, (ShardPlace(A), ShardPlace(B, (C,))))
    other = {1: ShardStatus(Role.PRIMARY, 1, True, {"c": FILLED})}
    observed = {
        A: primary(),
        B: ObservedServer(Health.ALIVE, 9, other),
        C: ObservedServer(Health.ALIVE, 9, {1: ShardStatus(Role.COPY, 1)}),
        D: EMPTY,
    }
    assert next_layout(layout, observed, DesiredLayout((A, B, C, D))).places[0].filling == D


def test_none_is_made_where_none_is_wanted_or_nobody_is_there() -> None:
    assert unchanged(ShardPlace(A), {A: primary(), B: EMPTY}, replicas=0)
    assert unchanged(ShardPlace(A), {A: primary(), B: UNRESPONSIVE, C: GONE})
    assert unchanged(ShardPlace(A), {A: primary(), B: EMPTY}, usable=(A,))


def test_a_copy_that_is_full_is_named_as_such() -> None:
    after = step(ShardPlace(A, filling=B), {A: primary(b=FILLED), B: COPY})
    assert (after.copies, after.filling) == ((B,), None)


def test_one_that_is_being_filled_is_waited_for() -> None:
    assert unchanged(ShardPlace(A, filling=B), {A: primary(b=FILLING), B: COPY})


@pytest.mark.parametrize("there", [COPY, UNRESPONSIVE, GONE])
def test_one_that_broke_while_it_was_filled_is_given_up_before_another_is_chosen(
    there: ObservedServer,
) -> None:
    after = step(ShardPlace(A, filling=B), {A: primary(b=BROKEN), B: there, C: EMPTY})
    assert (after.copies, after.filling, after.version) == ((), None, 2)


def test_none_is_begun_where_one_could_not_be_filled_lately() -> None:
    observed = {A: primary(), B: EMPTY, C: EMPTY}
    assert step(ShardPlace(A), observed, unfit=(B,)).filling == C
    assert unchanged(ShardPlace(A), observed, unfit=(B, C))


def test_nothing_follows_before_the_primary_has_heard_of_the_last_step() -> None:
    place = ShardPlace(A, filling=B, version=4)
    assert unchanged(place, {A: primary(3), B: EMPTY})


@pytest.mark.parametrize("copy", [UNRESPONSIVE, GONE])
def test_the_primary_does_without_a_copy_that_does_not_answer(copy: ObservedServer) -> None:
    after = step(ShardPlace(A, (B,)), {A: primary(b=FILLED), B: copy, C: EMPTY})
    assert (after.primary, after.copies) == (A, ())
    assert after.leaving == ((B,) if copy is UNRESPONSIVE else ())


def test_and_without_one_that_does_not_follow() -> None:
    after = step(ShardPlace(A, (B,)), {A: primary(b=BROKEN), B: COPY})
    # It is leaving: a new copy there would overwrite it.
    assert (after.copies, after.leaving, after.filling) == ((), (B,), None)


def test_when_the_primary_has_heard_it_the_copy_is_gone_for_good_and_may_be_filled_anew() -> None:
    after = step(ShardPlace(A, leaving=(B,)), {A: primary(), B: COPY})
    assert (after.leaving, after.filling) == ((), B)


@pytest.mark.parametrize("gone", [UNRESPONSIVE, GONE])
def test_a_copy_takes_over_from_a_primary_that_does_not_answer(gone: ObservedServer) -> None:
    after = step(ShardPlace(A, (B,), filling=C), {A: gone, B: COPY, C: COPY})
    assert (after.primary, after.copies, after.filling) == (B, (), None)
    # It may come back before the other one has said that it has taken over.
    assert after.leaving == ((A,) if gone is UNRESPONSIVE else ())


def test_a_primary_that_answers_and_has_lost_the_shard_is_as_good_as_gone() -> None:
    assert step(ShardPlace(A, (B,)), {A: EMPTY, B: COPY}).primary == B
    assert step(ShardPlace(A), {A: EMPTY}, replicas=0).primary is None


def test_but_not_if_it_has_not_heard_of_the_layout_yet() -> None:
    early = ObservedServer(Health.ALIVE, 8)
    assert unchanged(ShardPlace(A, (B,)), {A: early, B: COPY})


def test_a_silent_shard_without_a_living_copy_stays_where_it_is() -> None:
    assert unchanged(ShardPlace(A), {A: UNRESPONSIVE})
    assert unchanged(ShardPlace(A, (B,)), {A: UNRESPONSIVE, B: UNRESPONSIVE})
    assert unchanged(ShardPlace(A, (B,)), {A: UNRESPONSIVE, B: GONE})


def test_a_shard_whose_copy_is_only_silent_is_not_lost() -> None:
    assert unchanged(ShardPlace(A, (B,)), {A: GONE, B: UNRESPONSIVE})


def test_a_shard_is_lost_when_all_that_had_it_are_gone() -> None:
    after = step(ShardPlace(A, (B,), filling=C), {A: GONE, B: GONE, C: COPY})
    assert (after.primary, after.servers) == (None, ())
    assert step(ShardPlace(A, (B,)), {}).primary is None  # nothing is known of servers given up
    assert unchanged(after, {A: EMPTY, B: EMPTY})


def test_a_copy_that_was_leaving_takes_over_if_the_primary_is_gone() -> None:
    assert step(ShardPlace(A, leaving=(B,)), {A: GONE, B: COPY}).primary == B
    assert unchanged(ShardPlace(A, leaving=(B,)), {A: GONE, B: UNRESPONSIVE})
    assert step(ShardPlace(A, leaving=(B,)), {A: GONE, B: GONE}).primary is None


def test_but_not_from_one_that_may_come_back_having_gone_on_alone() -> None:
    assert unchanged(ShardPlace(A, leaving=(B,)), {A: UNRESPONSIVE, B: COPY})


def test_a_shard_moves_by_a_copy() -> None:
    observed = {A: primary(), B: EMPTY}
    assert step(ShardPlace(A), observed, replicas=0, home=B).filling == B
    observed = {A: primary(b=FILLED), B: COPY}
    after = step(ShardPlace(A, filling=B), observed, replicas=0, home=B)
    assert (after.primary, after.copies, after.successor) == (A, (B,), B)


def test_the_heir_takes_over_when_the_primary_has_stopped_and_all_have_everything() -> None:
    place = ShardPlace(A, (B,), successor=B)
    for stopped in (primary(b=FILLED), primary(role=Role.RETIRED, b=FILLED)):
        assert unchanged(place, {A: stopped, B: COPY}, home=B)
    stopped = primary(role=Role.RETIRED, idle=True, b=FILLED)
    after = step(place, {A: stopped, B: COPY}, replicas=0, home=B)
    # The old one stays as a copy until the new one answers.
    assert (after.primary, after.copies, after.successor) == (B, (A,), None)


def test_with_copies_there_are_as_many_after_a_move_as_before() -> None:
    stopped = primary(role=Role.RETIRED, idle=True, b=FILLED, c=FILLED)
    observed = {A: stopped, B: COPY, C: COPY}
    after = step(ShardPlace(A, (B, C), successor=C), observed, home=C, usable=(B, C))
    assert (after.primary, after.copies, after.leaving) == (C, (B,), (A,))


def test_what_is_too_much_goes_once_the_new_primary_answers() -> None:
    after = step(ShardPlace(B, (A,)), {B: primary(a=FILLED), A: COPY}, replicas=0)
    assert (after.copies, after.leaving) == ((), (A,))


@pytest.mark.parametrize("home", [UNRESPONSIVE, GONE])
def test_a_move_to_a_server_that_does_not_answer_is_undone(home: ObservedServer) -> None:
    stopped = primary(role=Role.RETIRED, idle=True, b=FILLED)
    after = step(ShardPlace(A, (B,), successor=B), {A: stopped, B: home}, replicas=0, home=B)
    assert (after.primary, after.successor) == (A, None)


def test_a_move_that_nobody_wants_any_more_is_undone() -> None:
    stopped = primary(role=Role.RETIRED, b=FILLED)
    after = step(ShardPlace(A, (B,), successor=B), {A: stopped, B: COPY})
    assert (after.primary, after.copies, after.successor) == (A, (B,), None)


def test_a_server_that_is_drained_keeps_its_copy_until_there_is_another() -> None:
    observed = {A: primary(b=FILLED), B: COPY, C: EMPTY}
    after = step(ShardPlace(A, (B,)), observed, usable=(A, C))
    assert (after.copies, after.filling) == ((B,), C)
    observed = {A: primary(b=FILLED, c=FILLED), B: COPY, C: COPY}
    after = step(ShardPlace(A, (B,), filling=C), observed, usable=(A, C))
    assert (after.copies, after.leaving) == ((C,), (B,))


def test_of_several_copies_one_takes_over_that_may_stay_and_the_others_are_leaving() -> None:
    observed = {A: GONE, B: COPY, C: COPY, D: COPY}
    after = step(ShardPlace(A, (B, C, D)), observed, usable=(C, D))
    assert (after.primary, after.leaving) == (C, (D, B))


def test_after_a_move_those_copies_stay_that_may() -> None:
    stopped = primary(role=Role.RETIRED, idle=True, b=FILLED, c=FILLED)
    observed = {A: stopped, B: COPY, C: COPY}
    after = step(ShardPlace(A, (B, C), successor=C), observed, home=C, usable=(A, C))
    assert (after.primary, after.copies, after.leaving) == (C, (A,), (B,))


def test_a_copy_that_holds_nothing_does_not_take_over() -> None:
    assert step(ShardPlace(A, (B,)), {A: GONE, B: EMPTY}).primary is None


def test_a_copy_that_has_told_nothing_since_may_hold_the_shard() -> None:
    early = ObservedServer(Health.ALIVE, 8)
    assert unchanged(ShardPlace(A, (B,)), {A: GONE, B: early})


def test_a_copy_on_a_server_that_ended_while_it_was_filled_is_given_up() -> None:
    after = step(ShardPlace(A, filling=B), {A: primary(b=FILLING), B: GONE}, usable=(A,))
    assert after.servers == (A,)


@pytest.mark.parametrize("home", [UNRESPONSIVE, GONE])
def test_a_move_to_a_server_that_does_not_answer_does_not_begin(home: ObservedServer) -> None:
    assert unchanged(ShardPlace(A), {A: primary(), B: home}, replicas=0, home=B)


def test_a_server_that_has_a_copy_gets_no_second_one() -> None:
    assert unchanged(
        ShardPlace(A, (B,)), {A: primary(b=FILLED), B: COPY}, replicas=2, usable=(A, B)
    )


def test_new_copies_of_several_shards_are_spread() -> None:
    held = {index: ShardStatus(Role.PRIMARY, 1) for index in range(4)}
    layout = Layout("s", 9, 1, 10.0, (ShardPlace(A),) * 4)
    observed = {A: ObservedServer(Health.ALIVE, 9, held), B: EMPTY, C: EMPTY}
    after = next_layout(layout, observed, DesiredLayout((A, B, C)))
    assert [place.filling for place in after.places] == [B, C, B, C]


def test_a_shard_moves_away_from_a_primary_that_is_not_usable_to_the_least_loaded_server() -> None:
    layout = Layout("s", 9, 0, 10.0, (ShardPlace(A), ShardPlace(B)))
    observed = {A: primary(), B: ObservedServer(Health.ALIVE, 9), C: EMPTY}
    places = next_layout(layout, observed, DesiredLayout((B, C))).places
    assert places[0].filling == C


def test_it_moves_to_the_one_that_is_being_filled_whatever_the_others_have() -> None:
    place = ShardPlace(A, filling=C)
    observed = {A: primary(c=FILLING), B: EMPTY, C: COPY}
    assert unchanged(place, observed, replicas=0, usable=(B, C))


def test_it_moves_to_its_copy_at_once_if_there_is_one() -> None:
    place = ShardPlace(A, (C,))
    after = step(place, {A: primary(c=FILLED), B: EMPTY, C: COPY}, usable=(B, C))
    assert (after.primary, after.successor) == (A, C)


def test_it_stays_where_it_is_if_no_server_is_usable() -> None:
    assert unchanged(ShardPlace(A), {A: primary(), B: UNRESPONSIVE}, replicas=0, usable=())
    assert unchanged(ShardPlace(A), {A: primary(), B: UNRESPONSIVE}, replicas=0, usable=(B,))
