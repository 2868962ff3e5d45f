"""What is told of a new layout."""

from __future__ import annotations

import pytest

from psnb import EventKind
from psnb.placement import Layout, Place, ServerAddress
from psnb.strategy.keeper import changes

A, B = ServerAddress("tcp://a", "a"), ServerAddress("tcp://b", "b")


def kinds(before: Place, after: Place) -> list[EventKind]:
    layout = Layout("s", 1, 1, 10.0, (before,))
    return [kind for kind, _ in changes(layout, layout.with_places([after]))]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Place(A, copies=(B,)), Place(A), []),
        (Place(A, copies=(B,), heir=B), Place(B), []),
        (Place(A, copies=(B,)), Place(B), [EventKind.SHARDS_TAKEN_OVER]),
        (Place(A, leaving=(B,)), Place(B), [EventKind.SHARDS_TAKEN_OVER, EventKind.UPDATES_LOST]),
        (Place(A, copies=(B,)), Place(None), [EventKind.SHARDS_LOST]),
    ],
    ids=["no copy any more", "handed over", "taken over", "outdated", "lost"],
)
def test_what_became_of_a_shard_is_told(before: Place, after: Place, told: list[EventKind]) -> None:
    assert kinds(before, after) == told
