"""For how long links are waited for, and who is told that others wait for less."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import psnb
from psnb import errors
from psnb._src.cluster import links
from psnb._src.cluster.links import (
    LINK,
    SHORT_LIMITS,
    present,
    raise_limits,
    short_limits,
    warn_of_short_limits,
)
from psnb._src.dask_compat.reach import event_loop, has_ended, host_and_port, is_connected
from psnb._src.utils.threads import run_on_loop
from tests.conftest import DEADLINE, wait_until
from tests.integration.black_hole import BlackHole
from tests.integration.clusters import dask_cluster

TCP, TTL = "distributed.comm.timeouts.tcp", "distributed.scheduler.worker-ttl"
TCP_LINE = "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP=300s"
TTL_LINE = "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=300s"


@pytest.fixture(autouse=True)
def _own_settings() -> Iterator[None]:
    """Undo what is set for the whole process."""
    with dask.config.set({TCP: "30s", TTL: "5 minutes"}):
        yield


@pytest.fixture(scope="module")
def sockets() -> Iterator[LocalCluster]:
    with dask_cluster() as found:
        yield found


@pytest.mark.parametrize(
    ("tcp", "ttl", "lines"),
    [
        ("30s", "5 minutes", [TCP_LINE]),
        ("300s", "5 minutes", []),
        (600, None, []),
        ("1h", "60s", [TTL_LINE]),
        ("299s", "299s", [TCP_LINE, TTL_LINE]),
    ],
)
def test_limits_that_are_too_short_are_named_with_what_to_set(
    tcp: Any, ttl: Any, lines: list[str]
) -> None:
    with dask.config.set({TCP: tcp, TTL: ttl}):
        assert short_limits() == lines


@pytest.mark.parametrize(("tcp", "then"), [("30s", "300s"), ("1h", "1h")])
def test_limits_of_this_process_are_raised_and_never_lowered(tcp: str, then: str) -> None:
    with dask.config.set({TCP: tcp}):
        raise_limits()
        assert (dask.config.get(TCP), dask.config.get(TTL)) == (then, "5 minutes")


def test_who_waits_for_less_is_named_with_what_to_set(
    sockets: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(client: Client) -> list[str]:
        caplog.clear()
        run_on_loop(event_loop(client), lambda: warn_of_short_limits(client))
        return caplog.messages

    with Client(sockets) as client, psnb.ParameterServerStrategy(client, num_servers=1):
        assert warned(client) == []  # in one process, the strategy has raised it for all
        with dask.config.set({TCP: "30s"}):
            (text,) = warned(client)
    assert text.endswith(
        f"Set {TCP_LINE} in the environment, before they start, of the scheduler, '0', '1'"
    )


def test_who_is_asked_and_says_nothing_keeps_nobody_from_what_others_say(
    sockets: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(links, "_ASK_TIMEOUT", 0.5)
    with Client(sockets) as client, psnb.ParameterServerStrategy(client, num_servers=1):
        monkeypatch.setitem(sockets.workers[0].handlers, SHORT_LIMITS, hang)
        caplog.clear()
        with dask.config.set({TCP: "30s"}):
            run_on_loop(event_loop(client), lambda: warn_of_short_limits(client))
        (text,) = caplog.messages
    assert text.endswith(f"Set {TCP_LINE} in the environment, before they start, of the scheduler")


AT_FIRST = 1.0
"""Seconds in which a scheduler must answer at first."""


def _connects(address: str, stack: ExitStack) -> Client:
    return stack.enter_context(psnb.connect(address, timeout=AT_FIRST))


def _makes(address: str, stack: ExitStack) -> Client:
    client = stack.enter_context(Client(address, timeout=AT_FIRST))
    stack.enter_context(psnb.ParameterServerStrategy(client, num_servers=1))
    return client


def _lists(address: str, stack: ExitStack) -> Client:
    client = stack.enter_context(Client(address, timeout=AT_FIRST))
    psnb.attach(client)
    return client


def test_connections_are_made_again_after_longer_than_they_may_take_at_first(
    sockets: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_ANSWER", 0.5)
    _, port = host_and_port(sockets.scheduler_address)
    with BlackHole(port).running() as hole, ExitStack() as stack:
        address = f"tcp://127.0.0.1:{hole.port}"
        clients = {door: door(address, stack) for door in (_connects, _makes, _lists)}
        hole.cut()
        for client in clients.values():
            client.loop.add_callback(client.scheduler_comm.comm.abort)
        for door, client in clients.items():
            wait_until(lambda c=client: not is_connected(c), f"that is broken: {door.__name__}")
        threading.Event().wait(2.5 * AT_FIRST)
        statuses = {door.__name__: client.status for door, client in clients.items()}
        assert statuses == {door.__name__: "connecting" for door in clients}
        hole.mend()
        for door, client in clients.items():
            wait_until(lambda c=client: is_connected(c), f"it is made again: {door.__name__}")
            assert client.run_on_scheduler(int) == 0


def test_after_that_the_client_is_closed_and_attach_gives_all_back(
    sockets: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LINK", 1.0)
    _, port = host_and_port(sockets.scheduler_address)
    with BlackHole(port).running() as hole:
        client = psnb.connect(f"tcp://127.0.0.1:{hole.port}", timeout=1)
        strategy = psnb.ParameterServerStrategy(
            client, num_servers=1, heartbeat_timeout=0.5, name="cut off"
        )
        v = strategy.variable([0.0], "v")
        v.assign([3.0])
        hole.cut()
        client.loop.add_callback(client.scheduler_comm.comm.abort)
        wait_until(lambda: has_ended(client), "it has given up")
        with pytest.raises(
            errors.CoordinatorClosedError, match=r"psnb\.attach\(client, 'cut off'\)"
        ):
            strategy.variable([0.0])
    with psnb.connect(sockets.scheduler_address, timeout=DEADLINE) as client:

        def free() -> bool:
            (found,) = psnb.attach(client)
            return not found.owned

        wait_until(free, "the scheduler knows that its owner has gone")
        taken, _ = psnb.attach(client, "cut off")
        with taken:
            assert taken.parameters["v"].read() == 3


def test_the_connections_of_a_client_get_the_limit(sockets: LocalCluster) -> None:
    with Client(sockets) as client:
        socket = client.scheduler_comm.comm.stream.socket
        user_timeout = 18  # of TCP, in milliseconds
        assert socket.getsockopt(6, user_timeout) == 30_000
        psnb.attach(client)
        assert socket.getsockopt(6, user_timeout) == 1000 * LINK


def test_a_client_that_is_closed_says_how_to_get_the_strategy_back(sockets: LocalCluster) -> None:
    with psnb.connect(sockets.scheduler_address, timeout=DEADLINE) as client:
        strategy = psnb.ParameterServerStrategy(client, num_servers=1, name="mine")
    with pytest.raises(errors.CoordinatorClosedError, match=r"psnb\.attach\(client, 'mine'\)"):
        strategy.variable([0.0])
    with psnb.connect(sockets.scheduler_address, timeout=DEADLINE) as client:
        psnb.attach(client, "mine")[0].close()


def test_nothing_begins_on_a_process_that_is_silent_though_dask_waits_for_it() -> None:
    def cluster(**seen: float) -> dict[str, Any]:
        return {"id": "s", "workers": {name: {"last_seen": at} for name, at in seen.items()}}

    assert present(cluster(a=100.0, b=71.0, c=69.0)) == cluster(a=100.0, b=71.0)
    assert present(cluster(a=1.0)) == cluster(a=1.0)
    assert present(cluster()) == cluster()
