"""DiskSpace: files in which the rows of tables lie, as memory that the system moves to disk. Pure.

A file is mapped, so the system's page cache is the cache: it reads pages when they are touched, and
writes and drops them when memory is scarce. A file has no name: it goes with the process, however
that ends. What it promises is allocated on the disk first, since a page that finds no place there
ends the process (SIGBUS). (File systems that write each block anew, as btrfs and ZFS do, cannot
promise that.)

Dask ends a process by its resident memory, in which the system counts the pages of files that it
has mapped, though it could drop them at any time. So where Dask has a limit, they are unmapped when
there are too many; they stay in the page cache. A read maps 16 pages at a time, so a batch could
map gigabytes: rows are touched some at a time, and what is mapped is counted in between (`Paging`).
A thread does the same for what is touched in order. Each page is mapped again when it is next
touched, which takes time: servers of such tables are faster with a cgroup's limit only.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from psnb._src.server.memory import DiskFullError, require_room
from psnb.errors import ConfigurationError

_STEP = 1 << 20
"""Bytes that a file grows by at least, where the disk has them."""

_PERIOD = 0.05
"""Seconds after which resident pages are counted again. (Dask looks ten times a second.)"""

_RESIDENT, _LEAST_MAPPED, _AFTER = 0.6, 0.1, 0.8
"""The share of the limit from which on pages are unmapped; of it, the share that mapped pages may
have in any case; and the share of these that stays. Dask pauses a worker from 0.8 of its limit on,
and ends it from 0.95 on."""

_RANGE = 1 << 24
"""Bytes whose pages are unmapped at a time: about a millisecond, in which no Python runs."""

_THREAD = 80 << 20
"""Bytes of addresses that a thread takes."""

_FAULT = 16 * mmap.PAGESIZE
"""Bytes that the system maps at a touch, if they are in the page cache (fault_around_bytes)."""

_BETWEEN, _FEWEST = 0.05, 64
"""The share of the limit that may be mapped before pages are counted again; and rows that may be
touched in any case."""


class Paging(NamedTuple):
    """How the rows of a table are touched, so that few enough pages are mapped.

    Attributes
    ----------
    rows : int
        How many, at most, before `between` is called.
    between : callable
        Unmaps pages, if too many are mapped.
    """

    rows: int
    between: Callable[[], None]

    def parts(self, start: int, stop: int) -> Iterator[slice]:
        """Yield which of the rows from ``start`` to ``stop`` are touched together."""
        for at in range(start, stop, self.rows):
            yield slice(at, min(at + self.rows, stop))
            self.between()


class DiskSpace:
    """Makes the files, and keeps few enough of their pages mapped; any thread.

    Parameters
    ----------
    folder : str, optional
        Where they are; by default where the system has its temporary files.
    limit : int, optional
        The resident memory in bytes with which the process is ended.
    """

    def __init__(self, folder: str | None = None, limit: int | None = None) -> None:
        self.folder, self._limit = folder or tempfile.gettempdir(), limit
        self._lock = threading.Lock()  # guards the next two
        self._files: weakref.WeakSet[RowFile] = weakref.WeakSet()
        self._ended: threading.Event | None = None  # of the thread, if there is one
        self._base = 0  # bytes of other files, which are the code's
        self._trimming = threading.Lock()  # guards the next one; held while pages are unmapped
        self._at: tuple[int, int] = 0, 0  # which file and which of its bytes are unmapped next

    def file(self, most: int | None) -> RowFile:
        """Return a new file, of ``most`` rows if that is known.

        Raises
        ------
        MemoryError
            If there cannot be one more.
        ConfigurationError
            If this system cannot allocate files.
        """
        if not hasattr(os, "posix_fallocate"):
            raise ConfigurationError(
                "storage='disk' needs a server on Linux: this system cannot allocate files"
            )
        made = RowFile(self.folder, most)
        with self._lock:
            if self._limit is not None and self._ended is None:
                require_room(_THREAD)
                self._base = _resident()[1]
                self._ended = threading.Event()
                threading.Thread(
                    target=self._watch, args=(self._ended,), name="psnb-pages", daemon=True
                ).start()
            self._files.add(made)
        return made

    def close(self) -> None:
        """End the thread; the files are there as long as their tables."""
        with self._lock:
            if self._ended is not None:
                self._ended.set()
                self._ended = None

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(_PERIOD):
            self.trim()

    def paging(self, arrays: int) -> Paging | None:
        """Return how rows of a number of arrays are touched; None without a limit."""
        if self._limit is None:
            return None
        rows = int(self._limit * _BETWEEN) // (arrays * _FAULT)
        return Paging(max(_FEWEST, rows), self.trim)

    def trim(self) -> None:
        """Unmap pages, if too many are mapped; those in the order of their files."""
        with self._trimming:
            self._trim()

    def _trim(self) -> None:
        assert self._limit is not None
        resident, of_files = _resident()
        own = resident - of_files + self._base
        most = max(self._limit * _RESIDENT - own, self._limit * _LEAST_MAPPED)
        if of_files - self._base <= most:
            return
        with self._lock:
            files = list(self._files)
        for _ in range(len(files) + 1 if files else 0):  # once around
            number, start = self._at
            file = files[number % len(files)]
            while start < file.allocated:
                file.unmap(start, _RANGE)
                start += _RANGE
                if _resident()[1] - self._base <= most * _AFTER:
                    self._at = number % len(files), start
                    return
            self._at = (number + 1) % len(files), 0


class RowFile:
    """A file without a name, mapped into memory. Not thread-safe, but for `unmap`.

    Parameters
    ----------
    folder : str
        Where it is.
    most : int, optional
        The largest number of rows, if it is known.

    Attributes
    ----------
    allocated : int
        How many of its bytes have a place on the disk.

    Raises
    ------
    MemoryError
        If there cannot be one more.
    """

    def __init__(self, folder: str, most: int | None) -> None:
        self._folder, self._most = folder, most
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                self._number = os.dup(file.fileno())
        except OSError as error:
            raise DiskFullError(0, folder, str(error)) from error
        weakref.finalize(self, os.close, self._number)
        self.allocated = 0
        self._memory: mmap.mmap | None = None
        self._size = 0

    def rows(self, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
        """Return all rows that have a place on the disk, of this form: at least as many as it has.

        What was in them stays. Earlier arrays of them remain valid, until `shrink`.

        Raises
        ------
        MemoryError
            If the disk is full, or there are no addresses; nothing is changed.
        """
        count, columns = shape
        row = columns * dtype.itemsize
        if (nbytes := count * row) > self._size:
            self._map(nbytes, None if self._most is None else self._most * row)
        if nbytes > self.allocated:
            more = max(nbytes, self.allocated * 5 // 4, self.allocated + _STEP)
            try:
                self._allocate(min(more, self._size))
            except OSError:
                try:
                    self._allocate(nbytes)
                except OSError as error:
                    raise DiskFullError(nbytes - self.allocated, self._folder, str(error)) from None
        assert self._memory is not None
        there = self.allocated // row * columns
        return np.frombuffer(self._memory, dtype, there).reshape(-1, columns)

    def shrink(self, nbytes: int) -> None:
        """Give back the place of all bytes but the first; what was in these stays."""
        self.allocated = min(self.allocated, _pages(nbytes))
        self._give_back()

    def will_read(self, start: int, stop: int) -> None:
        """Have the system read these bytes ahead, in few large reads."""
        if self._memory is not None and start < stop:
            start -= start % mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def unmap(self, start: int, nbytes: int) -> None:
        """Unmap pages, which stay in the page cache; any thread."""
        memory = self._memory
        if memory is not None and start < len(memory):
            memory.madvise(mmap.MADV_DONTNEED, start, min(nbytes, len(memory) - start))

    def _allocate(self, nbytes: int) -> None:
        nbytes = _pages(nbytes)
        try:
            os.posix_fallocate(self._number, self.allocated, nbytes - self.allocated)
        except OSError:
            self._give_back()  # a part may have been allocated
            raise
        self.allocated = nbytes

    def _give_back(self) -> None:
        os.ftruncate(self._number, self.allocated)
        os.ftruncate(self._number, self._size)

    def _map(self, nbytes: int, most: int | None) -> None:
        """Map more, as much as the disk could ever hold if there are so many addresses."""
        disk = os.fstatvfs(self._number)
        sizes = [most or self.allocated + disk.f_bavail * disk.f_frsize, nbytes * 3 // 2, nbytes]
        for size in map(_pages, sizes):
            if size < nbytes:
                continue
            try:
                os.ftruncate(self._number, size)
                memory = mmap.mmap(self._number, size)
            except OSError as error:
                os.ftruncate(self._number, self._size)
                why = str(error)
                continue
            memory.madvise(mmap.MADV_RANDOM)  # without it, each touch reads 128 kB
            self._memory, self._size = memory, size
            return
        raise DiskFullError(nbytes - self.allocated, self._folder, why)


def _pages(nbytes: int) -> int:
    """Return a number of bytes, rounded up to pages."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _resident() -> tuple[int, int]:
    """Return the process's resident bytes, and those of files among them."""
    with open("/proc/self/statm") as file:
        _, resident, of_files, *_ = map(int, file.read().split())
    return resident * mmap.PAGESIZE, of_files * mmap.PAGESIZE
