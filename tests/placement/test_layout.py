"""What a layout says of shards whose servers do not all answer."""

from __future__ import annotations

import pytest

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlace

A, B, C = (ServerAddress(f"tcp://{name}", name) for name in "abc")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (ShardPlace(A), True),
        (ShardPlace(A, (B,)), True),
        (ShardPlace(B), False),
        (ShardPlace(B, (A,)), None),
        (ShardPlace(B, filling=A), None),
        (ShardPlace(B, (C,)), False),
        (ShardPlace(None), False),
    ],
    ids=["served", "with a copy", "alone", "copied", "filling", "with its copy", "lost"],
)
def test_copies_of_what_does_not_answer_may_take_over(
    place: ShardPlace, expected: bool | None
) -> None:
    layout = Layout("s", 1, 1, 10.0, (ShardPlace(A), place))
    assert layout.served({A}.__contains__) is expected
