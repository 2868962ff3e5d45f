"""What is told of a new layout."""

from __future__ import annotations

import pytest

from psnb import EventKind
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlace
from psnb._src.strategy.reconciler import changes

A, B = ServerAddress("tcp://a", "a"), ServerAddress("tcp://b", "b")


def kinds(before: ShardPlace, after: ShardPlace) -> list[EventKind]:
    layout = Layout("s", 1, 1, 10.0, (before,))
    return [kind for kind, _ in changes(layout, layout.with_places([after]), str)]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (ShardPlace(A, copies=(B,)), ShardPlace(A), []),
        (ShardPlace(A, copies=(B,), successor=B), ShardPlace(B), []),
        (ShardPlace(A, copies=(B,)), ShardPlace(B), [EventKind.SHARDS_TAKEN_OVER]),
        (
            ShardPlace(A, leaving=(B,)),
            ShardPlace(B),
            [EventKind.SHARDS_TAKEN_OVER, EventKind.UPDATES_LOST],
        ),
        (ShardPlace(A, copies=(B,)), ShardPlace(None), [EventKind.SHARDS_LOST]),
    ],
    ids=["no copy any more", "handed over", "taken over", "outdated", "lost"],
)
def test_what_became_of_a_shard_is_told(
    before: ShardPlace, after: ShardPlace, told: list[EventKind]
) -> None:
    assert kinds(before, after) == told
