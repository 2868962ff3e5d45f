"""Arena: shared memory between two processes of one host, for the large buffers of messages.

The sender copies a buffer into a *block*, or writes it there in the first place, and sends the
block's name; the receiver reads it in place and gives the block back when nothing refers to it any
more. Blocks are anonymous files in memory (``memfd_create``) that the other side opens through
``/proc``: they have no names in ``/dev/shm``, so no block is left behind, however the processes
end, and the size of ``/dev/shm`` does not matter. If the other process cannot be seen like that
(another host, another container, another user, another system than Linux), `can_see` says so, and
messages go without shared memory. So they do if Dask's setting ``psnb.shared-memory`` is false
(``DASK_PSNB__SHARED_MEMORY=False``).

Not thread-safe, except that any thread may drop the last array of a block, which gives it back. The
stream that owns an arena locks it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import dask
import numpy as np

from psnb._src.transport.buffer_pool import address_of, lend
from psnb._src.utils.process_memory.room import room

MOST_BYTES = 1 << 28
"""Of an arena, for one direction of one connection. More goes without shared memory."""

_SMALLEST = 1 << 16

_PROBE = "psnb-probe"

Probe = tuple[int, int, bytes]
"""A process id, the descriptor of a file that the process has open, and the file's content."""


@functools.cache
def _probe_of(pid: int) -> Probe | None:
    # By process: a forked one must not offer its parent's.
    if not hasattr(os, "memfd_create"):
        return None
    token = secrets.token_bytes(16)
    fd = os.memfd_create(_PROBE, os.MFD_CLOEXEC)
    os.write(fd, token)
    return pid, fd, token


def probe() -> Probe | None:
    """Return what `can_see` of another process can look for; None without shared memory."""
    return _probe_of(os.getpid()) if _wanted() else None


def can_see(other: Probe | None) -> bool:
    """Return whether the memory of another process can be opened from this one."""
    if other is None or not _wanted():
        return False
    pid, fd, token = other
    path = f"/proc/{pid}/fd/{fd}"
    try:
        # The other process may be on another host, and a process with its number here may have a
        # pipe under that descriptor: reading it would wait for ever.
        if not os.readlink(path).startswith(f"/memfd:{_PROBE}"):
            return False
        with open(path, "rb") as file:
            return file.read(len(token)) == token
    except OSError:
        return False


def _wanted() -> bool:
    return bool(dask.config.get("psnb.shared-memory", True))


@dataclass(frozen=True, slots=True)
class SharedBlock:
    """A block of shared memory, as the sender names it.

    Attributes
    ----------
    number : int
        Unique in its arena.
    fd : int
        The sender's file descriptor.
    capacity : int
        Bytes.
    """

    number: int
    fd: int
    capacity: int


