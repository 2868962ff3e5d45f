"""When a replica that could not be filled is tried again."""

from __future__ import annotations

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.next_layout import SyncPauses

A, B = (ServerAddress(f"tcp://{name}", name) for name in "ab")
SYNCING, ALONE, COPIED = ShardPlacement(A, syncing=B), ShardPlacement(A), ShardPlacement(A, (B,))


def layout(placement: ShardPlacement) -> Layout:
    return Layout("s", 1, 1, 10.0, (ShardPlacement(B), placement))


def test_tries_are_further_and_further_apart() -> None:
    pauses, now = SyncPauses(), 100.0
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        pauses.note(layout(SYNCING), layout(SYNCING), now)
        assert pauses.unfit(now) == {}
        pauses.note(layout(SYNCING), layout(ALONE), now)
        assert pauses.unfit(now + pause - 0.1) == {1: {B}}
        now += pause
        assert pauses.unfit(now) == {}


def test_after_one_that_was_filled_there_is_no_pause() -> None:
    pauses = SyncPauses()
    for _ in range(3):
        pauses.note(layout(SYNCING), layout(ALONE), 0.0)
    pauses.note(layout(SYNCING), layout(COPIED), 0.0)
    assert pauses.unfit(0.0) == {}
    pauses.note(layout(SYNCING), layout(ALONE), 0.0)
    assert pauses.unfit(1.0) == {}
