"""ServerWatch, with a way to the servers that behaves as it never should."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.placement.layout import ServerAddress
from psnb._src.strategy import watch

DEADLINE = 10.0
LOAD = {"shards": 1, "bytes": 8, "pulls": 0, "pushes": 0, "staleness": 0, "updates": 0}


class Broken:
    """Raises what nobody expects, until it is mended."""

    def __init__(self) -> None:
        self.asked, self.mended = threading.Semaphore(0), threading.Event()

    def call(self, requests: list[Any]) -> list[Any]:
        self.asked.release()
        if not self.mended.is_set():
            raise KeyError("no PsnbError, and no OSError")
        return [LOAD for _ in requests]


def test_what_nobody_expected_is_logged_once_and_the_servers_are_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "_INTERVAL", 0.001)
    servers = SimpleNamespace(running=[ServerAddress("tcp://a", "psnb-server-0")], lost=[])
    server_client = Broken()
    watched = watch.ServerWatch(servers, server_client, dict)  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR, "psnb"):
        watched.keep()
        for _ in range(4):  # for the optimizers and the servers, more than once each
            assert server_client.asked.acquire(timeout=DEADLINE)
        server_client.mended.set()
        for _ in range(6):  # the first may have been on its way
            assert server_client.asked.acquire(timeout=DEADLINE)
    assert [server.state for server in watched.statistics()] == ["serving"]
    watched.stop()
    assert len([r for r in caplog.records if r.name == "psnb"]) == 1
