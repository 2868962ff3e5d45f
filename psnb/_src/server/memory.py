"""The memory that grows with a server's data and requests: all of it is allocated here. Pure.

A server changes a table in two steps: it gets all memory that the change needs, and then makes the
change, in loops that only write into memory that they have. So a server without memory refuses a
change as a whole. (To undo a change that failed in the middle was rejected: a copy of the
overwritten values takes memory and time, with each push.) Objects of a few hundred bytes are not
counted: a process that cannot get them ends, like one that the system kills for its memory.

The system promises memory that it does not have, and ends a process that then uses it: so all that
is large asks `psnb._src.utils.process_memory.room` first.

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
from psnb._src.utils.process_memory.limits import MemoryUse, address_limit
from psnb._src.utils.process_memory.room import SMALL, room
from psnb.errors import ServerMemoryError

Shape = tuple[int, ...]


def no_memory(nbytes: int, near: MemoryUse | None = None) -> MemoryError:
    """Return what is raised where there are not so many bytes; for any process that has tables.

    ``near`` is the limit that they would bring too near, if the system has not refused them itself.
    """
    error = MemoryError(
        f"this process has no memory for {nbytes:,} bytes more, and {_limit(near)}. Give it more "
        "memory, or let it hold less at a time: fewer rows, smaller batches"
    )
    error.nbytes, error.near = nbytes, near  # type: ignore[attr-defined]  # `refusal` names them
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
        super().__init__(nbytes, folder, why)  # by which it is made again where it arrives
        self.nbytes, self.folder, self.why = nbytes, folder, why

    def __str__(self) -> str:
        return f"no {self.nbytes:,} bytes more for rows in {self.folder}: {self.why}"


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
    if found.nbytes >= SMALL:
        _require(found.nbytes, lasts=False)
    return found


RESERVE, _MESSAGE = 4, 1 << 20
"""For how many of Dask's messages, and of how many bytes each, a server leaves memory: a worker
without memory for its heartbeat (msgpack takes a megabyte for any message) is closed by Dask in the
middle of its work, and the server on it never answers again."""


def lasting(shape: Shape, dtype: Any) -> np.ndarray:
    """Return memory for rows, from the beginning of a cache line on, which is not filled."""
    found = addresses(shape, dtype)
    promise(found.nbytes)
    return found


def addresses(shape: Shape, dtype: Any) -> np.ndarray:
    """Return what `lasting` does, without memory: `promise` that before it is written."""
    found: np.ndarray = allocate(memory.lasting, shape, np.dtype(dtype))
    return found


def in_small_pages(shape: Shape, dtype: Any) -> np.ndarray:
    """Return addresses for copies: `promise` memory before it is written.

    For a huge page, the system may look for a tenth of a second.
    """
    get = partial(memory.in_pages, huge=False)
    found: np.ndarray = allocate(get, shape, np.dtype(dtype))
    return found


def promise(nbytes: int) -> None:
    """Raise MemoryError unless so many bytes may be written next, and stay."""
    allocate(_promised, nbytes, np.uint8)


def require_room(nbytes: int) -> None:
    """Raise MemoryError unless the system has so much; nothing is kept of it."""
    allocate(partial(memory.in_pages, huge=False), (nbytes,), np.dtype(np.uint8))
    _require(nbytes, lasts=False)


def _require(nbytes: int, *, lasts: bool) -> None:
    if (near := room.lacks(nbytes, lasts=lasts)) is not None:
        raise no_memory(nbytes, near)


def _promised(nbytes: Any, dtype: Any) -> None:
    _require(nbytes, lasts=True)
    # By trying: only the system knows its limits, and only the heap its free memory.
    [np.empty(_MESSAGE, np.uint8) for _ in range(RESERVE)]


def allocate(get: Callable[[Any, Any], Any], shape: Shape | int, dtype: Any) -> Any:
    """Return what ``get`` returns, or raise `no_memory`."""
    try:
        return get(shape, dtype)
    except DiskFullError:
        raise
    except (MemoryError, ValueError) as error:  # numpy's for more than there are addresses
        if getattr(error, "near", None) is not None:
            raise
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
    near = getattr(error, "near", None)
    if near is None and nbytes is not None:  # refused where messages come in, perhaps
        near = room.lacks(nbytes, lasts=False)
    return ServerMemoryError(
        f"{where} has no memory for {what}: that needs {wanted}, and {_limit(near)}. Nothing was "
        "changed. Give the processes of servers more memory, start more of them, or hold less "
        "there: fewer rows (admission=, shrink) or a smaller push"
    )


def _limit(near: MemoryUse | None) -> str:
    if near is not None:
        return f"{near}, which are kept for messages"
    most = address_limit("AS")
    if most is not None:
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
    return scratch(shape, dtype) if buffer is None else buffer
