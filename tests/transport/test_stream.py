"""Messages over Dask's connections: the same for every kind of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from distributed.comm import Comm, CommClosedError, connect, listen
from tornado.iostream import StreamClosedError

from psnb._src.protocol.messages import RunClosures, SignOfLife
from psnb._src.server.messages import Done, ServerReply, ServerRequest
from psnb._src.server.operations import OnShard
from psnb._src.server.tables.operations import OnTables, PushRows, ReadValues
from psnb._src.transport import frames, shared_memory
from psnb._src.transport import stream as stream_module
from psnb._src.transport.message import Message
from psnb._src.transport.stream import (
    MessageStream,
    UnreadableError,
    UnreceivedError,
    _SocketStream,
    message_stream,
)

ADDRESSES = ["tcp://127.0.0.1:0", "inproc://", "ws://127.0.0.1:0"]


def converse(address: str, talk: Callable[[MessageStream], Awaitable[None]]) -> None:
    """Connect to something that sends back what it gets, and talk."""

    async def echo(comm: Comm) -> None:
        stream = message_stream(comm)
        try:
            while True:
                message = await stream.receive(object)
                stream.send(message, later=stream.has_more)
                if isinstance(message, str) and message == "share":
                    stream.share(os.getpid(), seen=True)
                del message
        except OSError:
            stream.abort()

    async def run() -> None:
        async with listen(address, echo) as listener:  # type: ignore[attr-defined]
            stream = message_stream(await connect(listener.contact_address))
            try:
                async with asyncio.timeout(10):
                    await talk(stream)
            finally:
                stream.abort()
                await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "message",
    [None, {"a": [1, "x", b"bytes"]}, b"z" * 1_000_000, ("short", b"y" * 70_000, "end")],
    ids=["none", "nested", "large", "mixed"],
)
def test_a_message_arrives_as_it_was_sent(address: str, message: Any) -> None:
    async def talk(stream: MessageStream) -> None:
        stream.send(message)
        assert await stream.receive(object) == message

    converse(address, talk)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("size", [0, 3, 10_000, 1_000_000])
def test_arrays_arrive_as_copies_that_can_be_written(address: str, size: int) -> None:
    async def talk(stream: MessageStream) -> None:
        sent = np.arange(size, dtype=np.float32)
        stream.send({"a": sent, "twice": [sent[:2]]})
        got = await stream.receive(object)
        np.testing.assert_array_equal(got["a"], sent)
        got["a"][...] = -1
        assert not (sent == -1).any()

    converse(address, talk)


ARRAYS = {
    "of no axis": np.array(2.5, "f4"),
    "empty": np.zeros((0, 3), "f8"),
    "large": np.arange(100_000, dtype="f4").reshape(100, 1000),
    "of booleans": np.array([True, False]),
    "complex": np.array([1 + 2j], "c8"),
    "by columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "with gaps": np.arange(20)[::3],
    "read-only": np.frombuffer(b"12345678", "i4"),
    "of other byte order": np.array([1, 2, 3], ">i8"),
    "of texts": np.array(["a", "bcd"]),
    "of dates": np.array(["2020-01-02"], "M8[D]"),
    "of objects": np.array([None, {"a": 1}], object),
    "of records": np.array([(1, 2.0)], "i4,f8"),
    "masked": np.ma.masked_array([1, 2], [True, False]),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_an_array_arrives_with_its_type_and_shape(what: str) -> None:
    async def talk(stream: MessageStream) -> None:
        sent = ARRAYS[what]
        stream.send((sent, sent))
        got, again = await stream.receive(object)
        assert (type(got), got.dtype, got.shape) == (type(sent), sent.dtype, sent.shape)
        assert got.tolist() == sent.tolist()
        assert got.flags.writeable is sent.flags.writeable
        assert again is got

    converse("tcp://127.0.0.1:0", talk)


def test_a_message_within_others_arrives_as_it_was_sent() -> None:
    request = ServerRequest(1, "key", [OnShard(2, OnTables(("v",), ReadValues(half=True)))])

    async def talk(stream: MessageStream) -> None:
        for message in (request, ServerRequest(2, "key", []), ServerReply(3, None)):
            stream.send(message)
            assert await stream.receive(Message) == message

    converse("tcp://127.0.0.1:0", talk)


@pytest.mark.parametrize("shared", [True, False])
def test_who_keeps_a_small_array_keeps_none_of_the_others(shared: bool) -> None:
    async def talk(stream: MessageStream) -> None:
        if shared:
            stream.share(os.getpid(), seen=True)
            stream.send("share")
            assert await stream.receive(object) == "share"
        sent = [np.full(1000 + number, number) for number in range(100)]
        stream.send(sent)
        for array, kept in zip(sent, await stream.receive(object), strict=True):
            np.testing.assert_array_equal(kept, array)
            memory = kept
            while isinstance(memory, np.ndarray):
                memory = memory.base
            assert memoryview(memoryview(memory).obj).nbytes == array.nbytes

    converse("tcp://127.0.0.1:0", talk)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("address", ADDRESSES)
def test_arrays_in_lent_memory_arrive_as_others_do(address: str, shared: bool) -> None:
    async def talk(stream: MessageStream) -> None:
        if shared:
            stream.share(os.getpid(), seen=True)
            stream.send("share")
            assert await stream.receive(object) == "share"
        for number in range(5):
            lent = stream.allocate((100, 500), np.dtype("f4"))
            assert (lent is not None) is address.startswith("tcp")
            array = np.empty((100, 500), "f4") if lent is None else lent
            array[...] = number
            stream.send(("x", array))
            _, got = await stream.receive(object)
            np.testing.assert_array_equal(got, np.full((100, 500), number, "f4"))

    converse(address, talk)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_array_may_change_once_it_was_sent(address: str) -> None:
    async def talk(stream: MessageStream) -> None:
        array = np.zeros(5_000_000, np.float32)  # more than a socket takes at once
        stream.send(array)
        array[...] = 1
        assert not (await stream.receive(object)).any()

    converse(address, talk)


def test_what_was_received_may_change_once_it_was_sent_again() -> None:
    async def talk(stream: MessageStream) -> None:
        stream.send(np.zeros(5_000_000, np.float32))
        got = await stream.receive(object)
        stream.send(got)
        got[...] = 1
        assert not (await stream.receive(object)).any()

    converse("tcp://127.0.0.1:0", talk)


def test_a_socket_is_written_from_lent_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(stream: MessageStream) -> None:
        lent = stream.allocate((5_000_000,), np.dtype("f4"))
        assert lent is not None
        lent[...] = 3
        copies: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(stream_module._sent, "allocate", copies.append)
            stream.send(lent)
        assert not copies
        assert ((await stream.receive(object)) == 3).all()

    converse("tcp://127.0.0.1:0", talk)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_object_of_a_class_that_no_module_has_arrives(address: str) -> None:
    class Local:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

    async def talk(stream: MessageStream) -> None:
        stream.send(Local(np.arange(3)))
        assert (await stream.receive(object)).array.tolist() == [0, 1, 2]

    converse(address, talk)


@pytest.mark.parametrize("address", ADDRESSES)
def test_many_messages_keep_their_order(address: str) -> None:
    async def talk(stream: MessageStream) -> None:
        messages = [(n, bytes(n * 37 % 90_000)) for n in range(0, 5000, 7)]
        for message in messages:
            stream.send(message)
        for message in messages:
            assert await stream.receive(object) == message

    converse(address, talk)


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_receiver_learns_of_the_end_and_the_sender_does_not(address: str) -> None:
    async def hang_up(comm: Comm) -> None:
        comm.abort()

    async def run() -> None:
        async with listen(address, hang_up) as listener:  # type: ignore[attr-defined]
            stream = message_stream(await connect(listener.contact_address))
            with pytest.raises((CommClosedError, StreamClosedError)):
                async with asyncio.timeout(10):
                    await stream.receive(object)
            stream.send("nobody hears this")
            stream.abort()
            await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize("address", ADDRESSES)
def test_threads_may_send_at_the_same_time_and_messages_stay_whole(address: str) -> None:
    each, threads = 200, 4

    async def talk(stream: MessageStream) -> None:
        def send(thread: int) -> None:
            for number in range(each):
                stream.send((thread, number, bytes(number * 701)))

        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(send, thread) for thread in range(threads)]
            got = [await stream.receive(object) for _ in range(each * threads)]
            for thread in running:
                thread.result()
        for thread in range(threads):
            assert [m for m in got if m[0] == thread] == [
                (thread, number, bytes(number * 701)) for number in range(each)
            ]

    converse(address, talk)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_message_may_have_objects_of_a_class_that_cannot_be_imported(address: str) -> None:
    class Local:
        pass

    async def talk(stream: MessageStream) -> None:
        stream.send(ServerReply(1, [Done(Local())]))
        reply = await stream.receive(ServerReply)
        assert reply.answers is not None
        assert type(reply.answers[0].result).__name__ == "Local"  # type: ignore[union-attr]

    converse(address, talk)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what streams write to sockets."""
    sizes: list[int] = []
    real = _SocketStream._write_at_once

    def noted(stream: _SocketStream, socket: Any, data: bytes) -> int:
        sizes.append(len(data))
        return real(stream, socket, data)

    monkeypatch.setattr(_SocketStream, "_write_at_once", noted)
    return sizes


