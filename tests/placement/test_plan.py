"""What is decided when servers die, come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psnb.placement import Layout, Place, ServerAddress, copies_to_make, fail_over, moves

A, B, C, D = (ServerAddress(f"tcp://{name}", name) for name in "abcd")
SERVERS = [A, B, C, D]


def layout(*places: tuple[ServerAddress | None, ServerAddress | None], replicas: int = 1) -> Layout:
    return Layout("s", 1, replicas, tuple(Place(*place) for place in places))


def test_the_copy_of_a_dead_primary_takes_over() -> None:
    plan = fail_over(layout((A, B), (B, C), (C, B)), {A})
    assert plan.places == (Place(B), Place(B, C), Place(C, B))
    assert (plan.promoted, plan.bereft, plan.lost) == ({B: [0]}, {}, ())


def test_the_primary_of_a_dead_copy_does_without_it() -> None:
    plan = fail_over(layout((A, B), (B, C)), {C})
    assert plan.places == (Place(A, B), Place(B))
    assert (plan.promoted, plan.bereft, plan.lost) == ({}, {B: [(1, C)]}, ())


def test_a_shard_without_a_living_copy_is_lost() -> None:
    plan = fail_over(layout((A, B), (A, None), (C, A)), {A, B})
    assert plan.places == (Place(None), Place(None), Place(C))
    assert plan.lost == (0, 1)


def test_the_living_stay_as_they_are() -> None:
    before = layout((A, B), (B, None), (None, None))
    plan = fail_over(before, {D})
    assert plan.places == before.places
    assert not plan.promoted
    assert not plan.bereft


def test_copies_go_to_the_least_loaded_servers_but_never_to_the_primary() -> None:
    made = copies_to_make(layout((A, None), (A, None), (B, None)), [A, B, C], {})
    assert made == {0: C, 1: B, 2: C} or made == {0: C, 1: C, 2: A}
    assert copies_to_make(layout((A, None)), [A], {}) == {}


def test_no_copy_is_made_twice_nor_where_none_is_wanted() -> None:
    assert copies_to_make(layout((A, None), (A, B)), [A, B], {0: B}) == {}
    assert copies_to_make(layout((A, None), replicas=0), [A, B], {}) == {}
    assert copies_to_make(layout((None, None)), [A, B], {}) == {}


def test_shards_spread_over_new_servers() -> None:
    found = moves(layout((A, None), (B, None), (A, None), (B, None)), [A, B, C, D], [5.0] * 4)
    assert {server for _, server in found} == {C, D}
    assert len(found) == 2


def test_a_balanced_layout_stays_as_it_is() -> None:
    assert moves(layout((A, None), (B, None)), [A, B, C], [9.0, 7.0]) == []


def test_a_drained_server_keeps_nothing() -> None:
    found = dict(moves(layout((A, None), (B, None), (A, None)), [B, C], [1.0, 1.0, 1.0]))
    assert found.keys() == {0, 2}
    assert A not in found.values()


@given(st.data())
def test_moves_end_with_the_heaviest_server_no_heavier_and_nothing_on_others(
    data: st.DataObject,
) -> None:
    at = data.draw(st.lists(st.sampled_from(SERVERS), min_size=1, max_size=12))
    weights = [float(data.draw(st.integers(0, 100))) for _ in at]
    usable = data.draw(st.lists(st.sampled_from(SERVERS), min_size=1, unique=True))
    places = layout(*((server, None) for server in at))
    after = list(at)
    for index, server in moves(places, usable, weights):
        assert after[index] != server
        after[index] = server
    assert set(after) <= set(usable)

    def heaviest(where: list[ServerAddress]) -> float:
        return max(
            sum(w + 1 for w, s in zip(weights, where, strict=True) if s == server)
            for server in SERVERS
        )

    if set(at) <= set(usable):
        assert heaviest(after) <= heaviest(at)
    assert moves(layout(*((server, None) for server in after)), usable, weights) == []
