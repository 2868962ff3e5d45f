"""MessageStream: messages both ways over a Dask connection, with less overhead than Dask's own.

A handler on a Dask server may keep the connection through which it was called. Dask has opened it,
with its addresses, limits and TLS; from then on psnb uses its own framing: any object that pickles,
with the buffers of arrays outside the pickle; many messages may be under way, and either side may
send at any time. A message to another process and one back take half the time that Dask's framing
takes. Connections that are not sockets (``inproc://``, ``ws://``) carry the same frames in Dask
messages.

Between processes of one host the buffers of large arrays may go through shared memory
(`psnb._src.transport.shared_memory`), if both sides have called `MessageStream.share`.

Threads: any thread may send. If the connection is a plain socket that takes the message
immediately, that thread writes it: waking the event loop would take longer than the rest. For the
same reason a thread that waits may read the socket itself (`psnb._src.transport.turns`). All else
belongs to the connection's event loop. One lock keeps messages whole and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import pickle
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
from tornado.iostream import IOStream, StreamClosedError

from psnb._src.dask_compat.reach import Comm, cloudpickled, socket_stream
from psnb._src.transport.buffer_pool import BufferPool
from psnb._src.transport.frames import BLOCK, HEAD, SHARED, SMALL, FrameReader
from psnb._src.transport.frames import UnreceivedError as UnreceivedError
from psnb._src.transport.message import Message, MessagePickler, made
from psnb._src.transport.shared_memory import Arena, Mapped, SharedBlock
from psnb._src.transport.turns import SocketByTurns
from psnb._src.utils.threads import runs_here

T = TypeVar("T")

_HANG_UP_TIMEOUT = 1.0
"""Seconds in which the other side, informed that its message cannot be read, should hang up."""

_sent = BufferPool()
"""Of the process, not of each stream: a server has hundreds. Another than for what is received:
that belongs to users, and users may change an array once it is sent."""


class UnreadableError(ConnectionError):
    """A message arrived that cannot be unpickled, here or at the other end."""


class _UnpickledError(UnreadableError):
    """It is this end that cannot unpickle one."""


class MessageStream(ABC):
    """Sends and receives messages; after an error, or `abort`, it cannot be used any more.

    Parameters
    ----------
    comm : distributed.comm.Comm
        Open.

    Attributes
    ----------
    by_turns : SocketByTurns or None
        The socket that threads may read, if it is one.
    """

    by_turns: SocketByTurns | None = None

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def send(self, message: Any, *, later: bool = False) -> None:
        """Send a message as it is now; any thread that no signal interrupts.

        Returns immediately and never raises for a broken connection: `receive` raises that.

        Parameters
        ----------
        message : object
            What pickles.
        later : bool
            Whether it may wait here, if it is small, for the next message or `flush`, or until
            `receive` waits. So two of them are one write, and wake the other side once.

        Raises
        ------
        MemoryError
            If there is no memory for it; nothing was sent.
        """
        if isinstance(message, Message):
            message = message.wire()
        buffers: list[pickle.PickleBuffer] = []
        try:
            file = io.BytesIO()
            MessagePickler(file, 5, buffer_callback=buffers.append).dump(message)
            head = file.getvalue()
        except (pickle.PicklingError, AttributeError, TypeError):
            # Something of a class that a notebook defines; asking for it always costs 10 us.
            buffers.clear()
            head = cloudpickled(message, protocol=5, buffer_callback=buffers.append)
        self._send([head, *(buffer.raw() for buffer in buffers)], later=later)

    def flush(self) -> None:
        """Send what waits here; any thread that no signal interrupts."""
        return

    @property
    def has_more(self) -> bool:
        """Whether `receive` has something to read before it waits again; on the event loop."""
        return False

    async def receive(self, kind: type[T]) -> T:
        """Return the next message, which must be of a kind; its arrays can be written.

        Raises
        ------
        UnreadableError
            If the message cannot be unpickled, or if the other end cannot unpickle one; both sides
            get the reason. Which call waits for an answer to it is not known, so the connection
            cannot be used any more.
        ConnectionError
            If it is of another kind: the other end has another version of psnb.
        UnreceivedError
            If there is no memory for it. The connection can still be used.
        OSError
            If the connection is closed, before or meanwhile.
        """
        return (await self._receive(kind, lambda found: (found,)))[0]

    async def run(
        self, kind: type[T], take: Callable[[T], Coroutine[Any, Any, None] | None]
    ) -> NoReturn:
        """Receive all messages until one of the errors of `receive` is raised.

        Parameters
        ----------
        kind : type
            What they must be.
        take : callable
            Takes each, as soon as it is here: on the event loop, or in a thread that reads
            (`by_turns`). The next one comes when what it returns has run.
        """
        while True:
            await (await self._receive(kind, take))

    async def _receive(self, kind: type[T], take: Callable[[T], Any]) -> Any:
        try:
            return await self._until(lambda frames: take(_made(kind, *frames)))
        except _UnpickledError as error:
            self._send([b"", str(error).encode()], later=False)
            # Hanging up first might overtake it.
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_HANG_UP_TIMEOUT):
                    await self._until(lambda frames: None)
            raise

    def abort(self) -> None:
        """Close the connection immediately; idempotent."""
        self._comm.abort()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """Return an array that can be sent without being copied; any thread.

        None if there is no such memory. Once sent, it must not be changed. It must be sent whole,
        or from its first element on. Beyond one host, sockets are written from it.
        """
        return None

    def share(self, pid: int, *, seen: bool) -> None:
        """Use shared memory with the process at the other end, which must be on this host.

        Of no effect within a process, where memory is shared, and over what leaves the host.

        Parameters
        ----------
        pid : int
            That process.
        seen : bool
            Whether it can see this process's memory: if not, shared memory is used for receiving
            only.
        """
        return

    @abstractmethod
    def _send(self, frames: Sequence[Any], *, later: bool) -> None: ...

    @abstractmethod
    async def _until(self, take: Callable[[Sequence[Any]], Any]) -> Any:
        """Hand over the frames of each message, until something else than None is returned."""


def _made(kind: type[T], head: Any, *buffers: Any) -> T:
    """Return the message that frames are."""
    if not head:  # no message: the other side's report about one of this side's
        raise UnreadableError(str(buffers[0], "utf-8"))
    try:
        found = pickle.loads(head, buffers=buffers)
        if issubclass(kind, Message):
            found = made(*found)
    except Exception as error:  # whatever a class may raise while it is made again
        text = f"a message cannot be unpickled where it arrived: {error!r}"
        raise _UnpickledError(text) from error
    if not isinstance(found, kind):
        what = type(found).__name__
        raise ConnectionError(f"{what} is no {kind.__name__} of this version of psnb")
    return found


class _SocketStream(MessageStream):
    """Directly on a socket; with TLS, on Tornado's stream."""

    def __init__(self, comm: Comm, stream: IOStream) -> None:
        super().__init__(comm)
        # Keeps messages whole and in order, and the arena to one thread. While it is held, memory
        # is copied at most, and a socket is written that does not block.
        self._lock = threading.Lock()
        self._arena: Arena | None = None
        self._loop = asyncio.get_running_loop()
        # Not TLS, whose state must not be used by two threads at a time.
        self._tls = None if type(stream) is IOStream else stream
        self.by_turns = None if self._tls else SocketByTurns(stream, self, self._lock)
        read = b"" if self.by_turns is None else self.by_turns.read_before
        self._frames = FrameReader(read, self._take_back)
        self.ended = self._frames.close
        self._take: Callable[[Sequence[Any]], Any] | None = None  # while somebody receives
        self._taken = self._loop.create_future()  # what it returns at last
        self._taken.cancel()  # nobody does yet
        self._error: OSError | None = None
        self._handed_over = 0  # writes on their way to the loop: later ones go there too
        self._waiting = b""  # messages that go with the next one

    def share(self, pid: int, *, seen: bool) -> None:
        self._frames.mapped = Mapped(pid)
        self._arena = Arena() if seen else None

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        size = math.prod(shape) * dtype.itemsize
        if size < SMALL:
            return None
        with self._lock:
            block = (_sent if self._arena is None else self._arena).allocate(size)
        return None if block is None else np.frombuffer(block, dtype).reshape(shape)

    def abort(self) -> None:
        super().abort()
        if self.by_turns is not None:  # the stream may have been closed before
            self.by_turns.close()
        if self._arena is not None:
            with self._lock:
                self._arena.close()

    def flush(self) -> None:
        if self._waiting:
            with self._lock:
                self._write_waiting()

    @property
    def has_more(self) -> bool:
        return self._frames.has_more

    def _send(self, frames: Sequence[Any], *, later: bool) -> None:
        with self._lock:
            blocks, released = list[SharedBlock](), self._released()
            try:
                parts = self._parts(frames, blocks, released)
                small = sum(map(len, parts)) < SMALL
                waiting = b"".join([self._waiting, *parts]) if small else self._waiting
            except BaseException:  # nothing of it was sent: return its buffers unchanged
                for block in blocks:
                    self._arena.take_back(block.number)  # type: ignore[union-attr]
                if (mapped := self._frames.mapped) is not None:
                    mapped.released.extendleft(reversed(released))
                raise
            if small:
                self._waiting = waiting
                if not later or len(self._waiting) >= SMALL:
                    self._write_waiting()
                return
            self._write_waiting()
            for part in parts:
                if len(part):
                    self._write(part)

    def _parts(
        self, frames: Sequence[Any], blocks: list[SharedBlock], released: Sequence[int]
    ) -> list[bytes | memoryview]:
        """Return what is written for frames; ``blocks`` gets the shared ones that it names."""
        first, *others = frames
        small = [frame for frame in others if len(frame) < SMALL]
        shared = self._shared(small, blocks) if sum(map(len, small)) >= SMALL else None
        lengths = [len(first)]
        whole = [first, b"".join(small) if shared is None else shared]
        for frame in others:
            lengths.append(len(frame))
            if len(frame) >= SMALL:
                block = self._shared([frame], blocks)
                whole.append(_lasting(frame) if block is None else block)
                if block is not None:
                    lengths[-1] = len(block) | SHARED
        head = HEAD.pack(len(frames), len(released), shared is not None)
        numbers = struct.pack(f"<{len(frames) + len(released)}Q", *lengths, *released)
        return [head + numbers, *whole]

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, b""
        if waiting:
            self._write(waiting)

    def _write(self, data: bytes | memoryview) -> None:
        socket = self.by_turns
        if socket is not None and not self._handed_over and not socket.unsent:
            written = self._write_at_once(socket, data)
            if written == len(data):
                return
            data = memoryview(data)[written:]
        self._handed_over += 1
        # A RuntimeError: the loop is closed, and the connection with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._write_on_loop, data)

    def _write_at_once(self, socket: SocketByTurns, data: bytes | memoryview) -> int:
        try:
            return socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # `receive` raises it

    def _write_on_loop(self, data: bytes | memoryview) -> None:
        with self._lock:
            self._handed_over -= 1
            if self.by_turns is not None:
                self.by_turns.unsent.append(memoryview(data))
                self.by_turns.write_on()
            elif self._tls is not None:
                with contextlib.suppress(StreamClosedError):  # `receive` raises it
                    self._tls.write(data)

    def _shared(self, frames: Sequence[Any], blocks: list[SharedBlock]) -> bytes | None:
        """Put frames into shared memory, and return what names the block; None without room."""
        block = None if self._arena is None else self._arena.put(frames)
        if block is None:
            return None
        blocks.append(block)
        return BLOCK.pack(block.number, block.fd, block.capacity, sum(map(len, frames)))

    def _take_back(self, numbers: Sequence[int]) -> None:
        assert self._arena is not None  # only what was put there comes back
        with self._lock:
            for number in numbers:
                self._arena.take_back(number)

    def _released(self) -> list[int]:
        released, mapped = list[int](), self._frames.mapped
        while mapped is not None and mapped.released:
            released.append(mapped.released.popleft())
        return released

    async def _until(self, take: Callable[[Sequence[Any]], Any]) -> Any:
        self._take, self._taken = take, self._loop.create_future()
        try:
            if self._error is not None:  # asked after that: a thread may be about to set both
                raise self._error
            if self.by_turns is not None:
                self.by_turns.watch()
            elif self._tls is not None:
                got = 0
                while self.take_in(got):
                    # Not ``read_bytes``, which makes a new buffer and copies it twice.
                    got = await self._tls.read_into(self.space, partial=True)  # type: ignore[arg-type]
            return await self._taken
        except StreamClosedError:
            if self._tls is not None:
                self.ended()
            raise
        finally:
            self._take = None
            self._taken.cancel()  # no effect if it is done; else nobody would take its error

    # Called by the reader: the loop, or a thread that has the turn.

    @property
    def space(self) -> memoryview:
        """Where the next bytes are to be read."""
        return self._frames.space

    def take_in(self, got: int) -> bool:
        """Hand over the messages that are complete once ``got`` more bytes are here."""
        while (take := self._take) is not None:
            try:
                come, got = got, 0
                found = self._frames.advance(come) if come or not self._frames.starved else None
                if found is None:
                    self.flush()  # or it would wait for the other side's next message
                    return True
                result = take(found)
                del found  # before the next one is read
                if result is not None:
                    self._end(self._taken.set_result, result)
            except Exception as error:  # whatever ``take`` raises: `receive` does so
                self._end(self._taken.set_exception, error)
        return False

    def failed(self, error: OSError) -> None:
        """Have `receive` raise it."""
        self._error = self._error or error
        self._end(self._taken.set_exception, error)

    def _end(self, end: Callable[[Any], object], value: Any) -> None:
        self._take = None
        if runs_here(self._loop):
            _unless_done(end, value)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_unless_done, end, value)


