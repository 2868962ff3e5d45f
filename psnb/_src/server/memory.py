"""The memory that grows with a server's data and requests: all of it is allocated here. Pure.

A server changes a table in two steps: it gets all memory that the change needs, and then makes the
change, in loops that only write into memory that they have. So a server without memory refuses a
change as a whole. (To undo a change that failed in the middle was rejected: a copy of the
overwritten values takes memory and time, with each push.) Objects of a few hundred bytes are not
counted: a process that cannot get them ends, like one that the system kills for its memory.

Tests replace `allocate`, and let one call after the other fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from psnb._src.utils import memory
from psnb.errors import ServerMemoryError

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]


Shape = tuple[int, ...]


def no_memory(nbytes: int) -> MemoryError:
    """Return what is raised where there are not so many bytes; for any process that has tables."""
    error = MemoryError(
        f"this process has no memory for {nbytes:,} bytes more, and {_limit()}. Give it more "
        "memory, or let it hold less at a time: fewer rows, smaller batches"
    )
    error.nbytes = nbytes  # type: ignore[attr-defined]  # `refusal` names them
    return error


class DiskFullError(MemoryError):
    """A disk has no place for rows; `refusal` says so.

    Parameters
    ----------
    nbytes : int
        How many bytes more were wanted.
    folder : str
        Where.
    why : str
        What the system says.
    """

    def __init__(self, nbytes: int, folder: str, why: str) -> None:
        super().__init__(f"no {nbytes:,} bytes more for rows in {folder}: {why}")
        self.nbytes, self.folder, self.why = nbytes, folder, why


class Reservable:
    """Counts what is promised of its room.

    Attributes
    ----------
    promises, promised, present : int
        For how many, and how much in all; and how much these have of what is there now.
    """

    promises = promised = present = 0


class Promise:
    """Room that several keep for one user, until it is released or nothing refers to it.

    So it ends in whatever way a commit ends that was prepared and is not applied.
    """

    __slots__ = ("_by", "_count", "_present")

    def __init__(self, by: Sequence[Reservable], count: int, present: int = 0) -> None:
        self._by, self._count, self._present = by, count, present
        for each in by:
            each.promises += 1
            each.promised += count
            each.present += present

    def release(self) -> None:
        """Give the room back; idempotent."""
        by, self._by = self._by, ()
        for each in by:
            each.promises -= 1
            each.promised -= self._count
            each.present -= self._present

    def __del__(self) -> None:
        self.release()


def scratch(shape: Shape | int, dtype: Any) -> np.ndarray:
    """Return memory that is not filled, for one operation: the heap has it again soon."""
    found: np.ndarray = allocate(np.empty, shape, dtype)
    return found


RESERVE, _MESSAGE = 4, 1 << 20
"""For how many of Dask's messages, and of how many bytes each, a server leaves memory: a worker
without memory for its heartbeat (msgpack takes a megabyte for any message) is closed by Dask in the
middle of its work, and the server on it never answers again."""


def lasting(shape: Shape, dtype: Any) -> np.ndarray:
    """Return memory for rows, from the beginning of a cache line on, which is not filled."""
    return _kept(memory.lasting, shape, dtype)


def in_small_pages(shape: Shape, dtype: Any) -> np.ndarray:
    """Return memory for copies, of which the system provides what is written.

    For a huge page, it may look for a tenth of a second.
    """
    return _kept(partial(memory.in_pages, huge=False), shape, dtype)


def _kept(get: Callable[[Any, Any], np.ndarray], shape: Shape, dtype: Any) -> np.ndarray:
    found: np.ndarray = allocate(get, shape, np.dtype(dtype))
    allocate(_leave_reserve, found.nbytes, np.uint8)
    return found


def require_room(nbytes: int) -> None:
    """Raise MemoryError unless the system has so much; nothing is kept of it."""
    allocate(partial(memory.in_pages, huge=False), (nbytes,), np.dtype(np.uint8))


def _leave_reserve(wanted: Any, dtype: Any) -> None:
    # By trying: only the system knows its limits, and only the heap its free memory.
    [np.empty(_MESSAGE, np.uint8) for _ in range(RESERVE)]


def allocate(get: Callable[[Any, Any], Any], shape: Shape | int, dtype: Any) -> Any:
    """Return what ``get`` returns, or raise `no_memory`."""
    try:
        return get(shape, dtype)
    except DiskFullError:
        raise
    except (MemoryError, ValueError):  # numpy's for more than there are addresses
        count = shape if isinstance(shape, int) else math.prod(shape)
        raise no_memory(count * np.dtype(dtype).itemsize) from None


def refusal(error: MemoryError, what: str, where: str) -> ServerMemoryError:
    """Return the error that says that something could not be done for want of memory.

    Parameters
    ----------
    error : MemoryError
        What was raised.
    what, where : str
        What could not be done, and where.
    """
    if isinstance(error, ServerMemoryError):
        return error
    nbytes = getattr(error, "nbytes", None)
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)  # numpy's
    if nbytes is None and shape is not None and dtype is not None:
        nbytes = math.prod(shape) * dtype.itemsize
    wanted = "more memory" if nbytes is None else f"{nbytes:,} bytes more"
    # Its frames hold memory that others need now.
    error.__traceback__ = error.__cause__ = None
    if isinstance(error, DiskFullError):
        return ServerMemoryError(
            f"{where} has no place on its disk for {what}: that needs {wanted} in {error.folder}, "
            f"and the system says {error.why!r}. Nothing was changed. Free some, have Dask's "
            "workers use a larger disk (--local-directory), start more servers, or hold fewer rows "
            "(admission=, shrink)"
        )
    return ServerMemoryError(
        f"{where} has no memory for {what}: that needs {wanted}, and {_limit()}. Nothing was "
        "changed. Give the processes of servers more memory, start more of them, or hold less "
        "there: fewer rows (admission=, shrink) or a smaller push"
    )


def _limit() -> str:
    if resource is not None:
        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            return f"its process may have {most:,} in all (ulimit -v)"
    return "the system does not give it"


Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray | None]
"""Returns an array of a shape and dtype, or None if there is none to lend."""

answers_in: ContextVar[Allocate | None] = ContextVar("psnb answers", default=None)
"""Where tables write their results, if possible into memory that is sent without a copy; set by the
caller that runs an operation."""


def answer_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array for an answer, not filled yet."""
    allocate = answers_in.get()
    buffer = None if allocate is None else allocate(shape, dtype)
    return np.empty(shape, dtype) if buffer is None else buffer
