"""Connections to servers that break, and servers that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from logging.handlers import QueueHandler
from typing import Any

import pytest
from distributed import Security
from distributed.comm import Comm
from distributed.core import ConnectionPool, Server, Status
from distributed.utils import LoopRunner

from psnb import errors
from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.requests import Request
from psnb._src.placement.layout import ServerAddress
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.server.messages import Done, ServerReply, ServerRequest
from psnb._src.server.operations import CountTraffic
from psnb._src.server.serving import HANDLER
from psnb._src.transport import connecting
from psnb._src.transport.stream import message_stream
from tests.conftest import DEADLINE


class Flaky:
    """A Dask server on a loop of its own, which breaks the first connections."""

    def __init__(self, heartbeat_timeout: float) -> None:
        self.calls = self.breaks = 0
        self._runner = LoopRunner()
        self._runner.start()
        self.address = self._runner.run_sync(self._start)

        async def ask(strategy: str) -> Any:
            return None

        self.transport = CommServerClient(
            self._runner.loop.asyncio_loop,
            self._pool,
            LayoutCache(ask),
            heartbeat_timeout=heartbeat_timeout,
        )

    async def _start(self) -> str:
        async def answer(comm: Comm, probe: Any, psnb: str) -> Status:
            await comm.write({"status": "OK", "probe": None, "sees": False})
            stream = message_stream(comm)
            with contextlib.suppress(OSError):
                await stream.receive(bool)
                while True:
                    request = await stream.receive(ServerRequest)
                    self.calls += 1
                    if self.calls <= self.breaks:
                        stream.abort()
                    stream.send(ServerReply(request.number, [Done(self.calls)]))
            stream.abort()
            return Status.dont_reply

        self._server = Server({HANDLER: answer})
        await self._server.listen("tcp://127.0.0.1:0")
        self._pool = ConnectionPool()
        await self._pool.start()
        return self._server.address

    def call(self) -> Any:
        """Ask the server for something."""
        server = ServerAddress(self.address, "key")
        return self.transport.call([Request(server, CountTraffic())])[0]

    def close(self) -> None:
        async def close() -> None:
            await self._pool.close()
            await self._server.close()

        self._runner.run_sync(close)
        self._runner.stop()


@pytest.fixture
def flaky(request: pytest.FixtureRequest) -> Iterator[Flaky]:
    server = Flaky(getattr(request, "param", 10.0))
    yield server
    server.close()


def test_a_request_without_an_answer_is_sent_again(flaky: Flaky) -> None:
    flaky.breaks = 3
    assert flaky.call() == 4


@pytest.mark.parametrize("flaky", [0.5], indirect=True)
def test_a_connection_that_breaks_each_time_is_a_lost_server(flaky: Flaky) -> None:
    flaky.breaks = 100
    with pytest.raises(errors.ServerUnresponsiveError, match="does not answer"):
        flaky.call()
    assert 4 <= flaky.calls < 50


@pytest.mark.parametrize("flaky", [2 * DEADLINE], indirect=True)
def test_a_process_that_is_gone_is_noticed_before_patience_is_over(flaky: Flaky) -> None:
    with socket.socket() as nobody:  # bound, and not listening: the port refuses
        nobody.bind(("127.0.0.1", 0))
        flaky.address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(errors.ServerLostError, match="its process is gone"):
            flaky.call()
        assert time.monotonic() - begin < DEADLINE


def test_a_connection_that_takes_its_time_is_waited_for(
    flaky: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, refused = flaky._pool.connect, connecting._refused
    asked = asyncio.Event()

    async def slowly(*args: Any, **kwargs: Any) -> Comm:
        await asked.wait()  # it takes so long that somebody looks whether the process is there
        return await at_once(*args, **kwargs)

    async def looked(address: str, context: Any) -> bool:
        found = await refused(address, context)
        asked.set()
        return found

    monkeypatch.setattr(flaky._pool, "connect", slowly)
    monkeypatch.setattr(connecting, "_refused", looked)
    assert flaky.call() == 1


def test_looking_whether_a_process_is_there_fails_no_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connecting, "_SLOW", DEADLINE)
    monkeypatch.setattr(connecting, "_HANDSHAKE", DEADLINE)
    security, logger = Security.temporary(), logging.getLogger("distributed.comm.tcp")
    said: asyncio.Queue[logging.LogRecord] = asyncio.Queue()
    handler = QueueHandler(said)  # type: ignore[arg-type]

    async def look() -> tuple[bool, str]:
        server = Server({})
        await server.listen("tls://127.0.0.1:0", **security.get_listen_args("worker"))
        context = security.get_connection_args("client")["ssl_context"]
        refused = await connecting._refused(server.address, context)
        async with asyncio.timeout(DEADLINE):
            record = await said.get()
        await server.close()
        return refused, record.getMessage()

    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        refused, message = asyncio.run(look())
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert not refused
    assert "closed before handshake completed" in message  # Dask's own, which follows that of TLS


def test_a_pool_that_was_closed_is_a_connection_that_ended() -> None:
    async def connect() -> None:
        pool = ConnectionPool()
        await pool.close()
        with pytest.raises(ConnectionAbortedError, match="closed"):
            await connecting.connect(pool, "tcp://127.0.0.1:1", 1)

    asyncio.run(connect())
