"""ServerWatch, with a way to the servers that behaves as it never should."""

from __future__ import annotations

import logging
import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.client.requests import Request
from psnb._src.placement.layout import ServerAddress
from psnb._src.strategy.watch import ServerWatch
from tests.conftest import DEADLINE, wait_until

LOAD = {"shards": 1, "bytes": 8, "cpu": 0, "pulls": 0, "pushes": 0, "staleness": 0, "updates": 0}


class Broken:
    """Raises what nobody expects, until it is mended."""

    def __init__(self) -> None:
        self.asked, self.next_layout = threading.Semaphore(0), threading.Event()

    def call(self, requests: list[Any]) -> list[Any]:
        self.asked.release()
        if not self.next_layout.is_set():
            raise KeyError("no PsnbError, and no OSError")
        return [(None, LOAD) for _ in requests]


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


class Counting:
    """Answers, and notes of what kind each request was."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def call(self, requests: list[Any]) -> list[Any]:
        for each in requests:
            self.asked.put("traffic" if isinstance(each, Request) else each)
        return [(None, LOAD) if isinstance(each, Request) else 0.1 for each in requests]

    def next(self, count: int) -> set[str]:
        """Return the kinds of the next requests."""
        return {self.asked.get(timeout=DEADLINE) for _ in range(count)}


def test_what_grows_with_the_parameters_is_asked_only_while_someone_looks() -> None:
    servers = SimpleNamespace(running=[ServerAddress("tcp://a", "psnb-server-0")], lost=[])
    optimizer = SimpleNamespace(
        request=lambda: "optimizer", rate_request=lambda: "rate", learning_rate=0.1
    )
    server_client, parameter = Counting(), SimpleNamespace(optimizer=optimizer, _shards=None)
    watched = ServerWatch(
        servers,  # type: ignore[arg-type]
        server_client,  # type: ignore[arg-type]
        lambda: {"table": parameter},  # type: ignore[dict-item]
        interval=0.001,
        wanted_seconds=DEADLINE,
        rarely=0.001,
    )
    watched.keep()
    assert watched.wanted()
    assert server_client.next(3) == {"optimizer", "rate", "traffic"}

    watched._wanted_seconds = -1.0  # nobody has looked for long enough
    assert not watched.wanted()
    server_client.next(20)  # what was begun before is among these
    while not server_client.asked.empty():
        server_client.asked.get()
    assert server_client.next(20) == {"traffic"}

    watched._wanted_seconds = DEADLINE
    watched.keep()
    wait_until(lambda: server_client.next(1) != {"traffic"}, "optimizers are asked for again")
    watched.stop()


def test_who_looks_again_wakes_it() -> None:
    servers = SimpleNamespace(running=[ServerAddress("tcp://a", "psnb-server-0")], lost=[])
    server_client = Counting()
    watched = ServerWatch(
        servers,  # type: ignore[arg-type]
        server_client,  # type: ignore[arg-type]
        dict,
        wanted_seconds=-1.0,
        rarely=10 * DEADLINE,
    )
    for _ in range(3):
        watched.keep()
        assert server_client.next(1) == {"traffic"}
    watched.stop()


class Working:
    """Has used a thousand seconds more of CPU time whenever it is asked."""

    cpu = 0

    def call(self, requests: list[Any]) -> list[Any]:
        self.cpu += 1_000_000_000
        return [(None, {**LOAD, "cpu": self.cpu}) for _ in requests]


def test_the_cpu_time_of_a_server_is_known_from_the_second_look_on() -> None:
    servers = SimpleNamespace(running=[ServerAddress("tcp://a", "psnb-server-0")], lost=[])
    watched = ServerWatch(servers, Working(), dict, wanted_seconds=DEADLINE)  # type: ignore[arg-type]
    (first, second) = (watched._ask(servers.running[0]) for _ in range(2))
    assert first.cpu is None
    assert second.cpu is not None
    assert second.cpu > 1.0
