"""Which shards should be elsewhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.strategy.rebalancing import moves

A, B, C, D = (ServerAddress(f"tcp://{name}", name) for name in "abcd")
SERVERS = [A, B, C, D]


def layout(*primaries: ServerAddress) -> Layout:
    return Layout("s", 1, 0, 10.0, tuple(map(ShardPlacement, primaries)))


def test_shards_spread_over_new_servers() -> None:
    found = moves(layout(A, B, A, B), [A, B, C, D], [5.0] * 4)
    assert {server for _, server in found} == {C, D}
    assert len(found) == 2


def test_a_balanced_layout_stays_as_it_is() -> None:
    assert moves(layout(A, B), [A, B, C], [9.0, 7.0]) == []


def test_a_drained_server_keeps_nothing() -> None:
    found = dict(moves(layout(A, B, A), [B, C], [1.0, 1.0, 1.0]))
    assert found.keys() == {0, 2}
    assert A not in found.values()


@given(st.data())
def test_moves_end_with_the_heaviest_server_no_heavier_and_nothing_on_others(
    data: st.DataObject,
) -> None:
    at = data.draw(st.lists(st.sampled_from(SERVERS), min_size=1, max_size=12))
    weights = [float(data.draw(st.integers(0, 100))) for _ in at]
    usable = data.draw(st.lists(st.sampled_from(SERVERS), min_size=1, unique=True))
    placements = layout(*at)
    after = list(at)
    for index, server in moves(placements, usable, weights):
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
    assert moves(layout(*after), usable, weights) == []
