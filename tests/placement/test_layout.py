"""What a layout says of shards whose servers do not all answer."""

from __future__ import annotations

import pytest

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement

A, B, C = (ServerAddress(f"tcp://{name}", name) for name in "abc")


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (ShardPlacement(A), True),
        (ShardPlacement(A, (B,)), True),
        (ShardPlacement(B), False),
        (ShardPlacement(B, (A,)), None),
        (ShardPlacement(B, syncing=A), None),
        (ShardPlacement(B, (C,)), False),
        (ShardPlacement(None), False),
    ],
    ids=["served", "with a replica", "alone", "copied", "filling", "with its copy", "lost"],
)
def test_copies_of_what_does_not_answer_may_take_over(
    placement: ShardPlacement, expected: bool | None
) -> None:
    layout = Layout("s", 1, 1, 10.0, (ShardPlacement(A), placement))
    assert layout.served({A}.__contains__) is expected
