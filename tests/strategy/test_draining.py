"""When a server that leaves holds nothing that others should have first."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from psnb._src.monitor.events import EventLog
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.strategy.draining import ServerDraining, holds

A, B, C = (ServerAddress(f"tcp://{name}", name) for name in "abc")


@pytest.mark.parametrize(
    ("placement", "replicas", "others", "expected"),
    [
        (ShardPlacement(A), 0, 1, True),
        (ShardPlacement(B), 0, 1, False),
        (ShardPlacement(B, leaving=(A,)), 0, 1, True),
        (ShardPlacement(B, (A,)), 1, 2, True),
        (ShardPlacement(B, (A,)), 1, 1, False),
        (ShardPlacement(A, (B,), successor=B), 1, 1, True),
    ],
    ids=["primary", "elsewhere", "not let go", "copy", "copy without room", "handing over"],
)
def test_it_does_while_it_is_needed(
    placement: ShardPlacement, replicas: int, others: int, expected: bool
) -> None:
    layout = Layout("s", 1, replicas, 10.0, (ShardPlacement(B), placement))
    assert holds(layout, A, others) is expected


class Given:
    """Servers, of which those are noted that are given up."""

    def __init__(self) -> None:
        self.events, self.up = EventLog(), list[ServerAddress]()

    def give_up(self, server: ServerAddress) -> None:
        self.up.append(server)


def test_it_stays_until_it_has_written_its_part_of_a_checkpoint() -> None:
    servers, layout = Given(), Layout("s", 1, 0, 10.0, (ShardPlacement(B),))
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        departures = ServerDraining(loop, servers)  # type: ignore[arg-type]
        departures.follow(layout, {A}, [B], writing={A})
        assert servers.up == []
        departures.follow(layout, {A}, [B])
        assert servers.up == [A]
