"""A thread that waits reads a socket itself, in turns with the event loop: forced interleavings."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import select
import struct
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from distributed.comm import Comm, connect, listen
from tornado.iostream import StreamClosedError

from psnb._src.transport.frames import HEAD, SMALL
from psnb._src.transport.stream import MessageStream, message_stream
from psnb._src.transport.turns import SocketByTurns, read_while, reads_here
from tests.conftest import DEADLINE, wait_until

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="threads do not read there")

_BEGINNING = HEAD.pack(1, 0, False) + struct.pack("<Q", 2 * SMALL) + b"x"
"""The beginning of a message."""


class Ends:
    """A connection whose near end hands over what comes, and notes in which thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="test loop")
        self.thread.start()
        self.far_leaves = asyncio.Event()
        self.got: list[tuple[Any, threading.Thread]] = []
        self.came, self.broke = threading.Semaphore(0), threading.Event()
        self.error: Exception | None = None
        self.work: Callable[[], Coroutine[Any, Any, None]] | None = None  # of the next message
        self.do(self._connect())

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    async def _connect(self) -> None:
        opened = self.loop.create_future()

        async def keep(comm: Comm) -> None:
            opened.set_result(message_stream(comm))
            await self.far_leaves.wait()

        self._listener = await listen("tcp://127.0.0.1:0", keep)  # type: ignore[attr-defined]
        self.near: Any = message_stream(await connect(self._listener.contact_address))
        self.far: MessageStream = await opened
        assert self.near.by_turns is not None
        self.near.by_turns.let_threads_read()
        self.running = asyncio.create_task(self._run())
        await asyncio.sleep(0)

    async def _run(self) -> None:
        try:
            await self.near.run(object, self._take)
        except Exception as error:
            self.error = error
            self.broke.set()

    def _take(self, message: Any) -> Coroutine[Any, Any, None] | None:
        self.got.append((message, threading.current_thread()))
        self.came.release()
        work, self.work = self.work, None
        return None if work is None else work()

    @property
    def socket(self) -> SocketByTurns:
        assert self.near.by_turns is not None
        return self.near.by_turns

    def on_loop(self, function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        self.do(call())

    def arrives(self, *messages: Any) -> None:
        """Send to the near end, and return when it is there, though nobody has read it."""
        for message in messages:
            self.far.send(message)
        assert select.select([self.socket.fileno()], [], [], DEADLINE)[0]

    def close(self) -> None:
        async def end() -> None:
            self.near.abort()
            self.far.abort()
            self.far_leaves.set()
            await self.running
            self._listener.stop()

        self.do(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(DEADLINE)
        self.loop.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    with contextlib.closing(made):
        yield made


@pytest.fixture
def others() -> Iterator[Ends]:
    made = Ends()
    with contextlib.closing(made):
        yield made


def once(function: Callable[[], object], goes_on: Callable[[], bool]) -> Callable[[], bool]:
    """Return what calls a function as soon as a thread has the turn, and goes on for so long."""
    left = [function]

    def waits() -> bool:
        if left:
            left.pop()()
        return goes_on()

    return waits


def test_a_thread_that_waits_reads_the_answer(ends: Ends) -> None:
    read_while(once(lambda: ends.far.send("x"), lambda: not ends.got), [ends.socket], DEADLINE)
    assert ends.got == [("x", threading.current_thread())]


def test_the_loop_reads_when_no_thread_waits_any_more(ends: Ends) -> None:
    read_while(once(lambda: ends.far.send("x"), lambda: not ends.got), [ends.socket], DEADLINE)
    ends.far.send("y")
    assert ends.came.acquire(timeout=DEADLINE)
    assert ends.came.acquire(timeout=DEADLINE)
    assert ends.got[1] == ("y", ends.thread)


def test_what_arrives_as_a_thread_gives_back_is_read_by_the_loop(ends: Ends) -> None:
    read_while(once(lambda: ends.arrives("x"), lambda: False), [ends.socket], DEADLINE)
    assert ends.came.acquire(timeout=DEADLINE)
    assert ends.got == [("x", ends.thread)]


def test_a_thread_gives_back_when_its_time_is_over(ends: Ends) -> None:
    read_while(lambda: True, [ends.socket], 0.001)
    ends.far.send("x")
    assert ends.came.acquire(timeout=DEADLINE)
    assert ends.got == [("x", ends.thread)]


def test_the_loop_is_not_woken_while_a_thread_has_the_turn(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = []
    monkeypatch.setattr(SocketByTurns, "_read_on_loop", lambda socket: woken.append(socket))

    def meanwhile() -> None:
        ends.arrives("x")
        ends.on_loop(bool)  # the loop has looked at what is ready
        assert not woken

    read_while(once(meanwhile, lambda: not ends.got), [ends.socket], DEADLINE)
    assert ends.got == [("x", threading.current_thread())]


def test_one_thread_reads_what_several_wait_for(ends: Ends) -> None:
    second = []

    def other() -> None:
        ends.near.send("from another thread")
        second.append(ends.socket.hold())

    def meanwhile() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(DEADLINE)
        ends.far.send("for the other")
        ends.far.send("mine")

    read_while(once(meanwhile, lambda: len(ends.got) < 2), [ends.socket], DEADLINE)
    assert second == [False]
    assert [each for each, _ in ends.got] == ["for the other", "mine"]
    assert {thread for _, thread in ends.got} == {threading.current_thread()}
    assert ends.do(ends.far.receive(str)) == "from another thread"


@pytest.mark.parametrize("first", [True, False])
def test_a_thread_reads_all_that_it_waits_for_or_nothing(
    ends: Ends, others: Ends, first: bool
) -> None:
    # Else it would go on reading one when another thread has read the last answer from the other.
    looks: list[None] = []
    assert others.socket.hold()
    sockets = [others.socket, ends.socket] if first else [ends.socket, others.socket]
    read_while(lambda: bool(looks.append(None)), sockets, DEADLINE)
    others.socket.give_back()
    assert not looks
    for each in ends, others:
        each.far.send("x")
        assert each.came.acquire(timeout=DEADLINE)
        assert each.got == [("x", each.thread)]


def test_who_takes_a_message_learns_that_this_thread_reads(ends: Ends) -> None:
    found = []

    def waits() -> bool:
        found.append(reads_here())
        return False

    read_while(waits, [ends.socket], DEADLINE)
    assert found == [True]
    assert not reads_here()


@pytest.mark.parametrize("by_a_thread", [False, True])
def test_what_has_come_in_part_is_freed_when_the_connection_is_closed(
    ends: Ends, by_a_thread: bool
) -> None:
    large: list[weakref.ref[Any]] = []

    def close() -> None:
        ends.on_loop(lambda: ends.far.by_turns.send(_BEGINNING))
        if by_a_thread:
            ends.socket.read_on()
        wait_until(lambda: len(ends.near.space) > SMALL, "the rest has a place")
        large.append(weakref.ref(ends.near.space.obj))
        ends.on_loop(ends.near.abort)
        assert ends.broke.wait(DEADLINE)

    gc.disable()
    try:
        if by_a_thread:
            read_while(once(close, lambda: False), [ends.socket], DEADLINE)
        else:
            close()
        assert all(each() is None for each in large)
    finally:
        gc.enable()


def test_a_connection_that_breaks_while_a_thread_reads_ends_for_the_loop(ends: Ends) -> None:
    looks = []

    def waits() -> bool:
        looks.append(1)
        return len(looks) < 100

    read_while(once(lambda: ends.on_loop(ends.far.abort), waits), [ends.socket], DEADLINE)
    assert len(looks) < 5  # it does not poll what has ended
    assert ends.broke.wait(DEADLINE)
    assert isinstance(ends.error, OSError)
    with pytest.raises(StreamClosedError):
        ends.do(ends.near.receive(object))


def test_what_is_closed_while_a_thread_reads_is_open_until_it_gives_back(ends: Ends) -> None:
    def close() -> None:
        ends.on_loop(ends.near.abort)
        assert ends.broke.wait(DEADLINE)
        assert ends.socket.fileno() >= 0

    read_while(once(close, lambda: False), [ends.socket], DEADLINE)
    assert ends.socket.fileno() == -1
    assert not ends.socket.hold()
    assert isinstance(ends.error, OSError)


def test_a_large_message_may_be_read_by_both(ends: Ends) -> None:
    large = bytes(range(256)) * 100_000

    def part() -> None:
        ends.arrives(large)
        ends.socket.read_on()

    read_while(once(part, lambda: False), [ends.socket], DEADLINE)
    assert ends.came.acquire(timeout=DEADLINE)
    assert ends.got == [(large, ends.thread)]


@pytest.mark.parametrize("reads_on", [False, True])
def test_who_receives_again_while_a_thread_has_the_turn_gets_what_was_read(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, reads_on: bool
) -> None:
    # As after a message for which there was no memory: the reader stops, and begins again.
    go, again, watch, end = asyncio.Event(), threading.Event(), SocketByTurns.watch, ends.near._end

    async def restart() -> None:
        with contextlib.suppress(ZeroDivisionError):
            await ends.near.run(object, lambda message: 1 // 0)
        await go.wait()
        monkeypatch.setattr(SocketByTurns, "watch", watched)
        await ends._run()

    def watched(socket: SocketByTurns) -> None:
        watch(socket)
        again.set()

    def ended(*args: Any) -> None:
        end(*args)
        if reads_on:
            receive_again()

    def receive_again() -> None:
        ends.loop.call_soon_threadsafe(go.set)
        assert again.wait(DEADLINE)

    async def begin() -> None:
        ends.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ends.running
        ends.running = asyncio.create_task(restart())
        await asyncio.sleep(0)
        monkeypatch.setattr(ends.near, "_end", ended)

    def meanwhile() -> None:
        ends.on_loop(lambda: [ends.far.send(each, later=each == "x") for each in ("x", "y")])
        assert select.select([ends.socket.fileno()], [], [], DEADLINE)[0]
        ends.socket.read_on()  # the first; the second is here, too
        receive_again()

    ends.do(begin())
    read_while(once(meanwhile, lambda: False), [ends.socket], DEADLINE)
    assert ends.came.acquire(timeout=DEADLINE)
    assert ends.got == [("y", threading.current_thread() if reads_on else ends.thread)]


def test_who_receives_again_as_a_thread_finds_the_connection_broken_gets_the_error(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, again, set_up = asyncio.Event(), threading.Event(), threading.Event()

    async def restart() -> None:
        with contextlib.suppress(ZeroDivisionError):
            await ends.near.run(object, lambda message: 1 // 0)
        await go.wait()
        await ends._run()

    def create_future() -> Any:
        made = type(ends.loop).create_future(ends.loop)
        again.set()
        assert set_up.wait(DEADLINE)
        return made

    async def begin() -> None:
        ends.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ends.running
        ends.running = asyncio.create_task(restart())
        await asyncio.sleep(0)

    def breaks() -> None:
        ends.arrives("x")
        ends.socket.read_on()
        monkeypatch.setattr(ends.loop, "create_future", create_future)
        ends.loop.call_soon_threadsafe(go.set)
        assert again.wait(DEADLINE)
        # The thread is in the middle of `failed`: it knows the future of before.
        monkeypatch.undo()
        end = ends.near._end

        def late(*how: Any) -> None:
            set_up.set()
            wait_until(lambda: ends.near._take is not None or ends.broke.is_set(), "it goes on")
            end(*how)

        monkeypatch.setattr(ends.near, "_end", late)
        ends.near.failed(ConnectionResetError())
        monkeypatch.undo()

    ends.do(begin())
    read_while(once(breaks, lambda: False), [ends.socket], DEADLINE)
    assert ends.broke.wait(1)
    assert isinstance(ends.error, OSError)


def test_an_exception_of_who_takes_a_message_is_raised_on_the_loop(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends.came, "release", lambda: 1 / 0)
    read_while(once(lambda: ends.arrives("x"), lambda: not ends.broke.is_set()), [ends.socket], 0.1)
    assert ends.broke.wait(DEADLINE)
    assert isinstance(ends.error, ZeroDivisionError)


@pytest.mark.parametrize("by_a_thread", [False, True])
def test_the_next_message_waits_for_what_the_last_one_has_begun(
    ends: Ends, by_a_thread: bool
) -> None:
    began, go = threading.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await go.wait()

    ends.work = work
    if by_a_thread:
        read_while(
            once(lambda: ends.arrives("x", "y"), lambda: not ends.got), [ends.socket], DEADLINE
        )
    else:
        ends.on_loop(lambda: [ends.far.send(each) for each in ("x", "y")])
    assert began.wait(DEADLINE)
    ends.far.send("z")
    wait_until(lambda: not ends.socket._watched, "the loop is not woken for what waits")
    assert [each for each, _ in ends.got] == ["x"]
    ends.on_loop(go.set)
    for _ in range(3):
        assert ends.came.acquire(timeout=DEADLINE)
    assert [each for each, _ in ends.got] == ["x", "y", "z"]


def test_what_an_idle_connection_has_read_ahead_arrives() -> None:
    async def run() -> Any:
        async def early(comm: Comm) -> None:
            await comm.write("ready")
            message_stream(comm).send("early")
            await comm.read()

        async with listen("tcp://127.0.0.1:0", early) as listener:  # type: ignore[attr-defined]
            comm = await connect(listener.contact_address)
            assert await comm.read() == "ready"
            async with asyncio.timeout(DEADLINE):
                while not comm.stream._read_buffer_size:
                    await asyncio.sleep(0)
                stream = message_stream(comm)
                try:
                    return await stream.receive(object)
                finally:
                    stream.abort()

    assert asyncio.run(run()) == "early"
