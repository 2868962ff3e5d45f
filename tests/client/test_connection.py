"""What there is no memory for, here, is the answer of who asked; others go on."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.connection import ServerConnection
from psnb._src.server.messages import Done, Failed, ServerAnswer, ServerReply
from psnb._src.server.tables.operations import Operation
from psnb._src.transport.stream import MessageStream, UnreceivedError
from psnb.errors import ServerMemoryError


class Stream:
    """Receives what the test puts there, and has memory to send or not."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.has_memory = True

    def send(self, message: object, *, later: bool) -> None:
        if not self.has_memory:
            raise MemoryError

    async def run(self, kind: type[Any], take: Callable[[Any], None]) -> None:
        while True:
            found = await self.incoming.get()
            if isinstance(found, Exception):
                raise found
            take(found)

    def abort(self) -> None: ...


class Asked:
    """A request, and its answers."""

    def __init__(self) -> None:
        self.answers: Sequence[ServerAnswer] | None = None

    def message(self) -> tuple[str, Sequence[Operation]]:
        return "key", []

    def answered(self, answers: Sequence[ServerAnswer] | None) -> None:
        self.answers = answers


def reply(number: int) -> ServerReply:
    return ServerReply(number, [Done(number)])


def test_an_answer_that_there_is_no_memory_to_receive_fails_its_request_only() -> None:
    async def ask() -> list[Asked]:
        stream = Stream()
        connection = ServerConnection(
            stream,  # type: ignore[arg-type]
            lambda requests, error: None,
            lambda: None,
            shared=False,
        )
        asked = [Asked() for _ in range(3)]
        for each in asked:
            connection.send(each)
        stream.incoming.put_nowait(UnreceivedError(pickle.dumps(reply(1), protocol=5), 5_000))
        for number in (0, 2):
            stream.incoming.put_nowait(reply(number))
        while any(each.answers is None for each in asked):
            await asyncio.sleep(0)
        stream.incoming.put_nowait(ConnectionResetError())
        await connection._reader
        return asked

    first, second, third = asyncio.run(ask())
    assert (first.answers, third.answers) == ([Done(0)], [Done(2)])
    assert second.answers is not None
    (answer,) = second.answers
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, ServerMemoryError)
    assert "this process has no memory for the answer of a parameter server" in str(answer.error)
    assert "5,000 bytes more" in str(answer.error)


def test_what_was_not_sent_is_not_sent_again_when_the_connection_breaks() -> None:
    async def ask() -> list[Any]:
        stream, broken = Stream(), list[Any]()
        connection = ServerConnection(
            stream,  # type: ignore[arg-type]
            lambda requests, error: broken.extend(requests),
            lambda: None,
            shared=False,
        )
        connection.send(sent := Asked())
        stream.has_memory = False
        with pytest.raises(MemoryError):
            connection.send(Asked())
        stream.incoming.put_nowait(ConnectionResetError())
        await connection._reader
        return [each is sent for each in broken]

    assert asyncio.run(ask()) == [True]


def test_a_request_that_there_is_no_memory_to_send_fails_at_once_and_the_next_is_sent(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = strategy.variable([1.0, 2.0], "v")
    with monkeypatch.context() as without:

        def no_memory(self: MessageStream, message: object, *, later: bool) -> None:
            raise MemoryError

        without.setattr(MessageStream, "send", no_memory)
        with pytest.raises(ServerMemoryError, match="this process has no memory for a request"):
            v.read()
    assert v.read().tolist() == [1, 2]


def test_a_change_stands_whose_answer_there_was_no_memory_for(
    strategy: psnb.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = strategy.variable([1.0, 2.0], "v", psnb.SGD(1.0))
    send, lacking = MessageStream.send, list[type]()

    def once(self: MessageStream, message: object, *, later: bool = False) -> None:
        match message:
            case ServerReply(answers=[Done(result)]) if lacking and isinstance(result, lacking[-1]):
                lacking.pop()
                raise MemoryError
        send(self, message, later=later)

    monkeypatch.setattr(MessageStream, "send", once)
    lacking.append(type(None))
    v.push(np.ones(2, np.float32))
    assert not lacking
    lacking.append(np.ndarray)
    with pytest.raises(ServerMemoryError, match="has no memory for the answer to a request"):
        v.read()
    assert v.read().tolist() == [0, 1]
