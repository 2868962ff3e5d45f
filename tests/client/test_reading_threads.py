"""Threads that read the answers of servers themselves, on a real cluster: forced interleavings."""

from __future__ import annotations

import asyncio
import queue
import select
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.client import comm_client
from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.connection import ServerConnection
from psnb._src.client.requests import Request, RequestBatch, on_table
from psnb._src.dask_compat.reach import event_loop, pool_of
from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import Done
from psnb._src.server.operations import CountTraffic
from psnb._src.server.tables.operations import AddValues, ReadValues
from psnb._src.server.tables.operations import on_table as on_shard
from psnb._src.transport.turns import SocketByTurns, read_while
from psnb.errors import ConfigurationError, ServerLostError, ServerUnresponsiveError
from tests.client.test_comm_client import connected
from tests.conftest import DEADLINE
from tests.integration.helpers import frozen, pid_of

PROCESSES = True  # whose connections are sockets, and which can be frozen

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="threads do not read there")


def socket_to(transport: CommServerClient, server: ServerAddress) -> SocketByTurns:
    socket = transport._open[server.address].stream.by_turns
    assert socket is not None
    return socket


@pytest.fixture
def takers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads that have taken answers."""
    found, real = [], ServerConnection._deliver

    def noted(connection: ServerConnection, reply: Any) -> None:
        found.append(threading.current_thread())
        real(connection, reply)

    monkeypatch.setattr(ServerConnection, "_deliver", noted)
    return found


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what is set when a thread has taken the turn to read."""
    event, real = threading.Event(), SocketByTurns.hold

    def noted(socket: SocketByTurns) -> bool:
        took = real(socket)
        event.set()
        return took

    monkeypatch.setattr(SocketByTurns, "hold", noted)
    return event


def process_of(cluster: Client, server: ServerAddress) -> int:
    workers = cluster.scheduler_info(n_workers=-1)["workers"]
    return pid_of(cluster, workers[server.address]["name"])


def test_a_thread_reads_its_answer_itself(
    strategy: psnb.ParameterServerStrategy,
    cluster: Client,
    takers: list[threading.Thread],
    held: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comm_client, "_READS_ITSELF", DEADLINE)
    variable, _, server, _ = connected(strategy)
    with ThreadPoolExecutor(1) as pool:
        with frozen(process_of(cluster, server)):
            found = pool.submit(lambda: (variable.read(), threading.current_thread()))
            assert held.wait(DEADLINE)
            takers.clear()
        value, thread = found.result(DEADLINE)
    assert value.tolist() == [0]
    assert takers == [thread]


def test_a_thread_that_reads_gives_up_a_server_that_does_not_answer(
    strategy: psnb.ParameterServerStrategy, cluster: Client, held: threading.Event
) -> None:
    _, shard, server, _ = connected(strategy)

    async def ask(name: str) -> Any:
        there = (ShardPlacement(server),) * (shard.number + 1)
        return Layout(name, 1, 1, 0.2, there).packed()

    transport = CommServerClient(
        event_loop(cluster), pool_of(cluster), LayoutCache(ask), look_again=0.1
    )
    read = [on_table(shard, "v", ReadValues())]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(transport.call, read).result(DEADLINE)[0].tolist() == [0]
        held.clear()
        with frozen(process_of(cluster, server)):
            (outcome,) = pool.submit(transport.attempt, read).result(DEADLINE)
        assert held.is_set()
        assert isinstance(outcome, ServerUnresponsiveError)
        # The late answer, too, harms nobody.
        assert pool.submit(transport.call, read).result(DEADLINE)[0].tolist() == [0]
    transport.close()


def asked_while_a_thread_reads(
    cluster: Client,
    transport: CommServerClient,
    server: ServerAddress,
    request: Request,
    takers: list[threading.Thread],
) -> Any:
    """Return the outcome of a request of the event loop itself, whose answer this thread reads."""
    takers.clear()
    loop = event_loop(cluster)
    loop.set_debug(True)  # it refuses calls of other threads that might not wake it
    asked: list[Future[list[Any]]] = []

    def waits() -> bool:
        if not asked:
            asked.append(asyncio.run_coroutine_threadsafe(transport.ask([request]), loop))
        return not takers

    try:
        read_while(waits, [socket_to(transport, server)], DEADLINE)
    finally:
        loop.set_debug(False)
    (outcome,) = asked[0].result(DEADLINE)
    assert takers[0] is threading.current_thread()
    return outcome


