"""FrameReader: takes what a connection carries apart into messages, without reading it. Pure.

A message is `HEAD`, the frames' lengths, numbers of released blocks of shared memory, the first
frame, all small ones together, and each large one. The reader, in any thread, says how many bytes
it has read: one reader at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import numpy as np

from psnb._src.transport.buffer_pool import BufferPool
from psnb._src.transport.shared_memory import Mapped, SharedBlock
from psnb._src.utils.process_memory.room import room

# How many frames follow, how many numbers of released blocks, and whether the small frames are in
# shared memory.
HEAD = struct.Struct("<II?")
BLOCK = struct.Struct("<QQQQ")  # a frame that is in shared memory: number, fd, capacity, size
SHARED = 1 << 63  # marks the length of such a frame
SMALL = 1 << 16
"""Frames below this are copied together, larger ones are handed to the socket as they are. A step
of a model with 50 tables sends a hundred: one by one, they took a millisecond of system calls."""

_CHUNK = 1 << 16

_received = BufferPool()
"""Of the process, not of each stream: a server has hundreds."""


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


Steps: TypeAlias = Generator[None, int, Any]
"""Yields when more bytes must be read, and gets their number."""


class FrameReader:
    """Makes frames of bytes.

    Parameters
    ----------
    read : bytes
        What was read before.
    take_back : callable
        Called with the numbers of released blocks.

    Attributes
    ----------
    space : memoryview
        Where the next bytes are to be read.
    starved : bool
        Whether it waits for bytes.
    mapped : Mapped or None
        The other side's shared memory.
    """

    def __init__(self, read: bytes, take_back: Callable[[Sequence[int]], None]) -> None:
        self._chunk = memoryview(bytearray(_CHUNK))
        self._read = bytearray(read)
        self._at = 0  # what comes before it in `_read` was returned
        self._take_back = take_back
        self.space, self.starved = self._chunk, False
        self.mapped: Mapped | None = None
        self._found: Sequence[Any] | UnreceivedError | None = None
        self._steps = self._messages()
        next(self._steps)

    @property
    def has_more(self) -> bool:
        """Whether something of the next message is here, and was not looked at."""
        return not self.starved and len(self._read) > self._at

    def advance(self, got: int) -> Sequence[Any] | None:
        """Return the frames of the next message; None if more bytes must be read.

        Parameters
        ----------
        got : int
            How many were read into `space` since the last call.

        Raises
        ------
        UnreceivedError
            If there was no memory for the next message.
        """
        self._steps.send(got)
        found, self._found = self._found, None  # nothing here may keep a message
        try:
            if isinstance(found, UnreceivedError):
                raise found
            return found
        finally:
            del found  # the error refers to this frame, and would keep itself and frames alive

    def close(self) -> None:
        """Drop what is here in part, and the other side's memory, which waits for no collection."""
        self._steps.close()
        self._read, self._at = bytearray(), 0
        self.space, self.starved, self.mapped = self._chunk, True, None

    def _messages(self) -> Steps:
        while True:
            yield
            try:
                self._found = yield from self._message()
            except UnreceivedError as error:
                self._found = error

    def _message(self) -> Steps:
        frames, released, shared = HEAD.unpack((yield from self._take(HEAD.size)))
        count = frames + released
        numbers = struct.unpack(f"<{count}Q", (yield from self._take(8 * count)))
        if released:
            self._take_back(numbers[frames:])
        first, *lengths = numbers[:frames]
        small = [length for length in lengths if length < SMALL]
        together = BLOCK.size | SHARED if shared else sum(small)
        found, lacking = [], 0
        # All, as the next message is behind them.
        for length in (first, together, *(each for each in lengths if each >= SMALL)):
            try:
                found.append((yield from self._frame(length)))
            except UnreceivedError as error:
                lacking += error.nbytes
                found.append(error.head)
        if lacking:
            raise UnreceivedError(bytes(found[0][:_CHUNK]), lacking)
        # Each small one is copied: to keep the rows of one table must not keep the rows of all.
        whole, end, rest, apart = memoryview(found[1]), 0, iter(found[2:]), [found[0]]
        try:
            for length in lengths:
                if length < SMALL:
                    start, end = end, end + length
                    apart.append(bytearray(whole[start:end]))
                else:
                    apart.append(next(rest))
        except MemoryError:
            raise UnreceivedError(bytes(found[0][:_CHUNK]), sum(small)) from None
        return apart

    def _frame(self, length: int) -> Steps:
        frame = yield from self._take(length & ~SHARED)
        if length & SHARED:
            assert self.mapped is not None  # or the other side would not have shared
            *block, size = BLOCK.unpack(frame)
            try:
                return self.mapped.get(SharedBlock(*block), size)
            except MemoryError:
                raise UnreceivedError(b"", size) from None
        return frame

    def _take(self, size: int) -> Steps:
        if len(self._read) - self._at < size:
            if size >= SMALL:
                return (yield from self._take_large(size))
            del self._read[: self._at]
            self._at = 0
            while len(self._read) < size:
                got = yield from self._more(self._chunk)
                self._read += self._chunk[:got]
        start, self._at = self._at, self._at + size
        return self._read[start : self._at]

    def _more(self, space: memoryview) -> Steps:
        self.space, self.starved = space, True
        got = yield
        self.starved = False
        return got

    def _take_large(self, size: int) -> Steps:
        whole = _received.allocate(size)
        if whole is None:  # not a bytearray, which would be zeroed first
            try:
                if room.lacks(size, lasts=False):
                    raise MemoryError
                whole = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
            except MemoryError:
                raise UnreceivedError((yield from self._skip(size)), size) from None
        at = len(self._read) - self._at
        whole[:at] = self._read[self._at :]
        self._read, self._at = bytearray(), 0
        while at < size:
            at += yield from self._more(whole[at:])
        self.space = self._chunk  # a reader that keeps this must not keep the frame
        return whole

    def _skip(self, size: int) -> Steps:
        """Read ``size`` bytes, at least a `_CHUNK`; return the first of them."""
        first = bytes(self._read[self._at :])
        self._read, self._at = bytearray(), 0
        size -= len(first)
        while size:
            part = self._chunk[: min(size, _CHUNK)]
            got = yield from self._more(part)
            if len(first) < _CHUNK:
                first += part[:got]
            size -= got
        return first
