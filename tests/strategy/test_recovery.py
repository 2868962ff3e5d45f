"""Which shards are lost, and where they are hosted anew."""

from __future__ import annotations

import pytest

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.strategy.recovery import hosted_anew, missing, nowhere, still_lost, stuck

A, B, C = (ServerAddress(f"tcp://{name}", name) for name in "abc")


def layout(*placements: ShardPlacement) -> Layout:
    return Layout("s", 9, 1, 10.0, placements)


def test_a_shard_is_lost_that_neither_its_primary_nor_a_copy_holds() -> None:
    placements = layout(
        ShardPlacement(A),
        ShardPlacement(B),
        ShardPlacement(None),
        ShardPlacement(C, (A,)),
        ShardPlacement(C, syncing=A),
    )
    assert missing(placements, {A: {0, 3, 4}, B: set()}) == ([1, 2, 4], [3])


def test_one_that_went_elsewhere_since_servers_were_asked_is_not_lost() -> None:
    before = layout(
        ShardPlacement(A), ShardPlacement(A), ShardPlacement(None), ShardPlacement(None)
    )
    now = layout(ShardPlacement(A), ShardPlacement(B), ShardPlacement(None), ShardPlacement(C))
    assert still_lost([0, 1, 2, 3], before, now) == [0, 2]
    assert still_lost([0], before, layout(ShardPlacement(None))) == [0]


def test_lost_ones_are_spread_over_those_that_have_least() -> None:
    before = layout(
        ShardPlacement(A),
        ShardPlacement(None),
        ShardPlacement(B, (C,), syncing=A, leaving=(A,)),
        ShardPlacement(None),
    )
    after = hosted_anew(nowhere(before, [1, 2, 3]), [1, 2, 3], [A, B])
    assert [placement.servers for placement in after.placements] == [(A,), (B,), (A,), (B,)]
    assert after.version == before.version + 2


@pytest.mark.parametrize("primary", [None, C])
def test_what_is_hosted_is_newer_than_what_an_interrupted_try_hosted(
    primary: ServerAddress | None,
) -> None:
    first = nowhere(layout(ShardPlacement(primary)), [0])
    (hosted,) = hosted_anew(first, [0], [A]).placements
    (again,) = hosted_anew(nowhere(first, [0]), [0], [B]).placements
    assert (hosted.primary, again.primary) == (A, B)
    assert again.version > hosted.version > first.placements[0].version
    assert again.term > hosted.term > first.placements[0].term


def test_a_server_that_was_killed_a_moment_ago_is_waited_for_though_it_did_not_answer() -> None:
    killed, frozen = ServerAddress("tcp://a:1", "k-0"), ServerAddress("tcp://b:1", "k-1")
    assert stuck([killed, frozen], ["tcp://b:1", "tcp://c:1"]) == 1