class Arena:
    """The sender's blocks: made when needed, used again when nothing refers to them any more.

    Data to be sent can be written directly into a block that was *lent*; else `put` copies it.
    """

    def __init__(self) -> None:
        self._maps: list[tuple[SharedBlock, mmap.mmap]] = []  # by number
        self._free: dict[int, list[int]] = {}  # numbers by capacity
        self._bytes = 0
        self._allocated: dict[int, int] = {}  # to this side, numbers by address
        self._held: dict[int, int] = {}  # of lent ones: by how many, this side and the reader
        self._allocated_bytes = 0
        self._dropped: deque[tuple[int, int]] = deque()  # (number, address); any thread adds

    def put(self, buffers: Sequence[memoryview]) -> SharedBlock | None:
        """Copy buffers into a block, one behind the other; None without room for them.

        A single one that lies in a block that was lent is not copied. That block then belongs to
        the reader as well, and is free when both have dropped it.
        """
        self._take_back_dropped()
        number = self._allocated.get(address_of(buffers[0])) if len(buffers) == 1 else None
        if number is not None and self._held[number] == 1:
            self._held[number] = 2
            return self._maps[number][0]
        number = self._take(sum(map(len, buffers)))
        if number is None:
            return None
        block, memory = self._maps[number]
        whole, end = np.frombuffer(memory, np.uint8), 0
        for buffer in buffers:
            start, end = end, end + len(buffer)
            whole[start:end] = np.frombuffer(buffer, np.uint8)
        return block

    def allocate(self, size: int) -> memoryview | None:
        """Return a block to write into and perhaps to send with `put`; None without room.

        It belongs to this side until the view, and all that is made of it, is dropped.
        """
        self._take_back_dropped()
        if self._allocated_bytes + size > MOST_BYTES // 2:  # or nothing else could be sent
            return None
        number = self._take(size)
        if number is None:
            return None
        self._allocated_bytes += self._maps[number][0].capacity
        memory = self._maps[number][1]
        address = address_of(memory)
        self._held[number], self._allocated[address] = 1, number
        return lend(memory, size, self._dropped.append, (number, address))

    def take_back(self, number: int) -> None:
        """Note that one side has dropped a block."""
        holders = self._held.pop(number, 1) - 1
        if holders:
            self._held[number] = holders
        elif self._maps:  # else the arena was closed
            self._free.setdefault(self._maps[number][0].capacity, []).append(number)

    def close(self) -> None:
        """Give the memory back, as soon as nothing refers to it any more; idempotent."""
        for block, _ in self._maps:
            os.close(block.fd)
        self._maps, self._free, self._held, self._allocated = [], {}, {}, {}
        self._bytes = MOST_BYTES  # nothing can be put any more

    def _take_back_dropped(self) -> None:
        while self._dropped:
            number, address = self._dropped.popleft()
            if self._allocated.pop(address, None) is not None:  # else the arena was closed
                self._allocated_bytes -= self._maps[number][0].capacity
                self.take_back(number)

    def _take(self, size: int) -> int | None:
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(capacity)
        return free.pop() if free else self._make(capacity)

    def _make(self, capacity: int) -> int | None:
        if self._bytes + capacity > MOST_BYTES or room.lacks(capacity, lasts=False):
            return None
        try:
            fd = os.memfd_create("psnb", os.MFD_CLOEXEC)
        except OSError:  # too many open files
            return None
        try:
            os.ftruncate(fd, capacity)
            memory = mmap.mmap(fd, capacity)
        except OSError:
            os.close(fd)
            return None
        self._bytes += capacity
        self._maps.append((SharedBlock(len(self._maps), fd, capacity), memory))
        return len(self._maps) - 1


class Mapped:
    """The receiver's side of another process's arena.

    Parameters
    ----------
    pid : int
        That process's id.

    Attributes
    ----------
    released : collections.deque
        Numbers of blocks that were dropped here, for the sender.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._maps: dict[int, mmap.mmap] = {}
        self.released: deque[int] = deque()

    def get(self, block: SharedBlock, size: int) -> memoryview:
        """Return the first bytes of a block, writable.

        The block belongs to this side until the view, and all that is made of it, is dropped.

        Raises
        ------
        OSError
            If the other process is gone.
        MemoryError
            If this process has no room for it; then the block was given back.
        """
        memory = self._maps.get(block.number)
        if memory is None:
            if room.lacks(block.capacity, lasts=False):
                self._maps.clear()  # those that nothing refers to are memory of this process
                if room.lacks(block.capacity, lasts=False):
                    self.released.append(block.number)
                    raise MemoryError
            fd = os.open(f"/proc/{self._pid}/fd/{block.fd}", os.O_RDWR | os.O_CLOEXEC)
            with contextlib.closing(os.fdopen(fd, "r+b", buffering=0)):
                try:
                    memory = self._maps[block.number] = mmap.mmap(fd, block.capacity)
                except OSError as error:
                    if error.errno != errno.ENOMEM:
                        raise
                    self.released.append(block.number)
                    raise MemoryError from None
        return lend(memory, size, self.released.append, block.number)
