"""When a server that leaves holds nothing that others should have first."""

from __future__ import annotations

import pytest

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlace
from psnb._src.strategy.departures import holds

A, B, C = (ServerAddress(f"tcp://{name}", name) for name in "abc")


@pytest.mark.parametrize(
    ("place", "replicas", "others", "expected"),
    [
        (ShardPlace(A), 0, 1, True),
        (ShardPlace(B), 0, 1, False),
        (ShardPlace(B, leaving=(A,)), 0, 1, True),
        (ShardPlace(B, (A,)), 1, 2, True),
        (ShardPlace(B, (A,)), 1, 1, False),
        (ShardPlace(A, (B,), heir=B), 1, 1, True),
    ],
    ids=["primary", "elsewhere", "not let go", "copy", "copy without room", "handing over"],
)
def test_it_does_while_it_is_needed(
    place: ShardPlace, replicas: int, others: int, expected: bool
) -> None:
    layout = Layout("s", 1, replicas, 10.0, (ShardPlace(B), place))
    assert holds(layout, A, others) is expected
