"""What is told of a new layout."""

from __future__ import annotations

import pytest

from psnb import EventKind
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.strategy.reconciler import changes

A, B = ServerAddress("tcp://a", "a"), ServerAddress("tcp://b", "b")


def kinds(before: ShardPlacement, after: ShardPlacement) -> list[EventKind]:
    layout = Layout("s", 1, 1, 10.0, (before,))
    return [kind for kind, _ in changes(layout, layout.with_placements([after]), str)]


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        (ShardPlacement(A, synced=(B,)), ShardPlacement(A), []),
        (ShardPlacement(A, synced=(B,), successor=B), ShardPlacement(B), []),
        (ShardPlacement(A, synced=(B,)), ShardPlacement(B), [EventKind.SHARDS_TAKEN_OVER]),
        (
            ShardPlacement(A, leaving=(B,)),
            ShardPlacement(B),
            [EventKind.SHARDS_TAKEN_OVER, EventKind.UPDATES_LOST],
        ),
        (ShardPlacement(A, synced=(B,)), ShardPlacement(None), [EventKind.SHARDS_LOST]),
    ],
    ids=["no copy any more", "handed over", "taken over", "outdated", "lost"],
)
def test_the_outcome_of_a_shard_is_reported(
    before: ShardPlacement, after: ShardPlacement, reported: list[EventKind]
) -> None:
    assert kinds(before, after) == reported
