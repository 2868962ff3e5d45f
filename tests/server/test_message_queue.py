"""The messages of one connection to a server, in their order."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from psnb._src.server import serving
from psnb._src.server.messages import ServerRequest
from psnb._src.server.operations import CreateDense, OnShard
from psnb._src.server.serving import _MessageQueue
from psnb._src.utils.standby import StandbyThreads
from tests.server.standby import THREADS

MAKING = ServerRequest(1, "key", [OnShard(0, CreateDense("v", np.zeros(3), None))])
NEXT = ServerRequest(2, "key", [])


class Stream:
    aborted = False

    def abort(self) -> None:
        self.aborted = True


def who_prepares(request: ServerRequest) -> StandbyThreads | None:
    return THREADS if request is MAKING else None


def taken(fails: bool = False) -> tuple[list[int], Stream]:
    """Have two messages taken; return the numbers of those that were run."""
    run: list[int] = []
    stream = Stream()

    def carry_out(stream: Any, request: ServerRequest, made: Any) -> None:
        run.append(request.number)
        if fails:
            raise MemoryError

    async def main() -> None:
        queue = _MessageQueue(stream, carry_out, who_prepares)  # type: ignore[arg-type]
        for each in (MAKING, NEXT):
            queue.take(each)
        assert queue._making is not None
        await asyncio.wait([queue._making])
        await asyncio.sleep(0)

    asyncio.run(main())
    return run, stream


def test_those_behind_one_that_takes_long_are_run_after_it() -> None:
    assert taken()[0] == [1, 2]


def test_all_are_run_without_memory_to_prepare_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(request: ServerRequest) -> None:
        raise MemoryError

    monkeypatch.setattr(serving, "_prepared", prepared)
    assert taken()[0] == [1, 2]


def test_the_connection_ends_with_one_that_cannot_be_run() -> None:
    run, stream = taken(fails=True)
    assert run == [1]
    assert stream.aborted