def test_the_loops_own_request_is_answered_while_a_thread_reads(
    strategy: psnb.ParameterServerStrategy, cluster: Client, takers: list[threading.Thread]
) -> None:
    _, shard, server, transport = connected(strategy)
    request = on_table(shard, "v", ReadValues())
    value = asked_while_a_thread_reads(cluster, transport, server, request, takers)
    assert value.tolist() == [0]


def test_what_a_thread_reads_may_have_to_be_sent_again(
    strategy: psnb.ParameterServerStrategy, cluster: Client, takers: list[threading.Thread]
) -> None:
    _, _, server, transport = connected(strategy)
    gone = Request(ServerAddress(server.address, "psnb-server-gone"), CountTraffic())
    outcome = asked_while_a_thread_reads(cluster, transport, server, gone, takers)
    assert isinstance(outcome, ServerLostError)


def test_a_commit_that_no_thread_waits_for_ends_where_its_answer_is_read(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    variable, shard, server, transport = connected(strategy)
    ended: queue.SimpleQueue[tuple[Any, threading.Thread]] = queue.SimpleQueue()
    part = Part([on_shard("v", AddValues(np.ones(1)))])
    begun = []

    def waits() -> bool:
        if not begun:
            begun.append(Commit("w", 1, shards=(shard,)))
            transport.commit_soon(
                begun[0], {shard: part}, lambda end: ended.put((end, threading.current_thread()))
            )
            transport.flush()
            transport._loop.call_soon_threadsafe(bool)
        return ended.empty()

    read_while(waits, [socket_to(transport, server)], DEADLINE)
    assert ended.get(timeout=DEADLINE) == (None, threading.current_thread())
    assert variable.read().tolist() == [1]


def test_what_follows_an_answer_asks_for_nothing_in_the_thread_that_reads(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the repr of an argument in an error's text. It would wait for what only it reads.
    monkeypatch.setattr(comm_client, "CALL_TIMEOUT", 1.0)
    variable, shard, server, transport = connected(strategy)
    errors: list[Exception] = []
    part = Part([on_shard("v", AddValues(np.ones(1)))])
    begun = []

    def ended(outcome: Any) -> None:
        try:
            variable.read()
        except Exception as error:
            errors.append(error)

    def waits() -> bool:
        if not begun:
            begun.append(Commit("w", 1, shards=(shard,)))
            transport.commit_soon(begun[0], {shard: part}, ended)
            transport.flush()
            transport._loop.call_soon_threadsafe(bool)
        return not errors

    read_while(waits, [socket_to(transport, server)], DEADLINE)
    (error,) = errors
    assert isinstance(error, ConfigurationError)
    assert variable.read().tolist() == [1]


def test_a_thread_reads_nothing_while_a_part_of_its_requests_is_not_sent(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    _, shard, server, transport = connected(strategy)
    read = on_table(shard, "v", ReadValues())
    batch = RequestBatch([read, read])
    batch.sent[0] = server
    assert not transport._sockets(batch)
    batch.sent[1] = ServerAddress("tcp://127.0.0.1:1", "not connected")
    assert not transport._sockets(batch)
    batch.sent[1] = server
    assert transport._sockets(batch) == [socket_to(transport, server)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_request_that_two_threads_have_an_answer_to_counts_once(first: int) -> None:
    to, ended = ServerAddress("tcp://127.0.0.1:1", "x"), list[int]()
    batch = RequestBatch([Request(to, CountTraffic())] * 2, lambda: ended.append(1))
    meet = threading.Barrier(2)

    def answer(number: int) -> None:
        meet.wait(DEADLINE)
        batch.answered([0], [Done(number)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(answer, (first, 1 - first)))
    assert not batch.done.done()
    batch.answered([1], [Done("last")])
    assert batch.done.done()
    assert ended == [1]
    assert batch.outcomes()[1] == "last"
