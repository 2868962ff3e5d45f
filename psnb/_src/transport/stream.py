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
immediately, that thread writes it: waking the event loop would take longer than the rest. All else
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
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from tornado.iostream import IOStream, StreamClosedError

from psnb._src.dask_compat.reach import Comm, cloudpickled, socket_stream
from psnb._src.transport.buffer_pool import BufferPool
from psnb._src.transport.message import Message, MessagePickler, made
from psnb._src.transport.shared_memory import Arena, Mapped, SharedBlock

T = TypeVar("T")

# How many frames follow, how many numbers of released blocks, and whether the small frames are in
# shared memory.
_HEAD = struct.Struct("<II?")
_BLOCK = struct.Struct("<QQQQ")  # a frame that is in shared memory: number, fd, capacity, size
_SHARED = 1 << 63  # marks the length of such a frame
_CHUNK = 1 << 16
_HANG_UP_TIMEOUT = 1.0
"""Seconds in which the other side, informed that its message cannot be read, should hang up."""
_SMALL = 1 << 16
"""Frames below this are copied together, larger ones are handed to the socket as they are. A step
of a model with 50 tables sends a hundred: one by one, they took a millisecond of system calls."""

# Pools of the process, not of each stream: a server has hundreds. Two pools: received arrays belong
# to users, and users may change an array once it is sent.
_sent, _received = BufferPool(), BufferPool()


class UnreadableError(ConnectionError):
    """A message arrived that cannot be unpickled, here or at the other end."""


class UnreceivedError(MemoryError):
    """There was no memory for the arrays of a message; the next one can be received.

    Attributes
    ----------
    head : bytes
        The pickle of the message, without the buffers of its arrays; its beginning, if that is too
        large itself.
    nbytes : int
        What these take.
    """

    def __init__(self, head: bytes, nbytes: int) -> None:
        super().__init__(nbytes)
        self.head, self.nbytes = head, nbytes


class MessageStream(ABC):
    """Sends and receives messages; after an error, or `abort`, it cannot be used any more.

    Parameters
    ----------
    comm : distributed.comm.Comm
        Open.
    """

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
        head, *buffers = await self._receive()
        if not head:  # no message: the other side's report about one of this side's
            raise UnreadableError(str(buffers[0], "utf-8"))
        try:
            found = pickle.loads(head, buffers=buffers)
            if issubclass(kind, Message):
                found = made(*found)
        except Exception as error:  # whatever a class may raise while it is made again
            text = f"a message cannot be unpickled where it arrived: {error!r}"
            self._send([b"", text.encode()], later=False)
            # Hanging up first might overtake it.
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_HANG_UP_TIMEOUT):
                    while True:
                        await self._receive()
            raise UnreadableError(text) from error
        if not isinstance(found, kind):
            what = type(found).__name__
            raise ConnectionError(f"{what} is no {kind.__name__} of this version of psnb")
        return found

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
    async def _receive(self) -> Sequence[Any]: ...


