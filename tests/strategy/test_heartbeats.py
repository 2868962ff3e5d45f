"""What the reconciler makes of a server's heartbeats, and when it need not hurry."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.placement.layout import ServerAddress
from psnb._src.placement.next_layout import Health, ObservedServer
from psnb._src.strategy.reconciler import WatchedServer


def watched() -> tuple[WatchedServer, Any, asyncio.Event]:
    """Return a server that is watched, its connection, and the event of its news."""
    connection = SimpleNamespace(heard=1, connected=True, on_broken=bool)
    control: Any = SimpleNamespace(connection=lambda server: connection, heartbeat_timeout=10.0)
    news = asyncio.Event()
    return WatchedServer(ServerAddress("tcp://a", "psnb-server-0"), control, news), connection, news


def test_a_connection_that_breaks_is_news_though_nothing_was_asked() -> None:
    _, connection, news = watched()
    connection.on_broken()
    assert news.is_set()


@pytest.mark.parametrize(
    ("observed", "well"),
    [
        (ObservedServer(Health.ALIVE, 3), True),
        (ObservedServer(Health.ALIVE, 2), False),  # it has not followed the layout
        (ObservedServer(Health.ALIVE, 3, leaves=True), False),
        (ObservedServer(Health.ALIVE, 3, writes=True), False),
        (ObservedServer(Health.UNRESPONSIVE, 3), False),
        (ObservedServer(Health.GONE), False),
    ],
)
def test_there_is_no_hurry_while_nothing_is_pending(observed: ObservedServer, well: bool) -> None:
    server, connection, _ = watched()
    server.observed = observed
    assert server.is_well(3) == well
    connection.connected = False
    assert not server.is_well(3)


def test_a_server_that_has_missed_a_beat_is_asked_more_often() -> None:
    server, connection, _ = watched()
    server.observed = ObservedServer(Health.ALIVE, 3)
    server.pass_time(1.0)  # it has been heard
    assert server.is_well(3)
    server.pass_time(1.0)
    assert not server.is_well(3)
    connection.heard += 1
    server.pass_time(0.2)
    assert server.is_well(3)


def test_seconds_of_silence_are_counted_as_they_pass() -> None:
    server, _, _ = watched()
    server.observed = ObservedServer(Health.ALIVE, 3)
    for passed in (1.0, *[1.0] * 9, 0.8):  # the first has an answer
        server.pass_time(passed)
    assert not server.is_unresponsive
    server.pass_time(0.2)
    assert server.is_unresponsive
    assert server.observed.health is Health.UNRESPONSIVE