def _unless_done(end: Callable[[Any], object], value: Any) -> None:
    # The connection may be closed at the same time, or the receiver cancelled.
    with contextlib.suppress(asyncio.InvalidStateError):
        end(value)


def _lasting(frame: Any) -> bytes | memoryview:
    """Return what a frame holds now, until it is sent: an array may change before."""
    if len(frame) < SMALL or type(frame) is bytes:
        return bytes(frame)
    if _sent.has_allocated(frame):
        return frame
    copy = _sent.allocate(len(frame))
    if copy is None:
        return bytes(frame)
    copy[:] = frame
    return copy


class _CommStream(MessageStream):
    """The same frames as one Dask message."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self._loop = asyncio.get_running_loop()
        self._outgoing: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write(), name="psnb stream writer")

    def abort(self) -> None:
        self._writer.cancel()
        super().abort()

    def _send(self, frames: Sequence[Any], *, later: bool) -> None:
        # Copied: within a process Dask hands over the very objects.
        copies = [bytes(frame) for frame in frames]
        # A RuntimeError: the loop is closed, and the connection with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._outgoing.put_nowait, copies)

    async def _until(self, take: Callable[[Sequence[Any]], Any]) -> Any:
        while (result := take([bytearray(frame) for frame in await self._comm.read()])) is None:
            pass
        return result

    async def _write(self) -> None:
        try:
            while True:
                await self._comm.write(await self._outgoing.get())
        except OSError:
            self._comm.abort()  # `receive` raises it


def message_stream(comm: Comm) -> MessageStream:
    """Take over a connection; both sides must do so, after the same Dask message."""
    stream = socket_stream(comm)
    return _CommStream(comm) if stream is None else _SocketStream(comm, stream)