class _SocketStream(MessageStream):
    """Directly on Tornado's stream.

    A message is `_HEAD`, the frames' lengths, released numbers, the first frame, all small ones
    together, and each large one.
    """

    def __init__(self, comm: Comm, stream: IOStream) -> None:
        super().__init__(comm)
        self._stream = stream
        self._chunk = bytearray(_CHUNK)
        self._read = bytearray()
        self._at = 0  # what comes before it in `_read` was returned
        self._arena: Arena | None = None
        self._mapped: Mapped | None = None
        self._loop = asyncio.get_running_loop()
        # Not TLS, whose state must not be used by two threads at a time.
        self._direct = type(stream) is IOStream
        # Keeps messages whole and in order, and the arena to one thread. While it is held, memory
        # is copied at most, and a socket is written that does not block.
        self._lock = threading.Lock()
        self._handed_over = 0  # writes on their way to the loop: later ones go there too
        self._waiting = b""  # messages that go with the next one
        self._receiving = False  # waits for more from the other side

    def share(self, pid: int, *, seen: bool) -> None:
        self._mapped = Mapped(pid)
        self._arena = Arena() if seen else None

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALL:
            return None
        with self._lock:
            block = (_sent if self._arena is None else self._arena).allocate(size)
        return None if block is None else np.frombuffer(block, dtype).reshape(shape)

    def abort(self) -> None:
        # Under the lock: while a thread writes to a descriptor, another connection must not get it.
        with self._lock:
            super().abort()
            if self._arena is not None:
                self._arena.close()

    def flush(self) -> None:
        if self._waiting:
            with self._lock:
                self._write_waiting()

    @property
    def has_more(self) -> bool:
        return not self._receiving and len(self._read) > self._at

    def _send(self, frames: Sequence[Any], *, later: bool) -> None:
        with self._lock:
            blocks, released = list[SharedBlock](), self._released()
            try:
                parts = self._parts(frames, blocks, released)
                small = sum(map(len, parts)) < _SMALL
                waiting = b"".join([self._waiting, *parts]) if small else self._waiting
            except BaseException:  # nothing of it was sent: return its buffers unchanged
                for block in blocks:
                    self._take_back(block.number)
                if self._mapped is not None:
                    self._mapped.released.extendleft(reversed(released))
                raise
            if small:
                self._waiting = waiting
                if not later or len(self._waiting) >= _SMALL:
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
        small = [frame for frame in others if len(frame) < _SMALL]
        shared = self._shared(small, blocks) if sum(map(len, small)) >= _SMALL else None
        lengths = [len(first)]
        whole = [first, b"".join(small) if shared is None else shared]
        for frame in others:
            lengths.append(len(frame))
            if len(frame) >= _SMALL:
                block = self._shared([frame], blocks)
                whole.append(_lasting(frame) if block is None else block)
                if block is not None:
                    lengths[-1] = len(block) | _SHARED
        head = _HEAD.pack(len(frames), len(released), shared is not None)
        numbers = struct.pack(f"<{len(frames) + len(released)}Q", *lengths, *released)
        return [head + numbers, *whole]

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, b""
        if waiting:
            self._write(waiting)

    def _write(self, data: bytes | memoryview) -> None:
        if self._direct and not self._handed_over and not self._stream.writing():
            written = self._write_at_once(data)
            if written == len(data):
                return
            data = memoryview(data)[written:]
        self._handed_over += 1
        # A RuntimeError: the loop is closed, and the connection with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._write_on_loop, data)

    def _write_at_once(self, data: bytes | memoryview) -> int:
        socket = self._stream.socket
        try:
            return socket.send(data) if socket is not None else len(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # `receive` raises it

    def _write_on_loop(self, data: bytes | memoryview) -> None:
        with self._lock:
            self._handed_over -= 1
            with contextlib.suppress(StreamClosedError):  # `receive` raises it
                self._stream.write(data)

    def _shared(self, frames: Sequence[Any], blocks: list[SharedBlock]) -> bytes | None:
        """Put frames into shared memory, and return what names the block; None without room."""
        block = None if self._arena is None else self._arena.put(frames)
        if block is None:
            return None
        blocks.append(block)
        return _BLOCK.pack(block.number, block.fd, block.capacity, sum(map(len, frames)))

    def _take_back(self, number: int) -> None:
        assert self._arena is not None  # only what was put there comes back
        self._arena.take_back(number)

    def _released(self) -> list[int]:
        released: list[int] = []
        while self._mapped is not None and self._mapped.released:
            released.append(self._mapped.released.popleft())
        return released

    async def _receive(self) -> Sequence[Any]:
        frames, released, shared = _HEAD.unpack(await self._take(_HEAD.size))
        numbers = struct.unpack(f"<{frames + released}Q", await self._take(8 * (frames + released)))
        with self._lock:
            for number in numbers[frames:]:
                self._take_back(number)
        first, *lengths = numbers[:frames]
        small = [length for length in lengths if length < _SMALL]
        together = _BLOCK.size | _SHARED if shared else sum(small)
        found, lacking = [], 0
        # All, as the next message is behind them.
        for length in (first, together, *(each for each in lengths if each >= _SMALL)):
            try:
                found.append(await self._frame(length))
            except UnreceivedError as error:
                lacking += error.nbytes
                found.append(error.head)
        if lacking:
            raise UnreceivedError(bytes(found[0][:_CHUNK]), lacking)
        # Each small one is copied: to keep the rows of one table must not keep the rows of all.
        whole, end, rest, apart = memoryview(found[1]), 0, iter(found[2:]), [found[0]]
        try:
            for length in lengths:
                if length < _SMALL:
                    start, end = end, end + length
                    apart.append(bytearray(whole[start:end]))
                else:
                    apart.append(next(rest))
        except MemoryError:
            raise UnreceivedError(bytes(found[0][:_CHUNK]), sum(small)) from None
        return apart

    async def _frame(self, length: int) -> Any:
        frame = await self._take(length & ~_SHARED)
        if length & _SHARED:
            assert self._mapped is not None  # or the other side would not have shared
            *block, size = _BLOCK.unpack(frame)
            try:
                return self._mapped.get(SharedBlock(*block), size)
            except MemoryError:
                raise UnreceivedError(b"", size) from None
        return frame

    async def _take(self, size: int) -> Any:
        if len(self._read) - self._at < size:
            self._receiving = True
            self.flush()  # or it would wait for the other side's next message
            if size >= _SMALL:
                whole = await self._take_large(size)
                self._receiving = False
                return whole
            del self._read[: self._at]
            self._at = 0
            while len(self._read) < size:
                # Not ``read_bytes``, which makes a new buffer and copies it twice.
                got = await self._stream.read_into(self._chunk, partial=True)
                self._read += memoryview(self._chunk)[:got]
            self._receiving = False
        start, self._at = self._at, self._at + size
        return self._read[start : self._at]

    async def _take_large(self, size: int) -> Any:
        whole = _received.allocate(size)
        if whole is None:  # not a bytearray, which would be zeroed first
            try:
                whole = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
            except MemoryError:
                raise UnreceivedError(await self._skip(size), size) from None
        here = len(self._read) - self._at
        whole[:here] = self._read[self._at :]
        self._read, self._at = bytearray(), 0
        await self._stream.read_into(whole[here:])  # type: ignore[arg-type]
        return whole

    async def _skip(self, size: int) -> bytes:
        """Read ``size`` bytes, at least a `_CHUNK`; return the first of them."""
        first = bytes(self._read[self._at :])
        self._read, self._at = bytearray(), 0
        size -= len(first)
        while size:
            part = memoryview(self._chunk)[: min(size, _CHUNK)]
            got = await self._stream.read_into(part, partial=True)  # type: ignore[arg-type]
            if len(first) < _CHUNK:
                first += part[:got]
            size -= got
        return first


def _lasting(frame: Any) -> bytes | memoryview:
    """Return what a frame holds now, until it is sent: an array may change before."""
    if len(frame) < _SMALL or type(frame) is bytes:
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

    async def _receive(self) -> Sequence[Any]:
        frames = await self._comm.read()
        return [bytearray(frame) for frame in frames]

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