def test_a_message_that_may_wait_goes_with_the_next_one(writes: list[int]) -> None:
    async def talk(stream: MessageStream) -> None:
        stream.send("first", later=True)
        assert not writes
        stream.send("second")
        assert len(writes) == 1
        assert [await stream.receive(object) for _ in range(2)] == ["first", "second"]

    converse("tcp://127.0.0.1:0", talk)


@pytest.mark.parametrize("large", [False, True])
def test_a_message_that_may_wait_comes_before_later_ones(large: bool) -> None:
    async def talk(stream: MessageStream) -> None:
        array = np.zeros(100_000 if large else 1)
        stream.send("first", later=True)
        stream.send(array, later=large)  # a large one does not wait
        assert await stream.receive(object) == "first"
        np.testing.assert_array_equal(await stream.receive(object), array)

    converse("tcp://127.0.0.1:0", talk)


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_waits_is_sent_when_asked_for(address: str) -> None:
    async def talk(stream: MessageStream) -> None:
        receiving = asyncio.create_task(stream.receive(object))
        await asyncio.sleep(0)
        stream.send("waits", later=True)
        stream.flush()
        assert await receiving == "waits"

    converse(address, talk)


def test_what_waits_is_sent_before_one_waits_for_the_other_side() -> None:
    async def talk(stream: MessageStream) -> None:
        stream.send("waits", later=True)
        assert await stream.receive(object) == "waits"

    converse("tcp://127.0.0.1:0", talk)


