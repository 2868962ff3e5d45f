"""ServerWatch, with a way to the servers that behaves as it never should."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.placement.layout import ServerAddress
from psnb._src.strategy.watch import ServerWatch
from tests.conftest import DEADLINE, wait_until

LOAD = {"shards": 1, "bytes": 8, "pulls": 0, "pushes": 0, "staleness": 0, "updates": 0}


class Broken:
    """Raises what nobody expects, until it is mended."""

    def __init__(self) -> None:
        self.asked, self.next_layout = threading.Semaphore(0), threading.Event()

    def call(self, requests: list[Any]) -> list[Any]:
        self.asked.release()
        if not self.next_layout.is_set():
            raise KeyError("no PsnbError, and no OSError")
        return [LOAD for _ in requests]


def test_an_unexpected_error_is_logged_once_and_the_servers_are_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = SimpleNamespace(running=[ServerAddress("tcp://a", "psnb-server-0")], lost=[])
    server_client = Broken()
    watched = ServerWatch(
        servers,  # type: ignore[arg-type]
        server_client,  # type: ignore[arg-type]
        dict,
        interval=0.001,
        wanted_seconds=2 * DEADLINE,
    )
    with caplog.at_level(logging.ERROR, "psnb"):
        watched.keep()
        for _ in range(4):  # for the optimizers and the servers, more than once each
            assert server_client.asked.acquire(timeout=DEADLINE)
        server_client.next_layout.set()
        wait_until(
            lambda: [server.state for server in watched.statistics()] == ["serving"],
            "the servers are asked again",
        )
    watched.stop()
    said = [record.message for record in caplog.records if record.name == "psnb"]
    assert len(said) == len(set(said)) == 2
