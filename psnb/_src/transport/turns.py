"""SocketByTurns: a socket that its event loop reads, or a thread that waits for an answer.

Waking a thread through the event loop takes longer than a small message. So a thread that waits
takes the *turn*: the loop does not watch the socket until it gives the turn back. The holder of
the turn reads; nobody waits for it.

The loop watches an epoll that watches the socket, as any thread may change what that watches. (On
systems without epoll threads do not take the turn.)
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from tornado.iostream import IOStream, StreamClosedError

from psnb._src.dask_compat.reach import take_over

_AGAIN = 0.01


class Handler(Protocol):
    """Takes what was read; called by the holder of the turn."""

    @property
    def space(self) -> memoryview:
        """Where the next bytes are to be read."""

    def take_in(self, got: int) -> bool:
        """Take ``got`` bytes from `space`; return whether to read on."""

    def failed(self, error: OSError) -> None:
        """Take the error that ends the connection."""

    def ended(self) -> None:
        """Drop what was read in part: nobody reads any more; in any thread."""


def read_while(waits: Callable[[], bool], what: Iterable[SocketByTurns], seconds: float) -> None:
    """Read sockets in this thread while ``waits()``, for ``seconds`` at most.

    All or none: what ends the waiting, but is not read here, is not noticed before.
    """
    held: dict[int, SocketByTurns] = {}
    poll, end = select.poll(), time.monotonic() + seconds
    _here.reads = True
    try:
        for each in what:
            if not each.hold():
                return
            held[each.fileno()] = each
            poll.register(each, select.POLLIN)
        while held and waits() and (left := end - time.monotonic()) > 0:
            if not all(held[file].read_on() for file, _ in poll.poll(1000 * left)):
                return  # a connection has ended
    finally:
        _here.reads = False
        for each in held.values():
            each.give_back()


_here = threading.local()


def reads_here() -> bool:
    """Return whether this thread reads: if it waited for an answer, nobody would read that."""
    return getattr(_here, "reads", False)


class SocketByTurns(socket.socket):
    """The socket of a Tornado stream, which only closes it from now on; made on its event loop.

    Parameters
    ----------
    stream : tornado.iostream.IOStream
        Open or closed.
    handler : Handler
        Takes what is read.
    writing : threading.Lock
        Held while something is written.

    Attributes
    ----------
    read_before : bytes
        What the stream had read.
    unsent : deque of memoryview
        What the loop still has to write; changed by the loop only.
    """

    def __init__(self, stream: IOStream, handler: Handler, writing: threading.Lock) -> None:
        file, self.read_before = take_over(stream)
        super().__init__(fileno=file)
        self.setblocking(False)
        self.unsent: deque[memoryview] = deque()
        self._loop, self._handler = asyncio.get_running_loop(), handler
        self._writing = writing
        self._turn = threading.Lock()  # held by the reader; nobody waits for it
        self._gate: select.epoll | None = None
        self._watched = self._writes = self._ended = False
        if not stream.closed():
            stream.socket = self

    def close(self) -> None:
        """Close it, when nobody reads; on the loop. Idempotent."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.unwatch()
            self._loop.remove_writer(self)
        if self._turn.acquire(blocking=False):
            self._end()
        self._handler.failed(StreamClosedError())

    def _end(self) -> None:
        if self._gate is not None:
            self._gate.close()
        with self._writing:  # or another connection might get the descriptor that one writes to
            super().close()
        self._handler.ended()

    # On the loop.

    def let_threads_read(self) -> None:
        """Let threads take the turn, from now on."""
        if hasattr(select, "epoll") and not self._ended:
            self.unwatch()
            self._gate = select.epoll()
            self._gate.register(self, select.EPOLLIN)

    def watch(self) -> None:
        """Have the loop read, when nobody else does; at first what is here."""
        if self._ended:
            return
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._gate or self, self._readable)
        if self._read_on_loop() is None:  # a thread that is about to end, perhaps
            self._loop.call_later(_AGAIN, self.watch)

    def unwatch(self) -> None:
        """Have the loop not read."""
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._gate or self)

    def _readable(self) -> None:
        if self._read_on_loop() is False:
            self.unwatch()  # until somebody receives

    def _read_on_loop(self) -> bool | None:
        if not self._turn.acquire(blocking=False):
            return None
        try:
            return self.read_on()
        finally:
            self._release()

    def write_on(self) -> None:
        """Write what is unsent."""
        try:
            while self.unsent and not self._ended:
                data = self.unsent[0]
                if (written := self.send(data)) < len(data):
                    self.unsent[0] = data[written:]
                else:
                    self.unsent.popleft()  # only now: threads write when nothing is unsent
        except BlockingIOError:
            if not self._writes:
                self._writes = True
                self._loop.add_writer(self, self.write_on)
            return
        except OSError:
            self.unsent.clear()  # the reader gets the error
        if self._writes and not self._ended:
            self._writes = False
            self._loop.remove_writer(self)

    # In any thread.

    def hold(self) -> bool:
        """Take the turn from the loop; return whether that could be."""
        if self._gate is None or not self._turn.acquire(blocking=False):
            return False
        if self._ended:
            self._release()
            return False
        self._gate.modify(self, 0)
        return True

    def give_back(self) -> None:
        """End what `hold` began: the loop reads what is left."""
        if not self._ended:
            assert self._gate is not None
            self._gate.modify(self, select.EPOLLIN)
        self._release()

    def _release(self) -> None:
        self._turn.release()
        # Looked at after that: either this closes it, or `close` does.
        if self._ended and self._turn.acquire(blocking=False):
            self._end()

    def read_on(self) -> bool:
        """Read what is here, without waiting; called by the holder of the turn.

        Returns whether it was wanted.
        """
        got, wanted, more = 0, False, True
        try:
            while self._handler.take_in(got) and more:
                wanted = True
                size = len(self._handler.space)
                got = self.recv_into(self._handler.space)
                if not got:
                    raise StreamClosedError
                more = got == size
        except BlockingIOError:
            pass
        except OSError as error:
            self._handler.failed(error)
        return wanted