def test_answers_to_messages_of_one_write_are_one_write(writes: list[int]) -> None:
    async def talk(stream: MessageStream) -> None:
        for number in range(5):
            stream.send(number, later=number < 4)
        assert [await stream.receive(object) for _ in range(5)] == list(range(5))
        assert len(writes) == 2

    converse("tcp://127.0.0.1:0", talk)


class Unreadable:
    """Pickles, but does not come back."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("no_such_module",)


@pytest.mark.parametrize("address", ADDRESSES)
def test_both_sides_learn_what_could_not_be_unpickled(address: str) -> None:
    async def run() -> None:
        theirs: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()

        async def listening(comm: Comm) -> None:
            stream = message_stream(comm)
            try:
                await stream.receive(object)
            except OSError as error:
                stream.abort()
                theirs.set_result(error)

        async with listen(address, listening) as listener:  # type: ignore[attr-defined]
            stream = message_stream(await connect(listener.contact_address))
            async with asyncio.timeout(10):
                stream.send(("a request", Unreadable()))
                with pytest.raises(UnreadableError, match="'no_such_module'") as ours:
                    await stream.receive(object)
                stream.abort()
                assert str(await theirs) == str(ours.value)

    asyncio.run(run())


def refused(message: Any, kind: type) -> ConnectionError:
    """Return why a message breaks the connection on which one of a kind is awaited."""

    async def run() -> ConnectionError:
        async def listening(comm: Comm) -> None:
            stream = message_stream(comm)
            with contextlib.suppress(OSError):
                stream.send(message)
                await stream.receive(object)
            stream.abort()

        async with listen(ADDRESSES[0], listening) as listener:  # type: ignore[attr-defined]
            stream = message_stream(await connect(listener.contact_address))
            async with asyncio.timeout(10):
                with pytest.raises(ConnectionError) as error:
                    await stream.receive(kind)
            stream.abort()
            await asyncio.sleep(0)
        return error.value

    return asyncio.run(run())


@pytest.mark.parametrize(
    "message",
    [
        ("Explode",),
        (OnTables.__name__,),
        (ReadValues.__name__, 1, 2),
        (ServerReply.__name__, 1),
        (RunClosures.__name__, 1),
        (RunClosures.__name__, 1, None, 1, {}, [], [(1, 2)]),
        (RunClosures.__name__, 1, None, 1, {}, [], 5),
        (SignOfLife.__name__, 1),
        (PushRows.__name__, 1, 2, 3, True, None, None, True, True),
        (),
        None,
        5,
        ([ServerReply.__name__], 1, None),
    ],
    ids=str,
)
def test_what_is_no_message_of_this_version_breaks_the_connection(message: Any) -> None:
    assert isinstance(refused(message, Message), UnreadableError)


@pytest.mark.parametrize("kind", [ServerReply, bool])
def test_a_message_of_another_kind_breaks_the_connection(kind: type) -> None:
    error = refused(ReadValues(), kind)
    assert f"is no {kind.__name__} of this version of psnb" in str(error)
    assert not isinstance(error, UnreadableError)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_side_that_cannot_unpickle_does_not_wait_for_one_that_stays(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_HANG_UP_TIMEOUT", 0.05)

    async def run() -> None:
        leave = asyncio.Event()

        async def staying(comm: Comm) -> None:
            stream = message_stream(comm)
            stream.send(Unreadable())
            await leave.wait()
            stream.abort()

        async with listen(address, staying) as listener:  # type: ignore[attr-defined]
            comm = await connect(listener.contact_address)
            stream = message_stream(comm)
            async with asyncio.timeout(10):
                with pytest.raises(UnreadableError, match="'no_such_module'"):
                    await stream.receive(object)
            leave.set()
            stream.abort()
            await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize("shared", [False, True], ids=["socket", "shared memory"])
def test_a_message_without_memory_is_skipped_and_the_next_one_arrives(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 40_000_000  # one that is not received into memory that is used again
    large, real_empty, real_mmap, mapped = np.zeros(size, np.uint8), np.empty, mmap.mmap, [0]

    def empty(shape: Any, *more: Any, **named: Any) -> Any:
        if shape == size:
            raise MemoryError
        return real_empty(shape, *more, **named)

    def map_memory(fd: int, length: int, *more: Any, **named: Any) -> Any:
        mapped[0] += length >= size
        if length >= size and mapped[0] == 2:  # the receiver's
            raise OSError(errno.ENOMEM, "no memory")
        return real_mmap(fd, length, *more, **named)

    async def serve(comm: Comm) -> None:
        stream = message_stream(comm)
        if shared:
            stream.share(os.getpid(), seen=True)
        try:
            while True:
                try:
                    stream.send(len(await stream.receive(object)))
                except UnreceivedError as error:
                    stream.send((error.nbytes, b"first" in error.head))
        except OSError:
            stream.abort()

    async def run() -> None:
        async with listen("tcp://127.0.0.1:0", serve) as listener:  # type: ignore[attr-defined]
            stream = message_stream(await connect(listener.contact_address))
            if shared:
                stream.share(os.getpid(), seen=True)
            async with asyncio.timeout(10):
                monkeypatch.setattr(stream_module.np, "empty", empty)
                monkeypatch.setattr(mmap, "mmap", map_memory)
                stream.send(["first", large, np.zeros(20_000)])
                assert await stream.receive(object) == (size, True)
                monkeypatch.undo()
                mapped[0] = 0
                for message in (["second", large], ["third", large, large]):
                    stream.send(message)
                    assert await stream.receive(object) == len(message)
            stream.abort()
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_message_whose_small_arrays_have_no_memory_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Short(bytearray):
        def __new__(cls, given: Any = b"") -> Any:
            if isinstance(given, memoryview) and len(given) == 8_000:
                raise MemoryError
            return bytearray(given)

    async def answer(comm: Comm) -> None:
        stream = message_stream(comm)
        with contextlib.suppress(OSError):
            while True:
                try:
                    stream.send(len(await stream.receive(object)))
                except UnreceivedError as error:
                    stream.send((error.nbytes, b"first" in error.head))
        stream.abort()

    async def run() -> None:
        monkeypatch.setattr(frames, "bytearray", Short, raising=False)
        async with listen("tcp://127.0.0.1:0", answer) as listener:  # type: ignore[attr-defined]
            stream = message_stream(await connect(listener.contact_address))
            async with asyncio.timeout(10):
                stream.send(["first", np.zeros(1_000), np.zeros(3)])
                assert await stream.receive(object) == (8_024, True)
                stream.send(["second", np.zeros(3)])
                assert await stream.receive(object) == 2
            stream.abort()
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_message_that_there_is_no_memory_to_send_takes_no_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def talk(stream: MessageStream) -> None:
        assert isinstance(stream, _SocketStream)
        stream.share(os.getpid(), seen=True)
        stream.send("share")
        assert await stream.receive(object) == "share"
        arena, lacking = stream._arena, [np.zeros(5_000), np.zeros(5_000), np.zeros(1 << 25)]
        assert arena is not None

        def none(frame: Any) -> Any:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(shared_memory, "MOST_BYTES", 1 << 20)
            patch.setattr(stream_module, "_lasting", none)
            for _ in range(12):
                with pytest.raises(MemoryError):
                    stream.send(lacking)
            assert len(arena._maps) == 1
        stream.send(lacking)
        for sent, got in zip(lacking, await stream.receive(object), strict=True):
            np.testing.assert_array_equal(got, sent)

    converse("tcp://127.0.0.1:0", talk)


def test_a_message_that_there_is_no_memory_to_send_is_not_sent_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def talk(stream: MessageStream) -> None:
        arrays = [np.zeros(100_000), np.ones(100_000)]
        lasting, failed = stream_module._lasting, [0]

        def fail_at_the_last(frame: Any) -> Any:
            failed[0] += 1
            if failed[0] == 2:
                raise MemoryError
            return lasting(frame)

        with monkeypatch.context() as patch:
            patch.setattr(stream_module, "_lasting", fail_at_the_last)
            with pytest.raises(MemoryError):
                stream.send(arrays)
        stream.send(arrays)
        np.testing.assert_array_equal(await stream.receive(object), arrays)

    converse("tcp://127.0.0.1:0", talk)
