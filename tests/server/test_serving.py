"""The messages of one connection to a server, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psnb._src.server import serving
from psnb._src.server.messages import ServerRequest
from psnb._src.server.operations import CreateDense, OnShard
from psnb._src.server.serving import ParameterServers, _Server
from psnb._src.utils.version import own_version
from tests.server.standby import THREADS

MAKING = ServerRequest(1, "key", [OnShard(0, CreateDense("v", np.zeros(3), None))])
NEXT = ServerRequest(2, "key", [])


class Stream:
    """Brings two messages, then breaks."""

    def __init__(self) -> None:
        self.messages: list[Any] = [True, MAKING, NEXT]
        self.aborted = False

    async def receive(self, kind: type) -> Any:
        return self.messages.pop(0)

    async def run(self, kind: type, take: Callable[[Any], Awaitable[None] | None]) -> None:
        while self.messages:
            if (rest := take(self.messages.pop(0))) is not None:
                await rest
        raise ConnectionResetError

    def flush(self) -> None:
        """Nothing waits here."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """There is no shared memory."""

    def abort(self) -> None:
        self.aborted = True


class Host:
    """Notes how many operations each message has."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.ran = fails, list[int]()

    def run(self, operations: Any, *rest: Any) -> None:
        self.ran.append(len(operations))
        if self.fails:
            raise MemoryError


def served(monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> tuple[list[int], Stream]:
    """Have the messages served; return what was run of each."""
    host, stream = Host(fails), Stream()
    monkeypatch.setattr(serving, "message_stream", lambda comm: stream)

    async def write(message: object) -> None:
        """Do not send it."""

    async def main() -> None:
        loop = SimpleNamespace(asyncio_loop=asyncio.get_running_loop())
        worker: Any = SimpleNamespace(handlers={}, loop=loop, address="here")
        servers = ParameterServers(worker, lambda address, opening: None)
        servers._making = THREADS
        servers._servers["key"] = _Server("key", host)  # type: ignore[arg-type]
        comm: Any = SimpleNamespace(write=write)
        await servers._serve(comm, psnb=own_version())

    if fails:
        with pytest.raises(MemoryError):
            asyncio.run(main())
    else:
        asyncio.run(main())
    return host.ran, stream


def test_those_behind_one_that_takes_long_are_run_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert served(monkeypatch)[0] == [1, 0]


def test_all_are_run_without_memory_to_prepare_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(serving, "_made", prepared)
    assert served(monkeypatch)[0] == [1, 0]


def test_the_connection_ends_with_one_that_cannot_be_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran, stream = served(monkeypatch, fails=True)
    assert ran == [1]
    assert stream.aborted
