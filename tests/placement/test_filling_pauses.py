"""When a copy that could not be filled is tried again."""

from __future__ import annotations

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlace
from psnb._src.placement.next_layout import FillingPauses

A, B = (ServerAddress(f"tcp://{name}", name) for name in "ab")
FILLING, ALONE, COPIED = ShardPlace(A, filling=B), ShardPlace(A), ShardPlace(A, (B,))


def layout(place: ShardPlace) -> Layout:
    return Layout("s", 1, 1, 10.0, (ShardPlace(B), place))


def test_tries_are_further_and_further_apart() -> None:
    pauses, now = FillingPauses(), 100.0
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        pauses.note(layout(FILLING), layout(FILLING), now)
        assert pauses.unfit(now) == {}
        pauses.note(layout(FILLING), layout(ALONE), now)
        assert pauses.unfit(now + pause - 0.1) == {1: {B}}
        now += pause
        assert pauses.unfit(now) == {}


def test_after_one_that_was_filled_there_is_no_pause() -> None:
    pauses = FillingPauses()
    for _ in range(3):
        pauses.note(layout(FILLING), layout(ALONE), 0.0)
    pauses.note(layout(FILLING), layout(COPIED), 0.0)
    assert pauses.unfit(0.0) == {}
    pauses.note(layout(FILLING), layout(ALONE), 0.0)
    assert pauses.unfit(1.0) == {}
